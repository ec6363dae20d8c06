"""A few clients that send without a pause are in nobody's way: others are read before them, and a poll has
an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import pytest

from conformance.wire import PINGREQ, connect, publish
from holdfast.broker.broker import Broker
from holdfast.contract.model import ContractBook
from holdfast.runtime.listeners import client_listening
from holdfast.runtime.server import Server
from holdfast.security.config import Listener
from support.websockets import BINARY, frame, request

FLOODERS = 24
TINY = b"".join(frame(BINARY, bytes([byte])) for byte in PINGREQ)
READ_BYTES = 32_768
POLLS_MAX = 4  # a poll ends early when the machine is busy


class Flooded:
    """A broker that is stepped by hand, clients with more to say than is read at once, and one other."""

    def __init__(self, websocket: bool) -> None:
        self.broker = Broker(ContractBook(), policy="edf", seed=1, now_ns=0, event=lambda *_: None)
        self.server = Server(self.broker, asyncio.get_running_loop())
        self.websocket = websocket
        self.flood = (TINY if websocket else PINGREQ) * 20_000
        self.said = READ_BYTES // len(TINY) * len(PINGREQ) if websocket else READ_BYTES  # by one read
        self.flooders: list[socket.socket] = []
        self.at: dict[socket.socket, int] = {}

    async def begin(self) -> None:
        protocol = "websocket" if self.websocket else "mqtt"
        listener = Listener(address="127.0.0.1:0", protocol=protocol)  # type: ignore[arg-type]
        listening = client_listening(listener, None, self.broker.open, 10**10)
        ((_, port),) = await self.server.listen("127.0.0.1", 0, listening)
        ((_, plain),) = await self.server.listen("127.0.0.1", 0)
        self.flooders = [self._client(port, number) for number in range(FLOODERS)]
        self.other = socket.create_connection(("127.0.0.1", plain))
        self.other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.other.sendall(connect("other"))
        self.step_until(lambda: len(self.broker.clients.sessions) == FLOODERS + 1)
        self.fill()
        for _ in range(4 * FLOODERS):  # every one of them is known by now
            self.server.step()
            self.fill()

    def _client(self, port: int, number: int) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", port))
        hello = connect(f"flooder-{number}", keep_alive=0)
        client.sendall(request() + frame(BINARY, hello) if self.websocket else hello)
        client.setblocking(False)
        return client

    def step_until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.server.step()

    def fill(self) -> None:
        """What is said to them goes, and as much waits for the broker as there is room for."""
        for client in self.flooders:
            with contextlib.suppress(BlockingIOError):
                client.recv(1 << 20)
            self.say(client)

    def say(self, client: socket.socket) -> None:
        """As much as there is room for, from where it stopped."""
        at = self.at.get(client, 0)
        with contextlib.suppress(BlockingIOError):
            self.at[client] = (at + client.send(self.flood[at:])) % len(self.flood)

    async def end(self) -> None:
        for client in (*self.flooders, self.other):
            client.close()
        await self.server.close()


@pytest.mark.parametrize("websocket", [True, False], ids=["frames of a byte", "packets of two"])
def test_who_sends_without_a_pause_is_read_after_others_and_for_a_while_only(websocket: bool) -> None:
    async def work() -> None:
        flooded = Flooded(websocket)
        await flooded.begin()
        core, poller = flooded.broker.core, flooded.server.poller
        for number in range(20):
            flooded.other.sendall(publish("other", b"%d" % number))
            polls, heard = 0, core.messages_received
            while core.messages_received == heard:
                polls, before = polls + 1, core.bytes_received
                poller.poll()
                assert core.bytes_received - before < FLOODERS * flooded.said // 2, "a poll reads from all"
            assert polls <= POLLS_MAX, "the other client waits for those who never pause"
            flooded.server.step()
            flooded.fill()
        await flooded.end()

    asyncio.run(work())


def test_everybody_is_read_in_the_end() -> None:
    async def work() -> None:
        flooded = Flooded(websocket=True)
        await flooded.begin()
        answered = set[socket.socket]()
        for _ in range(40 * FLOODERS):
            flooded.server.step()
            for client in flooded.flooders:
                with contextlib.suppress(BlockingIOError):
                    if client.recv(1 << 20):
                        answered.add(client)
                flooded.say(client)
            if len(answered) == FLOODERS:
                break
        assert len(answered) == FLOODERS
        await flooded.end()

    asyncio.run(work())
