"""The bytes of each contestant's protocol, made ahead of time so that sending costs the generator nothing.

Topics of one stream have one length, so every delivered packet has one size and receivers only count bytes.
Topic names are MQTT's everywhere; the NATS wire translates them (`plant/+/#` is `plant.*.>`).
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Protocol

RECEIVE_MAX_DEFAULT = 65_535
STAMP_KEY = b"hf"


class Refused(Exception):
    """The broker answered something other than what a healthy broker answers."""


@dataclass(frozen=True)
class Greeting:
    """What the broker said when it let the client in."""

    receive_max: int = RECEIVE_MAX_DEFAULT


class Wire(Protocol):
    """What a load generator needs to know about a protocol."""

    name: str
    keeps_alive: bytes
    """What the server may slip into a stream of deliveries and the client must answer; empty if nothing."""

    def open(self, sock: socket.socket, client_id: str, receive_max: int | None = None) -> Greeting: ...
    def subscribe(self, sock: socket.socket, filters: list[str], qos: int = 0) -> None: ...
    def publish(
        self, topic: str, payload: bytes, *, qos: int = 0, packet_id: int = 0, stamp: bytes | None = None
    ) -> bytes: ...
    def delivered(self, topic: str, payload: bytes, *, qos: int = 0, stamp: bytes | None = None) -> bytes: ...
    def close(self) -> bytes: ...


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise Refused(f"connection closed after {bytes(data)!r}")
        data += piece
    return bytes(data)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def text(value: bytes) -> bytes:
    return struct.pack("!H", len(value)) + value


class Mqtt:
    """MQTT 3.1.1 (level 4) or 5."""

    keeps_alive = b""

    def __init__(self, level: int) -> None:
        self.level = level
        self.name = "MQTT 5" if level == 5 else "MQTT 3.1.1"

    def open(self, sock: socket.socket, client_id: str, receive_max: int | None = None) -> Greeting:
        sock.sendall(self.connect(client_id, receive_max))
        return self.greeting(sock)

    def connect(self, client_id: str, receive_max: int | None = None) -> bytes:
        """A clean session that never times out."""
        body = text(b"MQTT") + bytes([self.level, 0x02]) + struct.pack("!H", 0)
        if self.level == 5:
            properties = b"" if receive_max is None else b"\x21" + struct.pack("!H", receive_max)
            body += varint(len(properties)) + properties
        return self._packet(0x10, body + text(client_id.encode()))

    def greeting(self, sock: socket.socket) -> Greeting:
        kind, body = self._read(sock)
        if kind != 0x20 or body[1] != 0:
            raise Refused(f"CONNECT was answered with {kind:#x} {body!r}")
        if self.level != 5:
            return Greeting()
        return Greeting(_receive_max(body[3:]))

    def subscribe(self, sock: socket.socket, filters: list[str], qos: int = 0) -> None:
        sock.sendall(self.subscription(filters, qos))
        kind, body = self._read(sock)
        codes = body[-len(filters) :]
        if kind != 0x90 or any(code != qos for code in codes):
            raise Refused(f"SUBSCRIBE {filters[0]} was answered with {kind:#x} {body[:40]!r}")

    def subscription(self, filters: list[str], qos: int) -> bytes:
        properties = b"\x00" if self.level == 5 else b""
        wanted = b"".join(text(each.encode()) + bytes([qos]) for each in filters)
        return self._packet(0x82, b"\x00\x01" + properties + wanted)

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 0, packet_id: int = 0, stamp: bytes | None = None
    ) -> bytes:
        body = text(topic.encode())
        if qos:
            body += struct.pack("!H", packet_id)
        if self.level == 5:
            properties = b"" if stamp is None else b"\x26" + text(STAMP_KEY) + text(stamp)
            body += varint(len(properties)) + properties
        return self._packet(0x30 | qos << 1, body + payload)

    def delivered(self, topic: str, payload: bytes, *, qos: int = 0, stamp: bytes | None = None) -> bytes:
        return self.publish(topic, payload, qos=qos, stamp=stamp)

    def packet_id_at(self, topic: str) -> int:
        """Where the packet identifier is in a delivered packet whose remaining length takes one byte."""
        return 2 + 2 + len(topic)

    def close(self) -> bytes:
        return b"\xe0\x00"

    @staticmethod
    def _packet(first: int, body: bytes) -> bytes:
        return bytes([first]) + varint(len(body)) + body

    @staticmethod
    def _read(sock: socket.socket) -> tuple[int, bytes]:
        first = read_exactly(sock, 1)[0]
        length, shift = 0, 0
        while True:
            byte = read_exactly(sock, 1)[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return first, read_exactly(sock, length)


# The size of each fixed-size CONNACK property; None is a length-prefixed string, and a user property is two.
_CONNACK_PROPERTIES: dict[int, int | None] = {
    0x11: 4, 0x12: None, 0x13: 2, 0x15: None, 0x16: None, 0x1A: None, 0x1C: None, 0x1F: None, 0x21: 2,
    0x22: 2, 0x24: 1, 0x25: 1, 0x26: None, 0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1,
}  # fmt: skip


def _receive_max(properties: bytes) -> int:
    at, found = 0, RECEIVE_MAX_DEFAULT
    while at < len(properties):
        kind = properties[at]
        at += 1
        if kind == 0x21:
            found = struct.unpack_from("!H", properties, at)[0]
        size = _CONNACK_PROPERTIES[kind]
        for _ in range(2 if kind == 0x26 else 1):
            at += size if size is not None else 2 + struct.unpack_from("!H", properties, at)[0]
    return found


class Nats:
    """NATS's text protocol; a stamp travels as a header."""

    name = "NATS"
    keeps_alive = b"PING\r\n"

    def open(self, sock: socket.socket, client_id: str, receive_max: int | None = None) -> Greeting:
        info = b""
        while not info.endswith(b"\r\n"):
            info += sock.recv(65_536)
        sock.sendall(self.connect(client_id))
        return self.greeting(sock)

    def connect(self, client_id: str, receive_max: int | None = None) -> bytes:
        options = json.dumps({"verbose": False, "pedantic": False, "headers": True, "name": client_id})
        return f"CONNECT {options}\r\nPING\r\n".encode()

    def greeting(self, sock: socket.socket) -> Greeting:
        self._pong(sock)
        return Greeting()

    def subscribe(self, sock: socket.socket, filters: list[str], qos: int = 0) -> None:
        lines = [f"SUB {self.subject(each)} {number}\r\n" for number, each in enumerate(filters, 1)]
        sock.sendall("".join(lines).encode() + b"PING\r\n")
        self._pong(sock)

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 0, packet_id: int = 0, stamp: bytes | None = None
    ) -> bytes:
        return self._message(b"PUB " + self.subject(topic).encode(), payload, stamp)

    def delivered(self, topic: str, payload: bytes, *, qos: int = 0, stamp: bytes | None = None) -> bytes:
        return self._message(b"MSG " + self.subject(topic).encode() + b" 1", payload, stamp)

    def close(self) -> bytes:
        return b""

    @staticmethod
    def subject(topic: str) -> str:
        return topic.replace("/", ".").replace("+", "*").replace("#", ">")

    @staticmethod
    def _message(start: bytes, payload: bytes, stamp: bytes | None) -> bytes:
        if stamp is None:
            return b"%b %d\r\n%b\r\n" % (start, len(payload), payload)
        header = b"NATS/1.0\r\n%b: %b\r\n\r\n" % (STAMP_KEY, stamp)
        return b"H%b %d %d\r\n%b%b\r\n" % (start, len(header), len(header) + len(payload), header, payload)

    @staticmethod
    def _pong(sock: socket.socket) -> None:
        answer = read_exactly(sock, 6)
        if answer == Nats.keeps_alive:
            sock.sendall(b"PONG\r\n")
            answer = read_exactly(sock, 6)
        if answer != b"PONG\r\n":
            raise Refused(f"PING was answered with {answer!r}")
