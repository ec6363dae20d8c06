"""Messages that are published together, or prepared once, go out as if each were published anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint.bench import MS, A, B, pair, payloads, view
from holdfast.contract.model import Contract
from holdfast.endpoint import Outgoing
from holdfast.mqtt.conventions import find_stamp
from holdfast.mqtt.packets import Properties, Puback, Publish

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
        bench.endpoint.publish_batch(batch, wall_ns=number * 100 * MS)
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


SHARED = [None, Properties(), Properties(content_type="t", user=[("k", "v")]), Properties(message_expiry=9)]


@given(
    st.lists(
        st.builds(
            Outgoing,
            st.sampled_from(["k/1", "k/2", "free"]),
            st.binary(max_size=3),
            st.integers(0, 2),
            st.booleans(),
            st.sampled_from(SHARED),
        ),
        max_size=30,
    ),
    st.integers(0, 12),
    st.booleans(),
)
def test_published_together_is_the_same_as_one_by_one(
    messages: list[Outgoing], quota: int, stamp: bool
) -> None:
    together, alone = pair(), pair()
    for bench in (together, alone):
        bench.endpoint.declare("k/+", KEPT)
        bench.endpoint._group.target.protocol.quota = quota  # type: ignore[union-attr]
    together.endpoint.publish_many(messages, stamp=stamp, now_ns=0, wall_ns=7)
    for message in messages:
        alone.endpoint.publish_many([message], stamp=stamp, now_ns=0, wall_ns=7)
    for _ in range(4):  # quota comes back, and a broker goes
        sent = together.sent(A)
        assert sent == alone.sent(A)
        for bench in (together, alone):
            bench.say(A, *[Puback(each.packet_id) for each in sent if getattr(each, "qos", 0) == 1])
    for bench in (together, alone):
        bench.lose(A)
    assert together.sent(B) == alone.sent(B)
    assert together.endpoint.sequences == alone.endpoint.sequences


def test_properties_that_change_between_two_calls_are_the_new_ones() -> None:
    bench, properties = pair(), Properties(content_type="old")
    for content_type in ("old", "new"):
        properties.content_type = content_type
        messages = [Outgoing("t", b"", qos, properties=properties) for qos in (0, 1)]
        bench.endpoint.publish_many(messages, now_ns=0, wall_ns=0)
        assert [each.properties.content_type for each in bench.sent(A)] == [content_type] * 2


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
