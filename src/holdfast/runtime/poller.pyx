"""Every client socket of a broker, read and written without a Python object in between.

The poller has an epoll descriptor of its own, which the event loop watches as one file: however many clients
there are, the loop has one thing to look at, and a connection costs what its session costs.

Laws:
- bytes go from the socket into the inbox and from a link into the socket; nothing is decided here
- one read for each ready socket before anyone is read twice; other brokers are read before clients
- clients are not read while the broker is sated; who was not read is read first when it is not
- what is said before a close reaches the peer: the sending side is shut, and the rest is read and thrown away
"""

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset

from collections import deque

from holdfast.broker.core cimport Core
from holdfast.broker.link cimport Board, Inbox, Wire

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int maxevents, int timeout)
    enum: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CLOEXEC

cdef extern from "<sys/socket.h>" nogil:
    int accept4(int fd, void* address, void* size, int flags)
    ssize_t recv(int fd, void* data, size_t size, int flags)
    ssize_t send(int fd, const void* data, size_t size, int flags)
    int shutdown(int fd, int how)
    int setsockopt(int fd, int level, int name, const void* value, uint32_t size)
    enum: SOCK_NONBLOCK, SOCK_CLOEXEC, MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR

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
    enum: CLOCK_MONOTONIC, CLOCK_REALTIME

cdef enum:
    EVENTS_MAX = 256
    PASSES_MAX = 4              # while the broker is sated: other brokers are heard every so often
    ACCEPTS_MAX = 64            # in one poll: a storm of connects must not hold up a message
    UNSENT_BYTES_MAX = 65536    # what may wait in the kernel for one subscriber
    DISCARD_BYTES_MAX = 1048576 # what is still read from a peer that was told goodbye

cdef enum Kind:
    FREE
    LISTENER
    OPEN
    LINGERING   # everything was said; only the peer's end is awaited


cdef int64_t LINGER_NS = 2_000_000_000
cdef int64_t ACCEPT_AGAIN_NS = 100_000_000


cdef struct Slot:
    PyObject* wire          # owned while OPEN
    uint32_t interest
    uint32_t discarded
    Kind kind


cdef inline int64_t clock_ns(int which) noexcept nogil:
    cdef timespec t
    clock_gettime(which, &t)
    return t.tv_sec * 1_000_000_000 + t.tv_nsec


