"""A table of sockets by descriptor, and what the kernel is asked to watch of each."""

from cpython.ref cimport Py_DECREF, PyObject
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from holdfast.broker.link cimport Wire
from holdfast.runtime.kernel cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, close, epoll_create1, epoll_ctl, epoll_event,
)
from holdfast.runtime.slots cimport FREE, LISTENER, LOBBY, Kind, Slot, of_interest

cdef enum:
    RESTS = 31                  # times as long as strangers were worked for: they have a thirty-second of the time

cdef int64_t REST_NS_MIN = 1_000_000        # to look at them costs something, too
cdef int64_t REST_NS_MAX = 20_000_000
cdef int64_t TICK_NS = 500_000              # alarms are set to the nearest millisecond


cdef class Sockets:
    def __cinit__(self, *_) -> None:
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.lobby = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0 or self.lobby < 0:
            raise OSError(errno, "epoll_create1")
        self._watch(self.lobby, LOBBY, EPOLLIN)

    def __dealloc__(self) -> None:
        cdef int fd
        for fd in range(self.slots_len):
            if self.slots[fd].kind > LISTENER:
                self._close(fd)
        free(self.slots)
        if self.lobby >= 0:
            close(self.lobby)
        if self.epoll >= 0:
            close(self.epoll)

    def fileno(self) -> int:
        """Readable when a poller has something to do."""
        return self.epoll

    @property
    def next_ns(self) -> int | None:
        """When a poller has something to do though this is not readable; an alarm may come TICK_NS too early."""
        return self.rests_until_ns + TICK_NS if self.rests_until_ns else None

    cdef bint _watch(self, int fd, Kind kind, uint32_t interest, bint stranger=False) except 0:
        cdef Slot* grown
        cdef int length
        cdef epoll_event event
        if fd >= self.slots_len:
            length = max(fd + 1, self.slots_len * 2, 64)
            grown = <Slot*>realloc(self.slots, length * sizeof(Slot))
            if grown == NULL:
                raise MemoryError
            memset(grown + self.slots_len, 0, (length - self.slots_len) * sizeof(Slot))
            self.slots = grown
            self.slots_len = length
        event.events = interest
        event.data.fd = fd
        if epoll_ctl(self.lobby if stranger else self.epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        memset(&self.slots[fd], 0, sizeof(Slot))
        self.slots[fd].kind = kind
        self.slots[fd].stranger = stranger
        self.slots[fd].interest = interest
        self.slots[fd].watched = True
        return 1

    cdef void _interest(self, int fd, uint32_t interest) noexcept:
        """Of a peer that left, and of whom nothing is of interest, the kernel says nothing."""
        cdef epoll_event event
        cdef bint watched
        cdef int how
        interest = of_interest(&self.slots[fd], interest)
        watched = interest or not (self.slots[fd].gone or self.slots[fd].reset)
        if self.slots[fd].interest != interest or self.slots[fd].watched != watched:
            how = EPOLL_CTL_DEL if not watched else EPOLL_CTL_MOD if self.slots[fd].watched else EPOLL_CTL_ADD
            event.events = interest
            event.data.fd = fd
            epoll_ctl(self.lobby if self.slots[fd].stranger else self.epoll, how, fd, &event)
            self.slots[fd].interest = interest
            self.slots[fd].watched = watched

    cdef void _know(self, int fd) noexcept:
        """It has said who it is: it is watched with the others."""
        cdef epoll_event event
        if self.slots[fd].watched:
            event.events = self.slots[fd].interest
            event.data.fd = fd
            epoll_ctl(self.lobby, EPOLL_CTL_DEL, fd, NULL)
            epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event)
        self.slots[fd].stranger = False

    cdef void _rest(self, int64_t worked_ns, int64_t now_ns) noexcept:
        """Strangers were worked for: the lobby is left alone for a while."""
        self.rests_until_ns = now_ns + min(max(RESTS * worked_ns, REST_NS_MIN), REST_NS_MAX)
        self._interest(self.lobby, 0)

    cdef void _let_go(self, int fd) noexcept:
        cdef PyObject* wire = self.slots[fd].wire
        cdef PyObject* layers = self.slots[fd].layers
        if layers != NULL:
            self.slots[fd].layers = NULL
            Py_DECREF(<object>layers)
        if wire != NULL:
            self.slots[fd].wire = NULL
            (<Wire>wire).fd = -1
            Py_DECREF(<object>wire)

    cdef void _close(self, int fd) noexcept:
        self._let_go(fd)
        self.slots[fd].kind = FREE
        self.open -= 1
        close(fd)
