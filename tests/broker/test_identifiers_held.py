"""Packet identifiers in use have a weight, and nobody fills the broker with them."""

from __future__ import annotations

import pytest
from tests.broker.bench import Bench, Client, book

from holdfast.broker.holdings import session_weight
from holdfast.broker.session import Session
from holdfast.broker.subscriptions import NODE_WEIGHT, weight_of
from holdfast.config import Limits
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)

KEPT = Properties(session_expiry=3600)
QUOTA_EXCEEDED = 0x97
ROOM = 40_000
MANY = 3000
FLIGHT = 24  # bytes
WORDS = "there is no room for one more QoS 2 message that is not released"


def limited(room: int = ROOM) -> Bench:
    return Bench(book(limits=Limits(sessions_bytes_max=room, receive_max=65_535)))


def session_of(bench: Bench, client_id: str) -> Session:
    return bench.broker.clients.sessions[client_id]


def publish(client: Client, first: int, many: int) -> list[int]:
    """QoS 2 messages that are not released; the reasons of their PUBRECs."""
    client.say(*[Publish("q/2", b"", qos=2, packet_id=first + number) for number in range(many)])
    return [packet.reason for packet in client.take() if isinstance(packet, Pubrec)]


def comes(bench: Bench, client_id: str) -> Client | None:
    connection = bench.broker.open(None, bench.now_ns)
    assert connection is not None
    client = bench.clients[connection] = Client(bench, connection)
    client.say(Connect(client_id=client_id, clean_start=False, properties=KEPT))
    answer = client.take()[0]
    assert isinstance(answer, Connack)
    assert answer.reason in (0, QUOTA_EXCEEDED)
    return None if answer.reason else client


@pytest.mark.parametrize("many", [1, 8, 9, 1000, 2048, 2049, MANY])
def test_what_a_session_holds_is_in_its_weight_until_it_is_released(many: int) -> None:
    bench = limited(10**8)
    client = bench.client("p", properties=KEPT)
    before = bench.broker.holdings.total
    assert publish(client, 1, many) == [0x10] * many
    session = session_of(bench, "p")
    assert session.received is not None
    assert bench.broker.holdings.total == session.weight == before + session.received.weight
    client.say(*[Pubrel(1 + number) for number in range(many)])
    assert bench.broker.holdings.total == session.weight == before + session.received.weight
    assert session.received.weight < 100
    bench.broker.clients.end(session, bench.now_ns)
    bench.run()
    assert bench.broker.holdings.total == 0


def test_who_holds_too_many_is_refused_more_in_words_and_others_are_not() -> None:
    bench = limited(15_000)
    greedy, other = bench.client("greedy", properties=KEPT), bench.client("other", properties=KEPT)
    assert publish(other, 1, 1) == [0x10]
    reasons = publish(greedy, 1, MANY)
    held = reasons.index(QUOTA_EXCEEDED)
    assert reasons == [0x10] * held + [QUOTA_EXCEEDED] * (MANY - held)
    assert held == 2048
    greedy.say(Publish("q/2", b"", qos=2, packet_id=MANY + 1))
    (answer,) = greedy.take()
    assert isinstance(answer, Pubrec)
    assert (
        answer.properties.reason_string == "there is no room for one more QoS 2 message that is not released"
    )
    assert publish(other, 2, 100) == [0x10] * 100
    greedy.say(Publish("q/1", b"", qos=1, packet_id=MANY + 2))
    assert [type(packet) for packet in greedy.take()] == [Puback]
    greedy.say(*[Pubrel(1 + number) for number in range(held)])
    assert [packet.reason for packet in greedy.take() if isinstance(packet, Pubcomp)] == [0] * held
    assert publish(greedy, 1, 100) == [0x10] * 100


def test_identifiers_of_many_sessions_fill_the_room_and_no_more() -> None:
    bench, held = limited(200_000), 0
    for number in range(300):
        client = comes(bench, f"p{number}")
        if client is None:
            continue
        reasons = publish(client, 1, 1000)
        held += reasons.count(0x10)
        bench.broker.lost(client.connection, bench.now_ns)
        bench.run()
        assert bench.broker.holdings.total <= 200_000
    assert held > 20_000
    assert bench.broker.holdings.total > 150_000
    sessions = bench.broker.clients.sessions.values()
    assert bench.broker.holdings.total == sum(session.weight for session in sessions)
    for session in list(sessions):
        bench.broker.clients.end(session, bench.now_ns)
    bench.run()
    assert bench.broker.holdings.total == 0


def taken_but_not_completed(bench: Bench, many: int) -> int:
    """A subscriber answers PUBREC, never PUBCOMP; says how many messages came."""
    options = Properties(session_expiry=3600, receive_max=65_535)
    subscriber = bench.client("s", properties=options)
    subscriber.say(Subscribe(packet_id=1, subscriptions=[Subscription("q/#", qos=2)]))
    publisher, came = bench.client("p"), 0
    for number in range(many):
        publisher.say(Publish("q/2", b"", qos=2, packet_id=1 + number), Pubrel(1 + number))
        arrived = [packet for packet in subscriber.take() if isinstance(packet, Publish)]
        came += len(arrived)
        subscriber.say(*[Pubrec(packet.packet_id) for packet in arrived])
    return came


@pytest.mark.parametrize(("many", "places"), [(8, 8), (9, 16), (64, 64), (65, 128), (1000, 1024)])
def test_deliveries_that_are_not_completed_are_in_the_weight(many: int, places: int) -> None:
    bench = limited(10**8)
    assert taken_but_not_completed(bench, many) == many
    session = session_of(bench, "s")
    filters = weight_of(b"q/#", None) + 2 * NODE_WEIGHT  # it pays for both levels
    assert session.weight == session_weight("s") + filters + places * FLIGHT
    bench.broker.clients.end(session, bench.now_ns)
    bench.broker.clients.end(session_of(bench, "p"), bench.now_ns)
    bench.run()
    assert bench.broker.holdings.total == 0


def test_beyond_the_room_messages_wait_until_some_are_completed() -> None:
    bench = limited(ROOM)
    came = taken_but_not_completed(bench, 1000)
    session = session_of(bench, "s")
    assert came in {256, 512}
    assert session.queued == 1000 - came
    assert bench.broker.holdings.total <= ROOM
    assert session.link is not None
    subscriber = bench.clients[session.link]
    subscriber.say(*[Pubcomp(1 + number) for number in range(10)])
    assert len([packet for packet in subscriber.take() if isinstance(packet, Publish)]) == 10
