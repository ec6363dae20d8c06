# A session that holds the publishers of what it cannot take back, for a bounded while.
#
# Laws:
#   a publisher is held once by each session, and let go as often
#   who is held goes on after a while, unless it sends faster than its contract or awaits acknowledgements, and the
#   client takes messages

from libc.stdint cimport int64_t, uint8_t, uint64_t

from holdfast.broker.link cimport Board, Link
from holdfast.broker.message cimport Message


cdef class Holding:
    cdef readonly Board board
    cdef readonly Link link
    cdef bint impatient
    cdef dict holding           # publishers that are not read for this session's sake -> how patiently
    cdef readonly int64_t held_since_ns
    cdef uint64_t sent, sent_when_held

    cdef void hold_back(self, Message* m, uint8_t qos)
