# What must not happen before somebody else (the backup, the journal) has everything up to a number.
#
# Laws:
#   items come in the order of their numbers, and go in it
#   an item owns its message and whoever waits

from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from holdfast.broker.message cimport Message

cdef enum:
    OF_SESSION = 0x80000000


cdef struct Awaited:
    uint64_t number
    Message* message    # owned, or NULL
    PyObject* who       # owned, or NULL: a link with an acknowledgement that waits, or a session with a delivery
    uint32_t index      # which acknowledgement, or OF_SESSION and the packet identifier
    uint64_t turn       # of the journal that must be safe as well; 0: none


cdef struct Awaiting:
    Awaited* items      # a ring
    uint32_t cap
    uint64_t head, tail


cdef inline Awaited* awaited_first(Awaiting* awaiting) noexcept nogil:
    return &awaiting.items[awaiting.head & (awaiting.cap - 1)]

cdef bint await_number(Awaiting* awaiting, uint64_t number, Message* m, object who, uint32_t index,
                       uint64_t turn) noexcept
cdef void awaited_forget(Awaiting* awaiting) noexcept
