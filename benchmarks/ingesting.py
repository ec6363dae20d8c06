"""What it takes to make rows of records: JSON of a feed into Parquet, against Spark with its own means.

Spark reads the same records from a Parquet file of its own, parses them with `from_json` and writes Parquet,
as a job that knows neither feed nor manifest would. Both take turns in one session. The feed has a log and a
keyed dataset, or the log alone as Spark has; one in a hundred is malformed, or none is.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.pipeline import spark
from holdfast.pipeline.datasets.ingest import Ingestion
from holdfast.pipeline.datasets.manifest import Manifest
from holdfast.pipeline.datasets.views import Datasets
from holdfast.pipeline.declared import parse_pipeline
from holdfast.pipeline.feed.journal import FeedReader, FeedWriter
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.records import RECORD

from .measure import spread
from .report import Outcome, Table, Verdict
from .stage import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = '{ user = "string", lat = "double", lon = "double", at = "bigint" }'
FEED = '[[feed]]\nname = "f"\ntopics = ["a/#"]\n'
LOG = f'[[dataset]]\nname = "track"\nfeed = "f"\nschema = {SCHEMA}\n'
KEYED = f'[[dataset]]\nname = "position"\nkind = "keyed"\nkey = ["user"]\nfeed = "f"\nschema = {SCHEMA}\n'
BATCH = 2000
USERS = 20_000
SMALL = (0, 1, 1000, 10_000)
RATE_MIN = 0.8
BAD_SHARE_MAX = 1.15


def records(count: int, bad: float, rng: random.Random) -> pa.RecordBatch:
    payloads = [
        b'{"user": "u1", "lat": '
        if rng.random() < bad
        else json.dumps(
            {"user": f"u{rng.randrange(USERS)}", "lat": rng.random(), "lon": rng.random(), "at": number}
        ).encode()
        for number in range(count)
    ]
    nothing = pa.nulls(count, pa.int64())
    now = pa.array([time.time_ns()] * count, pa.int64())
    columns = [pa.array(["a/b"] * count), pa.array(payloads, pa.binary()), pa.nulls(count, pa.string())]
    return pa.record_batch([*columns, nothing, nothing, now], schema=pa.schema(list(RECORD)[1:]))


class Turn:
    """A fresh data folder with a feed in it."""

    def __init__(self, session: SparkSession, folder: str, datasets: str, **options: Any) -> None:
        self.layout = Layout(folder)
        self.writer = FeedWriter.open(self.layout.feed("f"))
        self.manifest = Manifest.writer(self.layout.manifest)
        made = Datasets(session, parse_pipeline(FEED + datasets), self.layout, self.manifest)
        self.ingestion = Ingestion(made, {"f": FeedReader(self.layout.feed("f"))}, **options)

    def put(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, BATCH):
            self.writer.append(batch.slice(start, BATCH))
        self.writer.commit()

    def close(self) -> None:
        self.manifest.close()
        self.writer.close()


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def ingest(session: SparkSession, batch: pa.RecordBatch, datasets: str, **options: Any) -> float:
    """Records a second."""
    with tempfile.TemporaryDirectory() as folder:
        turn = Turn(session, folder, datasets, records_max=batch.num_rows, **options)
        turn.put(batch)
        took = timed(turn.ingestion.step)
        assert turn.manifest.offset("track") == batch.num_rows
        turn.close()
    return batch.num_rows / took


def by_spark(session: SparkSession, batch: pa.RecordBatch, parts: int = 4) -> float:
    from pyspark.sql import functions as f

    with tempfile.TemporaryDirectory() as folder:
        place, share = Path(folder) / "records", batch.num_rows // parts
        place.mkdir()
        for part in range(parts):
            pq.write_table(
                pa.Table.from_batches([batch.slice(part * share, share)]), place / f"{part}.parquet"
            )

        def job() -> None:
            raw = session.read.parquet(str(place))
            kind = "user string, lat double, lon double, at bigint"
            parsed = f.from_json(raw["payload"].cast("string"), kind)
            rows = raw.select(parsed.alias("row"), "topic", "created_ns", "arrived_ns")
            rows.select("row.*", "topic", "created_ns", "arrived_ns").write.parquet(f"{folder}/out")

        return batch.num_rows / timed(job)


def fixed(session: SparkSession, own_records_max: int, turns: int) -> dict[int, list[float]]:
    """Milliseconds of a step with so many records, in a dataset of each kind."""
    took: dict[int, list[float]] = {count: [] for count in SMALL}
    rng = random.Random(2)
    with tempfile.TemporaryDirectory() as folder:
        turn = Turn(session, folder, LOG + KEYED, own_records_max=own_records_max)
        for _ in range(turns + 1):
            for count in SMALL:
                if count:
                    turn.put(records(count, 0, rng))
                took[count].append(timed(turn.ingestion.step) * 1000)
        turn.close()
    return {count: each[1:] for count, each in took.items()}


def ingesting(run: Run) -> Outcome:
    count = 100_000 if run.quick else 400_000
    session = spark.session("local[2]", memory="1g")
    rng = random.Random(1)
    good, bad = records(count, 0, rng), records(count, 0.01, rng)
    ways: dict[str, Callable[[], float]] = {
        "Spark, its own file, from_json": lambda: by_spark(session, good),
        "log": lambda: ingest(session, good, LOG),
        "log, without Spark": lambda: ingest(session, good, LOG, own_records_max=count),
        "log, 1 % malformed": lambda: ingest(session, bad, LOG),
        "log and keyed": lambda: ingest(session, good, LOG + KEYED),
    }
    for warm in ways.values():
        warm()
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(run.turns):
        for way, measure in ways.items():
            rates[way].append(measure())
    steps = {"here": fixed(session, 20_000, 10), "in tasks of Spark": fixed(session, 0, 10)}
    spark.stop()
    middle = {way: median(each) for way, each in rates.items()}
    first, log, malformed = (
        middle[way] for way in ("Spark, its own file, from_json", "log", "log, 1 % malformed")
    )
    return Outcome(
        [
            Table(
                f"ingesting: {count} JSON records into Parquet",
                ("", "records/s", "of Spark's"),
                [
                    (way, spread(each).show("{:,.0f}"), f"{middle[way] / first:.2f}")
                    for way, each in rates.items()
                ],
            ),
            Table(
                "ingesting: milliseconds of a step, log and keyed",
                ("", *(f"{count} records" for count in SMALL)),
                [(way, *(f"{median(each[n]):.1f}" for n in SMALL)) for way, each in steps.items()],
            ),
        ],
        [
            Verdict(
                "journal → Parquet, against Spark from its own files",
                f"at least {RATE_MIN}",
                f"{log / first:.2f} ({log:,.0f} records/s)",
                log / first >= RATE_MIN,
            ),
            Verdict(
                "1 % malformed",
                f"at most {BAD_SHARE_MAX} of the time",
                f"{log / malformed:.2f}",
                log / malformed <= BAD_SHARE_MAX,
            ),
        ],
        {"rates": rates, "steps_ms": steps},
    )
