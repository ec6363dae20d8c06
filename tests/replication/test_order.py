"""A client gets the messages of a topic in order, also when who takes over has some that it never got."""

from __future__ import annotations

import pytest
from tests.broker.bench import MS
from tests.replication.pair import Client, Group

from holdfast.mqtt.packets import Disconnect

LAG_NS = 20 * MS


def payloads(client: Client) -> list[bytes]:
    return [message.payload for message in client.messages()]


def with_somebody_away(group: Group, topic: str, qos: int, *, first: str = "away") -> tuple[Client, Client]:
    """A publisher, and a subscriber with QoS 0; for another one brokers keep what is published."""
    away, subscriber = group.client("away"), group.client("subscriber")
    if first != "away":
        subscriber.subscribe(topic)
    away.subscribe(topic, qos=qos)
    if first == "away":
        subscriber.subscribe(topic)
    away.say(Disconnect())
    return group.client("publisher"), subscriber


def publish(group: Group, publisher: Client, topic: str, number: int, qos: int) -> None:
    publisher.publish(topic, b"%d" % number, packet_id=number if qos else 0, qos=qos)
    group.run()


@pytest.mark.parametrize("topic", ["safe/1", "fast/1", "loose/1", "none/1"])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_client_missed_at_one_broker_it_does_not_get_late_from_the_next(topic: str, qos: int) -> None:
    group = Group()
    publisher, subscriber = with_somebody_away(group, topic, 1)
    publish(group, publisher, topic, 1, qos)
    group.pass_time(LAG_NS)
    assert payloads(subscriber) == [b"1"]
    subscriber.say(Disconnect())
    publish(group, publisher, topic, 2, qos)
    group.pass_time(5 * MS)  # it has a copy by then
    subscriber = group.client("subscriber")
    publish(group, publisher, topic, 3, qos)
    assert payloads(subscriber) == [b"3"]
    group.crash("a")
    late = payloads(group.client("subscriber"))
    assert b"2" not in late
    assert payloads(group.client("away"))[:2] == [b"1", b"2"]


@pytest.mark.parametrize("first", ["away", "subscriber"])
def test_what_nobody_waited_for_is_not_given_late_either(first: str) -> None:
    """Published with QoS 0, and kept for one that a broker expects back after a crash."""
    group = Group(3)
    publisher, subscriber = with_somebody_away(group, "fast/1", 0, first=first)
    group.crash("a")
    group.pass_time(LAG_NS)
    publisher, subscriber = group.client("publisher"), group.client("subscriber")
    publish(group, publisher, "fast/1", 1, 0)
    subscriber.say(Disconnect())
    publish(group, publisher, "fast/1", 2, 0)
    subscriber = group.client("subscriber")
    publish(group, publisher, "fast/1", 3, 0)
    assert payloads(subscriber) == [b"3"]
    group.pass_time(200 * MS)
    group.crash("b")
    assert payloads(group.client("subscriber")) == []
    assert payloads(group.client("away"))[:2] == [b"1", b"2"]
