# The receiving side of one connection: bytes become packets, which broker/connection.pyx handles.
#
# Laws:
#   packets are handled in the order in which they came; while plain Python has still to handle one of them
#   (CONNECT, ...) nothing behind it is looked at
#   SUBSCRIBE and UNSUBSCRIBE take effect where they are read, so that what any connection says later comes after
#   them; beyond a bound they are put aside, and count as read when they are handled
#   no byte is looked at twice but the head of an unfinished packet; no packet larger than the limit is kept
#   after a fault nothing more is read
#   of a peer that was reset every message is taken, but only so many bytes of SUBSCRIBE and UNSUBSCRIBE
#   a publisher that is too fast is not read for a while; what it sent is handled then, in order
#   what is not the ordinary path of a message costs units (work.py): beyond its share a connection is put aside,
#   and what it sent is handled in a later turn, in order

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from holdfast.broker.core cimport Core
from holdfast.broker.link cimport Inbox
from holdfast.broker.message cimport Topic
from holdfast.broker.meter cimport Meter
from holdfast.broker.permit cimport Permit
from holdfast.broker.session cimport Session
from holdfast.broker.topics cimport Ahead
from holdfast.broker.unfinished cimport UnfinishedWire


cdef class Intake(UnfinishedWire):
    cdef readonly Core core
    cdef readonly Session session
    cdef public Permit permit   # which topics it may publish to; None: all that are not the broker's own
    cdef public uint32_t packet_bytes_max   # how large a packet it may send; little before it is let in
    cdef bint metered           # whether it has a meter
    cdef readonly bint blocked  # nothing more is looked at until plain Python has answered, or a standby takes over
    cdef public object warm     # the CONNECT of a client that a standby keeps until it is needed
    cdef readonly tuple control # (first byte, body) that plain Python is to handle
    cdef public uint32_t unanswered     # filters of SUBSCRIBEs and UNSUBSCRIBEs that are in effect, and not answered yet
    cdef readonly uint64_t number_published     # the number of its last PUBLISH
    cdef bint held_back         # too many of them: its next one waits for an answer
    cdef bint fresh             # what is looked at was read just now
    cdef readonly bint tired    # it has spent its share: what it sent waits for a turn
    cdef public int64_t spent   # units since its bytes were last looked at
    cdef uint32_t unheard_bytes # of SUBSCRIBE and UNSUBSCRIBE since its peer was reset
    cdef readonly tuple fault   # (reason, text) once the peer broke a rule
    cdef public int64_t opened_ns, heard_ns, unfinished_ns
    cdef Topic** aliases_in     # pinned
    cdef uint32_t aliases_in_len
    # Kept here for the plain Python side and the driver, which alone use them.
    cdef public bint serves     # its client serves channels
    cdef Meter listener_meter, user_meter   # how fast it may be; None: as fast as it likes
    cdef readonly int64_t slowed_ns     # until then it is not read: it was too fast; 0: it is
    cdef public object user     # who it is, once that is known; empty: nobody in particular
    cdef public object state
    cdef public int64_t watched

    cdef void _let_go(self) noexcept
    cdef void _take(self, const uint8_t* data, size_t size)
    cdef const uint8_t* _look_ahead(self, const uint8_t* at, const uint8_t* end) noexcept
    cdef size_t _parse(self, const uint8_t* data, size_t size)
    cdef bint _packet(self, uint8_t first, const uint8_t* body, uint32_t size) except -1
    cdef void _too_large(self, uint8_t first, const uint8_t* body, const uint8_t* end)
    cdef bint _oversized(self, uint8_t first, size_t size) except -1
    cdef void _pay(self, int64_t before)
    cdef bint _too_early(self, uint8_t first) except -1
    cdef bint _charge(self, uint8_t first, size_t size) except -1
