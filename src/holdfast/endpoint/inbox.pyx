"""Messages that arrived and wait for their user.

Laws:
- each message of a publisher and topic is given out once, in order, with the gap before it
- a message is acknowledged when it is taken; its duplicate is acknowledged no earlier
- a retained copy is history: it is always given out, and says nothing about order
- with a `sink`, what it may have goes there and is acknowledged as the sink wants; the rest waits as ever
- `scan` takes only what it fully understands: anything else is left to the codec, which says what is wrong
"""

from collections import deque

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp

from holdfast.endpoint.messages cimport Message
from holdfast.endpoint.order cimport DUPLICATE, Order, Stream, Topic
from holdfast.endpoint.sink cimport Sink
from holdfast.mqtt.wire cimport Out, out_free, out_reserve, read_u16, read_varint, write_u16

from holdfast.mqtt.conventions import STAMP_CHARS_MAX, VIEW_TOPIC, find_stamp

cdef enum:
    PUBLISH_QOS_0 = 0x30
    PUBLISH_QOS_1 = 0x32
    RETAIN = 0x01
    DIGITS_MAX = 18  # of a number that surely fits
    SLASH = 0x2F
    PUBACK_BYTE = 0x40
    PUBACK_BYTES = 4
    USER_PROPERTY_BYTES = 7  # identifier, "hf" and the length of its value

cdef int STAMP_MAX = STAMP_CHARS_MAX
cdef bytes VIEW_NAME = VIEW_TOPIC.encode()
cdef const uint8_t* STAMP_PREFIX = <const uint8_t*>b"\x26\x00\x02hf"


cdef inline const uint8_t* read_digits(const uint8_t* at, const uint8_t* end, int64_t* value) noexcept nogil:
    """Behind the '/' that follows a plain decimal number, or NULL: what has another form is left to others."""
    cdef const uint8_t* start = at
    cdef int64_t number = 0
    if at < end and at[0] == 48 and not (at + 1 < end and at[1] == SLASH):
        return NULL
    while at < end and 48 <= at[0] <= 57:
        if at - start > DIGITS_MAX:
            return NULL
        number = number * 10 + (at[0] - 48)
        at += 1
    if at == start or at == end or at[0] != SLASH:
        return NULL
    value[0] = number
    return at + 1


cdef inline bint has_slash(const uint8_t* at, const uint8_t* end) noexcept nogil:
    while at < end:
        if at[0] == SLASH:
            return 1
        at += 1
    return 0


