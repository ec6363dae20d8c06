"""One execution of a channel: its relations as views, its query as one job, what it gives as rows of JSON.

Laws:
- however many subscriptions there are, an execution is one query, with what is new broadcast to the
  subscriptions that Spark has cached
- an execution sees one version of all datasets
- executions that run at the same time share no names: each has a session of its own while it runs
- an execution ends within its time limit, as a failure if need be, and says so; what Spark still does for
  it then is cancelled
- what goes wrong is a `Failed` in one line: nothing was committed, and the same may be tried again
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from holdfast.errors import Unavailable
from holdfast.pipeline.channels.checking import SUBSCRIPTION, bare, mentioned, said_in_java, shortened
from holdfast.pipeline.channels.frames import NewRows, give_name
from holdfast.pipeline.channels.near import register
from holdfast.pipeline.channels.queries import Query
from holdfast.units import S, format_duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.pipeline.datasets.views import Datasets

Relations: TypeAlias = "Mapping[str, Callable[[], DataFrame]]"

CANCEL_S = 0.5
# One text, so that it is analysed once. A query that gives nothing but subscriptions has empty rows.
OPENING = (
    f"SELECT {SUBSCRIPTION}, "
    f"to_json(struct(* EXCEPT ({SUBSCRIPTION})), map('ignoreNullFields', 'false')) AS row FROM (\n"
)
CLOSING = f"\n) AS found WHERE {SUBSCRIPTION} IS NOT NULL"
SETTINGS = {
    # Plans of small inputs: what is decided again while a query runs costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ui.explainMode": "simple",
    # Rows that go along with a query are few: one task.
    "spark.sql.leafNodeDefaultParallelism": "1",
    # What is new fits here; larger than it, joins are by sorting or hashing in parts, as always.
    "spark.sql.autoBroadcastJoinThreshold": str(64 * 2**20),
    # It would compute what makes rows (the cells around a place) twice more, to drop rows that have none.
    "spark.sql.optimizer.excludedRules": ("org.apache.spark.sql.catalyst.optimizer.InferFiltersFromGenerate"),
}


_tries = count(1)


class Failed(Unavailable):
    """An execution that gave nothing: says of which channel, and why."""

    def __init__(self, channel: str, why: str) -> None:
        self.channel = channel
        self.why = why
        super().__init__(f"channel {channel} failed: {why}")


class Sessions:
    """Sessions that executions borrow: as many as ran at the same time, each with our functions."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._idle: list[SparkSession] = []
        self._bulk: SparkSession | None = None
        self._lock = threading.Lock()

    def bulk(self) -> SparkSession:
        """One in which rows from Python become data, never a part of a plan that is compared and copied."""
        with self._lock:
            if self._bulk is None:
                self._bulk = self._spark.newSession()
                self._bulk.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
            return self._bulk

    @contextmanager
    def borrowed(self) -> Iterator[SparkSession]:
        with self._lock:
            session = self._idle.pop() if self._idle else None
        if session is None:
            session = self._spark.newSession()
            cores = self._spark.sparkContext.defaultParallelism
            for name, value in {**SETTINGS, "spark.sql.shuffle.partitions": str(cores)}.items():
                session.conf.set(name, value)
            register(session)
        try:
            yield session
        finally:
            with self._lock:
                self._idle.append(session)


class Watch:
    """Cancels what a thread has Spark do when its time limit is over."""

    def __init__(self, spark: SparkSession, query: Query, group: str) -> None:
        self.late = threading.Event()
        self._context = spark.sparkContext
        # A retry of an execution is told from what may still run of it.
        self._group = f"{group}, {next(_tries)}"
        self._limit_ns = query.channel.time_limit_ns
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"time limit of {group}", daemon=True)

    def __enter__(self) -> Watch:
        self._context.setJobGroup(self._group, "one execution of a channel", interruptOnCancel=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]

    def _watch(self) -> None:
        """Cancels again and again: what is planned now becomes a job later."""
        if self._over.wait(self._limit_ns / S):
            return
        self.late.set()
        while True:
            self._context.cancelJobGroup(self._group)
            if self._over.wait(CANCEL_S):
                return

    def tasks(self) -> int:
        """How many tasks still run, though cancelled: one that asks nobody cannot be stopped."""
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(self._group)]
        stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        found = [tracker.getStageInfo(stage) for stage in stages]
        return sum(stage.numActiveTasks for stage in found if stage is not None)


@contextmanager
def in_words(query: Query, watch: Watch) -> Iterator[None]:
    """What Spark or a file makes of the query becomes a `Failed`; that Spark is gone is nobody's failure."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    name, limit_ns = query.channel.name, query.channel.time_limit_ns
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise Failed(name, f"{type(error).__name__}: {error}") from error
    except (PySparkException, Py4JError) as error:
        if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
            raise Unavailable(f"the session of Spark ended under channel {name}") from error
        if watch.late.is_set():
            raise Failed(
                name, f"it took longer than its time_limit of {format_duration(limit_ns)}"
            ) from error
        said = shortened(error) if isinstance(error, PySparkException) else said_in_java(error)
        raise Failed(name, said) from error


def views_of(
    datasets: Datasets, new: NewRows, query: Query, after: int, upto: int
) -> Iterator[tuple[str, Callable[[], DataFrame]]]:
    """What the names in a query mean, at one version of the datasets; what it does not name is not opened."""
    for name in mentioned(query.text, datasets.names):
        yield name, partial(datasets.frame, name, upto)
    for name in query.channel.new:
        yield f"new_{name}", partial(new.frame, name, after, upto)


def planned(session: SparkSession, query: Query, views: Mapping[str, DataFrame]) -> DataFrame:
    """The query with these relations, as subscriptions and rows of JSON, not run yet."""
    for name, frame in views.items():
        give_name(session, name, frame)
    return session.sql(f"{OPENING}{bare(query.text)}{CLOSING}")


def run(session: SparkSession, query: Query, views: Relations, watch: Watch) -> pa.Table:
    """What the query finds: `subscription` and `row`."""
    with watch:
        return planned(session, query, {name: make() for name, make in views.items()}).toArrow()
