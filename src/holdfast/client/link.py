"""The socket of one connection: moves bytes, slows down in both directions, and says when it is over.

With layers the bytes go through TLS, here and not in asyncio's, so that they can be read out of turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import cast

from holdfast.broker.link import Inbox
from holdfast.endpoint.config import Address
from holdfast.runtime.layers import Layers

CLOSE_S_MAX = 2.0
READ_NOW_BYTES_MAX = 1 << 20
READ_BYTES = 65_536


class Link(asyncio.Protocol):
    """`lost` is called once, as soon as the end is known, and never after `close`."""

    def __init__(
        self,
        address: Address,
        read: Callable[[Link, bytes], None],
        lost: Callable[[Link, str], None],
        layers: Layers | None,
        inbox: Inbox | None,
    ) -> None:
        self.address = address
        self.layers = layers
        self._inbox = inbox
        self._greeted: asyncio.Future[None] | None = None
        self._why = ""
        self._ended = False  # as was found out of turn
        self.reading_paused = False
        self._on_read = read
        self._on_lost = lost
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._over = asyncio.Event()
        self._told = False

    # -- what asyncio tells --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses, only the same.
        self._transport = cast(asyncio.Transport, transport)
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.layers is not None:
            self._unwrap(self.layers, b"")

    def data_received(self, data: bytes) -> None:
        if self.layers is not None:
            data = self._unwrap(self.layers, data)
        if data:
            self._on_read(self, data)
        self._look_at_layers()

    def _unwrap(self, layers: Layers, data: bytes) -> bytes:
        assert self._inbox is not None, "layers need an inbox"
        data = layers.received(data, self._inbox)
        self._write(layers.take_output())
        return data

    def _look_at_layers(self) -> None:
        """Whether the greetings are over, or everything is."""
        layers = self.layers
        if layers is None:
            return
        if layers.fault is not None or layers.over:
            self._tell(layers.fault or "")
        if self._greeted is not None and not self._greeted.done() and layers.open:
            self._greeted.set_result(None)

    async def greeted(self) -> None:
        """Returns when bytes can be exchanged; raises OSError when they never will be."""
        if self.layers is None or self.layers.open:
            return
        if self._told:
            raise ConnectionError(self._why)
        self._greeted = asyncio.get_running_loop().create_future()
        await self._greeted

    def eof_received(self) -> None:
        self._tell("")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._over.set()
        self._writable.set()
        self._tell("" if error is None else str(error))

    def _tell(self, why: str) -> None:
        if self._told:
            return
        self._told = True
        if self.layers is not None and not self.layers.open:
            self._why = why or "the connection ended before TLS was agreed on: is TLS spoken there?"
            if self._greeted is not None and not self._greeted.done():
                self._greeted.set_exception(ConnectionError(self._why))
            self.close()
        else:
            self._on_lost(self, why)

    # -- what the client wants -----------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and not self._told

    @property
    def congested(self) -> bool:
        return not self._writable.is_set()

    @property
    def unwritten_bytes(self) -> int:
        """What the socket has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def write(self, data: bytes) -> None:
        if self.layers is not None:
            self.layers.send(data)
            data = self.layers.take_output()
        self._write(data)

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def read_now(self) -> bytes:
        """What the socket has, READ_NOW_BYTES_MAX at most, without waiting for the loop to say so."""
        if self._transport is None or not self.open:
            return b""
        pieces = []
        left = READ_NOW_BYTES_MAX
        with contextlib.suppress(BlockingIOError, InterruptedError):
            try:
                while left > 0 and (piece := os.read(self._fileno(), READ_BYTES)):
                    pieces.append(piece)
                    left -= len(piece)
                self._ended = left > 0
            except ConnectionError as error:
                self._ended, self._why = True, str(error)
        data = b"".join(pieces)
        return self._unwrap(self.layers, data) if self.layers is not None else data

    def look_at_end(self) -> None:
        """What was read out of turn may have been the last."""
        self._look_at_layers()
        if self._ended:
            self._tell(self._why)

    def _fileno(self) -> int:
        assert self._transport is not None
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    async def writable(self) -> None:
        """Returns when the socket takes more without growing a buffer, or is gone."""
        await self._writable.wait()

    def stop_reading(self) -> None:
        if not self.reading_paused:
            self.reading_paused = True
            if self._transport is not None and self.open:
                self._transport.pause_reading()

    def start_reading(self) -> None:
        if self.reading_paused:
            self.reading_paused = False
            if self._transport is not None and self.open:
                self._transport.resume_reading()

    def close(self) -> None:
        """Closes when everything is written; a peer that does not read its last bytes loses them."""
        self._told = True
        if self._transport is not None:
            if self.layers is not None:
                self.layers.close()
                self._write(self.layers.take_output())
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_S_MAX, self._transport.abort)

    @property
    def over(self) -> bool:
        return self._over.is_set()

    async def closed(self) -> None:
        """Returns when the socket is closed."""
        if self._transport is not None:
            await self._over.wait()
