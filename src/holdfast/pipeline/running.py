"""Keeps ingestion and executions going on one Spark session after the other.

Laws:
- steps of ingestion never overlap, and executions of one channel do not; executions of different channels do,
  so many at a time
- nothing is executed before the brokers have told the subscriptions once: it would find nothing for nobody,
  and count as done
- a step or an execution that fails is told and tried again; a session that is dead, or stuck in one step, is
  thrown away and made anew, later each time it fails again
- a pipeline that is changed under way takes effect between executions, whole or not at all
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from holdfast.endpoint.backoff import Backoff
from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.pipeline.declared import Pipeline
from holdfast.units import MIN, S

EXECUTIONS_MAX = 4
LOOK_NS = 1 * S  # how often we look whether the session lives
TEND_NS = 30 * S
STEP_NS_MAX = 10 * MIN
BACKOFF_NS_MIN = 1 * S
BACKOFF_NS_MAX = 60 * S
STEADY_NS = 60 * S  # a session that lived so long was a good one
STEP_FAILURES_MAX = 10  # in a row, before the session is taken to be broken

Tell = Callable[[str, dict[str, object]], None]


class Work(Protocol):
    """Everything that needs Spark, on one session."""

    def step(self) -> int:
        """Takes what the feeds have into the datasets; how many records that were."""

    def tend(self) -> None:
        """What must be done now and then."""

    def due(self, now_ns: int) -> tuple[list[str], int]:
        """The channels whose execution is due and not running, and when the next will be."""

    def execute(self, channel: str, now_ns: int) -> None:
        """Executes a channel; what goes wrong with its query is told and counted there, not raised."""

    def change(self, declared: Pipeline) -> None:
        """Other channels from now on; ConfigError, and nothing changes, if they cannot be."""

    @property
    def alive(self) -> bool:
        """Whether the session can still do something."""

    def close(self, *, lost: bool) -> None:
        """Ends the session, one that is `lost` without asking it; whoever waits for it gets an error."""


def in_a_line(error: Exception) -> str:
    """What went wrong; of what nobody foresaw its kind too."""
    said = (str(error).strip().splitlines() or [""])[0]
    return said if isinstance(error, HoldfastError) else f"{type(error).__name__}: {said}"


class Counts:
    """What was done since the start, for the metrics."""

    def __init__(self) -> None:
        self.running = False
        self.sessions = 0
        self.records = 0
        self.steps = 0
        self.step_failures = 0
        self.step_ns_last = 0
        self.last_error = ""
        self.last_error_at_ns: int | None = None


class Tallies:
    """What the work counts by dataset and by channel, from one session to the next."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.executions: dict[str, int] = {}
        self.late: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.seconds_last: dict[str, float] = {}


