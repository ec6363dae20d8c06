"""One process that runs a pipeline: Spark in threads, delivery in the event loop, metrics beside them.

Laws:
- a data folder has one such process at a time
- it may be killed at any instant: what counts is on disk, and the next one goes on from there
- SIGTERM and SIGINT end it with nothing left behind but the data; what waits for delivery waits on disk
- SIGHUP, or a change of the pipeline file or of a query's file, changes the channels under way; a file that
  cannot be is told, and the old one stays
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace

from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.mqtt.channels import Offered
from holdfast.pipeline.declared import Channel, Instead, Pipeline, load_pipeline
from holdfast.pipeline.delivery import Delivery
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.metrics import Metrics
from holdfast.pipeline.reporting import Reporter, served
from holdfast.pipeline.results import Results
from holdfast.pipeline.running import Runner, Tallies, Tell, Work
from holdfast.pipeline.subscribers import Subscribers
from holdfast.runtime.watching import HttpDoor

LOOK_S = 1.0  # how often the files are looked at
EXPIRE_S = 30.0

Make = Callable[[Pipeline, Results, Subscribers, Tallies], Work]


@contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """The data folder is ours; it is made if it is not there."""
    try:
        layout.data.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(layout.lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise Unavailable(f"cannot use {layout.data} for a pipeline: {error.strerror or error}") from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
        yield
    except BlockingIOError:
        owner = os.pread(lock_fd, 20, 0).decode(errors="replace").strip()
        raise Unavailable(
            f"the data folder {layout.data} is in use by process {owner or 'unknown'}: "
            "two pipelines never share one, give each its own"
        ) from None
    finally:
        os.close(lock_fd)


class Process:
    """`run` returns at the end; errors that make it impossible from the start are raised."""

    def __init__(
        self,
        path: Path,
        make: Make,
        *,
        instead: Instead = Instead(),  # noqa: B008 - frozen
        metrics: HttpDoor | None = None,
        tell: Tell,
    ) -> None:
        """`instead` goes before the file, each time that this is read."""
        self._path = path
        self._instead = instead
        self._make = make
        self._metrics_at = metrics
        self._tell = tell
        self._declared = self._load()
        self._stop = asyncio.Event()
        self._hung_up = asyncio.Event()

    def _load(self) -> Pipeline:
        return load_pipeline(self._path, self._instead)

    async def run(self) -> None:
        layout = Layout(self._declared.data)
        with locked(layout):
            results = Results(layout)
            try:
                for name in results.sweep():
                    self._tell("swept", {"file": name})
                await self._run(results)
            finally:
                results.close()

    async def _run(self, results: Results) -> None:
        loop = asyncio.get_running_loop()
        subscribers, tallies = Subscribers(), Tallies()
        delivery = Delivery(self._declared.brokers, results, subscribers, self._tell, self._declared.login)
        delivery.offer(catalog(self._declared))
        runner = Runner(
            lambda declared: self._make(declared, results, subscribers, tallies),
            self._declared,
            ready=lambda: subscribers.ready,
            changed=lambda declared: delivery.offer(catalog(declared)),
            tell=self._tell,
        )
        for number, event in (
            (signal.SIGTERM, self._stop),
            (signal.SIGINT, self._stop),
            (signal.SIGHUP, self._hung_up),
        ):
            loop.add_signal_handler(number, event.set)
        metrics = Metrics(runner, delivery, results, tallies)
        reporter = Reporter(runner, delivery, results, subscribers, tallies, self._declared.brokers)
        async with served(metrics, reporter, self._metrics_at) as port:
            self._tell("pipeline started", {"pid": os.getpid(), **({"metrics": port} if port else {})})
            tasks = [
                asyncio.create_task(each)
                for each in (
                    delivery.run(),
                    self._watch(runner),
                    self._expire(results, runner),
                    in_thread(runner.run, "runner"),
                    self._stop.wait(),
                )
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                runner.stop()
                with suppress(HoldfastError):
                    await tasks[3]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        self._tell("pipeline stopped", {})

    # -- while it runs -------------------------------------------------------------------------------------

    async def _watch(self, runner: Runner) -> None:
        """Reads the pipeline again when it is asked for or a file has changed."""
        seen = self._marks(runner.declared)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._hung_up.wait()
            marks = self._marks(runner.declared)
            if marks == seen and not self._hung_up.is_set():
                continue
            self._hung_up.clear()
            seen = marks
            self._reload(runner)

    def _marks(self, declared: Pipeline) -> list[tuple[int, ...] | None]:
        """What tells that a file has changed."""
        paths = [self._path, *(query_file(self._path, each) for each in declared.channels if each.file)]
        return [_mark(path) for path in paths]

    def _reload(self, runner: Runner) -> None:
        try:
            read = self._load()
        except ConfigError as error:
            self._tell("not reloaded", {"why": error})
            return
        taken = replace(self._declared, channels=read.channels)
        if taken != read:
            self._tell("restart needed", {"why": "more has changed than channels; only they are taken"})
        runner.change(taken)

    async def _expire(self, results: Results, runner: Runner) -> None:
        while True:
            retention_ns = {each.name: each.retention_ns for each in runner.declared.channels}
            for channel in results.channels:
                try:
                    await asyncio.to_thread(
                        results.expire, channel, retention_ns.get(channel, 0), time.time_ns()
                    )
                except Unavailable as error:
                    self._tell("results not expired", {"why": error})
            await asyncio.sleep(EXPIRE_S)


def catalog(declared: Pipeline) -> list[Offered]:
    return [Offered(each.name, tuple(each.parameters.values())) for each in declared.channels]


def query_file(pipeline: Path, channel: Channel) -> Path:
    """Relative to the pipeline file."""
    return pipeline.parent / channel.file


def _mark(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


async def in_thread(call: Callable[[], None], name: str) -> None:
    """Ends when it ends, in a thread that nothing else waits behind."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if over.cancelled():
            return
        if error is None:
            over.set_result(None)
        else:
            over.set_exception(error)

    def body() -> None:
        try:
            call()
        except BaseException as error:
            loop.call_soon_threadsafe(settle, error)
        else:
            loop.call_soon_threadsafe(settle, None)

    threading.Thread(target=body, name=name, daemon=True).start()
    await asyncio.shield(over)
