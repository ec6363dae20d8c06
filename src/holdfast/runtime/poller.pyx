"""Every client socket of a broker, read and written without a Python object in between.

The poller has an epoll descriptor of its own, which the event loop watches as one file: however many clients
there are, the loop has one thing to look at, and a connection costs what its session costs.

Laws:
- bytes go from the socket into the inbox and from a link into the socket; nothing is decided here
- one read for each ready socket before anyone is read twice; other brokers are read before clients
- while the broker is sated only those are read who pause and have little waiting, and little of each; while it is
  overfull nobody is, nor when what was read since its last turn is much work besides, or when reading took its
  time. Who was not read is read first when it is
- the more are ready, the less of their work is done at once: who asks for none does not wait long behind many
- who sends without a pause is read after those who do not, and so is who was reset, as the end of its session may
  be much work: they are in nobody's way
- that a peer left, or was reset, is learnt once: the kernel would say so at every poll while it is not read
- what is said before a close reaches the peer: the sending side is shut, and the rest is read and thrown away
- many who come, or go, at once are taken in and let go of for a bounded time in each poll
- strangers at the port for members are in the lobby. They are looked at last, one after the other, for a bounded
  time, and then not for a while: whatever they do, reading it takes a thirty-second of the time at most
- a listener may have layers: then nobody reaches the broker before its greetings are over, they have a time, and
  a bounded number of them is worked on in one poll
"""

from cpython.ref cimport Py_INCREF, PyObject
from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t

from collections import deque

from holdfast.broker.core cimport Core
from holdfast.broker.link cimport Board, Inbox, Wire
from holdfast.broker.work import READ_AT_LEAST, READ_AT_ONCE, READ_PER_TURN
from holdfast.replication.peer cimport Peer
from holdfast.runtime.kernel cimport (
    CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_THREAD_CPUTIME_ID, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, MSG_DONTWAIT,
    MSG_NOSIGNAL, MSG_PEEK, SHUT_WR, SOCK_CLOEXEC, SOCK_NONBLOCK, accept4, clock_ns, close, epoll_event, epoll_wait,
    recv, send, shutdown, tune,
)
from holdfast.runtime.layers cimport Layers
from holdfast.runtime.listening cimport GREETERS_MAX, Listening
from holdfast.runtime.places import address_of
from holdfast.runtime.slots cimport GREETING, LINGERING, LISTENER, LOBBY, OPEN, is_greedy
from holdfast.runtime.sockets cimport Sockets

cdef enum:
    EVENTS_MAX = 256
    FEW_EVENTS = 32             # of more at once nobody can say which came first
    PASSES_MAX = 4              # while the broker is overfull: other brokers are heard every so often
    ACCEPTS_MAX = 64            # in one poll: a storm of connects must not hold up a message
    STRANGERS_MAX = 8           # the same, of the lobby, before somebody else there has a turn
    UNSENT_BYTES_MAX = 65536    # what may wait in the kernel for one subscriber
    DISCARD_BYTES_MAX = 1048576 # what is still read from a peer that was told goodbye
    RAW_BYTES = 32768           # read at once from a socket with layers
    SEALED_BYTES_MAX = 262144   # put through layers at once
    BITE_BYTES = 4096           # the same, when the last was dear (a record may hold a byte, and take a microsecond),
                                # and of those who are read while the broker is sated
    FEW_MESSAGES = 8            # of one of those, that wait already
    COSTLY_MAX = 2              # of their signatures in one poll: each takes as long as a thousand messages


cdef int64_t SHARED = READ_PER_TURN         # units, among all that are ready
cdef int64_t SHARE_LEAST = READ_AT_LEAST
cdef int64_t SHARE_MOST = READ_AT_ONCE
cdef int64_t READING_NS_MAX = 1_000_000     # in one poll, for those who pause
cdef int64_t GREEDY_NS_MAX = 500_000        # the same, for those who do not
cdef int64_t ACCEPTING_NS_MAX = 500_000     # in one poll, from one listener
cdef int64_t ENDING_NS_MAX = 500_000        # in one flush, for connections that are over, or take too long
cdef int64_t LOBBY_NS_MAX = 300_000         # of work, in one poll, for strangers
cdef int64_t DEAR_NS = 200_000              # for one read
cdef int64_t LINGER_NS = 2_000_000_000
cdef int64_t ACCEPT_AGAIN_NS = 100_000_000

