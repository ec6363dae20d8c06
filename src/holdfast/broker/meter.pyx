"""Rates of messages and bytes, compiled."""

from libc.stdint cimport int64_t

cdef int64_t SECOND_NS = 1_000_000_000
cdef int64_t AT_ONCE_NS = SECOND_NS    # what may pass at once after a pause


cdef inline int64_t later(int64_t even_ns, int64_t amount, int64_t per_s, int64_t now_ns) noexcept:
    return max(even_ns, now_ns - AT_ONCE_NS) + amount * SECOND_NS // per_s


cdef class Meter:
    def __init__(self, int64_t messages_per_s, int64_t bytes_per_s) -> None:
        self.messages_per_s = messages_per_s
        self.bytes_per_s = bytes_per_s

    def count(self, bint message, int64_t size, int64_t now_ns) -> int:
        """Adds a packet; says when what passed so far is within the rate."""
        return self.charge(message, size, now_ns)

    cdef int64_t charge(self, bint message, int64_t size, int64_t now_ns) noexcept:
        if self.messages_per_s and message:
            self.messages_even_ns = later(self.messages_even_ns, 1, self.messages_per_s, now_ns)
        if self.bytes_per_s:
            self.bytes_even_ns = later(self.bytes_even_ns, size, self.bytes_per_s, now_ns)
        return max(self.messages_even_ns, self.bytes_even_ns)
