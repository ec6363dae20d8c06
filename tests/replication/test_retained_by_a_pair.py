"""What is retained at a backup is what its primary retains, whatever waits for whom."""

from __future__ import annotations

import pytest
from tests.replication.pair import MS, Client, Group

from holdfast.mqtt.packets import Disconnect, Puback, Publish, Subscribe, Subscription, Unsubscribe

TOPICS = ["fast/1", "safe/1", "loose/1", "none/1"]


def waits_for_one_that_is_away(group: Group, topic: str) -> Client:
    subscriber, publisher = group.client("away"), group.client("publisher")
    subscriber.subscribe(topic, qos=1)
    subscriber.say(Disconnect())
    publisher.say(Publish(topic=topic, payload=b"old", retain=True, qos=1, packet_id=1))
    return publisher


def waits_for_one_that_does_not_acknowledge(group: Group, topic: str) -> Client:
    subscriber, publisher = group.client("away"), group.client("publisher")
    subscriber.subscribe(topic, qos=1)
    publisher.say(Publish(topic=topic, payload=b"old", retain=True, qos=1, packet_id=1))
    subscriber.say(Unsubscribe(2, [topic]))
    return publisher


def a_backup_is_lost_and_another_comes(group: Group) -> None:
    group.crash("b")
    group.pass_time(100 * MS)
    group.start("b")
    group.pass_time(500 * MS)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("wait", [waits_for_one_that_is_away, waits_for_one_that_does_not_acknowledge])
@pytest.mark.parametrize(("qos", "then"), [(0, b""), (1, b""), (0, b"new"), (1, b"new")])
def test_what_waits_for_one_client_is_not_retained_again_at_a_new_backup(
    topic: str, wait: object, qos: int, then: bytes
) -> None:
    """A new backup gets copies of what waits, and these were retained once."""
    assert callable(wait)
    group = Group()
    publisher = wait(group, topic)
    group.pass_time(100 * MS)
    publisher.say(Publish(topic=topic, payload=then, retain=True, qos=qos, packet_id=2 * qos))
    group.pass_time(100 * MS)
    acknowledged = [packet.packet_id for packet in publisher.take() if isinstance(packet, Puback)]
    assert acknowledged == [1, 2][: 1 + qos]
    a_backup_is_lost_and_another_comes(group)
    assert group.primary.serving.protected_by == ("b",)
    group.crash("a")
    group.pass_time(100 * MS)
    newcomer = group.client("newcomer")
    newcomer.say(Subscribe(1, [Subscription(topic, 1)]))
    group.pass_time(10 * MS)
    assert [message.payload for message in newcomer.messages()] == [then] * bool(then)
