"""A broker of a test's own making on a real socket, for what real ones do not do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.packets import Packet

WAIT_S = 20.0


def at(port: int) -> str:
    return f"127.0.0.1:{port}"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, WAIT_S))


class FakeBroker:
    """Accepts one client and gives the test its packets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._buffer = b""

    async def packet(self) -> Packet:
        while (found := split(self._buffer)) is None:
            data = await self._reader.read(65_536)
            assert data, "the client closed the connection"
            self._buffer += data
        first_byte, start, end = found
        packet = decode(first_byte, self._buffer[start:end], 5)
        self._buffer = self._buffer[end:]
        return packet

    def send(self, *packets: Packet) -> None:
        self.writer.write(b"".join(encode(packet, 5) for packet in packets))


def with_fake(serve: Callable[[FakeBroker], Awaitable[None]], use: Callable[[int], Awaitable[None]]) -> None:
    async def test() -> None:
        served: list[asyncio.Task[None]] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async def session() -> None:
                await serve(FakeBroker(reader, writer))

            served.append(asyncio.ensure_future(session()))
            try:
                await served[0]
            finally:
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        async with server:
            await use(server.sockets[0].getsockname()[1])
            await asyncio.gather(*served)

    run(test())
