# What is asked of the kernel without a Python object in between.

from libc.stdint cimport int64_t, uint32_t

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int maxevents, int timeout)
    enum: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLL_CLOEXEC

cdef extern from "<sys/socket.h>" nogil:
    int accept4(int fd, void* address, void* size, int flags)
    ssize_t recv(int fd, void* data, size_t size, int flags)
    ssize_t send(int fd, const void* data, size_t size, int flags)
    int shutdown(int fd, int how)
    int setsockopt(int fd, int level, int name, const void* value, uint32_t size)
    enum: SOCK_NONBLOCK, SOCK_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, SHUT_WR

cdef extern from "<netinet/in.h>" nogil:
    enum: IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    enum: TCP_NODELAY, TCP_NOTSENT_LOWAT

cdef extern from "<unistd.h>" nogil:
    int close(int fd)

cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        int64_t tv_sec
        int64_t tv_nsec
    int clock_gettime(int clock, timespec* time)
    enum: CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_THREAD_CPUTIME_ID


cdef inline int64_t clock_ns(int which) noexcept nogil:
    cdef timespec t
    clock_gettime(which, &t)
    return t.tv_sec * 1_000_000_000 + t.tv_nsec


cdef inline void tune(int fd, int unsent_bytes_max) noexcept nogil:
    """What is written goes out at once, and no more than that waits in the kernel."""
    cdef int yes = 1
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes))
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes_max, sizeof(unsent_bytes_max))
