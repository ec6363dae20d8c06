# One published message in the message buffer, held by reference count.
#
# Laws:
#   a message is written once, in message_new's caller, before anyone else sees it; afterwards only `refs`,
#   `holders`, `kept`, `had` and the flags from TRACKED on change
#   `wire` holds room for a fixed header, then topic, properties and payload as MQTT 5 sends them, so that the
#   commonest send (MQTT 5, QoS 0, nothing to add) is one memcpy
#   the ledger knows at every moment how many messages live and how many bytes they take, marks included
#   `had` says which sessions are done with a message while others are not; there is none once all are. Messages
#   of which the same is known share it once it is told; whoever learns more of one of them has its own again

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from holdfast.broker.tenants cimport Tenant, tenant_give_back

cdef enum:
    HEADER_ROOM = 5  # first byte and a remaining length of up to four bytes

cdef enum MessageFlag:
    RETAIN = 1          # the publisher set RETAIN
    MATCHED = 2         # somebody is subscribed to it
    FINITE = 4          # its contract bounds consecutive losses
    OWED = 8            # its publisher awaits an acknowledgement
    EARLY = 16          # came sooner after the one before than its contract's period allows for
    TRACKED = 32        # somebody must know when every subscriber has it: a backup, or its publisher
    OFFERED = 64        # its dispatch job is done: every subscriber was offered it
    DISPATCHED = 128    # every subscriber has it
    CONFIRMED = 256     # the backup said that it has a copy
    DISCARDED = 512     # in a backup: the primary has dispatched it
    HELD = 1024         # is dispatched when the backup has it, not before
    DURABLE = 2048      # is still to reach the journal
    RECOVERED = 4096    # comes from a crashed primary: some subscribers may have it
    JOURNALED = 8192    # the journal must know when every subscriber has it
    GIVEN = 16384       # is for one subscription alone: whoever takes over does not give it again


cdef enum Copying:      # when the messages of a topic go to the backup
    COPY_NEVER = 0      # however long dispatch takes, its contract is kept
    COPY_LATE = 1       # when some subscriber has not confirmed it by then
    COPY_SOON = 2       # Proposition 1: its dispatch may come later than a copy is needed


cdef enum:
    CELL = 64           # blocks for messages come in multiples of this
    CELLS = 16          # up to so many; larger messages are rare and not kept
    KEPT_MAX = 2048     # free blocks kept of each size: what a slice or two needs


cdef struct Kept:
    Kept* next


cdef struct Ledger:
    size_t messages
    size_t bytes
    bint orphan         # its broker is gone: the last message frees it
    Kept* kept[CELLS]   # free blocks by size, the one used last on top: it is still in the cache
    uint32_t kept_len[CELLS]


cdef struct Route:
    PyObject* session       # borrowed from the subscription tree; a SharedGroup when flags says so
    uint64_t since          # the first publication number that this subscription sees
    PyObject* ids           # its subscription identifiers, encoded as properties, or NULL; owned
    uint8_t qos
    uint8_t flags           # RouteFlag


cdef enum RouteFlag:
    NO_LOCAL = 1
    AS_PUBLISHED = 2
    SHARED = 4
    ENDED = 8           # of a subscription that is gone, for what was published before: `ids` is an Ended


cdef struct Topic:
    uint64_t hash
    uint64_t stamp          # routes and terms are current while this equals the table's stamp for its root
    int64_t last_ns         # when its last message arrived
    uint64_t last_major     # no later message of the topic gets a smaller key: order within a topic is arrival's
    int64_t dispatch_ns     # how long after creation it must leave this broker: D less the way to the subscriber
    PyObject* terms         # owned: the Terms of its contract
    Route* routes
    uint32_t routes_len
    uint32_t pins           # messages, retained messages and aliases that point here
    uint16_t root           # which generation counter its first level belongs to
    uint16_t size
    uint32_t serial         # how many topics its table made before: a pointer may be another topic's soon
    Message* retained       # owned
    uint64_t retained_by    # whose account pays for it; 0: nobody's
    Tenant* tenant          # who pays for it while it is in use; NULL: nobody, or it is not
    size_t rent             # and how much it pays
    uint64_t last_copy      # likewise for its replicate jobs
    int64_t patient_ns      # until then a copy of this topic may wait LONG, and later ones wait behind it
    uint64_t publisher      # whose stamp its last message had, as a hash, and its number: what comes again is known
    uint64_t sequence
    int64_t replicate_ns    # how long after creation a copy must be sent
    int64_t last_due_ns     # no later message of it is copied before: a copy says that those before it are safe
    Message* copies         # in a backup: the oldest copy, and the newest
    Message* copies_last
    uint32_t copies_len
    uint32_t era            # in which of the core's eras its last stamp was read; copies of others have none
    uint32_t unsafe         # messages of it whose publishers must not know of them yet
    int32_t loss            # how many in a row its subscribers may lose, the strictest; -1 is unlimited
    uint32_t price          # what it costs to put it to use now
    uint8_t copying         # Copying
    uint8_t used            # touched since the table last looked for idle topics
    uint8_t orphan          # its table is gone: the last pin frees it
    Route nearest           # where `routes` points while one is enough
    uint8_t text[0]


cdef struct Chunk:
    uint64_t key            # which 64 session serials: serial >> 6
    uint64_t bits           # those of them that are done with the message
    uint64_t told           # those of which backup and journal need not be told


cdef union Chunks:
    Chunk one
    Chunk* many             # owned


