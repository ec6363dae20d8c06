"""Sockets of our own, as cheap as they can be: whole packets in and out, nothing checked."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from conformance.wire import Type

LOOPBACK = "127.0.0.1"
PASSWORD = b"the password of everybody here"
RECEIVE_BYTES = 262_144
Came = tuple[Type, bytes]


class Stream:
    """A connection and the packets on it. Every wait ends after `wait_s`, with an OSError."""

    def __init__(self, port: int, wait_s: float, *, small: bool = False) -> None:
        self.socket = socket.socket()
        if small:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(wait_s)
        try:
            self.socket.connect((LOOPBACK, port))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Ends it without a farewell."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def arrived(self) -> Iterator[Came]:
        """What one read brings, whole packets only; ConnectionError when the peer has closed."""
        self._fill()
        while (found := self._next()) is not None:
            yield found

    def _fill(self) -> None:
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("closed by the broker")
        self._buffer += data

    def _next(self) -> Came | None:
        length = shift = 0
        for at, byte in enumerate(self._buffer[1:5], 1):
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                end = at + 1 + length
                if len(self._buffer) < end:
                    return None
                kind, body = Type(self._buffer[0] >> 4), self._buffer[at + 1 : end]
                self._buffer = self._buffer[end:]
                return kind, body
        return None

    def expect(self, *kinds: Type) -> Came:
        """The next packet of one of these kinds, or DISCONNECT; others are passed over."""
        while True:
            while (found := self._next()) is not None:
                if found[0] in kinds or found[0] is Type.DISCONNECT:
                    return found
            self._fill()
