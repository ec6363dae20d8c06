"""Passwords are checked in threads and hooks are asked, while the broker's loop goes on.

Laws:
- at most WAITING_MAX attempts wait; for one more, one of who has most there is refused at once
- every attempt is answered within its time, if only with a refusal: a hook that fails, hangs or returns
  anything but a name refuses, and that is logged
- threads are nicer than the broker: a message goes before a password. They are not starved by other programs:
  on a busy machine who logs in for the first time waits longer, and is not refused
- after some failures the attempts of who failed wait for each other; no more are under way than there are
  threads, so that those behind them know of their failures, and who left meanwhile is not looked at
"""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.broker.broker import Event
from holdfast.security.gate import SAID_CHARS_MAX, Gate, Wanted
from holdfast.security.hook import Hook
from holdfast.security.patience import Patience, Source
from holdfast.security.tokens import BadToken, Token
from holdfast.security.users import verify
from holdfast.security.waiting import Place, Room, Turns

HASHING_THREADS = max(1, min(4, (os.cpu_count() or 2) - 1))  # one core is the broker's
WAITING_MAX = 256 * HASHING_THREADS  # who comes behind so many would be gone before its turn
SUSPECT_WAITING_MAX = 64  # of one address from which much failed: some seconds of work
HOOK_THREADS = 8
HOOK_S_MAX = 5.0
NICENESS = (
    2  # beyond the broker's, or beyond that of other programs: two that do nothing else leave it a fourth
)


class Threads:
    """A few threads that end with the process, whatever they are doing then."""

    def __init__(self, count: int, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any]]] = (
            queue.SimpleQueue()
        )
        for number in range(count):
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True).start()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._work.put((work, arguments, answer))
        return answer

    def _run(self) -> None:
        thread = threading.get_native_id()
        with suppress(OSError):  # where that is not allowed, they are as the broker
            brokers = os.getpriority(os.PRIO_PROCESS, thread)  # a thread begins as who started it
            os.setpriority(os.PRIO_PROCESS, thread, niceness_beside(brokers))
        while True:
            work, arguments, answer = self._work.get()
            try:
                result, error = work(*arguments), None
            except Exception as raised:
                result, error = None, raised
            try:
                self._loop.call_soon_threadsafe(_settle, answer, result, error)
            except RuntimeError:
                return  # the loop is closed: the broker ends


def niceness_beside(brokers: int) -> int:
    """Halfway to other programs where the broker goes before them, else a little more than the broker's."""
    return brokers // 2 if brokers < -1 else max(brokers, 0) + NICENESS


