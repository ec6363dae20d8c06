"""What is to happen when, in the broker's own time.

Law: a timer fires at the first run() at or after its time, in order of time, equal ones as they were set.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

NEVER_NS = 2**63 - 1
FIRED_MAX = 256  # in one run: a thousand expiring sessions must not hold up a message


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self.soonest_ns = NEVER_NS  # when run() has something to do

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, due_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        """`action(*arguments, now_ns)` at that time. It decides itself whether it still applies."""
        self._number += 1
        heapq.heappush(self._heap, (due_ns, self._number, action, arguments))
        self.soonest_ns = self._heap[0][0]

    @property
    def next_ns(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def run(self, now_ns: int) -> None:
        heap, fired = self._heap, 0
        while heap and heap[0][0] <= now_ns and fired < FIRED_MAX:
            _, _, action, arguments = heapq.heappop(heap)
            action(*arguments, now_ns)
            fired += 1
        self.soonest_ns = heap[0][0] if heap else NEVER_NS
