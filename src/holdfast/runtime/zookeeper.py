"""Arbitration by ZooKeeper: when the link between members is cut, it says whose view it is.

Laws: the stored view only grows; a number is given once, by compare-and-set, and views.py says to whom; a
claim that was answered stays true. A claim that ended in Unavailable may have been won or not: claim again,
or ask `current`. Nothing here blocks the loop: kazoo works in threads of its own, and every wait ends within
`answer_s_max`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.protocol.states import KazooState

from holdfast.errors import ConfigError, Problem, Unavailable
from holdfast.replication.views import Claim, Standing, is_won

ROOT = "/holdfast"
ANSWER_S_MAX = 5.0
# No node of ours ends with a session. This is how long one host may stay silent before the next is tried.
SESSION_S = 2.0
RECONNECT_S_MAX = 0.5
RETRY_S = 0.01
CLOSED = "the arbiter is not started, or closed"
VIEW_NUMBER_MAX = 2**63 - 1
MEMBER_CHARS_MAX = 256
# The connection went away under a request: whether it was carried out is found by reading again.
TRY_AGAIN = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError)

T = TypeVar("T")

_quiet = logging.getLogger("holdfast.zookeeper")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a claim was won, and the view that stands after it."""

    won: bool
    standing: Standing


@dataclass(frozen=True, slots=True)
class Stored:
    standing: Standing
    version: int


def check_name(what: str, name: str) -> None:
    if not 0 < len(name) <= MEMBER_CHARS_MAX or "/" in name or not name.isprintable() or name in (".", ".."):
        text = f'"{name}" cannot name a {what} in ZooKeeper: use 1 to {MEMBER_CHARS_MAX} letters without "/"'
        raise ConfigError("zookeeper", [Problem(what, text)])


def format_standing(standing: Standing) -> str:
    return f"{standing.number}/{standing.holder}/{','.join(standing.heirs)}/{standing.life}"


def parse_standing(text: str) -> Standing | None:
    """None: Holdfast did not write that."""
    number, *rest = text.split("/")
    if not (number.isascii() and number.isdigit() and len(rest) == 3 and rest[0]):
        return None
    holder, heirs, life = rest
    return Standing(int(number), holder, tuple(heirs.split(",")) if heirs else (), life)


