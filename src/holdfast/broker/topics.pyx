"""The topic table: open addressing over topics that carry their own names."""


from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from holdfast.broker.message cimport Message, Topic, message_drop, topic_free
from holdfast.broker.tenants cimport tenants_leave, tenants_new

cdef extern from *:
    """
    static inline unsigned long long holdfast_fold(unsigned long long a, unsigned long long b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (unsigned long long)product ^ (unsigned long long)(product >> 64);
    }
    """
    void __builtin_prefetch(const void*) noexcept nogil
    uint64_t holdfast_fold(uint64_t a, uint64_t b) noexcept nogil

cdef uint64_t MOVED = 1     # stands in a slot of the former table whose topic is in the new one
cdef size_t MOVED_AT_ONCE = 16
cdef size_t MOVED_WHEN_FOUND = 4
cdef size_t LOOKED_FOR_IDLE = 64    # slots, for a topic that was not used lately
cdef size_t LOOKED_MAX = 4096       # slots, for one that nothing points to
cdef uint64_t POINTER = 0x0000FFFFFFFFFFFFULL
cdef uint64_t K0 = 0x9E3779B97F4A7C15ULL
cdef uint64_t K1 = 0xD1B54A32D192ED03ULL


cdef inline Topic* topic_in(uint64_t slot) noexcept nogil:
    return <Topic*><uintptr_t>(slot & POINTER)


cdef inline uint64_t slot_for(Topic* topic) noexcept nogil:
    return <uint64_t><uintptr_t>topic | (topic.hash & ~POINTER)