cdef enum:
    UNSPECIFIED_ERROR = 0x80
    NOT_AUTHORIZED = 0x87
    KEEP_ALIVE_TIMEOUT = 0x8D
    QUOTA_EXCEEDED = 0x97


cdef class Poller(Sockets):
    cdef object broker
    cdef Core core
    cdef Board board
    cdef Inbox inbox
    cdef dict listeners         # descriptor -> Listening
    cdef int greeters           # connections whose greetings are not over
    cdef uint8_t raw[RAW_BYTES]
    cdef list ended             # wires whose peer is gone while plain Python still owes them an answer
    cdef object lingering       # (due, fd) of farewells, in order
    cdef int64_t accept_again_ns
    cdef int passed             # how often in a row nothing was asked for
    cdef int skipped[2]         # the first of the not greedy, and of the greedy, that was not read; 0: none

    def __cinit__(self, broker, Inbox inbox not None) -> None:
        self.broker = broker
        self.core = broker.core
        self.board = self.core.board
        self.inbox = inbox
        self.ended = []
        self.lingering = deque()
        self.listeners = {}

    def listen(self, int fd, Listening listening not None) -> None:
        """Accepts from this listening socket, which stays its owner's."""
        self._watch(fd, LISTENER, EPOLLIN, listening.strangers)
        self.listeners[fd] = listening

    def stop_listening(self) -> None:
        """Nobody new is let in, nor who is only on the way."""
        cdef Listening listening
        for fd, listening in self.listeners.items():
            self._interest(fd, 0)
            for greeter in listening.greeting:
                self._close(greeter)
            self.greeters -= len(listening.greeting)
            listening.greeting.clear()
        self.listeners = {}

    def adopt(self, int fd, Wire wire not None, Layers layers=None, bint stranger=False) -> None:
        """Moves the bytes of a connected socket from now on, and closes it in the end."""
        tune(fd, UNSENT_BYTES_MAX)
        self._watch(fd, OPEN, EPOLLIN, stranger)
        self.open += 1
        if layers is not None:
            Py_INCREF(layers)
            self.slots[fd].layers = <PyObject*>layers
        self._give(fd, wire)

    cdef void _give(self, int fd, Wire wire) noexcept:
        """From now on the socket is this wire's."""
        Py_INCREF(wire)
        self.slots[fd].kind = OPEN
        self.slots[fd].wire = <PyObject*>wire
        wire.fd = fd

    def poll(self) -> bool:
        """Reads from every socket that is ready, once; says whether there was anything."""
        cdef epoll_event events[EVENTS_MAX]
        cdef int i, fd, n
        cdef int64_t now_ns, wall_ns
        cdef bint strangers = False
        cdef Listening listening
        if self.rests_until_ns and clock_ns(CLOCK_MONOTONIC) >= self.rests_until_ns:
            self.rests_until_ns = 0
            self._interest(self.lobby, EPOLLIN)
        if self.core.overfull() and self.passed < PASSES_MAX:
            self.passed += 1
            return False
        self.passed = 0
        n = epoll_wait(self.epoll, events, EVENTS_MAX, 0)
        if n <= 0:
            return False
        self.core.share_max = max(SHARE_LEAST, min(SHARE_MOST, SHARED // n))
        now_ns = clock_ns(CLOCK_MONOTONIC)
        wall_ns = clock_ns(CLOCK_REALTIME)
        if self.greeters:
            for listening in self.listeners.values():
                listening.costly = 0
        for i in range(n):
            fd = events[i].data.fd
            if self.slots[fd].kind == OPEN and (<Wire>self.slots[fd].wire).peer:
                self._serve(fd, events[i].events, now_ns, wall_ns)
                events[i].events = 0
            elif self.slots[fd].kind == LOBBY:
                strangers = True
                events[i].events = 0
        self._serve_clients(events, n, False, now_ns, wall_ns)
        self._serve_clients(events, n, True, now_ns, wall_ns)
        if strangers:
            self._serve_strangers(now_ns, wall_ns)
        if n <= FEW_EVENTS:
            # Whom the kernel told of stays on its list, ahead of whoever comes, until it is asked again. Asked before
            # anybody is answered, it lists what comes after an answer in the order in which it came.
            epoll_wait(self.epoll, events, EVENTS_MAX, 0)
        return True

    cdef void _serve_clients(self, epoll_event* events, int n, bint greedy, int64_t now_ns, int64_t wall_ns) except *:
        """All that are greedy, or all that are not, as far as there is time; whoever was left out begins. To let go
        of who was reset may take long, too."""
        cdef int i, at, fd
        cdef int first = 0
        cdef int64_t before_ns = clock_ns(CLOCK_MONOTONIC)
        cdef int64_t end_ns = before_ns + (GREEDY_NS_MAX if greedy else READING_NS_MAX)
        cdef int64_t after_ns
        if self.skipped[greedy]:
            for i in range(n):
                if events[i].data.fd == self.skipped[greedy]:
                    first = i
            self.skipped[greedy] = 0
        for i in range(n):
            at = (first + i) % n
            fd = events[at].data.fd
            if not events[at].events or greedy != (
                    events[at].events & (EPOLLERR | EPOLLHUP) != 0 or is_greedy(&self.slots[fd], now_ns)):
                continue
            if self._has_enough(fd, greedy) or self.core.work_left <= 0 or before_ns > end_ns:
                if not self.skipped[greedy]:
                    self.skipped[greedy] = fd
                events[at].events &= <uint32_t>EPOLLOUT
            if events[at].events:
                self._serve(fd, events[at].events, now_ns, wall_ns)
                events[at].events = 0   # who became greedy by this is not read again
                after_ns = clock_ns(CLOCK_MONOTONIC)
                self.slots[fd].dear = after_ns - before_ns > DEAR_NS
                before_ns = after_ns

    cdef bint _has_enough(self, int fd, bint greedy) noexcept:
        """Whether so much waits that this one is not read: of those who pause, who has messages waiting."""
        if not self.core.sated():
            return 0
        return greedy or self.core.overfull() or (
            self.slots[fd].kind == OPEN and (<Wire>self.slots[fd].wire).backlog > FEW_MESSAGES)

    cdef void _serve_strangers(self, int64_t now_ns, int64_t wall_ns) except *:
        """Asked for one at a time, the kernel names each of those that are ready in turn."""
        cdef epoll_event event
        cdef int64_t began_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID)
        cdef int64_t worked_ns = 0
        while worked_ns < LOBBY_NS_MAX and epoll_wait(self.lobby, &event, 1, 0) > 0:
            self._serve(event.data.fd, event.events, now_ns, wall_ns)
            worked_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - began_ns
        self._rest(worked_ns, clock_ns(CLOCK_MONOTONIC))

    cdef void _serve(self, int fd, uint32_t events, int64_t now_ns, int64_t wall_ns) except *:
        if self.slots[fd].kind == LISTENER:
            self._accept(fd, now_ns)
        elif self.slots[fd].kind == OPEN:
            if events & EPOLLOUT:
                self._writable(fd)
            if self.slots[fd].kind == OPEN and not self.slots[fd].gone and events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                if not events & EPOLLHUP or not self._was_reset(fd):
                    self._read(fd, now_ns, wall_ns)
        elif self.slots[fd].kind == GREETING:
            self._greet(fd, now_ns, wall_ns)
        elif self.slots[fd].kind == LINGERING:
            self._discard(fd)

    cdef bint _was_reset(self, int fd) except -1:
        """Nobody hears it any more; whether what it said is still to wait, as long as it is not read."""
        cdef Wire wire = <Wire>self.slots[fd].wire
        self.slots[fd].reset = wire.unheard = True
        if wire.wants_bytes() or recv(fd, self.inbox.data, 1, MSG_DONTWAIT | MSG_PEEK) <= 0:
            return 0
        self._interest(fd, 0)
        return 1

    def flush(self) -> None:
        """Writes what is ready, closes what is over, and reads on or pauses as each link wants."""
        cdef Wire wire
        cdef int64_t now_ns, end_ns
        for wire in self.board.take_ready():
            if wire.fd >= 0:
                self._perform(wire)
        if self.ended or self.lingering or self.accept_again_ns or self.greeters:
            now_ns = clock_ns(CLOCK_MONOTONIC)
            end_ns = now_ns + ENDING_NS_MAX
            self._end_the_ended(now_ns, end_ns)
            while self.lingering and self.lingering[0][0] <= now_ns and clock_ns(CLOCK_MONOTONIC) < end_ns:
                self._give_up(self.lingering.popleft()[1], now_ns)
            if self.accept_again_ns and now_ns >= self.accept_again_ns:
                self.accept_again_ns = 0
                for fd in self.listeners:
                    self._interest(fd, EPOLLIN)
            self._hurry_greeters(now_ns, end_ns)

    @property
    def unfinished(self) -> bool:
        """Whether flush() has to be called again though no socket becomes ready."""
        return bool(self.ended) or bool(self.lingering) or self.accept_again_ns != 0 or self.greeters > 0

    # Sockets

    cdef void _accept(self, int listener, int64_t now_ns) except *:
        cdef int fd, i
        cdef int64_t end_ns = clock_ns(CLOCK_MONOTONIC) + ACCEPTING_NS_MAX
        cdef Wire wire
        cdef Listening listening = self.listeners[listener]
        for i in range(STRANGERS_MAX if listening.strangers else ACCEPTS_MAX):
            if i and clock_ns(CLOCK_MONOTONIC) >= end_ns:
                return
            if len(listening.greeting) >= GREETERS_MAX:
                listening.paused = True
                self._interest(listener, 0)
                return
            fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                if errno == EMFILE or errno == ENFILE or errno == ENOBUFS or errno == ENOMEM:
                    # No descriptor is left: those who wait stay in the kernel's queue for a moment.
                    why = "no file descriptor is left: raise the limit of open files"
                    self.broker.count_refusal(QUOTA_EXCEEDED, why)
                    self._interest(listener, 0)
                    self.accept_again_ns = now_ns + ACCEPT_AGAIN_NS
                return
            if listening.strangers and self._has_left(fd):
                close(fd)
                continue
            if listening.layers is not None:
                self._begin_greeting(fd, listening, now_ns)
                continue
            wire = self._opened(fd, listening, now_ns)
            if wire is None:
                close(fd)
                continue
            self.adopt(fd, wire, None, listening.strangers)

    cdef bint _has_left(self, int fd) noexcept:
        """Whether it has nothing to say any more."""
        cdef ssize_t n = recv(fd, self.inbox.data, 1, MSG_DONTWAIT | MSG_PEEK)
        return n == 0 or (n < 0 and errno != EAGAIN and errno != EINTR)

    cdef Wire _opened(self, int fd, Listening listening, int64_t now_ns):
        """The broker's side of it; None when it is not let in."""
        cdef Wire wire
        if listening.strangers:
            wire = listening.opener(self.inbox, now_ns, address_of(fd))
        else:
            wire = listening.opener(self.inbox, now_ns)
        if wire is not None:
            wire.local = listening.local
            wire.listener = listening.config
        return wire

    cdef void _read(self, int fd, int64_t now_ns, int64_t wall_ns) except *:
        cdef Wire wire = <Wire>self.slots[fd].wire
        cdef ssize_t n
        if self.slots[fd].layers != NULL:
            self._read_through(fd, now_ns, wall_ns)
            return
        n = recv(fd, self.inbox.data, BITE_BYTES if self.core.sated() and not wire.peer else self.inbox.size, MSG_DONTWAIT)
        if n > 0:
            self.slots[fd].flow += n
            try:
                wire.received(n, now_ns, wall_ns)
            except Exception as error:
                self.broker.mistaken(wire, error, now_ns)
            if not wire.wants_bytes():
                self._perform(wire)
        elif n == 0 or not (errno == EAGAIN or errno == EINTR):
            self._peer_left(wire, now_ns)

    cdef void _peer_left(self, Wire wire, int64_t now_ns) except *:
        """Nothing more comes; what it asked last is still answered, for others may see the effect."""
        self.slots[wire.fd].gone = True
        self._interest(wire.fd, 0)
        if wire.owes_answer():
            self.ended.append(wire)
        else:
            self._lose(wire, now_ns)

    cdef void _lose(self, Wire wire, int64_t now_ns) except *:
        self.broker.lost(wire, now_ns)
        if wire.fd >= 0 and self.slots[wire.fd].layers != NULL and wire.closing:
            self._perform(wire)     # layers have a farewell of their own
        elif wire.fd >= 0:
            self._close(wire.fd)

    cdef void _writable(self, int fd) except *:
        cdef Wire wire = <Wire>self.slots[fd].wire
        if self._send(wire):
            wire.drained()
            self._perform(wire)

    cdef bint _send(self, Wire wire) except -1:
        """Writes what waits; whether all of it went."""
        cdef ssize_t n = 0
        if self.slots[wire.fd].layers != NULL:
            return self._send_through(wire)
        if wire.out.len:
            n = send(wire.fd, wire.out.data, wire.out.len, MSG_DONTWAIT | MSG_NOSIGNAL)
            if n < 0:
                n = 0 if errno == EAGAIN or errno == EINTR else <ssize_t>wire.out.len
            self.board.bytes_sent += n
            wire.sent(n)
        return wire.out.len == 0

    cdef void _perform(self, Wire wire) except *:
        cdef int fd = wire.fd
        cdef bint all_sent
        if wire.peer:
            self.board.now_ns = clock_ns(CLOCK_MONOTONIC)  # when members could hear it is what matters
        all_sent = self._send(wire)
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
        if self.slots[fd].stranger and (<Peer>wire).known:
            self._know(fd)
        self._interest(fd, (EPOLLIN if wire.wants_bytes() else 0) | (0 if all_sent else EPOLLOUT))

    # Layers

    cdef void _begin_greeting(self, int fd, Listening listening, int64_t now_ns) except *:
        cdef Layers layers
        try:
            layers = listening.layers()
        except Exception as error:
            close(fd)
            self.broker.count_refusal(UNSPECIFIED_ERROR, f"no layers can be made: {error!r}")
            return
        layers.listening = listening
        tune(fd, UNSENT_BYTES_MAX)
        self._watch(fd, GREETING, EPOLLIN, listening.strangers)
        self.open += 1
        Py_INCREF(layers)
        self.slots[fd].layers = <PyObject*>layers
        listening.greeting[fd] = now_ns
        self.greeters += 1

    cdef void _greet(self, int fd, int64_t now_ns, int64_t wall_ns) except *:
        cdef Layers layers = <Layers>self.slots[fd].layers
        cdef Listening listening = layers.listening
        if layers.costly():
            if listening.costly >= COSTLY_MAX:
                return
            listening.costly += 1
        self._read_through(fd, now_ns, wall_ns)

    cdef void _read_through(self, int fd, int64_t now_ns, int64_t wall_ns) except *:
        """Reads once and hands on all that came of it; greetings and farewells are answered on the way."""
        cdef Layers layers = <Layers>self.slots[fd].layers
        cdef ssize_t asked = BITE_BYTES if self.slots[fd].dear or self.core.sated() else RAW_BYTES
        cdef ssize_t n = recv(fd, self.raw, asked, MSG_DONTWAIT)
        self.slots[fd].flow += max(n, 0)
        if n < 0 and (errno == EAGAIN or errno == EINTR):
            return
        if n > 0:
            layers.feed(self.raw, n)
            if not self._hand_on(fd, layers, now_ns, wall_ns):
                return
        if self.slots[fd].kind == GREETING:
            if n <= 0 or layers.over:
                self._turn_away(fd, layers, 0, None)
            else:
                self._send_sealed(fd, layers)
        elif self.slots[fd].kind == OPEN and (n <= 0 or layers.over):
            self._peer_left(<Wire>self.slots[fd].wire, now_ns)

    cdef bint _hand_on(self, int fd, Layers layers, int64_t now_ns, int64_t wall_ns) except -1:
        """Gives what was fed to the wire, which is made when the greetings are over; whether all goes on."""
        cdef Wire wire
        cdef size_t n
        while True:
            n = layers.next(self.inbox)
            if layers.is_open() and self.slots[fd].kind == GREETING and not self._let_in(fd, layers, now_ns):
                return 0
            if n == 0:
                break
            wire = <Wire>self.slots[fd].wire
            try:
                wire.received(n, now_ns, wall_ns)
            except Exception as error:
                self.broker.mistaken(wire, error, now_ns)
        if layers.fault is not None:
            if self.slots[fd].kind == GREETING:
                self._turn_away(fd, layers, layers.reason, layers.fault)
            else:
                self.broker.count_refusal(layers.reason, layers.fault)
                if (<Wire>self.slots[fd].wire).peer:
                    self.broker.peers.broke_off(<Wire>self.slots[fd].wire, layers.fault)
                self._peer_left(<Wire>self.slots[fd].wire, now_ns)
            return 0
        if self.slots[fd].kind == OPEN:
            wire = <Wire>self.slots[fd].wire
            if layers.out.len or not wire.wants_bytes():
                self._perform(wire)
        return 1

    cdef bint _let_in(self, int fd, Layers layers, int64_t now_ns) except -1:
        """The greetings are over: the broker may know of it."""
        cdef Listening listening = layers.listening
        cdef Wire wire
        name = layers.certificate_name
        if listening.names is not None and name not in listening.names:
            why = f"a certificate of {name!r}, who is none of {', '.join(sorted(listening.names))}"
            self._turn_away(fd, layers, NOT_AUTHORIZED, why)
            return 0
        wire = self._opened(fd, listening, now_ns)
        if wire is None:
            self._turn_away(fd, layers, 0, None)
            return 0
        self._greeted(fd, layers)
        wire.certificate_name = name
        self._give(fd, wire)
        return 1

    cdef void _greeted(self, int fd, Layers layers) except *:
        """One less on the way."""
        cdef Listening listening = layers.listening
        del listening.greeting[fd]
        self.greeters -= 1
        if listening.paused:
            listening.paused = False
            for each, its in self.listeners.items():
                if its is listening:
                    self._interest(each, EPOLLIN)

    cdef void _turn_away(self, int fd, Layers layers, int reason, why) except *:
        """Ends greetings; the peer is told in the words of its layers, as far as the socket takes them now."""
        if why is not None:
            address = address_of(fd)
            self.broker.count_refusal(reason, why, {"address": address} if address else None)
            if (<Listening>layers.listening).strangers and reason == NOT_AUTHORIZED:
                self.broker.peers.turn_away(address, why)
        self._greeted(fd, layers)
        layers.part()
        self._send_sealed(fd, layers)
        self._linger(fd)

    cdef void _hurry_greeters(self, int64_t now_ns, int64_t end_ns) except *:
        cdef Listening listening
        for listening in self.listeners.values():
            while listening.greeting and clock_ns(CLOCK_MONOTONIC) < end_ns:
                fd, since_ns = next(iter(listening.greeting.items()))
                if now_ns - since_ns < listening.time_ns():
                    break
                self._turn_away(fd, <Layers>self.slots[<int>fd].layers, KEEP_ALIVE_TIMEOUT,
                                "no greeting in time: TLS or WebSocket is spoken here")

    cdef bint _send_through(self, Wire wire) except -1:
        """Puts what waits through the layers and writes it; whether all of it went."""
        cdef int fd = wire.fd
        cdef Layers layers = <Layers>self.slots[fd].layers
        cdef size_t n
        while self._send_sealed(fd, layers):
            if layers.fault is not None:
                wire.sent(wire.out.len)     # nobody is there to hear it
            if wire.out.len:
                n = min(wire.out.len, <size_t>SEALED_BYTES_MAX)
                layers.put(wire.out.data, n)
                wire.sent(n)
            elif wire.closing and not layers.parted:
                layers.part()
            else:
                return 1
        return 0

    cdef bint _send_sealed(self, int fd, Layers layers) noexcept:
        """Writes what the layers made; whether all of it went."""
        cdef ssize_t n
        if layers.out.len:
            n = send(fd, layers.out.data, layers.out.len, MSG_DONTWAIT | MSG_NOSIGNAL)
            if n < 0:
                n = 0 if errno == EAGAIN or errno == EINTR else <ssize_t>layers.out.len
            self.board.bytes_sent += n
            layers.sent(n)
        return layers.out.len == 0

    # The end

    cdef void _end_the_ended(self, int64_t now_ns, int64_t end_ns) except *:
        cdef Wire wire
        cdef list still = []
        for wire in self.ended:
            if wire.fd < 0:
                continue
            if clock_ns(CLOCK_MONOTONIC) >= end_ns or (wire.owes_answer() and not wire.closing):
                still.append(wire)
            else:
                self._lose(wire, now_ns)
        self.ended = still

    cdef void _linger(self, int fd) except *:
        """Everything was said: waits for the peer to close, so that nothing said is lost to a reset."""
        self._let_go(fd)
        self.slots[fd].kind = LINGERING
        self.slots[fd].gone = False
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
