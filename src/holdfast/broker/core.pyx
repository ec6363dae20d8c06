"""The message proxy, the job generator and the dispatcher: everything that happens to every message."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, Py_XINCREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from collections import deque

from holdfast.broker.giving_way cimport relieve
from holdfast.broker.jobs cimport Job, jobs_pop
from holdfast.broker.link cimport Board, Link
from holdfast.broker.message cimport (
    AS_PUBLISHED, COPY_LATE, COPY_NEVER, COPY_SOON, DISPATCHED, EARLY, ENDED, FINITE, GIVEN, HELD, JOURNALED, MATCHED,
    NO_LOCAL, OFFERED, OWED, RECOVERED, RETAIN, SHARED, TRACKED, Ledger, Message, Route, Topic,
    ledger_free, message_drop, message_hold, message_new, message_payload, message_props, topic_clear_routes,
)
from holdfast.broker.protection cimport DISPATCH
from holdfast.broker.publish cimport LEAVES_GAPS
from holdfast.broker.pumping cimport LARGE_BYTES, pump_sessions
from holdfast.broker.refusals cimport NO_JOURNAL, NO_MEMORY, NO_TOPIC, STILL_TAKEN
from holdfast.broker.retained_messages cimport TOLD, RetainedMessages
from holdfast.broker.session cimport AGAIN, Session
from holdfast.broker.shares cimport pool_abandon, pool_new
from holdfast.broker.subscriptions cimport (
    Ended, SharedGroup, Subscription, SubscriptionTree, offer_specially, still_due,
)
from holdfast.broker.tenants cimport tenant_of
from holdfast.broker.terms cimport UNPROMISED, PolicyKind, Terms, schedule_key
from holdfast.broker.topics cimport TopicTable, routes_bytes, topic_bytes, topic_rent

cdef int64_t SECOND_NS = 1_000_000_000
cdef int64_t ALARM_COPY_NS = 10_000_000    # an alarm without a period that is not confirmed by then is copied
cdef size_t WORTH_A_WRITE = 128 # deliveries to a link that one write to it should carry, when there are as many
cdef int64_t LOOKED_MAX = 4096  # units that a slice may spend on looking up routes again, and members of groups
cdef size_t WIDE_SLICE = 32     # how many times as long a slice may get for that
cdef uint32_t SLICES_AHEAD = 8  # how many slices may wait before those are not read who send without a pause
cdef uint32_t OVERFULL = 4      # times as many: then nobody is
cdef int64_t ROUTES_UNITS = 4   # looking up the contract and the routes of a topic, if little is found
cdef int64_t STEPS_IN_UNIT = 8  # of the tree of subscriptions; see work.py
cdef uint64_t GAP_MAX = 1_000_000   # numbers that a publisher may leave out and be believed


cdef class Core(RetainedMessages):
    def __cinit__(self) -> None:
        self.ledger = <Ledger*>calloc(1, sizeof(Ledger))
        self.connecting = pool_new(0, 0)
        self.pending = pool_new(0, 0)
        if self.ledger == NULL or self.connecting == NULL or self.pending == NULL:
            raise MemoryError

    def __init__(self, *, int policy, uint64_t seed, limits) -> None:
        self.board = Board()
        self.board.sent = &self.sent
        self.board.written = &self.written
        self.topics = TopicTable(limits.topics_max, limits.topics_bytes_max, seed)
        self.board.tenants = self.topics.tenants
        self.tree = self.board.tree = SubscriptionTree()
        self.board.room = self.tree.room
        self.policy = <PolicyKind>policy
        self.control = deque()
        self.aside = deque()
        self.unanswered = deque()
        self.ended = []
        self.receive_max = limits.receive_max
        self.alias_max = limits.topic_alias_max
        self.packet_bytes_max = limits.packet_bytes_max
        self.connect_bytes_max = limits.connect_bytes_max
        self.control_bytes_max = limits.control_bytes_max
        self.pairs_max = limits.user_properties_max
        self.levels_max = limits.topic_levels_max
        self.topic_bytes_max = limits.topic_bytes_max
        self.backlog_max = 2 * limits.slice_jobs_max
        self.jobs_ahead_max = SLICES_AHEAD * limits.slice_jobs_max
        self.connecting.max = self.connecting.soft = limits.connecting_bytes_max
        self.pending.max = self.pending.soft = limits.pending_bytes_max
        self.board.outputs.bound(limits.output_bytes_max)
        self.board.share_out(limits.buffer_bytes_max)
        self.retain_up_to(limits.retained_messages_max, limits.retained_bytes_max)
        self.backup_bytes_max = limits.backup_bytes_max
        self.owed_bytes_max = limits.queue_bytes_max
        self.messages_bytes_max = limits.buffer_bytes_max + limits.retained_bytes_max + limits.pending_bytes_max
        self.board.untold.wait_ns = limits.marks_lag_ns // 2
        self.selective = True
        self.known_again = {}
        self.heard = []
        self.slowed = []

    def __dealloc__(self) -> None:
        free(self._scratch)
        pool_abandon(self.connecting)
        pool_abandon(self.pending)
        if self.ledger.messages == 0:
            ledger_free(self.ledger)
        else:
            self.ledger.orphan = 1

    # What plain Python asks

    @property
    def messages_held(self) -> int:
        return self.ledger.messages

    @property
    def bytes_held(self) -> int:
        return self.ledger.bytes

    @property
    def connecting_bytes(self) -> int:
        return self.connecting.bytes    # unfinished packets of clients that were not let in yet

    @property
    def pending_bytes(self) -> int:
        return self.pending.bytes       # those of all others

    @property
    def strained(self) -> bool:     # a bound that all share was reached: somebody is to pay
        return len(self.board.overloaded) > 0 or len(self.board.outputs.choked) > 0

    @property
    def work_waiting(self) -> bool:     # for the next turn, though nothing comes in
        return (self.jobs.len > 0 or self.crowded() or len(self.control) > 0 or len(self.aside) > 0
                or self.board.doubts_left <= 0)

    @property
    def restless(self) -> bool:
        """Whether there is anything for plain Python to look at: one question in place of ten."""
        return (len(self.control) > 0 or len(self.aside) > 0 or len(self.unanswered) > 0 or len(self.ended) > 0
                or len(self.heard) > 0 or len(self.known_again) > 0 or len(self.slowed) > 0
                or len(self.board.held) > 0 or len(self.board.overloaded) > 0 or len(self.board.outputs.choked) > 0)

    def publish(self, bytes topic not None, bytes payload not None, *, uint8_t qos=0, bint retain=False,
                bytes props=b"", uint32_t expiry_at=0, uint32_t expiry_s=0, uint64_t origin=0,
                uint64_t account=0) -> int:
        """A message of the broker's own, or a will. Returns why it is refused, or 0: see refusals."""
        cdef Topic* record = self.topic_at(<const uint8_t*>(<char*>topic), len(topic))
        cdef Draft draft
        if record == NULL:
            return NO_TOPIC
        memset(&draft, 0, sizeof(Draft))
        draft.props = <const uint8_t*>(<char*>props)
        draft.props_size = len(props)
        draft.payload = <const uint8_t*>(<char*>payload)
        draft.payload_size = len(payload)
        draft.expiry_at = expiry_at
        draft.expiry_s = expiry_s
        draft.qos = qos
        draft.retain = retain
        draft.account = account
        return self.accept(record, &draft, None, origin, -1)

    def set_retained(self, bytes topic not None, tuple message) -> None:
        """What another broker retains; None: nothing any more."""
        cdef Topic* record = self.topic_at(<const uint8_t*>(<char*>topic), len(topic))
        cdef Message* m = NULL
        if record == NULL:
            return
        if message is not None:
            number, created_ns, qos, expires_wall_ns, expiry_at, props, payload = message
            if record.retained != NULL and record.retained.minor > <uint64_t>number:
                return  # a copy came first
            m = message_new(self.ledger, record.text, record.size, <const uint8_t*>(<char*><bytes>props), len(props),
                            <const uint8_t*>(<char*><bytes>payload), len(payload))
            if m == NULL:
                return
            record.pins += 1
            m.topic = record
            m.minor = number
            m.created_ns = created_ns
            m.qos = qos
            m.flags = RETAIN | OFFERED | DISPATCHED
            m.expiry_at = expiry_at
            m.expires_ns = expires_wall_ns - self.board.wall_ns + self.board.now_ns if expires_wall_ns else 0
        self.retain(record, m, TOLD)
        if m != NULL:
            message_drop(m)

    def give(self, Subscription subscription not None, bytes topic not None, bytes payload not None, *,
             uint8_t qos=1, bint retain=False, bytes props=b"", uint32_t expiry_at=0, uint32_t expiry_s=0) -> bool:
        """Sends a message to one subscription, whoever else has its topic. It counts as no publication: it is
        not copied, and is gone if this broker is."""
        cdef Topic* record = self.topic_at(<const uint8_t*>(<char*>topic), len(topic))
        cdef Message* m
        if record == NULL:
            return False
        m = message_new(self.ledger, record.text, record.size, <const uint8_t*>(<char*>props), len(props),
                        <const uint8_t*>(<char*>payload), len(payload))
        if m == NULL:
            return False
        record.pins += 1
        self.number += 1
        m.topic = record
        m.minor = self.number
        m.created_ns = self.board.wall_ns
        m.qos = min(qos, <uint8_t>1)
        m.flags = (RETAIN if retain else 0) | GIVEN | OFFERED | DISPATCHED
        m.expiry_at = expiry_at
        m.expires_ns = self.board.now_ns + expiry_s * SECOND_NS if expiry_at else 0
        m.deadline_ns = self.board.now_ns + record.dispatch_ns
        m.major = schedule_key(self.policy, <Terms>record.terms, m.deadline_ns, m.minor, 1)
        subscription.session.offer(m, min(m.qos, subscription.qos), RETAIN if retain else 0,
                                   NULL if subscription.ids is None else <PyObject*>subscription.ids)
        message_drop(m)
        return True

    def deliver(self, size_t jobs_max) -> int:
        """First sessions whose sockets or windows opened move on. Then dispatches messages, smallest key first,
        until that many deliveries are made; returns how many wait.

        Every delivery counts, so that a slice takes much the same time at any fan-out; but it ends in a write to
        each link it touched, so a wide one goes on until the writes are worth their while. Routes that must be
        looked up again have a bound of their own, and so has it all when the bytes alone are worth a slice."""
        cdef Job job
        cdef size_t done = 0, heavy = 0, routes
        self.board.spread = 0
        if self.board.pumps.len:
            pump_sessions(self.board)
        if self.crowded():
            relieve(self.board.pool)
        self.copy_when_due()
        self.tell_marks(0)
        self.looked = 0
        while self.jobs.len and self.looked < LOOKED_MAX and (done + heavy < jobs_max or (
                heavy < jobs_max and done < min(WORTH_A_WRITE * self.board.ready.len, WIDE_SLICE * jobs_max))):
            job = jobs_pop(&self.jobs)
            if job.tag == DISPATCH:
                self.dispatch(job.message)
                routes = max(<size_t>1, <size_t>job.message.topic.routes_len)
                done += routes
                if job.message.size >= LARGE_BYTES:
                    heavy += routes * ((<size_t>job.message.payload_size + job.message.props_size) // LARGE_BYTES)
            else:
                self.replicate(job.message)
                done += 1
            message_drop(job.message)
        self.number_sliced = self.number
        if self.board.discards_len:
            self.board.tell_discards()
        return self.jobs.len + self.crowded()

    cdef bint sated(self) noexcept:
        """Whether enough waits to be delivered, and until half of it is: who sends without a pause is held back then.
        The others are still read, as what they send may be due before all that waits."""
        if self.jobs.len >= self.jobs_ahead_max:
            self.full = True
        elif self.jobs.len * 2 < self.jobs_ahead_max:
            self.full = False
        return self.full or self.crowded()

    cdef bint overfull(self) noexcept:
        """Whether so much waits that nobody is read, not even who sends little: it all may come from many such."""
        return self.jobs.len >= OVERFULL * self.jobs_ahead_max or (
            self.board.pool.bytes > (self.board.pool.soft + self.board.pool.max) // 2)

    cdef bint crowded(self) noexcept:
        """Whether sessions still hold more than they should: nothing is read before that is let go of."""
        return self.board.pool.bytes > self.board.pool.soft

    cdef uint8_t* scratch(self, size_t size) except NULL:
        """Room for bytes that live until the next packet."""
        cdef uint8_t* grown
        if size > self._scratch_size:
            grown = <uint8_t*>realloc(self._scratch, size)
            if grown == NULL:
                raise MemoryError
            self._scratch = grown
            self._scratch_size = size
        return self._scratch

    # A topic, its contract and its subscribers

    cdef Topic* topic_at(self, const uint8_t* text, uint32_t size) noexcept:
        """The topic of that name, its routes and terms current; NULL when the table is full."""
        cdef uint64_t hash = self.topics.hash_of(text, size)
        cdef Topic* topic = self.topics.find(text, size, hash)
        if topic == NULL:
            topic = self.topics.add(text, size, hash)
            if topic == NULL:
                return NULL
        if topic.stamp != self.topics.current_stamp(topic) and not self.refresh(topic):
            return NULL
        return topic

    cdef bint refresh(self, Topic* topic) noexcept:
        try:
            self._refresh(topic)
        except MemoryError:
            return 0
        return 1

    cdef void _refresh(self, Topic* topic) except *:
        """Looks up the contract and the subscriptions of a topic again."""
        cdef bytes name = PyBytes_FromStringAndSize(<char*>topic.text, topic.size)
        cdef Terms terms = self.terms_for(name)
        cdef uint64_t visited = self.tree.visited
        cdef list found = self.tree.match(name)
        cdef dict seen = {}
        cdef Route* route
        cdef Subscription subscription
        cdef Ended ended
        cdef int64_t deadline_ns = terms.deadline_ns
        cdef int64_t loss = terms.loss_tolerance
        self.work_left -= ROUTES_UNITS + (
            <int64_t>(self.tree.visited - visited) + len(found) + len(self.ended)) // STEPS_IN_UNIT
        self.topics.bytes_held -= routes_bytes(topic)
        topic_clear_routes(topic)
        if len(found) + len(self.ended) > 1:
            topic.routes = <Route*>malloc((len(found) + len(self.ended)) * sizeof(Route))
            if topic.routes == NULL:
                topic.routes = &topic.nearest
                raise MemoryError
        for match in found:
            route = &topic.routes[topic.routes_len]
            if isinstance(match, SharedGroup):
                route.session = <PyObject*>match
                route.flags = SHARED
                route.ids = NULL
                route.since = 0
                topic.routes_len += 1
                members = (<SharedGroup>match).members
                self.work_left -= len(members) // STEPS_IN_UNIT
            else:
                members = (match,)
                subscription = match
                self._add_route(topic, subscription, seen)
            for subscription in members:
                if subscription.deadline_ns:
                    deadline_ns = min(deadline_ns, subscription.deadline_ns)
                if subscription.loss >= 0:
                    loss = subscription.loss if loss < 0 else min(loss, subscription.loss)
        if self.ended:
            live = {session: topic.routes[<uint32_t>at].since for session, at in seen.items()}
            for ended in still_due(self.ended, name, live):
                route = &topic.routes[topic.routes_len]
                topic.routes_len += 1
                route.session = <PyObject*>ended.subscription.session
                route.flags = ENDED
                Py_INCREF(ended)
                route.ids = <PyObject*>ended
        Py_INCREF(terms)
        Py_XDECREF(topic.terms)
        topic.terms = <PyObject*>terms
        topic.dispatch_ns = deadline_ns - terms.to_subscriber_ns
        topic.loss = loss
        topic.copying = COPY_NEVER
        if loss >= 0:
            topic.copying = COPY_LATE
            if terms.period_ns:
                topic.replicate_ns = (terms.retention + loss) * terms.period_ns - self.to_backup_ns - self.failover_ns
            else:
                topic.replicate_ns = ALARM_COPY_NS
            if terms.period_ns and topic.dispatch_ns > topic.replicate_ns:
                topic.copying = COPY_SOON
        if not self.selective:
            topic.copying = COPY_SOON
            if loss < 0:
                topic.replicate_ns = topic.dispatch_ns
        topic.stamp = self.topics.current_stamp(topic)
        topic.price = <uint32_t>max(topic_bytes(topic) + routes_bytes(topic), self.topics.tenants.floor)
        if topic.routes != &topic.nearest:
            self.topics.bytes_held += routes_bytes(topic)
            topic.pins += 1
            self.topics.fit(0, 0)
            topic.pins -= 1

    cdef void _add_route(self, Topic* topic, Subscription subscription, dict seen) except *:
        """One route for each client: overlapping subscriptions become one, at the highest QoS, with all their
        identifiers."""
        cdef Route* route
        cdef bytes ids
        at = seen.get(subscription.session)
        if at is None:
            seen[subscription.session] = topic.routes_len
            route = &topic.routes[topic.routes_len]
            topic.routes_len += 1
            route.session = <PyObject*>subscription.session
            route.since = subscription.since
            route.qos = subscription.qos
            route.flags = subscription.flags
            route.ids = NULL if subscription.ids is None else <PyObject*>subscription.ids
            Py_XINCREF(route.ids)
            return
        route = &topic.routes[<uint32_t>at]
        route.qos = max(route.qos, subscription.qos)
        route.since = min(route.since, subscription.since)
        route.flags = (route.flags & subscription.flags & NO_LOCAL) | ((route.flags | subscription.flags) & AS_PUBLISHED)
        if subscription.ids is not None:
            ids = subscription.ids if route.ids == NULL else <bytes>route.ids + subscription.ids
            Py_INCREF(ids)
            Py_XDECREF(route.ids)
            route.ids = <PyObject*>ids

    # One message

    cdef uint8_t accept(self, Topic* topic, Draft* draft, Link source, uint64_t origin, int64_t ack) noexcept:
        """The message proxy and job generator: copies the message, gives it its deadline and its job.

        `ack` is its place among the source's acknowledgements, -1 for none. Returns why it is refused: 0 or
        STILL_TAKEN when the message was taken (its acknowledgement then follows its dispatch)."""
        cdef Terms terms = <Terms>topic.terms
        cdef Message* m
        cdef int64_t now_ns = self.board.now_ns
        cdef int64_t travelled_ns
        cdef uint8_t why = 0
        if terms.durable and self.journal_refuses and ack >= 0:
            return NO_JOURNAL   # also what came before: it may not be in the journal
        if draft.publisher and draft.publisher == topic.publisher and draft.sequence <= topic.sequence:
            self.repeated(topic, source, ack)
            return 0
        m = message_new(self.ledger, topic.text, topic.size, draft.props, draft.props_size,
                        draft.payload, draft.payload_size)
        if m == NULL:
            return NO_MEMORY
        if topic.tenant == NULL and topic.retained == NULL and source is not None:
            if not self.put_to_use(topic, source, True):
                message_drop(m)
                return NO_TOPIC
        topic.pins += 1
        m.topic = topic
        m.qos = draft.qos
        m.origin = origin
        m.packet_id = draft.packet_id
        m.flags = (FINITE if topic.loss >= 0 else 0) | (self.board.markable & TRACKED if draft.qos else 0)
        if now_ns - topic.last_ns < terms.period_ns // 2:
            m.flags |= EARLY
        topic.last_ns = now_ns
        if draft.expiry_at:
            m.expiry_at = draft.expiry_at
            m.expires_ns = now_ns + draft.expiry_s * SECOND_NS
        if draft.created_ns:
            m.created_ns = draft.created_ns
            travelled_ns = max(<int64_t>0, min(self.board.wall_ns - draft.created_ns, topic.dispatch_ns))
        else:
            m.created_ns = self.board.wall_ns - terms.to_broker_ns
            travelled_ns = terms.to_broker_ns
        m.deadline_ns = now_ns + topic.dispatch_ns - travelled_ns
        self.number += 1
        m.minor = self.number
        m.major = schedule_key(self.policy, terms, m.deadline_ns, m.minor, topic.routes_len)
        if m.major < topic.last_major and (self.jobs.len or (m.major ^ topic.last_major) < UNPROMISED):
            m.major = topic.last_major  # or else it got a contract, and nothing waits any more
        topic.last_major = m.major
        if draft.retain:
            why = self.retain(topic, m if m.payload_size else NULL, draft.account if source is None else source.account)
            if why == 0:
                m.flags |= RETAIN       # or else nobody who has a copy retains it either
            elif ack >= 0 and source.version == 5:
                message_drop(m)
                return why
            if topic.tenant == NULL and topic.retained == NULL and source is not None:
                self.put_to_use(topic, source, False)   # who ends what was retained has it in use
        if (self.board.backup is not None and not self.protect(
                m, travelled_ns, ack >= 0, source is None and origin)) or (
                not m.flags & HELD and not self.plan(m, DISPATCH, m.major)):
            message_drop(m)
            return NO_MEMORY
        if source is not None:
            Py_INCREF(source)
            m.source = <PyObject*>source
            m.ack_index = <uint32_t>ack
            if ack >= 0:
                source.owe_for(m, min(self.owed_bytes_max, self.messages_bytes_max - <int64_t>self.ledger.bytes))
            if not m.flags & HELD:  # no job of it waits yet, and the client has a bound for what it sends so
                source.backlog += 1
                if source.backlog > self.backlog_max and not source.full:
                    source.full = True
                    source.mark()
        if terms.durable and self.durable_log is not None:
            self.keep(m)
        if draft.publisher:
            if draft.publisher == topic.publisher and draft.sequence != topic.sequence + 1 and self.board.counting:
                self.missing(topic, draft.sequence)
            topic.publisher = draft.publisher
            topic.sequence = draft.sequence
            topic.era = self.era
        terms.published += 1
        self.messages_received += 1
        message_drop(m)
        return why | STILL_TAKEN if why else 0

    cdef bint put_to_use(self, Topic* topic, Link source, bint whether) noexcept:
        """The client of a link pays for a topic from now on; 0 when it may be refused, and there is no room."""
        if source.tenant == NULL:
            if source.account == 0:
                return 1    # it is nobody's
            source.tenant = tenant_of(self.topics.tenants, source.account)
        return topic_rent(topic, source.tenant, whether)

    cdef void missing(self, Topic* topic, uint64_t sequence) noexcept:
        """Messages before this one never came. What another broker served is not known here, and is no loss; nor
        is a jump so far that its publisher cannot mean it."""
        cdef uint64_t gap = sequence - topic.sequence - 1
        if topic.era == self.era and not topic.publisher & LEAVES_GAPS and gap <= GAP_MAX:
            (<Terms>topic.terms).lose(gap, gap, self.board.wall_ns)

    cdef void dispatch(self, Message* m) noexcept:
        """Offers one message to every subscriber."""
        cdef Topic* topic = m.topic
        cdef Route* route
        cdef Session session
        cdef uint32_t i, matched = 0
        cdef uint8_t bits, qos
        if topic.stamp != self.topics.current_stamp(topic):
            self._look_again(topic)
        for i in range(topic.routes_len):
            route = &topic.routes[i]
            if route.flags & (SHARED | ENDED):
                matched += offer_specially(m, route)
                if route.flags & SHARED:
                    self.looked += (<SharedGroup>route.session).looked // STEPS_IN_UNIT
                continue
            session = <Session>route.session
            if route.since > m.minor or (route.flags & NO_LOCAL and session.serial == m.origin):
                continue
            matched += 1
            bits = RETAIN if m.flags & RETAIN and route.flags & AS_PUBLISHED else 0
            qos = m.qos if m.qos < route.qos else route.qos
            session.offer(m, qos, bits, route.ids)
        if matched:
            m.flags |= MATCHED
        self.offered(m)

    cdef void _look_again(self, Topic* topic) noexcept:
        """Its routes changed since its message came: the slice pays for that, not what is read next."""
        cdef int64_t before = self.work_left
        self.refresh(topic)
        self.looked += before - self.work_left
        self.work_left = before

    cdef void offered(self, Message* m) noexcept:
        """Every subscriber was offered the message: who else waits for that?"""
        cdef Link source
        m.flags |= OFFERED
        if m.source != NULL:
            source = <Link>m.source
            source.backlog -= 1
            if source.full and source.backlog * 2 < self.backlog_max:
                source.full = False
                source.mark()
            if not m.flags & OWED:
                m.source = NULL
                Py_DECREF(source)
        if m.holders and m.flags & self.board.markable and not m.flags & TRACKED:
            self.mark_sent(m)
        if m.holders == 0:
            if not m.flags & DISPATCHED:
                self.board.dispatched(m)
        elif self.board.backup is not None:
            self.copy_later(m)
        elif m.flags & OWED:
            self.board.safe(m)

    cdef void repeated(self, Topic* topic, Link source, int64_t ack):
        """A message came again. Its publisher hears of it when nothing of the topic is unsafe any more."""
        self.duplicates += 1
        if ack < 0:
            return
        if topic.unsafe == 0:
            source.settle(<uint32_t>ack, 0)
        else:
            waiting = self.known_again.setdefault(source, deque())
            waiting.append((PyBytes_FromStringAndSize(<char*>topic.text, topic.size), ack))
            if len(waiting) == REPEATED_MAX:
                source.hold()

    def acknowledge_repeated(self) -> None:
        """Tells the publishers of what came again, as far as it is safe by now, or the journal takes nothing. Who
        waits for one message waits with all that it sent again behind that: acknowledgements keep their order."""
        cdef Link source
        for source, waiting in list(self.known_again.items()):
            while waiting and (source.closing or self.tell_repeated(source, waiting[0][0], waiting[0][1])):
                waiting.popleft()
                if len(waiting) == REPEATED_MAX - 1:
                    source.unhold()
            if not waiting:
                del self.known_again[source]

    # After a crash of the primary

    def number_from(self, uint64_t number) -> None:
        """Publications are numbered above that from now on: another broker may have given numbers up to it."""
        self.number = max(self.number, number)
        self.era += 1

    cdef bint dispatch_again(self, Message* m) noexcept:
        """The primary that had this message is gone: it is dispatched here, its time counted from its creation."""
        cdef Topic* topic = m.topic
        cdef int64_t travelled_ns
        if topic.stamp != self.topics.current_stamp(topic) and not self.refresh(topic):
            return 0
        travelled_ns = max(<int64_t>0, min(self.board.wall_ns - m.created_ns, topic.dispatch_ns))
        m.flags = (m.flags & (RETAIN | JOURNALED)) | RECOVERED | TRACKED | (FINITE if topic.loss >= 0 else 0)
        m.copied_to = 0
        m.packet_id = 0     # whose exchange with its publisher goes on is known otherwise
        m.deadline_ns = self.board.now_ns + topic.dispatch_ns - travelled_ns
        m.major = schedule_key(self.policy, <Terms>topic.terms, m.deadline_ns, m.minor, topic.routes_len)
        m.major = max(m.major, topic.last_major)
        topic.last_major = m.major
        return self.plan(m, DISPATCH, m.major)
