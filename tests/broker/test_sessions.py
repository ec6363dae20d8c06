"""Sessions across connections, retained messages, and the bounds that clients can reach."""

from __future__ import annotations

import random

import pytest

from broker.bench import Bench, Client, book
from holdfast.config import Limits
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Properties,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from holdfast.mqtt.reasons import Reason

KEPT = Properties(session_expiry=3600)


def test_a_client_for_whom_nothing_waits_comes_in_one_turn() -> None:
    bench = Bench()
    connection = bench.broker.open(None, bench.now_ns)
    assert connection is not None
    client = bench.clients[connection] = Client(bench, connection)
    client.send(Connect("a"))
    assert not bench.turn()
    assert [type(packet) for packet in client.take()] == [Connack]


def test_what_is_sent_again_respects_the_window_of_the_new_connection() -> None:
    bench = Bench()
    subscriber, publisher = bench.client("s", properties=KEPT), bench.client("p")
    subscriber.subscribe("t", qos=1)
    for number in range(20):
        publisher.publish("t", b"%d" % number, qos=1)
    bench.run()
    assert len(subscriber.messages()) == 20
    bench.broker.lost(subscriber.connection, bench.now_ns)
    again = bench.client("s", clean_start=False, properties=Properties(session_expiry=3600, receive_max=3))
    got: list[Publish] = []
    while new := again.messages():
        assert len(new) <= 3
        assert all(message.dup for message in new)
        got += new
        again.say(*(Puback(packet_id=message.packet_id) for message in new))
    assert [int(message.payload) for message in got] == list(range(20))
    assert bench.broker.clients.sessions["s"].in_flight == 0


def test_a_stuck_identifier_does_not_make_others_collide() -> None:
    """One message is never acknowledged while 70,000 others are: no identifier is given twice at a time."""
    bench = Bench()
    subscriber, publisher = bench.client("s"), bench.client("p")
    subscriber.subscribe("t", qos=1)
    publisher.publish("t", b"stuck", qos=1)
    bench.run()
    (stuck,) = subscriber.messages()
    delivered = 0
    for _ in range(140):
        for _ in range(500):
            publisher.publish("t", qos=1)
        bench.run()
        messages = subscriber.messages()
        delivered += len(messages)
        assert stuck.packet_id not in {message.packet_id for message in messages}
        subscriber.say(*(Puback(packet_id=message.packet_id) for message in messages))
    assert delivered == 65_534  # the window is open no wider than there are identifiers
    subscriber.say(Puback(packet_id=stuck.packet_id))
    assert subscriber.messages()


def test_retained_messages_come_at_the_pace_the_subscriber_takes_them() -> None:
    bench = Bench(book(limits=Limits(queue_messages_max=200)))
    publisher = bench.client("p")
    for number in range(5000):
        publisher.publish(f"r/{number}", b"x" * 100, retain=True)
        bench.run()
    subscriber = bench.client("s")
    subscriber.stop_reading()
    subscriber.send(Subscribe(packet_id=1, subscriptions=[Subscription(filter="r/#")]))
    bench.run()
    assert bench.broker.clients.sessions["s"].queued <= 200
    subscriber.read_again()
    packets = subscriber.take()
    assert isinstance(packets[0], Suback)
    assert len({packet.topic for packet in packets[1:] if isinstance(packet, Publish)}) == 5000
    assert bench.broker.core.board.messages_dropped == 0


def test_a_retained_message_published_after_the_subscription_comes_once() -> None:
    """Retained messages are still on their way to a new subscription when a newer one is published."""
    bench = Bench()
    publisher, subscriber = bench.client("p"), bench.client("s")
    for number in range(2000):
        publisher.publish(f"r/{number}", b"old", retain=True)
    bench.run()
    subscriber.send(Subscribe(packet_id=1, subscriptions=[Subscription(filter="r/#")]))
    bench.turn()
    assert len([packet for packet in subscriber.got if isinstance(packet, Publish)]) < 2000
    for number in range(2000):
        publisher.publish(f"r/{number}", b"new", retain=True)
    bench.run()
    new = [message for message in subscriber.messages() if message.payload == b"new"]
    assert sorted(message.topic for message in new) == sorted(f"r/{number}" for number in range(2000))
    assert not any(message.retain for message in new)


def test_unfinished_packets_have_a_bound_together() -> None:
    limits = Limits(packet_bytes_max=100_000, pending_bytes_max=150_000)
    bench = Bench(book(limits=limits))
    first, second, third = (bench.client(name) for name in "abc")
    half = encode(Publish(topic="t", payload=b"x" * 90_000), 5)[:80_000]
    first.send_bytes(half)
    second.send_bytes(half)
    bench.run()
    (farewell,) = second.take()
    assert isinstance(farewell, Disconnect)
    assert farewell.reason == Reason.QUOTA_EXCEEDED
    bench.broker.lost(first.connection, bench.now_ns)
    third.send_bytes(half)
    bench.run()
    assert not third.connection.closing


