"""Connected publishers and subscribers, and the run that a benchmark is given.

Before anything is measured, one write is published and what arrives is compared byte by byte: a broker that
delivers something else than what was published is fast for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .brokers import INFLIGHT_MAX, Broker
from .load import (
    BATCH,
    PAYLOAD,
    Acknowledger,
    Counter,
    Generator,
    Stream,
    acknowledged_stream,
    plain_stream,
)
from .wires import Mqtt, Refused, read_exactly

EVERYTHING = "plant/#"
WINDOW = 5_000
RECEIVE_BUFFER_BYTES = 4 << 20


@dataclass(frozen=True)
class Run:
    """What the command line asked for."""

    names: list[str]
    quick: bool
    before: Path | None = None

    def among(self, *wanted: str) -> list[str]:
        return [name for name in self.names if name in wanted]

    @property
    def turns(self) -> int:
        return 3 if self.quick else 7

    @property
    def seconds(self) -> float:
        """How long one contestant's turn lasts."""
        return 0.25 if self.quick else 1.0


def generator(
    broker: Broker,
    topics: list[str],
    make: Callable[..., Stream] = plain_stream,
    *,
    purpose: str = "plain",
    subscribers: int = 1,
    window: int = WINDOW,
    wanted: str = EVERYTHING,
) -> Generator:
    """A QoS 0 publisher and its subscribers."""
    wire = broker.wire(purpose)
    stream = make(wire, topics)
    receivers = []
    for number in range(subscribers):
        sock = broker.connect(RECEIVE_BUFFER_BYTES)
        wire.open(sock, f"subscriber-{number}")
        wire.subscribe(sock, [wanted])
        receivers.append(Counter(sock, stream.delivered_bytes, wire.keeps_alive))
    publisher = broker.connect()
    wire.open(publisher, "publisher")
    return Generator(
        broker,
        publisher,
        stream,
        list(receivers),
        window=min(window, broker.kind.window_max),
        subscribers=subscribers,
    )


def acknowledged_generator(broker: Broker, topics: list[str]) -> Generator:
    """A QoS 1 publisher that takes its PUBACKs, and a QoS 1 subscriber that sends them."""
    wire = broker.wire("qos1")
    assert isinstance(wire, Mqtt)
    subscriber = broker.connect(RECEIVE_BUFFER_BYTES)
    wire.open(subscriber, "subscriber", INFLIGHT_MAX)
    wire.subscribe(subscriber, [EVERYTHING], qos=1)
    publisher = broker.connect()
    window = min(INFLIGHT_MAX, broker.kind.window_max, wire.open(publisher, "publisher").receive_max)
    if window < BATCH:
        raise Refused(f"{broker.name} allows {window} messages under way, a write has {BATCH}")
    stream = acknowledged_stream(wire, topics)
    deliveries = Acknowledger(subscriber, stream.delivered_bytes, wire.packet_id_at(topics[0]))
    puback_bytes = 4
    return Generator(broker, publisher, stream, [deliveries, Counter(publisher, puback_bytes)], window=window)


def check_delivery(
    broker: Broker, topics: list[str], purpose: str = "plain", stamp: bytes | None = None
) -> None:
    """One write of BATCH messages arrives complete and unchanged, in whatever order."""
    wire = broker.wire(purpose)
    expected = [wire.delivered(topic, PAYLOAD, stamp=stamp) for topic in topics[:BATCH]]
    size = len(expected[0])
    with broker.connect() as subscriber, broker.connect() as publisher:
        wire.open(subscriber, "check-subscriber")
        wire.subscribe(subscriber, [EVERYTHING])
        wire.open(publisher, "check-publisher")
        publisher.sendall(b"".join(wire.publish(topic, PAYLOAD, stamp=stamp) for topic in topics[:BATCH]))
        stream = read_exactly(subscriber, size * BATCH)
    arrived = [stream[at : at + size] for at in range(0, len(stream), size)]
    if sorted(arrived) != sorted(expected):
        odd = next(packet for packet in arrived if packet not in expected)
        raise Refused(f"{broker.name} delivered {odd!r}, which nobody published")
