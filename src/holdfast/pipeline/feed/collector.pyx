"""Messages on their way to the journal, in the buffers of Arrow columns.

Laws:
- a message costs no Python object: its bytes go straight into the columns
- what is a duplicate is counted and not collected; its acknowledgement waits for what came before it all the same
- `tell` is called with the first message of a group, and once more when the group has GROUP_BYTES
- it is full with `bytes_max`, and one message more at most
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from holdfast.endpoint.order cimport DUPLICATE, Order, Stream, Topic
from holdfast.endpoint.sink cimport Sink
from holdfast.mqtt.wire cimport Out, out_free, out_reserve

cdef enum:
    OFFSET_BYTES = 4
    NUMBER_BYTES = 8


cdef inline bytes take_out(Out* out):
    taken = PyBytes_FromStringAndSize(<char*>out.data, out.len)
    out.len = 0
    return taken


cdef int add_number(Out* out, int64_t number) except -1:
    if not out_reserve(out, NUMBER_BYTES):
        raise MemoryError
    (<int64_t*>(out.data + out.len))[0] = number
    out.len += NUMBER_BYTES
    return 0


cdef class Strings:
    """A column of texts or bytes: where each ends, and all of them one behind the other."""
    cdef Out offsets
    cdef Out data

    def __cinit__(self):
        self.begin()

    def __dealloc__(self):
        out_free(&self.offsets)
        out_free(&self.data)

    cdef int begin(self) except -1:
        return self.add_end(0)

    cdef int add_end(self, int32_t end) except -1:
        if not out_reserve(&self.offsets, OFFSET_BYTES):
            raise MemoryError
        (<int32_t*>(self.offsets.data + self.offsets.len))[0] = end
        self.offsets.len += OFFSET_BYTES
        return 0

    cdef int add(self, const uint8_t* at, Py_ssize_t size) except -1:
        if not out_reserve(&self.data, size):
            raise MemoryError
        memcpy(self.data.data + self.data.len, at, size)
        self.data.len += size
        return self.add_end(<int32_t>self.data.len)

    cdef int add_text(self, str text) except -1:
        cdef Py_ssize_t size = 0
        cdef const char* at = PyUnicode_AsUTF8AndSize(text, &size)
        return self.add(<const uint8_t*>at, size)

    cdef tuple take(self):
        taken = (take_out(&self.offsets), take_out(&self.data))
        self.begin()
        return taken


cdef class Numbers:
    """A column of 64-bit integers."""
    cdef Out data

    def __dealloc__(self):
        out_free(&self.data)


cdef class Collector(Sink):
    cdef readonly int64_t rows
    cdef readonly int64_t bytes
    # Since the start: duplicates, and how many of their streams were missing before others.
    cdef readonly int64_t duplicates
    cdef readonly int64_t missing
    cdef readonly str missing_topic
    cdef readonly str missing_publisher
    cdef int64_t bytes_max
    cdef int64_t group_bytes
    cdef object tell
    cdef bint told
    cdef int64_t unstamped
    cdef Strings topics
    cdef Strings payloads
    cdef Strings publishers
    cdef Numbers sequences
    cdef Numbers created
    cdef Numbers arrived
    # A bit for each row, the first the lowest: whether it has a stamp.
    cdef Out stamped

    def __init__(self, tell, int64_t group_bytes, int64_t bytes_max):
        assert 0 < group_bytes <= bytes_max <= 1 << 30
        self.holds = True
        self.tell = tell
        self.group_bytes = group_bytes
        self.bytes_max = bytes_max
        self.topics, self.payloads, self.publishers = Strings(), Strings(), Strings()
        self.sequences, self.created, self.arrived = Numbers(), Numbers(), Numbers()

    def __dealloc__(self):
        out_free(&self.stamped)

    cdef int put(self, str topic, const uint8_t* payload, Py_ssize_t size, str publisher, int64_t created_ns,
                 int64_t sequence, int64_t arrived_ns, int64_t missed) except -1:
        cdef bint ample
        if not self.told:
            self.told = True
            self.tell()
        if missed:
            if missed == DUPLICATE:
                self.duplicates += 1
                return 0
            self.missing += missed
            self.missing_topic, self.missing_publisher = topic, publisher
        self.topics.add_text(topic)
        self.payloads.add(payload, size)
        add_number(&self.sequences.data, sequence)
        add_number(&self.created.data, created_ns)
        add_number(&self.arrived.data, arrived_ns)
        self._add_stamped(publisher is not None)
        if publisher is None:
            self.unstamped += 1
            self.publishers.add_end(<int32_t>self.publishers.data.len)
        else:
            self.publishers.add_text(publisher)
        self.rows += 1
        ample = self.bytes >= self.group_bytes
        self.bytes = self.topics.data.len + self.payloads.data.len + self.publishers.data.len + 40 * self.rows
        if self.bytes >= self.group_bytes and not ample:
            self.tell()
        if self.bytes >= self.bytes_max:
            self.full = True
        return 0

    cdef int _add_stamped(self, bint stamped) except -1:
        cdef int bit = self.rows & 7
        if bit == 0:
            if not out_reserve(&self.stamped, 1):
                raise MemoryError
            self.stamped.data[self.stamped.len] = 0
            self.stamped.len += 1
        self.stamped.data[self.stamped.len - 1] |= stamped << bit
        return 0

    @property
    def ample(self):
        """Whether a group is large enough to be committed without waiting for more."""
        return self.bytes >= self.group_bytes

    def take(self):
        """What was collected, for `columns.record_batch`; there is room again."""
        validity = take_out(&self.stamped)
        taken = (self.rows, self.topics.take(), self.payloads.take(), self.publishers.take(),
                 take_out(&self.sequences.data), take_out(&self.created.data), take_out(&self.arrived.data),
                 validity if self.unstamped else None)
        self.rows = self.bytes = self.unstamped = 0
        self.told = self.full = False
        return taken


def take_marks(Order order not None):
    """How far every stream has come, for `columns.marks_batch`."""
    cdef Strings topics = Strings()
    cdef Strings publishers = Strings()
    cdef Numbers newest = Numbers()
    cdef Topic topic
    cdef Stream stream
    cdef Py_ssize_t rows = 0
    for each in order.topics.values():
        topic = <Topic>each
        for other in topic.streams.values():
            stream = <Stream>other
            if stream.newest < 0:
                continue
            topics.add_text(topic.name)
            publishers.add_text(stream.author)
            add_number(&newest.data, stream.newest)
            rows += 1
    return rows, topics.take(), publishers.take(), take_out(&newest.data)
