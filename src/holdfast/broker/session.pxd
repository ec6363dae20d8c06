# One client's session: what is on its way to it, and what still waits.
#
# Laws:
#   order: messages of one topic and one QoS reach the client in the order of their keys, which is arrival's
#   window: never more than `window` QoS 1 and 2 messages unacknowledged
#   bounds: the queue never holds more messages or bytes than its limits, and no more bytes than that are on
#   their way; giving_way.pxd says what goes
#   a packet identifier is in use from PUBLISH to PUBACK or PUBCOMP, across connections
#   what the identifiers in use take of memory is in the weight of the session, and in what all take
#   a QoS 2 delivery of a message that a journal has leaves when the journal knows its identifier, not before; of
#   others the journal knows up to where identifiers may be given. So whoever goes on after a crash gives none that
#   the client may still hold from before

cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from holdfast.broker.holding cimport Holding
from holdfast.broker.idset cimport IdSet
from holdfast.broker.jobs cimport Job, JobQueue
from holdfast.broker.link cimport Board, Link
from holdfast.broker.message cimport Message, Topic
from holdfast.broker.reading cimport Reading
from holdfast.broker.shares cimport Share

cdef enum:  # lanes of the queue
    BEST_EFFORT = 0         # QoS 0, losses unlimited
    BEST_EFFORT_ACKED = 1   # QoS 1 and 2, losses unlimited
    PROMISED = 2            # QoS 0 under a contract
    PROMISED_ACKED = 3      # QoS 1 and 2 under a contract
    LANES = 4

cdef enum:
    PACKET_IDS = 65535
    IDS_AHEAD = 16          # identifiers that are announced before they are given, at least
    IDS_AHEAD_MAX = 4096
    IDS_SKIPPED = 2047      # how far the first one of a new life is from the last of which anybody knows

cdef enum:  # among the bits that a message is sent with, besides RETAIN and DUP
    AGAIN = 0x10    # it is retained from earlier, so it is not late. Every PUBLISH has this bit in its first byte
    AWAY = 0x20     # it waited while the client was not connected, so it is not late. Every PUBLISH has this bit too

cdef enum:  # stages of a delivery
    DONE = 0
    AWAITS_PUBACK = 1
    AWAITS_FLIGHT = 2   # QoS 2: PUBLISH follows when backup and journal know its identifier
    AWAITS_PUBREC = 3
    AWAITS_PUBCOMP = 4
    AWAITS_BACKUP = 5   # the client has it; PUBREL follows when backup and journal know


cdef enum:  # what else there is to say of a QoS 2 delivery
    LOGGED = 1      # the journal knows of it, or soon will
    UNSENT = 4      # its PUBLISH was not written yet: its client went before
    GUESSED = 2     # nobody knows whether there was one: the client may hold this identifier from before a crash


cdef struct Flight:
    Message* message        # NULL once PUBREC came
    PyObject* ids           # owned; what handing_on.pxd says
    uint8_t stage
    uint8_t bits            # RETAIN, as it was sent
    uint8_t notes           # LOGGED, GUESSED, UNSENT


cdef class Payer:
    cdef readonly str name
    cdef public int64_t weight      # bytes that all its sessions take


