# A set of packet identifiers in little memory: sorted in an array, or as a bitmap when there are many.
#
# Laws:
#   it holds what a set would, and gives it in ascending order
#   it never takes more than 8 KiB, and gives back what it does not need when much of it is empty
#   `bytes` changes only when memory does: whoever counts it needs to look only then

from libc.stdint cimport uint16_t, uint32_t

cdef enum:
    FIRST_IDS = 8               # an array begins with so many places
    ARRAY_IDS_MAX = 2048        # and becomes a bitmap beyond so many
    BITMAP_BYTES = 8192
    IDSET_BYTES = 64            # the object and what the heap keeps for it, besides `bytes`


cdef class IdSet:
    cdef uint16_t* items        # sorted, or the bitmap
    cdef readonly uint32_t len
    cdef readonly uint32_t bytes    # of what items points to

    cdef uint32_t place(self, uint16_t identifier) noexcept
    cdef bint has(self, uint16_t identifier) noexcept
    cdef uint32_t wanted(self) noexcept
    cdef bint resize(self, uint32_t size) noexcept
    cdef bint put(self, uint16_t identifier) noexcept
    cdef void take(self, uint16_t identifier) noexcept
