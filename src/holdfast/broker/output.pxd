# Bytes that wait to be written to a peer.
#
# Laws:
#   bytes leave in the order in which they were put here
#   what waits for all clients has one bound: when it is reached, the output in which most waits is choked, and
#   cut off with this turn, but never the only one that has something waiting
#   after it is cut off nothing is written any more: the peer never sees half a packet and then something else

from libc.stdint cimport uint32_t

from holdfast.broker.shares cimport Pool, Share
from holdfast.mqtt.wire cimport Out


cdef class Outputs:
    """Those of all clients."""
    cdef Pool* pool
    cdef public list choked         # to be cut off: their clients do not read

    cdef void make_room(self, Output output)


cdef class Output:
    cdef Out out
    cdef Share share_of_output      # in no pool for other brokers
    cdef Outputs outputs            # None for other brokers
    cdef bint choked
    cdef public uint32_t packet_max # the largest packet that the peer takes

    cdef inline bint room(self, size_t size) noexcept:
        """Sees to it that so many bytes more can wait here; 0 when memory is gone."""
        return self.out.len + size <= self.out.cap or self.grow(size)

    cdef bint grow(self, size_t size) noexcept
    cdef bint join_outputs(self, Outputs outputs) except 0
    cdef void empty(self) noexcept
