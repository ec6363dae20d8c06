"""The published mix of six categories, sent and received by Holdfast's own client in processes of its own.

Laws:
- a payload is the number of its message within its topic, and when it was made on this machine's one clock
- publishers and subscribers outlive every crash; what they saw is told when they end
- every message is accounted for by its number: what was never delivered is found, whoever else noticed
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from array import array
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise

import uvloop

from holdfast import Client, Outgoing, connect
from holdfast.contract.model import Contract
from holdfast.endpoint import Event, Redirected
from holdfast.runtime.ahead import go_ahead

from .measure import Cue

STOP_POLL_S = 0.02
BODY = struct.Struct("!qq")
TOPICS_PER_PROXY = {"0": 10, "1": 10, "2": 50, "3": 50, "4": 50, "5": 1}
QUEUE_MAX = 65_536


@dataclass(frozen=True)
class Proxy:
    """One publisher: some topics of one contract, all published together once a period."""

    name: str
    contract: Contract
    topics: tuple[str, ...]


def proxies_of(contracts: Iterable[Contract], share: float = 1.0) -> list[Proxy]:
    """The proxies of the mix, or of a smaller one with a share of the topics of each category."""
    proxies = []
    for contract in contracts:
        count = max(1, round(contract.count * share))
        base = contract.topics[0].removesuffix("+")
        topics = [f"{base}{number:06}" for number in range(count)]
        size = TOPICS_PER_PROXY[contract.name]
        for first in range(0, count, size):
            name = f"proxy-{contract.name}-{first // size}"
            proxies.append(Proxy(name, contract, tuple(topics[first : first + size])))
    return proxies


def watch_redirects(client: Client) -> list[int]:
    """The times, on the monotonic clock, at which this client began to write to another primary."""
    times: list[int] = []
    driver = client._driver
    tell: Callable[[Event], None] = driver._tell

    def noticing(event: Event) -> None:
        if isinstance(event, Redirected):
            times.append(time.monotonic_ns())
        tell(event)

    driver._tell = noticing
    return times


@dataclass
class Published:
    """What a process of publishers did: when each proxy published, and when it was redirected."""

    at_ns: dict[str, array[int]] = field(default_factory=dict)
    redirects_ns: dict[str, list[int]] = field(default_factory=dict)
    unsent: int = 0


@dataclass
class Received:
    """What a process of subscribers got: the numbers of each topic in the order in which they came."""

    numbers: dict[str, array[int]] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    """By category: messages that came after their deadline."""
    worst_ns: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    """Messages that the library recognised and did not give out."""
    redirects_ns: dict[str, list[int]] = field(default_factory=dict)


async def _until_stopped(cue: Cue) -> None:
    while not cue.stopped():
        await asyncio.sleep(STOP_POLL_S)


async def _publish(
    client: Client, proxy: Proxy, at_ns: array[int], phase: float, stop: asyncio.Event
) -> None:
    assert proxy.contract.period_ns is not None
    period = proxy.contract.period_ns / 1e9
    due = time.monotonic() + phase * period
    number = 0
    while not stop.is_set():
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        now_ns = time.monotonic_ns()
        payload = BODY.pack(number, now_ns)
        at_ns.append(now_ns)
        await client.publish_many([Outgoing(topic, payload) for topic in proxy.topics])
        number += 1
        due = max(due + period, time.monotonic() - period)


def publish_mix(cue: Cue, addresses: list[str], proxies: list[Proxy], seed: int) -> Published:
    """Publishes until it is told to stop."""
    go_ahead()

    async def work() -> Published:
        rng, result, stop = random.Random(seed), Published(), asyncio.Event()
        clients = []
        async with AsyncExitStack() as stack:
            for proxy in proxies:
                client = await stack.enter_async_context(await connect(*addresses, client_id=proxy.name))
                client.declare(proxy.contract)
                result.redirects_ns[proxy.name] = watch_redirects(client)
                clients.append(client)
            cue.ready()
            async with asyncio.TaskGroup() as tasks:
                for client, proxy in zip(clients, proxies, strict=True):
                    at_ns = result.at_ns[proxy.name] = array("q")
                    tasks.create_task(_publish(client, proxy, at_ns, rng.random(), stop))
                await _until_stopped(cue)
                stop.set()
            result.unsent = sum(client.unsent for client in clients)
            await asyncio.sleep(STOP_POLL_S)
        return result

    return uvloop.run(work())


async def _receive(client: Client, contract: Contract, result: Received) -> None:
    numbers, late, worst = result.numbers, 0, 0
    unpack, clock = BODY.unpack, time.monotonic_ns
    async for messages in client.batches():
        now_ns = clock()
        for message in messages:
            number, made_ns = unpack(message.payload)
            numbers.setdefault(message.topic, array("q")).append(number)
            took_ns = now_ns - made_ns
            if took_ns > worst:
                worst = result.worst_ns[contract.name] = took_ns
            if took_ns > contract.deadline_ns:
                late = result.late[contract.name] = late + 1


def receive_mix(cue: Cue, addresses: list[str], contracts: list[Contract], qos: int) -> Received:
    """A subscriber for each category, until told to stop."""
    go_ahead()

    async def work() -> Received:
        result = Received()
        clients = []
        async with asyncio.TaskGroup() as tasks:
            for contract in contracts:
                client = await connect(
                    *addresses, client_id=f"subscriber-{contract.name}-{qos}", queue_max=QUEUE_MAX
                )
                result.redirects_ns[client.client_id] = watch_redirects(client)
                clients.append(client)
                await client.subscribe(*contract.topics, qos=qos)
                tasks.create_task(_receive(client, contract, result))
            cue.ready()
            await _until_stopped(cue)
            result.duplicates = sum(client.duplicates for client in clients)
            for client in clients:
                await client.disconnect()
        return result

    return uvloop.run(work())


@dataclass(frozen=True)
class Run:
    """Messages of one topic that were never delivered, `first` to `last`, and when the first was made."""

    topic: str
    category: str
    tolerated: int | None
    first: int
    last: int
    made_ns: int

    @property
    def length(self) -> int:
        return self.last - self.first + 1

    @property
    def broken(self) -> bool:
        return self.tolerated is not None and self.length > self.tolerated


@dataclass
class Account:
    """Published against received."""

    topics: int
    published: int
    delivered: int
    repeated: int
    disordered: int
    runs: list[Run]

    @property
    def lost(self) -> int:
        return sum(run.length for run in self.runs)

    def longest(self, category: str) -> int:
        return max((run.length for run in self.runs if run.category == category), default=0)

    @property
    def broken(self) -> list[Run]:
        return [run for run in self.runs if run.broken]


def settle_account(proxies: list[Proxy], published: list[Published], received: Received) -> Account:
    at_ns = {name: times for each in published for name, times in each.at_ns.items()}
    account = Account(0, 0, 0, 0, 0, [])
    for proxy in proxies:
        times = at_ns[proxy.name]
        for topic in proxy.topics:
            numbers = received.numbers.get(topic, array("q"))
            distinct = set(numbers)
            account.topics += 1
            account.published += len(times)
            account.delivered += len(distinct)
            account.repeated += len(numbers) - len(distinct)
            account.disordered += sum(later < earlier for earlier, later in pairwise(numbers))
            account.runs += _runs(proxy, topic, times, distinct)
    return account


def _runs(proxy: Proxy, topic: str, times: array[int], delivered: set[int]) -> list[Run]:
    contract = proxy.contract
    runs: list[Run] = []
    first: int | None = None
    for number in range(len(times) + 1):
        missing = number < len(times) and number not in delivered
        if missing and first is None:
            first = number
        elif not missing and first is not None:
            runs.append(Run(topic, contract.name, contract.loss_tolerance, first, number - 1, times[first]))
            first = None
    return runs
