"""What a client may publish to, compiled: a table of decisions beside the topics they are about."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from holdfast.broker.message cimport Topic


cdef class Permit:
    def __cinit__(self, decide) -> None:
        self.decide = decide
        self.mask = SLOTS_MIN - 1
        self.slots = <uint64_t*>calloc(SLOTS_MIN, sizeof(uint64_t))
        if self.slots == NULL:
            raise MemoryError

    def __dealloc__(self) -> None:
        free(self.slots)

    cdef uint8_t ask(self, Topic* topic) noexcept:
        cdef uint8_t rights = self.rights_to(topic.text, topic.size)
        cdef uint64_t* slot
        if self.slots[topic.serial & self.mask] != 0:
            self._make_room()
        slot = &self.slots[topic.serial & self.mask]
        slot[0] = mark_of(topic) | rights
        return rights

    cdef uint8_t rights_to(self, const uint8_t* text, uint32_t size) noexcept:
        """The same for a name, of which nothing is remembered."""
        self.asked += 1
        self.latest = 0
        try:
            self.latest = <uint8_t>self._decide(text, size)
        except Exception:
            pass
        return self.latest

    cdef int _decide(self, const uint8_t* text, uint32_t size) except -1:
        return <int>self.decide(PyBytes_FromStringAndSize(<char*>text, size)) & RIGHTS

    cdef void _make_room(self) noexcept:
        """A client with many topics gets a larger table, which starts empty."""
        cdef uint64_t* slots
        self.displaced += 1
        if self.displaced <= self.mask or self.mask + 1 >= SLOTS_MAX:
            return
        slots = <uint64_t*>calloc((self.mask + 1) * 4, sizeof(uint64_t))
        if slots == NULL:
            return
        free(self.slots)
        self.slots = slots
        self.mask = self.mask * 4 + 3
        self.displaced = 0
