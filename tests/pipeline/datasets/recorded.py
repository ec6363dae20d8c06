"""A data folder with a feed that tests record into, and the datasets that are made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.pipeline.datasets.ingest import Ingestion
from holdfast.pipeline.datasets.manifest import Manifest
from holdfast.pipeline.datasets.views import Datasets
from holdfast.pipeline.declared import Pipeline, parse_pipeline
from holdfast.pipeline.feed.journal import FeedReader, FeedWriter
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.records import RECORD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_NS = 1_800_000_000_000_000_000
PIPELINE = """
[[feed]]
name = "positions"
topics = ["positions/#"]

[[dataset]]
name = "track"
feed = "positions"
schema = { user = "string", lat = "double", n = "bigint" }
required = ["user"]

[[dataset]]
name = "position"
kind = "keyed"
feed = "positions"
schema = { user = "string", lat = "double", n = "bigint" }
key = ["user"]
"""


def batch(payloads: Sequence[bytes], arrived_ns: int = NOW_NS, topic: str = "positions/a") -> pa.RecordBatch:
    rows = len(payloads)
    columns = [
        pa.array([topic] * rows),
        pa.array(payloads, pa.binary()),
        pa.nulls(rows, pa.string()),
        pa.nulls(rows, pa.int64()),
        pa.array([arrived_ns - 1_000_000] * rows, pa.int64()),
        pa.array([arrived_ns] * rows, pa.int64()),
    ]
    return pa.record_batch(columns, schema=pa.schema(list(RECORD)[1:]))


class Recorded:
    """Datasets in a folder, as one process at a time has them."""

    def __init__(self, data: Path, spark: SparkSession, pipeline: str = PIPELINE, **options: Any) -> None:
        self.layout = Layout(data)
        self.spark = spark
        self.now_ns = NOW_NS
        self._options = options
        self.writer = FeedWriter.open(self.layout.feed("positions"))
        self.open(pipeline)

    def open(self, pipeline: str = PIPELINE) -> None:
        self.declared: Pipeline = parse_pipeline(pipeline)
        self.manifest = Manifest.writer(self.layout.manifest)
        try:
            self.datasets = Datasets(self.spark, self.declared, self.layout, self.manifest, self.layout.data)
            feeds = {each.name: FeedReader(self.layout.feed(each.name)) for each in self.declared.feeds}
            self.ingestion = Ingestion(self.datasets, feeds, clock=lambda: self.now_ns, **self._options)
        except BaseException:
            self.manifest.close()
            raise

    def close(self) -> None:
        self.manifest.close()
        self.writer.close()

    def put(self, payloads: Iterable[object]) -> None:
        """Bytes as they are, anything else as JSON; safe on disk at once."""
        given = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in payloads]
        self.writer.append(batch(given, self.now_ns))
        self.writer.commit()

    def rows(self, name: str, version: int | None = None) -> list[dict[str, Any]]:
        frame = self.datasets.frame(name, self.manifest.version if version is None else version)
        return sorted(frame.toArrow().to_pylist(), key=lambda row: row["_offset"])

    def new(self, name: str, after: int, upto: int | None = None) -> list[dict[str, Any]]:
        frame = self.datasets.new(name, after, self.manifest.version if upto is None else upto)
        return sorted(frame.toArrow().to_pylist(), key=lambda row: row["_offset"])

    def on_disk(self, name: str) -> set[str]:
        return {path.name for path in self.layout.dataset(name).glob("*")}
