# Exchanges that are not over. See pending.pyx for the laws.

from libc.stdint cimport uint64_t


cdef class Pending:
    cdef readonly int packet_id
    cdef public object awaits
    cdef public bytes packet
    cdef public object ticket
    cdef public int place
    # Of publications: the place among all that were published, and the topic.
    cdef public uint64_t order
    cdef public object record
    cdef public bint written
    # The answer that its asker gets when the exchange is over.
    cdef public object recorded


# A publication with this identifier, and what it awaits.
cdef Pending publication(int packet_id, int qos, bytes packet, object ticket)
