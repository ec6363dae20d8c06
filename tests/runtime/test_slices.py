"""What counts as a slice: all that is done from one look at the sockets to the next."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.runtime import server as module
from holdfast.runtime.server import SLICES_BETWEEN_TURNS, Server
from holdfast.units import MS

READ, DECIDE, WRITE, AFTER = 2 * MS, 3 * MS, 4 * MS, 5 * MS


class Costly:
    """A clock that only work moves on, and a broker and a poller whose every step takes its time."""

    def __init__(self, waiting: int) -> None:
        self.now_ns = 0
        self.unfinished = False
        self.next_ns = None
        self.added: list[int] = []
        self.core = SimpleNamespace(
            jobs_waiting=waiting, unanswered=False, board=SimpleNamespace(waiting=False)
        )

    def work(self, ns: int) -> bool:
        self.now_ns += ns
        return False

    def poll(self) -> bool:
        return self.work(READ)

    def turn(self, now_ns: int, wall_ns: int) -> bool:
        return self.work(DECIDE)

    def deliver(self, now_ns: int, wall_ns: int) -> bool:
        self.core.jobs_waiting -= 1
        return self.work(DECIDE)

    def flush(self) -> None:
        self.work(WRITE)

    def after(self) -> None:
        self.work(AFTER)

    def monotonic_ns(self) -> int:
        return self.now_ns

    time_ns = monotonic_ns

    def add(self, ns: int) -> None:
        self.added.append(ns)

    def step(self) -> list[int]:
        server = SimpleNamespace(
            poller=self, broker=self, slices=self, after_step=[self.after], _plan_alarm=lambda: None
        )
        Server.step(server)  # type: ignore[arg-type]
        return self.added


@pytest.mark.parametrize("waiting", range(SLICES_BETWEEN_TURNS + 2))
def test_a_slice_is_all_between_two_looks_at_the_sockets(
    monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    costly = Costly(waiting)
    monkeypatch.setattr(module, "time", costly)
    slices = costly.step()
    more = min(waiting, SLICES_BETWEEN_TURNS)
    assert slices == [*[READ + DECIDE + WRITE] * more, READ + DECIDE + WRITE + AFTER]
    assert sum(slices) == costly.now_ns, "some of the step is in no slice"
