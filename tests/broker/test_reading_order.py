"""What was read first takes effect first, whichever connection it came on.

A model reads the same packets one after the other. The broker is fed them on several connections, in pieces
that end anywhere, with turns anywhere in between; each subscriber must get what the model gives it, once.
What it may get besides is another's, read between the same two turns as its SUBSCRIBE or UNSUBSCRIBE.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.broker.bench import WALL_NS, Bench, Client, book, contract

from holdfast.broker.connection import Connection
from holdfast.broker.recorder import Granted, Recorder
from holdfast.broker.work import ASIDE_PER_TURN, FILTER, READ_AT_ONCE
from holdfast.config import Limits
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import (
    Disconnect,
    Packet,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from holdfast.mqtt.topics import matches

FILTERS = ("a/1", "a/2", "a/+", "b/1", "#")
TOPICS = ("a/1", "a/2", "b/1")
CLIENTS = 3
# One of the contracts is far more urgent: messages are not dispatched in the order in which they came.
CONTRACTS = (contract("a", "a/+", "100ms", 3), contract("b", "b/+", "10ms", 3))


@dataclass
class Model:
    """Everything happens when it is read."""

    subscribed: list[set[str]] = field(default_factory=lambda: [set() for _ in range(CLIENTS)])
    lately: list[set[str]] = field(default_factory=lambda: [set() for _ in range(CLIENTS)])
    due: list[set[bytes]] = field(default_factory=lambda: [set() for _ in range(CLIENTS)])
    together: list[tuple[int, str, bytes]] = field(default_factory=list)
    allowed: list[set[bytes]] = field(default_factory=lambda: [set() for _ in range(CLIENTS)])

    def turn(self) -> None:
        for client, (lately, allowed) in enumerate(zip(self.lately, self.allowed, strict=True)):
            allowed |= self.due[client]
            for publisher, topic, payload in self.together:
                if publisher != client and any(matches(each.encode(), topic.encode()) for each in lately):
                    allowed.add(payload)
            lately.clear()
            lately |= self.subscribed[client]
        self.together.clear()

    def read(self, client: int, packet: Packet) -> None:
        match packet:
            case Subscribe():
                self.subscribed[client] |= {each.filter for each in packet.subscriptions}
                self.lately[client] |= self.subscribed[client]
            case Unsubscribe():
                self.subscribed[client] -= set(packet.filters)
            case Publish():
                self.together.append((client, packet.topic, packet.payload))
                for filters, due in zip(self.subscribed, self.due, strict=True):
                    if any(matches(filter.encode(), packet.topic.encode()) for filter in filters):
                        due.add(packet.payload)


def subscribe(*filters: str, packet_id: int = 1, **options: object) -> Subscribe:
    wanted = [Subscription(filter=filter, qos=0) for filter in filters]
    return Subscribe(packet_id=packet_id, subscriptions=wanted, **options)


SAID = st.one_of(
    st.lists(st.sampled_from(FILTERS), min_size=1, max_size=2, unique=True).map(
        lambda each: subscribe(*each)
    ),
    st.sampled_from(FILTERS).map(lambda each: Unsubscribe(packet_id=1, filters=[each])),
    st.sampled_from(TOPICS).map(lambda each: Publish(topic=each, payload=b"")),
    st.sampled_from(TOPICS).map(lambda each: Publish(topic=each, payload=b"")),
)
# A client says something, in so many bytes of the last piece; or there is a turn.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, CLIENTS - 1), st.lists(SAID, min_size=1, max_size=4), st.integers(0, 12)),
        st.just(None),
    ),
    max_size=30,
)


class Late(Recorder):
    """A group in which every grant waits until it is settled."""

    asked_at_once = False

    def __init__(self) -> None:
        self.waits: list[Granted] = []

    def confirm(self, depth: int, granted: Granted) -> bool:
        self.waits.append(granted)
        return True

    def settle(self, why_not: str = "") -> None:
        waits, self.waits = self.waits, []
        for granted in waits:
            granted(why_not)


def unlimited(bench: Bench) -> None:
    """What is read between two turns of these tests is bounded by the tests."""
    bench.broker.core.work_left = 10**6


def turn(bench: Bench) -> None:
    bench.turn()
    unlimited(bench)


def said(topic: str) -> Publish:
    return Publish(topic=topic, payload=b"")


def given_up(filter: str) -> Unsubscribe:
    return Unsubscribe(packet_id=1, filters=[filter])


# Routes are looked up before a turn; what is read after it is not for who unsubscribed before it.
LEFT_BEFORE_A_TURN: list[tuple[int, list[Packet], int] | None] = [
    (0, [given_up("a/1")], 1),
    (1, [subscribe("a/1"), given_up("a/1"), said("a/1"), said("a/1")], 0),
    None,
    (0, [said("a/1")], 0),
]


@settings(max_examples=300, deadline=None)
@given(steps=STEPS, slice_jobs=st.sampled_from([1, 2, 1000]), late=st.booleans())
@example(steps=LEFT_BEFORE_A_TURN, slice_jobs=1, late=True)
def test_any_interleaving_gives_what_reading_one_after_the_other_gives(
    steps: list[tuple[int, list[Packet], int] | None], slice_jobs: int, late: bool
) -> None:
    bench = Bench(book(*CONTRACTS, limits=Limits(slice_jobs_max=slice_jobs)))
    recorder = Late()
    if late:
        bench.broker.recorder = recorder
    clients = [bench.client(f"c{index}") for index in range(CLIENTS)]
    model = Model()
    unread = [b""] * CLIENTS
    waiting: list[list[Packet]] = [[] for _ in range(CLIENTS)]
    unlimited(bench)
    count = 0
    for step in steps:
        if step is None:
            turn(bench)
            model.turn()
            recorder.settle()
            continue
        index, packets, kept = step
        for packet in packets:
            if isinstance(packet, Publish):
                count += 1
                packet = Publish(topic=packet.topic, payload=b"%d" % count)
            waiting[index].append(packet)
            unread[index] += encode(packet, 5)
        cut = max(0, len(unread[index]) - kept)
        data, unread[index] = unread[index][:cut], unread[index][cut:]
        clients[index].send_bytes(data)
        read_all(model, index, waiting[index], len(unread[index]))
    for index, client in enumerate(clients):
        client.send_bytes(unread[index])
        read_all(model, index, waiting[index], 0)
    for _ in range(3):
        bench.run()
        recorder.settle()
    bench.run()
    model.turn()
    for index, client in enumerate(clients):
        got = [packet.payload for packet in client.got if isinstance(packet, Publish)]
        assert len(got) == len(set(got))
        assert model.due[index] <= set(got) <= model.allowed[index]
        asked = sum(isinstance(packet, Suback | Unsuback) for packet in client.got)
        assert client.connection.unanswered == 0
        assert asked == answers_due(steps, index)
    assert bench.broker.core.ended == []


def read_all(model: Model, client: int, waiting: list[Packet], bytes_left: int) -> None:
    """The model reads what is whole by now."""
    sizes = [len(encode(packet, 5)) for packet in waiting]
    while waiting and sum(sizes) > bytes_left and sum(sizes[1:]) >= bytes_left:
        model.read(client, waiting.pop(0))
        sizes.pop(0)


def answers_due(steps: list[tuple[int, list[Packet], int] | None], client: int) -> int:
    said = [packet for step in steps if step is not None and step[0] == client for packet in step[1]]
    return sum(not isinstance(packet, Publish) for packet in said)


# What a grant that comes later, or never, leaves behind


def late_bench() -> tuple[Bench, Late]:
    bench = Bench(book(*CONTRACTS))
    bench.broker.recorder = recorder = Late()
    return bench, recorder


def payloads(client: Client) -> list[bytes]:
    return [packet.payload for packet in client.messages()]


def test_a_subscription_is_in_force_while_its_suback_waits() -> None:
    bench, recorder = late_bench()
    subscriber, publisher = bench.client("s"), bench.client("p")
    subscriber.send(subscribe("a/1"))
    publisher.publish("a/1", b"x")
    bench.run()
    assert payloads(subscriber) == [b"x"]
    recorder.settle()
    bench.run()
    (answer,) = subscriber.take()
    assert isinstance(answer, Suback)
    assert answer.reasons == [0]


@settings(max_examples=200, deadline=None)
@given(
    said=st.lists(st.sampled_from([0, 1, 2, None]), min_size=1, max_size=6),
    granted=st.lists(st.booleans(), min_size=6, max_size=6),
    order=st.permutations(range(6)),
)
def test_a_refusal_after_a_while_leaves_what_was_before(
    said: list[int | None], granted: list[bool], order: list[int]
) -> None:
    """A client subscribes with some QoS, or unsubscribes (None); grants come later, in any order."""
    bench, recorder = late_bench()
    subscriber = bench.client("s")
    for qos in said:
        if qos is None:
            subscriber.send(Unsubscribe(packet_id=1, filters=["a/1"]))
        else:
            wanted = [Subscription(filter="a/1", qos=qos)]
            subscriber.send(Subscribe(packet_id=1, subscriptions=wanted))
        bench.run()
    waits, recorder.waits = recorder.waits, []
    for index in order:
        if index < len(waits):
            waits[index]("" if granted[index] else "no")
    bench.run()
    expected: int | None = None
    grants = iter(granted)
    for qos in said:
        if qos is None:
            expected = None
        elif next(grants):
            expected = qos
    session = bench.broker.clients.sessions["s"]
    found = session.subscriptions.get("a/1")
    assert (None if found is None else found.qos) == expected
    assert len(bench.broker.core.tree) == len(session.subscriptions)
    assert bench.broker.subscribing._replaced == {}


def test_a_retained_message_comes_once_whenever_it_was_published() -> None:
    bench, recorder = late_bench()
    subscriber, publisher = bench.client("s"), bench.client("p")
    publisher.publish("a/1", b"before", retain=True)
    publisher.publish("a/2", b"replaced", retain=True)
    bench.run()
    publisher.publish("b/1", b"together", retain=True)
    subscriber.send(subscribe("#"))
    publisher.publish("a/2", b"after", retain=True)
    bench.run()
    assert sorted(payloads(subscriber)) == [b"after", b"together"]
    recorder.settle()
    bench.run()
    assert payloads(subscriber) == [b"before"]


def test_nothing_retained_comes_of_what_is_refused() -> None:
    bench, recorder = late_bench()
    subscriber = bench.client("s")
    subscriber.publish("a/1", b"kept", retain=True)
    bench.run()
    subscriber.send(subscribe("a/1"))
    bench.run()
    recorder.settle("no")
    bench.run()
    (answer,) = subscriber.take()
    assert isinstance(answer, Suback)
    assert answer.reasons == [0x97]


def test_a_client_that_leaves_before_its_suback_has_what_it_was_granted() -> None:
    bench, recorder = late_bench()
    forever = {"clean_start": False, "properties": Properties(session_expiry=1000)}
    for name, why_not in (("granted", ""), ("refused", "no")):
        client = bench.client(name, **forever)
        client.say(subscribe("a/1"), Disconnect())
        recorder.settle(why_not)
        bench.run()
    sessions = bench.broker.clients.sessions
    assert list(sessions["granted"].subscriptions) == ["a/1"]
    assert list(sessions["refused"].subscriptions) == []


def test_a_session_that_ends_before_its_suback_leaves_nothing() -> None:
    bench, recorder = late_bench()
    client = bench.client("c")
    client.say(subscribe("a/1"), subscribe("a/1"), Disconnect())
    recorder.settle("no")
    bench.run()
    assert len(bench.broker.core.tree) == 0
    assert bench.broker.subscribing._replaced == {}


# Bounds


def test_a_flood_of_subscribes_is_answered_whole_and_messages_go_on() -> None:
    """What one client asks in a row is put aside beyond a bound, and costs each turn a bounded piece."""
    bench = Bench(book(*CONTRACTS))
    flood, subscriber, publisher = bench.client("f"), bench.client("s"), bench.client("p")
    subscriber.subscribe("b/1")
    count = 10 * READ_AT_ONCE // FILTER
    flood.send(*[subscribe(f"a/{number}", packet_id=number + 1) for number in range(count)])
    at_once = len(flood.connection.session.subscriptions)
    assert 0 < at_once <= READ_AT_ONCE // FILTER
    publisher.publish("b/1", b"x")
    bench.turn()
    assert payloads(subscriber) == [b"x"]
    assert 0 < len(flood.connection.session.subscriptions) - at_once <= ASIDE_PER_TURN // FILTER
    bench.run()
    answers = [packet.packet_id for packet in flood.take() if isinstance(packet, Suback)]
    assert answers == list(range(1, count + 1))


@pytest.mark.parametrize(("filters", "at_once"), [(1, 256), (100, 3), (255, 2), (256, 1), (300, 1)])
def test_a_connection_has_a_bounded_number_of_filters_to_be_answered(filters: int, at_once: int) -> None:
    """So many are in force while a slow heir is waited for: small SUBSCRIBEs are as good as a large one."""
    bench, recorder = late_bench()
    client = bench.client("c")
    count = at_once + 10
    asked = [
        subscribe(*[f"a/{number}/{each}" for each in range(filters)], packet_id=number + 1)
        for number in range(count)
    ]
    client.send(*asked, Publish("a/1/0", b"x"))
    bench.run()
    assert len(recorder.waits) == at_once
    assert len(client.connection.session.subscriptions) == at_once * filters
    for _ in range(count):
        recorder.settle()
        bench.run()
    got = client.take()
    assert [packet.packet_id for packet in got if isinstance(packet, Suback)] == list(range(1, count + 1))
    assert [packet.payload for packet in got if isinstance(packet, Publish)] == [b"x"]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_fault_behind_a_subscribe_ends_the_connection_once(cut: int) -> None:
    """What is pending is let go of while it is looked at."""
    bench = Bench()
    client = bench.client("c")
    bad = Subscribe(packet_id=1, subscriptions=[Subscription(filter="a/1", qos=0)])
    data = encode(bad, 5) + b"\x82\x02\x00\x01" + encode(bad, 5)
    client.send_bytes(data[:cut])
    client.send_bytes(data[cut:])
    bench.run()
    assert client.connection.closing
    assert client.connection not in bench.broker.connections
    assert [type(packet) for packet in client.take()] == [Suback, Disconnect]


# Shared subscriptions


def test_who_joins_a_shared_group_takes_nothing_of_what_came_before() -> None:
    bench = Bench(book(*CONTRACTS))
    old, new, publisher = bench.client("old"), bench.client("new"), bench.client("p")
    old.subscribe("$share/g/a/+")
    for number in range(4):
        publisher.publish("a/1", b"%d" % number)
    bench.broker.core.deliver(1)
    new.send(subscribe("$share/g/a/+"))
    for number in range(4, 8):
        publisher.publish("a/1", b"%d" % number)
    bench.run()
    had, has = payloads(old), payloads(new)
    assert sorted(had + has) == [b"%d" % number for number in range(8)]
    assert len(has) == 2
    assert min(has) >= b"4"


def test_what_was_read_before_an_unsubscribe_still_comes_and_no_more() -> None:
    bench = Bench(book(*CONTRACTS, limits=Limits(slice_jobs_max=1)))
    subscriber, publisher = bench.client("s"), bench.client("p")
    subscriber.subscribe("a/1")
    for number in range(200):
        publisher.publish("a/1", b"%d" % number)
    subscriber.send(Unsubscribe(packet_id=1, filters=["a/1"]))
    bench.turn()
    assert len(bench.broker.core.ended) == 1
    publisher.publish("a/1", b"too late")
    bench.run()
    *messages, answer = subscriber.take()
    assert isinstance(answer, Unsuback)
    assert [packet.payload for packet in messages if isinstance(packet, Publish)] == [
        b"%d" % number for number in range(200)
    ]
    assert bench.broker.core.ended == []


def test_a_session_that_ended_gets_nothing_of_what_it_had_given_up() -> None:
    bench = Bench(book(*CONTRACTS, limits=Limits(slice_jobs_max=1)))
    subscriber, publisher = bench.client("s"), bench.client("p")
    subscriber.subscribe("a/1")
    for number in range(200):
        publisher.publish("a/1", b"%d" % number)
    subscriber.send(Unsubscribe(packet_id=1, filters=["a/1"]))
    connection: Connection = subscriber.connection
    bench.broker.lost(connection, bench.now_ns)
    assert bench.broker.core.ended == []
    bench.broker.turn(bench.now_ns, WALL_NS + bench.now_ns)
    bench.run()
