"""A pair, a recorder and a pipeline as processes: the whole way from message to notification.

Each part is started again whenever it ends, as an operator's supervisor would.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.lab.standalone import SparkCluster
from holdfast.runtime.ports import free_ports

SAID_S_MAX = 240.0
STOP_S_MAX = 30.0
HOLDFAST = [sys.executable, "-m", "holdfast.cli.main"]
# A publisher or subscriber that waits out whatever is killed.
PATIENT = {"outage_s_max": 600.0, "answer_s_max": 600.0, "connect_s_max": 60.0}

CONTRACTS = """
[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { edge = "1ms" }
# A recorder that starts again must find all that came meanwhile.
[limits]
queue_messages_max = 1_000_000
queue_bytes_max = 268_435_456
buffer_messages_max = 2_000_000
buffer_bytes_max = 1_073_741_824
backup_bytes_max = 268_435_456
receive_max = 65_535
[[contract]]
name = "events"
topics = ["bench/events/+"]
period = "100ms"
deadline = "1s"
loss_tolerance = 0
retention = 2
destination = "edge"
count = 1000
[[contract]]
name = "notifications"
topics = ["$channel/#"]
period = "1s"
deadline = "1s"
loss_tolerance = 0
retention = 1
destination = "edge"
count = 1000
"""
GROUP = """
name = "bench"
join_wait = "10s"
[[member]]
name = "a"
mqtt = "127.0.0.1:{}"
peer = "127.0.0.1:{}"
[[member]]
name = "b"
mqtt = "127.0.0.1:{}"
peer = "127.0.0.1:{}"
"""


@dataclass
class Part:
    """A process that is started again whenever it ends."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    wanted: bool = True

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        self.starts += 1

    def tend(self) -> None:
        if self.wanted and (self.process is None or self.process.poll() is not None):
            self.start()

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.tend()

    def stop(self) -> None:
        self.wanted = False
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Stand:
    """Everything that runs, and who may be killed."""

    folder: Path
    brokers: dict[str, Part]
    recorder: Part
    pipeline: Part
    cluster: SparkCluster | None
    addresses: str

    @property
    def parts(self) -> list[Part]:
        return [*self.brokers.values(), self.recorder, self.pipeline]


def children(process: subprocess.Popen[bytes] | None, name: str) -> list[Any]:
    """Processes below this one with such a name."""
    import psutil

    if process is None:
        return []
    try:
        return [each for each in psutil.Process(process.pid).children(recursive=True) if name in each.name()]
    except psutil.NoSuchProcess:
        return []


async def tending(stand: Stand) -> None:
    while True:
        for part in stand.parts:
            part.tend()
        await asyncio.sleep(0.1)


@contextlib.contextmanager
def standing(folder: Path, pipeline: str, workers: int = 0) -> Iterator[Stand]:
    ports = free_ports(4)
    (folder / "contracts.toml").write_text(CONTRACTS)
    (folder / "group.toml").write_text(GROUP.format(*ports))
    (folder / "pipeline.toml").write_text(pipeline)
    addresses = f"127.0.0.1:{ports[0]},127.0.0.1:{ports[2]}"
    where = [str(folder / "pipeline.toml"), "--brokers", addresses, "--data", str(folder / "data")]

    def part(name: str, *arguments: str) -> Part:
        return Part(name, [*HOLDFAST, *arguments], folder / f"{name}.log")

    brokers = {
        name: part(
            f"broker-{name}", "broker", "--group", str(folder / "group.toml"), "--member", name,
            "--contracts", str(folder / "contracts.toml"), "--data", str(folder / f"journal-{name}"),
        )
        for name in ("a", "b")
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(SparkCluster(workers)) if workers else None
        stand = Stand(
            folder,
            brokers,
            part("recorder", "record", *where),
            part("pipeline", "pipeline", *where, "--master", cluster.url if cluster else "local[2]"),
            cluster,
            addresses,
        )
        try:
            for each in stand.parts:
                each.tend()
            yield stand
        finally:
            for each in (stand.pipeline, stand.recorder, *brokers.values()):
                each.stop()


@contextlib.asynccontextmanager
async def background(*works: Any) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def said(words: str, *parts: Part) -> None:
    """Until each of them has said so."""
    async with asyncio.timeout(SAID_S_MAX):
        for part in parts:
            while words not in (part.log.read_text() if part.log.exists() else ""):
                await asyncio.sleep(0.1)
