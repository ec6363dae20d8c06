# Which topics one client may publish to, with which QoS and whether retained, decided once for each topic.
#
# Laws:
#   plain Python decides; what it decided of a topic holds until the permit is replaced
#   a topic that nothing is remembered of is asked about again: forgetting costs time, never an answer
#   a decision that fails is a refusal

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from holdfast.broker.message cimport Topic

cdef enum:
    RIGHTS = 0x1F   # what rules.publishing says: QoS levels, those of retained messages, and whether it is denied
    ANY_RIGHT = 0xF
    SLOTS_MIN = 16
    SLOTS_MAX = 65536


cdef inline uint64_t mark_of(Topic* topic) noexcept nogil:
    """What tells a topic from others, before and after it; never 0, and without the bits of RIGHTS."""
    return (<uint64_t>topic.serial << 32) | (topic.hash & 0xFFFFFFC0ULL) | 0x20


cdef class Permit:
    cdef object decide      # topic -> rights
    cdef uint64_t* slots    # by serial: the mark of a topic with its rights
    cdef uint32_t mask
    cdef uint64_t asked     # how often plain Python was
    cdef uint8_t latest     # what it said last
    cdef uint32_t displaced # decisions that made room for another since the table has this size

    cdef uint8_t ask(self, Topic* topic) noexcept
    cdef uint8_t rights_to(self, const uint8_t* text, uint32_t size) noexcept
    cdef int _decide(self, const uint8_t* text, uint32_t size) except -1
    cdef void _make_room(self) noexcept

    cdef inline bint knows(self, Topic* topic) noexcept:
        """Whether plain Python need not be asked."""
        return (self.slots[topic.serial & self.mask] ^ mark_of(topic)) <= RIGHTS

    cdef inline uint8_t remembered(self, Topic* topic) noexcept:
        """Its rights to a topic that was just asked about."""
        return self.slots[topic.serial & self.mask] & RIGHTS

    cdef inline bint allows(self, Topic* topic, uint8_t qos, bint retain) noexcept:
        cdef uint64_t known = self.slots[topic.serial & self.mask]
        cdef uint8_t rights
        if (known ^ mark_of(topic)) <= RIGHTS:
            rights = known & RIGHTS
        else:
            rights = self.ask(topic)
        return qos < (rights >> 2 & 3 if retain else rights & 3)
