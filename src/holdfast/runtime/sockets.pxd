# The sockets of a poller, and which of them the kernel watches.
#
# Laws:
#   a socket is watched in one of two places: with clients and members, or in the lobby, where strangers at the port
#   for members are. The lobby as a whole is one file among the others, which can be left alone for a while
#   who is known leaves the lobby; nobody goes back to it

from libc.stdint cimport int64_t, uint32_t

from holdfast.runtime.slots cimport Kind, Slot


cdef class Sockets:
    cdef int epoll
    cdef int lobby              # an epoll descriptor of its own, watched by the other
    cdef int64_t rests_until_ns # the lobby is left alone until then; 0: it is not
    cdef Slot* slots            # by file descriptor
    cdef int slots_len
    cdef readonly int open      # sockets that are not yet closed, listeners aside

    cdef bint _watch(self, int fd, Kind kind, uint32_t interest, bint stranger=*) except 0
    cdef void _interest(self, int fd, uint32_t interest) noexcept
    cdef void _know(self, int fd) noexcept
    cdef void _rest(self, int64_t worked_ns, int64_t now_ns) noexcept
    cdef void _let_go(self, int fd) noexcept
    cdef void _close(self, int fd) noexcept
