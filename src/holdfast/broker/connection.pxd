# The receiving side of one connection.
#
# Laws:
#   packets are handled in the order in which they came; while plain Python has still to handle one of them
#   (CONNECT, ...) nothing behind it is looked at
#   SUBSCRIBE and UNSUBSCRIBE take effect where they are read, so that what any connection says later comes after
#   them; beyond a bound they are put aside, and count as read when they are handled
#   no byte is looked at twice but the head of an unfinished packet; no packet larger than the limit is kept
#   after a fault nothing more is read
#   a publisher that is too fast is not read for a while; what it sent is handled then, in order

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from holdfast.broker.core cimport Core, Draft
from holdfast.broker.link cimport Inbox
from holdfast.broker.message cimport Topic
from holdfast.broker.meter cimport Meter
from holdfast.broker.permit cimport Permit
from holdfast.broker.session cimport Session
from holdfast.broker.topics cimport Ahead
from holdfast.broker.unfinished cimport UnfinishedWire


cdef class Connection(UnfinishedWire):
    cdef readonly Core core
    cdef readonly Session session
    cdef public Permit permit   # which topics it may publish to; None: all that are not the broker's own
    cdef public uint32_t packet_bytes_max   # how large a packet it may send
    cdef bint metered           # whether it has a meter
    cdef readonly bint blocked  # nothing more is looked at until plain Python has answered, or a standby takes over
    cdef public object warm     # the CONNECT of a client that a standby keeps until it is needed
    cdef readonly tuple control # (first byte, body) that plain Python is to handle
    cdef public uint32_t unanswered     # SUBSCRIBEs and UNSUBSCRIBEs that took effect and are not answered yet
    cdef readonly uint64_t number_published     # the number of its last PUBLISH
    cdef bint held_back         # too many of them: its next one waits for an answer
    cdef bint fresh             # what is looked at was read just now
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
    cdef bint _packet(self, uint8_t first, const uint8_t* body, uint32_t size)
    cdef bint _ask(self)
    cdef void _publish(self, uint8_t first, const uint8_t* body, uint32_t size)
    cdef bint _properties(self, const uint8_t* at, const uint8_t* end, Draft* draft, uint16_t* alias) except -1
    cdef Topic* _topic(self, const uint8_t* text, uint32_t size)
    cdef Topic* _aliased(self, const uint8_t* text, uint32_t size, uint16_t alias)
    cdef void _acknowledgement(self, uint8_t first, const uint8_t* body, uint32_t size)
    cdef void _released(self, uint16_t packet_id)
    cdef bint _not_journaled(self, Topic* topic, uint8_t reason, uint32_t ack)
    cdef void _answer(self, uint8_t first_byte, uint16_t packet_id, uint8_t reason) noexcept
    cdef bint _too_early(self, uint8_t first)
    cdef bint _charge(self, uint8_t first, size_t size)
