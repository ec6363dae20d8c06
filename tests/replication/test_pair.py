"""A pair in made-up time: what is copied, what is discarded, what a crash costs."""

from __future__ import annotations

from tests.replication.pair import Group

from holdfast.replication.roles import Role


def payloads(client) -> list[bytes]:
    return [message.payload for message in client.messages()]


def test_the_first_serves_and_the_second_protects_it() -> None:
    group = Group()
    assert group.members["a"].role is Role.PRIMARY
    assert group.members["b"].role is Role.BACKUP
    assert group.members["b"].view == group.members["a"].view
    assert group.members["a"].view.heirs == ("b",)


def test_a_message_that_needs_it_is_copied_and_its_copy_discarded() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("+/+")
    for topic in ("fast/1", "safe/1", "loose/1"):
        publisher.publish(topic, b"x")
    group.run()
    assert len(payloads(subscriber)) == 3
    buffer = group.members["b"].buffer
    assert buffer.taken == 1
    assert buffer.discarded == 1
    assert len(buffer) == 0


def test_subscribers_of_a_crashed_primary_go_on_at_its_backup() -> None:
    group = Group()
    group.client("p")
    group.client("s").subscribe("safe/+", qos=1)
    there = group.client("s", "b", warm=True)
    group.crash("a")
    assert group.members["b"].role is Role.PRIMARY
    again = group.client("p", "b")
    again.publish("safe/1", b"after", qos=1)
    group.run()
    assert payloads(there) == [b"after"]


def test_a_primary_that_says_goodbye_is_replaced_at_once() -> None:
    group = Group()
    group.members["a"].drain(group.now_ns)
    group.run()
    assert group.members["b"].role is Role.PRIMARY
