# What the poller knows of a file descriptor.

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t

from holdfast.runtime.kernel cimport EPOLLIN, EPOLLOUT

cdef enum:
    GREEDY_BYTES = 16384        # who sent so much of late, at 250 kB/s, sends without a pause
    FLOW_BYTES_MAX = 262144     # and is forgiven in a while


cdef enum Kind:
    FREE
    LOBBY       # where strangers are
    LISTENER
    GREETING    # layers are being agreed on; the broker does not know of it
    OPEN
    LINGERING   # everything was said; only the peer's end is awaited


cdef struct Slot:
    PyObject* wire          # owned while OPEN
    PyObject* layers        # owned while GREETING or OPEN; NULL: bytes go straight to the wire
    uint32_t interest
    uint32_t discarded
    int64_t flow            # bytes it sent of late, of which one is forgotten every 4096 ns
    int64_t read_ns         # when that was
    bint dear               # its last read took long
    bint watched            # by the kernel
    bint stranger           # has not said who it is, or listens for such: watched in the lobby
    bint gone               # its peer left: nothing more comes
    bint reset              # its peer was reset: what it said before may still be read
    Kind kind


cdef inline uint32_t of_interest(Slot* slot, uint32_t interest) noexcept:
    """Of a peer that left, only room to write; of one that was reset, only what it said."""
    return interest & ((0 if slot.gone else <uint32_t>EPOLLIN) | (0 if slot.reset else <uint32_t>EPOLLOUT))


cdef inline bint is_greedy(Slot* slot, int64_t now_ns) noexcept:
    """Whether it sends without a pause."""
    slot.flow = min(max(slot.flow - (now_ns - slot.read_ns >> 12), 0), <int64_t>FLOW_BYTES_MAX)
    slot.read_ns = now_ns
    return slot.flow > GREEDY_BYTES