def _settle(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


class Lane:
    """Attempts of one kind, of which so many are under way at once."""

    def __init__(self, busy_max: int) -> None:
        self.busy_max = busy_max
        self.busy = 0
        self.turns = Turns()


class Checking:
    """`gate` is told what came of each attempt, and `step` makes the broker answer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        event: Event,
        step: Callable[[], None],
        hook_s_max: float = HOOK_S_MAX,
    ) -> None:
        self.loop = loop
        self.gate: Gate | None = None
        self.hook: Hook | None = None
        self._event = event
        self._step = step
        self._hook_s_max = hook_s_max
        self._patience = Patience()
        self._hashing: Threads | None = None
        self._asking: Threads | None = None
        self._lanes = {False: Lane(HASHING_THREADS), True: Lane(HOOK_THREADS)}  # by whether a hook is asked
        self._room = Room(WAITING_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, wanted: Wanted) -> bool:
        """Begins to check; False when too many wait."""
        source, now_ns = Source.of(wanted.attempt.address, wanted.whose), time.monotonic_ns()
        place = Place(wanted, source, failed=self._patience.remembers(source, now_ns))
        suspect = self._patience.suspects(source, now_ns)
        loser = self._room.enter(place, SUSPECT_WAITING_MAX if suspect else None)
        if loser is place:
            return False
        if loser is not None:
            self.loop.call_soon(self._put_out, loser)
        lane = self._lanes[wanted.how == "hook"]
        lane.turns.add(place)
        self.loop.call_soon(self._go_on, lane)
        return True

    def _go_on(self, lane: Lane) -> None:
        while lane.turns and lane.busy < lane.busy_max:
            place = lane.turns.take()
            if place.gone:
                continue
            if place.left:
                self._room.leave(place)
                continue
            wait_ns = 0 if place.waited else self._patience.wait_ns(place.source, time.monotonic_ns())
            if wait_ns is None:
                self._room.leave(place)
                self._put_out(place)
            elif wait_ns:
                self.loop.call_later(wait_ns / 1e9, self._has_waited, lane, place)
            else:
                self._begin(lane, place)

    def _has_waited(self, lane: Lane, place: Place) -> None:
        """It stands in line with the others now."""
        place.waited = True
        lane.turns.add(place)
        self._go_on(lane)

    def _put_out(self, place: Place) -> None:
        assert self.gate is not None
        self.gate.too_many(place.wanted, time.monotonic_ns())
        self._step()

    def _begin(self, lane: Lane, place: Place) -> None:
        place.begun = True
        lane.busy += 1
        task = self.loop.create_task(self._check(lane, place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(self, lane: Lane, place: Place) -> None:
        wanted, token = place.wanted, None
        try:
            if wanted.how == "hook":
                user = await self._ask_hook(wanted)
            elif wanted.how == "token":
                token = await self._read_token(wanted)
                user = None if token is None else token.user
            else:
                user = await self._verify(wanted)
        finally:
            lane.busy -= 1
            self._room.leave(place)
            self.loop.call_soon(self._go_on, lane)
        now_ns = time.monotonic_ns()
        if user is None:
            self._patience.failed(place.source, now_ns)
        else:
            self._patience.succeeded(place.source)
        assert self.gate is not None
        self.gate.checked(wanted, user, now_ns, token)
        self._step()

    def _threads(self) -> Threads:
        if self._hashing is None:
            self._hashing = Threads(HASHING_THREADS, "password", self.loop)
        return self._hashing

    async def _read_token(self, wanted: Wanted) -> Token | None:
        assert self.gate is not None
        tokens = self.gate.known.tokens
        if tokens is None:
            return None  # the file has no keys any more
        try:
            token: Token = await self._threads().submit(tokens.read, wanted.attempt.password)
        except BadToken as error:
            self._event("token refused", {"is": str(error)[:SAID_CHARS_MAX], **_said_of(wanted)})
            return None
        return token

    async def _verify(self, wanted: Wanted) -> str | None:
        right = await self._threads().submit(verify, wanted.stored, wanted.attempt.password)
        return wanted.attempt.username if right else None

    async def _ask_hook(self, wanted: Wanted) -> str | None:
        assert self.hook is not None
        attempt, said = wanted.attempt, _said_of(wanted)
        try:
            async with asyncio.timeout(self._hook_s_max):
                if inspect.iscoroutinefunction(self.hook):
                    user = await self.hook(attempt)
                else:
                    if self._asking is None:
                        self._asking = Threads(HOOK_THREADS, "hook", self.loop)
                    user = await self._asking.submit(self.hook, attempt)
        except TimeoutError:
            self._event(
                "hook failed", {"is": "timeout", "why": f"no answer in {self._hook_s_max:g} s", **said}
            )
            return None
        except Exception as error:
            # Its words may quote the password: only what kind it is, is said.
            self._event("hook failed", {"is": type(error).__name__, **said})
            return None
        if user is None:
            return None
        if not isinstance(user, str) or not user:
            why = "it returned neither a name nor None"
            self._event("hook failed", {"is": "answer", "why": why, **said})
            return None
        return user


def _said_of(wanted: Wanted) -> dict[str, str]:
    """Whose attempt it is, as far as the client says, for a line of the log."""
    attempt = wanted.attempt
    said = {"user": wanted.whose, "client": attempt.client_id, "address": attempt.address}
    return {name: value[:SAID_CHARS_MAX] for name, value in said.items() if value}
