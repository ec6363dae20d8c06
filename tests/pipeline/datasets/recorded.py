"""A data folder with a feed that tests record into, and the datasets that are made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from holdfast.pipeline.datasets.ingest import Ingestion
from holdfast.pipeline.datasets.manifest import Manifest
from holdfast.pipeline.datasets.views import Datasets
from holdfast.pipeline.declared import parse_pipeline
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


def opened(
    data: Path, spark: SparkSession | None, pipeline: str = PIPELINE, **options: Any
) -> tuple[Datasets, Ingestion]:
    """For writing; without a session as long as every step is small and nobody reads."""
    layout, declared = Layout(data), parse_pipeline(pipeline)
    manifest = Manifest.writer(layout.manifest)
    try:
        datasets = Datasets(cast("SparkSession", spark), declared, layout, manifest, data)
        feeds = {each.name: FeedReader(layout.feed(each.name)) for each in declared.feeds}
        return datasets, Ingestion(datasets, feeds, **options)
    except BaseException:
        manifest.close()
        raise


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
        clock = {"clock": lambda: self.now_ns}
        self.datasets, self.ingestion = opened(
            self.layout.data, self.spark, pipeline, **clock, **self._options
        )
        self.manifest = self.datasets.manifest

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
