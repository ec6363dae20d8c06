"""Every message that was sent or came, a row each, in columns that become a file as they are.

Laws:
- a row is never changed, lost or reordered; rows are given out in blocks, each once
- a message costs no Python object: the numbers of its stamp and its topic's number go straight into columns
- the number of a topic is the first four bytes of a payload, the highest first; what is shorter, or has no
  stamp, is counted as unknown and not written down
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t

from holdfast.endpoint.messages cimport Message
from holdfast.endpoint.order cimport DUPLICATE
from holdfast.mqtt.wire cimport read_u32

BLOCK_ROWS = 1 << 20
cdef enum:
    NUMBER_BYTES = 4


cdef class Block:
    """Rows that lie side by side, as one bytearray for each column."""

    def __cinit__(self, Py_ssize_t capacity, bint arrivals):
        self.topic = bytearray(4 * capacity)
        self.sequence = bytearray(8 * capacity)
        self.created_ns = bytearray(8 * capacity)
        self.topics = <int32_t*>PyByteArray_AS_STRING(self.topic)
        self.sequences = <int64_t*>PyByteArray_AS_STRING(self.sequence)
        self.created = <int64_t*>PyByteArray_AS_STRING(self.created_ns)
        self.arrived_ns = bytearray(8 * capacity if arrivals else 0)
        self.duplicate = bytearray((capacity + 7) // 8 if arrivals else 0)
        self.arrived = <int64_t*>PyByteArray_AS_STRING(self.arrived_ns)
        self.duplicates = <uint8_t*>PyByteArray_AS_STRING(self.duplicate)


cdef class Columns:
    """Blocks that fill up one after the other."""

    def __init__(self, bint arrivals, Py_ssize_t block_rows):
        assert block_rows > 0
        self.arrivals = arrivals
        self.block_rows = block_rows
        self.full = []
        self.block = Block(block_rows, arrivals)

    cdef Py_ssize_t append(self, int32_t topic, int64_t sequence, int64_t created_ns) except -1:
        """Begins a row in `block`, and returns which."""
        cdef Block block = self.block
        cdef Py_ssize_t row = block.rows
        if row == self.block_rows:
            self.full.append(block)
            block = self.block = Block(self.block_rows, self.arrivals)
            row = 0
        block.topics[row] = topic
        block.sequences[row] = sequence
        block.created[row] = created_ns
        block.rows = row + 1
        self.rows += 1
        return row

    @property
    def full_blocks(self):
        return len(self.full)

    def take_full(self):
        """The blocks to which nothing will be added, each once."""
        taken, self.full = self.full, []
        return taken

    def take(self):
        """All that has not been taken."""
        taken = self.take_full()
        if self.block.rows:
            taken.append(self.block)
            self.block = Block(self.block_rows, self.arrivals)
        return taken


cdef class Sent:
    def __init__(self, Py_ssize_t block_rows=BLOCK_ROWS):
        self.columns = Columns(False, block_rows)

    def record(self, int32_t first, int count, int64_t sequence, int64_t created_ns):
        """Messages of the topics from `first` on, published together, all with this sequence number."""
        cdef int place
        for place in range(count):
            self.columns.append(first + place, sequence, created_ns)


cdef class Received(Sink):
    def __init__(self, Py_ssize_t block_rows=BLOCK_ROWS):
        self.columns = Columns(True, block_rows)

    cdef int append(self, int32_t topic, int64_t sequence, int64_t created_ns, int64_t arrived_ns,
                    bint duplicate) except -1:
        cdef Py_ssize_t row = self.columns.append(topic, sequence, created_ns)
        self.columns.block.arrived[row] = arrived_ns
        if duplicate:
            self.columns.block.duplicates[row >> 3] |= 1 << (row & 7)
            self.duplicates += 1
        return 0

    cdef int put(self, str topic, const uint8_t* payload, Py_ssize_t size, str publisher, int64_t created_ns,
                 int64_t sequence, int64_t arrived_ns, int64_t missed) except -1:
        if size < NUMBER_BYTES:
            self.unknown += 1
            return 0
        return self.append(<int32_t>read_u32(payload), sequence, created_ns, arrived_ns, missed == DUPLICATE)

    def record(self, list messages not None):
        """Messages that were taken from a client, which gives out no duplicates."""
        cdef Message message
        for each in messages:
            message = <Message?>each
            if not message.stamped or PyBytes_GET_SIZE(message.payload) < NUMBER_BYTES:
                self.unknown += 1
                continue
            self.append(<int32_t>read_u32(<const uint8_t*>PyBytes_AS_STRING(message.payload)), message.number,
                        message.created, message.arrived_ns, False)
