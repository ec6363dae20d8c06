"""What a member of a group needs besides its clients' sockets: the other members, and an arbiter.

Laws:
- every dial ends, with a connection or with a word to the member that there is none
- nothing here decides: the member says whom to dial and what to claim, and is told what came of it
- every claim is answered within CLAIM_S_MAX, if only with the word that the arbiter gave no answer
- with certificates, the member hears of a connection when TLS is agreed on and the other end has shown the
  certificate of the member that it must be
- the member knows the addresses of the others, so that no crowd of strangers keeps them out
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from holdfast.errors import Unavailable
from holdfast.replication.group import GroupConfig
from holdfast.replication.member import Member
from holdfast.replication.views import Claim, Standing, why_lost
from holdfast.runtime.layers import Layers
from holdfast.runtime.listeners import member_listening
from holdfast.runtime.places import place_of
from holdfast.runtime.server import Server
from holdfast.runtime.tls import Certificates, greet
from holdfast.runtime.zookeeper import Arbiter

DIAL_S_MAX = 0.5  # less than a joining member waits
CLAIM_S_MAX = 1.0
CLAIM_AGAIN_S = 0.2  # an arbiter that fails at once is not asked again at once


class Untrusted(ConnectionError):
    """It is there, and the two do not believe each other's certificates."""


class Membership:
    def __init__(
        self, member: Member, server: Server, group: GroupConfig, certificates: Certificates | None = None
    ) -> None:
        self.member = member
        self._certificates = certificates
        self.server = server
        self.group = group
        self._tasks: set[asyncio.Task[None]] = set()
        self._arbiter: Arbiter | None = None

    async def start(self) -> None:
        if self.group.zookeeper:
            await self._find_arbiter()
        address = self.group.member(self.member.name).peer_address
        others = [each.name for each in self.group.members if each.name != self.member.name]
        for name in others:
            self._begin(self._learn_address(name))
        listening = member_listening(self._certificates, others, self.member.accept_peer)
        instead = f"as peer of {self.member.name} in the group file"
        await self.server.listen(address.host, address.port, listening, instead=instead)
        self.server.after_step.append(self._after_step)  # who cannot listen talks to nobody
        self.server.step()

    def _after_step(self) -> None:
        for name in self.member.take_dials():
            self._begin(self._dial(name))
        claims, self.member.claims = self.member.claims, []
        for claim in claims:
            self._begin(self._claim(claim))

    async def close(self) -> None:
        if self._arbiter is not None:
            await self._arbiter.close()

    async def _find_arbiter(self) -> None:
        self._arbiter = Arbiter(
            self.group.zookeeper, self.group.name, self.member.name, answer_s_max=CLAIM_S_MAX
        )
        try:
            await self._arbiter.start()
        except Unavailable as error:
            self.member.event("no arbiter", {"why": str(error)})

    async def _claim(self, claim: Claim) -> None:
        assert self._arbiter is not None
        won: bool | None = None
        standing: Standing | None = None
        try:
            answer = await self._arbiter.claim(claim)
            won, standing = answer.won, answer.standing
            why = why_lost(standing, claim, self.member.name)
        except Unavailable as error:
            why = str(error)
            await asyncio.sleep(CLAIM_AGAIN_S)
        self.member.claimed(claim.number, won, time.monotonic_ns(), standing=standing, why=why)
        self.server.step()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.server.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial(self, name: str) -> None:
        loop = self.server.loop
        try:
            async with asyncio.timeout(DIAL_S_MAX):
                family, where = await self._resolve(name)
                connecting = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                try:
                    await loop.sock_connect(connecting, where)
                    layers, said = await self._greet(name, connecting)
                except BaseException:
                    connecting.close()
                    raise
        except (OSError, TimeoutError) as error:
            self.member.undialable(name, time.monotonic_ns())
            if isinstance(error, Untrusted):
                self.member.peers.distrusted(name, str(error))
            self.server.step()  # it may have been all that kept the member from serving
            return
        if self.member.broker.draining:
            connecting.close()
            return
        peer = self.member.dialed(name, self.server.inbox, time.monotonic_ns())
        if layers is not None:
            peer.certificate_name = name
        self.server.poller.adopt(connecting.detach(), peer, layers)
        peer.feed(said, time.monotonic_ns(), time.time_ns())
        self.server.step()

    async def _learn_address(self, name: str) -> None:
        with suppress(OSError):  # it is asked again with every dial
            await self._resolve(name)

    async def _resolve(self, name: str) -> tuple[int, Any]:
        """Where that member is to be dialed."""
        address = self.group.member(name).peer_address
        found = await self.server.loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        hosts = [str(where[0]) for *_, where in found]
        expected = self.member.peers.room.expected
        for place in (*map(place_of, hosts), *(f"::ffff:{host}" for host in hosts if "." in host)):
            expected.setdefault(place, set()).add(name)
        return found[0][0], found[0][4]

    async def _greet(self, name: str, connecting: socket.socket) -> tuple[Layers | None, bytes]:
        """Agrees on TLS, if there are certificates, with that member and nobody else."""
        if self._certificates is None:
            return None, b""
        layers = Layers(self._certificates.for_dialing, server_side=False)
        try:
            said = await greet(self.server.loop, connecting, layers)
            if layers.certificate_name != name:
                raise ConnectionError(f"its certificate is of {layers.certificate_name!r}")
        except ConnectionError as error:
            self.member.event("peer not trusted", {"peer": name, "why": str(error)})
            raise Untrusted(str(error)) from error
        return layers, said
