"""What a subscriber of a topic that tolerates no loss sees of a failover, at 10 Hz, on one clock.

Killed: SIGKILL half a period after a message. Silent: the primary is stopped, or only the link between the
brokers is cut, at any moment; then it wakes up, or the link is healed, and the stale primary must step down.
"""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections.abc import Callable

import msgspec

from holdfast.contract.file import load_contracts
from holdfast.lab.cpu import place
from holdfast.lab.failover import sleep_until_after_message
from holdfast.lab.group import Group, Settings, ask_view, running_group
from holdfast.lab.steady import Failover, Steady, judge, watching
from holdfast.mqtt.conventions import ViewNote
from holdfast.runtime.ahead import go_ahead

from .contracts import FRAME
from .measure import alone
from .report import Outcome, Table, Verdict
from .stage import Run

CATEGORY = "2"
PERIOD_NS = 100_000_000
QUIET_S = 0.3
BEGIN_S = 1.5
P50_MS_MAX = 2.0
WORST_MS_MAX = 10.0


def killed(group: Group, note: ViewNote, begin_ns: int, _rng: random.Random) -> int:
    sleep_until_after_message(begin_ns, PERIOD_NS, int(0.5 * PERIOD_NS))
    at_ns = group.kill(note.teller)
    time.sleep(QUIET_S)
    group.start(note.teller)
    return at_ns


def stopped(group: Group, note: ViewNote, begin_ns: int, rng: random.Random) -> int:
    sleep_until_after_message(begin_ns, PERIOD_NS, int(rng.random() * PERIOD_NS))
    at_ns = group.signal(note.teller, signal.SIGSTOP)
    time.sleep(2 * QUIET_S)
    group.signal(note.teller, signal.SIGCONT)
    await_stepped_down(group, note)
    return at_ns


def cut(group: Group, note: ViewNote, begin_ns: int, rng: random.Random) -> int:
    sleep_until_after_message(begin_ns, PERIOD_NS, int(rng.random() * PERIOD_NS))
    (relay,) = group.relays.values()
    at_ns = time.monotonic_ns()
    relay.tell("cut")
    time.sleep(2 * QUIET_S)
    relay.tell("heal")
    await_stepped_down(group, note)
    return at_ns


def await_stepped_down(group: Group, note: ViewNote) -> None:
    port = group.members[note.teller].port

    def follows() -> bool:
        told = ask_view(port)
        return told is not None and not told.from_primary and told.number > note.number

    group.await_state(follows, f"{note.teller} stepping down")


Fault = Callable[[Group, ViewNote, int, random.Random], int]


def faults(fault: Fault, count: int, settings: Settings) -> list[Failover]:
    """So many faults of one kind, the group whole again before each."""
    contract = next(each for each in load_contracts(FRAME).contracts if each.name == CATEGORY)
    rng = random.Random(1)
    with running_group(2, FRAME, settings) as group:
        begin_ns = time.monotonic_ns() + int(BEGIN_S * 1e9)
        topic = contract.topics[0].replace("+", "steady")
        with watching(Steady(group.addresses, topic, contract, begin_ns)) as watched:
            place(watched.pid, (), "realtime")
            time.sleep(max(0.0, (begin_ns - time.monotonic_ns()) / 1e9) + QUIET_S)
            times = []
            for _ in range(count):
                note = group.await_protected()
                time.sleep(QUIET_S)
                times.append(fault(group, note, begin_ns, rng))
            group.await_protected()
            time.sleep(2 * QUIET_S)
            seen = watched.finish()
    return [judge(seen, at_ns, PERIOD_NS) for at_ns in times]


def failover(run: Run) -> Outcome:
    ahead = alone(go_ahead)
    often, seldom = (5, 3) if run.quick else (100, 20)
    results = {
        "SIGKILL": faults(killed, often, Settings(ahead=ahead)),
        "SIGSTOP": faults(stopped, seldom, Settings(ahead=ahead)),
        "cut link": faults(cut, seldom, Settings(ahead=ahead, relayed=True)),
    }
    x_ms = load_contracts(FRAME).deployment.failover_ns / 1e6
    return Outcome(
        [_table(results, ahead)],
        [
            _verdict_killed(results["SIGKILL"]),
            *(_verdict_silent(kind, results[kind], x_ms) for kind in ("SIGSTOP", "cut link")),
        ],
        {kind: [msgspec.to_builtins(each) for each in found] for kind, found in results.items()},
    )


def _centre(found: list[Failover], which: str) -> tuple[float, float]:
    values = [getattr(each, which) for each in found]
    return statistics.median(values), max(values)


def _table(results: dict[str, list[Failover]], ahead: bool) -> Table:
    names = ("first_latency_ms", "worst_latency_ms", "excess_ms", "moved_ms")
    rows = []
    for kind, found in results.items():
        cells = ("{:.2f} / {:.2f}".format(*_centre(found, name)) for name in names)
        rows.append((kind, str(len(found)), *cells, str(sum(each.lost for each in found))))
    columns = (
        *("", "times", "first message ms", "latest around it ms", "gap over the period ms"),
        *("both clients moved ms", "lost"),
    )
    notes = (
        "p50 / max; one topic at 10 Hz, L = 0, N = 1, replicated; first: the first made after the fault",
        "SIGKILL: 50 ms after a message; SIGSTOP and the cut: at any moment, silence = 30 ms, x = 50 ms",
        f"brokers {'ahead of other work' if ahead else 'as usual'}, the client in real time if permitted",
    )
    return Table("failover: what a subscriber sees", columns, rows, notes)


def _verdict_killed(found: list[Failover]) -> Verdict:
    middle, worst = _centre(found, "first_latency_ms")
    moved, moved_worst = _centre(found, "moved_ms")
    lost = sum(each.lost for each in found)
    return Verdict(
        f"failover gap at an L = 0 topic, 10 Hz, SIGKILL between messages, {len(found)} crashes",
        f"p50 under {P50_MS_MAX:g} ms, max under {WORST_MS_MAX:g} ms",
        f"p50 {middle:.2f} ms, max {worst:.2f} ms, {lost} lost; "
        f"clients moved in {moved:.2f} (max {moved_worst:.2f}) ms",
        middle < P50_MS_MAX and worst < WORST_MS_MAX and lost == 0,
    )


def _verdict_silent(kind: str, found: list[Failover], x_ms: float) -> Verdict:
    middle, worst = _centre(found, "worst_latency_ms")
    moved, moved_worst = _centre(found, "moved_ms")
    lost = sum(each.lost for each in found)
    return Verdict(
        f"the same by silence: {kind}, {len(found)} times",
        f"under the configured x ({x_ms:g} ms)",
        f"latest message p50 {middle:.1f} ms, max {worst:.1f} ms, {lost} lost; "
        f"clients moved in {moved:.1f} (max {moved_worst:.1f}) ms",
        max(worst, moved_worst) < x_ms and lost == 0,
    )
