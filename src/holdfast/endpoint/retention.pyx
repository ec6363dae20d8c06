"""What a publisher keeps: for every topic its number, and its last N messages as they went out.

Laws:
- the numbers of a topic rise by one with every stamped message, and never start again
- a ring holds the last N stamped messages of its topic, N from the first declared filter that matches it
- where a period T and L are declared, no more than L leave it within N + L periods, the longest failover that the
  contract bears: a program that stood still publishes several at once, and of those more than L would be lost. With
  N > 0 it is LATE_NS longer: a failover on a busy machine takes longer than was reckoned with
- while `held`, nobody serves us: nothing leaves a ring, unless N is 0
- beyond N a ring holds EXTRA_MAX at most, and all together EXTRAS_MAX
- a message that leaves its ring without having been written to any broker is counted in `unsent`
- a topic without a number, a message or anybody who holds it is forgotten when there are many of them
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from holdfast.endpoint.pending cimport Pending, publication
from holdfast.mqtt.kinds cimport PUBLISH
from holdfast.mqtt.properties cimport put_properties
from holdfast.mqtt.wire cimport (
    VARINT_MAX,
    Out,
    out_free,
    out_reserve,
    varint_size,
    write_u16,
    write_varint,
)

import copy

from holdfast.errors import PeerError, Refused
from holdfast.mqtt.codec import encode
from holdfast.mqtt.conventions import format_stamp
from holdfast.mqtt.packets import Properties, Publish
from holdfast.mqtt.reasons import Reason
from holdfast.mqtt.topics import matches, validate_topic

cdef enum:
    STAMP_HEAD_BYTES = 7       # identifier, "hf" and the length of its value
    DIGITS_MAX = 20
    PACKET_HEAD_BYTES_MAX = 64 # header, packet identifier, property lengths and the numbers of a stamp
    VERSION = 5
    SWEEP_MIN = 16_384
    EXTRA_MAX = 64
    EXTRAS_MAX = 16_384

cdef int64_t LATE_NS = 50_000_000
cdef int64_t LONG_AGO_NS = -(1 << 62)
cdef int64_t KEPT_NS_MAX = 1 << 61


cdef inline int write_digits(uint8_t* at, uint64_t value) noexcept nogil:
    cdef uint8_t digits[DIGITS_MAX]
    cdef int n = 0
    cdef int i
    while True:
        digits[n] = 48 + value % 10
        value //= 10
        n += 1
        if value == 0:
            break
    for i in range(n):
        at[i] = digits[n - 1 - i]
    return n


class Kept:
    """One message of a ring. `order` is its place among all that were published."""

    __slots__ = ("order", "packet", "record")

    def __init__(self, order, packet, record):
        self.order = order
        self.packet = packet
        self.record = record


@cython.final
cdef class Record:
    """One topic of a publisher."""

    def __dealloc__(self):
        free(self.slots)
        free(self.left)

    cdef int at(self, int age) noexcept:
        """Where the message lies that is older than all but `age` others."""
        cdef int place = self.first + age
        return place if place < self.size else place - self.size

    cdef int extra(self) noexcept:
        """How many it holds beyond N."""
        return self.count - self.retention if self.count > self.retention else 0

    cdef int tolerate(self, int loss) except -1:
        """L, or 0 where that is not looked at."""
        cdef int i
        free(self.left)
        self.left, self.loss, self.left_at = NULL, 0, 0
        if loss > 0:
            self.left = <int64_t*>calloc(loss, sizeof(int64_t))
            if self.left == NULL:
                raise MemoryError
            self.loss = loss
            for i in range(loss):
                self.left[i] = LONG_AGO_NS
        return 0

    cdef void leaves(self, int64_t created_ns) noexcept:
        """A message of that time is in the ring no more, or never was."""
        if self.loss:
            self.left[self.left_at] = created_ns
            self.left_at = self.left_at + 1 if self.left_at + 1 < self.loss else 0

    cdef bint drop(self) noexcept:
        """The oldest goes; returns whether it was never written."""
        cdef int at = self.first
        self.leaves(self.slots[at].created_ns)
        self.packets[at] = None
        self.first = self.at(1)
        self.count -= 1
        return not self.slots[at].written

    cdef int grow(self) except -1:
        cdef int size = max(self.retention, 2 * self.size, 1)
        cdef Slot* slots = <Slot*>calloc(size, sizeof(Slot))
        cdef int age
        if slots == NULL:
            raise MemoryError
        packets = [None] * size
        for age in range(self.count):
            slots[age] = self.slots[self.at(age)]
            packets[age] = self.packets[self.at(age)]
        free(self.slots)
        self.slots, self.packets, self.size, self.first = slots, packets, size, 0
        return 0

    cdef int put(self, bytes packet, uint64_t order, int64_t created_ns, bint written) except -1:
        cdef int at
        if self.count == self.size:
            self.grow()
        at = self.at(self.count)
        self.packets[at] = packet
        self.slots[at].order = order
        self.slots[at].created_ns = created_ns
        self.slots[at].written = written
        self.count += 1
        return 0


cdef class Batch:
    """Comes from `Retention.prepare`."""


@cython.final
cdef class Retention:
    def __init__(self, str publisher not None, int topics_max):
        self.publisher = publisher
        self.tail = ("/" + publisher).encode()
        self.topics_max = topics_max
        self.sweep_at = min(topics_max, SWEEP_MIN)
        self.records = {}
        self.declared = []
        self.created = -1

    def __dealloc__(self):
        out_free(&self.out)

    def declare(self, str topic_filter not None, int retention, period_ns=0, loss=0):
        """`period_ns` is 0 where messages come at any time, `loss` None where any number may be lost."""
        kept_ns = 0
        if period_ns and loss is not None and loss <= EXTRA_MAX:
            kept_ns = min((retention + loss) * period_ns + (LATE_NS if retention else 0), KEPT_NS_MAX)
        self.declared.append((topic_filter.encode(), retention, kept_ns, loss if kept_ns else 0))
        for each in self.records.values():
            self._adapt(<Record>each)

    cdef int _adapt(self, Record record) except -1:
        """To the first declaration that matches its topic."""
        cdef int before = record.extra()
        record.retention, record.kept_ns, loss = self._retention_of(record.topic)
        if loss != record.loss:
            record.tolerate(loss)
        while record.extra() and not record.kept_ns:
            self.unsent += record.drop()
        self.extras += record.extra() - before
        return 0

    def sequences(self):
        return {topic: (<Record>each).sequence for topic, each in self.records.items() if (<Record>each).sequence}

    def record(self, str topic not None):
        return self.find(topic)

    cdef Record find(self, str topic):
        cdef object found = self.records.get(topic)
        cdef Record record
        if found is not None:
            return <Record>found
        try:
            validate_topic(topic)
        except PeerError as error:
            raise ValueError(error.text) from None
        if len(self.records) >= self.sweep_at:
            self.sweep()
        if len(self.records) >= self.topics_max:
            raise Refused(Reason.QUOTA_EXCEEDED, f"this client has published to {self.topics_max} topics already")
        record = Record()
        record.topic = topic
        name = topic.encode()
        record.field = len(name).to_bytes(2, "big") + name
        self._adapt(record)
        self.records[topic] = record
        return record

    cdef int sweep(self) except -1:
        """Forgets topics of which nothing would be known if they came again."""
        cdef Record record
        for topic in list(self.records):
            record = <Record>self.records[topic]
            # Two hold it: the dictionary and this name.
            if not (record.sequence or record.count or record.blocked) and (<PyObject*>record).ob_refcnt <= 2:
                del self.records[topic]
        self.sweep_at = min(self.topics_max, max(SWEEP_MIN, 2 * len(self.records)))
        return 0

    def encoded(self, Record record not None, payload, int qos, bint retain, properties, int packet_id, created_ns):
        """The next message of a topic as bytes, stamped if `created_ns` is given; nothing changes yet."""
        if type(payload) is bytes and 0 <= qos <= 2:
            self.properties = None
            section = self.section_of(properties)
            self.out.len = 0
            self.put(record, <bytes>payload, qos, retain, packet_id, section,
                     0 if created_ns is None else created_ns, created_ns is not None)
            return PyBytes_FromStringAndSize(<char*>self.out.data, self.out.len)
        listed = copy.copy(properties) if properties is not None else Properties()
        if created_ns is not None:
            listed.user = [*listed.user, format_stamp(created_ns, record.sequence + 1, self.publisher)]
        return encode(Publish(record.topic, payload, qos, retain, False, packet_id, listed), VERSION)

    def keep(self, Record record not None, bytes packet not None, created_ns, *, bint written):
        """Counts and keeps what `encoded` gave; returns its order. `written` if it goes out at once."""
        cdef bint stamped = created_ns is not None
        cdef int64_t made_ns = created_ns or 0
        cdef bint kept = stamped and self.keeps(record, made_ns)
        return self.count(record, packet if kept else None, made_ns, stamped, written)

    cdef uint64_t count(self, Record record, bytes packet, int64_t created_ns, bint stamped, bint written) except 0:
        """`packet` is None for a message that its ring does not keep."""
        cdef int before
        self.order += 1
        if stamped:
            record.sequence += 1
            if packet is not None:
                before = record.extra()
                record.put(packet, self.order, created_ns, written)
                self.extras += record.extra() - before
                while record.extra() and self.may_go(record, record.slots[record.first].created_ns, created_ns):
                    self.unsent += record.drop()
                    self.extras -= 1
                return self.order
            record.leaves(created_ns)
        self.unsent += not written
        return self.order

    cdef bint keeps(self, Record record, int64_t created_ns) noexcept:
        """Whether a message that is made now enters its ring."""
        return record.retention or record.count or not self.may_go(record, created_ns, created_ns)

    cdef bint may_go(self, Record record, int64_t created_ns, int64_t now_ns) noexcept:
        """Whether the oldest message beyond N, which was made then, is needed no more, or there is no room."""
        if record.kept_ns == 0 or record.extra() > EXTRA_MAX or self.extras > EXTRAS_MAX:
            return True
        if self.held and record.retention:
            return False
        return now_ns - (record.left[record.left_at] if record.loss else created_ns) >= record.kept_ns

    def publish(self, list messages not None, Py_ssize_t start, int64_t created_ns, bint stamp,
                Py_ssize_t packet_bytes_max, bint retain_available, session, ticket, int quota):
        """Encodes and keeps messages from `start` on, to be written at once; of those that are acknowledged, for
        which there is a ticket then, as many as the quota lets.

        Returns the bytes, where it stopped (at the end, or at a message that needs more thought), and how many
        answers are awaited.
        """
        cdef Py_ssize_t at = start
        cdef Py_ssize_t total = len(messages)
        cdef dict pending = session.pending
        cdef Record record
        cdef Pending asked
        cdef size_t before
        cdef bytes packet = None
        cdef bint kept
        cdef int left = quota
        cdef int qos
        cdef int packet_id = 0
        self.out.len = 0
        self.properties = None      # they may have changed since
        while at < total:
            message = messages[at]
            payload = message.payload
            retain = message.retain
            if type(payload) is not bytes or type(message.qos) is not int:
                break
            qos = message.qos
            if qos and (left <= 0 or not 0 < qos <= 2):
                break
            if retain and not retain_available:
                break
            before = self.out.len
            try:
                record = self.find(message.topic)
                if record.blocked:
                    break
                packet_id = session.claim() if qos else 0
                self.put(record, <bytes>payload, qos, bool(retain), packet_id, self.section_of(message.properties),
                         created_ns, stamp)
            except Exception:
                # Those before it are counted, so they must be written; then it is the first.
                if at > start:
                    break
                raise
            if <Py_ssize_t>(self.out.len - before) > packet_bytes_max:
                self.out.len = before
                break
            kept = stamp and self.keeps(record, created_ns)
            if qos or kept:
                packet = PyBytes_FromStringAndSize(<char*>self.out.data + before, self.out.len - before)
            self.count(record, packet if kept else None, created_ns, stamp, True)
            if qos:
                asked = publication(packet_id, qos, packet, ticket)
                asked.order, asked.record, asked.place, asked.written = self.order, record, at, True
                pending[packet_id] = asked
                left -= 1
            at += 1
        return PyBytes_FromStringAndSize(<char*>self.out.data, self.out.len), at, quota - left

    def prepare(self, list messages not None):
        """Messages that will be published together again and again; each is plain, and of QoS 0."""
        cdef Batch batch = Batch()
        batch.messages, batch.records, batch.payloads = messages, [], []
        for message in messages:
            if message.qos or message.retain or message.properties is not None or type(message.payload) is not bytes:
                raise ValueError(f"{message.topic}: only plain messages of QoS 0 are published in batches")
            record = self.find(message.topic)
            batch.records.append(record)
            batch.payloads.append(message.payload)
            size = PACKET_HEAD_BYTES_MAX + len((<Record>record).field) + len(self.tail) + len(message.payload)
            batch.packet_bytes_max = max(batch.packet_bytes_max, size)
        return batch

    def publish_batch(self, Batch batch not None, int64_t created_ns, Py_ssize_t packet_bytes_max):
        """Stamps, encodes and keeps a batch, to be written at once; None if it needs more thought."""
        cdef Py_ssize_t place
        cdef Record record
        cdef size_t before
        cdef bytes packet = None
        if batch.packet_bytes_max > packet_bytes_max:
            return None
        for each in batch.records:
            if (<Record>each).blocked:
                return None
        self.out.len = 0
        for place in range(len(batch.records)):
            record = <Record>batch.records[place]
            before = self.out.len
            self.put(record, <bytes>batch.payloads[place], 0, False, 0, b"", created_ns, True)
            packet = None
            if self.keeps(record, created_ns):
                packet = PyBytes_FromStringAndSize(<char*>self.out.data + before, self.out.len - before)
            self.count(record, packet, created_ns, True, True)
        return PyBytes_FromStringAndSize(<char*>self.out.data, self.out.len)

    cdef bytes section_of(self, object properties):
        """These properties as they stand in a packet; those that several messages share are encoded once."""
        cdef Out out = Out(NULL, 0, 0)
        cdef int length_size = 1
        if properties is None:
            return b""
        if properties is not self.properties:
            self.properties = None
            try:
                put_properties(&out, properties, PUBLISH)
                while out.data[length_size - 1] & 0x80:
                    length_size += 1
                self.section = PyBytes_FromStringAndSize(<char*>out.data + length_size, out.len - length_size)
            finally:
                out_free(&out)
            self.properties = properties
        return self.section

    cdef int put(self, Record record, bytes payload, int qos, bint retain, int packet_id, bytes section,
                 int64_t created_ns, bint stamp) except -1:
        """Appends the packet of the next message of `record` to `out`, its stamp behind the properties."""
        cdef Py_ssize_t field_size = PyBytes_GET_SIZE(record.field)
        cdef Py_ssize_t payload_size = PyBytes_GET_SIZE(payload)
        cdef Py_ssize_t tail_size = PyBytes_GET_SIZE(self.tail)
        cdef uint8_t number[DIGITS_MAX]
        cdef int number_size = 0
        cdef Py_ssize_t section_size = PyBytes_GET_SIZE(section)
        cdef uint32_t value_size = 0
        cdef size_t properties_size = section_size
        cdef size_t size
        cdef uint8_t* at
        if stamp:
            if created_ns != self.created:
                self.created_size = write_digits(self.created_text, created_ns)
                self.created_text[self.created_size] = 0x2F
                self.created_size += 1
                self.created = created_ns
            number_size = write_digits(number, record.sequence + 1)
            value_size = self.created_size + number_size + tail_size
            properties_size += STAMP_HEAD_BYTES + value_size
        if properties_size > VARINT_MAX:
            raise ValueError(f"properties take {properties_size} bytes; expected at most {VARINT_MAX}")
        size = field_size + (2 if qos else 0) + varint_size(properties_size) + properties_size + payload_size
        if size > VARINT_MAX:
            raise ValueError(f"packet has {size} bytes after its header; expected at most {VARINT_MAX}")
        if not out_reserve(&self.out, PACKET_HEAD_BYTES_MAX + size):
            raise MemoryError
        at = self.out.data + self.out.len
        at[0] = 0x30 | qos << 1 | retain
        at += 1
        at += write_varint(at, <uint32_t>size)
        memcpy(at, PyBytes_AS_STRING(record.field), field_size)
        at += field_size
        if qos:
            write_u16(at, packet_id)
            at += 2
        at += write_varint(at, <uint32_t>properties_size)
        memcpy(at, PyBytes_AS_STRING(section), section_size)
        at += section_size
        if stamp:
            memcpy(at, b"\x26\x00\x02hf", 5)
            write_u16(at + 5, value_size)
            at += STAMP_HEAD_BYTES
            memcpy(at, self.created_text, self.created_size)
            at += self.created_size
            memcpy(at, number, number_size)
            at += number_size
            memcpy(at, PyBytes_AS_STRING(self.tail), tail_size)
            at += tail_size
        memcpy(at, PyBytes_AS_STRING(payload), payload_size)
        self.out.len = at + payload_size - self.out.data
        return 0

    def kept(self):
        """Everything in all rings, in the order of publishing; from now on it counts as written."""
        cdef Record record
        cdef int age, at
        entries = []
        for each in self.records.values():
            record = <Record>each
            for age in range(record.count):
                at = record.at(age)
                record.slots[at].written = True
                entries.append(Kept(record.slots[at].order, record.packets[at], record))
        entries.sort(key=lambda entry: entry.order)
        return entries

    def kept_plain(self, Py_ssize_t packet_bytes_max):
        """The same as bytes, if each is a plain message of QoS 0 that is not too long; otherwise None."""
        cdef Record record
        cdef int age, at
        cdef bytes packet
        entries = []
        for each in self.records.values():
            record = <Record>each
            for age in range(record.count):
                at = record.at(age)
                packet = <bytes>record.packets[at]
                if PyBytes_AS_STRING(packet)[0] != 0x30 or PyBytes_GET_SIZE(packet) > packet_bytes_max:
                    return None
                entries.append((record.slots[at].order, packet))
        entries.sort()
        for each in self.records.values():
            record = <Record>each
            for age in range(record.count):
                record.slots[record.at(age)].written = True
        return b"".join([packet for _, packet in entries])

    def _retention_of(self, str topic):
        name = topic.encode()
        return next((declared[1:] for declared in self.declared if matches(declared[0], name)), (0, 0, 0))
