"""A subscriber that cannot keep up: best effort goes first, then promises within L; then it is ended."""

from __future__ import annotations

import pytest

from broker.bench import MS, Bench, Client, book, contract
from holdfast.config import Limits
from holdfast.mqtt.packets import Disconnect, Properties, Puback, Publish, Pubrec
from holdfast.mqtt.reasons import Reason

LIMITS = Limits(queue_messages_max=100, slice_jobs_max=1000)
PROMISED = contract("promised", "promised/+", "50ms", 0)
TOLERANT = contract("tolerant", "tolerant/+", "50ms", 3)
EFFORT = contract("effort", "effort/+", "100ms", "unlimited")


def stalled(*contracts: str) -> tuple[Bench, Client, Client]:
    """A subscriber to everything that has stopped reading, and a publisher."""
    bench = Bench(book(*contracts, limits=LIMITS))
    subscriber, publisher = bench.client("s"), bench.client("p")
    subscriber.subscribe("#")
    subscriber.stop_reading()
    return bench, subscriber, publisher


def publish(bench: Bench, publisher: Client, topic: str, count: int, start: int = 0, size: int = 0) -> None:
    for number in range(start, start + count):
        publisher.publish(topic, (b"%d" % number).ljust(size))
        bench.turn()


def numbers(messages: list[Publish], topic: str) -> list[int]:
    return [int(message.payload) for message in messages if message.topic == topic]


def test_what_waits_leaves_by_deadline() -> None:
    bench, subscriber, publisher = stalled(PROMISED, EFFORT)
    publish(bench, publisher, "effort/1", 3)
    publish(bench, publisher, "promised/1", 3)
    subscriber.read_again()
    topics = [message.topic for message in subscriber.messages()]
    assert topics == ["promised/1"] * 3 + ["effort/1"] * 3


def test_the_queue_is_bounded_and_keeps_the_newest_best_effort() -> None:
    bench, subscriber, publisher = stalled(EFFORT)
    publish(bench, publisher, "effort/1", 1000)
    session = bench.broker.clients.sessions["s"]
    assert session.queued == LIMITS.queue_messages_max
    subscriber.read_again()
    assert numbers(subscriber.messages(), "effort/1") == list(range(900, 1000))
    assert bench.broker.core.board.messages_dropped == 900


def test_best_effort_makes_way_for_promises() -> None:
    bench, subscriber, publisher = stalled(PROMISED, EFFORT)
    publish(bench, publisher, "effort/1", 100)
    publish(bench, publisher, "promised/1", 60)
    subscriber.read_again()
    messages = subscriber.messages()
    assert numbers(messages, "promised/1") == list(range(60))
    assert len(numbers(messages, "effort/1")) == 40


def longest_gap(got: list[int]) -> int:
    return max((after - before - 1 for before, after in zip([-1, *got], got, strict=False)), default=0)


def test_promises_are_thinned_within_their_tolerance_never_beyond() -> None:
    bench, subscriber, publisher = stalled(TOLERANT)
    publish(bench, publisher, "tolerant/1", 400)
    subscriber.read_again()
    got = numbers(subscriber.messages(), "tolerant/1")
    assert len(got) < 400
    assert longest_gap(got) <= 3


def test_a_run_of_losses_ends_with_the_next_message_that_is_kept() -> None:
    bench, subscriber, publisher = stalled(TOLERANT)
    publish(bench, publisher, "tolerant/1", 102)
    subscriber.read_again()
    subscriber.stop_reading()
    publish(bench, publisher, "tolerant/1", 103, start=102)
    subscriber.read_again()
    assert not subscriber.connection.closing
    got = numbers(subscriber.messages(), "tolerant/1")
    assert got == [*range(100), *range(102, 202)]


