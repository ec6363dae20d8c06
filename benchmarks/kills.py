"""Exactly once, from publisher to dataset and to subscriber, while everything in between is killed.

A publisher numbers its messages and spreads them over keys. A channel counts and adds up what is new of each
key; a subscriber adds up what it is told. A message that is lost, or counts twice, anywhere on the way,
makes a sum wrong. Every few seconds one process is killed (SIGKILL) and started again: the recorder, the
driver, its JVM, the primary broker, a Spark worker with its executors, in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import Outgoing, connect
from holdfast.client import Client
from holdfast.errors import Unavailable
from holdfast.lab.standalone import SparkCluster

from .report import Outcome, Table, Verdict
from .stage import Run
from .stand import HOLDFAST, PATIENT, STOP_S_MAX, Stand, background, children, said, standing, tending

KEYS = 1000
BATCH = 200
RATE = 10_000
PUBLICATIONS, KILLS = 2_000_000, 20
QUICK_PUBLICATIONS, QUICK_KILLS = 60_000, 5
SETTLE_S_MAX = 240.0

PIPELINE = """
[[feed]]
name = "events"
topics = ["bench/events/+"]
[[dataset]]
name = "events"
feed = "events"
schema = { n = "bigint", k = "bigint" }
required = ["n", "k"]
[[channel]]
name = "per_key"
period = "2s"
parameters = { k = "bigint" }
new = ["events"]
query = '''
SELECT s.subscription, count(*) AS events, sum(e.n) AS total
FROM subscriptions s JOIN new_events e ON e.k = s.k
GROUP BY s.subscription
'''
"""


@dataclass
class Told:
    """What the subscriber was told, by key."""

    events: dict[int, int] = field(default_factory=dict)
    totals: dict[int, int] = field(default_factory=dict)
    notifications: int = 0

    def add(self, topic: str, payload: bytes) -> None:
        key = int(topic.rpartition("/")[2])
        self.notifications += 1
        for row in json.loads(payload)["rows"]:
            self.events[key] = self.events.get(key, 0) + row["events"]
            self.totals[key] = self.totals.get(key, 0) + row["total"]

    @property
    def counted(self) -> int:
        return sum(self.events.values())

    def wrong(self, publications: int) -> int:
        """How many keys have another sum than an uninterrupted run gives."""
        return sum(
            self.events.get(key, 0) != len(range(key, publications, KEYS))
            or self.totals.get(key, 0) != sum(range(key, publications, KEYS))
            for key in range(KEYS)
        )


def kill_jvm(stand: Stand) -> bool:
    found = children(stand.pipeline.process, "java")
    for each in found:
        each.kill()
    return bool(found)


def kill_worker(cluster: SparkCluster) -> bool:
    """The worker that is oldest, and its executors; another takes its place."""
    number = next(number for number, each in enumerate(cluster.workers) if each.poll() is None)
    executors = children(cluster.workers[number], "java")
    cluster.kill_worker(number)
    for each in executors:
        with contextlib.suppress(Exception):
            each.kill()
    cluster.add_worker()
    return True


async def kill_broker(stand: Stand, client: Client) -> bool:
    """Only a protected primary: one failure at a time is what is promised."""
    async with asyncio.timeout(STOP_S_MAX):
        while client.view is None or len(client.view.places) < 2:
            await asyncio.sleep(0.05)
    stand.brokers[client.view.places[0].name].kill()
    return True


async def killing(stand: Stand, client: Client, every_s: float, kills: int) -> list[str]:
    """Kills in turn; says whom."""
    done: list[str] = []
    turns: list[tuple[str, Callable[[], Any]]] = [
        ("recorder", lambda: stand.recorder.kill() or True),
        ("driver", lambda: stand.pipeline.kill() or True),
        ("broker", lambda: kill_broker(stand, client)),
        ("jvm", lambda: kill_jvm(stand)),
    ]
    if (cluster := stand.cluster) is not None:
        turns.append(("worker", lambda: kill_worker(cluster)))
    turn = 0
    while len(done) < kills:
        await asyncio.sleep(every_s)
        name, kill = turns[turn % len(turns)]
        found = kill()
        if await found if asyncio.iscoroutine(found) else found:
            done.append(name)
            turn += 1
    return done


async def publishing(client: Client, publications: int, rate: int) -> None:
    """At the given rate; slower if the brokers are."""
    loop = asyncio.get_running_loop()
    next_s = loop.time()
    for first in range(0, publications, BATCH):
        await client.publish_many(
            Outgoing(f"bench/events/{n % KEYS}", b'{"n":%d,"k":%d}' % (n, n % KEYS), 1)
            for n in range(first, min(first + BATCH, publications))
        )
        next_s = max(next_s + BATCH / rate, loop.time())
        await asyncio.sleep(next_s - loop.time())


async def hearing(client: Client, told: Told) -> None:
    async for message in client:
        told.add(message.topic, message.payload)


@dataclass(frozen=True)
class Found:
    publications: int
    killed: list[str]
    told: Told
    rows: int
    distinct: int
    seconds: float

    @property
    def exact(self) -> bool:
        wrong = self.told.wrong(self.publications)
        return wrong == 0 and self.rows == self.distinct == self.publications


async def play(stand: Stand, publications: int, kills: int, rate: int) -> tuple[list[str], Told]:
    told = Told()
    lasts_s = publications / rate
    await said("listening", *stand.brokers.values())
    async with contextlib.AsyncExitStack() as stack:
        subscriber = await stack.enter_async_context(
            await connect(stand.addresses, client_id="told", session_expiry_s=600, **PATIENT)
        )
        publisher = await stack.enter_async_context(
            await connect(stand.addresses, client_id="events", **PATIENT)
        )
        await subscriber.subscribe(*(f"$channel/per_key/{key}" for key in range(KEYS)), qos=1)
        async with background(tending(stand), hearing(subscriber, told)):
            await said("event=recording", stand.recorder)
            await said("serving", stand.pipeline)
            killer = asyncio.create_task(killing(stand, subscriber, lasts_s / (kills + 1), kills))
            await publishing(publisher, publications, rate)
            killed = await killer
            async with asyncio.timeout(SETTLE_S_MAX):
                while told.counted < publications:
                    await asyncio.sleep(0.2)
            # Whatever would come twice has time to come.
            await asyncio.sleep(3)
    return killed, told


def rows_of(stand: Stand) -> tuple[int, int]:
    query = "SELECT count(*) AS rows, count(DISTINCT n) AS distinct FROM events"
    said = subprocess.run(
        [*HOLDFAST, "dataset", "query", query, "--json", "--pipeline", str(stand.folder / "pipeline.toml"),
         "--data", str(stand.folder / "data")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if said.returncode:
        raise Unavailable(f"the dataset cannot be read: {said.stderr.strip()}")
    row = json.loads(said.stdout.splitlines()[0])
    return row["rows"], row["distinct"]


def run_kills(publications: int, kills: int, *, rate: int = RATE, workers: int = 0) -> Found:
    begin_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-kills-") as name,
        standing(Path(name), PIPELINE, workers) as stand,
    ):
        killed, told = asyncio.run(play(stand, publications, kills, rate))
        stand.pipeline.stop()
        rows, distinct = rows_of(stand)
    return Found(publications, killed, told, rows, distinct, time.monotonic() - begin_s)


def kills(run: Run) -> Outcome:
    wanted = (QUICK_PUBLICATIONS, QUICK_KILLS) if run.quick else (PUBLICATIONS, KILLS)
    found = run_kills(*wanted, workers=2)
    by_name = ", ".join(f"{found.killed.count(name)} {name}" for name in dict.fromkeys(found.killed))
    row = (
        "holdfast", f"{found.publications:,}", by_name, f"{found.rows:,}", f"{found.distinct:,}",
        f"{found.told.counted:,}", f"{found.told.notifications:,}", f"{found.seconds:.0f}",
    )  # fmt: skip
    columns = ("", "published", "killed", "rows", "distinct", "counted", "notifications", "seconds")
    verdict = Verdict(
        f"exactly once: {len(found.killed)} SIGKILLs during {found.publications:,} publications",
        "nothing lost, nothing twice, in the datasets and at our subscribers",
        f"{found.rows:,} rows, {found.told.wrong(found.publications)} of {KEYS} sums wrong",
        found.exact,
    )
    return Outcome([Table("kills", columns, [row])], [verdict])
