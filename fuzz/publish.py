"""Any bytes as one PUBLISH: the broker's own reader, which makes no objects, against the codec's.

Laws that are checked:
- the broker accepts exactly what the codec accepts, less what no client may send or this broker does not take
- a subscriber receives what the codec read: topic, payload, RETAIN and every property but the alias
- it costs no more than UNITS units of work (holdfast/broker/work.py), REFUSED more if it is
  refused with words, and one for every BYTES_IN_UNIT bytes
"""

from __future__ import annotations

from fuzz.source import packet
from holdfast.broker.broker import Broker
from holdfast.broker.connection import Connection
from holdfast.config import Limits
from holdfast.contract.model import ContractBook
from holdfast.errors import PeerError
from holdfast.mqtt.codec import decode, split
from holdfast.mqtt.conventions import STAMP_PROPERTY, parse_stamp
from holdfast.mqtt.packets import Publish
from holdfast.mqtt.topics import levels
from holdfast.units import S

LIMITS = Limits(topic_levels_max=8, topic_alias_max=4, topics_max=1_000, retained_messages_max=100)
NOW_NS = 1_000 * S
CONNECT = {
    5: packet(0x10, b"\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01p"),
    4: packet(0x10, b"\x00\x04MQTT\x04\x02\x00\x00\x00\x01p"),
}
SUBSCRIBER = packet(0x10, b"\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01s")
SUBSCRIBE = packet(0x82, b"\x00\x01\x00\x00\x01#\x08")  # QoS 0, RETAIN as published
RUNS_PER_BROKER = 500
TIMES_MAX = 20  # see budget.py
UNITS = 4  # contract and routes of a new topic
REFUSED = 24
BYTES_IN_UNIT = 64


class World:
    """A broker with one subscriber to everything. Every execution has a publisher of its own."""

    def __init__(self) -> None:
        self.runs = 0
        self.mistakes: list[object] = []
        self.stamped: set[tuple[str, str]] = set()
        self.broker = Broker(ContractBook(limits=LIMITS), seed=1, now_ns=NOW_NS * 2, event=self.heard)
        self.subscriber = self.connect(SUBSCRIBER)
        self.subscriber.feed(SUBSCRIBE, NOW_NS, NOW_NS)
        self.turn()
        self.subscriber.take_output()

    def heard(self, event: str, details: dict[str, object]) -> None:
        if event == "mistake":
            self.mistakes.append(details)

    def connect(self, hello: bytes) -> Connection:
        connection = self.broker.open(None, NOW_NS)
        assert connection is not None
        connection.feed(hello, NOW_NS, NOW_NS)
        self.turn()
        return connection

    def turn(self) -> None:
        while self.broker.turn(NOW_NS, NOW_NS) or self.broker.core.board.waiting:
            self.broker.core.board.take_ready()
        assert not self.mistakes, self.mistakes[0]


shared: list[World] = []


def run(data: bytes) -> int:
    """One execution: the first byte gives version and flags, the rest is the body."""
    if not data:
        return 0
    if not shared or shared[0].runs == RUNS_PER_BROKER:
        shared[:] = [World()]
    world = shared[0]
    world.runs += 1
    version = 5 if data[0] & 1 else 4
    first, body = 0x30 | data[0] >> 1 & 15, data[1:]
    publisher = world.connect(CONNECT[version])
    core = world.broker.core
    left, refused = core.work_left, core.messages_refused
    publisher.feed(packet(first, body), NOW_NS, NOW_NS)
    units = left - core.work_left
    may = UNITS + REFUSED * (core.messages_refused - refused) + len(body) // BYTES_IN_UNIT
    assert units <= may, f"{units} units for {len(body)} bytes"
    accepted = publisher.fault is None
    world.turn()
    received = world.subscriber.take_output()
    world.broker.lost(publisher, NOW_NS)
    publish = read(first, body, version)
    if not isinstance(publish, str) and known(world, publish) and not received:
        return len(data)
    compare(publish, accepted, received)
    return len(data)


def known(world: World, publish: Publish) -> bool:
    """Whether a message of that publisher and topic came before: then this one may be a repetition."""
    stamps = [parse_stamp(value) for name, value in publish.properties.user if name == STAMP_PROPERTY]
    streams = {(publish.topic, stamp.publisher) for stamp in stamps if stamp is not None}
    repeated = not streams.isdisjoint(world.stamped)
    world.stamped |= streams
    return repeated


def read(first: int, body: bytes, version: int) -> Publish | str:
    """The PUBLISH as the codec reads it, or why it is none or this broker does not take it."""
    try:
        publish = decode(first, body, version)
    except PeerError as refusal:
        return refusal.text
    assert isinstance(publish, Publish)
    if publish.properties.subscription_ids:
        return "a client sends no subscription identifiers"
    if (publish.properties.topic_alias or 0) > LIMITS.topic_alias_max:
        return "the alias is larger than the broker takes"
    if not publish.topic:
        return "the alias is not announced"
    if levels(publish.topic) > LIMITS.topic_levels_max:
        return "the topic has too many levels"
    return publish


def compare(publish: Publish | str, accepted: bool, received: bytes) -> None:
    if isinstance(publish, str):
        assert not accepted, f"the broker accepts what the codec refuses: {publish}"
        return
    assert accepted, f"the broker refuses what the codec accepts: {publish}"
    if publish.topic.startswith("$") or publish.properties.message_expiry == 0:
        assert not received, "a message reached a subscriber that it is not for"
        return
    frame = split(received)
    assert frame is not None, f"nobody received {publish}"
    assert frame[2] == len(received), "the subscriber received more than one message"
    delivered = decode(frame[0], received[frame[1] : frame[2]], 5)
    publish.properties.topic_alias = None
    expected = Publish(publish.topic, publish.payload, retain=publish.retain, properties=publish.properties)
    assert delivered == expected, f"{delivered} was delivered for {expected}"
