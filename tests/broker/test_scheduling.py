"""Deadlines, policies and order: what is dispatched when."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.bench import MS, WALL_NS, Bench, Client, book, contract
from holdfast.config import Limits
from holdfast.mqtt.packets import (
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)

URGENT = contract("urgent", "urgent/+", "50ms", 0)
CALM = contract("calm", "calm/+", "500ms", 0)
EFFORT = contract("effort", "effort/+", "100ms", "unlimited")


def order_of(bench: Bench, topics: list[str], stamps: dict[str, int] | None = None) -> list[str]:
    """Publishes everything before the broker has a turn; the topics in the order of their arrival."""
    subscriber = bench.client("s")
    subscriber.subscribe("#")
    publisher = bench.client("p")
    for topic in topics:
        stamp = (stamps or {}).get(topic)
        user = [] if stamp is None else [("hf", f"{stamp}/1/p")]
        publisher.publish(topic, properties=Properties(user=user))
    bench.run()
    return [message.topic for message in subscriber.messages()]


def test_edf_sends_the_earliest_deadline_first() -> None:
    bench = Bench(book(URGENT, CALM, EFFORT))
    assert order_of(bench, ["calm/1", "effort/1", "urgent/1"]) == ["urgent/1", "effort/1", "calm/1"]


def test_fcfs_sends_in_the_order_of_arrival() -> None:
    bench = Bench(book(URGENT, CALM, EFFORT), policy="fcfs")
    assert order_of(bench, ["calm/1", "effort/1", "urgent/1"]) == ["calm/1", "effort/1", "urgent/1"]


def test_fixed_priority_follows_the_contracts_priorities() -> None:
    contracts = book(
        contract("a", "a/+", "50ms", 0, priority=3),
        contract("b", "b/+", "500ms", 0, priority=1),
        contract("c", "c/+", "100ms", 0, priority=2),
    )
    assert order_of(Bench(contracts, policy="fixed-priority"), ["a/1", "c/1", "b/1"]) == ["b/1", "c/1", "a/1"]


def test_least_laxity_prefers_the_job_that_takes_longer() -> None:
    bench = Bench(
        book(contract("a", "a/+", "50ms", 0), contract("b", "b/+", "50ms", 0)), policy="least-laxity"
    )
    for number in range(20):
        bench.client(f"b{number}").subscribe("b/#")
    assert order_of(bench, ["a/1", "b/1"]) == ["b/1", "a/1"]


def test_maximum_urgency_sends_what_must_not_be_lost_before_best_effort() -> None:
    bench = Bench(book(URGENT, CALM, EFFORT), policy="maximum-urgency")
    assert order_of(bench, ["effort/1", "calm/1", "urgent/1"]) == ["urgent/1", "calm/1", "effort/1"]


def test_time_on_the_way_to_the_broker_brings_the_deadline_nearer() -> None:
    """Lemma 2: D_d = D - Δ_PB - Δ_BS, with Δ_PB measured from the creation stamp."""
    bench = Bench(book(contract("a", "a/+", "200ms", 0), contract("b", "b/+", "150ms", 0)))
    stamps = {"a/1": WALL_NS + bench.now_ns - 100 * MS}
    assert order_of(bench, ["b/1", "a/1"], stamps) == ["a/1", "b/1"]


@pytest.mark.parametrize("lie_ns", [-(10**18), -(10**9), 10**9, 10**17])
def test_a_lying_stamp_changes_the_deadline_by_at_most_d(lie_ns: int) -> None:
    """A stamp from the far past means: due now. A stamp from the future means: just created."""
    bench = Bench(book(contract("a", "a/+", "200ms", 0), contract("b", "b/+", "150ms", 0)))
    stamps = {"a/1": WALL_NS + bench.now_ns + lie_ns}
    expected = ["a/1", "b/1"] if lie_ns < 0 else ["b/1", "a/1"]
    assert order_of(bench, ["b/1", "a/1"], stamps) == expected


@given(st.lists(st.tuples(st.sampled_from(["a/1", "a/2", "b/1"]), st.integers(-300, 300)), max_size=40))
@settings(max_examples=50, deadline=None)
def test_order_within_a_topic_is_arrivals_whatever_the_stamps(sent: list[tuple[str, int]]) -> None:
    bench = Bench(book(contract("a", "a/+", "200ms", 0), contract("b", "b/+", "150ms", 0)))
    subscriber = bench.client("s")
    subscriber.subscribe("#")
    publisher = bench.client("p")
    for number, (topic, age_ms) in enumerate(sent):
        stamp = f"{WALL_NS + bench.now_ns - age_ms * MS}/{number}/p"
        publisher.publish(topic, b"%d" % number, properties=Properties(user=[("hf", stamp)]))
    bench.run()
    got = [(message.topic, int(message.payload)) for message in subscriber.messages()]
    for topic in ("a/1", "a/2", "b/1"):
        numbers = [number for name, number in got if name == topic]
        assert numbers == [number for number, (name, _) in enumerate(sent) if name == topic]


def test_what_has_no_contract_goes_behind_what_has_one_also_when_it_is_overdue() -> None:
    bench = Bench(book(URGENT))
    reader, publisher = bench.client("s"), bench.client("p")
    reader.subscribe("#")
    for _ in range(50):
        publisher.publish("none/1")
    bench.now_ns += 10_000 * MS
    publisher.publish("urgent/1")
    bench.run()
    assert [each.topic for each in reader.messages()] == ["urgent/1", *["none/1"] * 50]


def test_a_topic_that_gets_a_contract_keeps_its_order_and_then_has_its_place() -> None:
    bench = Bench(book())
    reader, publisher = bench.client("s"), bench.client("p")
    reader.subscribe("#")
    publisher.publish("urgent/1", b"first")
    bench.broker.reload(book(URGENT, CALM))
    publisher.publish("urgent/1", b"second")
    bench.run()
    assert [each.payload for each in reader.messages()] == [b"first", b"second"]
    publisher.publish("urgent/1", b"third")
    bench.run()
    assert [each.payload for each in reader.messages()] == [b"third"]
    publisher.publish("calm/1", b"calm")
    publisher.publish("urgent/1", b"fourth")
    bench.run()
    assert [each.payload for each in reader.messages()] == [b"fourth", b"calm"]


def test_an_urgent_message_overtakes_a_backlog() -> None:
    """A slice is bounded: what arrives during a backlog goes before the rest of it."""
    bench = Bench(book(URGENT, EFFORT))
    subscriber = bench.client("s")
    subscriber.subscribe("#")
    publisher, alarm = bench.client("p"), bench.client("alarm")
    slice_jobs = bench.broker.limits.slice_jobs_max
    for _ in range(3 * slice_jobs):
        publisher.publish("effort/1")
    bench.turn()
    alarm.publish("urgent/1")
    bench.run()
    topics = [message.topic for message in subscriber.messages()]
    assert len(topics) == 3 * slice_jobs + 1
    assert topics.index("urgent/1") == slice_jobs


@pytest.mark.parametrize(("width", "messages"), [(1, 1000), (5, 200), (50, 128), (250, 128), (1000, 32)])
def test_a_slice_counts_deliveries_and_makes_writes_worth_their_while(width: int, messages: int) -> None:
    """1,000 deliveries; 128 for each link if that is more; 32,000 at most."""
    bench = Bench(book(EFFORT))
    subscribers = [bench.client(f"s{number}") for number in range(width)]
    for subscriber in subscribers:
        subscriber.subscribe("effort/#")
    publisher = bench.client("p")
    for _ in range(1100):
        publisher.publish("effort/1")
    bench.turn()
    assert len(subscribers[0].messages()) == messages
    bench.run()


def test_the_strictest_subscriber_sets_the_deadline() -> None:
    bench = Bench(book(contract("a", "a/+", "200ms", 0), contract("b", "b/+", "150ms", 0)))
    bench.client("strict").subscribe("a/#", properties=Properties(user=[("hf-deadline", "100ms")]))
    assert order_of(bench, ["b/1", "a/1"]) == ["a/1", "b/1"]


def requirement(client: Client, filter: str, name: str, value: str) -> tuple[int, str | None]:
    answer = client.subscribe(filter, properties=Properties(user=[(name, value)]))
    return answer.reasons[0], answer.properties.reason_string


def test_a_requirement_that_cannot_be_kept_is_refused_in_words() -> None:
    bench = Bench(book(URGENT))
    client = bench.client("s")
    reason, text = requirement(client, "urgent/1", "hf-deadline", "0.5ms")
    assert reason >= 0x80
    assert "1ms" in str(text)
    publisher = bench.client("p")
    publisher.publish("urgent/1")
    bench.run()
    assert client.messages() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("hf-deadline", "soon"), ("hf-deadline", "-1ms"), ("hf-loss", "few"), ("hf-loss", "-2")],
)
def test_a_requirement_that_cannot_be_read_is_refused_in_words(name: str, value: str) -> None:
    reason, text = requirement(Bench(book(URGENT)).client("s"), "urgent/1", name, value)
    assert reason >= 0x80
    assert value in str(text)


def test_a_requirement_that_can_be_kept_is_granted() -> None:
    reason, _ = requirement(Bench(book(URGENT)).client("s"), "urgent/1", "hf-deadline", "20ms")
    assert reason == 0


def test_a_subscription_sees_what_is_published_after_it_and_nothing_before() -> None:
    """Messages of the last slice and before are not sent to it, even if their dispatch comes later."""
    bench = Bench()
    publisher, subscriber = bench.client("p"), bench.client("s")
    for _ in range(bench.broker.limits.slice_jobs_max + 5):
        publisher.publish("t", b"before")
    bench.turn()
    assert bench.broker.core.jobs_waiting == 5
    subscriber.send(Subscribe(packet_id=1, subscriptions=[Subscription(filter="t")]))
    publisher.publish("t", b"after")
    bench.run()
    assert [message.payload for message in subscriber.messages()] == [b"after"]


def test_pubcomp_never_goes_before_the_pubrec_it_belongs_to() -> None:
    """PUBREL in the same write as its PUBLISH: PUBREC waits for the dispatch, so PUBCOMP waits too."""
    bench = Bench()
    client = bench.client("p")
    client.send(Publish(topic="t", qos=2, packet_id=4), Pubrel(packet_id=4))
    bench.run()
    assert [type(packet) for packet in client.take()] == [Pubrec, Pubcomp]
    assert client.connection.inbound == 0


def test_no_acknowledgement_before_its_own_dispatch() -> None:
    """The urgent message is dispatched first; the calm one's PUBACK must not go along with it."""
    bench = Bench(book(URGENT, CALM, limits=Limits(slice_jobs_max=1)))
    client = bench.client("p")
    client.send(
        Publish(topic="calm/1", qos=1, packet_id=1),
        Publish(topic="urgent/1", qos=1, packet_id=2),
    )
    bench.turn()
    assert bench.broker.core.jobs_waiting == 1
    assert client.take() == []
    bench.run()
    assert [packet.packet_id for packet in client.take() if isinstance(packet, Puback)] == [1, 2]


def test_acknowledgements_leave_in_the_order_of_the_publishes() -> None:
    """An urgent message is dispatched first, but its PUBACK does not overtake that of an earlier one."""
    bench = Bench(book(URGENT, CALM))
    client = bench.client("p")
    client.send(
        Publish(topic="calm/1", qos=1, packet_id=1),
        Publish(topic="urgent/1", qos=1, packet_id=2),
    )
    bench.run()
    assert [packet.packet_id for packet in client.take() if isinstance(packet, Puback)] == [1, 2]
