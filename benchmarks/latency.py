"""How late an urgent message is, alone and while best-effort traffic flows and one subscriber does not read.

One process publishes and receives the urgent topic on one clock, with SCHED_FIFO where permitted. The brokers
and the best-effort publisher go ahead of other work on this machine, alike for every contestant: what is
measured is then the broker, and not how long it waited for somebody's compiler.
"""

from __future__ import annotations

import os
import select
import statistics
import struct
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from holdfast.runtime.ahead import NICENESS, SLICE_NS, go_ahead

from .brokers import Broker, field_of
from .contracts import Contracts, plant
from .load import BATCH, Lost
from .measure import Cue, alone, aside, spread
from .report import NOT_MEASURED, Outcome, Table, Verdict
from .stage import Run, generator

URGENT_PER_S = 200
BULK_PER_S = 100_000
OF_ALONE_MAX = 2.0
FIFO_PRIORITY = 50
LATE_S_MAX = 10.0
STALLED_RECEIVE_BUFFER_BYTES = 4_096
URGENT, BULK = 0, 4
"""Positions of the 50 ms category and the best-effort category in the contracts."""


@dataclass(frozen=True)
class Latency:
    """One turn, in microseconds; `bulk_per_s` is what the reading subscriber got."""

    p50: float
    p99: float
    worst: float
    missing: int
    bulk_per_s: float


def run_in_real_time() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(FIFO_PRIORITY))
    except PermissionError:
        return False
    return True


def urgent_samples(broker: Broker, topic: str, seconds: float) -> tuple[list[float], int]:
    """Latencies in microseconds of an evenly paced topic, and how many messages never came."""
    run_in_real_time()
    wire = broker.wire()
    subscriber, publisher = broker.connect(), broker.connect()
    wire.open(subscriber, "urgent-subscriber")
    wire.subscribe(subscriber, [topic])
    wire.open(publisher, "urgent-publisher")
    empty = bytes(16)
    example = wire.delivered(topic, empty)
    size, at = len(example), example.rindex(empty)
    interval, total = 1_000_000_000 // URGENT_PER_S, int(seconds * URGENT_PER_S)
    samples: list[float] = []
    due, sent, left = time.monotonic_ns(), 0, b""
    give_up = due + int((seconds + LATE_S_MAX) * 1e9)
    while len(samples) < total and (now := time.monotonic_ns()) < give_up:
        if sent < total and now >= due:
            publisher.sendall(wire.publish(topic, struct.pack("!qq", time.monotonic_ns(), sent)))
            sent, due = sent + 1, due + interval
            continue
        wait_ns = (due if sent < total else give_up) - now
        if not select.select([subscriber], [], [], wait_ns / 1e9)[0]:
            continue
        data = subscriber.recv(65_536)
        arrived = time.monotonic_ns()
        if not data:
            raise Lost(f"{broker.name} closed the urgent subscriber's connection")
        left += data.replace(wire.keeps_alive, b"") if wire.keeps_alive else data
        while len(left) >= size:
            samples.append((arrived - struct.unpack_from("!q", left, at)[0]) / 1e3)
            left = left[size:]
    return samples, total - len(samples)


def bulk(cue: Cue, broker: Broker, topics: list[str], wanted: str) -> float:
    """Best-effort traffic at a rate to a subscriber that reads; deliveries per second until told to stop."""
    go_ahead()
    load = generator(broker, topics, wanted=wanted)
    load.run(messages=len(topics))
    cue.ready()
    begin, first = time.monotonic(), load.arrived()
    load.pump(cue.stopped, rate=BULK_PER_S)
    return (load.arrived() - first) / (time.monotonic() - begin)


def stall(cue: Cue, broker: Broker, wanted: str) -> None:
    """A subscriber to the best-effort topics that never reads what it is sent."""
    wire = broker.wire()
    sock = broker.connect(STALLED_RECEIVE_BUFFER_BYTES)
    wire.open(sock, "stalled")
    wire.subscribe(sock, [wanted])
    cue.ready()
    cue.pipe.poll(None)


