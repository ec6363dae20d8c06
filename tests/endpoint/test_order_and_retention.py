"""What the compiled path reads and writes is what the codec reads and writes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoint.bench import MS, A, Bench, pair, payloads, view
from holdfast.endpoint.events import Ticket
from holdfast.endpoint.inbox import Inbox
from holdfast.endpoint.messages import Message
from holdfast.endpoint.order import Order
from holdfast.endpoint.outgoing import Outgoing
from holdfast.endpoint.retention import Retention
from holdfast.endpoint.session import Session
from holdfast.errors import Refused
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.conventions import VIEW_TOPIC, find_stamp
from holdfast.mqtt.packets import Connack, Properties, Puback, Pubcomp, Publish, Pubrec, Pubrel
from holdfast.mqtt.topics import matches

TOPICS = st.sampled_from(["a", "a/b", "plant/ü/1", "$SYS/x"])
STAMPS = st.one_of(
    st.builds(
        lambda created, number, name: f"{created}/{number}/{name}",
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
        st.sampled_from(["p.1", "ü.2", "", "a/b"]),
    ),
    st.sampled_from(["", "1", "1/2", "01/2/p", "1/02/p", "x/1/p", "1//p", "1/2/" + "p" * 300, "0/0/p"]),
)
PROPERTIES = st.builds(
    lambda stamps, content: Properties(user=[("hf", stamp) for stamp in stamps], content_type=content),
    st.lists(STAMPS, max_size=2),
    st.none() | st.just("text"),
)
PACKETS = st.builds(
    lambda topic, payload, qos, retain, number, properties: Publish(
        topic, payload, qos, retain, False, number if qos else 0, properties
    ),
    TOPICS,
    st.binary(max_size=200),
    st.integers(0, 1),
    st.booleans(),
    st.integers(1, 65_535),
    PROPERTIES,
)


class Nobody:
    def __init__(self) -> None:
        self.acknowledged: list[int] = []

    def acknowledge(self, packet_id: int) -> None:
        self.acknowledged.append(packet_id)


def told(message: Message) -> tuple[object, ...]:
    return (
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.dup,
        message.stamp,
        message.missed,
        message.properties,
        message.latency_ns,
    )


@given(st.lists(PACKETS, max_size=12, unique_by=lambda packet: packet.packet_id or id(packet)))
def test_scanned_and_decoded_messages_are_the_same(packets: list[Publish]) -> None:
    scanned, decoded, nobody, other = Inbox(1000, 1000), Inbox(1000, 1000), Nobody(), Nobody()
    data = b"".join(encode(packet, 5) for packet in packets)
    at = 0
    while at < len(data):
        at = scanned.scan(data, at, 5, nobody, {}, set(), 1000, 1 << 28)
        if (found := split(data, at)) is not None:
            first, start, at = found
            packet = decode(first, data[start:at], 5)
            assert isinstance(packet, Publish)
            scanned.arrived(packet, nobody, 5)
    for packet in packets:
        decoded.arrived(packet, other, 5)
    assert [told(each) for each in scanned.take_all()] == [told(each) for each in decoded.take_all()]
    assert scanned.order.duplicates == decoded.order.duplicates
    assert nobody.acknowledged == other.acknowledged == [each.packet_id for each in packets if each.qos]


def test_stamped_messages_need_no_codec() -> None:
    stamp = Properties(user=[("hf", "1700000000000000000/7/press.ab12")])
    data = b"".join(
        encode(Publish("plant/1", b"x", qos, packet_id=qos, properties=stamp), 5) for qos in (0, 1)
    )
    inbox, nobody = Inbox(9, 9), Nobody()
    assert inbox.scan(data, 0, 5, nobody, {}, set(), 9, 1 << 28) == len(data)
    # The second is the first again: it is acknowledged, not given out.
    assert [each.sequence for each in inbox.take_all()] == [7]
    assert nobody.acknowledged == [1]


@given(st.binary(max_size=60), st.integers(0, 59))
@settings(max_examples=300)
def test_scanning_any_bytes_never_reads_past_them(noise: bytes, flip: int) -> None:
    packet = bytearray(encode(Publish("a/b", b"x", properties=Properties(user=[("hf", "1/2/p")])), 5))
    packet[flip % len(packet)] ^= 0x41
    for data in (noise, bytes(packet), bytes(packet) + noise, b"\x30" + noise):
        inbox = Inbox(100, 100)
        assert 0 <= inbox.scan(data, 0, 5, Nobody(), {}, set(), 100, 1 << 28) <= len(data)


def test_views_other_packets_and_a_full_queue_end_a_scan() -> None:
    message, view_note = encode(Publish("a"), 5), encode(Publish(VIEW_TOPIC, b"x"), 5)
    for tail in (view_note, b"\xd0\x00", message[:-1], encode(Publish("a", qos=2, packet_id=1), 5)):
        assert Inbox(9, 9).scan(message + tail, 0, 5, Nobody(), {}, set(), 9, 1 << 28) == len(message)
    assert Inbox(2, 9).scan(message * 5, 0, 5, Nobody(), {}, set(), 9, 1 << 28) == 2 * len(message)
    assert Inbox(9, 9).scan(message * 5, 0, 5, Nobody(), {}, set(), 9, len(message) - 1) == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["p", "q", "~near"]), st.sampled_from("ab"), st.integers(1, 12)),
        max_size=60,
    )
)
def test_each_once_in_order_and_every_gap_is_exact(events: list[tuple[str, str, int]]) -> None:
    order, given_out = Order(100), {}
    for publisher, topic, sequence in events:
        before = given_out.setdefault((publisher, topic), [])
        missed = order.seen(publisher, topic, sequence)
        if before and sequence <= before[-1]:
            assert missed == -1
            continue
        leaves_gaps = publisher.startswith("~")
        assert missed == (sequence - before[-1] - 1 if before and not leaves_gaps else 0)
        before.append(sequence)


def test_streams_are_bounded() -> None:
    order = Order(10)
    for number in range(1000):
        assert order.seen("p", f"t/{number}", 1) == 0
    assert order.seen("p", "t/999", 1) == -1
    assert order.seen("p", "t/0", 1) == 0


# -- retention -----------------------------------------------------------------------------------------------


def packet_of(data: bytes) -> Publish:
    found = split(data)
    assert found is not None
    assert found[2] == len(data)
    packet = decode(found[0], data[found[1] : found[2]], 5)
    assert isinstance(packet, Publish)
    return packet


@given(
    TOPICS,
    st.binary(max_size=20_000),
    st.integers(0, 2),
    st.booleans(),
    st.none() | st.integers(0, 2**63 - 1),
    st.booleans(),
)
def test_what_is_encoded_is_what_the_codec_says(
    topic: str, payload: bytes, qos: int, retain: bool, created_ns: int | None, extra: bool
) -> None:
    retention = Retention("me.1", 10)
    properties = Properties(content_type="t", user=[("k", "v")]) if extra else None
    packet = packet_of(
        retention.encoded(
            retention.record(topic), payload, qos, retain, properties, 7 if qos else 0, created_ns
        )
    )
    assert (packet.topic, packet.payload, packet.qos, packet.retain) == (topic, payload, qos, retain)
    assert packet.packet_id == (7 if qos else 0)
    stamp = find_stamp(packet.properties.user)
    assert (stamp is None) == (created_ns is None)
    if stamp is not None:
        assert (stamp.created_ns, stamp.sequence, stamp.publisher) == (created_ns, 1, "me.1")
    assert packet.properties.content_type == ("t" if extra else None)


@given(
    st.lists(st.tuples(st.sampled_from(["a/1", "a/2", "b/1"]), st.booleans(), st.booleans()), max_size=80),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_rings_hold_the_last_n_and_count_what_nobody_had(
    published: list[tuple[str, bool, bool]], many: int, later: int
) -> None:
    """A second declaration, first for `b/#`, arrives half way; N of `a/#` never changes."""
    retention = Retention("me.1", 10)
    retention.declare("a/#", many)
    declared = {"a/#": many}
    model: dict[str, list[tuple[bytes, bool]]] = {}
    unsent = 0

    def n_of(topic: str) -> int:
        return next((n for filter, n in declared.items() if matches(filter.encode(), topic.encode())), 0)

    for place, (topic, stamped, written) in enumerate(published):
        if place == len(published) // 2:
            retention.declare("b/#", later)
            declared["b/#"] = later
        record = retention.record(topic)
        packet = retention.encoded(record, b"%d" % place, 0, False, None, 0, 1 if stamped else None)
        retention.keep(record, packet, 1 if stamped else None, written=written)
        if not stamped or n_of(topic) == 0:
            unsent += not written
            continue
        ring = model.setdefault(topic, [])
        ring.append((b"%d" % place, written))
        if len(ring) > n_of(topic):
            unsent += not ring.pop(0)[1]
    assert retention.unsent == unsent
    kept = [packet_of(each.packet).payload for each in retention.kept()]
    assert kept == sorted((payload for ring in model.values() for payload, _ in ring), key=int)


def publish(
    retention: Retention,
    messages: list[Outgoing],
    start: int = 0,
    *,
    stamp: bool = True,
    retains: bool = True,
    session: Session | None = None,
    quota: int = 0,
) -> tuple[bytes, int, int]:
    session, ticket = session or Session(), Ticket("publish", len(messages))
    return retention.publish(messages, start, 5, stamp, 1000, retains, session, ticket, quota)


def kept_of(retention: Retention, *created_ms: int, written: bool = True) -> list[bytes]:
    """What is kept of a topic after messages of these times; the payload is the time."""
    record = retention.record("a")
    for at_ms in created_ms:
        packet = retention.encoded(record, b"%d" % at_ms, 0, False, None, 0, at_ms * MS)
        retention.keep(record, packet, at_ms * MS, written=written)
    return [packet_of(each.packet).payload for each in retention.kept()]


def test_what_is_younger_than_n_periods_is_kept_however_many_come() -> None:
    """A program that stood still publishes at once what it could not publish in time."""
    retention = Retention("me.1", 10)
    retention.declare("a", 1, 100 * MS)
    assert kept_of(retention, 0, 1, 2) == [b"0", b"1", b"2"]
    assert kept_of(retention, 100, 149) == [b"0", b"1", b"2", b"100", b"149"]  # 50 ms for who is late
    assert kept_of(retention, 151) == [b"2", b"100", b"149", b"151"]
    assert kept_of(retention, 1000) == [b"1000"]
    assert kept_of(retention, 2000, 2100) == [b"2000", b"2100"]
    assert retention.unsent == 0


@pytest.mark.parametrize(
    ("retention", "loss", "kept_ms"),
    [(0, 1, [1, 2]), (0, 2, [2]), (0, 3, []), (0, None, []), (1, 1, [1, 2]), (1, None, [2]), (1, 65, [2])],
)
def test_of_what_comes_at_once_as_many_leave_as_may_be_lost(
    retention: int, loss: int | None, kept_ms: list[int]
) -> None:
    rings = Retention("me.1", 10)
    rings.declare("a", retention, 100 * MS, loss)
    assert kept_of(rings, 0, 1, 2) == [b"%d" % each for each in kept_ms]
    assert kept_of(rings, 1000, 2000) == ([b"2000"] if retention else [])


@given(
    retention=st.integers(0, 3),
    loss=st.integers(0, 4),
    gaps_ms=st.lists(st.sampled_from([0, 1, 20, 99, 100, 101, 500]), min_size=1, max_size=50),
)
def test_of_the_longest_failover_that_a_contract_bears_no_more_than_l_in_a_row_are_in_no_ring(
    retention: int, loss: int, gaps_ms: list[int]
) -> None:
    period_ms = 100
    rings = Retention("me.1", 10)
    rings.declare("a", retention, period_ms * MS, loss)
    now_ms, made = 10_000, []
    for gap_ms in gaps_ms:
        now_ms += gap_ms
        made.append(now_ms)
        kept = Counter(kept_of(rings, now_ms))
        dead = [each for each in made if each > now_ms - (retention + loss) * period_ms]
        assert len(dead) - sum(kept[b"%d" % each] for each in set(dead)) <= loss


def test_a_ring_is_bounded_though_messages_come_too_fast() -> None:
    retention = Retention("me.1", 10)
    retention.declare("a", 2, 100 * MS)
    assert kept_of(retention, *[7] * 500, written=False) == [b"7"] * (2 + 64)
    assert retention.unsent == 500 - 66


def test_while_nobody_serves_us_nothing_leaves_a_ring() -> None:
    retention = Retention("me.1", 10)
    retention.declare("a", 1, 100 * MS)
    retention.held = True
    assert kept_of(retention, 0, 1000, 2000) == [b"0", b"1000", b"2000"]
    retention.held = False
    assert kept_of(retention, 3000) == [b"3000"]


def test_batches_stop_at_what_needs_thought_and_lose_nothing() -> None:
    retention, session = Retention("me.1", 10), Session()
    plain, asking = Outgoing("a", b"1"), Outgoing("a", b"2", 1)
    assert publish(retention, [plain, plain, asking, plain])[1:] == (2, 0)
    assert retention.sequences() == {"a": 2}
    asked = publish(retention, [asking, plain, asking, asking, plain], session=session, quota=2)
    assert asked[1:] == (3, 2)
    assert [(each.place, each.written) for each in session.pending.values()] == [(0, True), (2, True)]
    assert retention.sequences() == {"a": 5}
    bad = Outgoing("a/#", b"")
    data, *rest = publish(retention, [plain, bad])
    assert (packet_of(data).payload, rest) == (b"1", [1, 0])
    with pytest.raises(ValueError, match="#"):
        publish(retention, [plain, bad], 1)
    assert publish(retention, [Outgoing("a", b"x" * 1000)]) == (b"", 0, 0)
    assert publish(retention, [Outgoing("a", retain=True)], retains=False) == (b"", 0, 0)
    assert publish(retention, [Outgoing("a", b"", 3)], session=session, quota=1) == (b"", 0, 0)
    assert retention.sequences() == {"a": 6}
    assert len(session.pending) == 2


def test_topics_are_bounded() -> None:
    retention = Retention("me.1", 2)
    publish(retention, [Outgoing("a"), Outgoing("b")])
    with pytest.raises(Refused, match="2 topics already"):
        retention.record("c")


def test_topics_that_remember_nothing_are_forgotten() -> None:
    """Who stamps its messages itself may publish to any number of topics in its life."""
    retention = Retention("me.1", 3)
    publish(retention, [Outgoing("stamped")])
    held = retention.record("held")
    for number in range(100):
        publish(retention, [Outgoing(f"plain/{number}")], stamp=False)
    assert retention.record("held") is held
    assert retention.sequences() == {"stamped": 1}
    batch = retention.prepare([Outgoing("plain/new")])
    with pytest.raises(Refused, match="3 topics already"):
        retention.record("plain/newer")
    assert batch.messages


# -- quota and order of what goes out ------------------------------------------------------------------------


def served(**granted: object) -> Bench:
    bench = Bench(A)
    bench.open(A)
    bench.say(A, Connack(properties=Properties(**granted)))  # type: ignore[arg-type]
    return bench


def test_a_message_behind_one_that_waits_for_quota_waits_if_it_is_of_the_same_topic() -> None:
    bench = served(receive_max=1)
    bench.publish("a", b"1", 1)
    bench.publish("a", b"2", 1)
    bench.publish("a", b"3", 0)
    bench.publish("b", b"4", 0)
    first, other = bench.sent(A)
    assert (first.payload, other.payload) == (b"1", b"4")
    bench.say(A, Puback(first.packet_id))
    assert payloads(bench.sent(A)) == [b"2", b"3"]


def test_what_waits_is_bounded() -> None:
    bench = Bench(A, waiting_max=3)
    bench.open(A)
    bench.say(A, Connack(properties=Properties(receive_max=1)))
    for number in range(3):
        bench.publish("a", b"%d" % number, 1)
    with pytest.raises(Refused, match="3 messages and requests wait"):
        bench.publish("a", b"3", 1)
    for _ in range(5):
        bench.publish("a", b"", 0)
    assert bench.endpoint.unsent == 4


def test_a_qos_2_exchange_is_finished_with_the_next_primary() -> None:
    bench = pair()
    ticket = bench.publish("a", b"1", 2)
    (message,) = bench.sent(A)
    bench.say(A, Pubrec(message.packet_id))
    assert bench.sent(A) == [Pubrel(message.packet_id)]
    bench.lose(A)
    assert bench.sent(("b", 1883)) == [Pubrel(message.packet_id)]
    bench.announce(("b", 1883), view(5, "b", "ba"))
    bench.say(("b", 1883), Pubcomp(message.packet_id, 0x92))
    assert ticket.done  # type: ignore[attr-defined]


def test_what_the_next_broker_does_not_take_is_refused_not_sent() -> None:
    bench = served()
    big = bench.publish("a", b"x" * 100, 1)
    bench.sent(A)
    bench.lose(A)
    bench.pass_time(50 * MS)
    bench.open(A)
    bench.say(A, Connack(properties=Properties(max_packet_size=50)))
    assert bench.sent(A) == []
    assert big.done  # type: ignore[attr-defined]
    assert big.reasons == [0x95]  # type: ignore[attr-defined]


def test_messages_that_were_read_before_the_end_are_given_out_though_the_queue_was_full() -> None:
    bench = Bench(A, queue_max=2)
    bench.open(A)
    bench.say(A, Connack(), *(Publish("a", b"%d" % number) for number in range(5)))
    assert bench.endpoint.full
    assert bench.endpoint.waiting == 2
    bench.lose(A)
    assert [each.payload for each in bench.endpoint.take_messages()] == [b"0", b"1", b"2", b"3", b"4"]
