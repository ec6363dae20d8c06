"""A batch that is prepared once is published as if each of its messages were published anew."""

from __future__ import annotations

import pytest

from endpoint.bench import A, B, pair, payloads, view
from holdfast.contract.model import Contract
from holdfast.endpoint import Outgoing
from holdfast.mqtt.conventions import find_stamp
from holdfast.mqtt.packets import Properties, Publish

KEPT = Contract(name="k", topics=("k/+",), period_ns=1, deadline_ns=1, loss_tolerance=0, retention=2)
MESSAGES = [Outgoing("k/1", b"one"), Outgoing("k/2", b"two"), Outgoing("free", b"three")]


def published(packets: list[object]) -> list[tuple[object, ...]]:
    return [
        (packet.topic, packet.payload, packet.qos, find_stamp(packet.properties.user))
        for packet in packets
        if isinstance(packet, Publish)
    ]


def test_a_batch_is_written_and_stamped_like_messages_one_by_one() -> None:
    one, other = pair(), pair()
    for bench in (one, other):
        bench.endpoint.declare("k/+", KEPT)
    batch = one.endpoint.prepare(MESSAGES)
    for number in range(3):
        one.endpoint.publish_batch(batch, wall_ns=100 + number)
        other.endpoint.publish_many(MESSAGES, now_ns=0, wall_ns=100 + number)
    assert published(one.sent(A)) == published(other.sent(A))
    assert one.endpoint.sequences == other.endpoint.sequences == {"k/1": 3, "k/2": 3, "free": 3}


def test_what_a_batch_left_in_the_rings_is_written_to_the_heir() -> None:
    bench = pair()
    bench.endpoint.declare("k/+", KEPT)
    batch = bench.endpoint.prepare(MESSAGES)
    for number in range(3):
        bench.endpoint.publish_batch(batch, wall_ns=number)
    bench.lose(A)
    again = published(bench.sent(B))
    assert [(topic, stamp.sequence) for topic, _, _, stamp in again] == [
        ("k/1", 2), ("k/2", 2), ("k/1", 3), ("k/2", 3),
    ]  # fmt: skip


def test_a_batch_without_a_broker_is_kept_as_far_as_rings_go_and_counted_beyond() -> None:
    bench = pair()
    bench.endpoint.declare("k/+", KEPT)
    batch = bench.endpoint.prepare(MESSAGES)
    bench.lose(B)
    bench.lose(A)
    bench.endpoint.publish_batch(batch, wall_ns=5)
    assert bench.endpoint.unsent == 1
    bench.pass_time(10**10)
    bench.admit(B, view(5, "b", "b"))
    assert payloads(bench.sent(B)) == [b"one", b"two"]


def test_a_batch_behind_a_message_that_waits_for_quota_waits_too() -> None:
    bench = pair()
    first = bench.endpoint.prepare([Outgoing("q", b"later")])
    for number in range(70_000 // 1000):
        bench.publish("other", bytes([number]))
    bench.endpoint._group.target.protocol.quota = 0  # type: ignore[union-attr]
    bench.publish("q", b"asks", qos=1)
    bench.sent(A)
    bench.endpoint.publish_batch(first, wall_ns=1)
    assert payloads(bench.sent(A)) == []


@pytest.mark.parametrize(
    "message",
    [
        Outgoing("a", b"", qos=1),
        Outgoing("a", b"", retain=True),
        Outgoing("a", b"", properties=Properties(content_type="x")),
    ],
)
def test_only_plain_messages_are_prepared(message: Outgoing) -> None:
    with pytest.raises(ValueError, match="only plain messages of QoS 0"):
        pair().endpoint.prepare([message])