class Arbiter:
    """One member's way to ZooKeeper; belongs to the loop on which it is started."""

    def __init__(self, hosts: str, group: str, member: str, *, answer_s_max: float = ANSWER_S_MAX) -> None:
        """Each of a member's processes makes one: what it was given is its own, not of the next process."""
        check_name("group", group)
        check_name("member", member)
        self.hosts = hosts
        self.member = member
        self.path = f"{ROOT}/{group}/view"
        self._life = secrets.token_hex(8)
        self._answer_s_max = answer_s_max
        self._client: Any = None
        self._connected = asyncio.Event()

    async def start(self) -> None:
        """Connects. If nobody answers it says so, and goes on trying: later claims work once one does."""
        loop = self._loop = asyncio.get_running_loop()
        retry = {"max_tries": -1, "delay": 0.02, "backoff": 2, "max_delay": RECONNECT_S_MAX}
        try:
            self._client = KazooClient(
                self.hosts, timeout=SESSION_S, connection_retry=retry, logger=_quiet, randomize_hosts=True
            )
        except ValueError as error:
            problem = Problem("hosts", f'"{self.hosts}" is not a list like "host:2181,host:2181": {error}')
            raise ConfigError("zookeeper", [problem]) from error
        self._client.add_listener(lambda state: self._from_thread(loop, state == KazooState.CONNECTED))
        self._client.start_async()
        await self._bounded(self._connected.wait())

    def _from_thread(self, loop: asyncio.AbstractEventLoop, connected: bool) -> None:
        with suppress(RuntimeError):  # The loop is gone, and with it everybody who waited.
            loop.call_soon_threadsafe(self._connected.set if connected else self._connected.clear)

    async def claim(self, claim: Claim) -> Answer:
        """Claims a view for this member; `is_won` says whether it gets it."""
        if not 0 <= claim.after < claim.number <= VIEW_NUMBER_MAX:
            raise ValueError(f"view {claim.number} cannot be claimed after view {claim.after}")
        return await self._bounded(self._claim(claim))

    async def current(self) -> Standing | None:
        """The view that stands, None before the first."""
        stored = await self._bounded(self._persist(self._read_latest))
        return None if stored is None else stored.standing

    async def close(self) -> None:
        """Ends the session; what was claimed stays."""
        if self._client is not None:
            client, self._client = self._client, None
            await asyncio.to_thread(client.stop)
            await asyncio.to_thread(client.close)

    @property
    def _connection(self) -> Any:
        """Closing does not wait for what was asked before."""
        if self._client is None:
            raise Unavailable(CLOSED)
        return self._client

    async def _claim(self, claim: Claim) -> Answer:
        read = self._read
        wanted = Standing(claim.number, self.member, claim.heirs, self._life)
        while True:
            stored = await self._persist(read)
            standing = None if stored is None else stored.standing
            if standing == wanted:
                return Answer(True, wanted)
            # An old reading is no harm here: the stored number only grows.
            if standing is not None and not is_won(standing, claim, self.member, self._life):
                return Answer(False, standing)
            with suppress(BadVersionError, NodeExistsError, *TRY_AGAIN):
                await self._write(wanted, stored)
                return Answer(True, wanted)
            # Another was faster, or the answer was lost.
            read = self._read_latest

    async def _persist(self, read: Callable[[], Awaitable[Stored | None]]) -> Stored | None:
        """Reads, as often as the connection breaks under it; the caller's bound ends it."""
        while True:
            await self._connected.wait()
            try:
                return await read()
            except TRY_AGAIN:
                await asyncio.sleep(RETRY_S)

    async def _read_latest(self) -> Stored | None:
        """What the leader has: a follower may lag behind."""
        with suppress(NoNodeError):
            await self._answer(self._connection.sync_async(self.path))
        return await self._read()

    async def _read(self) -> Stored | None:
        try:
            data, stat = await self._answer(self._connection.get_async(self.path))
        except NoNodeError:
            return None
        standing = parse_standing(data.decode(errors="replace"))
        if standing is None:
            raise Unavailable(
                f"ZooKeeper's node {self.path} holds {data[:80]!r} where Holdfast keeps the view as "
                "number/member/heirs/life: something else wrote there. Stop it, and remove the node."
            )
        return Stored(standing, stat.version)

    async def _write(self, standing: Standing, stored: Stored | None) -> None:
        data = format_standing(standing).encode()
        if stored is None:
            await self._answer(self._connection.create_async(self.path, data, makepath=True))
        else:
            await self._answer(self._connection.set_async(self.path, data, version=stored.version))

    async def _answer(self, result: Any) -> Any:
        """Awaits an answer that comes in a thread of kazoo's."""
        loop = self._loop
        future: asyncio.Future[Any] = loop.create_future()

        def settle() -> None:
            if future.done():
                return
            if result.exception is None:
                future.set_result(result.value)
            else:
                future.set_exception(result.exception)

        def settle_from_thread(_: Any) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle)

        result.rawlink(settle_from_thread)
        return await future

    async def _bounded(self, work: Coroutine[Any, Any, T]) -> T:
        if self._client is None:
            work.close()
            raise Unavailable(CLOSED)
        try:
            async with asyncio.timeout(self._answer_s_max):
                return await work
        except TimeoutError:
            raise Unavailable(
                f"ZooKeeper at {self.hosts} did not answer within {self._answer_s_max:g} s. "
                "Is it running, and can this host reach it?"
            ) from None
        except KazooException as error:
            raise Unavailable(
                f"ZooKeeper at {self.hosts} refused a request on {self.path}: {type(error).__name__} {error}"
            ) from error
