"""WebSocket frames, compiled: taken apart and unmasked where they lie.

Why not a library: wsproto and the sans-io half of websockets make an object of every frame and a bytes of every
message, in plain Python; MQTT needs neither, for it has a stream of bytes in it. What is left of the protocol,
without extensions, is this file and `upgrade.py`.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from holdfast.mqtt.wire cimport Out, out_free, out_reserve, read_u16, read_u32, write_u16, write_u32

cdef enum:
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10

cdef enum:
    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    TOO_BIG = 1009

REQUEST_BYTES_MAX = 16_384
cdef uint64_t FRAME_BYTES_MAX = 1 << 30
cdef size_t REPLIES_BYTES_MAX = 65_536  # Pings of a peer that takes no Pong go unanswered


cdef void unmask(uint8_t* into, const uint8_t* data, size_t size, const uint8_t* key, unsigned int at) noexcept nogil:
    """`into` is `data`, or lies before it."""
    cdef uint8_t turned[8]
    cdef uint64_t word, mask
    cdef size_t i
    for i in range(8):
        turned[i] = key[(at + i) & 3]
    memcpy(&mask, turned, 8)
    i = 0
    while i + 8 <= size:
        memcpy(&word, data + i, 8)
        word ^= mask
        memcpy(into + i, &word, 8)
        i += 8
    while i < size:
        into[i] = data[i] ^ turned[i & 7]
        i += 1


cdef class WebSocket:
    def __init__(self, judge) -> None:
        self.judge = judge
        self.request = bytearray()
        self.code = NORMAL

    def __dealloc__(self) -> None:
        out_free(&self.replies)

    def feed(self, bytes data not None) -> bytes:
        """What the peer says in these bytes."""
        cdef bytearray copy = bytearray(data)
        return bytes(copy[:self.take(<uint8_t*>PyByteArray_AS_STRING(copy), len(copy))])

    def frame(self, bytes data not None) -> bytes:
        """These bytes as the peer is sent them."""
        cdef Out out
        out.data, out.len, out.cap = NULL, 0, 0
        self.put(&out, <const uint8_t*>PyBytes_AS_STRING(data), len(data))
        framed = PyBytes_FromStringAndSize(<char*>out.data, out.len)
        out_free(&out)
        return framed

    def take_replies(self) -> bytes:
        replies = PyBytes_FromStringAndSize(<char*>self.replies.data, self.replies.len)
        out_free(&self.replies)
        return replies

    cdef size_t take(self, uint8_t* data, size_t size) except? 0:
        """These bytes came: what is for the wire is moved to their beginning; says how much that is."""
        cdef size_t left = size
        if self.fault is not None or self.over:
            return 0
        if self.request is not None:
            left = self._greet(data, size)
            if not self.open:
                return 0
            memmove(data, data + size - left, left)
        return self._frames(data, left)

    cdef size_t _greet(self, uint8_t* data, size_t size) except? 0:
        """Collects the request and answers it; says how many bytes lie behind it."""
        cdef size_t before = len(self.request)
        self.request += PyBytes_FromStringAndSize(<char*>data, size)
        cdef Py_ssize_t end = self.request.find(b"\r\n\r\n", max(0, <Py_ssize_t>before - 3))
        if end < 0 and before + size <= <size_t>REQUEST_BYTES_MAX:
            return 0
        request = bytes(self.request[:end]) if 0 <= end <= REQUEST_BYTES_MAX else None
        cdef size_t left = 0 if request is None else before + size - end - 4
        answer = self.judge(request)
        self.request = None
        cdef bytes response = answer.response
        if not out_reserve(&self.replies, len(response)):
            raise MemoryError
        memcpy(self.replies.data, PyBytes_AS_STRING(response), len(response))
        self.replies.len = len(response)
        self.fault = answer.fault
        self.open = self.fault is None
        return left

    cdef size_t _frames(self, uint8_t* data, size_t size) except? 0:
        cdef size_t at = 0
        cdef size_t kept = 0
        cdef size_t part
        cdef int wanted
        while at < size:
            if self.head_len >= 0:
                wanted = self._head_size()
                while self.head_len < wanted and at < size:
                    self.head[self.head_len] = data[at]
                    self.head_len += 1
                    at += 1
                    wanted = self._head_size()
                if self.head_len < wanted:
                    break
                if not self._begin():
                    return kept
            part = min(self.left, size - at)
            if self.opcode & 8:
                unmask(self.control + self.control_len, data + at, part, self.key, self.key_at)
                self.control_len += part
            else:
                unmask(data + kept, data + at, part, self.key, self.key_at)
                kept += part
            self.key_at += part
            at += part
            self.left -= part
            if self.left == 0 and not self._end():
                break
        return kept

    cdef int _head_size(self) noexcept:
        cdef int length
        if self.head_len < 2:
            return 2
        length = self.head[1] & 0x7F
        return 2 + (2 if length == 126 else 8 if length == 127 else 0) + (4 if self.head[1] & 0x80 else 0)

    cdef bint _begin(self) except -1:
        """The head of a frame is complete: whether it may stand here."""
        cdef uint64_t length = self.head[1] & 0x7F
        cdef int size = self.head_len
        self.opcode = self.head[0] & 0x0F
        self.final = self.head[0] >> 7
        if self.head[0] & 0x70:
            return self._fail(PROTOCOL_ERROR, "a reserved bit is set, though no extension was agreed on")
        if not self.head[1] & 0x80:
            return self._fail(PROTOCOL_ERROR, "a frame is not masked")
        if length == 126:
            length = read_u16(self.head + 2)
            if length < 126:
                return self._fail(PROTOCOL_ERROR, "the length of a frame takes more bytes than it needs")
        elif length == 127:
            length = (<uint64_t>read_u32(self.head + 2) << 32) | read_u32(self.head + 6)
            if length < 65536:
                return self._fail(PROTOCOL_ERROR, "the length of a frame takes more bytes than it needs")
        if self.opcode & 8:
            if self.opcode > PONG:
                return self._fail(PROTOCOL_ERROR, f"unknown opcode {self.opcode}")
            if not self.final or length > CONTROL_MAX:
                return self._fail(PROTOCOL_ERROR, "a control frame is fragmented, or too long")
        elif self.opcode == TEXT:
            return self._fail(UNSUPPORTED_DATA, "MQTT comes in binary frames, not in text")
        elif self.opcode > BINARY:
            return self._fail(PROTOCOL_ERROR, f"unknown opcode {self.opcode}")
        elif (self.opcode == CONTINUATION) != self.within:
            return self._fail(PROTOCOL_ERROR, "a continuation of nothing, or none where one must be")
        elif length > FRAME_BYTES_MAX:
            return self._fail(TOO_BIG, f"a frame of {length} bytes; {FRAME_BYTES_MAX} are the most")
        memcpy(self.key, self.head + size - 4, 4)
        self.key_at = 0
        self.left = length
        self.head_len = -1
        self.control_len = 0
        return 1

    cdef bint _end(self) except -1:
        """A frame is complete: whether another may follow."""
        self.head_len = 0
        if not self.opcode & 8:
            self.within = not self.final
        elif self.opcode == PING:
            if self.replies.len < REPLIES_BYTES_MAX:
                self._reply(PONG, self.control, self.control_len)
        elif self.opcode == CLOSE:
            return self._closed()
        return 1

    cdef bint _closed(self) except -1:
        cdef int code = NORMAL
        if self.control_len >= 2:
            code = read_u16(self.control)
        if self.control_len == 1 or not (
                1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
            return self._fail(PROTOCOL_ERROR, "a Close that says why in no known way")
        self.code = code
        self.over = True
        return 0

    cdef bint _fail(self, int code, str why) except -1:
        self.code = code
        self.fault = why
        return 0

    cdef bint part(self) except 0:
        """Says goodbye."""
        cdef uint8_t code[2]
        if self.open:
            write_u16(code, self.code)
            return self._reply(CLOSE, code, 2)
        return 1

    cdef bint _reply(self, uint8_t opcode, const uint8_t* data, size_t size) except 0:
        if not out_reserve(&self.replies, 2 + size):
            raise MemoryError
        self.replies.data[self.replies.len] = 0x80 | opcode
        self.replies.data[self.replies.len + 1] = <uint8_t>size
        memcpy(self.replies.data + self.replies.len + 2, data, size)
        self.replies.len += 2 + size
        return 1

    cdef bint put(self, Out* out, const uint8_t* data, size_t size) except 0:
        """Puts one binary frame with these bytes behind what is in `out`."""
        cdef uint8_t* at
        if not out_reserve(out, size + 10):
            raise MemoryError
        at = out.data + out.len
        at[0] = 0x80 | BINARY
        if size < 126:
            at[1] = <uint8_t>size
            at += 2
        elif size < 65536:
            at[1] = 126
            write_u16(at + 2, size)
            at += 4
        else:
            at[1] = 127
            write_u32(at + 2, <uint32_t>(<uint64_t>size >> 32))
            write_u32(at + 6, <uint32_t>size)
            at += 10
        memcpy(at, data, size)
        out.len = at - out.data + size
        return 1
