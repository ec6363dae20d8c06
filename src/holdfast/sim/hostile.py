"""Hostile clients as a process of the simulated world: it opens connections, writes, and does not listen.

Law: whatever it does, it does as a client could: by connections to the broker that serves.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.mqtt.packets import Disconnect
from holdfast.sim.attacks import ATTACKS, Line, packed
from holdfast.sim.network import Address, End
from holdfast.sim.options import HostilePlan
from holdfast.sim.setting import Setting
from holdfast.sim.world import OPENED, Host, Outputs, Process
from holdfast.units import MS

NUMBERS = 50  # names of one attack
LET_IN_NS = 10 * MS


class Hostile(Process):
    """`primary` says where clients are served now."""

    __slots__ = ("_limits", "_network", "_number", "_plan_of", "_primary", "_rng", "_stop_ns")

    def __init__(
        self, setting: Setting, host: Host, primary: Callable[[], Address | None], rng: Random
    ) -> None:
        super().__init__(setting.world, host, host.name)
        assert setting.options.hostile is not None
        self._plan_of: HostilePlan = setting.options.hostile
        self._limits = setting.options.limits
        self._network = setting.network
        self._primary = primary
        self._rng = rng
        self._number = 0
        self._stop_ns = setting.stop_ns
        self.world.at(self.world.now_ns + self._plan_of.gap_ns, self._tick)

    def _tick(self) -> None:
        now_ns, plan = self.world.now_ns, self._plan_of
        if now_ns >= self._stop_ns or self._number >= plan.attacks:
            return
        self.world.at(now_ns + 1 + self._rng.randrange(2 * plan.gap_ns), self._tick)
        address = self._primary()
        if address is None:
            return
        self._number += 1
        kind = self._rng.choice(plan.kinds)
        # Names come again, so that sessions that were left are found, and taken over.
        number = NUMBERS * self._rng.randrange(1 + self._number // 2)
        self.world.tell(self.name, "begins", kind)
        # All of one attack arrives together, when everybody is let in.
        way_ns = self._network.path(self.name, address[0]).longest_ns
        due_ns = now_ns + 2 * way_ns + self._network.path(address[0], self.name).longest_ns + LET_IN_NS
        for line in ATTACKS[kind](self._rng, self._limits, number):
            self._network.dial(self, address, (line, due_ns))

    def feed(self, kind: int, end: End | None, data: Any) -> None:
        if kind != OPENED:
            return
        assert end is not None
        line: Line
        line, due_ns = data
        end.reads = line.reads
        end.send(line.greeting)
        free_ns = end.free_ns()
        if free_ns is None:
            end.send(line.data)
        else:
            end.send_at(line.data, max(due_ns, free_ns, self.world.now_ns))
        self.world.at(max(due_ns, self.world.now_ns) + line.lasts_ns, self._go, end, line.leaves)

    def _go(self, end: End, leaves: bool) -> None:
        if leaves:
            end.send(packed(Disconnect()))
        end.close()

    def turn(self) -> bool:
        return False

    def outputs(self) -> Outputs:
        return []

    def wrap_up(self) -> bool:
        return False

    def next_ns(self) -> int | None:
        return None
