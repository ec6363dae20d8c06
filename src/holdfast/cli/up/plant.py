"""A plant: a client for each contract, which publishes all its topics once a period, in one write.

Runs as a process of its own (`python -m holdfast.cli.up.plant SPEC`) until SIGTERM. It prints PlantNews as
JSON lines: when it begins, when its clients were moved to another primary, and at the end with the last
number of every topic, so that a loss at the very end is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
from collections.abc import Iterable

import msgspec

from holdfast.address import Address
from holdfast.cli.up.story import Moves, moves_of
from holdfast.client import Client, Outgoing, connect
from holdfast.contract.file import load_contracts
from holdfast.contract.model import Contract
from holdfast.errors import HoldfastError
from holdfast.units import S

TOPICS_PER_CONTRACT_MAX = 20
# A contract without a period is for rare alarms; in a example they are not that rare.
ALARM_PERIOD_NS = 1 * S
NEWS_S = 0.1
# What is unanswered when the plant is told to stop is given up after this.
STOP_S_MAX = 1.0
# The example says itself that no broker is there; its clients keep trying.
OUTAGE_S_MAX = 3600.0


class Stream(msgspec.Struct, frozen=True):
    """Topics that are published together."""

    name: str
    topics: list[str]
    period_ns: int
    qos: int


class PlantSpec(msgspec.Struct, frozen=True):
    addresses: list[Address]
    contracts: str


class PlantNews(msgspec.Struct, frozen=True):
    """`last` comes with the end: the last number of every topic by stream key."""

    moves: Moves
    last: dict[str, int] | None = None


def streams_of(contracts: Iterable[Contract]) -> list[Stream]:
    """A stream for each contract. Where nothing may be lost, the broker's answer is asked for (QoS 1)."""
    return [
        Stream(
            contract.name,
            topics_of(contract),
            contract.period_ns or ALARM_PERIOD_NS,
            1 if contract.loss_tolerance == 0 else 0,
        )
        for contract in contracts
    ]


def topics_of(contract: Contract) -> list[str]:
    """As many topics as the contract expects, up to a bound, from its filters in turn."""
    wanted = min(contract.count, TOPICS_PER_CONTRACT_MAX)
    names = (
        filter.replace("+", str(number)).replace("#", str(number))
        for number in range(1, wanted + 1)
        for filter in contract.topics
    )
    return list(dict.fromkeys(names))[:wanted]


def stream_key(publisher: str, topic: str) -> str:
    """Sequence numbers rise within a topic of a publisher."""
    return f"{publisher}/{topic}"


async def run_plant(spec: PlantSpec) -> None:
    """Publishes until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    contracts = load_contracts(spec.contracts).contracts
    async with contextlib.AsyncExitStack() as stack:
        clients: list[Client] = []
        for contract in contracts:
            client = await connect(
                *spec.addresses,
                client_id=f"plant-{contract.name}",
                answer_s_max=OUTAGE_S_MAX,
                outage_s_max=OUTAGE_S_MAX,
            )
            client.declare(contract)
            clients.append(await stack.enter_async_context(client))
        print_news(PlantNews(Moves()))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(tell_moves(clients))]
            for client, stream in zip(clients, streams_of(contracts), strict=True):
                tasks.append(group.create_task(_publish_periodically(client, stream, stop)))
            await stop.wait()
            tasks[0].cancel()
            await asyncio.wait(tasks, timeout=STOP_S_MAX)
            for task in tasks:
                task.cancel()
        last = {
            stream_key(client.publisher, topic): sequence
            for client in clients
            for topic, sequence in client.sequences.items()
        }
        print_news(PlantNews(moves_of(*clients), last))


async def tell_moves(clients: list[Client]) -> None:
    told = Moves()
    while True:
        await asyncio.sleep(NEWS_S)
        moves = moves_of(*clients)
        if moves.count > told.count:
            told = moves
            print_news(PlantNews(moves))


def print_news(news: PlantNews) -> None:
    print(msgspec.json.encode(news).decode(), flush=True)


async def _publish_periodically(client: Client, stream: Stream, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    next_s = loop.time()
    tick = 0
    while not stop.is_set():
        await client.publish_many(
            Outgoing(topic, reading(tick + place), stream.qos) for place, topic in enumerate(stream.topics)
        )
        tick += 1
        next_s = max(next_s + stream.period_ns / 1e9, loop.time())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(next_s):
                await stop.wait()


def reading(tick: int) -> bytes:
    """A value that a person sees moving."""
    return b"%.2f" % (20 + 5 * math.sin(tick / 20))


def main() -> None:
    import uvloop

    failure = ""
    try:
        uvloop.run(run_plant(msgspec.json.decode(sys.argv[1], type=PlantSpec)))
    except* HoldfastError as errors:
        failure = str(errors.exceptions[0])
    if failure:
        sys.exit(failure)


if __name__ == "__main__":
    main()