@pytest.mark.parametrize(("away", "words"), [(True, "was away"), (False, "too slowly")])
def test_why_a_session_ended_is_said(away: bool, words: str) -> None:
    bench = Bench(book(PROMISED, limits=LIMITS))
    subscriber = bench.client("s", properties=Properties(session_expiry=3600))
    publisher = bench.client("p")
    subscriber.subscribe("#", qos=1)
    if away:
        subscriber.say(Disconnect())
    else:
        subscriber.stop_reading()
    for number in range(300):
        publisher.publish("promised/1", b"m", qos=1, packet_id=1 + number)
        bench.turn()
    (told,) = [details for event, details in bench.events if event == "overloaded"]
    assert words in str(told["why"])


def test_beyond_the_tolerance_the_subscriber_is_told_and_ended() -> None:
    bench, subscriber, publisher = stalled(PROMISED)
    publish(bench, publisher, "promised/1", 101)
    bench.run()
    assert subscriber.connection.closing
    farewell = subscriber.take()[-1]
    assert isinstance(farewell, Disconnect)
    assert farewell.reason == Reason.QUOTA_EXCEEDED
    assert "s" not in bench.broker.clients.sessions
    assert ("overloaded", "s") in [(event, details.get("client")) for event, details in bench.events]
    publish(bench, publisher, "promised/1", 10)
    assert not publisher.connection.closing


def dropped(bench: Bench) -> dict[str, int]:
    return {terms.name: terms.dropped for terms in bench.broker.contracts.all}


def test_what_waited_for_a_session_that_ended_is_counted_as_dropped() -> None:
    bench, _, publisher = stalled(PROMISED, EFFORT)
    publish(bench, publisher, "effort/1", 3)
    publish(bench, publisher, "promised/1", 101)
    bench.run()
    assert dropped(bench) == {"promised": 101, "effort": 3, "default": 0}
    assert bench.broker.core.board.messages_dropped == 104
    publish(bench, publisher, "promised/1", 10)
    assert bench.broker.core.board.messages_dropped == 104


@pytest.mark.parametrize("acknowledged", [0, 1, 9, 10])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_client_that_left_never_confirmed_counts_under_its_contract(
    qos: int, acknowledged: int
) -> None:
    """Nothing waits in its queue: all of it is on the way to a client that is not there any more, and topics
    without a contract count like others."""
    bench = Bench(book(PROMISED, limits=LIMITS))
    client, publisher = bench.client("s", properties=Properties(session_expiry=1000)), bench.client("p")
    client.subscribe("#", qos=qos)
    for number in range(10):
        publisher.publish("nobody/promised/this", qos=qos, packet_id=number + 1)
        bench.run()
    sent = client.messages()
    assert len(sent) == 10
    for message in sent[:acknowledged]:
        client.say((Puback if qos == 1 else Pubrec)(message.packet_id))
    bench.broker.lost(client.connection, bench.now_ns)
    session = bench.broker.clients.sessions["s"]
    bench.broker.clients.end_now(session, bench.now_ns, Reason.QUOTA_EXCEEDED, "too much")
    assert dropped(bench) == {"promised": 0, "default": 10 - acknowledged}
    assert bench.broker.core.board.messages_dropped == 10 - acknowledged


@pytest.mark.parametrize("more", [0, 1, 50])
def test_what_does_not_fit_into_the_queue_of_a_client_that_left_counts_under_the_default(more: int) -> None:
    bench = Bench(book(PROMISED, limits=LIMITS))
    client, publisher = bench.client("s", properties=Properties(session_expiry=1000)), bench.client("p")
    client.subscribe("#", qos=1)
    bench.broker.lost(client.connection, bench.now_ns)
    for _ in range(LIMITS.queue_messages_max + more):
        publisher.publish("nobody/promised/this", qos=1)
        bench.run()
    assert dropped(bench) == {"promised": 0, "default": more}


def test_a_session_that_its_own_client_ends_drops_nothing() -> None:
    bench, subscriber, publisher = stalled(EFFORT)
    publish(bench, publisher, "effort/1", 50)
    bench.broker.lost(subscriber.connection, bench.now_ns)
    bench.run()
    assert "s" not in bench.broker.clients.sessions
    assert dropped(bench) == {"effort": 0, "default": 0}