cdef class Poller:
    cdef int epoll
    cdef object broker
    cdef Core core
    cdef Board board
    cdef Inbox inbox
    cdef Slot* slots            # by file descriptor
    cdef int slots_len
    cdef readonly int open      # sockets that are not yet closed, listeners aside
    cdef dict openers           # listening descriptor -> what makes a wire for whom it accepts
    cdef list ended             # wires whose peer is gone while plain Python still owes them an answer
    cdef object lingering       # (due, fd) of farewells, in order
    cdef int64_t accept_again_ns
    cdef int passed             # how often in a row nothing was asked for
    cdef int skipped            # the first descriptor that was not read for the broker was sated; 0: none

    def __cinit__(self, broker, Inbox inbox not None) -> None:
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, "epoll_create1")
        self.broker = broker
        self.core = broker.core
        self.board = self.core.board
        self.inbox = inbox
        self.ended = []
        self.lingering = deque()
        self.openers = {}

    def __dealloc__(self) -> None:
        cdef int fd
        for fd in range(self.slots_len):
            if self.slots[fd].kind == OPEN or self.slots[fd].kind == LINGERING:
                self._close(fd)
        free(self.slots)
        if self.epoll >= 0:
            close(self.epoll)

    def fileno(self) -> int:
        """Readable when poll() has something to do."""
        return self.epoll

    def listen(self, int fd, opener) -> None:
        """Accepts from this listening socket, which stays its owner's; opener(inbox, now) makes the wire, or
        None when nobody is let in."""
        self._watch(fd, LISTENER, EPOLLIN)
        self.openers[fd] = opener

    def stop_listening(self) -> None:
        for fd in self.openers:
            self._interest(fd, 0)
        self.openers = {}

    def adopt(self, int fd, Wire wire not None) -> None:
        """Moves the bytes of a connected socket from now on, and closes it in the end."""
        cdef int yes = 1
        cdef int unsent = UNSENT_BYTES_MAX
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes))
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent))
        self._watch(fd, OPEN, EPOLLIN)
        Py_INCREF(wire)
        self.slots[fd].wire = <PyObject*>wire
        wire.fd = fd
        self.open += 1

    def poll(self) -> bool:
        """Reads from every socket that is ready, once; says whether there was anything."""
        cdef epoll_event events[EVENTS_MAX]
        cdef int i, fd, n
        cdef int64_t now_ns, wall_ns
        if self.core.sated() and self.passed < PASSES_MAX:
            self.passed += 1
            return False
        self.passed = 0
        n = epoll_wait(self.epoll, events, EVENTS_MAX, 0)
        if n <= 0:
            return False
        now_ns = clock_ns(CLOCK_MONOTONIC)
        wall_ns = clock_ns(CLOCK_REALTIME)
        for i in range(n):
            fd = events[i].data.fd
            if self.slots[fd].kind == OPEN and (<Wire>self.slots[fd].wire).peer:
                self._serve(fd, events[i].events, now_ns, wall_ns)
                events[i].events = 0
        self._serve_clients(events, n, now_ns, wall_ns)
        return True

    cdef void _serve_clients(self, epoll_event* events, int n, int64_t now_ns, int64_t wall_ns) except *:
        cdef int i, at
        cdef int first = 0
        if self.skipped:
            for i in range(n):
                if events[i].data.fd == self.skipped:
                    first = i
            self.skipped = 0
        for i in range(n):
            at = (first + i) % n
            if not events[at].events:
                continue
            if self.core.sated():
                if not self.skipped:
                    self.skipped = events[at].data.fd
                events[at].events &= ~<uint32_t>EPOLLIN
            if events[at].events:
                self._serve(events[at].data.fd, events[at].events, now_ns, wall_ns)

    cdef void _serve(self, int fd, uint32_t events, int64_t now_ns, int64_t wall_ns) except *:
        if self.slots[fd].kind == LISTENER:
            self._accept(fd, now_ns)
        elif self.slots[fd].kind == OPEN:
            if events & EPOLLOUT:
                self._writable(fd)
            if events & (EPOLLIN | EPOLLERR | EPOLLHUP) and self.slots[fd].kind == OPEN:
                self._read(fd, now_ns, wall_ns)
        elif self.slots[fd].kind == LINGERING:
            self._discard(fd)

    def flush(self) -> None:
        """Writes what is ready, closes what is over, and reads on or pauses as each link wants."""
        cdef Wire wire
        cdef int64_t now_ns
        for wire in self.board.take_ready():
            if wire.fd >= 0:
                self._perform(wire)
        if self.ended or self.lingering or self.accept_again_ns:
            now_ns = clock_ns(CLOCK_MONOTONIC)
            self._end_the_ended(now_ns)
            while self.lingering and self.lingering[0][0] <= now_ns:
                self._give_up(self.lingering.popleft()[1], now_ns)
            if self.accept_again_ns and now_ns >= self.accept_again_ns:
                self.accept_again_ns = 0
                for fd in self.openers:
                    self._interest(fd, EPOLLIN)

    @property
    def unfinished(self) -> bool:
        """Whether flush() has to be called again though no socket becomes ready."""
        return bool(self.ended) or bool(self.lingering) or self.accept_again_ns != 0

    # Sockets

    cdef bint _watch(self, int fd, Kind kind, uint32_t interest) except 0:
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
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "epoll_ctl")
        self.slots[fd].kind = kind
        self.slots[fd].interest = interest
        self.slots[fd].discarded = 0
        self.slots[fd].wire = NULL
        return 1

    cdef void _interest(self, int fd, uint32_t interest) noexcept:
        cdef epoll_event event
        if self.slots[fd].interest != interest:
            event.events = interest
            event.data.fd = fd
            epoll_ctl(self.epoll, EPOLL_CTL_MOD, fd, &event)
            self.slots[fd].interest = interest

    cdef void _accept(self, int listener, int64_t now_ns) except *:
        cdef int fd, i
        cdef Wire wire
        for i in range(ACCEPTS_MAX):
            fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                if errno == EMFILE or errno == ENFILE or errno == ENOBUFS or errno == ENOMEM:
                    # No descriptor is left: those who wait stay in the kernel's queue for a moment.
                    self.broker.count_refusal(0x97, "no file descriptor is left: raise the limit of open files")
                    self._interest(listener, 0)
                    self.accept_again_ns = now_ns + ACCEPT_AGAIN_NS
                return
            wire = self.openers[listener](self.inbox, now_ns)
            if wire is None:
                close(fd)
            else:
                self.adopt(fd, wire)

    cdef void _read(self, int fd, int64_t now_ns, int64_t wall_ns) except *:
        cdef Wire wire = <Wire>self.slots[fd].wire
        cdef ssize_t n = recv(fd, self.inbox.data, self.inbox.size, MSG_DONTWAIT)
        if n > 0:
            try:
                wire.received(n, now_ns, wall_ns)
            except Exception as error:
                self.broker.mistaken(wire, error, now_ns)
            if not wire.wants_bytes():
                self._perform(wire)
        elif n == 0 or not (errno == EAGAIN or errno == EINTR):
            self._interest(fd, 0)
            if wire.owes_answer():
                self.ended.append(wire)
            else:
                self.broker.lost(wire, now_ns)
                self._close(fd)

    cdef void _writable(self, int fd) except *:
        cdef Wire wire = <Wire>self.slots[fd].wire
        if self._send(wire):
            wire.drained()
            self._perform(wire)

    cdef bint _send(self, Wire wire) except -1:
        """Writes what waits; whether all of it went."""
        cdef ssize_t n = 0
        if wire.out.len:
            n = send(wire.fd, wire.out.data, wire.out.len, MSG_DONTWAIT | MSG_NOSIGNAL)
            if n < 0:
                n = 0 if errno == EAGAIN or errno == EINTR else <ssize_t>wire.out.len
            self.board.bytes_sent += n
            wire.sent(n)
        return wire.out.len == 0

    cdef void _perform(self, Wire wire) except *:
        cdef int fd = wire.fd
        cdef bint all_sent = self._send(wire)
        if wire.closing:
            if all_sent:
                self._linger(fd)
            else:
                self.lingering.append((clock_ns(CLOCK_MONOTONIC) + LINGER_NS, fd))
                self._interest(fd, EPOLLOUT)
            return
        wire.writable = all_sent
        if all_sent:
            wire.flushed()
        self._interest(fd, (EPOLLIN if wire.wants_bytes() else 0) | (0 if all_sent else EPOLLOUT))

    # The end

    cdef void _end_the_ended(self, int64_t now_ns) except *:
        cdef Wire wire
        cdef list still = []
        for wire in self.ended:
            if wire.fd < 0:
                continue
            if wire.owes_answer() and not wire.closing:
                still.append(wire)
            else:
                self.broker.lost(wire, now_ns)
                self._close(wire.fd)
        self.ended = still

    cdef void _linger(self, int fd) except *:
        """Everything was said: waits for the peer to close, so that nothing said is lost to a reset."""
        self._let_go(fd)
        self.slots[fd].kind = LINGERING
        shutdown(fd, SHUT_WR)
        self._interest(fd, EPOLLIN)
        self.lingering.append((clock_ns(CLOCK_MONOTONIC) + LINGER_NS, fd))

    cdef void _discard(self, int fd) except *:
        cdef ssize_t n = recv(fd, self.inbox.data, self.inbox.size, MSG_DONTWAIT)
        if n > 0:
            self.slots[fd].discarded += n
        if n == 0 or self.slots[fd].discarded > DISCARD_BYTES_MAX or (
                n < 0 and errno != EAGAIN and errno != EINTR):
            self._close(fd)

    cdef void _give_up(self, int fd, int64_t now_ns) except *:
        """A farewell took too long. The descriptor may by now be somebody else's: then it is left alone."""
        if self.slots[fd].kind == LINGERING:
            self._close(fd)
        elif self.slots[fd].kind == OPEN and (<Wire>self.slots[fd].wire).closing:
            self._close(fd)

    cdef void _let_go(self, int fd) noexcept:
        cdef PyObject* wire = self.slots[fd].wire
        if wire != NULL:
            self.slots[fd].wire = NULL
            (<Wire>wire).fd = -1
            Py_DECREF(<object>wire)

    cdef void _close(self, int fd) noexcept:
        self._let_go(fd)
        self.slots[fd].kind = FREE
        self.open -= 1
        close(fd)
