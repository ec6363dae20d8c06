"""A peer that leaves while it is still owed an answer costs nothing until the answer is there,
and one that was reset is worked for no more."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable

import pytest

from conformance.wire import connect, disconnect, publish, subscribe
from holdfast.broker.broker import Broker
from holdfast.broker.meter import Meter
from holdfast.broker.work import FILTER
from holdfast.contract.model import ContractBook
from holdfast.runtime.listeners import client_listening
from holdfast.runtime.server import Server
from holdfast.security.config import Listener, Security
from holdfast.security.gate import Gate, Known, Wanted
from holdfast.security.users import hash_password
from holdfast.security.verified import Verified
from support.websockets import BINARY, frame, request

WAIT_S_MAX = 10.0
RESET = struct.pack("ii", 1, 0)
STORED = hash_password(b"right")


class Slow:
    """A broker on a real socket whose passwords are checked when the test says so."""

    def __init__(self) -> None:
        self.broker = Broker(ContractBook(), policy="edf", seed=1, now_ns=0, event=lambda *_: None)
        self.server = Server(self.broker, asyncio.get_running_loop())
        self.waiting: list[Wanted] = []
        self.gate = Gate(
            self.broker,
            Known(Security(users="users"), {"alice": STORED}, None),
            verified=Verified(b"k" * 32),
            check=self._take,
            address_of=lambda fd: "192.0.2.1",
        )

    def _take(self, wanted: Wanted) -> bool:
        self.waiting.append(wanted)
        return True

    async def listen(self, protocol: str) -> int:
        listening = client_listening(
            Listener(address="127.0.0.1:0", protocol=protocol), None, self.broker.open, 10**10
        )
        ((_, port),) = await self.server.listen("127.0.0.1", 0, listening)
        return port

    def step_until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while not done():
            assert time.monotonic() < deadline
            self.server.step()

    def told_in(self, steps: int) -> int:
        """Before how many of so many steps the kernel had something to say."""
        told = 0
        for _ in range(steps):
            told += bool(select.select([self.server.poller.fileno()], [], [], 0)[0])
            self.server.step()
        return told


@pytest.mark.parametrize("protocol", ["mqtt", "websocket"])
@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
def test_who_leaves_while_its_password_is_checked_is_heard_of_once(protocol: str, reset: bool) -> None:
    async def work() -> None:
        slow = Slow()
        port = await slow.listen(protocol)
        hello = connect("c", username="alice", password=b"wrong")
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(hello if protocol == "mqtt" else request() + frame(BINARY, hello))
            slow.step_until(lambda: slow.waiting)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        assert slow.told_in(50) <= 2, "the kernel says again and again that the peer left"
        assert slow.told_in(50) == 0
        assert slow.server.poller.open == 1
        slow.gate.checked(slow.waiting.pop(), None, time.monotonic_ns())
        slow.step_until(lambda: slow.server.poller.open == 0)
        await slow.server.close()

    asyncio.run(work())


async def met() -> tuple[Server, socket.socket]:
    """A broker on a real socket, and a client that was let in."""
    broker = Broker(ContractBook(), policy="edf", seed=1, now_ns=time.monotonic_ns())
    server = Server(broker, asyncio.get_running_loop())
    ((_, port),) = await server.listen(
        "127.0.0.1", 0, client_listening(Listener(address="127.0.0.1:0"), None, broker.open, 10**10)
    )
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.setblocking(False)
    client.sendall(connect("c"))
    step_until(server, lambda: server.broker.clients.sessions)
    return server, client


def step_until(server: Server, done: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not done():
        assert time.monotonic() < deadline
        server.step()


def test_what_who_was_reset_asked_for_before_is_not_worked_off() -> None:
    async def work() -> None:
        server, client = await met()
        one = subscribe(1, "$SYS/#")
        with contextlib.suppress(BlockingIOError):
            while True:
                client.send(one * 1000)
        client.close()
        core, works = server.broker.core, server.broker.works
        spent, received = works.spent, core.bytes_received
        step_until(server, lambda: server.poller.open == 0)
        asked = (core.bytes_received - received) // len(one)
        assert asked > 1000, "all that came was looked at"
        assert works.spent - spent < asked * FILTER // 4
        await server.close()

    asyncio.run(work())


def test_who_was_reset_while_it_is_not_read_is_heard_of_once_and_read_when_it_may_be() -> None:
    async def work() -> None:
        server, client = await met()
        core = server.broker.core
        (connection,) = server.broker.connections
        connection.hold()
        server.step()
        before = core.bytes_received
        client.sendall(publish("t", b"x"))
        client.close()
        told = 0
        for _ in range(50):
            told += bool(select.select([server.poller.fileno()], [], [], 0)[0])
            server.step()
        assert told <= 2, "the kernel says again and again that the peer was reset"
        assert core.bytes_received == before, "it was read though it is held back"
        assert server.poller.open == 1
        connection.unhold()
        step_until(server, lambda: server.poller.open == 0)
        assert core.bytes_received == before + len(publish("t", b"x"))
        await server.close()

    asyncio.run(work())


def test_who_was_reset_while_it_is_not_read_and_said_nothing_is_gone_at_once() -> None:
    async def work() -> None:
        server, client = await met()
        (connection,) = server.broker.connections
        connection.hold()
        server.step()
        client.close()
        step_until(server, lambda: server.poller.open == 0)
        await server.close()

    asyncio.run(work())


def test_who_was_reset_while_it_is_too_fast_is_heard_to_the_end() -> None:
    async def work() -> None:
        server, client = await met()
        core = server.broker.core
        (connection,) = server.broker.connections
        connection.limit(Meter(50, 0), None)
        client.sendall(publish("t", b"x") * 60)
        step_until(server, lambda: connection.slowed_ns)
        client.close()
        step_until(server, lambda: server.poller.open == 0)
        assert core.packets_received == 1 + 60
        await server.close()

    asyncio.run(work())


def test_who_said_goodbye_before_the_broker_ends_is_heard_first() -> None:
    async def work() -> None:
        server, client = await met()
        with client:
            client.sendall(disconnect())
            await server.close()
        assert not server.broker.clients.sessions

    asyncio.run(work())
