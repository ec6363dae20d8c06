"""Links whose delay changes: the shape as numbers, and the subscriber behind one."""

import asyncio
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Client, Contract, connect
from holdfast.lab.group import Group, Settings, running_group
from holdfast.lab.links import NOISE, SteeredLink, SteeredLinks, delay_ns
from holdfast.lab.model import Link
from holdfast.units import MS, S

CLOUD = Link(destination="cloud", delay_ns=20 * MS, swing_ns=10 * MS)
SPIKY = Link(
    destination="cloud",
    delay_ns=20 * MS,
    swing_ns=10 * MS,
    spike_ns=10 * S,
    spike_at_ns=3 * S,
    spike_for_ns=1 * S,
)
MEASURE_NS = 10 * S
DAY = 100
CONTRACTS = """
[deployment]
failover = "500ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { cloud = "20ms" }

[[contract]]
name = "5"
topics = ["cloud/+"]
period = "20ms"
deadline = "700ms"
loss_tolerance = 0
retention = 26
destination = "cloud"
count = 2
"""
PATIENT = Settings(heartbeat="20ms", silence="300ms")


class Calm:
    """No noise."""

    def random(self) -> float:
        return 0.0


@given(at_ns=st.integers(-S, 11 * S), seed=st.integers(0, 1000))
def test_a_delay_lies_between_the_least_one_and_swing_noise_and_spike_on_top(at_ns: int, seed: int) -> None:
    found = delay_ns(SPIKY, at_ns, MEASURE_NS, random.Random(seed))
    spike = 10 * S if 3 * S <= at_ns < 4 * S else 0
    assert 20 * MS + spike <= found <= 20 * MS + 10 * MS * (1 + NOISE) + spike


def test_a_day_rises_and_falls_once() -> None:
    day = [delay_ns(CLOUD, hour * MEASURE_NS // DAY, MEASURE_NS, Calm()) for hour in range(DAY)]
    noon = DAY // 2
    assert day[0] == 20 * MS
    assert day[noon] == max(day) == 30 * MS
    assert day[:noon] == sorted(day[:noon])
    assert day[noon:] == sorted(day[noon:], reverse=True)


def test_outside_the_measuring_time_it_is_the_least_one() -> None:
    for at_ns in (-1, MEASURE_NS):
        assert delay_ns(SPIKY, at_ns, MEASURE_NS, random.Random(1)) == 20 * MS


def test_noise_is_of_the_seed() -> None:
    def day(seed: int) -> list[int]:
        rng = random.Random(seed)
        return [delay_ns(CLOUD, hour * MEASURE_NS // DAY, MEASURE_NS, rng) for hour in range(DAY)]

    assert day(1) == day(1) != day(2)


def test_a_destination_without_a_link_is_reached_directly() -> None:
    links = SteeredLinks([], [], MEASURE_NS, 1)
    assert links.addresses("edge", ("127.0.0.1:1883",)) == ("127.0.0.1:1883",)
    assert links.figures() == {}


class Cloud:
    """A publisher beside the brokers and a subscriber behind the link."""

    def __init__(self, publisher: Client, subscriber: Client, qos: int) -> None:
        self.publisher, self.subscriber, self.qos = publisher, subscriber, qos
        self.published = 0
        self.came: list[tuple[int, float]] = []

    async def publish(self, count: int) -> None:
        for _ in range(count):
            await self.publisher.publish("cloud/x", b"%d" % self.published, qos=self.qos)
            self.published += 1
            await asyncio.sleep(0.02)

    async def receive(self) -> None:
        async for message in self.subscriber:
            assert message.latency_ns is not None
            self.came.append((int(message.payload), message.latency_ns / MS))

    async def all_came(self) -> None:
        async with asyncio.timeout(20):
            while len(self.came) < self.published:
                await asyncio.sleep(0.01)


async def through(group: Group, link: SteeredLink, measure_s: float, crash: bool) -> Cloud:
    contract = Contract(name="5", topics=("cloud/+",), deadline_ns=700 * MS, loss_tolerance=0, retention=26)
    async with (
        await connect(*group.addresses, client_id="publisher") as publisher,
        await connect(*link.addresses, client_id="subscriber") as subscriber,
    ):
        publisher.declare(contract)
        cloud = Cloud(publisher, subscriber, qos=1 if crash else 0)
        await subscriber.subscribe("cloud/+", qos=1)
        receiving = asyncio.create_task(cloud.receive())
        assert subscriber.address in link.addresses
        link.begin(time.time_ns())
        await cloud.publish(int(measure_s * 50 / 2))
        if crash:
            before = subscriber.address
            group.kill(
                next(name for name, at in zip(group.members, link.addresses, strict=True) if at == before)
            )
        await cloud.publish(int(measure_s * 50 / 2))
        await cloud.all_came()
        if crash:
            assert subscriber.address in set(link.addresses) - {before}
    await receiving
    return cloud


@pytest.mark.parametrize("crash", [False, True], ids=["fault-free", "crash"])
def test_a_spike_on_the_way_to_the_cloud_loses_nothing(tmp_path: Path, crash: bool) -> None:
    """FRAME, Figure 8, shortened: late is allowed, lost is not; the subscriber never goes round the link.

    With a crash during the spike the messages have QoS 1: what a QoS 0 subscriber's socket was handed counts
    as dispatched, and on a slow link the next primary's messages overtake it.
    """
    shape = Link(
        destination="cloud",
        delay_ns=5 * MS,
        swing_ns=5 * MS,
        spike_ns=1 * S,
        spike_at_ns=500 * MS,
        spike_for_ns=300 * MS,
    )
    contracts = tmp_path / "contracts.toml"
    contracts.write_text(CONTRACTS)
    with running_group(2, contracts, PATIENT) as group:
        link = SteeredLink(shape, group.addresses, 3 * S, 7)
        try:
            cloud = asyncio.run(through(group, link, 3.0, crash))
        finally:
            link.close()
    assert [number for number, _ in cloud.came] == list(range(cloud.published))
    latencies = [latency for _, latency in cloud.came]
    assert min(latencies) >= 4  # a relay counts whole milliseconds
    assert max(latencies) >= 1000
    figures = link.figures()
    assert max(figures["link_cloud_delay_ms"]) >= 1000
    assert len(figures["link_cloud_delay_ms"]) == len(figures["link_cloud_at_ms"]) > 30
