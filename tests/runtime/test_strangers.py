"""Strangers at the port for members have little of a broker's time, whatever they do."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

from tests.replication.pair import contracts, group_of

from holdfast.address import LOOPBACK
from holdfast.replication.member import Member
from holdfast.replication.messages import Hello, decode_word, encode_word
from holdfast.replication.peer import Peer
from holdfast.replication.waiting import STRANGERS_MAX
from holdfast.runtime.listeners import member_listening
from holdfast.runtime.server import Server

CROWD = 200
WAIT_S = 10.0
HEAD_BYTES = 5


class Doorstep:
    """A member that is stepped by hand, and whoever comes to its port for members."""

    def __init__(self) -> None:
        now_ns = time.monotonic_ns()
        self.member = Member(contracts(), group_of(2), "a", seed=1, now_ns=now_ns)
        self.server = Server(self.member, asyncio.get_running_loop())
        self.opened: list[Peer | None] = []
        self.sockets: list[socket.socket] = []
        self.port = 0

    async def begin(self) -> None:
        listening = member_listening(None, ["b"], self._open)
        ((_, self.port),) = await self.server.listen(LOOPBACK, 0, listening)

    def _open(self, inbox: object, now_ns: int, address: str) -> Peer | None:
        assert address == LOOPBACK
        self.opened.append(self.member.accept_peer(self.server.inbox, now_ns, address))
        return self.opened[-1]

    def come(self) -> socket.socket:
        self.sockets.append(socket.create_connection((LOOPBACK, self.port), timeout=WAIT_S))
        self.sockets[-1].setblocking(False)
        return self.sockets[-1]

    def step_until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < end
            self.server.step()

    def rest_is_over(self) -> None:
        due_ns = self.server.poller.next_ns
        assert due_ns is not None
        while time.monotonic_ns() < due_ns:
            pass

    async def end(self) -> None:
        for each in self.sockets:
            each.close()
        await self.server.close()


def at_a_doorstep(test: Callable[[Doorstep], None]) -> None:
    async def whole() -> None:
        doorstep = Doorstep()
        await doorstep.begin()
        try:
            test(doorstep)
        finally:
            await doorstep.end()

    asyncio.run(whole())


def test_of_a_crowd_a_step_lets_a_few_in_and_then_looks_at_nobody_for_a_while() -> None:
    def test(doorstep: Doorstep) -> None:
        for _ in range(CROWD):
            doorstep.come()
        doorstep.server.step()
        first = len(doorstep.opened)
        assert 0 < first < STRANGERS_MAX
        due_ns = doorstep.server.poller.next_ns
        assert due_ns is not None
        if due_ns - time.monotonic_ns() > 1_000_000:  # the machine may be busy
            doorstep.server.step()
            assert len(doorstep.opened) == first
        doorstep.rest_is_over()
        doorstep.server.step()
        assert first < len(doorstep.opened) < 2 * STRANGERS_MAX
        doorstep.step_until(lambda: len(doorstep.opened) == CROWD)
        assert len(doorstep.member.peers.room.all()) == STRANGERS_MAX

    at_a_doorstep(test)


def test_who_left_before_it_was_looked_at_costs_no_more_than_that() -> None:
    def test(doorstep: Doorstep) -> None:
        for _ in range(20):
            doorstep.come().close()
        late = doorstep.come()
        late.sendall(b"GET / HTTP/1.1\r\n\r\n")
        doorstep.step_until(lambda: bool(doorstep.opened))
        assert len(doorstep.opened) == 1

    at_a_doorstep(test)


def test_who_has_said_who_it_is_does_not_wait_behind_strangers() -> None:
    """What it says is read in the next step, though strangers are not looked at meanwhile."""

    def test(doorstep: Doorstep) -> None:
        b = doorstep.come()
        doorstep.step_until(lambda: doorstep.opened != [])
        (peer,) = doorstep.opened
        assert peer is not None
        greeting = b""
        while not greeting:
            doorstep.server.step()
            try:
                greeting = b.recv(4096)
            except BlockingIOError:
                continue
        hello = decode_word(greeting[HEAD_BYTES:])
        assert isinstance(hello, Hello)
        ours = Hello(hello.protocol, hello.group, hello.contracts, "b", hello.role, hello.view, hello.worth)
        body = encode_word(ours)
        b.sendall((len(body) + 1).to_bytes(4, "big") + b"\1" + body)
        doorstep.step_until(lambda: peer.state.greeted)
        for _ in range(CROWD):
            doorstep.come()
        doorstep.server.step()
        doorstep.server.step()
        heard_ns = peer.heard_ns
        b.sendall(b"\0\0")  # of the next frame
        doorstep.server.step()
        assert peer.heard_ns > heard_ns
        assert peer.known
        assert not peer.closing

    at_a_doorstep(test)
