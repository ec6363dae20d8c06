"""The link between two brokers, compiled: copies, discards and confirmations without a Python object."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from collections import deque

from holdfast.broker.copies cimport (
    CONFIRM, CONTROL, COPY, COPY_HEAD, DISCARD, FRAME_HEAD, MARK, RESET, begin_frame, put_number, read_u64,
)
from holdfast.broker.core cimport Core
from holdfast.broker.link cimport Inbox, Wire
from holdfast.mqtt.wire cimport out_free, out_reserve, read_u32

cdef enum:
    STRANGERS_WORDS_MAX = 64    # that wait: a member that greets may beat meanwhile


cdef class Peer(Wire):
    def __init__(self, Core core not None, Inbox inbox, int64_t now_ns) -> None:
        self.core = core
        self.board = core.board
        self.inbox = inbox
        self.peer = True
        self.control = deque()
        self.heard_ns = now_ns
        self.opened_ns = now_ns
        self.wrote_ns = now_ns
        self.frame_bytes_max = core.packet_bytes_max + 1024

    def __dealloc__(self) -> None:
        out_free(&self.pending)

    def closed(self) -> None:
        """Nothing more is read or sent."""
        self.closing = True
        self.mark()

    def get_known(self) -> None:
        """It has said who it is: the driver moves its bytes as those of members."""
        self.known = True
        self.mark()

    def send_control(self, bytes body not None) -> None:
        """Puts one CONTROL frame behind what already waits."""
        cdef uint8_t* at
        if self.closing:
            return
        at = begin_frame(self, CONTROL, len(body))
        if at == NULL:
            raise MemoryError
        memcpy(at, <char*>body, len(body))

    cpdef received(self, size_t size, int64_t now_ns, int64_t wall_ns):
        if size > self.inbox.size:
            raise ValueError("more bytes than the inbox holds")
        self.core.board.now_ns = now_ns
        self.core.board.wall_ns = wall_ns
        self.take(self.inbox.data, size)

    def feed(self, bytes data not None, int64_t now_ns, int64_t wall_ns) -> None:
        """These bytes were read."""
        self.core.board.now_ns = now_ns
        self.core.board.wall_ns = wall_ns
        self.take(<const uint8_t*>(<char*>data), len(data))

    def take_output(self) -> bytes:
        if self.out.len:
            self.said()
        return Wire.take_output(self)

    cdef void sent(self, size_t size) noexcept:
        if size:
            self.said()
        Wire.sent(self, size)

    cdef void said(self) noexcept:
        """Some bytes have left: the other side can hear that we live, however many still wait."""
        self.unsaid_ns = max(self.unsaid_ns, self.board.now_ns - self.wrote_ns)
        self.wrote_ns = self.board.now_ns

    cpdef bint wants_bytes(self):
        """Other brokers are always heard."""
        return True

    cdef void take(self, const uint8_t* data, size_t size):
        cdef size_t used
        if self.closing or self.fault is not None:
            return
        self.gap_ns = max(self.gap_ns, self.board.now_ns - self.heard_ns)
        self.heard_ns = self.board.now_ns
        if self.state is not None and self.state.mute:
            self.board.stirred = True
        if self.pending.len:
            if not out_reserve(&self.pending, size):
                self.fault = "no memory is left for what it sends"
                return
            memcpy(self.pending.data + self.pending.len, data, size)
            self.pending.len += size
            used = self.parse(self.pending.data, self.pending.len)
            self.pending.len -= used
            if self.pending.len == 0:
                out_free(&self.pending)
            elif used:
                memmove(self.pending.data, self.pending.data + used, self.pending.len)
        else:
            used = self.parse(data, size)
            if used < size and self.fault is None:
                if not out_reserve(&self.pending, size - used):
                    self.fault = "no memory is left for what it sends"
                    return
                memcpy(self.pending.data, data + used, size - used)
                self.pending.len = size - used
        if self.buffer is not None and self.buffer.asked:
            self.buffer.asked = False
            self.confirm()

    cpdef confirm(self):
        """Tells the primary which of its frames are safe here by now."""
        cdef uint64_t safe = 0 if self.buffer is None else self.buffer.safe()
        if safe and safe > self.buffer.confirmed:
            self.buffer.confirmed = safe
            put_number(self, CONFIRM, safe)

    cdef size_t parse(self, const uint8_t* data, size_t size):
        """Handles every whole frame and returns how many bytes they took."""
        cdef size_t at = 0
        cdef uint32_t length
        while size - at >= FRAME_HEAD:
            length = read_u32(data + at)
            if length < 1 or length > self.frame_bytes_max + COPY_HEAD:
                self.fault = f"a frame of {length} bytes: that is no broker of this version"
                self.board.stirred = True
                break
            if size - at - 4 < length:
                break
            if not self.frame(data[at + 4], data + at + FRAME_HEAD, length - 1):
                break
            at += 4 + length
        return at

    cdef bint frame(self, uint8_t kind, const uint8_t* body, uint32_t size):
        cdef uint32_t i
        if not self.known and (kind != CONTROL or len(self.control) >= STRANGERS_WORDS_MAX):
            self.fault = "it has not said who it is: that is no greeting of a broker of this version"
        elif kind == CONTROL:
            self.control.append(PyBytes_FromStringAndSize(<char*>body, size))
            self.board.stirred = True
        elif kind == CONFIRM and size == 8:
            if self.board.backup is self:
                self.core.backup_has(read_u64(body))
        elif kind == DISCARD and size % 8 == 0:
            if self.buffer is not None and self.buffer.fed:
                for i in range(size // 8):
                    self.buffer.discard(read_u64(body + 8 * i))
        elif kind == COPY:
            if self.buffer is not None and self.buffer.fed and not self.buffer.copy(body, size):
                self.fault = "a copy that cannot be kept: it is malformed, or the bounds of the backup are reached"
        elif kind == RESET and size == 0:
            if self.buffer is not None:
                self.buffer.clear()
                self.buffer.fed = True
        elif kind == MARK:
            if self.buffer is not None and self.buffer.fed and not self.buffer.mark(body, size):
                self.fault = "a malformed mark"
        else:
            self.fault = f"a frame of kind {kind} with {size} bytes: that is no broker of this version"
        if self.fault is not None:
            self.board.stirred = True
            return 0
        return 1
