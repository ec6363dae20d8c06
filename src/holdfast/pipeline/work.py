"""What a pipeline does on one session of Spark: ingestion, tending, and the executions of its channels.

Laws:
- everything that is made here ends with the session, and is made anew with the next: what lasts is on disk
- a session of which something failed is asked whether it still lives; who asks is the thread that failed,
  since a session that hangs does not answer
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.pipeline import spark
from holdfast.pipeline.channels.service import Channels
from holdfast.pipeline.datasets.ingest import Ingestion, check_shapes
from holdfast.pipeline.datasets.manifest import Manifest
from holdfast.pipeline.datasets.views import Datasets
from holdfast.pipeline.declared import Pipeline
from holdfast.pipeline.feed.place import open_feed
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.results import Results
from holdfast.pipeline.running import Tallies
from holdfast.pipeline.subscribers import Subscribers
from holdfast.units import S

ROWS_NS = 5 * S  # how old the count of rows may be

Say = Callable[[str], None]


class SparkWork:
    """Made when its session is up and every query was found good; ConfigError or Unavailable otherwise."""

    def __init__(
        self,
        source: Path,
        declared: Pipeline,
        results: Results,
        subscribers: Subscribers,
        tallies: Tallies,
        say: Say,
    ) -> None:
        layout = Layout(declared.data)
        self._tallies = tallies
        self._counted_ns = 0
        self._suspect = False
        self._local = declared.spark.master.startswith("local")
        self._manifest = Manifest.writer(layout.manifest)
        try:
            self._session = spark.session(
                declared.spark.master, memory=declared.spark.memory, folder=layout.spark, say=say
            )
            datasets = Datasets(self._session, declared, layout, self._manifest, source.parent)
            self._names = datasets.names
            feeds = {each.name: open_feed(declared.data, each.name) for each in declared.feeds}
            self._ingestion = Ingestion(datasets, feeds)
            self._channels = Channels(self._session, declared, datasets, results, subscribers, source)
            self._channels.check()
        except BaseException:
            self.close(lost=False)
            raise

    @property
    def alive(self) -> bool:
        return spark.alive() and not self._suspect and self._channels.stuck is None

    def step(self) -> int:
        try:
            records = self._ingestion.step()
        except Exception:
            self._ask()
            raise
        self._count(records)
        return records

    def tend(self) -> None:
        self._ingestion.tend()

    def due(self, now_ns: int) -> tuple[list[str], int]:
        return self._channels.due(now_ns)

    def execute(self, channel: str, now_ns: int) -> None:
        tallies, late = self._tallies, self._channels.tally(channel).late
        try:
            execution = self._channels.execute(channel, now_ns)
        except Exception:
            tallies.failures[channel] = tallies.failures.get(channel, 0) + 1
            self._ask()
            raise
        finally:
            tally = self._channels.tally(channel)
            tallies.late[channel] = tallies.late.get(channel, 0) + tally.late - late
            tallies.seconds_last[channel] = tally.took_ns / S
        if execution is not None:
            tallies.executions[channel] = tallies.executions.get(channel, 0) + 1

    def change(self, declared: Pipeline) -> None:
        self._channels.change(declared)

    def close(self, *, lost: bool) -> None:
        spark.stop(kill=lost)
        self._manifest.close()

    def _ask(self) -> None:
        """After a failure: does the session still live, and its cluster with it?

        A driver whose master is gone would wait for executors for ever. It counts among them itself.
        """
        try:
            context = self._session.sparkContext._jsc.sc()
            gone = context.isStopped() or not (self._local or context.getExecutorMemoryStatus().size() > 1)
        except Exception:
            gone = True
        self._suspect |= bool(gone)

    def _count(self, records: int) -> None:
        now_ns = time.monotonic_ns()
        if records and now_ns - self._counted_ns > ROWS_NS:
            self._counted_ns = now_ns
            self._tallies.rows = {
                name: sum(each.rows for each in self._manifest.files(name)) for name in self._names
            }


def check(source: Path, declared: Pipeline, say: Say) -> None:
    """ConfigError with everything that is wrong with a pipeline, its queries too; nothing is left on disk."""
    layout = Layout(declared.data)
    if layout.manifest.exists():
        written = Manifest(layout.manifest)
        read = {each.name: each for each in declared.datasets if each.kind != "external"}
        check_shapes(read, written, str(source))
        written.close()
    with tempfile.TemporaryDirectory(prefix="holdfast-check-") as folder:
        scratch = Layout(folder)
        results, manifest = Results(scratch), Manifest.writer(scratch.manifest)
        try:
            session = spark.session(
                declared.spark.master, memory=declared.spark.memory, folder=scratch.spark, say=say
            )
            datasets = Datasets(session, declared, scratch, manifest, source.parent)
            Channels(session, declared, datasets, results, Subscribers(), source).check()
        finally:
            spark.stop()
            manifest.close()
            results.close()
