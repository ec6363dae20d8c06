# The sending side of one connection: what waits to be written, and the acknowledgements it still owes.
#
# Laws:
#   acknowledgements leave in the order in which their PUBLISHes came
#   a link with something to write, to close or to pause stands on the board exactly once
#   a tracked message counts as handed to a socket when the bytes behind which it stands were written
#   whoever is done with a message while others are not is marked on it; backup and journal hear of the mark a
#   while later, and never if by then all are done with the message
#   a publisher hears of its message when every subscriber has it or the backup does, and a journal that it is
#   meant for; without a backup, when every subscriber was offered it; what is retained, the backup must have

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from holdfast.broker.awaiting cimport Awaiting
from holdfast.broker.marks cimport Marks
from holdfast.broker.message cimport DISPATCHED, OFFERED, Had, Message, Topic
from holdfast.broker.output cimport Output, Outputs
from holdfast.broker.room cimport Room
from holdfast.broker.shares cimport Pool
from holdfast.broker.tenants cimport Tenant, Tenants

cdef enum:
    OUT_HIGH = 65536    # a link with this much unwritten takes no more messages until it has been flushed
    ALIASES_MAX = 256   # topic aliases towards one client


cdef struct Ack:
    uint16_t packet_id
    uint8_t first_byte  # PUBACK, PUBREC or PUBCOMP
    uint8_t reason
    uint8_t done
    uint8_t why         # the words of its refusal; 0: none


cdef struct Alias:
    Topic* topic
    uint16_t number


cdef struct Waiting:
    PyObject** items    # owned
    size_t len
    size_t cap


cdef class Board:
    """What the compiled parts leave for whoever drives them."""
    cdef Waiting peers      # links to other brokers with something to write: they go first
    cdef Waiting ready      # links with something to write, to close or to pause
    cdef Waiting pumps      # sessions whose queues can move on
    cdef size_t spread      # bytes that were copied in this turn; see pumping.pxd
    cdef public list overloaded  # (session, how many messages it held, whether for others' sake): no contract of
                                 # theirs can be kept any more
    cdef Pool* pool         # of what all sessions hold
    cdef object tree        # of subscriptions: handing_on.pyx finds groups in it; None: there is none
    cdef public Room room        # of what sessions are
    cdef Tenants* tenants   # borrowed from the table of topics, or NULL
    cdef readonly Outputs outputs
    cdef public list held        # sessions that slow their publishers
    cdef public int64_t doubts_left # questions in this turn whether a client may still read a topic
    cdef public int64_t now_ns
    cdef public int64_t wall_ns      # the wall clock at now_ns
    cdef public int64_t took_over_ns # the wall clock when this broker took over from another; 0: it never did
    cdef public bint counting        # latencies and losses are counted, which is off only to measure what that costs
    cdef public uint64_t bytes_sent, messages_sent, messages_dropped
    cdef readonly Link backup       # where copies go; None: nobody protects this broker's messages
    cdef readonly uint16_t backup_number    # which backup that is, counted from 1
    cdef public bint mute           # another broker serves: no publisher hears from us that its message is safe
    cdef public bint coordinated    # a dispatch makes its copy superfluous, and the other way round
    cdef uint64_t* discards         # copies that the backup need not keep
    cdef uint32_t discards_len, discards_cap
    cdef int64_t discards_since_ns  # when the oldest of them was added
    cdef public bint stirred        # another broker said something that plain Python is to hear
    cdef uint64_t frames            # COPY and MARK frames sent to this backup
    cdef Awaiting* sent             # borrowed from the core, or NULL: what waits until it has so many of them
    cdef public uint64_t discarded
    cdef public list done_log       # numbers of journaled messages that every subscriber has; None: no journal
    cdef public list had_log        # for the journal, three numbers each: message, 64 serials, those that are done
    cdef public list flight_log     # for the journal, three numbers each: message, serial, packet identifier of a QoS 2
                                    # delivery; message 0: it is over, identifier 0: so are all of that session;
                                    # ANNOUNCED and an identifier: all up to there, from the other on, may be given
    cdef public uint64_t turn       # of the journal: what is noted now is written with it; 0: there is none
    cdef public uint64_t turn_safe  # what was noted up to that turn is on disk, or nobody is to wait for it
    cdef Awaiting* written          # borrowed from the core, or NULL: what waits until such a turn is safe
    cdef uint16_t markable          # flags of messages whose marks somebody needs; 0: nobody protects anything
    cdef Marks untold               # marks that backup and journal are to be told of
    cdef public uint64_t marks      # told so far
    cdef public int64_t marks_lag_ns, marks_lag_max_ns  # how long the oldest waited, last time and at worst

    cdef bint wait_in(self, Waiting* waiting, object item) noexcept
    cdef list take(self, Waiting* waiting, list items)
    cdef void took(self, Message* m) noexcept
    cdef void dispatched(self, Message* m) noexcept
    cdef void discard(self, Message* m) noexcept
    cdef void done(self, Message* m) noexcept
    cdef void had(self, Message* m, uint64_t serial) noexcept
    cdef void had_at_once(self, Message* m, uint64_t serial) noexcept
    cdef void log_had(self, Message* m) noexcept
    cdef void marks_told(self, Had* had, uint64_t messages) noexcept
    cdef void log_flight(self, uint64_t number, uint64_t serial, uint16_t packet_id) noexcept
    cdef void log_announced(self, uint64_t serial, uint16_t from_id, uint16_t up_to_id) noexcept
    cdef void safe(self, Message* m) noexcept
    cdef void note(self, uint8_t mark, uint64_t serial, uint16_t packet_id, uint64_t number) noexcept