class Runner:
    """`run` is for a thread of its own; the rest may be called from any other."""

    def __init__(
        self,
        make: Callable[[Pipeline], Work],
        declared: Pipeline,
        *,
        ready: Callable[[], bool],
        changed: Callable[[Pipeline], None],
        tell: Tell,
    ) -> None:
        self.counts = Counts()
        self.declared = declared
        self._make = make
        self._ready = ready
        self._when_changed = changed
        self._tell = tell
        self._changed: Pipeline | None = None
        self._stopping = False
        # Notified when there is something to look at: the end, a change, an execution that is over.
        self._news = threading.Condition()
        self._step_began_ns: int | None = None
        self._steps_failed = 0

    def stop(self) -> None:
        with self._news:
            self._stopping = True
            self._news.notify_all()

    def change(self, declared: Pipeline) -> None:
        """Takes other channels as soon as no execution runs."""
        with self._news:
            self._changed = declared
            self._news.notify_all()

    def look(self) -> None:
        """Something happened that may make a channel due."""
        with self._news:
            self._news.notify_all()

    def run(self) -> None:
        """Until `stop`; raises ConfigError if the pipeline cannot be from the beginning."""
        backoff = Backoff(random.Random(), BACKOFF_NS_MIN, BACKOFF_NS_MAX)
        while not self._stopping:
            began_ns = time.monotonic_ns()
            try:
                work = self._make(self.declared)
            except ConfigError:
                raise
            except Exception as error:
                self._failed("session not started", in_a_line(error))
            else:
                self.counts.sessions += 1
                self._tell("session started", {"after_ms": (time.monotonic_ns() - began_ns) // 1_000_000})
                self._run_with(work)
            if time.monotonic_ns() - began_ns > STEADY_NS:
                backoff.succeeded()
            self._pause(backoff.failed())

    def _failed(self, event: str, why: str) -> None:
        """Told, and kept for whoever asks later."""
        self.counts.last_error, self.counts.last_error_at_ns = why, time.time_ns()
        self._tell(event, {"why": why})

    def _pause(self, ns: int) -> None:
        with self._news:
            self._news.wait_for(lambda: self._stopping, ns / S)

    # -- one session ---------------------------------------------------------------------------------------

    def _run_with(self, work: Work) -> None:
        over = threading.Event()
        self._steps_failed, self._step_began_ns = 0, None
        ingesting = threading.Thread(target=self._ingest, args=(work, over), name="ingestion", daemon=True)
        pool = ThreadPoolExecutor(EXECUTIONS_MAX, thread_name_prefix="execution")
        running: dict[str, Future[None]] = {}
        self.counts.running = True
        ingesting.start()
        try:
            while not self._stopping and self._lives(work):
                running = {channel: each for channel, each in running.items() if not each.done()}
                next_ns = time.time_ns() + LOOK_NS
                if self._changed is not None:
                    if not running:
                        self._change(work)
                elif self._ready():
                    next_ns = min(next_ns, self._start_due(work, pool, running, over))
                with self._news:
                    if not self._stopping and not any(each.done() for each in running.values()):
                        self._news.wait(max(0, next_ns - time.time_ns()) / S)
        finally:
            self.counts.running = False
            over.set()
            work.close(lost=not self._stopping)
            pool.shutdown(wait=True, cancel_futures=True)
            ingesting.join()

    def _lives(self, work: Work) -> bool:
        began_ns = self._step_began_ns
        if not work.alive:
            why = "the session of Spark has ended"
        elif began_ns is not None and time.monotonic_ns() - began_ns > STEP_NS_MAX:
            why = f"a step of ingestion has not ended within {STEP_NS_MAX // MIN} minutes"
        elif self._steps_failed >= STEP_FAILURES_MAX:
            why = f"{self._steps_failed} steps of ingestion have failed in a row"
        else:
            return True
        self._failed("session lost", why)
        return False

    def _start_due(
        self, work: Work, pool: ThreadPoolExecutor, running: dict[str, Future[None]], over: threading.Event
    ) -> int:
        channels, next_ns = work.due(time.time_ns())
        for channel in channels:
            running[channel] = pool.submit(self._execute, work, channel, over)
        return next_ns

    def _execute(self, work: Work, channel: str, over: threading.Event) -> None:
        try:
            work.execute(channel, time.time_ns())
        except Exception as error:
            if not over.is_set():
                self._tell("execution failed", {"channel": channel, "why": in_a_line(error)})
        finally:
            self.look()

    def _change(self, work: Work) -> None:
        with self._news:
            declared, self._changed = self._changed, None
        assert declared is not None
        try:
            work.change(declared)
        except (ConfigError, Unavailable) as error:
            self._tell("channels not changed", {"why": error})
        else:
            self.declared = declared
            self._when_changed(declared)
            self._tell("channels changed", {"channels": len(declared.channels)})

    # -- ingestion -----------------------------------------------------------------------------------------

    def _ingest(self, work: Work, over: threading.Event) -> None:
        tended_ns = 0
        due_ns = time.monotonic_ns()
        while not over.is_set():
            self._step_began_ns = began_ns = time.monotonic_ns()
            try:
                records = work.step()
                if began_ns - tended_ns > TEND_NS:
                    work.tend()
                    tended_ns = began_ns
            except Exception as error:
                if not over.is_set():
                    self._steps_failed += 1
                    self.counts.step_failures += 1
                    self._failed("ingestion failed", in_a_line(error))
            else:
                self._steps_failed = 0
                self.counts.steps += 1
                self.counts.records += records
            self._step_began_ns = None
            self.counts.step_ns_last = time.monotonic_ns() - began_ns
            due_ns = max(due_ns + self.declared.trigger_ns, time.monotonic_ns())
            over.wait((due_ns - time.monotonic_ns()) / S)
