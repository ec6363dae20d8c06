"""All channels of a pipeline: which are due, and their executions.

Laws:
- an execution covers the dataset versions behind the one before it, without gap or overlap: its mark
  and what it found are committed together, and a failure moves no mark
- a channel that is seen for the first time begins with what comes from then on, and this beginning is kept
- with nothing new, or nobody subscribed, no job runs
- channels change whole or not at all: all queries are checked before any takes effect
- `due` hands out each channel once until its execution is over
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.pipeline.channels.checking import SUBSCRIPTIONS, Checker
from holdfast.pipeline.channels.execution import Failed, Sessions, Watch, in_words, run, views_of
from holdfast.pipeline.channels.frames import NewRows
from holdfast.pipeline.channels.notifications import notifications
from holdfast.pipeline.channels.queries import Query, read_queries
from holdfast.pipeline.channels.schedule import Schedule
from holdfast.pipeline.channels.subscriptions import Subscriptions
from holdfast.pipeline.results import Execution, Results
from holdfast.units import S

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from holdfast.pipeline.datasets.views import Datasets
    from holdfast.pipeline.declared import Pipeline

LOOK_NS_MAX = 60 * S
# What was cancelled is given so long to end, well before Spark forgets the job.
STUCK_NS = 20 * S


class Subscribed(Protocol):
    """Which subscriptions exist."""

    def version(self, channel: str) -> int: ...

    def of(self, channel: str) -> list[str]: ...


@dataclass
class Tally:
    """What a channel did since the start. `late_ns` is how late its last execution began."""

    executions: int = 0
    skipped: int = 0
    failures: int = 0
    late: int = 0
    late_ns: int = 0
    took_ns: int = 0
    subscriptions: int = 0
    unfit: int = 0


class _Channel:
    """A channel that runs: its query, its subscriptions in Spark, and how far it is beyond its mark."""

    def __init__(self, query: Query, subscriptions: Subscriptions) -> None:
        self.query = query
        self.subscriptions = subscriptions
        self.subscribed: int | None = None
        self.covered = 0
        self.tally = Tally()


class Channels:
    def __init__(
        self,
        spark: SparkSession,
        declared: Pipeline,
        datasets: Datasets,
        results: Results,
        subscribers: Subscribed,
        source: Path = Path("pipeline.toml"),
    ) -> None:
        """`source` is the pipeline file: files of queries are relative to it. Call `check` first."""
        self._spark = spark
        self._declared = declared
        self._datasets = datasets
        self._results = results
        self._subscribers = subscribers
        self._source = source
        self._sessions = Sessions(spark)
        self._new = NewRows(datasets)
        self._schedule = Schedule()
        self._channels: dict[str, _Channel] = {}
        self._cancelled: list[tuple[str, Watch, int]] = []
        self._lock = threading.Lock()

    def check(self) -> None:
        """Takes the declared channels if all queries can run; ConfigError says why not, and what would do."""
        self.change(self._declared)

    def change(self, declared: Pipeline) -> None:
        """These are the channels from now on; ConfigError, and nothing changes, if they cannot be."""
        queries = read_queries(declared.channels, self._source)
        known = {name: each.query for name, each in self._channels.items()}
        changed = [query for name, query in queries.items() if known.get(name) != query]
        if changed:
            schemas = {name: self._datasets.schema(name) for name in self._datasets.names}
            Checker(self._spark, schemas).check(changed, self._source)
        made = {query.channel.name: self._make(query) for query in changed}
        for name in made:
            self._begin(name)
        failures = {name: each.in_a_row for name in made if (each := self._results.failure(name))}
        with self._lock:
            gone = [each for name, each in self._channels.items() if queries.get(name) != each.query]
            kept = {name: each for name, each in self._channels.items() if queries.get(name) == each.query}
            channels = {**kept, **made}
            self._channels = {name: channels[name] for name in queries}
            periods_ns = {name: each.query.channel.period_ns for name, each in self._channels.items()}
            self._schedule.declare(periods_ns, time.time_ns(), changed=made, failures=failures)
        self._declared = declared
        for old in gone:
            old.subscriptions.close()

    def _make(self, query: Query) -> _Channel:
        return _Channel(query, Subscriptions(self._spark, self._sessions.bulk, query.channel))

    def close(self) -> None:
        with self._lock:
            channels, self._channels = self._channels, {}
        for each in channels.values():
            each.subscriptions.close()

    # -- the schedule ----------------------------------------------------------------------------------------

    def due(self, now_ns: int) -> tuple[list[str], int]:
        """Channels to execute now, each handed out once until it is over; and when to ask again."""
        with self._lock:
            names = self._schedule.take(now_ns)
            next_ns = self._schedule.next_ns()
        latest_ns = now_ns + LOOK_NS_MAX
        return names, latest_ns if next_ns is None else min(next_ns, latest_ns)

    def tally(self, name: str) -> Tally:
        with self._lock:
            tally, entry = self._channels[name].tally, self._schedule.entry(name)
        tally.late = entry.late if entry is not None else 0
        return tally

    # -- executions ------------------------------------------------------------------------------------------

    def execute(self, name: str, now_ns: int) -> Execution | None:
        """Runs the channel over what is new; None if there was nothing to do. `Failed` if it did not work."""
        with self._lock:
            channel = self._channels.get(name)
            late_ns = self._schedule.late_ns(name, now_ns)
        if channel is None:
            return None
        began_ns, failed = time.monotonic_ns(), True
        try:
            execution = self._execute(channel, now_ns)
            failed = False
        except Failed as error:
            self._results.failed(name, now_ns, error.why)
            raise
        finally:
            took_ns = time.monotonic_ns() - began_ns
            with self._lock:
                self._schedule.over(name, now_ns + took_ns, failed=failed)
            channel.tally.late_ns, channel.tally.took_ns = late_ns, took_ns
            channel.tally.failures += failed
        return execution

    @property
    def stuck(self) -> str | None:
        """The channel whose cancelled execution still holds Spark, for longer than it is given to end.

        Nothing but another session of Spark helps: what loops without asking cannot be stopped.
        """
        now_ns = time.monotonic_ns()
        with self._lock:
            cancelled = list(self._cancelled)
        for name, watch, since_ns in cancelled:
            if not watch.tasks():
                with self._lock:
                    self._cancelled.remove((name, watch, since_ns))
            elif now_ns - since_ns > STUCK_NS:
                return name
        return None

    def _execute(self, channel: _Channel, now_ns: int) -> Execution | None:
        name, tally = channel.query.channel.name, channel.tally
        number, mark = self._results.mark(name)
        after, upto = max(mark, channel.covered), self._datasets.manifest.version
        if not self._is_new(channel, after, upto):
            channel.covered = upto
            tally.skipped += 1
            return None
        found = None
        watch = Watch(self._spark, channel.query, f"channel {name}, execution {number + 1}")
        with in_words(channel.query, watch):
            self._follow(channel)
            if len(channel.subscriptions):
                rows = self._run(channel, watch, after, upto)
                found = notifications(rows, name, number + 1, now_ns)
            elif not channel.query.channel.new:
                return None
        execution = Execution(
            channel=name,
            number=number + 1,
            after=after,
            upto=upto,
            started_ns=now_ns,
            finished_ns=time.time_ns(),
            rows=0 if found is None else rows.num_rows,
        )
        self._results.commit(execution, found)
        tally.executions += 1
        return execution

    def _run(self, channel: _Channel, watch: Watch, after: int, upto: int) -> pa.Table:
        views = dict(views_of(self._datasets, self._new, channel.query, after, upto))
        views[SUBSCRIPTIONS] = channel.subscriptions.frame
        try:
            with self._sessions.borrowed() as session:
                return run(session, channel.query, views, watch)
        finally:
            if watch.late.is_set():
                with self._lock:
                    self._cancelled.append((channel.query.channel.name, watch, time.monotonic_ns()))

    def _is_new(self, channel: _Channel, after: int, upto: int) -> bool:
        """A channel without `new` always looks at everything."""
        new = channel.query.channel.new
        return not new or any(self._datasets.rows_new(name, after, upto) for name in new)

    def _follow(self, channel: _Channel) -> None:
        name = channel.query.channel.name
        version = self._subscribers.version(name)
        if version != channel.subscribed:
            channel.subscriptions.update(self._subscribers.of(name))
            channel.subscribed = version
            channel.tally.subscriptions = len(channel.subscriptions)
            channel.tally.unfit = channel.subscriptions.unfit

    def _begin(self, name: str) -> None:
        """The mark of a channel that never was before."""
        if self._results.mark(name) != (0, 0):
            return
        version, now_ns = self._datasets.manifest.version, time.time_ns()
        begun = Execution(name, 1, after=version, upto=version, started_ns=now_ns, finished_ns=now_ns, rows=0)
        self._results.commit(begun, None)