cdef inline bint is_news(Board board, Message* m) noexcept:
    """Whether it matters that one of its holders is done: somebody would be told, and others are not done."""
    return m.flags & board.markable and not m.flags & DISPATCHED and (m.holders > 1 or not m.flags & OFFERED)


cdef class Link(Output):
    cdef Message** handed           # owned: tracked messages among the bytes in `out`
    cdef uint32_t handed_len, handed_cap
    cdef readonly bint peer         # another broker, not a client
    cdef uint64_t serial            # of the session that it was attached to last
    cdef uint64_t account           # who pays for what that session retains
    cdef Tenant* tenant             # and for the topics that it puts to use; NULL: nobody
    cdef readonly Board board
    cdef bint listed
    cdef public bint writable
    cdef public bint closing
    cdef public bint unheard        # its peer was reset: nothing that is sent reaches it
    cdef public bint full           # too much of what it sent waits in the job queue
    cdef public uint32_t holds      # slow subscribers that hold it back
    cdef public int version         # 0 until CONNECT was accepted
    cdef public uint32_t inbound    # QoS 1 and 2 messages from the client that are not yet acknowledged
    cdef public uint32_t backlog    # messages from the client whose dispatch job waits
    cdef readonly int64_t owed      # bytes of its messages that it awaits an answer to
    cdef readonly int64_t sated_at  # so many, when these were too many and reading stopped; 0: it did not
    cdef Ack* acks
    cdef uint32_t acks_cap, acks_head, acks_tail
    cdef Alias* aliases
    cdef uint32_t aliases_cap, aliases_len, aliases_max

    cdef void mark(self) noexcept
    cdef bint may_read(self) noexcept
    cdef bint put(self, const uint8_t* data, size_t size) noexcept
    cdef int64_t owe(self, uint8_t first_byte, uint16_t packet_id) noexcept
    cdef void settle(self, uint32_t index, uint8_t reason) noexcept
    cdef void explain(self, uint32_t index, uint8_t why) noexcept
    cdef void owe_for(self, Message* m, int64_t most) noexcept
    cdef void answer_for(self, Message* m) noexcept
    cdef void unjournaled(self, uint32_t index, bytes topic)
    cdef bint put_ack(self, uint8_t first_byte, uint16_t packet_id, uint8_t reason) noexcept
    cdef bint put_explained(self, Ack* ack) noexcept
    cdef bint put_publish(self, Message* m, uint8_t qos, uint16_t packet_id, uint8_t bits,
                          PyObject* ids) noexcept
    cdef bint put_special(self, Message* m, uint8_t first, uint16_t packet_id, PyObject* ids) noexcept
    cdef bint hand(self, Message* m) noexcept
    cdef void handed_over(self, bint written) noexcept
    cdef uint16_t alias_of(self, Topic* topic, bint* fresh) noexcept
    cdef void forget_alias(self, Topic* topic) noexcept
    cdef void release(self) noexcept


cdef class Inbox:
    """Where a driver puts what it read; one serves every wire of a thread."""
    cdef readonly bytearray buffer
    cdef uint8_t* data
    cdef readonly size_t size


cdef class Wire(Link):
    """A link with a receiving side: what a driver moves bytes for."""
    cdef readonly Inbox inbox
    cdef public int fd              # the driver's
    cdef public bint local          # its peer is on this machine
    cdef public object certificate_name     # what the peer's certificate calls it; None: it showed none
    cdef public object listener     # what is configured for the address at which it came; None: nothing

    cdef void sent(self, size_t size) noexcept
    cpdef received(self, size_t size, int64_t now_ns, int64_t wall_ns)
    cpdef drained(self)
    cpdef flushed(self)
    cpdef bint wants_bytes(self)
    cpdef bint owes_answer(self)
