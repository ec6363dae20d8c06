"""How fast Spark takes records from a journal into Parquet, beside Spark's own Parquet source.

The same records, the same session, the same writer, in turns: both ways read everything and write it as
Parquet with all columns. What a turn measures is one job, after one that warmed the JVM and the workers up.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .measure import ratio, spread
from .report import Outcome, Table, Verdict
from .stage import Run

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 3_000_000
QUICK_RECORDS = 500_000
CORES = 2
# What a recorder commits at once under load.
COMMIT_RECORDS = 5_000
TOPICS = 1_000
RATIO_MIN = 0.8
FEED = "bench"
OWN = "Parquet → Parquet"
RANGES = "journal → Parquet, ranges"
FORMAT = "journal → Parquet, format"


def records(first: int, count: int) -> pa.RecordBatch:
    """Readings as JSON of about 60 bytes, stamped."""
    import pyarrow as pa

    from holdfast.pipeline.records import RECORD

    numbers = range(first, first + count)
    columns = {
        "topic": [f"plant/hall-{number % 10}/machine-{number % TOPICS}" for number in numbers],
        "payload": [
            b'{"machine": %d, "celsius": %.3f, "number": %d}' % (number % TOPICS, number % 977 / 7, number)
            for number in numbers
        ],
        "publisher": [f"gateway-{number % 20}.1a2b3c4d" for number in numbers],
        "sequence": list(numbers),
        "created_ns": [1_700_000_000_000_000_000 + number * 1000 for number in numbers],
        "arrived_ns": [1_700_000_000_001_000_000 + number * 1000 for number in numbers],
    }
    return pa.RecordBatch.from_pydict(columns, schema=pa.schema([RECORD.field(name) for name in columns]))


def write_journal(data: Path, count: int) -> None:
    from holdfast.pipeline.feed.journal import FeedWriter
    from holdfast.pipeline.layout import Layout

    writer = FeedWriter.open(Layout(data).feed(FEED))
    for first in range(0, count, COMMIT_RECORDS):
        writer.append(records(first, min(COMMIT_RECORDS, count - first)))
        writer.commit()
    writer.close()


@dataclass(frozen=True)
class Ways:
    """Each way to read all records."""

    spark: SparkSession
    data: Path
    count: int

    def __iter__(self) -> Iterator[tuple[str, Callable[[], DataFrame]]]:
        yield OWN, self.own
        yield RANGES, self.ranges
        yield FORMAT, self.format

    def own(self) -> DataFrame:
        return self.spark.read.parquet(str(self.data / "own"))

    def ranges(self) -> DataFrame:
        from holdfast.pipeline.feed.place import open_feed
        from holdfast.pipeline.format import RECORDS_PER_PARTITION
        from holdfast.pipeline.source import frame_of_ranges

        cut = open_feed(self.data, FEED).cut(0, self.count, RECORDS_PER_PARTITION)
        return frame_of_ranges(self.spark, self.data, [(FEED, *each) for each in cut])

    def format(self) -> DataFrame:
        return self.spark.read.format("holdfast").options(data=str(self.data), feeds=FEED).load()

    def take(self, way: Callable[[], DataFrame]) -> Took:
        """One job."""
        out = self.data / "out"
        begin_s, begin_cpu_s = time.monotonic(), cpu_s()
        way().write.parquet(str(out))
        took = Took(time.monotonic() - begin_s, cpu_s() - begin_cpu_s)
        shutil.rmtree(out)
        return took


@dataclass(frozen=True)
class Took:
    wall_s: float
    cpu_s: float


def cpu_s() -> float:
    """What the processes below this one have used: the JVM and its Python workers."""
    import psutil

    used = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used += times.user + times.system
    return used


def reading(run: Run) -> Outcome:
    # Only this benchmark and that of the lab need Spark.
    from holdfast.pipeline import spark as starting

    count = QUICK_RECORDS if run.quick else RECORDS
    with tempfile.TemporaryDirectory(prefix="holdfast-reading-") as name:
        data = Path(name)
        write_journal(data, count)
        ways = Ways(starting.session(f"local[{CORES}]"), data, count)
        ways.ranges().write.parquet(str(data / "own"))
        took: dict[str, list[Took]] = {way: [] for way, _ in ways}
        for turn in range(1 + run.turns):
            for way, frame in ways:
                found = ways.take(frame)
                if turn:
                    took[way].append(found)
        counted = {way: frame().count() for way, frame in ways}
        starting.stop()
    rates = {way: [count / each.wall_s for each in turns] for way, turns in took.items()}
    costs = {way: [each.cpu_s / count * 1e6 for each in turns] for way, turns in took.items()}
    rows = [
        (
            way,
            spread(rates[way]).show("{:,.0f}"),
            ratio(rates[way], rates[OWN]).show("{:.2f}"),
            spread(costs[way]).show("{:.2f}"),
        )
        for way in rates
    ]
    columns = ("", "records/s", f"of {OWN}", "CPU µs a record")
    title = f"reading: {count:,} records on {CORES} cores"
    reached = ratio(rates[RANGES], rates[OWN])
    right = set(counted.values()) == {count}
    verdict = Verdict(
        "journal → Parquet against Spark's own Parquet source",
        f"at least {RATIO_MIN} of its rate",
        f"{reached.show('{:.2f}')} of it" if right else f"wrong: {counted}",
        right and reached.median >= RATIO_MIN,
    )
    raw = {way: [(each.wall_s, each.cpu_s) for each in turns] for way, turns in took.items()}
    notes = ("all columns, in turns in one session; CPU of the JVM and its Python workers",)
    return Outcome([Table(title, columns, rows, notes)], [verdict], {"seconds": raw, "records": count})
