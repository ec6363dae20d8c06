"""The packets of one connection, compiled: PUBLISH and the acknowledgements are read where they lie."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memchr, memcmp, memcpy

from holdfast.broker.core cimport Draft
from holdfast.broker.identifiers cimport has_received, has_room, is_new, receive
from holdfast.broker.intake cimport Intake
from holdfast.broker.message cimport Topic, topic_unpin
from holdfast.broker.permit cimport ANY_RIGHT
from holdfast.broker.publish cimport Stamp, read_publish_properties
from holdfast.broker.refusals cimport (
    BROKERS_OWN, NO_IDENTIFIER, NO_JOURNAL, NO_TOPIC, NOT_GIVEN, NOT_RETAINED, NOT_WITH_QOS, STILL_TAKEN,
    TAKEN_AWAY, reason_of, text_of,
)
from holdfast.broker.session cimport Session
from holdfast.broker.terms cimport Terms
from holdfast.broker.topics cimport Ahead
from holdfast.mqtt.wire cimport read_u16, read_varint, utf8_valid, varint_size

from holdfast.errors import PeerError
from holdfast.mqtt.codec import decode
from holdfast.mqtt.conventions import CATALOG_TOPIC, CHANNEL_TOPICS, RESERVED_TOPICS

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

cdef enum:
    PERMIT_UNITS = 12           # asking plain Python whether a client may publish to a topic
    REFUSAL_UNITS = 24          # counting and telling that a message was refused
    ACKNOWLEDGEMENT_UNITS = 4   # one with a reason or properties
    BYTES_IN_UNIT = 8           # of small properties, each of which becomes an object
    WORD_UNITS = 12             # a word of who serves channels to the broker itself
    CATALOG_UNITS = 512         # a catalog: then who offers it hears all anew
    WORD_BYTES_IN_UNIT = 64

cdef tuple RESERVED = tuple(name.encode() for name in RESERVED_TOPICS)
cdef bytes CHANNEL = CHANNEL_TOPICS.encode()
cdef bytes CATALOG = CATALOG_TOPIC.encode()
cdef Topic denied
cdef Topic* DENIED = &denied    # no topic: its client may not publish to it, and it is not in the table

cdef enum:
    UNHEARD_BYTES_MAX = 1024    # of filters by a peer that was reset: no answer reaches it, and more could take minutes
    UNANSWERED_MAX = 256    # filters that one connection asked for, or gave up: more wait for an answer

cdef enum:
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    QUOTA_EXCEEDED = 0x97


cdef inline bint begins(Topic* topic, bytes prefix) noexcept:
    return topic.size >= PyBytes_GET_SIZE(prefix) and (
        memcmp(topic.text, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix)) == 0)


cdef class Connection(Intake):
    cdef bint _packet(self, uint8_t first, const uint8_t* body, uint32_t size) except -1:
        """Handles one packet; 0 when nothing behind it may be looked at now."""
        cdef int kind = first >> 4
        if kind == PUBLISH and self.session is not None:
            return self._publish(first, body, size)
        if PUBACK <= kind <= PUBCOMP and self.session is not None:
            return self._acknowledgement(first, body, size)
        return self._other(kind, first, body, size)

    cdef bint _other(self, int kind, uint8_t first, const uint8_t* body, uint32_t size) except -1:
        """What is neither a message nor an acknowledgement."""
        if kind == PINGREQ and (self.session is not None or self.warm is not None):
            if first != 0xC0 or size:
                self._wrong(MALFORMED_PACKET, "PINGREQ has no flags and no body")
                return 0
            self.put(<const uint8_t*>b"\xd0\x00", 2)
            return 1
        if self.session is None and self.warm is None and kind != CONNECT:
            self._wrong(PROTOCOL_ERROR, "the first packet must be CONNECT")
            return 0
        if self._oversized(first, 1 + varint_size(size) + size):
            return 0
        if self.unheard and (kind == SUBSCRIBE or kind == UNSUBSCRIBE):
            if self.unheard_bytes > UNHEARD_BYTES_MAX:
                return 1
            self.unheard_bytes += size
        self.control = (first, PyBytes_FromStringAndSize(<char*>body, size))
        self.blocked = True
        if (kind == SUBSCRIBE or kind == UNSUBSCRIBE) and self.session is not None:
            return self._ask()
        self.core.control.append(self)
        return 0

    cdef bint _ask(self) except -1:
        """SUBSCRIBE or UNSUBSCRIBE: takes effect now, or is put aside; whether the packet behind it comes next."""
        if self.unanswered >= UNANSWERED_MAX:
            self.held_back = True
        elif not self.fresh or self.core.work_left <= 0 or self.spent >= self.core.share_max:
            self.core.aside.append(self)
        else:
            self.core.ask(self)     # which resumes this connection when that is done
        return not (self.blocked or self.closing or self.fault is not None)

    def admit(self, Session session not None) -> None:
        """The standby took over: the connection it kept now speaks for its session, as it asked to."""
        self.join(self.core.pending)
        self.session = session
        self.version = 5
        self.warm = None
        if self.control is None:
            self.resume()

    # PUBLISH

    cdef bint _publish(self, uint8_t first, const uint8_t* body, uint32_t size) except -1:
        """0 when nothing behind it may be looked at now."""
        cdef const uint8_t* at = body
        cdef const uint8_t* end = body + size
        cdef uint32_t topic_size
        cdef uint16_t packet_id = 0
        cdef uint16_t alias = 0
        cdef int64_t ack = -1
        cdef uint8_t why
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
            return 0
        if size < 2:
            self._wrong(MALFORMED_PACKET, "PUBLISH ends before its topic")
            return 0
        topic_size = read_u16(at)
        at += 2 + topic_size
        if end - at < (2 if draft.qos else 0):
            self._wrong(MALFORMED_PACKET, "PUBLISH ends inside its topic or packet identifier")
            return 0
        if draft.qos:
            packet_id = read_u16(at)
            draft.packet_id = packet_id
            at += 2
            if packet_id == 0:
                self._wrong(PROTOCOL_ERROR, "a packet identifier is never 0")
                return 0
        if self.version == 5:
            if at < end and at[0] == 0:
                at += 1
            elif not self._properties(at, end, &draft, &alias):
                return 0
            else:
                at = draft.payload
        draft.payload = at
        draft.payload_size = <uint32_t>(end - at)
        if alias or topic_size == 0:
            topic = self._aliased(body + 2, topic_size, alias)
        else:
            topic = self._topic(body + 2, topic_size)
        if self.fault is not None:
            return 0
        if draft.qos:
            if draft.qos == 2 and has_received(self.session, packet_id):
                if not first & 8 and self.session.recalled is not None and self._is_new(topic, &draft):
                    self.core.over(self.session, packet_id)
                elif topic == NULL:
                    self._answer(0x50, packet_id, 0)
                    return not self.blocked
                else:
                    self.core.repeated(topic, self, self.owe(0x50, packet_id))  # PUBREC when the first one is safe
                    return not self.blocked
            if self.inbound >= self.core.receive_max and self.version == 5:
                self._wrong(RECEIVE_MAXIMUM_EXCEEDED,
                            f"up to {self.core.receive_max} messages may be unacknowledged")
                return 0
            self.inbound += 1
            ack = self.owe(0x40 if draft.qos == 1 else 0x50, packet_id)
        if topic == NULL:
            why = NO_TOPIC
        elif topic != DENIED and topic.size and topic.text[0] == 0x24 and not self._may_publish(topic):
            why = BROKERS_OWN
        elif topic == DENIED or self.permit is not None and not self._permitted(topic, &draft):
            why = self._forbidden(topic, &draft)
        elif draft.qos == 2 and not has_room(self.session, self._is_durable(topic)):
            why = NO_IDENTIFIER
        elif self.serves and self._hear(topic, &draft):
            why = 0
            if draft.qos == 2:
                receive(self.session, packet_id, False)
            if ack >= 0:
                self.settle(<uint32_t>ack, 0)
        else:
            why = self.core.accept(topic, &draft, self, self.session.serial, ack)
            self.number_published = self.core.number
            if draft.qos == 2 and (why == 0 or why & STILL_TAKEN):
                receive(self.session, packet_id, self._is_durable(topic))
        if why:
            if topic != NULL and topic != DENIED:
                self._refuse(why, topic.text, topic.size, ack)
            else:
                self._refuse(why, body + 2, topic_size, ack)
        return self.fault is None and not self.blocked

    cdef bint _is_durable(self, Topic* topic) noexcept:
        return (<Terms>topic.terms).durable and self.core.durable_log is not None

    cdef bint _is_new(self, Topic* topic, Draft* draft):
        """Whether a message of QoS 2 is another than the one that the journal knows under its identifier."""
        if topic == NULL or topic == DENIED:
            return 1
        return is_new(self.session, draft.packet_id, PyBytes_FromStringAndSize(<char*>topic.text, topic.size),
                      PyBytes_FromStringAndSize(<char*>draft.payload, draft.payload_size))

    cdef bint _refuse(self, uint8_t why, const uint8_t* name, uint32_t size, int64_t ack) except -1:
        """Counts a message that is not taken, or only not retained, and says why: to the log, and to its publisher
        if that may be answered."""
        if why == NO_JOURNAL:
            self.unjournaled(<uint32_t>ack, PyBytes_FromStringAndSize(<char*>name, size))
            return 1
        self.core.work_left -= REFUSAL_UNITS
        self._pay(self.core.work_left + REFUSAL_UNITS)
        self.core.messages_refused += 1
        self.core.refused(self, reason_of(why), text_of(why), PyBytes_FromStringAndSize(<char*>name, size))
        if ack >= 0 and not why & STILL_TAKEN:
            if self.version == 5 and self.state.problem_info:
                self.explain(<uint32_t>ack, why)
            self.settle(<uint32_t>ack, reason_of(why))
        return 1

    cdef void unjournaled(self, uint32_t index, bytes topic):
        """MQTT 3 has no words for a refusal, so its client is sent away: it must not take an acknowledgement for a
        promise."""
        if self.closing:
            return
        self.core.messages_refused += 1
        if self.version < 5:
            self._wrong(QUOTA_EXCEEDED, "the journal takes no durable messages now; connect again later")
            return
        self.core.refused(self, QUOTA_EXCEEDED, text_of(NO_JOURNAL), topic)
        if self.state.problem_info:
            self.explain(index, NO_JOURNAL)
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

    cdef Topic* _topic(self, const uint8_t* text, uint32_t size) except? NULL:
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
            if size > self.core.topic_bytes_max:
                self._wrong(TOPIC_NAME_INVALID, f"a topic name has up to {self.core.topic_bytes_max} bytes")
                return NULL
            if self._too_deep(text, size):
                self._wrong(TOPIC_NAME_INVALID, f"a topic name has up to {self.core.levels_max} levels")
                return NULL
            return self._new_topic(text, size)
        if topic.stamp != self.core.topics.current_stamp(topic) and not self._refresh(topic):
            return NULL
        return topic

    cdef Topic* _new_topic(self, const uint8_t* text, uint32_t size) except? NULL:
        """A topic that the table does not have; one that its client may not publish to is not entered."""
        cdef int64_t before = self.core.work_left
        cdef Topic* topic = DENIED
        if self.permit is None or self.permit.rights_to(text, size) & ANY_RIGHT:
            topic = self.core.topic_at(text, size)
        if self.permit is not None:
            self.core.work_left -= PERMIT_UNITS
        self._pay(before)
        return topic

    cdef bint _refresh(self, Topic* topic) except -1:
        cdef int64_t before = self.core.work_left
        cdef bint found = self.core.refresh(topic)
        self._pay(before)
        return found

    cdef bint _permitted(self, Topic* topic, Draft* draft) except -1:
        cdef uint64_t asked = self.permit.asked
        cdef bint allowed = self.permit.allows(topic, draft.qos, draft.retain)
        if self.permit.asked != asked:
            self.core.work_left -= PERMIT_UNITS
            self._pay(self.core.work_left + PERMIT_UNITS)
        return allowed

    cdef uint8_t _forbidden(self, Topic* topic, Draft* draft) noexcept:
        """What of a message no rule gives, after `_permitted` was asked."""
        cdef uint8_t rights = self.permit.latest if topic == DENIED else self.permit.remembered(topic)
        if not rights & ANY_RIGHT:
            return TAKEN_AWAY if rights else NOT_GIVEN
        return NOT_RETAINED if draft.retain and draft.qos < rights & 3 else NOT_WITH_QOS

    cdef Topic* _aliased(self, const uint8_t* text, uint32_t size, uint16_t alias) except? NULL:
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
            if topic.stamp != self.core.topics.current_stamp(topic) and not self._refresh(topic):
                return NULL
            topic.used = 1
            return topic
        topic = self._topic(text, size)
        if topic == DENIED:
            topic = self.core.topic_at(text, size)  # what comes with the alias alone is denied too
        if topic != NULL:
            if topic.tenant == NULL and topic.retained == NULL and not self.core.put_to_use(topic, self, True):
                return NULL
            topic.pins += 1
            if self.aliases_in[alias] != NULL:
                topic_unpin(self.aliases_in[alias])
            self.aliases_in[alias] = topic
        return topic

    cdef bint _may_publish(self, Topic* topic) noexcept:
        """Topics under $SYS and the subscription prefixes are the broker's own; a client that serves channels
        publishes under theirs."""
        cdef bytes prefix
        for prefix in RESERVED:
            if begins(topic, prefix):
                return self.serves and begins(topic, CHANNEL)
        return 1

    cdef bint _hear(self, Topic* topic, Draft* draft) noexcept:
        """Whether this is a word of a client that serves channels to the broker itself; it is taken then."""
        cdef int64_t units = (CATALOG_UNITS if begins(topic, CATALOG) else WORD_UNITS) + (
            draft.payload_size // WORD_BYTES_IN_UNIT)
        if not begins(topic, CHANNEL) or topic.size == len(CHANNEL) or topic.text[len(CHANNEL)] != 0x24:
            return 0
        self.core.work_left -= units
        self._pay(self.core.work_left + units)
        self.core.heard.append((
            self.session.key,
            PyBytes_FromStringAndSize(<char*>topic.text, topic.size),
            PyBytes_FromStringAndSize(<char*>draft.payload, draft.payload_size),
            draft.qos,
            PyBytes_FromStringAndSize(<char*>draft.props, draft.props_size),
            draft.expiry_at,
            draft.expiry_s if draft.expiry_at else 0,
        ))
        return 1

    cdef bint _too_deep(self, const uint8_t* text, uint32_t size) noexcept:
        cdef uint32_t i, levels = 1
        for i in range(size):
            levels += text[i] == 0x2F
        return levels > self.core.levels_max

    # PUBACK, PUBREC, PUBREL, PUBCOMP

    cdef bint _acknowledgement(self, uint8_t first, const uint8_t* body, uint32_t size) except -1:
        """0 when nothing behind it may be looked at now."""
        cdef int kind = first >> 4
        cdef uint8_t reason = 0
        cdef uint16_t packet_id
        if size == 2 and first == (0x62 if kind == PUBREL else kind << 4):
            packet_id = read_u16(body)
        else:
            if self._oversized(first, 1 + varint_size(size) + size):
                return 0
            self.core.work_left -= ACKNOWLEDGEMENT_UNITS + size // BYTES_IN_UNIT
            self._pay(self.core.work_left + ACKNOWLEDGEMENT_UNITS + size // BYTES_IN_UNIT)
            try:
                packet = decode(first, PyBytes_FromStringAndSize(<char*>body, size), self.version,
                                self.core.pairs_max)
            except PeerError as error:
                self._wrong(error.reason, error.text)
                return 0
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
        return self.fault is None and not self.blocked

    cdef void _released(self, uint16_t packet_id):
        """PUBREL: the client will not send that QoS 2 message again."""
        cdef int64_t index
        cdef bint known = has_received(self.session, packet_id)
        index = self.owe(0x70, packet_id)
        if index < 0:
            return
        if known:
            self.core.released(self, self.session, packet_id, <uint32_t>index)
        elif self.session.released_turn > self.board.turn_safe:
            self.core.tell_when_kept(self, <uint32_t>index, self.session.released_turn)  # its first PUBREL was lost
        else:
            self.settle(<uint32_t>index, PACKET_ID_NOT_FOUND)

    cdef void _answer(self, uint8_t first_byte, uint16_t packet_id, uint8_t reason) noexcept:
        """Acknowledges at once, but never before what came earlier."""
        cdef int64_t index = self.owe(first_byte, packet_id)
        if index >= 0:
            self.settle(<uint32_t>index, reason)