cdef union Owners:
    Message* message        # borrowed: the one that owns it, while it stands in a list
    uint64_t refs           # else how many own it


cdef struct Had:
    # Stands in one list of the board while somebody is still to be told of it.
    Had* prev               # NULL: in none
    Had* next
    Owners owners
    Chunk* last             # of its chunks the one that was marked last; NULL while it stands in no list
    uint32_t len, cap
    Chunks chunks           # see had_chunks


cdef struct Message:
    int32_t refs
    uint8_t qos
    uint8_t header        # where in `wire` the encoded MQTT 5 QoS 0 packet begins
    uint16_t flags
    uint32_t holders      # queues, flights and sockets through which it must still go
    uint32_t topic_size
    uint32_t props_size   # without the length in front
    uint32_t payload_size
    uint32_t expiry_at    # where in the properties the expiry value stands; 0 when there is none
    uint32_t kept         # sessions that keep it, in a queue or on its way to their client
    uint64_t major        # the key the policy gave it: smaller goes first
    uint64_t minor        # publication number: breaks ties, and tells what came before a subscription
    int64_t created_ns    # wall clock
    int64_t deadline_ns   # when it must have been handed to its subscribers
    int64_t expires_ns    # message expiry; 0 is never
    uint64_t origin       # serial of the session that published it
    Topic* topic          # pinned
    PyObject* source      # owned: the link it came from, or NULL
    Message* next         # in a backup: the next copy of its topic
    uint32_t ack_index    # its place among the source's acknowledgements
    uint16_t packet_id    # of the publisher, for QoS 2
    uint16_t copied_to    # which backup was sent a copy; 0: none
    uint32_t size         # what the ledger counts
    Ledger* ledger
    Had* had              # owned; NULL: nobody, or nobody needs to know


cdef inline uint8_t* message_wire(Message* m) noexcept nogil:
    return <uint8_t*>(m + 1)

cdef inline uint8_t* message_topic(Message* m) noexcept nogil:
    """Two bytes of length, then the name."""
    return <uint8_t*>(m + 1) + HEADER_ROOM

cdef inline uint8_t* message_rest(Message* m) noexcept nogil:
    """Length of the properties, the properties, the payload."""
    return <uint8_t*>(m + 1) + HEADER_ROOM + 2 + m.topic_size

cdef void topic_free(Topic* topic) noexcept
cdef void topic_clear_routes(Topic* topic) noexcept

cdef inline void topic_give_back(Topic* topic) noexcept:
    """Nobody pays for it any more."""
    cdef Tenant* tenant = topic.tenant
    topic.tenant = NULL
    tenant_give_back(tenant, topic.rent)

cdef inline void topic_unpin(Topic* topic) noexcept:
    topic.pins -= 1
    if topic.pins == 0 and topic.tenant != NULL:
        topic_give_back(topic)
    if topic.pins == 0 and topic.orphan:
        topic_free(topic)

cdef Message* message_new(Ledger* ledger, const uint8_t* topic, uint32_t topic_size,
                          const uint8_t* props, uint32_t props_size,
                          const uint8_t* payload, uint32_t payload_size) noexcept
cdef void message_free(Message* m) noexcept
cdef void ledger_free(Ledger* ledger) noexcept

cdef inline void message_hold(Message* m) noexcept nogil:
    m.refs += 1

cdef inline void message_drop(Message* m) noexcept:
    m.refs -= 1
    if m.refs == 0:
        message_free(m)

cdef Had* message_mark_first(Message* m, uint64_t key, uint64_t bits) noexcept
cdef bint message_mark(Message* m, uint64_t key, uint64_t bits, bint told) noexcept
cdef void message_share_had(Message* m, Had* had) noexcept
cdef void message_forget_had(Message* m) noexcept
cdef void had_free(Had* had, Ledger* ledger) noexcept
cdef bint had_by(Had* had, uint64_t serial) noexcept nogil
cdef inline bint message_had(const Message* m, uint64_t serial) noexcept nogil:
    """Whether that session is known to be done with it."""
    return m.had != NULL and had_by(m.had, serial)

cdef inline bint marked_in_passing(Message* m, uint64_t key, uint64_t bit) noexcept nogil:
    """The commonest mark: of a message that is to be told of anyway, and of a session that came at about the same
    time as the last that was marked. 0 when it has to be made in another way."""
    if m.had == NULL or m.had.last == NULL or m.had.last.key != key:
        return 0
    m.had.last.bits |= bit
    return 1

cdef inline Chunk* had_chunks(Had* had) noexcept nogil:
    """By key, ascending."""
    return &had.chunks.one if had.cap == 1 else had.chunks.many

cdef inline bint had_equal(Had* had, Had* other) noexcept nogil:
    return had.len == other.len and (
        had.chunks.one.key == other.chunks.one.key and had.chunks.one.bits == other.chunks.one.bits
        and had.chunks.one.told == other.chunks.one.told if had.cap == 1 and other.cap == 1
        else memcmp(had_chunks(had), had_chunks(other), had.len * sizeof(Chunk)) == 0)

cdef inline void had_unlink(Had* had) noexcept nogil:
    """From now on it stands in no list, and others may share it."""
    if had.next != NULL:
        had.prev.next = had.next
        had.next.prev = had.prev
        had.prev = NULL
        had.next = NULL
        had.last = NULL
        had.owners.refs = 1

cdef uint8_t* message_props(Message* m) noexcept nogil
cdef uint8_t* message_payload(Message* m) noexcept nogil
