# What a connection has read and cannot handle yet: unfinished packets, and what waits behind one that is.
#
# Laws:
#   such bytes of all clients have one bound, those of clients that were not let in yet one of their own (the pools
#   of the core); when it is reached, the connection that keeps most is sent away, and no other
#   a connection that alone keeps some keeps it, whatever the bound: a packet, or OUT_HIGH and one read behind one
#   that cannot be answered yet

from libc.stdint cimport uint8_t

from holdfast.broker.link cimport Wire
from holdfast.broker.shares cimport Pool, Share
from holdfast.mqtt.wire cimport Out


cdef class UnfinishedWire(Wire):
    cdef Out pending            # bytes that could not be handled yet
    cdef Share share            # what they take, of what those of all may

    cdef bint join(self, Pool* pool) except 0
    cdef bint keep(self, const uint8_t* data, size_t size)
    cdef bint fits(self)
    cdef void count_pending(self) noexcept
    cdef void forget_pending(self) noexcept
    cdef void _wrong(self, int reason, str text)
