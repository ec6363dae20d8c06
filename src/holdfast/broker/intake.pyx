"""The receiving side of one connection, compiled: bytes become packets, and what they cost is paid."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memmove, memset

from holdfast.broker.core cimport Core
from holdfast.broker.link cimport OUT_HIGH, Inbox
from holdfast.broker.message cimport topic_unpin
from holdfast.broker.meter cimport Meter
from holdfast.broker.session cimport Session
from holdfast.broker.topics cimport AHEAD, Ahead
from holdfast.broker.unfinished cimport UnfinishedWire
from holdfast.mqtt.wire cimport VARINT_BAD, Out, out_free, out_trim, read_u16, read_varint

cdef enum:
    CONNECT = 1
    PUBLISH = 3
    PINGREQ = 12
    DISCONNECT = 14

cdef enum:
    CONNECT_HEAD = 16       # bytes of a CONNECT that tell its version

cdef enum:
    MALFORMED_PACKET = 0x81
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97


cdef class Intake(UnfinishedWire):
    def __init__(self, Core core not None, Inbox inbox, int64_t now_ns) -> None:
        self.core = core
        self.board = core.board
        self.inbox = inbox
        self.opened_ns = now_ns
        self.heard_ns = now_ns
        self.packet_bytes_max = min(core.packet_bytes_max, core.connect_bytes_max)
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

    def answered(self, uint32_t filters) -> None:
        """A SUBSCRIBE or UNSUBSCRIBE of so many filters was."""
        self.unanswered -= filters
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
        if self.control is None and not self.tired:
            self.resume()

    def rested(self) -> None:
        """A turn has come: what it sent beyond its share is looked at."""
        self.tired = False
        if self.slowed_ns == 0 and not self.closing:
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
        return (self.control is not None or self.unanswered > 0 or self.tired
                or (self.slowed_ns != 0 and self.pending.len > 0))

    def goodbye(self) -> tuple | None:
        """DISCONNECT as it came, if it was read whole, whatever waits before it."""
        cdef const uint8_t* at = self.pending.data
        cdef const uint8_t* end = at + self.pending.len
        cdef long length
        cdef int head = 0
        if self.control is not None and self.control[0] >> 4 == DISCONNECT:
            return self.control
        while self.fault is None and at < end:
            length = read_varint(at + 1, end, &head)
            if length < 0 or length > end - at - 1 - head:
                break
            if at[0] >> 4 == DISCONNECT:
                return at[0], PyBytes_FromStringAndSize(<char*>at + 1 + head, length)
            at += 1 + head + length
        return None

    # Bytes to packets

    cdef void _take(self, const uint8_t* data, size_t size):
        cdef size_t used
        cdef Out whole
        self.core.bytes_received += size
        self.fresh = data != NULL
        self.spent = 0
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
                self._too_large(at[0], at + 1 + head, end)
                break
            body = at + 1 + head
            if end - body < length:
                self._oversized(at[0], length + 1 + head)
                break
            self.heard_ns = self.board.now_ns
            self.core.packets_received += 1
            if self.warm is not None and self._too_early(at[0]):
                break
            if not self._packet(at[0], body, <uint32_t>length):
                if self.tired and self.metered:
                    self._charge(at[0], 1 + head + length)
                at = body + length
                break
            if self.metered and self._charge(at[0], 1 + head + length):
                at = body + length
                break
            at = body + length
        return at - data

    cdef void _too_large(self, uint8_t first, const uint8_t* body, const uint8_t* end):
        """Who is not let in yet is told too: what came of its CONNECT says in which version."""
        if self.session is None and self.warm is None and first >> 4 == CONNECT:
            self.control = (first, PyBytes_FromStringAndSize(<char*>body, min(end - body, <Py_ssize_t>CONNECT_HEAD)))
            self._wrong(PACKET_TOO_LARGE, f"CONNECT may have up to {self.packet_bytes_max} bytes")
        else:
            self._wrong(PACKET_TOO_LARGE, f"packets may have up to {self.packet_bytes_max} bytes")

    cdef bint _oversized(self, uint8_t first, size_t size) except -1:
        """Whether a packet that is not a message is larger than any client needs."""
        if first >> 4 == PUBLISH or size <= self.core.control_bytes_max:
            return 0
        self._wrong(QUOTA_EXCEEDED, f"a packet that is not PUBLISH has up to {self.core.control_bytes_max} bytes")
        return 1

    cdef void _pay(self, int64_t before):
        """Something was done that is not the ordinary path of a message, and the core has less left than before.
        A connection that has spent its share is put aside; one packet is always handled."""
        self.spent += before - self.core.work_left
        if not self.tired and (self.core.work_left <= 0 or self.spent >= self.core.share_max):
            self.tired = True
            self.blocked = True
            self.core.aside.append(self)

    cdef bint _charge(self, uint8_t first, size_t size) except -1:
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

    cdef bint _too_early(self, uint8_t first) except -1:
        """Whether a packet must wait until the standby that keeps this connection is needed."""
        if first >> 4 == PINGREQ or first >> 4 == DISCONNECT:
            return 0
        self.blocked = True
        return 1

    cdef bint _packet(self, uint8_t first, const uint8_t* body, uint32_t size) except -1:
        """Handles one packet; 0 when nothing behind it may be looked at now."""
        raise NotImplementedError

    cdef void _wrong(self, int reason, str text):
        """The peer broke a rule: nothing more is read, and plain Python tells it so."""
        if self.fault is None:
            self.fault = (reason, text)
            self.core.control.append(self)
