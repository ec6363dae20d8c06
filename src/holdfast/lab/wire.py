"""One MQTT connection on a blocking socket: asks, waits for the answer, and reads what comes.

Laws:
- every wait has an end: ANSWER_S_MAX without a byte is Unavailable
- an answer other than the one that was asked for is Unavailable, and its text carries it
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self, TypeVar

from holdfast.address import LOOPBACK
from holdfast.errors import Unavailable
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Packet,
    Properties,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)

ANSWER_S_MAX = 10.0
READ_BYTES = 65_536
REFUSAL = 0x80

Wanted = TypeVar("Wanted", bound=Packet)


class Wire:
    """Connected and admitted, or Unavailable."""

    def __init__(
        self,
        port: int,
        client_id: str,
        *,
        version: int = 5,
        clean: bool = True,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> None:
        self._open(port, client_id, version, clean, answer_s_max)
        try:
            self.session_present = self.admitted().session_present
        except BaseException:
            self.sock.close()
            raise

    @classmethod
    def opening(cls, port: int, client_id: str) -> Self:
        """CONNECT is sent; `admitted` waits for its answer."""
        wire = cls.__new__(cls)
        wire._open(port, client_id, 5, True, ANSWER_S_MAX)
        return wire

    def _open(self, port: int, client_id: str, version: int, clean: bool, answer_s_max: float) -> None:
        self.version = version
        self.session_present = False
        self._packet_id = 0
        self._buffer = bytearray()
        try:
            self.sock = socket.create_connection((LOOPBACK, port), timeout=answer_s_max)
        except OSError as error:
            raise Unavailable(f"nobody listens on port {port}: {error}") from error
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.send(Connect(client_id=client_id, version=version, clean_start=clean))
        except Unavailable:
            self.sock.close()
            raise

    def admitted(self) -> Connack:
        answer = self.expect(Connack)
        if answer.reason:
            raise Unavailable(f"the broker refused us: reason {answer.reason}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def send(self, packet: Packet) -> None:
        self.send_bytes(encode(packet, self.version))

    def send_bytes(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise Unavailable(f"the broker took no more: {error}") from error

    def read(self) -> Packet:
        while (frame := split(self._buffer)) is None:
            try:
                piece = self.sock.recv(READ_BYTES)
            except OSError as error:
                raise Unavailable(f"no answer: {error}") from error
            if not piece:
                raise Unavailable("the broker closed the connection")
            self._buffer += piece
        first, start, end = frame
        packet = decode(first, bytes(self._buffer[start:end]), self.version)
        del self._buffer[:end]
        return packet

    def expect(self, kind: type[Wanted]) -> Wanted:
        packet = self.read()
        if not isinstance(packet, kind):
            raise Unavailable(f"{kind.__name__.upper()} was expected, not {packet}")
        return packet

    def ask(self, packet: Packet, kind: type[Wanted]) -> Wanted:
        self.send(packet)
        return self.expect(kind)

    def subscription(self, filters: list[str], qos: int, user: list[tuple[str, str]] | None = None) -> bytes:
        """The packet that `subscribe` would send."""
        self._packet_id += 1
        wanted = [Subscription(each, qos) for each in filters]
        asked = Subscribe(self._packet_id, wanted, Properties(user=user or []))
        return encode(asked, self.version)

    def granted(self) -> None:
        """Waits for SUBACK."""
        answer = self.expect(Suback)
        if max(answer.reasons) >= REFUSAL:
            raise Unavailable(f"SUBSCRIBE was answered with {answer}")

    def subscribe(self, *filters: str, qos: int = 1) -> None:
        self.send_bytes(self.subscription(list(filters), qos))
        self.granted()

    def publish(self, topic: str, payload: bytes) -> None:
        """With QoS 1, and acknowledged."""
        self._packet_id += 1
        self.ask(Publish(topic, payload, qos=1, packet_id=self._packet_id), Puback)

    def receive(self) -> Publish:
        """The next message, acknowledged if it asks for that."""
        message = self.expect(Publish)
        if message.qos == 1:
            self.send(Puback(message.packet_id))
        return message