@cython.final   # nobody's base: its methods call each other directly
cdef class Session(Holding):
    cdef readonly str client_id
    cdef readonly str key               # its name among all sessions: whose it is, and its client identifier
    cdef readonly uint64_t serial
    cdef uint64_t mark_key, mark_bit    # where it stands among the marks of a message
    cdef readonly uint64_t account      # who pays for what it retains: the same whenever its client comes
    cdef public uint32_t window
    cdef readonly uint32_t in_flight
    cdef readonly uint32_t queued
    cdef readonly size_t queued_bytes
    cdef uint32_t queue_messages_max
    cdef size_t queue_bytes_max
    cdef Share share            # of what all sessions hold
    cdef JobQueue lanes[LANES]
    cdef Flight* flights
    cdef uint32_t flights_cap
    cdef readonly uint64_t head, tail   # deliveries, counted since the session began
    cdef uint64_t resend
    cdef uint64_t announced, announced_safe # up to where heir and journal heard of them; surely, the journal
    cdef uint64_t announced_turn            # of the journal: then it knows the rest
    cdef uint32_t behind        # steps of QoS 2 deliveries that wait for the journal
    cdef bint pumping, reported, given_up
    cdef bint in_group          # it is or was a member of a shared group
    cdef public int64_t awaited_ns      # until then the client of a crashed primary is expected here
    cdef readonly bint missed   # since its client was attached, it let go of something that whoever takes over may have
    cdef dict runs              # topic name -> messages lost in a row, while any are
    cdef public Reading reading # what its client may still read; None: nothing is in doubt
    cdef public set recovered   # numbers of messages whose QoS 2 delivery went on here from another broker
    cdef public IdSet received  # QoS 2 identifiers between PUBLISH and PUBREL
    cdef public IdSet kept      # those of them that the journal knows
    cdef public dict recalled   # those of them that only the journal knew, after a restart -> a hash of what came
    cdef uint64_t released_turn # of the journal, when one of them was given back last
    # Kept here for the plain Python side, which alone uses them.
    cdef public bint over       # it ended; its subscriptions may still be there for a while
    cdef readonly int64_t steps          # by how many nodes its filters made the way of a topic through the tree longer
    cdef public int64_t weight  # bytes that it takes: broker/holdings.py
    cdef public Payer payer     # for them, if anybody does
    cdef public int64_t watched
    cdef public dict subscriptions
    cdef public object state

    cdef bint has(self, Message* m) noexcept
    cdef bint withholds(self, Message* m, uint8_t qos, uint8_t bits, PyObject* ids) noexcept
    cdef void offer(self, Message* m, uint8_t qos, uint8_t bits, PyObject* ids) noexcept
    cdef void send(self, Message* m, uint8_t qos, uint8_t bits, PyObject* ids) noexcept
    cdef bint fly(self, Message* m, uint8_t qos, uint8_t bits, PyObject* ids) noexcept
    cdef uint64_t known_with(self, Message* m) noexcept
    cdef void announce(self, uint64_t ahead) noexcept
    cdef void queue(self, Message* m, uint8_t qos, uint8_t bits, PyObject* ids) noexcept
    cdef void drop(self, Message* m) noexcept
    cdef void forget_first(self, JobQueue* lane) noexcept
    cdef void pump(self) noexcept
    cdef void send_again(self) noexcept
    cdef Flight* flight_of(self, uint16_t packet_id) noexcept
    cdef void acked(self, uint16_t packet_id) noexcept
    cdef bint received_by_client(self, uint16_t packet_id, uint8_t reason) noexcept
    cdef void take_off(self, Flight* flight, uint16_t packet_id) noexcept
    cdef uint64_t taken_turn(self, uint16_t packet_id) noexcept
    cdef void release(self, uint16_t packet_id) noexcept
    cdef void landed(self, Flight* flight, uint16_t packet_id) noexcept
    cdef void completed(self, uint16_t packet_id) noexcept
    cdef void land(self, Flight* flight) noexcept
    cdef void unload(self, Flight* flight) noexcept
    cdef void let_go(self, Message* m) noexcept
    cdef void miss(self, Message* m) noexcept
    cpdef void weigh(self, int64_t more) noexcept
    cdef bint may_take(self, int64_t more) noexcept
    cdef bint may_grow(self) noexcept
    cdef void forget_flights(self) noexcept
    cdef bint room_for_flight(self) noexcept
    cdef void want_pump(self) noexcept
    cdef bint window_open(self) noexcept
    cdef void _advance(self) noexcept
    cpdef void give_up(self, bint at_once=*)
    cpdef bint clear_some(self, uint64_t most) noexcept
    cdef bint part_with_some(self, uint64_t most, bint hands_on) noexcept
    cdef void _drop_everything(self) noexcept


cdef bytes name_of(Topic* topic)
