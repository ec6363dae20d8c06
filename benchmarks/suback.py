"""How long a subscriber waits for SUBACK when 1 to 4 members of a group must know of the subscription.

Depth counts the primary: at depth 1 nobody is waited for. The members work in parallel, so that the wait from
2 to 4 should be one and the same. Plain loopback, and with a delay between the brokers as between hosts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

from holdfast.lab.group import Group, Settings, running_group
from holdfast.lab.wire import Wire
from holdfast.mqtt.conventions import DEPTH_PROPERTY

from .contracts import FRAME
from .latency import run_in_real_time
from .measure import alone, spread
from .report import Outcome, Table, Verdict
from .stage import Run

DEPTHS = (1, 2, 3, 4)
WAY_MS = 2.0
FLAT = 0.2


def subscribe(wire: Wire, number: int, depth: int) -> float:
    """Milliseconds until SUBACK."""
    packet = wire.subscription([f"suback/{depth}/{number}"], 0, [(DEPTH_PROPERTY, str(depth))])
    begin = time.perf_counter_ns()
    wire.send_bytes(packet)
    wire.granted()
    return (time.perf_counter_ns() - begin) / 1e6


def ask(port: int, rounds: int) -> dict[int, list[float]]:
    """Depths take turns, so that what disturbs one disturbs all."""
    run_in_real_time()
    wire = Wire(port, "asker")
    took: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for number in range(rounds):
        for depth in DEPTHS:
            took[depth].append(subscribe(wire, number, depth))
    return took


def slow_down(group: Group, way_ms: float) -> None:
    for relay in group.relays.values():
        relay.tell("delay", ms=way_ms)


@dataclass(frozen=True)
class Waits:
    """Median milliseconds at each depth."""

    took: dict[int, list[float]]

    def at(self, depth: int) -> float:
        return median(self.took[depth])

    @property
    def unevenness(self) -> float:
        """How much longer the longest of the depths that wait at all takes than the shortest."""
        waits = [self.at(depth) for depth in DEPTHS if depth > 1]
        return max(waits) / min(waits) - 1


def suback(run: Run) -> Outcome:
    rounds = 50 if run.quick else 400
    results: dict[str, Waits] = {}
    with running_group(len(DEPTHS), FRAME, Settings(ahead=True)) as group:
        results["loopback"] = Waits(alone(ask, group.members[group.await_protected(3).teller].port, rounds))
    settings = Settings(ahead=True, relayed=True, silence="200ms", heartbeat="20ms")
    with running_group(len(DEPTHS), FRAME, settings) as group:
        slow_down(group, WAY_MS)
        results[f"{WAY_MS:g} ms each way"] = Waits(
            alone(ask, group.members[group.await_protected(3).teller].port, rounds)
        )
    return Outcome(
        [_table(results)],
        [_verdict(where, waits) for where, waits in results.items()],
        {where: waits.took for where, waits in results.items()},
    )


def _table(results: dict[str, Waits]) -> Table:
    rows = [
        (where, *(spread(waits.took[depth]).show("{:.3f}") for depth in DEPTHS), f"{waits.unevenness:.0%}")
        for where, waits in results.items()
    ]
    columns = ("", *(f"depth {depth} ms" for depth in DEPTHS), "2 to 4 apart")
    notes = ("depth counts the primary: at 1 nobody is waited for; depths take turns on one connection",)
    return Table("suback: time until SUBACK in a group of four", columns, rows, notes)


def _verdict(where: str, waits: Waits) -> Verdict:
    shown = ", ".join(f"{depth}: {waits.at(depth):.3f}" for depth in DEPTHS)
    return Verdict(
        f"SUBACK time by depth, {where}",
        f"flat within {FLAT:.0%} wherever a replica is waited for",
        f"ms at depth {shown}; 2 to 4 within {waits.unevenness:.0%}",
        waits.unevenness <= FLAT,
    )
