"""Memory over many executions, and what they leave on disk."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress

from holdfast.units import MS

from .channel_stage import Stage, heap_mib, java, resident_mib, staged
from .executing import records
from .periods import SUBSCRIPTIONS, document, subscriptions_of
from .report import Outcome, Table, Verdict
from .stage import Run

EXECUTIONS = 500
GROWTH_MAX = 1.1


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


def executions(run: Run) -> Outcome:
    count, every = (60, 20) if run.quick else (EXECUTIONS, 100)
    with staged(document(4)) as stage:
        for channel, subscriptions in subscriptions_of(4).items():
            stage.told.tell(channel, subscriptions)
        found = list(execute_many(stage, count, every))
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
                f"memory over {count} executions",
                f"grows by less than {GROWTH_MAX - 1:.0%} after {found[1][0]}; nothing left on disk",
                f"Python ×{python:.2f}, alive in the JVM ×{heap:.2f}; {len(after)} files left",
                python < GROWTH_MAX and heap < GROWTH_MAX and not after,
            )
        ],
        {"sizes": found},
    )
