"""Replicate jobs, copies to the backup, and everything that waits until somebody else has a message."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_XDECREF, Py_XINCREF, PyObject
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from holdfast.broker.copies cimport FLIGHT, RECEIVED, RELEASED, TAKEN, put_copy
from holdfast.broker.jobs cimport Job, JobQueue, jobs_clear, jobs_pop, jobs_push
from holdfast.broker.link cimport Board, Link
from holdfast.broker.message cimport (
    CONFIRMED, COPY_SOON, DISPATCHED, DURABLE, FINITE, GIVEN, HELD, JOURNALED, OWED, RETAIN, TRACKED, Message, Topic,
    message_drop, message_hold, message_payload, message_props,
)
from holdfast.broker.session cimport AWAITS_PUBCOMP, AWAITS_PUBREC, LANES, PACKET_IDS, Flight, Session
from holdfast.broker.terms cimport Terms, schedule_key

cdef int64_t OWED_GRACE_NS = 2_000_000  # how long a publisher waits for its subscribers before a copy is made
cdef int64_t COPY_MARGIN_NS = 1_000_000 # how long before its time a copy is sent that waited for subscribers
cdef int64_t LONGER = 10                # times as long a copy waits when no publisher waits for its answer


cdef void forget(Awaiting* awaiting) noexcept:
    """Everything is going: nobody is told any more."""
    cdef Awaited* item
    while awaiting.head != awaiting.tail:
        item = &awaiting.items[awaiting.head & (awaiting.cap - 1)]
        awaiting.head += 1
        if item.message != NULL:
            message_drop(item.message)
        Py_XDECREF(item.link)
    free(awaiting.items)
    awaiting.items = NULL
    awaiting.cap = 0


cdef inline Awaited* first_of(Awaiting* awaiting) noexcept nogil:
    return &awaiting.items[awaiting.head & (awaiting.cap - 1)]


cdef class Protection:
    def __dealloc__(self) -> None:
        cdef int wait
        jobs_clear(&self.jobs)
        jobs_clear(&self.later)
        for wait in range(WAITS):
            forget(&self.patient[wait])
        forget(&self.sent)
        forget(&self.written)

    @property
    def jobs_waiting(self) -> int:
        return self.jobs.len

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
        """Copies go there from now on; None: nobody protects the messages, and nothing waits for it."""
        cdef Job job
        cdef int wait
        self.board.backup = None
        self.board.discards_len = 0
        self.release_up_to(&self.sent, 0xFFFFFFFFFFFFFFFFULL, 0)
        while self.later.len:
            job = jobs_pop(&self.later)
            self.board.safe(job.message)
            message_drop(job.message)
        for wait in range(WAITS):
            self.release_up_to(&self.patient[wait], 0xFFFFFFFFFFFFFFFFULL, 0)
        self.board.backup = backup
        self.board.backup_number = max(1, (self.board.backup_number + 1) & 0xFFFF)
        self.board.frames = 0
        self.backup_lags = False

    def forget_jobs(self) -> None:
        """Another broker serves: what waits here is its to deliver, and nobody is told of it by us."""
        cdef int wait
        jobs_clear(&self.jobs)
        jobs_clear(&self.later)
        for wait in range(WAITS):
            forget(&self.patient[wait])
        forget(&self.sent)

    def backup_has(self, uint64_t frames) -> None:
        """The backup confirmed so many frames."""
        self.release_up_to(&self.sent, frames, CONFIRMED)

    def journal_has(self, uint64_t number) -> None:
        """The journal holds every durable message up to that publication number."""
        self.release_up_to(&self.written, number, DURABLE)

    @property
    def later_ns(self) -> int | None:
        """When the next message goes to the backup unless every subscriber has it."""
        cdef uint64_t soonest = self.later.jobs[0].major if self.later.len else 0xFFFFFFFFFFFFFFFFULL
        cdef int wait
        for wait in range(WAITS):
            self.forget_dispatched(&self.patient[wait])
            if self.patient[wait].head != self.patient[wait].tail:
                soonest = min(soonest, first_of(&self.patient[wait]).number)
        return None if soonest == 0xFFFFFFFFFFFFFFFFULL else soonest

    def copy_held(self, Session session not None) -> None:
        """A backup is new: what waits in a session, or is on its way to its client, is copied to it."""
        cdef int lane
        cdef size_t i
        cdef uint64_t at
        cdef Message* m
        cdef Flight* flight
        for lane in range(LANES):
            for i in range(session.lanes[lane].len):
                m = session.lanes[lane].jobs[i].message
                if (m.qos or m.flags & FINITE) and not m.flags & GIVEN:
                    self.copy(m)
        at = session.head
        while at != session.tail:
            flight = &session.flights[at & (session.flights_cap - 1)]
            if flight.message != NULL and not flight.message.flags & GIVEN:
                self.copy(flight.message)
            if flight.stage >= AWAITS_PUBREC:
                self.board.note(FLIGHT, session.serial, at % PACKET_IDS + 1, 0 if flight.message == NULL else flight.message.minor)
            if flight.stage == AWAITS_PUBCOMP:
                self.board.note(TAKEN, session.serial, at % PACKET_IDS + 1, 0)
            at += 1
        for packet_id in session.received or ():
            self.board.note(RECEIVED, session.serial, packet_id, 0)

    def copy_queued(self) -> None:
        """The same for what waits for its dispatch."""
        cdef size_t i
        cdef Message* m
        for i in range(self.jobs.len):
            m = self.jobs.jobs[i].message
            if self.jobs.jobs[i].tag == DISPATCH and m.flags & (OWED | FINITE):
                m.flags |= TRACKED
                self.copy(m)

    cdef bint protect(self, Message* m, int64_t travelled_ns, bint owed) noexcept:
        """Sees to it that a message which a crash could lose is copied; 0 when memory is gone."""
        cdef Topic* topic = m.topic
        cdef uint64_t major
        cdef int64_t due_ns
        if owed:
            m.flags |= TRACKED
        if m.qos == 2:
            m.flags |= TRACKED | HELD
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
            return self.wait(&self.patient[LONG], long_ns, m, None, 0)
        if now_ns + self.patience_ns + COPY_MARGIN_NS < due_ns:
            return self.wait(&self.patient[BRIEFLY], now_ns + self.patience_ns, m, None, 0)
        return 0

    cdef void replicate(self, Message* m) noexcept:
        """A replicate job (FRAME, table 3): aborted when the dispatch came first."""
        if self.board.backup is None:
            if m.flags & HELD:
                m.flags &= ~HELD
                self.plan(m, DISPATCH, m.major)
            self.board.safe(m)
        elif self.board.coordinated and m.flags & DISPATCHED:
            self.abort(m)
        elif not self.copy(m) and m.flags & (OWED | HELD):
            self.plan(m, REPLICATE, m.major)  # for whoever comes after a backup that lags

    cdef void abort(self, Message* m) noexcept:
        """Its dispatch made its copy superfluous before that was sent."""
        self.copies_aborted += 1
        (<Terms>m.topic.terms).aborted += 1

    cdef bint copy(self, Message* m) noexcept:
        """Sends a copy to the backup, once."""
        cdef Terms terms = <Terms>m.topic.terms
        if m.copied_to == self.board.backup_number:
            return 1
        if self.board.backup.out.len + m.size > self.backup_bytes_max or not put_copy(
                self.board.backup, m, self.board.wall_ns - self.board.now_ns):
            self.backup_lags = True
            return 0
        m.copied_to = self.board.backup_number
        self.board.frames += 1
        self.copies += 1
        terms.copied += 1
        if m.flags & FINITE and self.board.wall_ns - m.created_ns > m.topic.replicate_ns:
            terms.copied_late += 1
        if m.flags & (OWED | HELD):
            self.wait(&self.sent, self.board.frames, m, None, 0)
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
            m = first_of(patient).message
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
            while patient.head != patient.tail and <int64_t>first_of(patient).number <= self.board.now_ns:
                m = first_of(patient).message
                patient.head += 1
                self.replicate(m)
                message_drop(m)
        while self.later.len and <int64_t>self.later.jobs[0].major <= self.board.now_ns:
            job = jobs_pop(&self.later)
            if not job.message.flags & DISPATCHED:
                self.plan(job.message, REPLICATE, job.message.major)
            message_drop(job.message)

    # What must not happen before somebody else has a message

    cdef bint wait(self, Awaiting* awaiting, uint64_t number, Message* m, Link link, uint32_t index) noexcept:
        cdef Awaited* grown
        cdef Awaited* item
        cdef uint32_t cap
        cdef uint64_t i
        if awaiting.tail - awaiting.head == awaiting.cap:
            cap = awaiting.cap * 2 if awaiting.cap else 64
            grown = <Awaited*>malloc(cap * sizeof(Awaited))
            if grown == NULL:
                return 0
            i = awaiting.head
            while i != awaiting.tail:
                grown[i & (cap - 1)] = awaiting.items[i & (awaiting.cap - 1)]
                i += 1
            free(awaiting.items)
            awaiting.items = grown
            awaiting.cap = cap
        item = &awaiting.items[awaiting.tail & (awaiting.cap - 1)]
        awaiting.tail += 1
        item.number = number
        item.message = m
        item.index = index
        item.link = NULL if link is None else <PyObject*>link
        if m != NULL:
            message_hold(m)
        Py_XINCREF(item.link)
        return 1

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
        cdef Link link
        if m != NULL:
            if flag == DURABLE:
                m.flags &= ~DURABLE
            else:
                m.flags |= flag
                if m.flags & HELD:
                    m.flags &= ~HELD
                    self.plan(m, DISPATCH, m.major)
            self.board.safe(m)
            message_drop(m)
        if awaited.link != NULL:
            link = <Link>awaited.link
            link.settle(awaited.index, 0)
            Py_DECREF(link)

    cdef void released(self, Link link, uint64_t serial, uint16_t packet_id, uint32_t index) noexcept:
        """A publisher gave a QoS 2 identifier back: it hears so when the backup knows."""
        if self.board.backup is None:
            link.settle(index, 0)
            return
        self.board.note(RELEASED, serial, packet_id, 0)
        self.wait(&self.sent, self.board.frames, NULL, link, index)

    cdef void keep(self, Message* m):
        """The journal takes a copy; the publisher hears of the message when it is there."""
        self.durable_log.append((
            m.minor, m.created_ns, m.qos, m.flags & RETAIN, m.origin,
            PyBytes_FromStringAndSize(<char*>m.topic.text, m.topic.size),
            PyBytes_FromStringAndSize(<char*>message_props(m), m.props_size),
            PyBytes_FromStringAndSize(<char*>message_payload(m), m.payload_size)))
        m.flags |= JOURNALED | TRACKED
        if m.flags & OWED:
            m.flags |= DURABLE
            self.wait(&self.written, m.minor, m, None, 0)
