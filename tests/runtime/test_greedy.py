"""A few clients that send without a pause are in nobody's way: others are read before them, and a poll has
an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

import pytest
from tests.broker.bench import book, contract

from conformance.wire import PINGREQ, connect, publish, subscribe
from holdfast.broker.broker import Broker
from holdfast.broker.work import FILTER, GRANT, PACKET, READ_AT_LEAST, READ_PER_TURN
from holdfast.contract.model import ContractBook
from holdfast.runtime.listeners import client_listening
from holdfast.runtime.server import Server
from holdfast.security.config import Listener
from support.websockets import BINARY, frame, request

FLOODERS = 24
CROWD = 200
TINY = b"".join(frame(BINARY, bytes([byte])) for byte in PINGREQ)
READ_BYTES = 32_768
READERS = 200
WIDE_SLICE = 32_000  # deliveries
SLICES_MAX = 2 * 8  # a step makes some, and a message may come just after it looked
POLLS_MAX = 4  # a poll ends early when the machine is busy


class Flooded:
    """A broker that is stepped by hand, clients with more to say than is read at once, and one other."""

    flooders_count = FLOODERS
    book = ContractBook()

    def __init__(self, websocket: bool) -> None:
        self.broker = Broker(self.book, policy="edf", seed=1, now_ns=0, event=lambda *_: None)
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
        self.flooders = [self._client(port, number) for number in range(self.flooders_count)]
        self.other = socket.create_connection(("127.0.0.1", plain))
        self.other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.other.sendall(connect("other"))
        self.step_until(lambda: len(self.broker.clients.sessions) == self.flooders_count + 1)
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


class Crowd(Flooded):
    """Many, that have said nothing yet."""

    flooders_count = CROWD

    def fill(self) -> None:
        pass


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


def test_who_asks_for_nothing_does_not_wait_behind_the_work_of_many() -> None:
    """Nobody is known to be greedy yet. What is counted is work, which is the same on a busy machine."""

    async def work() -> None:
        crowd = Crowd(websocket=False)
        crowd.flood = subscribe(2, "$SYS/#") * 1000
        await crowd.begin()
        core, works = crowd.broker.core, crowd.broker.works
        for client in crowd.flooders:
            crowd.say(client)
        crowd.other.sendall(publish("other"))
        heard, before = core.messages_received, works.spent
        while core.messages_received == heard:
            core.work_left = READ_PER_TURN
            crowd.server.poller.poll()
        each = (works.spent - before) / CROWD
        assert each <= READ_AT_LEAST + 2 * (PACKET + FILTER + GRANT)
        await crowd.end()

    asyncio.run(work())


class Wide(Flooded):
    """What is published goes to many who do not read, so that it takes long to be done with."""

    book = book(contract("urgent", "urgent/+", "50ms", 0))

    async def begin(self) -> None:
        self.flood = publish("wide", b"x" * 20) * 20_000
        ((_, port),) = await self.server.listen("127.0.0.1", 0)
        self.readers = [socket.create_connection(("127.0.0.1", port)) for _ in range(READERS)]
        for number, reader in enumerate(self.readers):
            reader.sendall(connect(f"reader-{number}", keep_alive=0) + subscribe(1, ("wide", 1)))
        self.other = socket.create_connection(("127.0.0.1", port))
        self.other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.other.sendall(connect("other") + subscribe(1, "urgent/x"))
        self.other.setblocking(False)
        self.step_until(lambda: len(self.broker.core.tree) == READERS + 1)
        self.flooders = [self._client(port, number) for number in range(FLOODERS)]

    async def end(self) -> None:
        await super().end()
        for reader in self.readers:
            reader.close()


def test_who_sends_little_is_read_though_much_waits() -> None:
    """It may be due before all that. What is counted is what of the rest was done meanwhile."""

    async def work() -> None:
        wide = Wide(websocket=False)
        await wide.begin()
        core = wide.broker.core
        sated = 0
        for number in range(30):
            wide.server.step()
            wide.fill()
            sated += core.jobs_waiting >= core.jobs_ahead_max // 2
            done = core.messages_received - core.jobs_waiting
            wide.other.sendall(publish("urgent/x", b"number %d" % number))
            found = b""
            while b"number %d" % number not in found:
                wide.server.step()
                wide.fill()
                with contextlib.suppress(BlockingIOError):
                    found += wide.other.recv(1 << 20)
            done = core.messages_received - core.jobs_waiting - done
            assert done <= SLICES_MAX * WIDE_SLICE // READERS
        assert sated > 10
        await wide.end()

    asyncio.run(work())


def test_many_that_are_reset_are_let_go_of_after_others_were_read() -> None:
    """The end of each may be much work; together they would fill many polls."""

    async def work() -> None:
        crowd = Crowd(websocket=False)
        await crowd.begin()
        core = crowd.broker.core
        for client in crowd.flooders:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        crowd.other.sendall(publish("other"))
        before = core.messages_received
        crowd.server.poller.poll()
        assert core.messages_received == before + 1
        await crowd.end()

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
