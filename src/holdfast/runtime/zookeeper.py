"""Arbitration by ZooKeeper: when the link between members is cut, it says whose view it is.

Laws: the stored view only grows; a number is given to one member only, by compare-and-set; a claim that was
answered stays true. A claim that ended in Unavailable may have been won or not: claim again, or ask
`current`. Nothing here blocks the loop: kazoo works in threads of its own, and every wait ends within
`answer_s_max`.
"""

from __future__ import annotations

import asyncio
import logging
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

ROOT = "/holdfast"
ANSWER_S_MAX = 5.0
# No node of ours ends with a session. This is how long one host may stay silent before the next is tried.
SESSION_S = 2.0
RECONNECT_S_MAX = 0.5
RETRY_S = 0.01
VIEW_NUMBER_MAX = 2**63 - 1
MEMBER_CHARS_MAX = 256
# The connection went away under a request: whether it was carried out is found by reading again.
TRY_AGAIN = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError)

T = TypeVar("T")

_quiet = logging.getLogger("holdfast.zookeeper")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


@dataclass(frozen=True, slots=True)
class Claim:
    """The view that stands after the claim, and whether it is the one that was claimed."""

    won: bool
    number: int
    holder: str


@dataclass(frozen=True, slots=True)
class Stored:
    number: int
    holder: str
    version: int


def check_name(what: str, name: str) -> None:
    if not 0 < len(name) <= MEMBER_CHARS_MAX or "/" in name or not name.isprintable() or name in (".", ".."):
        text = f'"{name}" cannot name a {what} in ZooKeeper: use 1 to {MEMBER_CHARS_MAX} letters without "/"'
        raise ConfigError("zookeeper", [Problem(what, text)])


class Arbiter:
    """One member's way to ZooKeeper; belongs to the loop on which it is started."""

    def __init__(self, hosts: str, group: str, member: str, *, answer_s_max: float = ANSWER_S_MAX) -> None:
        check_name("group", group)
        check_name("member", member)
        self.hosts = hosts
        self.member = member
        self.path = f"{ROOT}/{group}/view"
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

    async def claim(self, number: int, after: int) -> Claim:
        """Claims the view `number` for this member, which believes that `after` is current. It is won only
        if no higher view than `after` was claimed. To claim again what one holds is to win again."""
        if not 0 <= after < number <= VIEW_NUMBER_MAX:
            raise ValueError(f"view {number} cannot be claimed after view {after}")
        return await self._bounded(self._claim(number, after))

    async def current(self) -> Claim | None:
        """The view that stands, None before the first; `won` says whether this member holds it."""
        stored = await self._bounded(self._persist(self._read_latest))
        return None if stored is None else Claim(stored.holder == self.member, stored.number, stored.holder)

    async def close(self) -> None:
        """Ends the session; what was claimed stays."""
        if self._client is not None:
            client, self._client = self._client, None
            await asyncio.to_thread(client.stop)
            await asyncio.to_thread(client.close)

    async def _claim(self, number: int, after: int) -> Claim:
        read = self._read
        while True:
            stored = await self._persist(read)
            if stored is not None and (stored.number, stored.holder) == (number, self.member):
                return Claim(True, number, self.member)
            # An old reading is no harm here: the stored number only grows.
            if stored is not None and (stored.number >= number or stored.number > after):
                return Claim(False, stored.number, stored.holder)
            with suppress(BadVersionError, NodeExistsError, *TRY_AGAIN):
                await self._write(number, stored)
                return Claim(True, number, self.member)
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
            await self._answer(self._client.sync_async(self.path))
        return await self._read()

    async def _read(self) -> Stored | None:
        try:
            data, stat = await self._answer(self._client.get_async(self.path))
        except NoNodeError:
            return None
        number, slash, holder = data.decode(errors="replace").partition("/")
        if not (number.isascii() and number.isdigit() and slash and holder):
            raise Unavailable(
                f"ZooKeeper's node {self.path} holds {data[:80]!r} where Holdfast keeps the view as "
                "number/member: something else wrote there. Stop it, and remove the node."
            )
        return Stored(int(number), holder, stat.version)

    async def _write(self, number: int, stored: Stored | None) -> None:
        data = f"{number}/{self.member}".encode()
        if stored is None:
            await self._answer(self._client.create_async(self.path, data, makepath=True))
        else:
            await self._answer(self._client.set_async(self.path, data, version=stored.version))

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
            raise Unavailable("the arbiter is not started, or closed")
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
