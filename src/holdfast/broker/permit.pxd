# Which topics one client may publish to, decided once for each and remembered.
#
# Laws:
#   plain Python decides; what it decided of a topic holds until the permit is replaced
#   a topic that nothing is remembered of is asked about again: forgetting costs time, never an answer
#   a decision that fails is a refusal

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from holdfast.broker.message cimport Topic

cdef enum:
    SLOTS_MIN = 16
    SLOTS_MAX = 65536


cdef inline uint64_t mark_of(Topic* topic) noexcept nogil:
    """What tells a topic from others, before and after it; even, and never 0."""
    return (<uint64_t>topic.serial << 32) | (topic.hash & 0xFFFFFFFEULL) | 2


cdef class Permit:
    cdef object decide      # topic -> whether
    cdef uint64_t* slots    # by serial: the mark of a topic, and one more if it may be published to
    cdef uint32_t mask
    cdef uint64_t asked     # how often plain Python was
    cdef uint32_t displaced # decisions that made room for another since the table has this size

    cdef bint ask(self, Topic* topic) noexcept
    cdef bint allows_name(self, const uint8_t* text, uint32_t size) noexcept
    cdef bint _decide(self, const uint8_t* text, uint32_t size) except -1
    cdef void _make_room(self) noexcept

    cdef inline bint allows(self, Topic* topic) noexcept:
        cdef uint64_t known = self.slots[topic.serial & self.mask]
        if (known ^ mark_of(topic)) <= 1:
            return known & 1
        return self.ask(topic)
