"""A plant: a connection for each contract, which publishes all its topics once a period, in one write.

Runs as a process of its own (`python -m holdfast.cli.demo.plant SPEC`) until SIGTERM. It says when it
begins; at the end, as JSON, the last number of every topic, so that a loss at the very end is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
from collections.abc import Iterable

import msgspec

from holdfast.client import Client, Outgoing, connect
from holdfast.contract.file import load_contracts
from holdfast.contract.model import Contract
from holdfast.errors import HoldfastError
from holdfast.units import S

TOPICS_PER_CONTRACT_MAX = 20
# A contract without a period is for rare alarms; in a demonstration they are not that rare.
ALARM_PERIOD_NS = 1 * S


class Stream(msgspec.Struct, frozen=True):
    """Topics that are published together."""

    name: str
    topics: list[str]
    period_ns: int
    qos: int


class PlantSpec(msgspec.Struct, frozen=True):
    """`brokers` are the members of a group, `host:port` each; `contracts` says how much publishers retain."""

    brokers: list[str]
    contracts: str
    streams: list[Stream]


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


async def run_plant(spec: PlantSpec) -> dict[str, int]:
    """Publishes until SIGTERM; returns the last number of every topic by stream key."""
    book = load_contracts(spec.contracts)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        clients: list[Client] = []
        for stream in spec.streams:
            client = await connect(*spec.brokers, client_id=f"plant-{stream.name}")
            client.declare(*book.contracts)
            clients.append(await stack.enter_async_context(client))
        print("publishing", flush=True)
        async with asyncio.TaskGroup() as group:
            for client, stream in zip(clients, spec.streams, strict=True):
                group.create_task(_publish_periodically(client, stream, stop))
        return {
            stream_key(client.publisher, topic): sequence
            for client in clients
            for topic, sequence in client.sequences.items()
        }


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

    published: dict[str, int] = {}
    failure = ""
    try:
        published = uvloop.run(run_plant(msgspec.json.decode(sys.argv[1], type=PlantSpec)))
    except* HoldfastError as errors:
        failure = str(errors.exceptions[0])
    if failure:
        sys.exit(failure)
    print(msgspec.json.encode(published).decode(), flush=True)


if __name__ == "__main__":
    main()
