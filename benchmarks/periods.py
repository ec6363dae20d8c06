"""A hundred channels of one period at the same time, and memory over many executions.

Every second new records come, as from ingestion; each channel has its own subscriptions and its own query. A
quarter of them join by distance. As in the pipeline, a few threads execute what is due.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from holdfast.pipeline.channels.execution import Failed
from holdfast.units import MS, S

from .channel_stage import Stage, cpu_s, heap_mib, java, resident_mib, staged
from .executing import CELL_M, records
from .report import Outcome, Table, Verdict
from .stage import Run

CHANNELS = 100
PERIOD_S = 10
SLACK_S = 1
WARM_S = 60
SECONDS = 60
RECORDS = 50
SUBSCRIPTIONS = 100
THREADS = 4
EXECUTIONS = 500
GROWTH_MAX = 1.1

HEAD = """
[[feed]]
name = "all"
topics = ["all/#"]

[[dataset]]
name = "records"
feed = "all"
schema = { id = "bigint", key = "bigint", lat = "double", lon = "double" }
"""
EQUAL = """
[[channel]]
name = "channel_{number}"
period = "{period}s"
parameters = {{ key = "bigint" }}
new = ["records"]
query = '''
SELECT s.subscription, r.id, r.key + {number} AS n FROM subscriptions s JOIN new_records r ON r.key = s.key
'''
"""
NEAR = """
[[channel]]
name = "channel_{number}"
period = "{period}s"
parameters = {{ lat = "double", lon = "double" }}
new = ["records"]
query = '''
SELECT s.subscription, r.id, r.key + {number} AS n
FROM subscriptions s
JOIN (SELECT *, explode(cells) AS near
      FROM (SELECT *, neighbours(lat, lon, {cell}, {cell}) AS cells FROM new_records)) r
  ON cell(s.lat, s.lon, {cell}) = r.near AND distance(s.lat, s.lon, r.lat, r.lon) <= {cell}
'''
"""


def document(channels: int) -> str:
    parts = [HEAD]
    for number in range(channels):
        form = NEAR if number % 4 == 3 else EQUAL
        parts.append(form.format(number=number, period=PERIOD_S, cell=50 * CELL_M))
    return "".join(parts)


def subscribe(stage: Stage, channels: int) -> None:
    draw = random.Random(1)
    for number in range(channels):
        if number % 4 == 3:
            places = ((48 + 4 * draw.random(), 8 + 6 * draw.random()) for _ in range(SUBSCRIPTIONS))
            given = [f"{lat:.6f}/{lon:.6f}" for lat, lon in places]
        else:
            given = [str(key) for key in range(SUBSCRIPTIONS)]
        stage.told.tell(f"channel_{number}", given)


class Periods:
    """Executes what is due, and notes how long after it was due each execution was over."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._draw = random.Random(2)
        self.ages_s: list[float] = []
        self.failed = 0

    def run(self, seconds: float) -> None:
        stop_ns, add_ns = time.time_ns() + int(seconds * S), 0
        running: set[Future[None]] = set()
        with ThreadPoolExecutor(THREADS) as pool:
            while (now_ns := time.time_ns()) < stop_ns:
                if now_ns >= add_ns:
                    self._stage.add("records", records(self._draw, RECORDS, SUBSCRIPTIONS))
                    add_ns = now_ns + S
                names, next_ns = self._stage.channels.due(now_ns)
                for name in names:
                    late_ns = self._stage.channels._schedule.late_ns(name, now_ns)
                    running.add(pool.submit(self._execute, name, now_ns - late_ns))
                time.sleep(max(0, min(next_ns, add_ns) - time.time_ns()) / S + 0.001)
        for each in running:
            each.result()

    def _execute(self, name: str, due_ns: int) -> None:
        try:
            self._stage.channels.execute(name, time.time_ns())
        except Failed:
            self.failed += 1
        self.ages_s.append((time.time_ns() - due_ns) / S)


def periods(run: Run) -> Outcome:
    channels, warm_s, seconds = (20, 10, 15) if run.quick else (CHANNELS, WARM_S, SECONDS)
    with staged(document(channels)) as stage:
        subscribe(stage, channels)
        warm, measured = Periods(stage), Periods(stage)
        warm.run(warm_s)
        before_s, begin_s = cpu_s(os.getpid(), java()), time.monotonic()
        measured.run(seconds)
        cores = (cpu_s(os.getpid(), java()) - before_s) / (time.monotonic() - begin_s)
    ages = sorted(measured.ages_s)
    worst, middle = ages[-1], ages[len(ages) // 2]
    reached = worst <= PERIOD_S + SLACK_S and not measured.failed and len(ages) >= channels
    row = (
        f"{channels} channels",
        f"{len(ages):,}",
        f"{middle * 1000:.0f}",
        f"{worst * 1000:.0f}",
        f"{cores:.2f}",
    )
    columns = ("", "executions", "over after ms, median", "worst", "cores used")
    notes = (f"period {PERIOD_S} s, {RECORDS} records a second, after {warm_s} s of warming up",)
    return Outcome(
        [Table("periods: from due to results safe on disk", columns, [row], notes)],
        [
            Verdict(
                f"{channels} channels of {PERIOD_S} s",
                f"every execution over within {PERIOD_S} s + {SLACK_S} s",
                f"worst {worst:.2f} s of {len(ages)} executions, {measured.failed} failed, {cores:.2f} cores",
                reached,
            )
        ],
        {"ages_s": ages, "cores": cores},
    )


def execute_many(stage: Stage, executions: int, every: int) -> Iterator[tuple[int, float, float, float]]:
    """Executions so far, MiB of Python and of the JVM, and MiB that live in the JVM."""
    draw = random.Random(3)
    for number in range(1, executions + 1):
        name = f"channel_{number % 4}"
        stage.add("records", records(draw, 200, SUBSCRIPTIONS))
        execution = stage.channels.execute(name, time.time_ns())
        if execution is not None:
            stage.results.delivered(name, execution.number)
        stage.results.expire(name, 1 * MS, time.time_ns())
        if number % 10 == 0:
            stage.told.tell(name, [str(key) for key in range(number, number + SUBSCRIPTIONS)])
        if number % every == 0:
            gc.collect()
            heap = heap_mib(stage)
            yield number, resident_mib(os.getpid()), resident_mib(java()), heap


def executions_memory(run: Run) -> Outcome:
    executions, every = (60, 20) if run.quick else (EXECUTIONS, 100)
    with staged(document(4)) as stage:
        subscribe(stage, 4)
        found = list(execute_many(stage, executions, every))
        folder = stage.layout.spark
        scratch = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log"]
        left = sum(path.stat().st_size for path in scratch)
    with suppress(OSError):
        after = [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
    rows = [(f"{number} executions", *(f"{each:.0f}" for each in sizes)) for number, *sizes in found]
    python, heap = found[-1][1] / found[1][1], found[-1][3] / found[1][3]
    return Outcome(
        [
            Table(
                "memory over executions, MiB",
                ("", "Python", "JVM", "alive in the JVM"),
                rows,
                (f"in Spark's scratch folder while it runs: {left} bytes in {len(scratch)} files",),
            )
        ],
        [
            Verdict(
                f"memory over {executions} executions",
                f"grows by less than {GROWTH_MAX - 1:.0%} after {found[1][0]}; nothing left on disk",
                f"Python ×{python:.2f}, alive in the JVM ×{heap:.2f}; {len(after)} files left",
                python < GROWTH_MAX and heap < GROWTH_MAX and not after,
            )
        ],
        {"sizes": found},
    )
