"""One client's session, compiled: the send window and the deadline-ordered queue."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF, Py_XDECREF, Py_XINCREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from holdfast.broker.awaiting cimport OF_SESSION, await_number
from holdfast.broker.copies cimport ANNOUNCED, FLIGHT, LANDED, TAKEN
from holdfast.broker.giving_way cimport end_run, forget_runs, make_room, room_among_all
from holdfast.broker.handing_on cimport hand_on, part_with, part_with_flight
from holdfast.broker.histogram cimport add_to
from holdfast.broker.identifiers cimport forget_received
from holdfast.broker.jobs cimport Job, JobQueue, job_before, jobs_pop, jobs_push
from holdfast.broker.link cimport OUT_HIGH, Board, Link, is_news
from holdfast.broker.message cimport (
    FINITE, JOURNALED, RECOVERED, TRACKED, Ledger, Message, Topic, marked_in_passing, message_drop, message_had,
    message_hold)
from holdfast.broker.pumping cimport LARGE_BYTES, SPREAD_BYTES_MAX
from holdfast.broker.reading cimport IN_DOUBT, READABLE, WITHHELD, Judged
from holdfast.broker.shares cimport (
    Share, pool_join, pool_leave, share_fly, share_hold, share_land, share_let_go, share_total)
from holdfast.broker.terms cimport Terms

cdef uint8_t PUBREL = 0x62
cdef uint8_t DUP = 0x08


cdef bytes name_of(Topic* topic):
    return PyBytes_FromStringAndSize(<char*>topic.text, topic.size)


cdef inline void count_sent(Session self, Message* m, uint8_t bits) noexcept:
    """A message was written to the client, for the first time."""
    cdef Terms terms = <Terms>m.topic.terms
    cdef int64_t latency_ns
    self.sent += 1
    self.board.messages_sent += 1
    terms.delivered += 1
    if bits & AGAIN:
        return
    latency_ns = self.board.wall_ns - m.created_ns
    if self.board.now_ns > m.deadline_ns or latency_ns > m.topic.dispatch_ns:  # it may have come too late already
        if m.created_ns < self.board.took_over_ns:
            return  # its publisher sent it again: whether its subscribers had it in time, they know alone
        if bits & AWAY:
            terms.while_away += 1
            return
        terms.late += 1
        terms.late_ns = self.board.wall_ns
    if self.board.counting:
        add_to(&terms.latency, latency_ns)


cdef class Payer:
    """Who pays for what sessions take of memory."""

    def __init__(self, str name not None) -> None:
        self.name = name


@cython.final
cdef class Session:
    def __init__(self, str client_id not None, uint64_t serial, Board board not None, *, str key not None,
                 uint32_t queue_messages_max, size_t queue_bytes_max) -> None:
        self.client_id = client_id
        self.serial = serial
        self.mark_key, self.mark_bit = serial >> 6, <uint64_t>1 << (serial & 63)
        self.key = key
        self.account = <uint64_t>hash(key) | 1    # 0 is nobody's
        self.board = board
        self.window = PACKET_IDS
        self.queue_messages_max = queue_messages_max
        self.queue_bytes_max = queue_bytes_max
        self.subscriptions = {}
        if self.share.pool == NULL and not pool_join(board.pool, &self.share, self):
            raise MemoryError

    def __dealloc__(self) -> None:
        self._drop_everything()
        pool_leave(&self.share)

    @property
    def held_bytes(self) -> int:
        """What it holds of what all sessions may hold together, in its queue and on the way to its client."""
        return share_total(&self.share)

    def clear(self) -> None:
        """The session ends: nothing that waits for its client is kept."""
        self._drop_everything()
        self.board.log_flight(0, self.serial, 0)
        forget_received(self)
        forget_runs(self)
        self.recovered = None

    cpdef void give_up(self, bint at_once=True):
        """More waits for the client than may: it is sent no more, and what it has not confirmed counts as dropped.
        What waits for a member of a shared group stays until it is handed on, if that need not be at once."""
        self.window = 0
        self.given_up = True
        if at_once or not self.in_group:
            self._drop_everything()

    cpdef bint clear_some(self, uint64_t most) noexcept:
        """Lets go of so many messages at most, before the end, or hands fewer on; says whether more are left."""
        return self.part_with_some(most, self.in_group)

    cdef bint part_with_some(self, uint64_t most, bint hands_on) noexcept:
        cdef int i
        cdef Flight* flight
        cdef Job* job
        cdef uint64_t cost = 1
        while self.head != self.tail and most:
            flight = &self.flights[self.head & (self.flights_cap - 1)]
            if hands_on:
                cost = part_with_flight(self, flight)
            elif self.given_up and flight.message != NULL:
                self.drop(flight.message)
            self.land(flight)
            self.head += 1
            most -= min(most, cost)
        for i in range(LANES):
            while self.lanes[i].len and most:
                job = &self.lanes[i].jobs[0]
                if hands_on:
                    cost = part_with(self, job.message, <PyObject*>job.note)
                elif self.given_up:
                    self.drop(job.message)
                self.forget_first(&self.lanes[i])
                most -= min(most, cost)
        self.resend = self.tail
        return self.queued > 0 or self.head != self.tail

    cdef void _drop_everything(self) noexcept:
        cdef int i
        self.part_with_some(<uint64_t>-1, False)
        for i in range(LANES):
            free(self.lanes[i].jobs)
            self.lanes[i].jobs = NULL
            self.lanes[i].cap = 0
        self.forget_flights()

    def attach(self, Link link not None, uint32_t window) -> None:
        """The client is connected: what was on its way goes again, then what waited."""
        self.link = link
        link.serial = self.serial
        link.account = self.account
        self.awaited_ns = 0
        self.window = min(window, <uint32_t>PACKET_IDS)
        self.resend = self.head
        self.impatient = self.reported = self.given_up = self.missed = False
        if self.queued or self.resend != self.tail:
            self.want_pump()

    def detach(self, bint ends=False) -> None:
        """The client is gone; QoS 0 messages that wait for it are let go, unless the session ends and hands them on."""
        cdef uint32_t i
        cdef size_t at
        for i in range(0 if self.link is None else self.link.handed_len):
            self.miss(self.link.handed[i])
        self.link = None
        for i in range(LANES):
            if i & 1:
                for at in range(self.lanes[i].len):
                    self.lanes[i].jobs[at].tag |= AWAY << 2
                continue
            while self.lanes[i].len and not (ends and self.in_group):
                self.miss(self.lanes[i].jobs[0].message)
                self.forget_first(&self.lanes[i])
        self.release_publishers()

    cdef void miss(self, Message* m) noexcept:
        """This broker gives its client a message no more, but newer ones: nor may whoever takes over."""
        if m.flags & self.board.markable:
            self.missed = True
            self.board.had(m, self.serial)

    cdef void let_go(self, Message* m) noexcept:
        """This session is done with a message."""
        if self.board is not None:  # or else everything is going
            self.board.took(m)
        message_drop(m)

    cdef void want_pump(self) noexcept:
        if not self.pumping:
            self.pumping = self.board.wait_in(&self.board.pumps, self)

    cdef bint window_open(self) noexcept:
        return (self.in_flight < self.window and self.tail - self.head < PACKET_IDS
                and self.share.flying < self.queue_bytes_max and (self.tail - self.head < self.flights_cap or self.may_grow()))

    cpdef void weigh(self, int64_t more) noexcept:
        """It takes so much more of memory, or less, and whoever pays for it."""
        if self.board is not None:  # or else everything is going
            self.board.room.others += more
            self.weight += more
            if self.payer is not None:
                self.payer.weight += more

    cdef bint may_take(self, int64_t more) noexcept:
        return self.board.room.grants(self.weight, -1 if self.payer is None else self.payer.weight, more)

    cdef bint may_grow(self) noexcept:
        """Whether there is room for more deliveries at once; for a few there always is."""
        return self.flights_cap == 0 or self.may_take(self.flights_cap * sizeof(Flight))

    cdef void forget_flights(self) noexcept:
        free(self.flights)
        self.flights = NULL
        self.weigh(-<int64_t>(self.flights_cap * sizeof(Flight)))
        self.flights_cap = 0

    # A message for this client

    cdef bint has(self, Message* m) noexcept:
        """Whether this session is done with a message that another broker dispatched, or goes on with it here."""
        return message_had(m, self.serial) or (self.recovered is not None and m.minor in self.recovered)

    cdef void offer(self, Message* m, uint8_t qos, uint8_t bits, PyObject* ids) noexcept:
        """Sends the message now if nothing is in its way, else queues it by its key."""
        if m.flags & RECOVERED and self.has(m):
            return
        if self.link is None:
            if not self.over and (qos or (m.flags & FINITE and self.board.now_ns < self.awaited_ns)):
                self.queue(m, qos, bits | AWAY, ids)
            else:
                self.miss(m)
            return
        if self.reading is not None and self.withholds(m, qos, bits, ids):
            return
        if (self.queued or self.resend != self.tail or not self.link.writable
                or self.link.out.len >= OUT_HIGH or (qos and not self.window_open())):
            self.queue(m, qos, bits, ids)
        elif m.size >= LARGE_BYTES and self.board.spread >= SPREAD_BYTES_MAX:
            self.queue(m, qos, bits, ids)
            self.want_pump()
        elif qos and self.share.pool.bytes > self.share.pool.soft and not room_among_all(self, m):
            self.drop(m)
        else:
            if self.runs is not None and m.flags & FINITE:
                end_run(self, m)
            self.send(m, qos, bits, ids)
            if m.size >= LARGE_BYTES:
                self.board.spread += m.size

    cdef bint withholds(self, Message* m, uint8_t qos, uint8_t bits, PyObject* ids) noexcept:
        """Whether a message is not to be sent now: its client may not read it any more, or that is in doubt."""
        cdef Judged judged
        if m.minor > self.reading.until and not self.queued and self.resend == self.tail:
            self.reading = None
            return 0
        judged = self.reading.judge(self.board, m)
        if judged == IN_DOUBT:
            self.queue(m, qos, bits, ids)
            self.want_pump()
        return judged != READABLE

    cdef void send(self, Message* m, uint8_t qos, uint8_t bits, PyObject* ids) noexcept:
        if m.expires_ns and self.board.now_ns >= m.expires_ns:
            (<Terms>m.topic.terms).expired += 1
            return
        if qos == 0:
            if not self.link.put_publish(m, 0, 0, bits, ids):
                self.drop(m)
                return
            if m.flags & TRACKED:
                self.link.hand(m)
            elif m.holders and m.flags & self.board.markable:
                self.board.had(m, self.serial)
        elif not self.fly(m, qos, bits, ids):
            self.drop(m)
            return
        elif self.flights[(self.tail - 1) & (self.flights_cap - 1)].stage == AWAITS_FLIGHT:
            return  # it is counted when it leaves
        count_sent(self, m, bits)

    cdef bint fly(self, Message* m, uint8_t qos, uint8_t bits, PyObject* ids) noexcept:
        """Gives a packet identifier and sends; the message is kept until it is acknowledged. With QoS 2 backup and
        journal hear of the identifier first: whoever goes on must know under which the client may have it."""
        cdef Flight* flight
        cdef uint16_t packet_id = self.tail % PACKET_IDS + 1
        cdef uint64_t turn = self.known_with(m) if qos == 2 else 0
        cdef bint waits = qos == 2 and (
            self.board.backup is not None or turn > self.board.turn_safe or self.behind)
        if self.tail - self.head >= self.flights_cap and not self.room_for_flight():
            return 0
        if not waits and not self.link.put_publish(
                m, qos, packet_id, bits | DUP if m.flags & RECOVERED else bits, ids):
            return 0
        flight = &self.flights[self.tail & (self.flights_cap - 1)]
        message_hold(m)
        share_fly(&self.share, m)
        m.holders += 1
        Py_XINCREF(ids)
        flight.message = m
        flight.ids = ids
        flight.bits = bits
        flight.notes = 0
        flight.stage = AWAITS_PUBACK if qos == 1 else AWAITS_FLIGHT if waits else AWAITS_PUBREC
        self.tail += 1
        self.resend = self.tail
        self.in_flight += 1
        if qos == 2 and m.flags & JOURNALED:
            flight.notes = LOGGED
            self.board.log_flight(m.minor, self.serial, packet_id)
        if waits:
            self.board.note(FLIGHT, self.serial, packet_id, m.minor)
            if self.board.backup is not None:
                if not await_number(self.board.sent, self.board.frames, NULL, self, <uint32_t>(OF_SESSION | packet_id), turn):
                    self.take_off(flight, packet_id)
            elif await_number(self.board.written, turn, NULL, self, <uint32_t>(OF_SESSION | packet_id), 0):
                self.behind += 1
            else:
                self.take_off(flight, packet_id)
        return 1

    cdef uint64_t known_with(self, Message* m) noexcept:
        """The turn of the journal with which it knows enough of the next identifier."""
        cdef uint64_t ahead = min(max(<uint64_t>IDS_AHEAD, <uint64_t>self.in_flight), <uint64_t>IDS_AHEAD_MAX)
        if self.tail + ahead > self.announced:
            self.announce(ahead)
        if m.flags & JOURNALED:
            return self.board.turn
        return self.announced_turn if self.tail >= self.announced_safe else 0

    cdef void announce(self, uint64_t ahead) noexcept:
        """Heir and journal hear up to where identifiers may be given, and from where on they may be in use."""
        cdef uint64_t up_to = min(self.tail + 2 * ahead, self.head + PACKET_IDS)
        if self.announced_turn <= self.board.turn_safe:
            self.announced_safe = self.announced
        self.announced_turn = self.board.turn
        self.announced = up_to
        self.board.note(ANNOUNCED, self.serial, (up_to - 1) % PACKET_IDS + 1, self.head % PACKET_IDS + 1)
        self.board.log_announced(self.serial, self.head % PACKET_IDS + 1, (up_to - 1) % PACKET_IDS + 1)

    cdef bint room_for_flight(self) noexcept:
        cdef Flight* grown
        cdef uint32_t cap
        cdef uint64_t i = self.head
        if self.tail - self.head < self.flights_cap:
            return 1
        cap = self.flights_cap * 2 if self.flights_cap else 8
        grown = <Flight*>malloc(cap * sizeof(Flight))   # fly() and its like write every field of what they use
        if grown == NULL:
            return 0
        while i != self.tail:
            grown[i & (cap - 1)] = self.flights[i & (self.flights_cap - 1)]
            i += 1
        free(self.flights)
        self.weigh((cap - self.flights_cap) * sizeof(Flight))
        self.flights = grown
        self.flights_cap = cap
        return 1

    # The queue, when the client cannot take it now

    cdef void queue(self, Message* m, uint8_t qos, uint8_t bits, PyObject* ids) noexcept:
        cdef Job job
        cdef int lane = (1 if qos else 0) | (2 if m.flags & FINITE else 0)
        if (self.queued >= self.queue_messages_max or self.queued_bytes + m.size > self.queue_bytes_max or self.reported
                or self.share.pool.bytes + m.size > self.share.pool.soft) and not make_room(self, m):
            if not self.reported or not hand_on(self, m, ids):
                self.drop(m)
            return
        if self.runs is not None and m.flags & FINITE:
            end_run(self, m)
        job.major = m.major
        job.minor = m.minor
        job.message = m
        job.note = ids
        job.tag = qos | (bits << 2)
        if not jobs_push(&self.lanes[lane], job):
            return
        message_hold(m)
        share_hold(&self.share, m)
        m.holders += 1
        Py_XINCREF(ids)
        self.queued += 1
        self.queued_bytes += m.size
        if not self.impatient and self.link is not None and (
                self.queued * 4 > self.queue_messages_max * 3 or self.queued_bytes * 4 > self.queue_bytes_max * 3):
            self.hold_back(m, qos)

    cdef void drop(self, Message* m) noexcept:
        """Counts a message that this session's client does not get."""
        self.board.messages_dropped += 1
        (<Terms>m.topic.terms).dropped += 1
        self.miss(m)

    cdef void forget_first(self, JobQueue* lane) noexcept:
        cdef Job job = jobs_pop(lane)
        self.queued -= 1
        self.queued_bytes -= job.message.size
        share_let_go(&self.share, job.message)
        self.let_go(job.message)
        Py_XDECREF(<PyObject*>job.note)

    cdef void pump(self) noexcept:
        """Moves on what waits, smallest key first, as far as the socket and the window allow."""
        cdef Job job
        cdef int i, best
        cdef Judged judged
        self.pumping = False
        if self.link is None or not self.link.writable:
            return
        if self.resend != self.tail:
            self.send_again()
        while self.queued and self.link.out.len < OUT_HIGH and self.resend == self.tail:
            best = -1
            for i in range(LANES):
                if self.lanes[i].len == 0 or (i & 1 and not self.window_open()):
                    continue
                if best < 0 or job_before(&self.lanes[i].jobs[0], &self.lanes[best].jobs[0]):
                    best = i
            if best < 0:
                break
            if self.reading is not None:
                judged = self.reading.judge(self.board, self.lanes[best].jobs[0].message)
                if judged == IN_DOUBT:
                    self.want_pump()
                    break
                if judged == WITHHELD:
                    self.forget_first(&self.lanes[best])
                    continue
            job = jobs_pop(&self.lanes[best])
            self.queued -= 1
            self.queued_bytes -= job.message.size
            self.send(job.message, job.tag & 3, job.tag >> 2, <PyObject*>job.note)
            share_let_go(&self.share, job.message)
            self.let_go(job.message)
            Py_XDECREF(<PyObject*>job.note)
        if self.holding is not None and (
                self.queued * 2 < self.queue_messages_max and self.queued_bytes * 2 < self.queue_bytes_max):
            self.release_publishers()
        if self.queued == 0:
            self.impatient = False
            if self.reading is not None and self.reading.settled and self.resend == self.tail:
                self.reading = None
            for i in range(LANES):
                if self.lanes[i].cap > 64:
                    free(self.lanes[i].jobs)
                    self.lanes[i].jobs = NULL
                    self.lanes[i].cap = 0

    cdef void send_again(self) noexcept:
        """After a reconnect: every unacknowledged packet in its order, with its own identifier, and no more
        messages at once than the client takes now."""
        cdef Flight* flight
        cdef uint16_t packet_id
        cdef uint32_t outstanding = 0
        cdef uint64_t i = self.head
        cdef Judged judged
        while i != self.resend:
            outstanding += self.flights[i & (self.flights_cap - 1)].stage != DONE  # room comes with PUBCOMP
            i += 1
        while self.resend != self.tail and self.link.out.len < OUT_HIGH:
            flight = &self.flights[self.resend & (self.flights_cap - 1)]
            if AWAITS_PUBACK <= flight.stage <= AWAITS_PUBREC and outstanding >= self.window:
                return
            outstanding += flight.stage != DONE
            packet_id = self.resend % PACKET_IDS + 1
            judged = READABLE
            if self.reading is not None and AWAITS_PUBACK <= flight.stage <= AWAITS_PUBREC:
                judged = self.reading.judge(self.board, flight.message)
            if judged == IN_DOUBT:
                self.want_pump()
                return
            if judged == WITHHELD:
                self.landed(flight, packet_id)
            elif flight.stage == AWAITS_PUBCOMP:
                self.link.put_ack(PUBREL, packet_id, 0)
                if flight.notes & GUESSED:  # once is enough: who holds none may not like to be asked
                    self.land(flight)
            elif (flight.stage == AWAITS_PUBACK or flight.stage == AWAITS_PUBREC) and not self.link.put_publish(
                    flight.message, 1 if flight.stage == AWAITS_PUBACK else 2, packet_id,
                    flight.bits | DUP, flight.ids):
                self.landed(flight, packet_id)
            flight.notes &= ~UNSENT
            self.resend += 1
        if self.head != self.tail and self.flights[self.head & (self.flights_cap - 1)].stage == DONE:
            self._advance()

    # What the client says of what was sent to it

    cdef Flight* flight_of(self, uint16_t packet_id) noexcept:
        cdef uint64_t first = self.head % PACKET_IDS, at = <uint64_t>packet_id - 1
        cdef uint64_t offset = at - first if at >= first else at + PACKET_IDS - first
        cdef Flight* flight
        if packet_id == 0 or offset >= self.tail - self.head:
            return NULL
        flight = &self.flights[(self.head + offset) & (self.flights_cap - 1)]
        return NULL if flight.stage == DONE else flight

    cdef void land(self, Flight* flight) noexcept:
        """The delivery of one message is over: its identifier is free again."""
        if flight.stage != DONE:
            self.in_flight -= 1
        if flight.message != NULL:
            self.unload(flight)
        Py_XDECREF(flight.ids)
        flight.ids = NULL
        flight.stage = DONE

    cdef void unload(self, Flight* flight) noexcept:
        """Its message is with the client, or never will be."""
        share_land(&self.share, flight.message)
        self.let_go(flight.message)
        flight.message = NULL

    cdef void acked(self, uint16_t packet_id) noexcept:
        """PUBACK. One for an unknown identifier is a late repetition and means nothing."""
        cdef Flight* flight = self.flight_of(packet_id)
        cdef Message* m
        if flight != NULL and flight.stage == AWAITS_PUBACK:
            m = flight.message
            if not marked_in_passing(m, self.mark_key, self.mark_bit) and m.holders > 1 and m.flags & self.board.markable:
                self.board.had(m, self.serial)
            self.land(flight)
            self._advance()

    cdef bint received_by_client(self, uint16_t packet_id, uint8_t reason) noexcept:
        """PUBREC. Returns 0 when no such message is on its way."""
        cdef Flight* flight = self.flight_of(packet_id)
        if flight == NULL or flight.stage < AWAITS_PUBREC:
            return 0
        if flight.stage == AWAITS_PUBREC:
            self.board.note(TAKEN, self.serial, packet_id, flight.message.minor)
            if is_news(self.board, flight.message):
                self.board.had_at_once(flight.message, self.serial)
            self.unload(flight)
            flight.stage = AWAITS_BACKUP
        if reason >= 0x80:
            flight.stage = AWAITS_PUBCOMP
            self.completed(packet_id)
        return 1

    cdef void take_off(self, Flight* flight, uint16_t packet_id) noexcept:
        """PUBLISH leaves, unless it is among those that go again to a client that came back."""
        cdef Message* m = flight.message
        cdef uint64_t behind = (<uint64_t>packet_id - 1 + PACKET_IDS - self.resend % PACKET_IDS) % PACKET_IDS
        flight.stage = AWAITS_PUBREC
        if self.link is None or behind < self.tail - self.resend:
            flight.notes |= UNSENT
            return
        if self.link.put_publish(m, 2, packet_id, flight.bits | DUP if m.flags & RECOVERED else flight.bits, flight.ids):
            count_sent(self, m, flight.bits)
        else:
            self.drop(m)
            self.landed(flight, packet_id)
            self._advance()

    cdef uint64_t taken_turn(self, uint16_t packet_id) noexcept:
        """The turn with which the journal knows that the client has it, if it knows of the delivery at all."""
        cdef Flight* flight = self.flight_of(packet_id)
        return self.board.turn if flight != NULL and flight.notes & LOGGED else 0

    cdef void release(self, uint16_t packet_id) noexcept:
        """Whoever takes over knows how far the delivery is: the client gets it, or may forget its identifier."""
        cdef Flight* flight = self.flight_of(packet_id)
        if flight == NULL:
            return
        if flight.stage == AWAITS_FLIGHT:
            self.take_off(flight, packet_id)
        elif flight.stage >= AWAITS_PUBCOMP:
            flight.stage = AWAITS_PUBCOMP
            if self.link is not None:
                self.link.put_ack(PUBREL, packet_id, 0)

    cdef void completed(self, uint16_t packet_id) noexcept:
        """PUBCOMP."""
        cdef Flight* flight = self.flight_of(packet_id)
        if flight != NULL and flight.stage == AWAITS_PUBCOMP:
            self.landed(flight, packet_id)
            self._advance()

    cdef void landed(self, Flight* flight, uint16_t packet_id) noexcept:
        """Its identifier is free, and whoever takes over hears so."""
        if flight.stage != AWAITS_PUBACK:
            self.board.note(LANDED, self.serial, packet_id, 0)
            if flight.notes & LOGGED:
                self.board.log_flight(0, self.serial, packet_id)
        self.land(flight)

    cdef void _advance(self) noexcept:
        while self.head != self.tail and self.flights[self.head & (self.flights_cap - 1)].stage == DONE:
            self.head += 1
        if self.head == self.tail and self.flights_cap > 64:
            self.forget_flights()
        if self.resend - self.head > self.tail - self.head:
            self.resend = self.head
        if self.queued or self.resend != self.tail:
            self.want_pump()
