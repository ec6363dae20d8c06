"""Datasets that a benchmark fills by hand, and the channels that run on them: no brokers, no ingestion."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.pipeline import spark
from holdfast.pipeline.channels.service import Channels
from holdfast.pipeline.datasets.manifest import Manifest, Written
from holdfast.pipeline.datasets.views import VERSION, Datasets, arrow_schema, columns_of
from holdfast.pipeline.declared import parse_pipeline
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.results import Results

MASTER = "local[2]"
MEMORY = "4g"
TICKS_S = os.sysconf("SC_CLK_TCK")
# Spark frees what a collection found dead in a thread of its own.
CLEANER_S = 2.0
COLLECTIONS_MAX = 5


class Told:
    """Stands where the brokers tell which subscriptions exist."""

    def __init__(self) -> None:
        self._of: dict[str, list[str]] = {}

    def tell(self, channel: str, subscriptions: Iterable[str]) -> None:
        self._of[channel] = list(subscriptions)

    def version(self, channel: str) -> int:
        return id(self._of.get(channel))

    def of(self, channel: str) -> list[str]:
        return self._of.get(channel, [])


class Stage:
    def __init__(self, folder: Path, document: str) -> None:
        self.declared = parse_pipeline(document)
        self.layout = Layout(folder / "data")
        self.spark = spark.session(MASTER, memory=MEMORY, folder=self.layout.spark)
        self.manifest = Manifest.writer(self.layout.manifest)
        self.datasets = Datasets(self.spark, self.declared, self.layout, self.manifest, folder)
        self.results = Results(self.layout)
        self.told = Told()
        self.channels = Channels(
            self.spark, self.declared, self.datasets, self.results, self.told, folder / "pipeline.toml"
        )
        self.channels.check()

    def add(self, dataset: str, rows: pa.Table) -> Path:
        """What a step of ingestion does: one file, one version."""
        version, now_ns = self.manifest.version + 1, time.time_ns()
        schema = arrow_schema({**columns_of(self.datasets.declared[dataset]), VERSION: "bigint"})
        given = {
            field.name: rows.column(field.name)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        }
        given[VERSION] = pa.array([version] * rows.num_rows, pa.int64())
        path = self.layout.dataset(dataset) / f"{uuid4().hex}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(given, schema=schema), path)
        written = Written(
            dataset=dataset,
            name=path.name,
            rows=rows.num_rows,
            bytes=path.stat().st_size,
            first_version=version,
            last_version=version,
            oldest_ns=now_ns,
            newest_ns=now_ns,
        )
        self.manifest.commit([written])
        return path

    def close(self) -> None:
        self.channels.close()
        self.results.close()
        self.manifest.close()


@contextmanager
def staged(document: str) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="holdfast-channels-") as name:
        stage = Stage(Path(name), document)
        try:
            yield stage
        finally:
            stage.close()
            spark.stop()


def java() -> int:
    """The process of Spark's driver."""
    running = spark._running
    assert running is not None
    assert running.process is not None
    return running.process.pid


def cpu_s(*processes: int) -> float:
    """Processor time that these have taken until now, and their children."""
    total = 0
    for pid in processes:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(field) for field in fields[11:15])
    return total / TICKS_S


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def heap_mib(stage: Stage) -> float:
    """What is alive in the driver of Spark, once its cleaner has let go of what nobody refers to any more."""
    jvm = stage.spark._jvm
    assert jvm is not None
    runtime = jvm.java.lang.Runtime.getRuntime()
    before, alive = float("inf"), float("inf")
    for _ in range(COLLECTIONS_MAX):
        jvm.java.lang.System.gc()
        before, alive = alive, float(runtime.totalMemory() - runtime.freeMemory()) / 2**20
        if before - alive < 1:
            break
        time.sleep(CLEANER_S)
    return min(before, alive)
