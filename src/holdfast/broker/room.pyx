"""How much all sessions take of memory, and whether there is room for more, compiled."""

from libc.stdint cimport int64_t


cdef class Room:
    @property
    def taken(self) -> int:
        return self.filters + self.others

    cpdef bint leaves(self, int64_t held, int64_t paid, int64_t more) noexcept:
        """Whether as much is still free as a session has that takes more, and who pays for it (-1: nobody does)."""
        cdef int64_t most = self.bytes_max
        if held + more > SMALL_BYTES:
            most -= most // RESERVED_PART
        if paid < 0:
            return held + self.filters + self.others + 2 * more <= most
        return 2 * held + paid + self.filters + self.others + 4 * more <= most

    cdef bint grants(self, int64_t held, int64_t paid, int64_t more) noexcept:
        """Whether a session may take more, which is asked only when there is no ample room."""
        return (self.filters + self.others + more <= self.ample or self.bytes_max == 0
                or self.leaves(held, paid, more))
