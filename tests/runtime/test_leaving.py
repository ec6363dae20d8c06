"""A peer that leaves while it is still owed an answer costs nothing until the answer is there."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import time
from collections.abc import Callable

import pytest

from conformance.wire import connect
from holdfast.broker.broker import Broker
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