def test_too_many_subscriptions_are_refused_one_by_one() -> None:
    bench = Bench(book(limits=Limits(subscriptions_per_session_max=2, subscriptions_max=3)))
    first, second = bench.client("a"), bench.client("b")
    assert [first.subscribe(f"t/{number}").reasons[0] for number in range(3)] == [0, 0, Reason.QUOTA_EXCEEDED]
    assert [second.subscribe(f"t/{number}").reasons[0] for number in range(2)] == [0, Reason.QUOTA_EXCEEDED]
    assert first.subscribe("t/0", qos=1).reasons == [1]


def test_a_will_cannot_speak_for_the_broker() -> None:
    bench = Bench()
    connection = bench.broker.open(None, bench.now_ns)
    assert connection is not None
    connection.feed(
        encode(Connect(client_id="w", will=Will(topic="$SYS/broker/version")), 5), bench.now_ns, 0
    )
    bench.broker.turn(bench.now_ns, 0)
    output = connection.take_output()
    assert output[3] == Reason.NOT_AUTHORIZED


def test_a_mistake_of_ours_costs_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    victim, other = bench.client("v"), bench.client("o")
    monkeypatch.setattr(bench.broker.subscribing, "subscribe", lambda *_: 1 / 0)
    victim.say(Subscribe(packet_id=1, subscriptions=[Subscription(filter="t")]))
    (farewell,) = victim.take()
    assert isinstance(farewell, Disconnect)
    assert farewell.reason == Reason.UNSPECIFIED_ERROR
    assert "mistake" in [event for event, _ in bench.events]
    assert not other.connection.closing


def test_a_session_that_expires_leaves_nothing() -> None:
    bench = Bench()
    subscriber, publisher = bench.client("s", properties=Properties(session_expiry=10)), bench.client("p")
    subscriber.subscribe("t", qos=1)
    bench.broker.lost(subscriber.connection, bench.now_ns)
    publisher.publish("t", b"waits", qos=1)
    bench.run()
    assert bench.broker.clients.sessions["s"].queued == 1
    bench.pass_time(9_000_000_000)
    assert "s" in bench.broker.clients.sessions
    bench.pass_time(1_200_000_000)
    assert "s" not in bench.broker.clients.sessions
    assert len(bench.broker.core.tree) == 0
    assert bench.broker.core.messages_held == bench.broker.core.retained_count


def test_coming_and_going_leaves_no_timers_behind() -> None:
    bench = Bench()
    for _ in range(200):
        client = bench.client("s", properties=KEPT, clean_start=False)
        bench.broker.lost(client.connection, bench.now_ns)
        bench.run()
    assert len(bench.broker.timers) == 2  # $SYS, and idle topics
    assert sum(len(step) for step in bench.broker.watched_sessions._steps.values()) == 1
    assert not any(bench.broker.watched_connections._steps.values())


def test_one_connection_too_many_is_told() -> None:
    bench = Bench(book(limits=Limits(connections_max=1)))
    bench.client("a")
    connection = bench.broker.open(None, bench.now_ns)
    assert connection is not None
    connection.feed(encode(Connect(client_id="b"), 5), bench.now_ns, 0)
    bench.broker.turn(bench.now_ns, 0)
    assert connection.take_output()[3] == Reason.QUOTA_EXCEEDED


def test_topics_that_nobody_uses_any_more_are_let_go() -> None:
    bench = Bench()
    publisher, subscriber = bench.client("p"), bench.client("s", properties=KEPT)
    subscriber.subscribe("busy/#", qos=1)
    before = bench.broker.core.topics.count
    for number in range(3000):
        publisher.publish(f"once/{number}")
    publisher.publish("kept/retained", b"x", retain=True)
    bench.run()
    assert bench.broker.core.topics.count == before + 3001
    for _ in range(80):
        bench.pass_time(500_000_000)
        publisher.publish("busy/1", qos=1)
        bench.run()
    assert bench.broker.core.topics.count == before + 2
    messages = subscriber.messages()
    assert len(messages) == 80
    assert subscriber.subscribe("kept/#").reasons == [0]


@pytest.mark.parametrize("seed", range(20))
def test_the_topic_table_finds_what_it_holds_after_any_sweep(seed: int) -> None:
    """Removal moves displaced topics back: none may become unreachable, none may come back."""
    bench = Bench(book(limits=Limits(topics_max=500)))
    chance = random.Random(seed)
    publisher, subscriber = bench.client("p"), bench.client("s")
    subscriber.subscribe("t/#")
    for _ in range(60):
        names = [f"t/{chance.randrange(700)}" for _ in range(50)]
        for name in names:
            publisher.publish(name)
        bench.pass_time(chance.choice([0, 1, 9, 18]) * 1_000_000_000)
        assert [message.topic for message in subscriber.messages()] == names
        assert bench.broker.core.topics.count - bench.broker.core.topics.kept <= 500
