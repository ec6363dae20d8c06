"""Replicate jobs, copies to the backup, and everything that waits until somebody else has a message."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from holdfast.broker.awaiting cimport OF_SESSION, Awaited, Awaiting, await_number, awaited_first, awaited_forget
from holdfast.broker.copies cimport (
    ANNOUNCED, FLIGHT, RECEIVED, RELEASED, RESET, TAKEN, begin_frame, put_copy, put_had,
)
from holdfast.broker.identifiers cimport give_back, is_kept, unkeep
from holdfast.broker.jobs cimport Job, JobQueue, jobs_clear, jobs_pop, jobs_push
from holdfast.broker.link cimport Board, Link
from holdfast.broker.marks cimport Marks, mark_noted, marks_age, marks_wait
from holdfast.broker.message cimport (
    CONFIRMED, COPY_SOON, DISPATCHED, DURABLE, ENDED, FINITE, GIVEN, HELD, JOURNALED, OFFERED, OWED, RETAIN, SHARED, TRACKED,
    Had, Message, Route, Topic, had_equal, marked_in_passing, message_drop, message_forget_had, message_hold, message_payload,
    message_props,
)
from holdfast.broker.session cimport AWAITS_FLIGHT, AWAITS_PUBCOMP, LANES, PACKET_IDS, Flight, Session
from holdfast.broker.terms cimport Terms, schedule_key

cdef int64_t OWED_GRACE_NS = 2_000_000  # how long a publisher waits for its subscribers before a copy is made
cdef int64_t COPY_MARGIN_NS = 1_000_000 # how long before its time a copy is sent that waited for subscribers
cdef uint64_t NEVER = 0xFFFFFFFFFFFFFFFFULL     # a number that nobody comes to
cdef uint32_t MARKED_PER_TURN = 1000    # messages whose marks are told at once, so that messages never wait for long
cdef int64_t LONGER = 10                # times as long a copy waits when no publisher waits for its answer

cdef enum:
    MARKED_TOGETHER = 250   # messages whose marks are the same, and told in one frame


cdef class Protection:
    def __dealloc__(self) -> None:
        cdef int wait
        jobs_clear(&self.jobs)
        jobs_clear(&self.later)
        for wait in range(WAITS):
            awaited_forget(&self.patient[wait])
        awaited_forget(&self.sent)
        awaited_forget(&self.written)

    @property
    def jobs_waiting(self) -> int:
        return self.jobs.len

    def oldest_waiting(self) -> int | None:
        """The lowest number of a publication that its subscribers were not offered yet; None: all were."""
        cdef uint64_t oldest = NEVER
        cdef uint64_t at = self.sent.head
        cdef Message* m
        cdef size_t i
        for i in range(self.jobs.len):
            if not self.jobs.jobs[i].message.flags & OFFERED:
                oldest = min(oldest, self.jobs.jobs[i].message.minor)
        while at != self.sent.tail:
            m = self.sent.items[at & (self.sent.cap - 1)].message
            if m != NULL and m.flags & HELD:
                oldest = min(oldest, m.minor)
            at += 1
        return None if oldest == NEVER else oldest

    cdef bint plan(self, Message* m, JobKind kind, uint64_t major) noexcept:
        """Puts a job into the queue, which holds the message from then on."""
        cdef Job job
        job.major = major
        job.minor = (m.minor << 1) | kind
        job.message = m
        job.note = NULL
        job.tag = kind
        if not jobs_push(&self.jobs, job):
            return 0
        message_hold(m)
        return 1

    # The backup

    def set_backup(self, Link backup) -> None:
        """Copies go there from now on, those that another has not confirmed too; None: nobody protects the
        messages, and nothing waits for it."""
        self.board.backup = backup
        self.board.discards_len = 0
        self.board.backup_number = max(1, (self.board.backup_number + 1) & 0xFFFF)
        self.board.frames = 0
        self.confirmed = 0
        self.backup_lags = False
        self.backup_gone = False
        if backup is None:
            self.wait_no_longer()
        else:
            begin_frame(backup, RESET, 0)
            self.copy_again()

    def wait_no_longer(self) -> None:
        """Nobody gets copies: what waits for them is safe when its subscribers were offered it."""
        cdef Job job
        cdef int wait
        self.release_up_to(&self.sent, NEVER, 0)
        while self.later.len:
            job = jobs_pop(&self.later)
            self.board.safe(job.message)
            message_drop(job.message)
        for wait in range(WAITS):
            self.release_up_to(&self.patient[wait], NEVER, 0)

    cdef void copy_again(self) noexcept:
        """What waited for another backup waits for this one."""
        cdef Awaiting before = self.sent
        cdef Awaited* item
        memset(&self.sent, 0, sizeof(Awaiting))
        while before.head != before.tail:
            item = &before.items[before.head & (before.cap - 1)]
            before.head += 1
            if item.message != NULL:
                if item.message.flags & (OWED | HELD) and (
                        item.message.flags & RETAIN or not item.message.flags & DISPATCHED):
                    if not self.copy(item.message):
                        self.plan(item.message, REPLICATE, item.message.major)
                message_drop(item.message)
            if item.who != NULL:
                await_number(&self.sent, self.board.frames, NULL, <object>item.who, item.index, item.turn)
                Py_DECREF(<object>item.who)
        free(before.items)

    def withhold(self, bint withheld) -> None:
        """Whether another broker may serve by now: then it counts for nothing that our backup has a copy."""
        if self.withheld and not withheld:
            self.withheld = False
            self.release_up_to(&self.sent, self.confirmed, CONFIRMED)
        self.withheld = withheld

    def forget_jobs(self) -> None:
        """Another broker serves: what waits here is its to deliver, and nobody is told of it by us."""
        cdef int wait
        jobs_clear(&self.jobs)
        jobs_clear(&self.later)
        for wait in range(WAITS):
            awaited_forget(&self.patient[wait])
        awaited_forget(&self.sent)

    def backup_has(self, uint64_t frames) -> None:
        """The backup confirmed so many frames."""
        self.confirmed = frames
        if not self.withheld:
            self.release_up_to(&self.sent, frames, CONFIRMED)

    def journal_has(self, uint64_t turn) -> None:
        """The journal holds what was noted up to that turn, or nobody is to wait for it."""
        self.board.turn_safe = turn
        self.release_up_to(&self.written, turn, DURABLE)

    def journal_fails(self) -> list[tuple[int, int]]:
        """It takes nothing: who waits for it is refused now, though subscribers may get the message. Returns of the
        QoS 2 messages among them the session's serial and the packet identifier: that is free again."""
        cdef list free_again = []
        cdef Awaited item
        self.journal_refuses = True
        self.board.turn_safe = NEVER
        while self.written.head != self.written.tail:
            item = awaited_first(&self.written)[0]
            self.written.head += 1
            if item.message != NULL:
                self.refuse(item.message, free_again)
            else:
                self.release_from(&item, DURABLE)
        return free_again

    cdef void refuse(self, Message* m, list free_again):
        cdef Link source
        m.flags &= ~DURABLE
        if m.flags & OWED:
            source = <Link>m.source
            source.answer_for(m)
            if m.qos == 2:
                free_again.append((m.origin, m.packet_id))
                self.board.note(RELEASED, m.origin, m.packet_id, 0)
                self.durable_log.append((m.origin, m.packet_id))
            source.unjournaled(m.ack_index, PyBytes_FromStringAndSize(<char*>m.topic.text, m.topic.size))
            if m.flags & OFFERED:
                m.source = NULL
                Py_DECREF(source)
        message_drop(m)

    @property
    def later_ns(self) -> int | None:
        """When the next message or mark goes to the backup unless every subscriber has the message."""
        cdef uint64_t soonest = self.later.jobs[0].major if self.later.len else NEVER
        cdef int wait
        for wait in range(WAITS):
            self.forget_dispatched(&self.patient[wait])
            if self.patient[wait].head != self.patient[wait].tail:
                soonest = min(soonest, awaited_first(&self.patient[wait]).number)
        if marks_wait(&self.board.untold):
            soonest = min(soonest, <uint64_t>self.board.untold.due_ns)
        return None if soonest == NEVER else soonest

    def copy_held(self, Session session not None, size_t room) -> bool:
        """A backup is new: what waits in a session, or is on its way to its client, is copied to it, until so many
        bytes are on their way. Says whether that was all; if not, it goes on where it was."""
        cdef bint all
        self.handing = True
        all = self.copy_messages(session, room)
        self.handing = False
        if all:
            self.tell_exchanges(session)
        return all

    cdef bint copy_messages(self, Session session, size_t room) noexcept:
        cdef int lane
        cdef size_t i
        cdef uint64_t at
        cdef Message* m
        for lane in range(LANES):
            for i in range(session.lanes[lane].len):
                m = session.lanes[lane].jobs[i].message
                if (m.qos or m.flags & FINITE) and not m.flags & (GIVEN | DISPATCHED):
                    if m.copied_to != self.board.backup_number and self.board.backup.out.len > room:
                        return 0
                    self.copy(m)
        at = session.head
        while at != session.tail:
            m = session.flights[at & (session.flights_cap - 1)].message
            if m != NULL and not m.flags & (GIVEN | DISPATCHED):
                if m.copied_to != self.board.backup_number and self.board.backup.out.len > room:
                    return 0
                self.copy(m)
            at += 1
        return 1

    cdef void tell_exchanges(self, Session session):
        """How far the QoS 2 exchanges of a session are."""
        cdef uint64_t at = session.head
        cdef Flight* flight
        while at != session.tail:
            flight = &session.flights[at & (session.flights_cap - 1)]
            if flight.stage >= AWAITS_FLIGHT:
                self.board.note(FLIGHT, session.serial, at % PACKET_IDS + 1, 0 if flight.message == NULL else flight.message.minor)
            if flight.stage >= AWAITS_PUBCOMP:
                self.board.note(TAKEN, session.serial, at % PACKET_IDS + 1, 0)
            at += 1
        if session.announced:
            self.board.note(
                ANNOUNCED, session.serial, (session.announced - 1) % PACKET_IDS + 1, session.head % PACKET_IDS + 1)
        for packet_id in session.received or ():
            self.board.note(RECEIVED, session.serial, packet_id, 0)

    def copy_queued(self) -> None:
        """The same for what waits for its dispatch."""
        cdef size_t i
        cdef Message* m
        self.handing = True
        for i in range(self.jobs.len):
            m = self.jobs.jobs[i].message
            if self.jobs.jobs[i].tag == DISPATCH and (m.qos or m.flags & FINITE):
                m.flags |= TRACKED
                self.copy(m)
        self.handing = False

    cdef bint protect(self, Message* m, int64_t travelled_ns, bint owed, bint will) noexcept:
        """Sees to it that a message which a crash could lose is copied; 0 when memory is gone. Nobody sends a will
        again: it is copied before its dispatch."""
        cdef Topic* topic = m.topic
        cdef uint64_t major
        cdef int64_t due_ns
        if owed:
            m.flags |= TRACKED
        if m.qos == 2:
            m.flags |= TRACKED | HELD
            return self.plan(m, REPLICATE, m.major)
        if owed and m.flags & RETAIN:
            return self.plan(m, REPLICATE, m.major)     # it is state too, which subscribers do not keep
        if will and topic.routes_len and (m.qos or m.flags & FINITE):
            m.flags |= TRACKED
            return self.plan(m, REPLICATE, m.major)
        if topic.copying != COPY_SOON or topic.routes_len == 0:
            return 1
        m.flags |= TRACKED
        due_ns = self.board.now_ns + topic.replicate_ns - travelled_ns
        if self.patience_ns and self.can_wait(m, due_ns, owed):
            return 1
        major = schedule_key(self.policy, <Terms>topic.terms, due_ns, m.minor, 1)
        if self.copy_first:
            major = min(major, m.major)
        topic.last_copy = max(major, topic.last_copy)
        return self.plan(m, REPLICATE, topic.last_copy)

    cdef bint can_wait(self, Message* m, int64_t due_ns, bint owed) noexcept:
        """Lets the copy wait for the dispatch that makes it superfluous, if there is time; copies of a topic
        keep their order. What comes too late for any copy waits too: a broker that is behind and copies what
        it is about to dispatch stays behind."""
        cdef Topic* topic = m.topic
        cdef int64_t now_ns = self.board.now_ns
        cdef int64_t long_ns = now_ns + self.patience_ns * LONGER
        cdef bint too_late = topic.replicate_ns > 0 and due_ns < now_ns
        if now_ns < topic.patient_ns or (not owed and (too_late or long_ns + COPY_MARGIN_NS < due_ns)):
            topic.patient_ns = long_ns
            return await_number(&self.patient[LONG], long_ns, m, None, 0, 0)
        if now_ns + self.patience_ns + COPY_MARGIN_NS < due_ns:
            return await_number(&self.patient[BRIEFLY], now_ns + self.patience_ns, m, None, 0, 0)
        return 0

    cdef void replicate(self, Message* m) noexcept:
        """A replicate job (FRAME, table 3): aborted when the dispatch came first."""
        if self.board.backup is None:
            if m.flags & HELD:
                self.let_dispatch(m)
            self.board.safe(m)
        elif self.board.coordinated and m.flags & DISPATCHED and not (m.flags & RETAIN and m.flags & OWED):
            self.abort(m)
        elif not self.copy(m) and m.flags & (OWED | HELD):
            self.plan(m, REPLICATE, m.major)  # for whoever comes after a backup that lags

    cdef void let_dispatch(self, Message* m) noexcept:
        """It was held until the backup has it."""
        m.flags &= ~HELD
        if m.source != NULL:
            (<Link>m.source).backlog += 1
        self.plan(m, DISPATCH, m.major)

    cdef void abort(self, Message* m) noexcept:
        """Its dispatch made its copy superfluous before that was sent."""
        self.copies_aborted += 1
        (<Terms>m.topic.terms).aborted += 1

    cdef bint copy(self, Message* m) noexcept:
        """Sends a copy to the backup, once."""
        cdef Terms terms = <Terms>m.topic.terms
        if m.copied_to == self.board.backup_number:
            return 1
        if self.backup_gone:
            return not m.flags & (OWED | HELD) or await_number(&self.sent, NEVER, m, None, 0, 0)
        if (self.board.backup.out.len + m.size > self.backup_bytes_max and not self.handing) or not put_copy(
                self.board.backup, m, self.board.wall_ns - self.board.now_ns, not self.handing):
            self.backup_lags = True
            return 0
        if (m.flags & FINITE and terms.period_ns and not m.copied_to and not self.handing
                and self.board.wall_ns - m.created_ns > m.topic.replicate_ns):
            terms.copied_late += 1      # without a period there is no D_r; what a new backup lacks had its copy in time
        m.copied_to = self.board.backup_number
        self.board.frames += 1
        self.copies += 1
        terms.copied += 1
        if m.flags & (OWED | HELD):
            await_number(&self.sent, self.board.frames, m, None, 0, 0)
        if m.had != NULL:
            self.board.frames += put_had(self.board.backup, m.had, &m.minor, 1, 1)
            self.board.log_had(m)
            self.board.marks_told(m.had, 1)
        if m.flags & DISPATCHED and self.board.coordinated:
            self.board.discard(m)
        return 1

    cdef void copy_later(self, Message* m) noexcept:
        """Some subscriber still has to confirm the message: unless it does in time, the backup gets a copy."""
        cdef Job job
        cdef int64_t now_ns = self.board.now_ns
        cdef int64_t due_ns = now_ns + OWED_GRACE_NS
        if not m.flags & (OWED | FINITE) or m.topic.copying == COPY_SOON or (
                m.copied_to == self.board.backup_number):
            return  # what is copied soon has its job, or waits for it
        if m.flags & FINITE:
            due_ns = now_ns + m.topic.replicate_ns - max(<int64_t>0, self.board.wall_ns - m.created_ns) - COPY_MARGIN_NS
            if m.flags & OWED:
                due_ns = min(due_ns, now_ns + OWED_GRACE_NS)
        m.topic.last_due_ns = max(due_ns, now_ns, m.topic.last_due_ns)
        job.major = <uint64_t>m.topic.last_due_ns
        job.minor = m.minor
        job.message = m
        job.note = NULL
        job.tag = REPLICATE
        if jobs_push(&self.later, job):
            message_hold(m)

    cdef void forget_dispatched(self, Awaiting* patient) noexcept:
        """Copies whose dispatch came first are not made."""
        cdef Message* m
        while patient.head != patient.tail:
            m = awaited_first(patient).message
            if not m.flags & DISPATCHED or not self.board.coordinated:
                break
            patient.head += 1
            self.abort(m)
            message_drop(m)

    cdef void copy_when_due(self) noexcept:
        cdef Job job
        cdef Message* m
        cdef Awaiting* patient
        cdef int wait
        for wait in range(WAITS):
            patient = &self.patient[wait]
            self.forget_dispatched(patient)
            while patient.head != patient.tail and <int64_t>awaited_first(patient).number <= self.board.now_ns:
                m = awaited_first(patient).message
                patient.head += 1
                self.replicate(m)
                message_drop(m)
        while self.later.len and <int64_t>self.later.jobs[0].major <= self.board.now_ns:
            job = jobs_pop(&self.later)
            if not job.message.flags & DISPATCHED:
                self.plan(job.message, REPLICATE, job.message.major)
            message_drop(job.message)

    # Marks: who is done with a message, while others are not

    def mark(self, *, bint copied) -> None:
        """Somebody may need to know who had what: a journal, or with `copied` also whoever takes over."""
        self.board.markable |= JOURNALED | ((FINITE | TRACKED) if copied else 0)

    def tell_the_rest(self) -> None:
        """Before this broker ends: backup and journal hear of everything that subscribers have."""
        self.tell_marks(1)
        self.board.tell_discards(True)

    cdef void mark_sent(self, Message* m) noexcept:
        """Somebody holds the message, so it may be copied: those to whom it went with QoS 0 are done with it."""
        cdef Route* route
        cdef Session session
        cdef uint32_t i
        for i in range(m.topic.routes_len):
            route = &m.topic.routes[i]
            if route.flags & (SHARED | ENDED) or (m.qos and route.qos):
                continue
            session = <Session>route.session
            if session.link is not None and session.queued == 0 and not marked_in_passing(
                    m, session.mark_key, session.mark_bit):
                self.board.had(m, session.serial)

    cdef void tell_marks(self, bint all) noexcept:
        """A bounded number of those that have waited, when it is time; or all."""
        cdef Board board = self.board
        cdef Marks* untold = &board.untold
        cdef uint32_t told, left = MARKED_PER_TURN
        if not marks_wait(untold) or (board.now_ns < untold.due_ns and not all):
            return
        mark_noted(untold)
        while True:
            while untold.aged.next != &untold.aged:
                if left == 0 and not all:
                    return
                told = self.tell_run(MARKED_TOGETHER if all else min(left, <uint32_t>MARKED_TOGETHER))
                if told == 0:
                    untold.due_ns = board.now_ns + untold.wait_ns
                    return
                left -= min(left, told)
            if left < MARKED_PER_TURN:
                board.marks_lag_ns = board.now_ns - untold.aged_ns
                board.marks_lag_max_ns = max(board.marks_lag_ns, board.marks_lag_max_ns)
            if not marks_age(untold) or (board.now_ns < untold.aged_ns + 2 * untold.wait_ns and not all):
                break
        untold.due_ns = board.now_ns + untold.wait_ns

    cdef uint32_t tell_run(self, uint32_t most) noexcept:
        """Tells the marks of the oldest messages of which the same is to be told, so many at most: they share it from
        then on. Returns of how many; 0 when the backup lags."""
        cdef Board board = self.board
        cdef bint copied = board.backup is not None and not self.backup_gone
        cdef uint64_t numbers[MARKED_TOGETHER]
        cdef uint32_t count = 0, messages = 0
        cdef Had* first = board.untold.aged.next
        cdef Had* had
        cdef Message* m = first.owners.message
        if copied and m.copied_to == board.backup_number and board.backup.out.len > self.backup_bytes_max:
            self.backup_lags = True
            return 0
        while True:
            messages += 1
            if copied and m.copied_to == board.backup_number:
                numbers[count] = m.minor
                count += 1
            if m.flags & JOURNALED:
                board.log_had(m)
            had = first.next
            if messages == most or had == &board.untold.aged or not had_equal(had, first):
                break
            m = had.owners.message
            message_forget_had(m)
            m.had = first
        if count:
            board.frames += put_had(board.backup, first, numbers, count, 0)
        board.marks_told(first, messages)
        first.owners.refs = messages
        return messages

    # What must not happen before somebody else has a message

    cdef void release_up_to(self, Awaiting* awaiting, uint64_t number, uint16_t flag) noexcept:
        cdef Awaited item
        while awaiting.head != awaiting.tail:
            item = awaiting.items[awaiting.head & (awaiting.cap - 1)]
            if item.number > number:
                break
            awaiting.head += 1
            self.release_from(&item, flag)

    cdef void release_from(self, Awaited* awaited, uint16_t flag) noexcept:
        cdef Message* m = awaited.message
        if m != NULL:
            if flag == DURABLE:
                m.flags &= ~DURABLE
            else:
                m.flags |= flag
                if m.flags & HELD:
                    self.let_dispatch(m)
            self.board.safe(m)
            message_drop(m)
        if awaited.who == NULL:
            return
        if flag != DURABLE:
            self.tell_when_kept(<object>awaited.who, awaited.index, awaited.turn)
        elif awaited.index & OF_SESSION:
            (<Session>awaited.who).behind -= 1
            (<Session>awaited.who).release(awaited.index & 0xFFFF)
        else:
            (<Link>awaited.who).settle(awaited.index, 0)
        Py_DECREF(<object>awaited.who)

    cdef void tell_when_kept(self, object who, uint32_t index, uint64_t turn) noexcept:
        """Whoever takes over knows the next step of a QoS 2 exchange: the journal may have to know it too. Steps of a
        session keep their order: none is taken while an earlier one waits."""
        if index & OF_SESSION:
            if turn <= self.board.turn_safe and not (<Session>who).behind:
                (<Session>who).release(index & 0xFFFF)
            elif await_number(&self.written, turn, NULL, who, index, 0):
                (<Session>who).behind += 1
        elif turn > self.board.turn_safe:
            await_number(&self.written, turn, NULL, who, index, 0)
        else:
            (<Link>who).settle(index, 0)

    cdef void taken(self, Session session, uint16_t packet_id) noexcept:
        """A subscriber has a QoS 2 message: it is released when the backup knows, so that it is not sent again."""
        cdef uint64_t turn = session.taken_turn(packet_id)
        cdef uint32_t index = <uint32_t>(OF_SESSION | packet_id)
        if self.board.backup is None or (self.confirmed >= self.board.frames and not self.withheld):
            self.tell_when_kept(session, index, turn)
        else:
            await_number(&self.sent, self.board.frames, NULL, session, index, turn)

    cdef void released(self, Link link, Session session, uint16_t packet_id, uint32_t index):
        """A publisher gave a QoS 2 identifier back: it hears so when backup and journal know."""
        cdef uint64_t turn = self.board.turn if is_kept(session, packet_id) else 0
        self.over(session, packet_id)
        if self.board.backup is None:
            self.tell_when_kept(link, index, turn)
        else:
            await_number(&self.sent, self.board.frames, NULL, link, index, turn)

    cdef void over(self, Session session, uint16_t packet_id):
        """A publisher's exchange is over; backup and journal are told."""
        give_back(session, packet_id)
        self.board.note(RELEASED, session.serial, packet_id, 0)
        if is_kept(session, packet_id):
            unkeep(session, packet_id)
            session.released_turn = self.board.turn
            if self.durable_log is not None:
                self.durable_log.append((session.serial, packet_id))

    cdef void keep(self, Message* m):
        """The journal takes a copy; the publisher hears of the message when it is there."""
        self.durable_log.append((
            m.minor, m.created_ns, m.qos, m.flags & RETAIN, m.origin,
            PyBytes_FromStringAndSize(<char*>m.topic.text, m.topic.size),
            PyBytes_FromStringAndSize(<char*>message_props(m), m.props_size),
            PyBytes_FromStringAndSize(<char*>message_payload(m), m.payload_size),
            m.expires_ns + self.board.wall_ns - self.board.now_ns if m.expires_ns else 0,
            m.packet_id if m.qos == 2 else 0))
        m.flags |= JOURNALED | TRACKED
        if m.flags & OWED:
            m.flags |= DURABLE
            await_number(&self.written, self.board.turn, m, None, 0, 0)
