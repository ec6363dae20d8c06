"""Deliberate faults in what keeps good clients apart from hostile ones; see mutants.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import structs

from holdfast.broker import broker, subscribing
from holdfast.broker.broker import Broker
from holdfast.broker.retained import RetainedNames
from holdfast.broker.unfinished import TOO_MANY
from holdfast.broker.work import Pieces, Works
from holdfast.config import Limits
from holdfast.sim.mutants import LOSSES, mutant
from holdfast.sim.options import Options

BOUNDLESS = 1 << 30


def _attacked_by(*kinds: str) -> Callable[[Options], bool]:
    """Runs with hostile clients of such a kind."""
    return lambda options: options.hostile is not None and not {*kinds}.isdisjoint(options.hostile.kinds)


@mutant("filters-cost-nothing", 48, "filters are not charged for", subscribing, "FILTER", "Turn", "Deadline")
def _filters_cost_nothing(units: Any) -> object:
    return 0


@mutant(
    "connects-cost-nothing",
    1,
    "CONNECT is not charged for",
    Broker,
    "_cost",
    "Turn",
    "Deadline",
    among=_attacked_by("connects"),
)
def _connects_cost_nothing(cost: Any) -> object:
    return lambda self, connection: 0


@mutant(
    "replays-count-found",
    51,
    "of retained names only those that match count",
    RetainedNames,
    "walk",
    "Turn",
    "Deadline",
)
def _replays_count_found(walk: Any) -> object:
    def found(self: RetainedNames, filter: bytes) -> Iterator[bytes | None]:
        return (name for name in walk(self, filter) if name is not None)

    return found


@mutant("ends-at-once", 50, "what sessions leave that end goes at once", Works, "end", "Turn", "Deadline")
def _ends_at_once(end: Any) -> object:
    def at_once(self: Works, pieces: Pieces) -> None:
        for _ in pieces:
            pass

    return at_once


@mutant(
    "lightest-pays", 370, "when all sessions hold too much, one that holds little ends", Broker, "_relieve",
    "Undisturbed", "State", "Bounded", *LOSSES,
)  # fmt: skip
def _lightest_pays(relieve: Any) -> object:
    def unjust(self: Broker, now_ns: int) -> None:
        overloaded = self.core.board.overloaded
        sessions = self.clients.sessions.values()
        lightest = min(sessions, key=lambda each: each.held_bytes) if overloaded else None
        if lightest is not None:
            self.core.board.overloaded = [(lightest, *overloaded[0][1:])]
        relieve(self, now_ns)

    return unjust


@mutant(
    "unfinished-of-all", 1, "when unfinished packets take too much, the first client that came goes",
    Broker, "_control", "Undisturbed", "Bounded", *LOSSES, among=_attacked_by("halves"),
)  # fmt: skip
def _unfinished_of_all(control: Any) -> object:
    def unjust(self: Broker, connection: Any, now_ns: int) -> None:
        if connection.fault is not None and connection.fault[1] == TOO_MANY:
            first = next((each for each in self.connections if each.session is not None), None)
            if first is not None:
                self.clients.close(first, now_ns, connection.fault[0], TOO_MANY)
        control(self, connection, now_ns)

    return unjust


def _without_bound(name: str) -> Any:
    def make(core: Any) -> object:
        def boundless(*, limits: Limits, **more: Any) -> object:
            raised = {name: BOUNDLESS, "memory_bytes_max": limits.memory_bytes_max + BOUNDLESS}
            return core(limits=structs.replace(limits, **raised), **more)

        return boundless

    return make


mutant(
    "keeps-unfinished",
    1,
    "unfinished packets have no bound together",
    broker,
    "Core",
    "Memory",
    among=_attacked_by("halves"),
)(_without_bound("pending_bytes_max"))
mutant("keeps-queues", 370, "what waits for sessions has no bound together", broker, "Core", "Memory")(
    _without_bound("buffer_bytes_max")
)
