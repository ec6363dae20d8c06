"""From results on disk to subscribers: each notification once, none missing, whoever is killed meanwhile."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast import Client, connect
from holdfast.errors import Refused
from holdfast.mqtt.channels import Offered, channel_topic
from holdfast.mqtt.conventions import LAST_PROPERTY, find_stamp
from holdfast.mqtt.packets import Properties
from holdfast.pipeline.delivery import Delivery
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.results import FOUND, Execution, Results
from holdfast.pipeline.subscribers import Subscribers
from pipeline import deliverer
from pipeline.deliverer import CHANNEL, OTHER, commit, payload, subscriptions
from support.brokers import LOOPBACK, BrokerProcess, free_port
from support.groups import GroupProcesses

WAIT_S = 60.0
FRAME = Path(__file__).parents[2] / "examples" / "frame.toml"
OFFERED = [Offered(CHANNEL, ("string",)), Offered(OTHER, ("string",))]


async def until(reached: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
    give_up = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(0.01)


async def until_refused(client: Client, topic: str) -> None:
    """The broker knows the catalog."""
    give_up = time.monotonic() + WAIT_S
    while time.monotonic() < give_up:
        try:
            await client.subscribe(topic)
        except Refused:
            return
    raise TimeoutError(f"the subscription to {topic} was granted for {WAIT_S:g} s")


def run(test: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(110):
            await test

    asyncio.run(bounded())


class Receiver:
    """A subscriber of ours: what came of each topic, in order."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.came: dict[str, list[bytes]] = {}
        self.task = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        async for message in self.client:
            self.came.setdefault(message.topic, []).append(message.payload)

    def has(self, executions: int, names: list[str]) -> bool:
        return all(
            len(self.came.get(channel_topic(channel, name), [])) >= executions
            for channel in (CHANNEL, OTHER)
            for name in names
        )

    def check(self, executions: int, names: list[str]) -> None:
        for channel in (CHANNEL, OTHER):
            for name in names:
                expected = [payload(number, name) for number in range(1, executions + 1)]
                assert self.came[channel_topic(channel, name)] == expected, (channel, name)


@asynccontextmanager
async def receiver(brokers: str, names: list[str]) -> AsyncIterator[Receiver]:
    async with await connect(brokers, client_id="receiver") as client:
        received = Receiver(client)
        for channel in (CHANNEL, OTHER):
            topics = [channel_topic(channel, name) for name in names]
            for start in range(0, len(topics), 100):
                await client.subscribe(*topics[start : start + 100], qos=1)
        yield received
        received.task.cancel()
        await asyncio.gather(received.task, return_exceptions=True)


