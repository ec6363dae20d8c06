"""A set of packet identifiers in little memory, compiled."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove


cdef class IdSet:
    def __init__(self, identifiers=()) -> None:
        for each in identifiers:
            self.add(each)

    def __dealloc__(self) -> None:
        free(self.items)

    @property
    def weight(self) -> int:
        """Bytes that it takes."""
        return IDSET_BYTES + self.bytes

    def __len__(self) -> int:
        return self.len

    def __contains__(self, uint16_t identifier) -> bool:
        return self.has(identifier)

    def __iter__(self):
        cdef uint32_t i
        if self.bytes == BITMAP_BYTES:
            return iter([i for i in range(8 * BITMAP_BYTES) if (<uint8_t*>self.items)[i >> 3] >> (i & 7) & 1])
        return iter([self.items[i] for i in range(self.len)])

    def add(self, uint16_t identifier) -> None:
        if not self.put(identifier):
            raise MemoryError

    def discard(self, uint16_t identifier) -> None:
        self.take(identifier)

    cdef uint32_t place(self, uint16_t identifier) noexcept:
        """Where it is in the array, or belongs."""
        cdef uint32_t low = 0, high = self.len, middle
        if high == 0 or self.items[high - 1] < identifier:  # most come in ascending order
            return high
        while low < high:
            middle = (low + high) >> 1
            if self.items[middle] < identifier:
                low = middle + 1
            else:
                high = middle
        return low

    cdef bint has(self, uint16_t identifier) noexcept:
        cdef uint32_t at
        if self.bytes == BITMAP_BYTES:
            return (<uint8_t*>self.items)[identifier >> 3] >> (identifier & 7) & 1
        at = self.place(identifier)
        return at < self.len and self.items[at] == identifier

    cdef uint32_t wanted(self) noexcept:
        """How many bytes it must have before one more fits; as many as it has when one does."""
        if self.bytes == BITMAP_BYTES or 2 * self.len < self.bytes:
            return self.bytes
        if self.len == 0:
            return 2 * FIRST_IDS
        return BITMAP_BYTES if self.len >= ARRAY_IDS_MAX else 2 * self.bytes

    cdef bint resize(self, uint32_t size) noexcept:
        """Makes it an array of that size or a bitmap; 0 when there is no memory for that, and all is as it was."""
        cdef uint16_t* items
        cdef uint32_t i, n = 0
        if size == self.bytes:
            return 1
        if size != BITMAP_BYTES and self.bytes != BITMAP_BYTES:
            items = <uint16_t*>realloc(self.items, size)
            if items == NULL:
                return 0
        else:
            items = <uint16_t*>calloc(1, size)
            if items == NULL:
                return 0
            if size == BITMAP_BYTES:
                for i in range(self.len):
                    (<uint8_t*>items)[self.items[i] >> 3] |= <uint8_t>(1 << (self.items[i] & 7))
            else:
                for i in range(8 * BITMAP_BYTES):
                    if (<uint8_t*>self.items)[i >> 3] >> (i & 7) & 1:
                        items[n] = <uint16_t>i
                        n += 1
            free(self.items)
        self.items = items
        self.bytes = size
        return 1

    cdef bint put(self, uint16_t identifier) noexcept:
        """0 when there is no memory."""
        cdef uint32_t at
        if self.has(identifier):
            return 1
        if not self.resize(self.wanted()):
            return 0
        if self.bytes == BITMAP_BYTES:
            (<uint8_t*>self.items)[identifier >> 3] |= <uint8_t>(1 << (identifier & 7))
        else:
            at = self.place(identifier)
            memmove(self.items + at + 1, self.items + at, (self.len - at) * sizeof(uint16_t))
            self.items[at] = identifier
        self.len += 1
        return 1

    cdef void take(self, uint16_t identifier) noexcept:
        cdef uint32_t at
        if not self.has(identifier):
            return
        self.len -= 1
        if self.bytes == BITMAP_BYTES:
            (<uint8_t*>self.items)[identifier >> 3] &= <uint8_t>~(1 << (identifier & 7))
            if self.len == ARRAY_IDS_MAX // 4:
                self.resize(ARRAY_IDS_MAX)
            return
        at = self.place(identifier)
        memmove(self.items + at, self.items + at + 1, (self.len - at) * sizeof(uint16_t))
        if self.bytes > 2 * FIRST_IDS and 8 * self.len <= self.bytes:    # a quarter of its places are in use
            self.resize(self.bytes >> 1)