def test_publishers_are_slowed_before_anything_is_dropped_but_not_for_long() -> None:
    bench, _, publisher = stalled(EFFORT)
    publish(bench, publisher, "effort/1", 76)
    assert not publisher.connection.wants_bytes()
    assert bench.broker.core.board.messages_dropped == 0
    bench.pass_time(bench.broker.limits.slow_max_ns)
    assert publisher.connection.wants_bytes()
    publish(bench, publisher, "effort/1", 200)
    assert publisher.connection.wants_bytes()


def test_a_publisher_faster_than_its_contract_waits_while_the_subscriber_moves() -> None:
    """A burst under an L = 0 contract: the subscriber is slow but reads, so nothing is lost and nobody cut.

    It takes four messages (64 KiB) in 30 ms, so its queue shrinks from the high mark to half in more than
    `slow_max`: the publisher has to stay held for longer than that."""
    bench, subscriber, publisher = stalled(PROMISED)
    sent, got = 0, 0
    for _ in range(300):
        bench.now_ns += 30 * MS
        while publisher.connection.wants_bytes() and sent < 500:
            publish(bench, publisher, "promised/1", 1, start=sent, size=20_000)
            sent += 1
        subscriber.reads = True
        subscriber.connection.drained()
        bench.turn()
        subscriber.stop_reading()
        messages = numbers(subscriber.messages(), "promised/1")
        assert messages == list(range(got, got + len(messages)))
        got += len(messages)
    assert got == sent == 500


def test_a_publisher_that_keeps_to_its_contract_does_not_wait_for_one_that_is_slow() -> None:
    """With acknowledgements too: a subscriber that moves a little, as one does that writes to a slow disk,
    holds it back for `slow_max` and no longer."""
    bench = Bench(book(PROMISED, limits=LIMITS))
    subscriber, publisher = bench.client("s"), bench.client("p")
    subscriber.subscribe("#", qos=1)
    subscriber.stop_reading()
    for number in range(80):
        publisher.publish(f"promised/{number}", b"0".ljust(20_000), qos=1, packet_id=number + 1)
        bench.turn()
    assert not publisher.connection.wants_bytes()
    subscriber.reads = True
    subscriber.connection.drained()
    bench.turn()
    subscriber.stop_reading()
    assert len(subscriber.messages()) > 0
    assert not publisher.connection.wants_bytes()
    bench.pass_time(bench.broker.limits.slow_max_ns)
    assert publisher.connection.wants_bytes()


def test_publishers_go_on_when_the_subscriber_does() -> None:
    bench, subscriber, publisher = stalled(PROMISED)
    publish(bench, publisher, "promised/1", 80)
    assert not publisher.connection.wants_bytes()
    subscriber.read_again()
    assert publisher.connection.wants_bytes()
    assert numbers(subscriber.messages(), "promised/1") == list(range(80))


def test_publishers_go_on_when_the_slow_subscriber_leaves() -> None:
    bench, subscriber, publisher = stalled(PROMISED)
    publish(bench, publisher, "promised/1", 80)
    bench.broker.lost(subscriber.connection, bench.now_ns)
    bench.run()
    assert publisher.connection.wants_bytes()


def test_a_publisher_that_outruns_the_broker_is_paused() -> None:
    bench = Bench(book(EFFORT))
    publisher = bench.client("p")
    for _ in range(3 * bench.broker.limits.slice_jobs_max):
        publisher.publish("effort/1")
    assert not publisher.connection.wants_bytes()
    bench.run()
    assert publisher.connection.wants_bytes()


def test_another_subscriber_does_not_notice() -> None:
    bench, _, publisher = stalled(PROMISED, EFFORT)
    healthy = bench.client("h")
    healthy.subscribe("effort/#")
    publish(bench, publisher, "effort/1", 1000)
    assert numbers(healthy.messages(), "effort/1") == list(range(1000))


