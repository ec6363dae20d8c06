"""Connections that end at a time, within a second of it.

Law: what is kept is of the connections that there are, however many came and went.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from holdfast.broker.connection import Connection
from holdfast.broker.timers import Timers
from holdfast.units import S

LOOK_EVERY_NS = S
GONE_MAX = 1000  # entries of connections that are gone, beyond as many as there are


class Expiring:
    """`end` is called once for each connection whose time has come."""

    def __init__(self, timers: Timers, end: Callable[[Connection, int], None]) -> None:
        self._timers = timers
        self._end = end
        self._due_ns: dict[Connection, int] = {}
        self._order: list[tuple[int, int, Connection]] = []
        self._number = 0
        self._looking = False

    def add(self, connection: Connection, due_ns: int, now_ns: int) -> None:
        self._number += 1
        self._due_ns[connection] = due_ns
        heapq.heappush(self._order, (due_ns, self._number, connection))
        if len(self._order) > 2 * len(self._due_ns) + GONE_MAX:
            self._order = [each for each in self._order if self._due_ns.get(each[2]) == each[0]]
            heapq.heapify(self._order)
        if not self._looking:
            self._looking = True
            self._timers.at(now_ns + LOOK_EVERY_NS, self._look)

    def forget(self, connection: Connection) -> None:
        self._due_ns.pop(connection, None)

    def _look(self, now_ns: int) -> None:
        while self._order and self._order[0][0] <= now_ns:
            due_ns, _, connection = heapq.heappop(self._order)
            if self._due_ns.get(connection) == due_ns:
                self.forget(connection)
                self._end(connection, now_ns)
        self._looking = bool(self._due_ns)
        if self._looking:
            self._timers.at(now_ns + LOOK_EVERY_NS, self._look)
        else:
            self._order.clear()
