"""The sending side of one connection, compiled: encoding PUBLISH and the acknowledgements."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove

from holdfast.broker.copies cimport put_discards, put_mark
from holdfast.broker.handing_on cimport ids_of
from holdfast.broker.marks cimport mark_soon, marks_begin, marks_end
from holdfast.broker.message cimport (
    CONFIRMED, DISPATCHED, DURABLE, HEADER_ROOM, JOURNALED, MATCHED, OFFERED, OWED, RETAIN, Chunk, Had, Message, Topic, had_chunks,
    had_unlink, marked_in_passing, message_drop, message_forget_had, message_hold, message_mark, message_payload,
    message_props, message_rest, message_topic, message_wire, topic_unpin,
)
from holdfast.broker.output cimport Output, Outputs
from holdfast.broker.refusals cimport ACK_BYTES_MAX, NO_JOURNAL, write_ack
from holdfast.broker.room cimport Room
from holdfast.broker.shares cimport pool_abandon, pool_new
from holdfast.broker.tenants cimport tenant_leave
from holdfast.broker.terms cimport Terms
from holdfast.mqtt.wire cimport (
    varint_size, write_u16, write_u32, write_varint,
)

cdef extern from *:
    int __builtin_popcountll(uint64_t bits) noexcept nogil

cdef uint64_t ANNOUNCED = <uint64_t>1 << 63  # in a flight log, with an identifier: see memory.py
cdef size_t NO_BOUND = <size_t>-1 // 2
cdef uint8_t PUBACK = 0x40
cdef uint8_t PUBREC = 0x50
cdef uint8_t TOPIC_ALIAS = 0x23
cdef uint8_t NO_MATCHING_SUBSCRIBERS = 0x10
cdef uint8_t QUOTA_EXCEEDED = 0x97
cdef int64_t DISCARD_WAIT_NS = 1_000_000    # how long discards wait for copies to travel with
cdef int64_t SECOND_NS = 1_000_000_000


cdef class Board:
    def __cinit__(self) -> None:
        self.pool = pool_new(NO_BOUND, NO_BOUND)
        if self.pool == NULL:
            raise MemoryError
        self.outputs = Outputs()
        self.room = Room()
        self.overloaded = []
        self.held = []
        self.coordinated = True
        self.counting = True
        marks_begin(&self.untold)

    def __dealloc__(self) -> None:
        marks_end(&self.untold)
        self.take(&self.peers, [])
        self.take(&self.ready, [])
        self.take(&self.pumps, [])
        free(self.peers.items)
        free(self.discards)
        free(self.ready.items)
        free(self.pumps.items)
        pool_abandon(self.pool)

    def share_out(self, size_t bytes_max) -> None:
        """How much all sessions may hold together. A session that holds most makes room when seven eighths are
        taken, so that nobody has to wait for all of it."""
        self.pool.max = bytes_max
        self.pool.soft = bytes_max - bytes_max // 8

    def begin_turn(self, int64_t now_ns, int64_t wall_ns, int64_t doubts) -> None:
        """It is that time now, and so many questions may be asked whether clients may still read."""
        self.now_ns = now_ns
        self.wall_ns = wall_ns
        self.doubts_left = doubts

    @property
    def sessions_bytes(self) -> int:
        """What all sessions hold."""
        return self.pool.bytes

    cdef bint wait_in(self, Waiting* waiting, object item) noexcept:
        cdef PyObject** grown
        cdef size_t cap
        if waiting.len == waiting.cap:
            cap = waiting.cap * 2 if waiting.cap else 64
            grown = <PyObject**>realloc(waiting.items, cap * sizeof(PyObject*))
            if grown == NULL:
                return 0
            waiting.items = grown
            waiting.cap = cap
        Py_INCREF(item)
        waiting.items[waiting.len] = <PyObject*>item
        waiting.len += 1
        return 1

    cdef list take(self, Waiting* waiting, list items):
        """Puts all that waits behind these items."""
        cdef size_t i
        for i in range(waiting.len):
            items.append(<object>waiting.items[i])
            Py_DECREF(<object>waiting.items[i])
        waiting.len = 0
        return items

    def take_ready(self) -> list[Link]:
        """The links that want something of the driver, each once, those to brokers first; they are asked anew
        after this."""
        cdef list links = self.take(&self.ready, self.take(&self.peers, []))
        cdef Link link
        for link in links:
            link.listed = False
        return links

    @property
    def waiting(self) -> bool:
        return self.peers.len > 0 or self.ready.len > 0 or self.pumps.len > 0

    # Who has a message

    cdef void took(self, Message* m) noexcept:
        """A queue, a flight or a socket is done with it."""
        m.holders -= 1
        if m.holders == 0 and m.flags & OFFERED and not m.flags & DISPATCHED:
            self.dispatched(m)

    cdef void dispatched(self, Message* m) noexcept:
        """Every subscriber has it: its copy is superfluous, and its publisher may know."""
        m.flags |= DISPATCHED
        if m.had != NULL:
            message_forget_had(m)
        if m.flags & JOURNALED:
            self.done(m)
        if self.coordinated and self.backup is not None and m.copied_to == self.backup_number:
            self.discard(m)
        if m.flags & OWED:
            self.safe(m)

    cdef void discard(self, Message* m) noexcept:
        """The backup need not keep its copy; it is told so in a while."""
        cdef uint64_t* grown
        cdef uint32_t cap
        if self.discards_len == self.discards_cap:
            cap = self.discards_cap * 2 if self.discards_cap else 256
            grown = <uint64_t*>realloc(self.discards, cap * sizeof(uint64_t))
            if grown != NULL:
                self.discards = grown
                self.discards_cap = cap
        if self.discards_len == 0:
            self.discards_since_ns = self.now_ns
        if self.discards_len < self.discards_cap:
            self.discards[self.discards_len] = m.minor
            self.discards_len += 1
            (<Terms>m.topic.terms).pruned += 1

    cdef void done(self, Message* m) noexcept:
        """The journal need not bring this message back any more."""
        m.flags &= ~JOURNALED
        if self.done_log is not None:
            self.done_log.append(m.minor)

    cdef void safe(self, Message* m) noexcept:
        """Tells the publisher of a message, if by now it may know."""
        cdef Link source
        if self.mute or not m.flags & OWED or m.flags & DURABLE or not m.flags & (OFFERED | CONFIRMED) or (
                self.backup is not None and not m.flags & (CONFIRMED if m.flags & RETAIN else DISPATCHED | CONFIRMED)):
            return
        source = <Link>m.source
        source.answer_for(m)
        source.settle(m.ack_index, 0 if m.flags & MATCHED or not m.flags & OFFERED else NO_MATCHING_SUBSCRIBERS)
        if m.flags & OFFERED:
            m.source = NULL
            Py_DECREF(source)

    cdef void note(self, uint8_t mark, uint64_t serial, uint16_t packet_id, uint64_t number) noexcept:
        """Tells the backup how far a QoS 2 exchange is."""
        if self.backup is not None and put_mark(self.backup, mark, serial, packet_id, number):
            self.frames += 1

    # Who is done with a message, while others are not

    cdef void had(self, Message* m, uint64_t serial) noexcept:
        """A session is done with it; that is told in a while, unless by then all are."""
        mark_soon(&self.untold, m, serial, self.now_ns)

    cdef void had_at_once(self, Message* m, uint64_t serial) noexcept:
        """The same, where the backup knows already: only the journal is to be told."""
        cdef uint64_t bit = <uint64_t>1 << (serial & 63)
        message_mark(m, serial >> 6, bit, 1)
        if m.flags & JOURNALED and self.had_log is not None:
            self.had_log += (m.minor, serial >> 6, bit)

    cdef void log_had(self, Message* m) noexcept:
        """The journal hears of all marks of a message that are to be told."""
        cdef Chunk* chunk
        cdef uint64_t news
        cdef uint32_t i
        if not m.flags & JOURNALED or self.had_log is None:
            return
        for i in range(m.had.len):
            chunk = &had_chunks(m.had)[i]
            news = chunk.bits & ~chunk.told
            if news:
                self.had_log += (m.minor, chunk.key, news)

    cdef void marks_told(self, Had* had, uint64_t messages) noexcept:
        """From now on all that it says of so many messages counts as told, and they may share it."""
        cdef Chunk* chunk
        cdef uint32_t i
        for i in range(had.len):
            chunk = &had_chunks(had)[i]
            self.marks += messages * __builtin_popcountll(chunk.bits & ~chunk.told)
            chunk.told = chunk.bits
        had_unlink(had)

    cdef void log_flight(self, uint64_t number, uint64_t serial, uint16_t packet_id) noexcept:
        if self.flight_log is not None:
            self.flight_log += (number, serial, packet_id)

    cdef void log_announced(self, uint64_t serial, uint16_t from_id, uint16_t up_to_id) noexcept:
        self.log_flight(ANNOUNCED | up_to_id, serial, from_id)

    def tell_discards(self, bint now=False) -> None:
        """What every subscriber has, the backup may let go of: together with copies, or else after a while."""
        if self.discards_len == 0 or (not now and self.backup is not None and self.backup.out.len == 0
                                      and self.now_ns < self.discards_since_ns + DISCARD_WAIT_NS):
            return
        if self.backup is not None:
            put_discards(self.backup, self.discards, self.discards_len)
        self.discarded += self.discards_len
        self.discards_len = 0

    @property
    def discards_ns(self) -> int | None:
        """When the backup is to be told, should there be no copy for it before."""
        return self.discards_since_ns + DISCARD_WAIT_NS if self.discards_len else None


cdef class Link(Output):
    def __dealloc__(self) -> None:
        self.release()
        free(self.handed)

    cdef void release(self) noexcept:
        """Lets go of what only an open connection needs."""
        cdef uint32_t i
        self.handed_over(0)
        for i in range(self.aliases_cap):
            if self.aliases[i].topic != NULL:
                topic_unpin(self.aliases[i].topic)
        free(self.aliases)
        self.aliases = NULL
        self.aliases_cap = 0
        tenant_leave(self.tenant)
        self.tenant = NULL
        free(self.acks)
        self.acks = NULL
        self.acks_cap = 0
        self.acks_head = self.acks_tail

    cdef void mark(self) noexcept:
        """Tells the driver, through the board, that this link wants something."""
        if not self.listed and self.board is not None:
            self.listed = self.board.wait_in(&self.board.peers if self.peer else &self.board.ready, self)

    cdef bint may_read(self) noexcept:
        """Not while too much of what it sent waits, a subscriber holds it back, or it does not take its answers."""
        return not self.full and self.holds == 0 and self.sated_at == 0 and self.out.len < 4 * OUT_HIGH

    cdef void owe_for(self, Message* m, int64_t most) noexcept:
        """Its client awaits an answer to the message. When that is so for more bytes than these, no more is read."""
        m.flags |= OWED
        m.topic.unsafe += 1
        self.owed += m.size
        if self.owed > most and self.sated_at == 0:
            self.sated_at = self.owed
            self.mark()

    cdef void answer_for(self, Message* m) noexcept:
        """It is to be answered now. Reading goes on when half of what was too much was."""
        m.flags &= ~OWED
        m.topic.unsafe -= 1
        self.owed -= m.size
        if self.sated_at and 2 * self.owed <= self.sated_at:
            self.sated_at = 0
            self.mark()

    def hold(self) -> None:
        """A subscriber of what this link publishes cannot keep up: stop reading for a while."""
        self.holds += 1
        self.mark()

    def unhold(self) -> None:
        self.holds -= 1
        self.mark()

    cdef bint put(self, const uint8_t* data, size_t size) noexcept:
        if size > self.packet_max or not self.room(size):
            return 0
        memcpy(self.out.data + self.out.len, data, size)
        self.out.len += size
        self.mark()
        return 1

    def send(self, bytes data not None) -> bool:
        """Puts one encoded packet behind what already waits. Packets the client cannot take are left out."""
        if len(data) > self.packet_max or self.closing:
            return False
        if not self.put(<const uint8_t*>(<char*>data), len(data)):
            raise MemoryError
        return True

    def take_output(self) -> bytes:
        """What is to be written now, for a driver that takes it whole."""
        cdef bytes data = PyBytes_FromStringAndSize(<char*>self.out.data, self.out.len)
        self.board.bytes_sent += self.out.len
        self.empty()
        return data

    @property
    def output_size(self) -> int:
        return self.out.len

    cdef bint hand(self, Message* m) noexcept:
        """A tracked message is among the bytes to be written."""
        cdef Message** grown
        cdef uint32_t cap
        if self.handed_len == self.handed_cap:
            cap = self.handed_cap * 2 if self.handed_cap else 64
            grown = <Message**>realloc(self.handed, cap * sizeof(Message*))
            if grown == NULL:
                return 0
            self.handed = grown
            self.handed_cap = cap
        message_hold(m)
        m.holders += 1
        self.handed[self.handed_len] = m
        self.handed_len += 1
        return 1

    cdef void handed_over(self, bint written) noexcept:
        """What was to be written is written, or perhaps never will be."""
        cdef Message* m
        cdef uint32_t i
        for i in range(self.handed_len):
            m = self.handed[i]
            if self.board is not None:  # or else everything is going
                if (written and m.holders > 1 and not marked_in_passing(m, self.serial >> 6, <uint64_t>1 << (self.serial & 63))
                        and m.flags & self.board.markable):
                    self.board.had(m, self.serial)
                self.board.took(m)
            message_drop(m)
        self.handed_len = 0

    # Acknowledgements to the publisher

    cdef int64_t owe(self, uint8_t first_byte, uint16_t packet_id) noexcept:
        """Books an acknowledgement and returns its index, or -1 when memory is gone."""
        cdef uint32_t cap, i
        cdef Ack* grown
        if self.acks_tail - self.acks_head == self.acks_cap:
            cap = self.acks_cap * 2 if self.acks_cap else 16
            grown = <Ack*>calloc(cap, sizeof(Ack))
            if grown == NULL:
                return -1
            i = self.acks_head
            while i != self.acks_tail:
                grown[i & (cap - 1)] = self.acks[i & (self.acks_cap - 1)]
                i += 1
            free(self.acks)
            self.acks = grown
            self.acks_cap = cap
        cdef Ack* ack = &self.acks[self.acks_tail & (self.acks_cap - 1)]
        ack.packet_id = packet_id
        ack.first_byte = first_byte
        ack.reason = 0
        ack.done = 0
        ack.why = 0
        self.acks_tail += 1
        return self.acks_tail - 1

    cdef void settle(self, uint32_t index, uint8_t reason) noexcept:
        """The message of that acknowledgement is safe (or refused): send it, after all those before it."""
        cdef Ack* ack
        if self.acks_cap == 0 or self.closing:
            return
        ack = &self.acks[index & (self.acks_cap - 1)]
        ack.done = 1
        ack.reason = reason
        while self.acks_head != self.acks_tail:
            ack = &self.acks[self.acks_head & (self.acks_cap - 1)]
            if not ack.done:
                break
            if ack.why:
                self.put_explained(ack)
            else:
                self.put_ack(ack.first_byte, ack.packet_id, ack.reason)
            # A message stops being unacknowledged with PUBACK, with PUBCOMP, or when it was refused.
            if self.inbound and (ack.first_byte == PUBACK or (ack.first_byte == PUBREC) == (ack.reason >= 0x80)):
                self.inbound -= 1
            self.acks_head += 1

    cdef bint put_ack(self, uint8_t first_byte, uint16_t packet_id, uint8_t reason) noexcept:
        """PUBACK, PUBREC, PUBREL or PUBCOMP in its shortest form."""
        cdef uint8_t packet[5]
        packet[0] = first_byte
        packet[1] = 2
        write_u16(packet + 2, packet_id)
        if reason == 0 or self.version < 5:
            return self.put(packet, 4)
        packet[1] = 3
        packet[4] = reason
        return self.put(packet, 5)

    cdef void explain(self, uint32_t index, uint8_t why) noexcept:
        """The refusal of that message says why."""
        if self.acks_cap:
            self.acks[index & (self.acks_cap - 1)].why = why

    cdef void unjournaled(self, uint32_t index, bytes topic):
        """The message of that acknowledgement is meant for a journal that takes nothing: it is refused."""
        self.explain(index, NO_JOURNAL)
        self.settle(index, QUOTA_EXCEEDED)

    cdef bint put_explained(self, Ack* ack) noexcept:
        cdef uint8_t packet[ACK_BYTES_MAX]
        cdef size_t size = write_ack(packet, ack.first_byte, ack.packet_id, ack.reason, ack.why)
        return self.put(packet, size) or self.put_ack(ack.first_byte, ack.packet_id, ack.reason)

    # PUBLISH to the subscriber

    cdef bint put_publish(self, Message* m, uint8_t qos, uint16_t packet_id, uint8_t bits,
                          PyObject* ids) noexcept:
        """Encodes one PUBLISH; `bits` are RETAIN and DUP. Returns 0 when it may not or cannot be sent."""
        cdef uint32_t extra = 2 if qos else 0
        cdef uint32_t rest, remaining, size
        cdef uint8_t* at
        cdef uint8_t first = 0x30 | (qos << 1) | bits
        if self.version == 5 and (ids != NULL or self.aliases_max or m.expiry_at):
            ids = ids_of(ids)
            if ids != NULL or self.aliases_max or m.expiry_at:
                return self.put_special(m, first, packet_id, ids)
        if self.version == 5:
            rest = varint_size(m.props_size) + m.props_size + m.payload_size
        else:
            rest = m.payload_size
        remaining = 2 + m.topic_size + extra + rest
        size = 1 + varint_size(remaining) + remaining
        if size > self.packet_max or not self.room(size):
            return 0
        at = self.out.data + self.out.len
        self.out.len += size
        self.mark()
        if self.version == 5 and qos == 0:
            memcpy(at, message_wire(m) + m.header, size)
            at[0] = first
            return 1
        at[0] = first
        at += 1
        at += write_varint(at, remaining)
        memcpy(at, message_topic(m), 2 + m.topic_size)
        at += 2 + m.topic_size
        if qos:
            write_u16(at, packet_id)
            at += 2
        memcpy(at, message_rest(m) if self.version == 5 else message_payload(m), rest)
        return 1

    cdef bint put_special(self, Message* m, uint8_t first, uint16_t packet_id, PyObject* ids) noexcept:
        """PUBLISH with something to add or to change: subscription identifiers, an alias, the expiry left."""
        cdef uint32_t ids_size = 0 if ids == NULL else PyBytes_GET_SIZE(<object>ids)
        cdef bint fresh = 0
        cdef uint16_t alias = self.alias_of(m.topic, &fresh) if self.aliases_max else 0
        cdef uint32_t topic_size = 0 if alias and not fresh else m.topic_size
        cdef uint32_t props_size = m.props_size + ids_size + (3 if alias else 0)
        cdef uint32_t remaining = 2 + topic_size + varint_size(props_size) + props_size + m.payload_size
        cdef uint32_t size
        cdef int64_t left
        cdef uint8_t* at
        if first & 0x06:
            remaining += 2
        size = 1 + varint_size(remaining) + remaining
        if size > self.packet_max or not self.room(size):
            if fresh:
                self.forget_alias(m.topic)
            return 0
        at = self.out.data + self.out.len
        self.out.len += size
        self.mark()
        at[0] = first
        at += 1
        at += write_varint(at, remaining)
        write_u16(at, topic_size)
        memcpy(at + 2, message_topic(m) + 2, topic_size)
        at += 2 + topic_size
        if first & 0x06:
            write_u16(at, packet_id)
            at += 2
        at += write_varint(at, props_size)
        if alias:
            at[0] = TOPIC_ALIAS
            write_u16(at + 1, alias)
            at += 3
        if ids_size:
            memcpy(at, PyBytes_AS_STRING(<object>ids), ids_size)
            at += ids_size
        memcpy(at, message_props(m), m.props_size + m.payload_size)
        if m.expiry_at:
            left = (m.expires_ns - self.board.now_ns + SECOND_NS - 1) // SECOND_NS
            write_u32(at + m.expiry_at, <uint32_t>(left if left > 0 else 0))
        return 1

    cdef uint16_t alias_of(self, Topic* topic, bint* fresh) noexcept:
        """The alias of a topic towards this client, given when first asked for; 0 when all are taken, or half of
        what topics in use may take is: an alias keeps its topic in use."""
        cdef uint32_t at
        if self.aliases == NULL:
            self.aliases_cap = 16
            while self.aliases_cap < 2 * self.aliases_max:
                self.aliases_cap *= 2
            self.aliases = <Alias*>calloc(self.aliases_cap, sizeof(Alias))
            if self.aliases == NULL:
                self.aliases_cap = 0
                return 0
        at = topic.hash & (self.aliases_cap - 1)
        while self.aliases[at].topic != NULL:
            if self.aliases[at].topic == topic:
                return self.aliases[at].number
            at = (at + 1) & (self.aliases_cap - 1)
        if self.aliases_len == self.aliases_max:
            return 0
        if self.board.tenants != NULL and 2 * self.board.tenants.held > self.board.tenants.max:
            return 0
        self.aliases_len += 1
        topic.pins += 1
        self.aliases[at].topic = topic
        self.aliases[at].number = self.aliases_len
        fresh[0] = 1
        return self.aliases_len

    cdef void forget_alias(self, Topic* topic) noexcept:
        """Takes back the alias given last: the packet that would have announced it was not sent."""
        cdef uint32_t at = topic.hash & (self.aliases_cap - 1)
        while self.aliases[at].topic != topic:
            at = (at + 1) & (self.aliases_cap - 1)
        self.aliases[at].topic = NULL
        self.aliases_len -= 1
        topic_unpin(topic)

    def allow_aliases(self, uint32_t most) -> None:
        """The client said how many topic aliases it takes."""
        self.aliases_max = min(most, <uint32_t>ALIASES_MAX)


cdef class Inbox:
    def __init__(self, size_t size) -> None:
        self.buffer = bytearray(size)
        self.data = self.buffer
        self.size = size


cdef class Wire(Link):
    def __cinit__(self) -> None:
        self.fd = -1
        self.writable = True

    cpdef received(self, size_t size, int64_t now_ns, int64_t wall_ns):
        """So many bytes were read into the inbox."""
        raise NotImplementedError

    cpdef drained(self):
        """The socket takes bytes again."""
        self.writable = True
        if self.out.len:
            self.mark()

    cpdef flushed(self):
        """What was ready has been written: more may follow."""
        if self.handed_len and not self.choked:
            self.handed_over(1)

    cpdef bint wants_bytes(self):
        """Whether the driver should read."""
        return self.may_read()

    cpdef bint owes_answer(self):
        """Whether what the peer said last is still to be dealt with, though it may be gone."""
        return False

    cdef void sent(self, size_t size) noexcept:
        """So many of the bytes that waited were written."""
        if size >= self.out.len:
            self.empty()
        elif size:
            self.out.len -= size
            memmove(self.out.data, self.out.data + size, self.out.len)