cdef class Inbox:
    cdef readonly Order order
    cdef object queue
    cdef object append
    cdef object popleft
    cdef Py_ssize_t queue_max
    # The stream of the stamp that was read last.
    cdef Stream found
    cdef readonly Sink sink
    # How many messages the sink was given.
    cdef readonly int64_t poured
    # What the sink's messages leave behind: their PUBACKs, and one that is used for all.
    cdef Out acknowledgements
    # What waits to be released: behind how many messages, whose it is, and PUBACKs or one identifier.
    cdef object held
    cdef Message scratch

    def __init__(self, Py_ssize_t queue_max, int streams_max):
        self.order = Order(streams_max)
        self.queue = deque()
        self.append = self.queue.append
        self.popleft = self.queue.popleft
        self.queue_max = queue_max
        self.held = deque()
        self.scratch = Message.__new__(Message)

    def __dealloc__(self):
        out_free(&self.acknowledgements)

    def __len__(self):
        return len(self.queue)

    @property
    def full(self):
        return len(self.queue) >= self.queue_max or (self.sink is not None and self.sink.full)

    @property
    def drained(self):
        return len(self.queue) <= self.queue_max // 2 and not (self.sink is not None and self.sink.full)

    def scan(self, bytes data not None, Py_ssize_t start, int64_t wall_ns, protocol, dict unacknowledged not None,
             set unreleased not None, Py_ssize_t unacknowledged_max, Py_ssize_t packet_bytes_max):
        """Takes messages of QoS 0 and 1 from the front of `data`; returns where the first other packet begins."""
        cdef const uint8_t* base = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef const uint8_t* end = base + PyBytes_GET_SIZE(data)
        cdef const uint8_t* at = base + start
        cdef const uint8_t* behind
        cdef Py_ssize_t room = self.queue_max - len(self.queue)
        cdef int size = 0
        cdef int packet_id
        cdef long length
        cdef Message message
        while room > 0 and end - at >= 2 and (
                at[0] == PUBLISH_QOS_0 or at[0] == PUBLISH_QOS_0 | RETAIN
                or at[0] == PUBLISH_QOS_1 or at[0] == PUBLISH_QOS_1 | RETAIN):
            length = read_varint(at + 1, end, &size)
            if length < 0 or end - at - 1 - size < length or 1 + size + length > packet_bytes_max:
                break
            behind = at + 1 + size + length
            if self.sink is not None:
                if self.sink.full:
                    break
                if self._pour(at[0], at + 1 + size, behind, wall_ns, unacknowledged, unreleased):
                    at = behind
                    continue
                if self.sink.holds:
                    break
            message = self._read(at[0], at + 1 + size, behind)
            if message is None:
                break
            if message.qos:
                packet_id = message.packet_id
                if packet_id in unacknowledged or packet_id in unreleased or (
                        len(unacknowledged) >= unacknowledged_max):
                    break
                unacknowledged[packet_id] = 1
                message.owner = protocol
            message.arrived_ns = wall_ns
            at = behind
            if message.stamped and not message.retain:
                message.missed = self.order.advance(self.found, message.number)
                if message.missed == DUPLICATE:
                    if message.qos == 0:
                        continue
                    message.ghost = True
            self.append(message)
            room -= 1
        if self.acknowledgements.len:
            packets = PyBytes_FromStringAndSize(<char*>self.acknowledgements.data, self.acknowledgements.len)
            self.acknowledgements.len = 0
            if self.sink.holds:
                self.held.append((self.poured, protocol, packets))
            else:
                protocol.acknowledge_taken(packets)
        return at - base

    cdef bint _pour(self, int first, const uint8_t* at, const uint8_t* end, int64_t wall_ns, dict unacknowledged,
                    set unreleased) except -1:
        """Gives the message in a body to the sink; says no if it is none for a sink."""
        cdef Topic topic
        cdef int packet_id = 0
        cdef int64_t missed = 0
        cdef bint holds = self.sink.holds
        cdef uint8_t* answer
        if first & RETAIN and not holds:
            return False
        topic = self._read_topic(at, end)
        if topic is None:
            return False
        at += 2 + read_u16(at)
        if first & 0x02:
            if end - at < 3:
                return False
            packet_id = read_u16(at)
            if packet_id == 0 or packet_id in unacknowledged or packet_id in unreleased:
                return False
            at += 2
        if at[0] == 0 and holds:
            at += 1
            self.scratch.author = None
            self.scratch.created = self.scratch.number = -1
        else:
            at = self._read_stamp(self.scratch, topic, at, end)
            if at == NULL:
                return False
            missed = self.order.advance(self.found, self.scratch.number)
        if packet_id:
            if not out_reserve(&self.acknowledgements, PUBACK_BYTES):
                raise MemoryError
            answer = self.acknowledgements.data + self.acknowledgements.len
            answer[0] = PUBACK_BYTE
            answer[1] = 2
            write_u16(answer + 2, packet_id)
            self.acknowledgements.len += PUBACK_BYTES
        self.poured += 1
        self.sink.put(topic.name, at, end - at, self.scratch.author, self.scratch.created, self.scratch.number, wall_ns,
                      missed)
        return True

    cdef Topic _read_topic(self, const uint8_t* at, const uint8_t* end):
        """The topic at the front of a body; None if a message of it needs more thought."""
        cdef Py_ssize_t name_size
        if end - at < 2:
            return None
        name_size = read_u16(at)
        if end - at < name_size + 3:
            return None
        if name_size == PyBytes_GET_SIZE(VIEW_NAME) and memcmp(at + 2, PyBytes_AS_STRING(VIEW_NAME), name_size) == 0:
            return None
        return self.order.topic(at + 2, name_size)

    cdef Message _read(self, int first, const uint8_t* at, const uint8_t* end):
        """The message in a body; None unless its only property is a stamp, or it has none."""
        cdef Topic topic = self._read_topic(at, end)
        cdef Message message
        cdef int packet_id = 0
        if topic is None:
            return None
        at += 2 + read_u16(at)
        if first & 0x02:
            if end - at < 3:
                return None
            packet_id = read_u16(at)
            if packet_id == 0:
                return None
            at += 2
        message = Message.__new__(Message)
        message.topic = topic.name
        message.qos = first >> 1 & 3
        message.retain = first & RETAIN
        message.packet_id = packet_id
        if at[0] == 0:
            at += 1
        else:
            at = self._read_stamp(message, topic, at, end)
            if at == NULL:
                return None
        message.payload = PyBytes_FromStringAndSize(<const char*>at, end - at)
        return message

    cdef const uint8_t* _read_stamp(self, Message message, Topic topic, const uint8_t* at,
                                    const uint8_t* end) except? NULL:
        """Behind properties that are exactly one stamp, which the message gets; NULL for others."""
        cdef int size = 0
        cdef long length = read_varint(at, end, &size)
        cdef const uint8_t* behind
        cdef Stream stream
        if length < USER_PROPERTY_BYTES or end - at - size < length:
            return NULL
        at += size
        behind = at + length
        if memcmp(at, STAMP_PREFIX, 5) != 0 or read_u16(at + 5) != length - USER_PROPERTY_BYTES:
            return NULL
        at += USER_PROPERTY_BYTES
        if behind - at > STAMP_MAX:
            return NULL
        at = read_digits(at, behind, &message.created)
        if at == NULL:
            return NULL
        at = read_digits(at, behind, &message.number)
        if at == NULL:
            return NULL
        stream = topic.find(at, behind - at)
        if stream is None:
            if has_slash(at, behind):
                return NULL
            stream = self.order.stream(topic, at, behind - at)
            if stream is None:
                return NULL
        message.author = stream.author
        message.stamped = True
        self.found = stream
        return behind

    def arrived(self, packet, protocol, int64_t wall_ns):
        """Any message that the codec has read; `protocol` acknowledges it if its QoS asks for that."""
        cdef Message message
        cdef int64_t missed = 0
        cdef bint holds = self.sink is not None and self.sink.holds
        stamp = find_stamp(packet.properties.user)
        if stamp is not None and (holds or not packet.retain):
            missed = self.order.seen(stamp.publisher, packet.topic, stamp.sequence)
        if holds:
            self._hold(packet, protocol, wall_ns, stamp, missed)
            return
        if missed == DUPLICATE and packet.qos == 0:
            return
        message = Message(
            packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, packet.properties, wall_ns, stamp, missed)
        if packet.qos:
            message.owner = protocol
            message.packet_id = packet.packet_id
            message.ghost = missed == DUPLICATE
        self.append(message)

    def _hold(self, packet, protocol, int64_t wall_ns, stamp, int64_t missed):
        cdef bytes payload = packet.payload
        cdef str publisher = None
        cdef int64_t created_ns = -1
        cdef int64_t sequence = -1
        if stamp is not None:
            publisher, created_ns, sequence = stamp.publisher, stamp.created_ns, stamp.sequence
        self.poured += 1
        self.sink.put(packet.topic, <const uint8_t*>PyBytes_AS_STRING(payload), len(payload), publisher, created_ns,
                      sequence, wall_ns, missed)
        if packet.qos:
            self.held.append((self.poured, protocol, packet.packet_id))

    def pour(self, Sink sink not None, Order order):
        """From now on what the sink may have goes there; `order` is known from before, if it is given."""
        self.sink = sink
        if order is not None:
            self.order = order

    def release(self, int64_t count):
        """The first so many messages that the sink was given are taken."""
        while self.held and self.held[0][0] <= count:
            _, protocol, what = self.held.popleft()
            if type(what) is int:
                protocol.acknowledge(what)
            else:
                protocol.acknowledge_taken(what)

    def take(self):
        """The next message, acknowledged; None if there is none."""
        cdef Message message
        while self.queue:
            message = <Message>self.popleft()
            if message.owner is not None:
                message.owner.acknowledge(message.packet_id)
                message.owner = None
                if message.ghost:
                    continue
            return message
        return None

    def take_all(self):
        cdef list taken = []
        cdef Message message
        for each in self.queue:
            message = <Message>each
            if message.owner is not None:
                message.owner.acknowledge(message.packet_id)
                message.owner = None
                if message.ghost:
                    continue
            taken.append(message)
        self.queue.clear()
        return taken
