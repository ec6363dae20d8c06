"""A broker on real sockets: asyncio reads and writes, the pure broker decides.

Laws:
- bytes go straight from the socket into the inbox, and from a link into the socket; nothing is decided here
- a socket that is full is left alone until it drains; what waits for it stays in its session, by deadline
- one turn of the broker runs after the reads of one loop iteration, then everything ready is written
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import cast

from holdfast.broker.broker import Broker
from holdfast.broker.connection import Connection, Inbox
from holdfast.errors import Unavailable

INBOX_BYTES = 65_536
SEND_BYTES_UNSENT_MAX = 65_536  # what may wait in the kernel for one subscriber
ACCEPT_BACKLOG = 512
LINGER_S = 5.0  # how long a farewell may take to reach a client that does not read


class Server:
    """Drives one broker on one event loop."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.loop = loop
        self.inbox = Inbox(INBOX_BYTES)
        self.view = memoryview(self.inbox.buffer)
        self._listeners: list[asyncio.Server] = []
        self._turn_planned = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ns = 0
        self._plan_alarm()

    async def listen(self, host: str, port: int) -> list[tuple[str, int]]:
        """Opens a listener and returns the addresses it has."""
        try:
            listener = await self.loop.create_server(
                lambda: SocketLink(self), host or None, port, backlog=ACCEPT_BACKLOG, reuse_address=True
            )
        except OSError as error:
            where = f"{host}:{port}"
            raise Unavailable(
                f"cannot listen on {where}: {error.strerror or error}. Choose another with --listen."
            ) from error
        self._listeners.append(listener)
        return [sock.getsockname()[:2] for sock in listener.sockets]

    def wake(self) -> None:
        """Something came in: a turn follows the reads of this loop iteration."""
        if not self._turn_planned:
            self._turn_planned = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_planned = False
        now_ns = time.monotonic_ns()
        more = self.broker.turn(now_ns, time.time_ns())
        board = self.broker.core.board
        for link in board.take_ready():
            cast(SocketLink, link.driver).perform()
        if more or board.waiting:
            self.wake()
        self._plan_alarm()

    def _plan_alarm(self) -> None:
        due_ns = self.broker.timers.next_ns
        if due_ns is None or (self._alarm is not None and self._alarm_ns <= due_ns):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ns = due_ns
        self._alarm = self.loop.call_later(max(0.0, (due_ns - time.monotonic_ns()) / 1e9), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.wake()

    async def close(self) -> None:
        """Stops accepting, delivers what waits, says goodbye, and lets the farewells out."""
        for listener in self._listeners:
            listener.close()
        links = [cast(SocketLink, connection.driver) for connection in self.broker.connections]
        self.broker.drain(time.monotonic_ns())
        for link in self.broker.core.board.take_ready():
            cast(SocketLink, link.driver).perform()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await asyncio.gather(*(link.gone.wait() for link in links if link.gone is not None))
        if self._alarm is not None:
            self._alarm.cancel()


class SocketLink(asyncio.BufferedProtocol):
    """One accepted socket and its connection."""

    __slots__ = ("_reading", "connection", "gone", "server", "transport")

    def __init__(self, server: Server) -> None:
        self.server = server
        self.connection: Connection | None = None
        self.transport: asyncio.Transport | None = None
        self.gone: asyncio.Event | None = None
        self._reading = True

    # From the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        connection = self.server.broker.open(self.server.inbox, time.monotonic_ns())
        if connection is None:
            self.transport.abort()
            return
        tune(self.transport.get_extra_info("socket"))
        self.transport.set_write_buffer_limits(high=0)
        self.connection = connection
        connection.driver = self
        self.server._plan_alarm()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.server.view

    def buffer_updated(self, nbytes: int) -> None:
        if self.connection is None:
            return
        self.connection.received(nbytes, time.monotonic_ns(), time.time_ns())
        if self._reading and not self.connection.reads:
            self._set_reading(False)
        self.server.wake()

    def pause_writing(self) -> None:
        if self.connection is not None:
            self.connection.writable = False

    def resume_writing(self) -> None:
        if self.connection is not None:
            self.connection.drained()
            self.server.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.connection is not None:
            self.server.broker.lost(self.connection, time.monotonic_ns())
            self.server.wake()
            self.connection = None
        if self.gone is not None:
            self.gone.set()
        self.transport = None

    # For the broker

    def perform(self) -> None:
        """Does what the link wants: writes, closes, pauses or goes on reading."""
        connection, transport = self.connection, self.transport
        if connection is None or transport is None or transport.is_closing():
            return
        if connection.output_size and (connection.writable or connection.closing):
            transport.write(connection.take_output())
            connection.flushed()
        if connection.closing:
            self._close(transport)
        elif connection.reads != self._reading:
            self._set_reading(connection.reads)

    def _close(self, transport: asyncio.Transport) -> None:
        self.gone = asyncio.Event()
        transport.close()
        self.server.loop.call_later(LINGER_S, transport.abort)

    def _set_reading(self, reading: bool) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self._reading = reading
        if reading:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()


def tune(sock: socket.socket) -> None:
    """Small packets leave at once, and little waits unsent in the kernel."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    unsent = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if unsent is not None:
        sock.setsockopt(socket.IPPROTO_TCP, unsent, SEND_BYTES_UNSENT_MAX)