def test_an_offline_session_keeps_its_bound_too() -> None:
    bench = Bench(book(PROMISED, EFFORT, limits=LIMITS))
    subscriber = bench.client("s", version=4, clean_start=False)
    subscriber.subscribe("#", qos=1)
    publisher = bench.client("p")
    bench.broker.lost(subscriber.connection, bench.now_ns)
    for number in range(500):
        publisher.publish("effort/1", b"%d" % number, qos=1)
        bench.run()
    assert bench.broker.clients.sessions["s"].queued == 100
    for number in range(101):
        publisher.publish("promised/1", b"%d" % number, qos=1)
        bench.run()
    assert "s" not in bench.broker.clients.sessions


def test_nothing_is_held_when_everyone_is_gone() -> None:
    bench, subscriber, publisher = stalled(PROMISED, TOLERANT, EFFORT)
    for topic in ("effort/1", "tolerant/1", "promised/1"):
        publish(bench, publisher, topic, 50)
    for client in (subscriber, publisher):
        bench.broker.lost(client.connection, bench.now_ns)
    bench.pass_time(1 * MS)
    system = bench.broker.core.retained_count
    assert bench.broker.core.messages_held == system


def test_a_run_of_losses_ends_with_a_message_that_goes_out_at_once() -> None:
    bench, subscriber, publisher = stalled(TOLERANT, PROMISED)
    for round in range(3):
        if round:
            subscriber.read_again()
            publish(bench, publisher, "tolerant/1", 1)
            assert numbers(subscriber.messages(), "tolerant/1") == [0]
            subscriber.stop_reading()
        publish(bench, publisher, "promised/1", LIMITS.queue_messages_max)
        publish(bench, publisher, "tolerant/1", 3)
    subscriber.read_again()
    assert not [packet for packet in subscriber.take() if isinstance(packet, Disconnect)]
    assert "s" in bench.broker.clients.sessions


def test_what_is_remembered_of_losses_is_in_the_weight_of_a_session_and_goes() -> None:
    bench, subscriber, publisher = stalled(contract("names", "names/#", "50ms", 1), PROMISED)
    session = bench.broker.clients.sessions["s"]
    publish(bench, publisher, "promised/1", LIMITS.queue_messages_max)
    before, total = session.weight, bench.broker.holdings.total
    topics = [f"names/{number:05}/{'x' * 500}" for number in range(200)]
    for topic in topics:
        publish(bench, publisher, topic, 1)
    assert session.weight - before > 200 * 500
    assert bench.broker.holdings.total - total == session.weight - before
    subscriber.read_again()
    for topic in topics:
        publish(bench, publisher, topic, 1)
    assert session.weight == before
    assert bench.broker.holdings.total == total


@pytest.mark.parametrize("ends", [True, False])
def test_a_session_remembers_losses_of_so_many_topics_as_it_has_room_for(ends: bool) -> None:
    limits = Limits(queue_messages_max=100, memory_bytes_max=2**26)
    bench = Bench(book(contract("names", "names/#", "50ms", 1), PROMISED, limits=limits))
    away = bench.client("away", properties=Properties(session_expiry=3600))
    away.subscribe("#", qos=1)
    bench.broker.lost(away.connection, bench.now_ns)
    total = bench.broker.holdings.total
    publisher = bench.client("p", version=4)
    for number in range(100):
        publisher.publish("promised/1", b"%d" % number, qos=1)
    bench.run()
    for number in range(16_000 if ends else 200):
        publisher.publish(f"names/{number:05}/{'x' * 2000}", qos=1)
        bench.turn()
    assert bench.broker.holdings.total < limits.sessions_bytes_max
    assert ("away" in bench.broker.clients.sessions) is not ends
    if not ends:
        bench.broker.clients.end(bench.broker.clients.sessions["away"], bench.now_ns)
    bench.broker.lost(publisher.connection, bench.now_ns)
    bench.run()
    assert bench.broker.holdings.total < total
