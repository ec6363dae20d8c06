"""What a member of a group needs besides its clients' sockets: the other members, and an arbiter.

Laws:
- every dial ends, with a connection or with a word to the member that there is none
- nothing here decides: the member says whom to dial and what to claim, and is told what came of it
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine
from typing import Any

from holdfast.replication.group import GroupConfig
from holdfast.replication.member import Member
from holdfast.runtime.server import Server

DIAL_S_MAX = 0.5  # less than a joining member waits


class Membership:
    def __init__(self, member: Member, server: Server, group: GroupConfig) -> None:
        self.member = member
        self.server = server
        self.group = group
        self._tasks: set[asyncio.Task[None]] = set()
        server.after_step.append(self._after_step)

    async def start(self) -> None:
        address = self.group.member(self.member.name).peer_address
        await self.server.listen(address.host, address.port, self.member.accept_peer)
        self.server.step()

    def _after_step(self) -> None:
        for name in self.member.take_dials():
            self._begin(self._dial(name))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.server.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial(self, name: str) -> None:
        address = self.group.member(name).peer_address
        loop = self.server.loop
        try:
            async with asyncio.timeout(DIAL_S_MAX):
                found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
                family, _, _, _, where = found[0]
                connecting = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                try:
                    await loop.sock_connect(connecting, where)
                except BaseException:
                    connecting.close()
                    raise
        except (OSError, TimeoutError):
            self.member.undialable(name, time.monotonic_ns())
            self.server.step()  # it may have been all that kept the member from serving
            return
        peer = self.member.dialed(name, self.server.inbox, time.monotonic_ns())
        self.server.poller.adopt(connecting.detach(), peer)
        self.server.step()
