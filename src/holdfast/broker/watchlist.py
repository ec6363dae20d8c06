"""Connections and sessions that must be looked at by some time, in coarse steps of time.

Laws:
- an item stands at one time at most; giving it a new time moves it
- nothing is reported early, and nothing later than one step
- an item costs one entry in a set, however many there are and however often they move
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

STEP_NS = 100_000_000
NEVER_NS = 2**63 - 1


class Watched(Protocol):
    watched: int  # the step it stands at; 0: none


Item = TypeVar("Item", bound=Watched)


class Watchlist(Generic[Item]):
    def __init__(self) -> None:
        self._steps: dict[int, set[Item]] = {}
        self._order: list[int] = []
        self.soonest_ns = NEVER_NS  # when due() has something to say

    def watch(self, item: Item, due_ns: int) -> None:
        step = due_ns // STEP_NS + 1
        if item.watched == step:
            return
        self.forget(item)
        if step not in self._steps:
            self._steps[step] = set()
            heapq.heappush(self._order, step)
            self.soonest_ns = self._order[0] * STEP_NS
        self._steps[step].add(item)
        item.watched = step

    def forget(self, item: Item) -> None:
        if item.watched:
            self._steps[item.watched].discard(item)
            item.watched = 0

    @property
    def next_ns(self) -> int | None:
        return self._order[0] * STEP_NS if self._order else None

    def due(self, now_ns: int, most: int) -> list[Item]:
        """At most so many of the items whose time has come; they are no longer watched."""
        items: list[Item] = []
        while self._order and self._order[0] * STEP_NS <= now_ns:
            step = self._steps[self._order[0]]
            while step:
                if len(items) == most:
                    return items
                item = step.pop()
                item.watched = 0
                items.append(item)
            del self._steps[heapq.heappop(self._order)]
        self.soonest_ns = self._order[0] * STEP_NS if self._order else NEVER_NS
        return items
