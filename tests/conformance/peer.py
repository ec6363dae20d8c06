"""A client that is a socket and nothing more: it sends bytes and says what must come back.

Every wait ends after WAIT_S; a failure shows the transcript of the connection so far.
"""

import socket
import time
from collections import deque
from types import TracebackType
from typing import Never, Self

from conformance import wire
from conformance.wire import PINGREQ, V5, P, Packet, Properties, Type

WAIT_S = 10.0  # tests share a machine
QUIET_S = 0.1
RECEIVE_BYTES = 65536
LOOPBACK = "127.0.0.1"
Filter = bytes | str | tuple[bytes | str, int]


class Peer:
    """One connection, in one protocol version.

    A server should say why it ends a connection; the text lets it just close. Holdfast promises to say why
    (`says_why`); of another broker only the close is asked, but a reason that it does give must be right.
    """

    def __init__(self, port: int, v: int = V5, says_why: bool = True) -> None:
        self.v = v
        self.says_why = says_why
        self.connack: Packet | None = None
        self._socket = socket.create_connection((LOOPBACK, port), timeout=WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._early: deque[Packet] = deque()
        self._transcript: list[str] = []
        self._pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    def drop(self) -> None:
        """Close the connection without DISCONNECT, as a crash or a cut link would."""
        self._socket.close()

    # Sending

    def send(self, *packets: bytes) -> None:
        """Send the packets in one write."""
        data = b"".join(packets)
        self._transcript.append(f"  > {data[:64].hex(' ')}{' …' if len(data) > 64 else ''}")
        self._socket.settimeout(WAIT_S)
        try:
            self._socket.sendall(data)
        except OSError as error:
            self._transcript.append(f"  > failed: {error}")

    def next_pid(self) -> int:
        self._pid += 1
        return self._pid

    # Expecting

    def expect(self, kind: Type, seconds_max: float = WAIT_S) -> Packet:
        """The next packet, which must be of this type.

        Messages come when they come: a PUBLISH that arrives before another packet that is awaited is kept
        for the next `expect(PUBLISH)` or `receive`.
        """
        deadline = time.monotonic() + seconds_max
        if kind is Type.PUBLISH and self._early:
            return self._early.popleft()
        while (found := self._next(deadline)) is not None and found.type is Type.PUBLISH is not kind:
            self._early.append(found)
        if found is None:
            self._fail(f"expected {kind.name}, but the connection was closed")
        if found.type is not kind:
            self._fail(f"expected {kind.name}, got {found.type.name}")
        return found

    def expect_any(self, seconds_max: float = WAIT_S) -> Packet:
        """The next packet, whatever it is: where the text lets a server choose."""
        found = self._next(time.monotonic() + seconds_max)
        if found is None:
            self._fail("expected a packet, but the connection was closed")
        return found

    def rest(self, seconds_max: float = WAIT_S) -> bytes:
        """Every byte until the server closes, not parsed."""
        deadline = time.monotonic() + seconds_max
        while data := self._receive(deadline):
            self._buffer += data
        return self._buffer

    def expect_closed(self, seconds_max: float = WAIT_S) -> None:
        """The server closes the connection and sends nothing before that."""
        found = self._next(time.monotonic() + seconds_max)
        if found is not None:
            self._fail(f"expected the connection to be closed, got {found.type.name}")

    def expect_disconnect(self, *reasons: int, seconds_max: float = WAIT_S) -> None:
        """MQTT 5: the server says why with DISCONNECT, then closes."""
        self._expect_end(Type.DISCONNECT, reasons, seconds_max)

    def expect_refused(self, *reasons: int, seconds_max: float = WAIT_S) -> None:
        """CONNACK with one of these codes and no session, then the connection is closed."""
        self._expect_end(Type.CONNACK, reasons, seconds_max)

    def expect_refused_or_closed(self, *reasons: int) -> None:
        """Where even Holdfast may choose: a CONNACK with one of these codes before the close, or none."""
        self.says_why = False
        self.expect_refused(*reasons)

    def expect_nothing(self, seconds: float = QUIET_S) -> None:
        """Nothing arrives for so long, and the connection stays open."""
        if self._early:
            self._fail(f"expected nothing, got {self._early[0].topic}: {self._early[0].payload!r}")
        try:
            found = self._next(time.monotonic() + seconds)
        except TimeoutError:
            return
        self._fail(f"expected nothing, got {found.type.name if found else 'a closed connection'}")

    def expect_quiet(self) -> None:
        """The server is answering, and has nothing else for us: PINGRESP is next, and nothing after it."""
        self.send(PINGREQ)
        self.expect(Type.PINGRESP)
        self.expect_nothing()

    # Exchanges that go well

    def connect(self, client_id: bytes | str, **options: object) -> Packet:
        """CONNECT that must be accepted; the options are those of wire.connect."""
        self.send(wire.connect(client_id, v=self.v, **options))  # type: ignore[arg-type]
        self.connack = self.expect(Type.CONNACK)
        assert not self._early, self._report("PUBLISH before CONNACK")
        if self.connack.reason:
            self._fail(f"CONNECT was refused with {self.connack.reason:#04x}")
        return self.connack

    def subscribe(self, *filters: Filter, props: Properties = ()) -> Packet:
        """SUBSCRIBE, answered by SUBACK with a code for each filter."""
        pid = self.next_pid()
        self.send(wire.subscribe(pid, *filters, v=self.v, props=props))
        found = self.expect(Type.SUBACK)
        assert (found.pid, len(found.reasons)) == (pid, len(filters))
        return found

    def unsubscribe(self, *filters: bytes | str) -> Packet:
        pid = self.next_pid()
        self.send(wire.unsubscribe(pid, *filters, v=self.v))
        found = self.expect(Type.UNSUBACK)
        assert found.pid == pid
        return found

    def publish(
        self,
        topic: bytes | str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        props: Properties = (),
    ) -> Packet | None:
        """PUBLISH and its whole handshake; the first answer (PUBACK or PUBREC) is returned."""
        pid = self.next_pid() if qos else None
        self.send(wire.publish(topic, payload, v=self.v, qos=qos, retain=retain, pid=pid, props=props))
        if pid is None:
            return None
        answer = self.expect(Type.PUBACK if qos == 1 else Type.PUBREC)
        assert answer.pid == pid
        if qos == 2 and answer.reason < 0x80:
            self.send(wire.ack(Type.PUBREL, pid))
            assert self.expect(Type.PUBCOMP).pid == pid
        return answer

    def receive(self, seconds_max: float = WAIT_S, auto_ack: bool = True) -> Packet:
        """The next packet, a PUBLISH; unless the test wants to acknowledge, its handshake is completed."""
        found = self.expect(Type.PUBLISH, seconds_max)
        if not auto_ack or found.pid is None:
            return found
        if found.qos == 1:
            self.send(wire.ack(Type.PUBACK, found.pid))
        else:
            self.send(wire.ack(Type.PUBREC, found.pid))
            assert self.expect(Type.PUBREL).pid == found.pid
            self.send(wire.ack(Type.PUBCOMP, found.pid))
        return found

    def receive_payloads(self, count: int) -> list[bytes]:
        return [self.receive().payload for _ in range(count)]

    # Below: bytes

    def _next(self, deadline: float) -> Packet | None:
        """The next whole packet, or None once the server has closed; TimeoutError at the deadline."""
        while (size := _packet_size(self._buffer)) is None:
            data = self._receive(deadline)
            if not data:
                assert not self._buffer, self._report(f"closed within a packet: {self._buffer.hex(' ')}")
                self._transcript.append("  < closed")
                return None
            self._buffer += data
        raw, self._buffer = self._buffer[:size], self._buffer[size:]
        self._transcript.append(f"  < {raw[:64].hex(' ')}{' …' if size > 64 else ''}")
        try:
            return wire.parse(raw, self.v)
        except (AssertionError, UnicodeDecodeError, ValueError) as error:
            self._fail(f"not a valid packet: {error}")

    def _receive(self, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            return self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            raise TimeoutError(self._report("nothing arrived in time")) from None
        except ConnectionError:
            return b""

    def _expect_end(self, kind: Type, reasons: tuple[int, ...], seconds_max: float) -> None:
        deadline = time.monotonic() + seconds_max
        while (found := self._next(deadline)) is not None and found.type is Type.PUBLISH:
            self._early.append(found)
        if found is None:
            return self._fail(f"closed without {kind.name}") if self.says_why else None
        if found.type is not kind:
            self._fail(f"expected {kind.name}, got {found.type.name}")
        if found.reason not in reasons:
            wanted = " or ".join(f"{reason:#04x}" for reason in reasons)
            self._fail(f"expected reason {wanted}, got {found.reason:#04x} ({found.prop(P.REASON_STRING)})")
        self.expect_closed()
        return None

    def _report(self, what: str) -> str:
        return "\n".join([what, f"transcript (level {self.v}):", *self._transcript])

    def _fail(self, what: str) -> Never:
        raise AssertionError(self._report(what))


def _packet_size(buffer: bytes) -> int | None:
    """Length of the first packet in the buffer, once its fixed header is there and all of it has arrived."""
    length = shift = 0
    for at, byte in enumerate(buffer[1:5], start=2):
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return at + length if len(buffer) >= at + length else None
    assert len(buffer) < 5, f"remaining length longer than four bytes: {buffer[:5].hex(' ')}"
    return None
