"""The socket of a client: moves bytes, slows down in both directions, and says when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

CLOSE_S_MAX = 2.0


class Link(asyncio.Protocol):
    def __init__(self, read: Callable[[bytes], None], lost: Callable[[Exception | None], None]) -> None:
        self.reading_paused = False
        self._on_read = read
        self._on_lost = lost
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._over = asyncio.Event()

    # -- what asyncio tells --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses, only the same.
        self._transport = cast(asyncio.Transport, transport)
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._on_read(data)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._over.set()
        self._writable.set()
        self._on_lost(error)

    # -- what the client wants -----------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._transport is not None and self.open:
            self._transport.write(data)

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
        """Closes when everything is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        """Returns when the socket is closed; a peer that does not read its last bytes loses them."""
        if self._transport is None:
            return
        try:
            await asyncio.wait_for(self._over.wait(), CLOSE_S_MAX)
        except TimeoutError:
            self.abort()
            await self._over.wait()
