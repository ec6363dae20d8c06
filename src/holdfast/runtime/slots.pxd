# What the poller knows of a file descriptor.

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t

cdef enum Kind:
    FREE
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
    bint gone               # its peer left: nothing more comes
    Kind kind