@contextmanager
def delivering(
    brokers: str, folder: Path, executions: int, count: int, dies: tuple[int, int] = (0, 0)
) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [brokers, str(folder), str(executions), str(count), *map(str, dies)]
    with (folder.parent / "deliverer.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, deliverer.__file__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def ended(process: subprocess.Popen[bytes]) -> int:
    await until(lambda: process.poll() is not None, "the end of the delivering process")
    return process.returncode


def test_the_process_is_killed_before_sending_and_between_sending_and_marking(
    tmp_path: Path, start_broker: Callable[..., BrokerProcess]
) -> None:
    """It publishes the same again in its next life, and nobody sees it."""
    executions, names = 12, subscriptions(40)
    broker = start_broker()
    address = f"{LOOPBACK}:{broker.port}"

    async def story() -> None:
        async with receiver(address, names) as received:
            for dies in ((0, 3), (4, 0), (5, 4), (0, 5), (9, 0)):
                with delivering(address, tmp_path / "data", executions, len(names), dies) as process:
                    assert await ended(process) == -signal.SIGKILL
            with delivering(address, tmp_path / "data", executions, len(names)) as process:
                assert await ended(process) == 0
            await until(lambda: received.has(executions, names), "every notification")
            received.check(executions, names)

    run(story())


def test_the_primary_and_the_process_are_killed_during_delivery(tmp_path: Path) -> None:
    executions, names = 60, subscriptions(40)

    async def story(group: GroupProcesses) -> None:
        brokers = ",".join(f"{LOOPBACK}:{port}" for port in group.ports.values())
        async with receiver(brokers, names) as received:
            some = received.came
            last = channel_topic(CHANNEL, names[-1])
            with delivering(brokers, tmp_path / "data", executions, len(names)) as process:
                await until(lambda: len(some.get(last, [])) >= 10, "some notifications")
                primary = await asyncio.to_thread(group.primary)
                await asyncio.to_thread(group.kill, primary)
                await until(lambda: len(some.get(last, [])) >= 25, "more from the new primary")
                process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(group.start, primary)
            await asyncio.to_thread(group.await_protected)
            with delivering(brokers, tmp_path / "data", executions, len(names)) as process:
                await until(lambda: len(some.get(last, [])) >= 35, "more from the new process")
                await asyncio.to_thread(group.kill, await asyncio.to_thread(group.primary))
                assert await ended(process) == 0
            await until(lambda: received.has(executions, names), "every notification")
            received.check(executions, names)

    with GroupProcesses(tmp_path, FRAME, keep=False) as group:
        group.await_protected()
        run(story(group))


@asynccontextmanager
async def delivery_in(
    brokers: str, results: Results, events: list[tuple[str, dict[str, object]]] | None = None
) -> AsyncIterator[Delivery]:
    told = [] if events is None else events
    delivery = Delivery(brokers, results, Subscribers(), lambda event, details: told.append((event, details)))
    delivery.offer(OFFERED)
    task: asyncio.Task[Any] = asyncio.create_task(delivery.run())
    try:
        yield delivery
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_brokers_that_are_away_are_waited_for_and_late_subscribers_get_the_last(tmp_path: Path) -> None:
    port = free_port()
    address = f"{LOOPBACK}:{port}"
    results = Results(Layout(tmp_path / "data"))

    async def last(client: Client, name: str, count: int) -> list[Any]:
        properties = Properties(user=[(LAST_PROPERTY, str(count))])
        await client.subscribe(channel_topic(CHANNEL, name), qos=1, properties=properties)
        return [await anext(client) for _ in range(count)]

    async def story() -> None:
        events: list[tuple[str, dict[str, object]]] = []
        async with delivery_in(address, results, events) as delivery:
            for number in range(1, 6):
                await asyncio.to_thread(commit, results, CHANNEL, number, ["alice", "bob/north"])
            await until(lambda: bool(events), "that the brokers are away")
            assert events[0][0] == "not delivering"
            with BrokerProcess("--listen", address, kind="holdfast"):
                await until(lambda: not results.undelivered(CHANNEL), "delivery to nobody")
                async with await connect(address) as client:
                    messages = await last(client, "alice", 3)
                    assert [each.payload for each in messages] == [payload(n, "alice") for n in (3, 4, 5)]
                    assert all(each.retain for each in messages)
                    await asyncio.to_thread(commit, results, CHANNEL, 6, ["alice"])
                    message = await anext(client)
                    assert (message.payload, message.retain) == (payload(6, "alice"), False)
                    stamp = find_stamp(message.properties.user)
                    assert stamp is not None
                    assert (stamp.publisher, stamp.sequence) == (f"~near.{results.epoch}", 6)
                assert delivery.counts.last_served == 1
                assert delivery.connected
            await until(lambda: not delivery.connected, "that the broker is gone")
            await asyncio.to_thread(commit, results, CHANNEL, 7, ["alice"])
            with BrokerProcess("--listen", address, kind="holdfast"):
                await until(lambda: not results.undelivered(CHANNEL), "delivery to the new broker")
                async with await connect(address) as client:
                    await until_refused(client, channel_topic("nowhere", "alice"))

    run(story())
    results.close()


def test_what_cannot_be_delivered_does_not_hold_up_the_rest(tmp_path: Path) -> None:
    limits = tmp_path / "contracts.toml"
    limits.write_text("[limits]\npacket_bytes_max = 4096\n")
    results = Results(Layout(tmp_path / "data"))
    commit(results, CHANNEL, 1, ["alice"])
    now_ns = time.time_ns()
    names = ["+", "alice", "bob", "carol"]
    found = pa.table(
        {"subscription": names, "payload": [b"w", payload(2, "alice"), b"x" * 10_000, b"y"]}, schema=FOUND
    )
    results.commit(Execution(CHANNEL, 2, 1, 2, now_ns, now_ns, 3), found)
    commit(results, CHANNEL, 3, ["alice"])
    (first, *_) = sorted((tmp_path / "data" / "results" / CHANNEL).iterdir())
    first.write_bytes(b"damaged")

    async def story(address: str) -> None:
        events: list[tuple[str, dict[str, object]]] = []
        async with await connect(address) as client:
            await client.subscribe(channel_topic(CHANNEL, "alice"), qos=1)
            async with delivery_in(address, results, events) as delivery:
                await until(lambda: not results.undelivered(CHANNEL), "the rest")
                assert [(await anext(client)).payload for _ in range(2)] == [
                    payload(2, "alice"),
                    payload(3, "alice"),
                ]
                assert (delivery.counts.damaged, delivery.counts.refused) == (1, 2)
        assert [event for event, _ in events if event != "connected"] == [
            "results damaged",
            "notification refused",
            "notification refused",
        ]

    with BrokerProcess("--contracts", str(limits), kind="holdfast") as broker:
        run(story(f"{LOOPBACK}:{broker.port}"))
    results.close()