def turn(broker: Broker, contracts: Contracts, seconds: float, loaded: bool) -> Latency:
    urgent, best_effort = contracts.categories[URGENT], contracts.categories[BULK]
    topics, wanted = best_effort.topics(), f"plant/{best_effort.name}/+"
    bulk_per_s = 0.0
    with ExitStack() as stack:
        if loaded:
            stack.enter_context(aside(stall, broker, wanted)).await_ready()
            load = stack.enter_context(aside(bulk, broker, topics, wanted))
            load.await_ready()
        samples, missing = alone(urgent_samples, broker, urgent.topics()[0], seconds)
        if loaded:
            bulk_per_s = load.finish()
    if not samples:
        raise Lost(f"{broker.name} delivered no urgent message within {LATE_S_MAX:.0f} s")
    centiles = statistics.quantiles(samples, n=100, method="inclusive")
    return Latency(centiles[49], centiles[98], max(samples), missing, bulk_per_s)


def latency(run: Run) -> Outcome:
    contracts = plant(1_000)
    assert len(contracts.categories[BULK].topics()) % BATCH == 0
    assert contracts.categories[BULK].loss_tolerance == "unlimited"
    seconds = 1.0 if run.quick else 5.0
    results: dict[str, dict[str, list[Latency]]] = {}
    ahead = alone(go_ahead)
    with field_of(run.among("holdfast", "mosquitto", "nats"), contracts, ahead) as brokers:
        for _ in range(3 if run.quick else 5):
            for name, broker in brokers.items():
                for case in ("alone", "loaded"):
                    found = turn(broker, contracts, seconds, case == "loaded")
                    results.setdefault(name, {}).setdefault(case, []).append(found)
    data = {
        name: {case: [asdict(each) for each in turns] for case, turns in cases.items()}
        for name, cases in results.items()
    }
    return Outcome([_table(results, ahead)], [_verdict(results)], data)


def _growth(cases: dict[str, list[Latency]]) -> float:
    """How much later, comparing the medians: each turn's p99 is already a rare event."""
    loaded, quiet = (statistics.median(each.p99 for each in cases[case]) for case in ("loaded", "alone"))
    return loaded / quiet


def _table(results: dict[str, dict[str, list[Latency]]], ahead: bool) -> Table:
    rows = []
    for name, cases in results.items():
        for case, turns in cases.items():
            rows.append(
                (
                    f"{name} {case}",
                    *(
                        f"{statistics.median(getattr(each, which) for each in turns):,.0f}"
                        for which in ("p50",)
                    ),
                    spread(each.p99 for each in turns).show("{:,.0f}"),
                    f"{_growth(cases):.2f}" if case == "loaded" else "",
                    f"{max(each.worst for each in turns):,.0f}",
                    f"{sum(each.missing for each in turns)}",
                    f"{statistics.median(each.bulk_per_s for each in turns):,.0f}"
                    if case == "loaded"
                    else "",
                )
            )
    columns = ("", "p50 µs", "p99 µs", "p99 of alone", "max µs", "missing", "best-effort/s")
    notes = (
        f"{URGENT_PER_S} urgent messages/s with a 50 ms deadline; loaded: {BULK_PER_S:,} best-effort/s "
        f"offered to one subscriber that reads and one that has stopped reading",
        f"client with {'SCHED_FIFO' if alone(run_in_real_time) else 'usual scheduling'}, "
        f"brokers {f'at niceness {NICENESS} with {SLICE_NS // 1000} µs slices' if ahead else 'as usual'}; "
        f"missing: not there {LATE_S_MAX:.0f} s after the last was sent",
    )
    return Table("latency of an urgent topic", columns, rows, notes)


def _verdict(results: dict[str, dict[str, list[Latency]]]) -> Verdict:
    what = f"p99 of a 50 ms topic under {BULK_PER_S:,} msg/s and a stalled subscriber"
    target = f"within {OF_ALONE_MAX:g}× of the same topic alone"
    if "holdfast" not in results:
        return Verdict(what, target, NOT_MEASURED, None)
    shown = "; ".join(
        f"{name} {_growth(cases):.2f}× ({spread(each.p99 / 1e3 for each in cases['loaded']).median:.2f} ms)"
        for name, cases in results.items()
    )
    return Verdict(what, target, shown, _growth(results["holdfast"]) <= OF_ALONE_MAX)
