"""Where attempts to log in wait, and for how long the threads that check them must wait themselves."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.security import checking
from holdfast.security.checking import HASHING_THREADS, Checking, Threads, niceness_beside
from holdfast.security.hook import Attempt

CROWD = 40


def test_threads_give_way_to_the_broker_and_are_not_starved_by_other_programs() -> None:
    async def niceness() -> int:
        threads = Threads(1, "password", asyncio.get_running_loop())
        found = await threads.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return int(found)

    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert asyncio.run(niceness()) == niceness_beside(ours)
    for brokers in range(-20, 18):
        assert brokers < niceness_beside(brokers) <= max(brokers, 0) + 5


class Waiting:
    """Logins of users that do not exist, from one address, each checked in a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checked: list[str] = []
        monkeypatch.setattr(checking, "verify", self._verify)
        gate: Any = SimpleNamespace(
            known=None, checked=lambda *_: None, too_many=lambda wanted, _: self.put_out.append(wanted)
        )
        self.put_out: list[Any] = []
        self.checking = Checking(asyncio.get_running_loop(), event=lambda *_: None, step=lambda: None)
        self.checking.gate = gate

    def _verify(self, stored: str | None, password: bytes) -> bool:
        time.sleep(0.01)
        self.checked.append(password.decode())
        return False

    def come(self, user: str) -> Any:
        wanted: Any = SimpleNamespace(
            connection=SimpleNamespace(closing=False),
            attempt=Attempt(user, user.encode(), "", "a"),
            stored=None,
            how="password",
            whose=user,
        )
        assert self.checking.take(wanted)
        return wanted

    def under_way(self) -> int:
        return self.checking._lanes[False].busy


def test_who_waited_for_the_failures_of_others_stands_in_line_and_is_not_checked_when_it_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        waiting = Waiting(monkeypatch)
        for number in range(3):
            waiting.come(f"first {number}")
        while len(waiting.checked) < 3:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        crowd = [waiting.come(f"crowd {number}") for number in range(CROWD)]
        under_way = 0
        while len(waiting.checked) < 3 + 2:
            await asyncio.sleep(0)
            under_way = max(under_way, waiting.under_way())
        for each in crowd:
            each.connection.closing = True
        last = time.monotonic() + 5.0
        waiting.come("alice")
        while "alice" not in waiting.checked:
            assert time.monotonic() < last
            await asyncio.sleep(0.005)
        assert under_way <= HASHING_THREADS
        assert len(waiting.checked) <= 3 + 2 + HASHING_THREADS + 1
        assert waiting.put_out == []

    asyncio.run(test())
