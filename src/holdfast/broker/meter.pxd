# How fast one user, or all who come through one listener, may send.
#
# Laws:
#   over any time, no more passes than the rate times that time, a second's worth, and one packet of each sender
#   nothing is refused: who is ahead is told when it is even

from libc.stdint cimport int64_t


cdef class Meter:
    cdef readonly int64_t messages_per_s, bytes_per_s   # 0: any number
    cdef int64_t messages_even_ns, bytes_even_ns        # when what passed so far is within the rate

    cdef int64_t charge(self, bint message, int64_t size, int64_t now_ns) noexcept
