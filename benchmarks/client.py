"""CPU of our client for a message: published in batches, and received one by one or in batches.

The whole way counts: the user's object, stamp, encoding, retention and the write; or the read, decoding,
order and handing over. Once against a broker in its own process, once without sockets. A turn's figure is
process time; the verdict takes the best turn, because whatever else runs here only makes one worse.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine
from itertools import cycle
from typing import Any

import uvloop

from holdfast.client import Client, Outgoing, connect
from holdfast.contract.file import parse_contracts
from holdfast.endpoint import Endpoint, EndpointConfig
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import Connack

from .brokers import Broker, running
from .contracts import Contracts, plant
from .load import BATCH, PAYLOAD, stamped_stream
from .measure import Aside, Cue, aside, spread, take_turns
from .report import Outcome, Table, Verdict
from .stage import EVERYTHING, Run
from .wires import Mqtt

TOPICS = 1_000
WINDOW = 5_000
READ_BYTES = 65_536
PUBLISH_US_MAX = 1.0
RECEIVE_US_MAX = 1.5
ADDRESS = ("127.0.0.1", 1883)

Turn = Callable[[], float]


def batches(contracts: Contracts, qos: int) -> list[list[tuple[str, int]]]:
    topics = contracts.topics()
    return [[(topic, qos) for topic in topics[at : at + BATCH]] for at in range(0, TOPICS, BATCH)]


def published(batch: list[tuple[str, int]]) -> list[Outgoing]:
    """What a user makes for each write; its cost is part of the figure."""
    return [Outgoing(topic, PAYLOAD, qos) for topic, qos in batch]


def us_each(begin_ns: int, messages: int) -> float:
    return (time.process_time_ns() - begin_ns) / messages / 1e3


def in_loop(work: Callable[[], Coroutine[Any, Any, float]]) -> Turn:
    return lambda: uvloop.run(work())


# -- against a broker ----------------------------------------------------------------------------------------


def publish_to(broker: Broker, contracts: Contracts, qos: int, seconds: float) -> Turn:
    async def work() -> float:
        async with await connect(("127.0.0.1", broker.port)) as client:
            client.declare(*parse_contracts(contracts.toml(), source="benchmark").contracts)
            rounds = batches(contracts, qos)
            for batch in rounds:
                await client.publish_many(published(batch))
            messages, begin, end = 0, time.process_time_ns(), time.monotonic() + seconds
            for batch in cycle(rounds):
                await client.publish_many(published(batch))
                messages += BATCH
                if time.monotonic() >= end:
                    return us_each(begin, messages)
        raise AssertionError("cycle never ends")

    return in_loop(work)


def feed(cue: Cue, broker: Broker, contracts: Contracts) -> None:
    """Publishes a window of messages for every word from the receiver, until it says stop."""
    wire = Mqtt(5)
    writes = stamped_stream(wire, contracts.topics()).writes
    with broker.connect() as sock:
        wire.open(sock, "feed")
        cue.ready()
        while cue.pipe.recv() != "stop":
            for _ in range(WINDOW // BATCH):
                sock.sendall(next(writes))


async def take_singly(client: Client, wanted: int) -> None:
    left = wanted
    async for _message in client:
        left -= 1
        if not left:
            return


async def take_batches(client: Client, wanted: int) -> None:
    left = wanted
    async for messages in client.batches():
        left -= len(messages)
        if not left:
            return


def receive_from(
    broker: Broker,
    feeder: Aside,
    take: Callable[[Client, int], Coroutine[Any, Any, None]],
    seconds: float,
) -> Turn:
    async def work() -> float:
        async with await connect(("127.0.0.1", broker.port), queue_max=2 * WINDOW) as client:
            await client.subscribe(EVERYTHING)
            feeder.ours.send("more")
            await take(client, WINDOW)
            messages, begin, end = 0, time.process_time_ns(), time.monotonic() + seconds
            while time.monotonic() < end:
                feeder.ours.send("more")
                await take(client, WINDOW)
                messages += WINDOW
            return us_each(begin, messages)

    return in_loop(work)


# -- without sockets -----------------------------------------------------------------------------------------


def alone_endpoint() -> Endpoint:
    endpoint = Endpoint(
        EndpointConfig(addresses=(ADDRESS,), queue_max=WINDOW), token="t", rng=random.Random(1), now_ns=0
    )
    endpoint.take_dials()
    endpoint.opened(ADDRESS, 0)
    endpoint.received(ADDRESS, encode(Connack(), 5), 0, time.time_ns())
    endpoint.take_output()
    return endpoint


def publish_alone(contracts: Contracts, seconds: float) -> Turn:
    def turn() -> float:
        endpoint = alone_endpoint()
        for contract in parse_contracts(contracts.toml(), source="benchmark").contracts:
            for topic_filter in contract.topics:
                endpoint.declare(topic_filter, contract)
        messages, begin, end = 0, time.process_time_ns(), time.monotonic() + seconds
        for batch in cycle(batches(contracts, 0)):
            endpoint.publish_many(published(batch), now_ns=0, wall_ns=time.time_ns())
            endpoint.take_output()
            messages += BATCH
            if time.monotonic() >= end:
                return us_each(begin, messages)
        raise AssertionError("cycle never ends")

    return turn


def receive_alone(contracts: Contracts, seconds: float) -> Turn:
    def turn() -> float:
        endpoint = alone_endpoint()
        writes = stamped_stream(Mqtt(5), contracts.topics()).writes
        messages, spent, end = 0, 0, time.monotonic() + seconds
        while time.monotonic() < end:
            data = b"".join(next(writes) for _ in range(WINDOW // BATCH))
            chunks = [data[at : at + READ_BYTES] for at in range(0, len(data), READ_BYTES)]
            begin = time.process_time_ns()
            for chunk in chunks:
                endpoint.received(ADDRESS, chunk, 0, time.time_ns())
                while endpoint.take_message() is not None:
                    messages += 1
            spent += time.process_time_ns() - begin
        return spent / messages / 1e3

    return turn


# -- the whole -----------------------------------------------------------------------------------------------


def client(run: Run) -> Outcome:
    contracts = plant(TOPICS)
    with running("holdfast", contracts) as broker, aside(feed, broker, contracts) as feeder:
        feeder.await_ready()
        publish = "publish, batches of 50"
        receive = "receive, one by one"
        turns: dict[str, Turn] = {
            publish: publish_to(broker, contracts, 0, run.seconds),
            receive: receive_from(broker, feeder, take_singly, run.seconds),
            "receive, in batches": receive_from(broker, feeder, take_batches, run.seconds),
            "publish with QoS 1, each batch answered": publish_to(broker, contracts, 1, run.seconds),
            "publish without sockets": publish_alone(contracts, run.seconds),
            "receive without sockets": receive_alone(contracts, run.seconds),
        }
        figures = take_turns(turns, run.turns, lambda name: turns[name]())
    rows = [(name, f"{min(each):.2f}", spread(each).show("{:.2f}")) for name, each in figures.items()]
    note = (
        f"{len(PAYLOAD)}-byte payload, {TOPICS:,} topics with contracts, {BATCH} messages a write, stamped; "
        "uvloop; process time, the user's own objects included"
    )
    return Outcome(
        [Table("client: CPU µs/message", ("", "best", "median (lowest–highest)"), rows, (note,))],
        [
            _verdict("client CPU per message published in batches of 50", PUBLISH_US_MAX, figures[publish]),
            _verdict("client CPU per message received", RECEIVE_US_MAX, figures[receive]),
        ],
        {"us": figures},
    )


def _verdict(what: str, most: float, figures: list[float]) -> Verdict:
    best = min(figures)
    return Verdict(what, f"at most {most:g} µs", f"{best:.2f} µs", best <= most)
