# The room that sessions have together, in bytes.
#
# Laws:
#   what is taken is what was added and not taken away, by whoever did
#   who holds as much as is still free is refused more; while there is ample room nobody is
#   a part of the room is for small sessions alone: however much large ones take, one that asks for little is let in

from libc.stdint cimport int64_t

cdef enum:
    SMALL_BYTES = 8192      # a session with a few filters
    RESERVED_PART = 8       # this part of the room is for small ones alone


cdef class Room:
    cdef public int64_t bytes_max   # 0: nobody is refused anything
    cdef public int64_t ample       # up to so many bytes nobody is asked
    cdef public int64_t filters     # taken by the tree of filters
    cdef public int64_t others      # by sessions, their wills, and identifiers in use

    cpdef bint leaves(self, int64_t held, int64_t paid, int64_t more) noexcept
    cdef bint grants(self, int64_t held, int64_t paid, int64_t more) noexcept
