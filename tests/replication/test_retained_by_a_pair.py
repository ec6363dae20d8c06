"""What is retained at a backup is what its primary retains, whatever waits for whom."""

from __future__ import annotations

import pytest
from tests.replication.pair import MS, Client, Group

from holdfast.mqtt.packets import Disconnect, Puback, Publish, Subscribe, Subscription, Unsubscribe
from holdfast.replication.peer import Peer

COPY = 2  # the kind of a frame
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


class Slow(Group):
    """What the primary writes behind a copy is still on its way when it dies."""

    slow = False

    def _move(self, name: str, wire: object) -> None:
        if not self.slow or name != "a" or not isinstance(wire, Peer) or wire not in self.wires:
            super()._move(name, wire)
            return
        data, at = wire.take_output(), 0
        while at < len(data) and not self.held:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            self.wires[wire].feed(data[at:end], self.now_ns, self.wall_ns)
            if data[at + 4] == COPY:
                self.held.append((wire, data[end:]))
            at = end
        wire.flushed()


def says_it_with_words_first(group: Slow, *packets: Publish) -> list[int]:
    """The backup stands still for so long that it reads all at once; which of these are acknowledged."""
    group.slow = True
    group.stalled.add("b")
    publisher = group.client("publisher")
    for packet in packets:
        publisher.send(packet)
        group.members["a"].turn(group.now_ns, group.wall_ns)
        for wire in group.members["a"].broker.core.board.take_ready():
            group._move("a", wire)
    group.stalled.clear()
    group.run()
    group.pass_time(5 * MS)
    return [packet.packet_id for packet in publisher.take() if isinstance(packet, Puback)]


def retained_after_a_crash(group: Group, topic: str) -> list[bytes]:
    group.crash("a")
    group.pass_time(100 * MS)
    newcomer = group.client("newcomer")
    newcomer.say(Subscribe(1, [Subscription(topic, 1)]))
    group.pass_time(10 * MS)
    return [message.payload for message in newcomer.messages()]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_copy_is_not_undone_by_words_that_are_older(topic: str) -> None:
    group = Slow()
    client = group.client("c")
    client.say(Publish(topic=topic, payload=b"old", retain=True, qos=1, packet_id=1))
    group.pass_time(10 * MS)
    cleared = Publish(topic=topic, payload=b"", retain=True)
    anew = Publish(topic=topic, payload=b"new", retain=True, qos=1, packet_id=2)
    assert says_it_with_words_first(group, cleared, anew) == [2]
    assert retained_after_a_crash(group, topic) == [b"new"]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_copy_of_what_clears_a_topic_is_not_undone_by_words_that_are_older(topic: str) -> None:
    group = Slow()
    old = Publish(topic=topic, payload=b"old", retain=True)
    cleared = Publish(topic=topic, payload=b"", retain=True, qos=1, packet_id=2)
    assert says_it_with_words_first(group, old, cleared) == [2]
    assert retained_after_a_crash(group, topic) == []
