# Every topic the broker has seen lately: found by its bytes, with its contract and its routes remembered.
#
# Laws:
#   a topic's routes and terms may be used only while its stamp equals current_stamp(); otherwise refresh first
#   a topic that anything points to (pins, a retained message) is never thrown out
#   besides topics with a retained message (see retained_messages.pxd) the table never holds more than topics_max, nor
#   more bytes than bytes_max, and lets go of those that have been idle for a while. Only a topic in use whose retained
#   message ends may be one more: it was there before
#   a new topic is refused only when nearly everything is in use: idle ones make room, whoever used them. Whose those
#   in use are, and how many may be one client's: tenants.pxd
#   it grows in pieces: for a while a topic stands in the former table or in the new one, never in both

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from holdfast.broker.message cimport Route, Topic
from holdfast.broker.tenants cimport Tenant, Tenants, tenant_rent

cdef enum:
    ROOTS = 4096    # generation counters, one for each hash of a first level


cdef enum:
    SLOT_BYTES = 32     # of the table, for each topic: it is at most half full, and at least a quarter


cdef enum:
    AHEAD = 24      # topics that are fetched together


cdef struct Ahead:
    # Names that will be looked up next, with their hashes; the memory they need is on its way.
    const uint8_t* text[AHEAD]
    uint64_t hash[AHEAD]
    int len
    int next


cdef inline size_t topic_bytes(const Topic* topic) noexcept nogil:
    """What a topic takes, without its routes."""
    return sizeof(Topic) + topic.size + SLOT_BYTES


cdef inline size_t routes_bytes(const Topic* topic) noexcept nogil:
    return 0 if topic.routes == &topic.nearest else topic.routes_len * sizeof(Route)


cdef inline bint topic_rent(Topic* topic, Tenant* tenant, bint whether) noexcept nogil:
    """That tenant pays for the topic from now on; 0 when there is no room for that, if it may be refused."""
    if not tenant_rent(tenant, topic.price, whether):
        return 0
    topic.tenant = tenant
    topic.rent = topic.price
    return 1


cdef class TopicTable:
    cdef Tenants* tenants       # who pays for those in use
    cdef uint64_t* slots        # topic pointer in the low 48 bits, top of its hash above
    cdef size_t mask
    cdef uint64_t* old          # the former table, while topics move from it; NULL: none
    cdef size_t old_mask, moved # of whose slots so many are moved
    cdef readonly size_t count
    cdef readonly size_t kept   # of these have a retained message
    cdef readonly size_t topics_max
    cdef public size_t bytes_held, bytes_max
    cdef uint32_t serial        # of the topic that was added last
    cdef size_t hand, sweep
    cdef uint64_t seed
    cdef uint64_t everywhere
    cdef uint64_t generation[ROOTS]

    cdef Topic* find(self, const uint8_t* text, uint32_t size, uint64_t hash) noexcept
    cdef Topic* add(self, const uint8_t* text, uint32_t size, uint64_t hash) noexcept
    cdef Topic* _find_old(self, const uint8_t* text, uint32_t size, uint64_t hash) noexcept
    cdef bint _grow(self) noexcept
    cdef void _move(self, size_t most) noexcept
    cdef bint fit(self, size_t count, size_t size) noexcept
    cdef bint _evict_one(self) noexcept
    cdef void _forget(self, size_t at) noexcept
    cdef void _remove_slot(self, size_t at) noexcept
    cdef uint64_t hash_of(self, const uint8_t* text, uint32_t size) noexcept

    cdef void fetch(self, Ahead* ahead) noexcept

    cdef inline uint64_t current_stamp(self, Topic* topic) noexcept:
        return self.everywhere + self.generation[topic.root]
