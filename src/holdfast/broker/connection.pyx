"""The receiving side of one connection, compiled: PUBLISH and the acknowledgements are read where they lie."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcpy, memmove, memset

from holdfast.broker.core cimport Core, Draft
from holdfast.broker.link cimport OUT_HIGH, Inbox
from holdfast.broker.message cimport Topic, topic_unpin
from holdfast.broker.meter cimport Meter
from holdfast.broker.publish cimport Stamp, read_publish_properties
from holdfast.broker.session cimport Session
from holdfast.broker.terms cimport Terms
from holdfast.broker.topics cimport AHEAD, Ahead
from holdfast.broker.unfinished cimport UnfinishedWire
from holdfast.mqtt.wire cimport (
    VARINT_BAD, VARINT_SHORT, Out, out_free, out_trim, read_u16, read_varint, utf8_valid,
)

from holdfast.errors import PeerError
from holdfast.mqtt.codec import decode

cdef enum:
    CONNECT = 1
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    UNSUBSCRIBE = 10
    PINGREQ = 12
    DISCONNECT = 14

cdef enum:
    UNANSWERED_MAX = 16     # SUBSCRIBEs and UNSUBSCRIBEs of one connection: more wait for an answer

cdef enum:
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    NOT_AUTHORIZED = 0x87
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97


cdef class Connection(UnfinishedWire):
    def __init__(self, Core core not None, Inbox inbox, int64_t now_ns) -> None:
        self.core = core
        self.board = core.board
        self.inbox = inbox
        self.opened_ns = now_ns
        self.heard_ns = now_ns
        self.packet_bytes_max = core.packet_bytes_max
        if self.share.pool == NULL:
            self.join(core.connecting)
            self.join_outputs(self.board.outputs)

    def __dealloc__(self) -> None:
        self._let_go()

    cdef void _let_go(self) noexcept:
        cdef uint32_t i
        self.forget_pending()
        if self.aliases_in != NULL:
            for i in range(self.aliases_in_len):
                if self.aliases_in[i] != NULL:
                    topic_unpin(self.aliases_in[i])
            free(self.aliases_in)
            self.aliases_in = NULL

    def closed(self) -> None:
        """The socket is gone, or soon will be: nothing more is read or sent."""
        self.closing = True
        self.session = None
        self.release()
        self._let_go()
        self.mark()

    def bind(self, Session session not None, int version) -> None:
        """CONNECT was accepted: this connection now speaks for that session."""
        self.join(self.core.pending)
        self.session = session
        self.version = version

    # What the driver calls

    cpdef received(self, size_t size, int64_t now_ns, int64_t wall_ns):
        """So many bytes were read into the inbox."""
        if size > self.inbox.size:
            raise ValueError("more bytes than the inbox holds")
        self.core.board.now_ns = now_ns
        self.core.board.wall_ns = wall_ns
        self._take(self.inbox.data, size)

    def feed(self, bytes data not None, int64_t now_ns, int64_t wall_ns) -> None:
        """These bytes were read."""
        self.core.board.now_ns = now_ns
        self.core.board.wall_ns = wall_ns
        self._take(<const uint8_t*>(<char*>data), len(data))

    def resume(self) -> None:
        """Plain Python has answered: go on with what waited behind that packet."""
        self.blocked = False
        self.control = None
        if self.pending.len > OUT_HIGH:
            self.mark()
        if self.pending.len and not self.closing:
            self._take(NULL, 0)

    def answered(self) -> None:
        """One of its SUBSCRIBEs or UNSUBSCRIBEs was."""
        self.unanswered -= 1
        if self.held_back and not self.closing:
            self.held_back = False
            self.core.aside.append(self)

    def limit(self, Meter listener, Meter user) -> None:
        """How fast it may send, together with who else has these meters."""
        self.listener_meter = listener
        self.user_meter = user
        self.metered = listener is not None or user is not None

    def go_on(self) -> None:
        """It has been slow for long enough."""
        self.slowed_ns = 0
        self.heard_ns = self.board.now_ns
        if self.unfinished_ns:
            self.unfinished_ns = self.board.now_ns
        self.mark()
        if self.control is None:
            self.resume()

    cpdef drained(self):
        if self.session is not None:
            self.session.want_pump()
        UnfinishedWire.drained(self)

    cpdef flushed(self):
        UnfinishedWire.flushed(self)
        if self.session is not None and self.session.link is self and (
                self.session.queued or self.session.resend != self.session.tail):
            self.session.want_pump()

    cpdef bint wants_bytes(self):
        """Not while it must slow down, nor while much waits behind a packet that is still to be answered."""
        return self.may_read() and self.slowed_ns == 0 and not (self.blocked and self.pending.len > OUT_HIGH)

    cpdef bint owes_answer(self):
        return self.control is not None or self.unanswered > 0

    # Bytes to packets

    cdef void _take(self, const uint8_t* data, size_t size):
        cdef size_t used
        cdef Out whole
        self.core.bytes_received += size
        self.fresh = data != NULL
        if self.closing or self.fault is not None:
            return
        if self.blocked or self.pending.len:
            if not self.keep(data, size) or self.blocked:
                return
            whole = self.pending    # a packet may end this connection, which lets go of what is pending
            memset(&self.pending, 0, sizeof(Out))
            used = self._parse(whole.data, whole.len)
            whole.len -= used
            if whole.len == 0 or self.closing:
                out_free(&whole)
            elif used:
                memmove(whole.data, whole.data + used, whole.len)
                out_trim(&whole)
            self.pending = whole
        else:
            used = self._parse(data, size)
            if used < size and not self.closing and not self.keep(data + used, size - used):
                return
        self.count_pending()
        if self.pending.len == 0:
            self.unfinished_ns = 0
        elif used or self.unfinished_ns == 0:
            self.unfinished_ns = self.board.now_ns

    cdef size_t _parse(self, const uint8_t* data, size_t size):
        """Handles every whole packet and returns how many bytes they took."""
        cdef const uint8_t* at = data
        cdef const uint8_t* end = data + size
        cdef const uint8_t* body
        cdef const uint8_t* seen = at
        cdef long length
        cdef int head = 0
        self.core.ahead.len = 0
        self.core.ahead.next = 0
        while at < end:
            if at >= seen:
                seen = self._look_ahead(at, end)
            length = read_varint(at + 1, end, &head)
            if length < 0:
                if length == VARINT_BAD:
                    self._wrong(MALFORMED_PACKET, "the remaining length is not written in the fewest bytes, four at most")
                break
            if length + 1 + head > self.packet_bytes_max:
                self._wrong(PACKET_TOO_LARGE, f"packets may have up to {self.packet_bytes_max} bytes")
                break
            body = at + 1 + head
            if end - body < length:
                break
            self.heard_ns = self.board.now_ns
            self.core.packets_received += 1
            if self.warm is not None and self._too_early(at[0]):
                break
            if not self._packet(at[0], body, <uint32_t>length):
                at = body + length
                break
            if self.metered and self._charge(at[0], 1 + head + length):
                at = body + length
                break
            at = body + length
        return at - data

    cdef bint _charge(self, uint8_t first, size_t size):
        """Counts a packet against what its listener and its user may send; whether it must slow down."""
        cdef int64_t now_ns = self.board.now_ns
        cdef int64_t even_ns = 0
        cdef bint message = first >> 4 == PUBLISH
        if self.listener_meter is not None:
            even_ns = self.listener_meter.charge(message, size, now_ns)
        if self.user_meter is not None:
            even_ns = max(even_ns, self.user_meter.charge(message, size, now_ns))
        if even_ns <= now_ns:
            return 0
        self.slowed_ns = even_ns
        self.blocked = True
        self.core.slowed.append(self)
        return 1

    cdef const uint8_t* _look_ahead(self, const uint8_t* at, const uint8_t* end) noexcept:
        """Fetches the topics of the PUBLISHes that come next; returns where it stopped."""
        cdef Ahead* ahead = &self.core.ahead
        cdef const uint8_t* body
        cdef long length
        cdef uint32_t size
        cdef int head = 0
        ahead.len = 0
        ahead.next = 0
        while at < end and ahead.len < AHEAD:
            length = read_varint(at + 1, end, &head)
            body = at + 1 + head
            if length < 2 or length > end - body or at[0] >> 4 != PUBLISH:
                break
            size = read_u16(body)
            if <long>size + 2 > length:
                break
            ahead.text[ahead.len] = body + 2
            ahead.hash[ahead.len] = self.core.topics.hash_of(body + 2, size)
            ahead.len += 1
            at = body + length
        if ahead.len > 1:
            self.core.topics.fetch(ahead)
        return at if ahead.len else at + 1

    cdef bint _packet(self, uint8_t first, const uint8_t* body, uint32_t size):
        """Handles one packet; 0 when nothing behind it may be looked at now."""
        cdef int kind = first >> 4
        if kind == PUBLISH and self.session is not None:
            self._publish(first, body, size)
            return self.fault is None
        if PUBACK <= kind <= PUBCOMP and self.session is not None:
            self._acknowledgement(first, body, size)
            return self.fault is None
        if kind == PINGREQ and (self.session is not None or self.warm is not None):
            if first != 0xC0 or size:
                self._wrong(MALFORMED_PACKET, "PINGREQ has no flags and no body")
                return 0
            self.put(<const uint8_t*>b"\xd0\x00", 2)
            return 1
        if self.session is None and self.warm is None and kind != CONNECT:
            self._wrong(PROTOCOL_ERROR, "the first packet must be CONNECT")
            return 0
        self.control = (first, PyBytes_FromStringAndSize(<char*>body, size))
        self.blocked = True
        if (kind == SUBSCRIBE or kind == UNSUBSCRIBE) and self.session is not None:
            return self._ask()
        self.core.control.append(self)
        return 0

    cdef bint _ask(self):
        """SUBSCRIBE or UNSUBSCRIBE: takes effect now, or is put aside; whether the packet behind it comes next."""
        if self.unanswered >= UNANSWERED_MAX:
            self.held_back = True
        elif not self.fresh or self.core.ask_left <= 0:
            self.core.aside.append(self)
        else:
            self.core.ask(self)     # which resumes this connection when that is done
        return not (self.blocked or self.closing or self.fault is not None)

    cdef bint _too_early(self, uint8_t first):
        """Whether a packet must wait until the standby that keeps this connection is needed."""
        if first >> 4 == PINGREQ or first >> 4 == DISCONNECT:
            return 0
        self.blocked = True
        return 1

    def admit(self, Session session not None) -> None:
        """The standby took over: the connection it kept now speaks for its session, as it asked to."""
        self.join(self.core.pending)
        self.session = session
        self.version = 5
        self.warm = None
        if self.control is None:
            self.resume()

    cdef void _wrong(self, int reason, str text):
        """The peer broke a rule: nothing more is read, and plain Python tells it so."""
        if self.fault is None:
            self.fault = (reason, text)
            self.core.control.append(self)

    # PUBLISH

    cdef void _publish(self, uint8_t first, const uint8_t* body, uint32_t size):
        cdef const uint8_t* at = body
        cdef const uint8_t* end = body + size
        cdef uint32_t topic_size
        cdef uint16_t packet_id = 0
        cdef uint16_t alias = 0
        cdef int64_t ack = -1
        cdef uint8_t reason
        cdef Topic* topic
        cdef Draft draft
        draft.qos = (first >> 1) & 3
        draft.retain = first & 1
        draft.expiry_at = 0
        draft.packet_id = 0
        draft.created_ns = 0
        draft.publisher = 0
        draft.props_size = 0
        if draft.qos == 3 or (draft.qos == 0 and first & 8):
            self._wrong(MALFORMED_PACKET, "PUBLISH flags: QoS is 0, 1 or 2, and DUP needs QoS 1 or 2")
            return
        if size < 2:
            self._wrong(MALFORMED_PACKET, "PUBLISH ends before its topic")
            return
        topic_size = read_u16(at)
        at += 2 + topic_size
        if end - at < (2 if draft.qos else 0):
            self._wrong(MALFORMED_PACKET, "PUBLISH ends inside its topic or packet identifier")
            return
        if draft.qos:
            packet_id = read_u16(at)
            draft.packet_id = packet_id
            at += 2
            if packet_id == 0:
                self._wrong(PROTOCOL_ERROR, "a packet identifier is never 0")
                return
        if self.version == 5:
            if at < end and at[0] == 0:
                at += 1
            elif not self._properties(at, end, &draft, &alias):
                return
            else:
                at = draft.payload
        draft.payload = at
        draft.payload_size = <uint32_t>(end - at)
        if alias or topic_size == 0:
            topic = self._aliased(body + 2, topic_size, alias)
        else:
            topic = self._topic(body + 2, topic_size)
        if self.fault is not None:
            return
        if draft.qos:
            if draft.qos == 2 and self.session.received is not None and packet_id in self.session.received:
                if topic == NULL:
                    self._answer(0x50, packet_id, 0)
                else:
                    self.core.repeated(topic, self, self.owe(0x50, packet_id))  # PUBREC when the first one is safe
                return
            if self.inbound >= self.core.receive_max and self.version == 5:
                self._wrong(RECEIVE_MAXIMUM_EXCEEDED,
                            f"up to {self.core.receive_max} messages may be unacknowledged")
                return
            self.inbound += 1
            ack = self.owe(0x40 if draft.qos == 1 else 0x50, packet_id)
        if topic == NULL:
            reason = QUOTA_EXCEEDED
        elif topic.size and topic.text[0] == 0x24 and not self.core.may_publish(topic, self.serves):
            reason = NOT_AUTHORIZED
        elif self.permit is not None and not self.permit.allows(topic):
            reason = NOT_AUTHORIZED
        elif self.serves and self.core.hear(topic, &draft, self.session.client_id):
            reason = 0
            if draft.qos == 2:
                self.session.receive(packet_id)
            if ack >= 0:
                self.settle(<uint32_t>ack, 0)
        else:
            reason = self.core.accept(topic, &draft, self, self.session.serial, ack)
            self.number_published = self.core.number
            if draft.qos == 2 and reason == 0:
                self.session.receive(packet_id)
        if reason:
            self.core.messages_refused += 1
            if ack >= 0 and not self._not_journaled(topic, reason, <uint32_t>ack):
                self.settle(<uint32_t>ack, reason)

    cdef bint _not_journaled(self, Topic* topic, uint8_t reason, uint32_t ack):
        """Refuses a durable message that cannot be kept now; says whether it was one."""
        if (reason != QUOTA_EXCEEDED or not self.core.journal_refuses or topic == NULL
                or not (<Terms>topic.terms).durable):
            return 0
        self.unjournaled(ack)
        return 1

    cdef void unjournaled(self, uint32_t index):
        """MQTT 3 has no words for a refusal, so its client is sent away: it must not take an acknowledgement for a
        promise."""
        if self.closing:
            return
        if self.version < 5:
            self._wrong(QUOTA_EXCEEDED, "the journal takes no durable messages now; connect again later")
            return
        if self.state.problem_info:
            self.explain(index)
        self.settle(index, QUOTA_EXCEEDED)

    cdef bint _properties(self, const uint8_t* at, const uint8_t* end, Draft* draft, uint16_t* alias) except -1:
        """Reads and checks the properties of a PUBLISH; leaves where the payload begins in draft.payload."""
        cdef Stamp stamp
        cdef int head = 0
        cdef long length = read_varint(at, end, &head)
        if length < 0 or length > end - at - head:
            self._wrong(MALFORMED_PACKET, "PUBLISH ends inside its properties")
            return 0
        at += head
        if not read_publish_properties(at, at + length, &stamp):
            self._wrong(stamp.reason, stamp.words.decode())
            return 0
        draft.payload = at + length
        draft.props = at
        draft.props_size = <uint32_t>length
        draft.expiry_at = stamp.expiry_at
        draft.expiry_s = stamp.expiry_s
        draft.created_ns = stamp.created_ns
        draft.sequence = stamp.sequence
        draft.publisher = stamp.publisher
        alias[0] = stamp.alias
        if stamp.alias_at:
            # An alias is between two neighbours only: the rest of the properties close up over it.
            memcpy(self.core.scratch(length), at, stamp.alias_at - 1)
            memcpy(self.core.scratch(length) + stamp.alias_at - 1, at + stamp.alias_at + 2,
                   length - stamp.alias_at - 2)
            draft.props = self.core.scratch(length)
            draft.props_size = <uint32_t>length - 3
            if draft.expiry_at > stamp.alias_at:
                draft.expiry_at -= 3
        return 1

    cdef Topic* _topic(self, const uint8_t* text, uint32_t size):
        """The topic of that name; a name that was seen before needs no checking."""
        cdef Ahead* ahead = &self.core.ahead
        cdef uint64_t hash
        cdef Topic* topic
        while ahead.next < ahead.len and ahead.text[ahead.next] < text:
            ahead.next += 1  # a name that was not needed: the packet had an alias
        if ahead.next < ahead.len and ahead.text[ahead.next] == text:
            hash = ahead.hash[ahead.next]
            ahead.next += 1
        else:
            hash = self.core.topics.hash_of(text, size)
        topic = self.core.topics.find(text, size, hash)
        if topic == NULL:
            if memchr(text, 0x2B, size) != NULL or memchr(text, 0x23, size) != NULL:
                self._wrong(TOPIC_NAME_INVALID, "a topic name has no wildcards")
                return NULL
            if not utf8_valid(text, size):
                self._wrong(MALFORMED_PACKET, "a topic name is UTF-8 without U+0000")
                return NULL
            if self.core.too_deep(text, size):
                self._wrong(TOPIC_NAME_INVALID, f"a topic name has up to {self.core.levels_max} levels")
                return NULL
            return self.core.topic_at(text, size)
        if topic.stamp != self.core.topics.current_stamp(topic) and not self.core.refresh(topic):
            return NULL
        return topic

    cdef Topic* _aliased(self, const uint8_t* text, uint32_t size, uint16_t alias):
        """The topic behind an alias, or the topic that an alias is given to."""
        cdef Topic* topic
        if alias == 0:
            if self.version == 5:
                self._wrong(PROTOCOL_ERROR, "an empty topic name needs a topic alias")
            else:
                self._wrong(TOPIC_NAME_INVALID, "a topic name has at least one character")
            return NULL
        if alias > self.core.alias_max:
            self._wrong(TOPIC_ALIAS_INVALID, f"topic aliases go up to {self.core.alias_max}")
            return NULL
        if self.aliases_in == NULL:
            self.aliases_in = <Topic**>calloc(self.core.alias_max + 1, sizeof(Topic*))
            if self.aliases_in == NULL:
                return NULL
            self.aliases_in_len = self.core.alias_max + 1
        if size == 0:
            topic = self.aliases_in[alias]
            if topic == NULL:
                self._wrong(PROTOCOL_ERROR, f"topic alias {alias} was not given to any topic")
                return NULL
            if topic.stamp != self.core.topics.current_stamp(topic) and not self.core.refresh(topic):
                return NULL
            topic.used = 1
            return topic
        topic = self._topic(text, size)
        if topic != NULL:
            topic.pins += 1
            if self.aliases_in[alias] != NULL:
                topic_unpin(self.aliases_in[alias])
            self.aliases_in[alias] = topic
        return topic

    # PUBACK, PUBREC, PUBREL, PUBCOMP

    cdef void _acknowledgement(self, uint8_t first, const uint8_t* body, uint32_t size):
        cdef int kind = first >> 4
        cdef uint8_t reason = 0
        cdef uint16_t packet_id
        if size == 2 and first == (0x62 if kind == PUBREL else kind << 4):
            packet_id = read_u16(body)
        else:
            try:
                packet = decode(first, PyBytes_FromStringAndSize(<char*>body, size), self.version)
            except PeerError as error:
                self._wrong(error.reason, error.text)
                return
            packet_id = packet.packet_id
            reason = packet.reason
        if packet_id == 0:
            self._wrong(PROTOCOL_ERROR, "a packet identifier is never 0")
        elif kind == PUBACK:
            self.session.acked(packet_id)
        elif kind == PUBREC:
            if not self.session.received_by_client(packet_id, reason):
                self.put_ack(0x62, packet_id, PACKET_ID_NOT_FOUND)
            elif reason < 0x80:
                self.core.taken(self.session, packet_id)
        elif kind == PUBCOMP:
            self.session.completed(packet_id)
        else:
            self._released(packet_id)

    cdef void _released(self, uint16_t packet_id):
        """PUBREL: the client will not send that QoS 2 message again."""
        cdef int64_t index
        if self.session.received is not None and packet_id in self.session.received:
            self.session.received.discard(packet_id)
            index = self.owe(0x70, packet_id)
            if index >= 0:
                self.core.released(self, self.session.serial, packet_id, <uint32_t>index)
        else:
            self._answer(0x70, packet_id, PACKET_ID_NOT_FOUND)

    cdef void _answer(self, uint8_t first_byte, uint16_t packet_id, uint8_t reason) noexcept:
        """Acknowledges at once, but never before what came earlier."""
        cdef int64_t index = self.owe(first_byte, packet_id)
        if index >= 0:
            self.settle(<uint32_t>index, reason)
