"""TLS by OpenSSL through Python's ssl module, called for each read and each flush, never for each message."""

import ssl

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.string cimport memcpy, memmove

from holdfast.broker.link cimport Inbox
from holdfast.mqtt.wire cimport Out, out_free, out_reserve
from holdfast.runtime.websocket cimport WebSocket

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char* data, Py_ssize_t size, int flags)
    enum: PyBUF_READ

cdef enum:
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    NOT_AUTHORIZED = 0x87
    QUOTA_EXCEEDED = 0x97

cdef size_t OUT_BYTES_MAX = 1 << 20     # far more than is ever put at once: answers to answers pile up

cdef object SSLWantReadError = ssl.SSLWantReadError
cdef object SSLError = ssl.SSLError
CERTIFICATE_FAULTS = ("CERTIFICATE", "UNKNOWN_CA", "BAD_CERTIFICATE", "CERT_")


def certificate_name(certificate) -> str | None:
    """The common name of a certificate, or its first alternative name where it has none."""
    if not certificate:
        return None
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName" and value:
                return str(value)
    for _, value in certificate.get("subjectAltName", ()):
        if isinstance(value, str) and value:
            return value
    return None


cdef class Layers:
    def __init__(
        self, context=None, WebSocket websocket=None, *, server_side=True, server_hostname=None, session=None
    ) -> None:
        """`context` is an ssl.SSLContext, or None; what only a client has is as for its wrap_bio."""
        self.websocket = websocket
        if context is not None:
            self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self.tls = context.wrap_bio(
                self.incoming,
                self.outgoing,
                server_side=server_side,
                server_hostname=server_hostname,
                session=session,
            )

    def __dealloc__(self) -> None:
        out_free(&self.out)

    @property
    def open(self) -> bool:
        """Whether the greetings are over."""
        return self.is_open()

    @property
    def certificate_name(self) -> str | None:
        """Of the peer, if it showed a certificate that we believe."""
        return None if self.tls is None or not self.greeted else certificate_name(self.tls.getpeercert())

    @property
    def session(self) -> ssl.SSLSession | None:
        """With which a later connection may go on where this one ended."""
        return None if self.tls is None else self.tls.session

    @property
    def resumed(self) -> bool:
        """Whether TLS went on where an earlier connection ended."""
        return self.tls is not None and bool(self.tls.session_reused)

    def received(self, bytes data not None, Inbox inbox not None) -> bytes:
        """What is for the wire when these bytes came; for whoever has no poller."""
        cdef list parts = []
        cdef size_t n
        self.feed(<const uint8_t*>PyBytes_AS_STRING(data), len(data))
        while (n := self.next(inbox)):
            parts.append(bytes(inbox.buffer[:n]))
        return b"".join(parts)

    def send(self, bytes data not None) -> None:
        self.put(<const uint8_t*>PyBytes_AS_STRING(data), len(data))

    def close(self) -> None:
        self.part()

    def take_output(self) -> bytes:
        """What is for the socket."""
        data = PyBytes_FromStringAndSize(<char*>self.out.data, self.out.len)
        self.sent(self.out.len)
        return data

    cdef bint is_open(self) noexcept:
        return (self.tls is None or self.greeted) and (self.websocket is None or self.websocket.open)

    cdef bint costly(self) noexcept:
        """Whether the next bytes may take a signature, which is worth a thousand messages."""
        return self.tls is not None and not self.greeted

    # From the socket to the wire

    cdef bint feed(self, const uint8_t* data, size_t size) except 0:
        """These bytes were read. Without TLS they must stay where they are until next() says 0."""
        if self.tls is not None:
            self.incoming.write(PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ))
        else:
            self.raw = data
            self.raw_len = size
        return 1

    cdef size_t next(self, Inbox inbox) noexcept:
        """How many bytes are for the wire, now in the inbox; 0 until more is fed."""
        try:
            return self._next(inbox)
        except Exception as error:
            self.reason = UNSPECIFIED_ERROR
            self.fault = f"the broker made a mistake: {error!r}"
            return 0

    cdef size_t _next(self, Inbox inbox) except? 0:
        cdef size_t n
        while not self.over and self.fault is None:
            if self.tls is not None:
                n = self._decrypt(inbox)
            else:
                n = min(self.raw_len, inbox.size)
                memcpy(inbox.data, self.raw, n)
                self.raw += n
                self.raw_len -= n
            if n == 0 or self.websocket is None:
                return n
            n = self.websocket.take(inbox.data, n)
            self._answer()
            if n:
                return n
        return 0

    cdef size_t _decrypt(self, Inbox inbox) except? 0:
        cdef size_t n
        try:
            if not self.greeted and not self._greet():
                return 0
            if not self.incoming.pending and not self.tls.pending():
                return 0
            n = self.tls.read(inbox.size, inbox.buffer)
            self.over = n == 0
        except SSLWantReadError:
            n = 0
        except SSLError as error:
            self._broken(error)
            n = 0
        if self.outgoing.pending:
            self._collect()
        return n

    cdef bint _greet(self) except -1:
        try:
            self.tls.do_handshake()
        except SSLWantReadError:
            self._collect()
            return 0
        self.greeted = True
        self._collect()
        return 1

    def _broken(self, error) -> None:
        why = error.reason or str(error)
        unknown = any(each in why for each in CERTIFICATE_FAULTS)
        self.reason = NOT_AUTHORIZED if unknown else PROTOCOL_ERROR if self.greeted else MALFORMED_PACKET
        words = getattr(error, "verify_message", None) or why.lower().replace("_", " ")
        self.fault = f"TLS: {words}"

    # From the wire to the socket

    cdef bint put(self, const uint8_t* data, size_t size) except 0:
        """The wire says this. Call it only when the greetings are over."""
        cdef Out framed
        if self.fault is not None or self.parted:
            return 1
        if self.websocket is None:
            return self._seal(data, size)
        if self.tls is None:
            return self.websocket.put(&self.out, data, size)
        framed.data, framed.len, framed.cap = NULL, 0, 0
        try:
            self.websocket.put(&framed, data, size)
            self._seal(framed.data, framed.len)
        finally:
            out_free(&framed)
        return 1

    cdef bint part(self) except 0:
        """Puts the farewell: nothing follows it."""
        if self.parted:
            return 1
        self.parted = True
        if self.websocket is not None:
            self.websocket.part()
            self._answer()
        if self.tls is not None and self.greeted:
            try:
                self.tls.unwrap()
            except SSLError:
                pass  # the peer's own farewell is not awaited
            self._collect()
        return 1

    cdef bint _answer(self) except 0:
        """What the WebSocket itself has to say, and what it found wrong."""
        cdef WebSocket websocket = self.websocket
        if websocket.replies.len:
            self._seal(websocket.replies.data, websocket.replies.len)
            out_free(&websocket.replies)
        self.over = self.over or websocket.over
        if websocket.fault is not None and self.fault is None:
            self.reason = PROTOCOL_ERROR
            self.fault = f"WebSocket: {websocket.fault}"
        return 1

    cdef bint _seal(self, const uint8_t* data, size_t size) except 0:
        if self.tls is None:
            return self._append(data, size)
        try:
            self.tls.write(PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ))
        except SSLError as error:
            self._broken(error)
        return self._collect()

    cdef bint _collect(self) except 0:
        """Takes what TLS wants to be sent."""
        cdef bytes sealed
        if self.outgoing.pending:
            sealed = self.outgoing.read()
            return self._append(<const uint8_t*>PyBytes_AS_STRING(sealed), PyBytes_GET_SIZE(sealed))
        return 1

    cdef bint _append(self, const uint8_t* data, size_t size) except 0:
        if self.out.len + size > OUT_BYTES_MAX and self.fault is None:
            self.reason = QUOTA_EXCEEDED
            self.fault = "its peer takes nothing of what is said to it"
        if not out_reserve(&self.out, size):
            raise MemoryError
        memcpy(self.out.data + self.out.len, data, size)
        self.out.len += size
        return 1

    cdef void sent(self, size_t size) noexcept:
        """So many of the bytes for the socket were written."""
        if size >= self.out.len:
            out_free(&self.out)
        elif size:
            self.out.len -= size
            memmove(self.out.data, self.out.data + size, self.out.len)
