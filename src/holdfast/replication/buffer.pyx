"""The backup buffer, compiled: a ring for each topic, and every copy found by its number."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from holdfast.broker.copies cimport (
    ANNOUNCED, ASKS_CONFIRM, BYGONE, COPY_HEAD, FLIGHT, HAD, HAD_HEAD, LANDED, MARK_SIZE, RECEIVED, RELEASED, TAKEN,
    read_u64,
)
from holdfast.broker.core cimport Core
from holdfast.broker.message cimport (
    DISCARDED, JOURNALED, RETAIN, Had, Message, Topic, message_drop, message_forget_had, message_hold, message_mark,
    message_new, message_share_had,
)
from holdfast.broker.publish cimport Stamp, read_publish_properties
from holdfast.broker.protection cimport OPEN
from holdfast.broker.retained_messages cimport TOLD
from holdfast.broker.idset cimport IdSet
from holdfast.broker.identifiers cimport go_on_with, restore, skip_identifiers, ways_to
from holdfast.broker.session cimport (
    AWAITS_PUBCOMP, AWAITS_PUBREC, GUESSED, LOGGED, PACKET_IDS, Session,
)
from holdfast.broker.terms cimport Terms
from holdfast.mqtt.wire cimport read_u16, read_u32, read_varint

cdef uint64_t SPREAD = 0x9E3779B97F4A7C15ULL
cdef int64_t SECOND_NS = 1_000_000_000


cdef class BackupBuffer:
    def __cinit__(self, Core core not None, *, uint32_t per_topic_max, size_t messages_max, size_t bytes_max) -> None:
        self.core = core
        self.per_topic_max = per_topic_max
        self.set_bounds(messages_max=messages_max, bytes_max=bytes_max)
        self.mask = 1023
        self.slots = <Message**>calloc(self.mask + 1, sizeof(Message*))
        if self.slots == NULL:
            raise MemoryError
        self.forget()

    def __dealloc__(self) -> None:
        self.let_go()
        free(self.slots)

    def __len__(self) -> int:
        return self.count

    def set_bounds(self, *, size_t messages_max, size_t bytes_max) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max

    cdef void let_go(self) noexcept:
        cdef size_t i
        cdef Message* m
        cdef Message* oldest
        for i in range(self.mask + 1):
            m = self.slots[i]
            if m == NULL:
                continue
            self.slots[i] = NULL
            while m.topic.copies != NULL:
                oldest = m.topic.copies
                m.topic.copies = oldest.next
                message_drop(oldest)
            m.topic.copies_last = NULL
            m.topic.copies_len = 0
            message_drop(m)
        self.count = 0

    def clear(self) -> None:
        """A primary begins to send its copies: what was sent before is not needed."""
        self.let_go()
        self.forget()
        self.core.topics.forget_publishers()
        if self.cleared is not None:
            self.cleared()

    def forget(self) -> None:
        self.flights = {}
        self.received = {}
        self.kept = {}
        self.contents = {}
        self.given = {}
        self.recalled = False
        self.retained = {}
        self.unjournaled = {}
        self.frames = 0
        self.confirmed = 0
        self.fed = self.custody = False

    def restore(self, uint64_t number, int64_t created_ns, uint8_t qos, uint16_t retain, uint64_t origin,
                bytes topic not None, bytes props not None, bytes payload not None, int64_t expires_wall_ns) -> bool:
        """Keeps a message that the journal brings back, as the copy of a broker that is gone."""
        cdef Topic* record = self.core.topic_at(<const uint8_t*>(<char*>topic), len(topic))
        cdef const uint8_t* first = <const uint8_t*>(<char*>props)
        cdef Message* m
        cdef Stamp stamp
        self.number_max = max(self.number_max, number)
        if (record == NULL or self.core.ledger.messages >= self.messages_max
                or self.core.ledger.bytes >= self.bytes_max):
            return False
        if self.find(number) != NULL:
            return True
        m = message_new(self.core.ledger, record.text, record.size, first, len(props),
                        <const uint8_t*>(<char*>payload), len(payload))
        if m == NULL:
            return False
        record.pins += 1
        m.topic = record
        m.minor = number
        m.created_ns = created_ns
        m.origin = origin
        m.qos = qos
        m.flags = (retain & RETAIN) | JOURNALED
        if read_publish_properties(first, first + len(props), &stamp):
            if stamp.expiry_at:
                m.expiry_at = stamp.expiry_at
                if expires_wall_ns == 0:  # written by a version that did not say: the publisher's clock has to do
                    expires_wall_ns = created_ns + stamp.expiry_s * SECOND_NS
                m.expires_ns = max(<int64_t>1, expires_wall_ns - self.core.board.wall_ns + self.core.board.now_ns)
            if stamp.publisher and (stamp.publisher != record.publisher or stamp.sequence > record.sequence):
                record.publisher = stamp.publisher
                record.sequence = stamp.sequence
        record.last_ns = self.core.board.now_ns
        return self.enter(m)

    def restore_had(self, uint64_t number, uint64_t key, uint64_t bits) -> None:
        """The journal knows who was done with it: those of the 64 sessions from serial 64 * key on."""
        cdef Message* m = self.find(number)
        if m != NULL:
            message_mark(m, key, bits, 1)

    def restore_flight(self, uint64_t number, uint64_t serial, uint16_t packet_id, bint taken) -> None:
        """The journal knows a QoS 2 delivery that was under way; those of a session come in their order."""
        self.flights.setdefault(serial, {})[packet_id] = [number, taken]

    def restore_exchanges(self, uint64_t serial, set received not None, dict contents not None, tuple given) -> None:
        """The journal knows which messages of a session are not released, what some of them are, and which
        identifiers its own deliveries may have."""
        self.recalled = True
        if contents:
            self.contents[serial] = contents
        if received:
            self.received[serial] = IdSet(received)
            self.kept[serial] = IdSet(received)
        if given is not None:
            self.given[serial] = given

    # What the primary sends

    cdef bint copy(self, const uint8_t* at, uint32_t size):
        """Keeps a copy; 0 when it is malformed or a bound is reached."""
        cdef const uint8_t* body = at + COPY_HEAD
        cdef const uint8_t* end = at + size
        cdef uint32_t topic_size
        cdef long props_size
        cdef int head = 0
        cdef Topic* topic
        cdef Message* m
        cdef Stamp stamp
        if size < COPY_HEAD + 3:
            return 0
        topic_size = read_u16(body)
        body += 2
        if end - body < <long>topic_size + 1 or topic_size != read_u32(at + 36):
            return 0
        props_size = read_varint(body + topic_size, end, &head)
        if props_size < 0 or props_size > end - body - topic_size - head:
            return 0
        self.frames += 1
        self.taken += 1
        self.asked |= (at[43] & ASKS_CONFIRM) != 0
        if read_u64(at) > self.number_max:
            self.number_max = read_u64(at)
        topic = self.core.topic_at(body, topic_size)
        body += topic_size + head
        if topic == NULL or self.core.ledger.messages >= self.messages_max or self.core.ledger.bytes >= self.bytes_max:
            return 0
        if read_publish_properties(body, body + props_size, &stamp) and stamp.publisher and (
                stamp.publisher != topic.publisher or stamp.sequence > topic.sequence):
            topic.publisher = stamp.publisher
            topic.sequence = stamp.sequence
        topic.last_ns = self.core.board.now_ns  # or its last number is forgotten with the last copy
        if at[42] == 2 and read_u64(at + 16) and read_u16(at + 40):
            self.received.setdefault(read_u64(at + 16), IdSet()).add(read_u16(at + 40))
        if self.find(read_u64(at)) != NULL:
            return 1
        m = message_new(self.core.ledger, topic.text, topic.size, body, <uint32_t>props_size,
                        body + props_size, <uint32_t>(end - body - props_size))
        if m == NULL:
            return 0
        topic.pins += 1
        m.topic = topic
        m.minor = read_u64(at)
        m.created_ns = <int64_t>read_u64(at + 8)
        m.origin = read_u64(at + 16)
        if read_u64(at + 24):
            m.expires_ns = <int64_t>read_u64(at + 24) - self.core.board.wall_ns + self.core.board.now_ns
        m.expiry_at = read_u32(at + 32)
        m.packet_id = read_u16(at + 40)
        m.qos = at[42]
        m.flags = at[43] & RETAIN
        if m.flags & RETAIN and not at[43] & BYGONE and (topic.retained == NULL or topic.retained.minor < m.minor):
            self.core.retain(topic, m if m.payload_size else NULL, TOLD)
            self.retained[PyBytes_FromStringAndSize(<char*>topic.text, topic.size)] = m.minor
        if self.core.durable_log is not None and (<Terms>topic.terms).durable:
            self.journal(m)
        return self.enter(m)

    cdef void journal(self, Message* m):
        """The journal takes the copy too; while it takes nothing, memory has to do."""
        self.core.keep(m)
        self.await_journal()
        if m.qos == 2 and m.origin and m.packet_id:
            self.kept.setdefault(m.origin, IdSet()).add(m.packet_id)

    cdef void await_journal(self):
        """The last frame is not confirmed before the journal has it."""
        if self.core.durable_log is not None and not self.core.journal_refuses:
            self.unjournaled.setdefault(self.core.board.turn, self.frames)

    def journaled(self, uint64_t turn) -> None:
        """The journal has everything up to that turn."""
        for each in [each for each in self.unjournaled if each <= turn]:
            del self.unjournaled[each]

    def unjournal(self) -> None:
        """The journal takes nothing any more: nothing waits for it."""
        self.unjournaled.clear()

    cdef uint64_t safe(self):
        """How many frames may be confirmed."""
        for frame in self.unjournaled.values():
            return <uint64_t>frame - 1
        return self.frames

    cdef bint mark(self, const uint8_t* at, uint32_t size):
        """How far a QoS 2 exchange of the primary is, or which of its sessions are done with a message."""
        cdef uint64_t serial, number
        cdef uint16_t packet_id
        cdef Message* m
        if at[0] == HAD and size > HAD_HEAD and (size - HAD_HEAD) % 8 == 0:
            self.frames += 1
            self.had_together(read_u64(at + 1), read_u64(at + 9), at + HAD_HEAD, (size - HAD_HEAD) // 8)
            return 1
        if size != MARK_SIZE or at[0] == HAD:
            return 0
        self.frames += 1
        serial = read_u64(at + 1)
        packet_id = read_u16(at + 9)
        number = read_u64(at + 11)
        flights = self.flights.setdefault(serial, {})
        if at[0] == RELEASED:
            self.asked = True
            if serial in self.received:
                self.received[serial].discard(packet_id)
            if self.kept and packet_id in self.kept.get(serial, ()):
                self.exchange(serial, packet_id, False)
        elif at[0] == RECEIVED:
            self.received.setdefault(serial, IdSet()).add(packet_id)
            self.exchange(serial, packet_id, True)
        elif at[0] == ANNOUNCED:
            self.given[serial] = (<uint16_t>number, packet_id)
            self.core.board.log_announced(serial, <uint16_t>number, packet_id)
            self.await_journal()
        elif at[0] == FLIGHT:
            self.asked = True
            flights.pop(packet_id, None)
            flights[packet_id] = [number, False]
            m = self.find(number)
            if m != NULL and m.flags & JOURNALED:
                self.core.board.log_flight(number, serial, packet_id)
                self.await_journal()
        elif at[0] == TAKEN and packet_id in flights:
            self.asked = True
            flights[packet_id][1] = True
            m = self.find(flights[packet_id][0])
            if m != NULL and m.flags & JOURNALED:
                self.await_journal()
            self.had(flights[packet_id][0], serial >> 6, <uint64_t>1 << (serial & 63))
        elif at[0] == TAKEN:    # of a delivery that was under way before this backup was there, and is not told of yet
            self.asked = True
            m = self.find(number)
            if m != NULL and m.flags & JOURNALED:
                self.await_journal()
            self.had(number, serial >> 6, <uint64_t>1 << (serial & 63))
        elif at[0] == LANDED:
            flights.pop(packet_id, None)
            self.core.board.log_flight(0, serial, packet_id)
        return 1

    cdef void exchange(self, uint64_t serial, uint16_t packet_id, bint open):
        """The journal hears of a step of an exchange with a publisher."""
        if self.core.durable_log is None:
            return
        if open:
            self.kept.setdefault(serial, IdSet()).add(packet_id)
        else:
            self.kept[serial].discard(packet_id)
        self.core.durable_log.append((serial, packet_id | (OPEN if open else 0)))
        self.await_journal()

    cdef void had_together(self, uint64_t key, uint64_t bits, const uint8_t* numbers, uint32_t count):
        """The same sessions are done with several messages: those of which the same was known share what is now."""
        cdef Had* before = NULL
        cdef Had* after = NULL
        cdef Message* m
        cdef uint32_t i
        for i in range(count):
            m = self.find(read_u64(numbers + 8 * i))
            if m == NULL:
                continue    # superseded by newer ones
            if after != NULL and m.had == before:
                message_share_had(m, after)
            else:
                before = m.had
                message_mark(m, key, bits, 1)
                after = m.had
            self.log_had(m, key, bits)

    cdef void had(self, uint64_t number, uint64_t key, uint64_t bits):
        cdef Message* m = self.find(number)
        if m == NULL:
            return  # superseded by newer ones
        message_mark(m, key, bits, 1)
        self.log_had(m, key, bits)

    cdef void log_had(self, Message* m, uint64_t key, uint64_t bits):
        if m.flags & JOURNALED and self.core.board.had_log is not None:
            self.core.board.had_log += (m.minor, key, bits)

    cdef void discard(self, uint64_t number):
        cdef Message* m = self.find(number)
        if m != NULL:
            self.discarded += 1
            self.remove(m)

    # Copies by number

    cdef inline Message* find(self, uint64_t number) noexcept:
        cdef size_t at = (number * SPREAD) >> 20 & self.mask
        while self.slots[at] != NULL:
            if self.slots[at].minor == number:
                return self.slots[at]
            at = (at + 1) & self.mask
        return NULL

    cdef bint enter(self, Message* m) noexcept:
        """Takes over the caller's reference."""
        cdef size_t at
        cdef Topic* topic = m.topic
        if self.count * 2 > self.mask and not self.grow():
            message_drop(m)
            return 0
        at = (m.minor * SPREAD) >> 20 & self.mask
        while self.slots[at] != NULL:
            at = (at + 1) & self.mask
        self.slots[at] = m
        self.count += 1
        message_hold(m)  # the ring's own
        if topic.copies == NULL:
            topic.copies = m
        else:
            topic.copies_last.next = m
        topic.copies_last = m
        topic.copies_len += 1
        if topic.copies_len > self.per_topic_max:
            self.superseded += 1
            self.remove(topic.copies)
        return 1

    cdef void remove(self, Message* m) noexcept:
        """Takes a copy out of the table; its ring lets go of it when it is the oldest."""
        cdef size_t hole = (m.minor * SPREAD) >> 20 & self.mask
        cdef size_t at, home
        while self.slots[hole] != m:
            hole = (hole + 1) & self.mask
        at = hole
        while True:
            at = (at + 1) & self.mask
            if self.slots[at] == NULL:
                break
            home = (self.slots[at].minor * SPREAD) >> 20 & self.mask
            if ((at - home) & self.mask) >= ((at - hole) & self.mask):
                self.slots[hole] = self.slots[at]
                hole = at
        self.slots[hole] = NULL
        self.count -= 1
        m.flags |= DISCARDED
        if m.had != NULL:
            message_forget_had(m)
        if m.flags & JOURNALED:
            self.core.board.done(m)
        self.shorten(m)
        message_drop(m)

    cdef void shorten(self, Message* m) noexcept:
        """Lets go of what was discarded at the old end of a ring."""
        cdef Topic* topic = m.topic
        cdef Message* oldest = topic.copies
        while oldest != NULL and oldest.flags & DISCARDED:
            topic.copies = oldest.next
            topic.copies_len -= 1
            if topic.copies == NULL:
                topic.copies_last = NULL
            message_drop(oldest)
            oldest = topic.copies

    cdef bint grow(self) noexcept:
        cdef size_t before = self.mask
        cdef Message** slots = <Message**>calloc(2 * (before + 1), sizeof(Message*))
        cdef Message** old = self.slots
        cdef size_t i, at
        if slots == NULL:
            return 0
        self.mask = 2 * before + 1
        for i in range(before + 1):
            if old[i] == NULL:
                continue
            at = (old[i].minor * SPREAD) >> 20 & self.mask
            while slots[at] != NULL:
                at = (at + 1) & self.mask
            slots[at] = old[i]
        free(old)
        self.slots = slots
        return 1

    # Recovery

    def numbers(self) -> list[int]:
        """The copies that are here, oldest first."""
        return sorted(self.slots[i].minor for i in range(self.mask + 1) if self.slots[i] != NULL)

    def recover(self, dict sessions not None) -> int:
        """The primary is gone: its sessions go on where it was, and what it did not dispatch is dispatched.

        `sessions` are the sessions by serial. Returns how many messages are dispatched again."""
        cdef Session session
        cdef Message* m
        cdef int again = 0
        self.ways = {}
        for session in sessions.values():
            self.go_on(session)
        self.ways = None
        for number in self.numbers():
            m = self.find(number)
            again += self.core.dispatch_again(m)
        self.core.number_from(self.number_max)
        self.let_go()
        self.forget()
        return again

    cdef void go_on(self, Session session):
        """The exchanges of a session go on where they were. A delivery whose message is gone is over but for its
        PUBREL; so is, after a restart, whatever may have been under way without our knowing."""
        cdef Message* m
        cdef dict flights = self.flights.get(session.serial, {})
        first, last = self.given.get(session.serial, (0, 0))
        go_on_with(session, self.received.get(session.serial), self.kept.get(session.serial),
                   self.contents.get(session.serial))
        session.recovered = set()
        guessed = identifiers(first, last) if self.recalled and last else []
        for packet_id in [each for each in flights if each not in set(guessed)] + guessed:
            number, taken = flights.get(packet_id, (0, True))
            m = self.find(number)
            if m != NULL and not taken:
                if restore(session, m, packet_id, AWAITS_PUBREC, LOGGED, self.way(session, m)):
                    session.recovered.add(number)
            else:
                restore(session, NULL, packet_id, AWAITS_PUBCOMP, LOGGED if packet_id in flights else GUESSED,
                        None)
        session.recovered = session.recovered or None
        skip_identifiers(session, last)

    cdef tuple way(self, Session session, Message* m):
        """How the message goes to the session, as far as its subscriptions tell. A topic is asked about once."""
        cdef Topic* topic = m.topic
        cdef dict ways = self.ways.get(<size_t>topic)
        if ways is None:
            if topic.stamp != self.core.topics.current_stamp(topic) and not self.core.refresh(topic):
                return None
            ways = self.ways[<size_t>topic] = ways_to(topic, self.flights)
        return ways.get(session.serial)


def identifiers(first: int, last: int) -> list[int]:
    """Packet identifiers from one to another, as they are given."""
    return [(first - 1 + i) % PACKET_IDS + 1 for i in range((last - first) % PACKET_IDS + 1)]