cdef class TopicTable:
    def __cinit__(self, size_t topics_max, size_t bytes_max, uint64_t seed) -> None:
        self.topics_max = topics_max
        self.bytes_max = bytes_max
        self.seed = seed | 1
        self.everywhere = 1
        self.mask = 1023
        self.slots = <uint64_t*>calloc(self.mask + 1, sizeof(uint64_t))
        if self.slots == NULL:
            raise MemoryError
        self.tenants = tenants_new(bytes_max, topics_max)

    def __dealloc__(self) -> None:
        cdef size_t i
        cdef Topic* topic
        if self.slots == NULL:
            return
        if self.old != NULL:
            self._move(self.old_mask + 1)
        for i in range(self.mask + 1):
            topic = topic_in(self.slots[i])
            if topic == NULL:
                continue
            topic.pins += 1
            if topic.retained != NULL:
                message_drop(topic.retained)
                topic.retained = NULL
            topic.pins -= 1
            if topic.pins == 0:
                topic_free(topic)
            else:
                topic.orphan = 1
        free(self.slots)
        tenants_leave(self.tenants)

    @property
    def in_use(self) -> int:
        """What clients pay for."""
        return self.tenants.held

    @property
    def in_use_max(self) -> int:
        return self.tenants.max

    def __len__(self) -> int:
        return self.count

    cdef uint64_t hash_of(self, const uint8_t* text, uint32_t size) noexcept:
        cdef uint64_t h = self.seed ^ size
        cdef uint64_t word = 0
        while size >= 8:
            memcpy(&word, text, 8)
            h = holdfast_fold(h ^ word, K0)
            text += 8
            size -= 8
        if size:
            word = 0
            memcpy(&word, text, size)
            h = holdfast_fold(h ^ word, K1)
        return holdfast_fold(h ^ self.seed, K1)

    cdef Topic* find(self, const uint8_t* text, uint32_t size, uint64_t hash) noexcept:
        cdef size_t at = hash & self.mask
        cdef uint64_t slot
        cdef Topic* topic
        while True:
            slot = self.slots[at]
            if slot == 0:
                return NULL if self.old == NULL else self._find_old(text, size, hash)
            if (slot ^ hash) & ~POINTER == 0:
                topic = topic_in(slot)
                if topic.hash == hash and topic.size == size and memcmp(topic.text, text, size) == 0:
                    topic.used = 1
                    return topic
            at = (at + 1) & self.mask

    cdef Topic* _find_old(self, const uint8_t* text, uint32_t size, uint64_t hash) noexcept:
        """The same among those that are not in the new table yet. Then some more move, so that it does not stay
        so when no topic is new any more."""
        cdef size_t at = hash & self.old_mask
        cdef uint64_t slot
        cdef Topic* topic
        while True:
            slot = self.old[at]
            if slot == 0:
                return NULL
            if slot != MOVED and (slot ^ hash) & ~POINTER == 0:
                topic = topic_in(slot)
                if topic.hash == hash and topic.size == size and memcmp(topic.text, text, size) == 0:
                    topic.used = 1
                    self._move(MOVED_WHEN_FOUND)
                    return topic
            at = (at + 1) & self.old_mask

    cdef void fetch(self, Ahead* ahead) noexcept:
        """Brings the slots, then the topics, into the cache, all at once instead of one after another."""
        cdef int i, tries
        cdef size_t at
        cdef uint64_t slot
        cdef const char* topic
        for i in range(ahead.len):
            __builtin_prefetch(&self.slots[ahead.hash[i] & self.mask])
        for i in range(ahead.len):
            at = ahead.hash[i] & self.mask
            for tries in range(8):
                slot = self.slots[at]
                if slot == 0:
                    break
                if (slot ^ ahead.hash[i]) & ~POINTER == 0:
                    topic = <const char*>topic_in(slot)
                    __builtin_prefetch(topic)
                    __builtin_prefetch(topic + 64)
                    __builtin_prefetch(topic + 128)
                    break
                at = (at + 1) & self.mask

    cdef Topic* add(self, const uint8_t* text, uint32_t size, uint64_t hash) noexcept:
        """A topic that find() did not have; NULL when the table is full of topics in use, or memory is gone."""
        cdef Topic* topic
        cdef size_t at
        cdef const uint8_t* slash
        if not self.fit(1, sizeof(Topic) + size + SLOT_BYTES):
            return NULL
        if self.old != NULL:
            self._move(MOVED_AT_ONCE)
        if self.count * 2 > self.mask and not self._grow():
            return NULL
        topic = <Topic*>malloc(sizeof(Topic) + size)
        if topic == NULL:
            return NULL
        memset(topic, 0, sizeof(Topic))
        topic.hash = hash
        topic.size = size
        topic.used = 1
        self.serial += 1
        topic.serial = self.serial
        topic.routes = &topic.nearest
        memcpy(topic.text, text, size)
        slash = <const uint8_t*>memchr(text, 0x2F, size)
        topic.root = self.hash_of(text, size if slash == NULL else <uint32_t>(slash - text)) & (ROOTS - 1)
        at = hash & self.mask
        while self.slots[at] != 0:
            at = (at + 1) & self.mask
        self.slots[at] = slot_for(topic)
        self.count += 1
        self.bytes_held += topic_bytes(topic)
        return topic

    cdef bint _grow(self) noexcept:
        """A table of twice the size; the topics move there some at a time, long before it must grow again."""
        cdef size_t mask = self.mask * 2 + 1
        cdef uint64_t* slots
        if self.old != NULL:
            self._move(self.old_mask + 1)
        slots = <uint64_t*>calloc(mask + 1, sizeof(uint64_t))
        if slots == NULL:
            return 0
        self.old = self.slots
        self.old_mask = self.mask
        self.moved = 0
        self.slots = slots
        self.mask = mask
        self.hand = 0
        self.sweep = 0
        return 1

    cdef void _move(self, size_t most) noexcept:
        """Moves what stands in so many slots of the former table."""
        cdef size_t at
        while most and self.moved <= self.old_mask:
            if self.old[self.moved] != 0:
                at = topic_in(self.old[self.moved]).hash & self.mask
                while self.slots[at] != 0:
                    at = (at + 1) & self.mask
                self.slots[at] = self.old[self.moved]
                self.old[self.moved] = MOVED
            self.moved += 1
            most -= 1
        if self.moved > self.old_mask:
            free(self.old)
            self.old = NULL

    cdef bint _evict_one(self) noexcept:
        """Throws out one topic that nothing points to, the clock algorithm's choice; looks a bounded way. Where all
        were used lately, one of those goes."""
        cdef size_t looked = 0
        cdef Topic* topic
        cdef size_t lately = self.mask + 1
        if self.old != NULL:
            self._move(LOOKED_MAX)
        while looked < LOOKED_MAX and (looked < LOOKED_FOR_IDLE or lately > self.mask):
            looked += 1
            self.hand = (self.hand + 1) & self.mask
            topic = topic_in(self.slots[self.hand])
            if topic == NULL or topic.pins or topic.retained != NULL:
                continue
            if not topic.used:
                self._forget(self.hand)
                return 1
            topic.used = 0
            if lately > self.mask:
                lately = self.hand
        if lately > self.mask:
            return 0
        self._forget(lately)
        return 1

    cdef bint fit(self, size_t count, size_t size) noexcept:
        """Makes room for so many topics more, of that size together; 0 when too much is in use."""
        while self.count - self.kept + count > self.topics_max or self.bytes_held + size > self.bytes_max:
            if not self._evict_one():
                return 0
        return 1

    cdef void _forget(self, size_t at) noexcept:
        cdef Topic* topic = topic_in(self.slots[at])
        self._remove_slot(at)
        self.count -= 1
        self.bytes_held -= topic_bytes(topic) + routes_bytes(topic)
        topic_free(topic)

    def forget_idle(self, int64_t before_ns, size_t slots_max) -> int:
        """Throws out topics without a message since then that nothing points to; looks at so many slots, and
        goes on there the next time. Returns how many went."""
        cdef size_t looked, forgotten = 0
        cdef Topic* topic
        if self.old != NULL:
            self._move(slots_max)
        for looked in range(min(slots_max, self.mask + 1)):
            topic = topic_in(self.slots[self.sweep])
            if topic == NULL or topic.pins or topic.retained != NULL or topic.last_ns >= before_ns:
                self.sweep = (self.sweep + 1) & self.mask
                continue
            self._forget(self.sweep)
            forgotten += 1
        return forgotten

    cdef void _remove_slot(self, size_t at) noexcept:
        """Empties a slot and moves back those behind it that were displaced by it."""
        cdef size_t hole = at
        cdef size_t home
        while True:
            at = (at + 1) & self.mask
            if self.slots[at] == 0:
                break
            home = topic_in(self.slots[at]).hash & self.mask
            if ((at - home) & self.mask) >= ((at - hole) & self.mask):
                self.slots[hole] = self.slots[at]
                hole = at
        self.slots[hole] = 0

    def forget_routes(self, bytes filter not None) -> None:
        """A subscription with this filter came, went or changed: the topics it may match look again."""
        cdef const uint8_t* text = <const uint8_t*>(<char*>filter)
        cdef uint32_t size = len(filter)
        cdef const uint8_t* slash = <const uint8_t*>memchr(text, 0x2F, size)
        cdef uint32_t first = size if slash == NULL else <uint32_t>(slash - text)
        cdef Topic* topic
        if b"+" not in filter and b"#" not in filter:
            topic = self.find(text, size, self.hash_of(text, size))
            if topic != NULL:
                topic.stamp = 0
        elif first == 1 and (text[0] == 0x2B or text[0] == 0x23):
            self.everywhere += 1
        else:
            self.generation[self.hash_of(text, first) & (ROOTS - 1)] += 1

    def forget_publishers(self) -> None:
        """What was sent before is not here any more: what comes again is new."""
        cdef size_t at
        if self.old != NULL:
            self._move(self.old_mask + 1)
        for at in range(self.mask + 1 if self.slots != NULL else 0):
            if self.slots[at] != 0:
                topic_in(self.slots[at]).publisher = 0

    def forget_everything(self) -> None:
        """The contracts changed: every topic looks again."""
        self.everywhere += 1
