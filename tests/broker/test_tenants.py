"""Topics in use: everybody has a share, and who has little is never refused for who has much."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.config import Limits
from holdfast.mqtt.packets import Disconnect, Properties, Puback, Publish

from .bench import Bench, Client, book

TOPICS = 64
KEPT = Properties(session_expiry=3600)
QUOTA = 0x97


def table(**limits: int) -> Bench:
    """A broker with room for TOPICS topics, or so many bytes of them, besides its own, which are retained."""
    return Bench(book(limits=Limits(**{"topics_max": TOPICS, **limits})))


def absent(bench: Bench, filter: str = "#") -> None:
    """A session whose client is away: what is published waits, and its topic is in use."""
    client = bench.client("absent", clean_start=False, properties=KEPT)
    client.subscribe(filter, qos=1)
    client.say(Disconnect())
    bench.run()


def puts_to_use(bench: Bench, client: Client, name: str) -> bool:
    client.publish(name, b"x", qos=1)
    bench.run()
    (answer,) = [packet for packet in client.take() if isinstance(packet, Puback)]
    assert answer.reason < 0x80 or answer.reason == QUOTA
    return answer.reason != QUOTA


def as_many_as_possible(bench: Bench, client: Client, name: str) -> int:
    count = 0
    while puts_to_use(bench, client, f"{name}/{count}"):
        count += 1
    return count


def test_one_client_has_half_of_the_room_and_the_next_half_of_the_rest() -> None:
    bench = table()
    absent(bench)
    room = TOPICS * 7 // 8
    taken = 0
    for name in ("first", "second", "third"):
        count = as_many_as_possible(bench, bench.client(name), name)
        assert count == (room - taken) // 2
        taken += count
    assert puts_to_use(bench, bench.client("honest"), "honest")


def test_a_topic_that_is_in_use_is_never_refused() -> None:
    bench = table()
    absent(bench)
    client = bench.client("c")
    count = as_many_as_possible(bench, client, "c")
    assert all(puts_to_use(bench, client, f"c/{number}") for number in range(count))


def test_what_is_not_in_use_any_more_is_given_back() -> None:
    bench = table()
    absent(bench)
    client = bench.client("c")
    count = as_many_as_possible(bench, client, "c")
    assert bench.broker.core.topics.in_use > 0
    session = bench.broker.clients.sessions["absent"]
    session.clear()
    assert bench.broker.core.topics.in_use == 0
    assert as_many_as_possible(bench, client, "d") == count


def test_many_idle_topics_are_nobodys_share() -> None:
    bench = table()
    client = bench.client("c")
    assert all(puts_to_use(bench, client, f"c/{number}") for number in range(4 * TOPICS))
    assert bench.broker.core.topics.in_use == 0


def test_who_comes_again_has_the_share_of_before() -> None:
    bench = table()
    absent(bench)
    count = as_many_as_possible(bench, bench.client("c"), "c")
    assert count
    again = bench.client("c")
    assert not puts_to_use(bench, again, "again")
    assert puts_to_use(bench, again, "c/0")


def test_long_names_are_shares_of_the_bytes() -> None:
    bytes_max = 400_000
    bench = table(topics_max=1_000_000, topics_bytes_max=bytes_max, packet_bytes_max=60_000)
    absent(bench)
    hostile, honest = bench.client("hostile"), bench.client("honest")
    taken = 0
    while puts_to_use(bench, hostile, f"{taken}".ljust(10_000, "x")):
        taken += 1
    assert taken * 10_000 <= bytes_max * 7 // 16 < (taken + 1) * 11_000
    assert all(puts_to_use(bench, honest, f"{number}".ljust(1_000, "y")) for number in range(20))
    assert bench.broker.core.topics.bytes_held <= bytes_max


def test_aliases_are_shares_too() -> None:
    bench = table(topic_alias_max=60)
    hostile = bench.client("hostile")
    for number in range(28):
        alias = Properties(topic_alias=number + 1)
        hostile.send(Publish(f"a/{number}", b"", 1, packet_id=1, properties=alias))
        bench.run()
        (answer,) = [packet for packet in hostile.take() if isinstance(packet, Puback)]
        assert answer.reason in (0, 0x10)
    hostile.send(Publish("a/28", b"", 1, packet_id=1, properties=Properties(topic_alias=29)))
    bench.run()
    (answer,) = [packet for packet in hostile.take() if isinstance(packet, Puback)]
    assert answer.reason == QUOTA
    assert puts_to_use(bench, bench.client("honest"), "honest")
    bench.broker.lost(hostile.connection, bench.now_ns)
    bench.run()
    assert bench.broker.core.topics.in_use == 0


def retain(bench: Bench, client: Client, name: str, payload: bytes) -> None:
    client.publish(name, payload, qos=1, retain=True)
    bench.run()
    client.take()


def test_retained_messages_are_paid_for_once() -> None:
    bench = table()
    absent(bench)
    client = bench.client("c")
    topics = bench.broker.core.topics
    before = topics.kept
    retain(bench, client, "kept", b"x")
    assert (topics.in_use, topics.kept) == (0, before + 1)
    retain(bench, client, "kept", b"")
    assert topics.in_use > 0, "it waits for a session"
    assert topics.kept == before
    bench.broker.clients.sessions["absent"].clear()
    assert topics.in_use == 0


def test_retained_messages_leave_the_number_of_other_topics_as_it_is() -> None:
    bench = table(retained_messages_max=10 * TOPICS)
    keeper, other = bench.client("keeper"), bench.client("other")
    topics = bench.broker.core.topics
    before = topics.kept
    for number in range(2 * TOPICS):
        retain(bench, keeper, f"kept/{number}", b"x")
    assert topics.kept == before + 2 * TOPICS
    absent(bench, "o/#")
    assert as_many_as_possible(bench, other, "o") == TOPICS * 7 // 16
    assert topics.count - topics.kept <= TOPICS


@pytest.mark.parametrize("ends", ["session", "connection", "broker"])
def test_nothing_is_left_whoever_goes_first(ends: str) -> None:
    bench = table()
    absent(bench)
    client = bench.client("c", clean_start=False, properties=KEPT)
    as_many_as_possible(bench, client, "c")
    first: dict[str, Callable[[], object]] = {
        "session": lambda: bench.broker.clients.end(bench.broker.clients.sessions["absent"], bench.now_ns),
        "connection": lambda: bench.broker.lost(client.connection, bench.now_ns),
        "broker": lambda: bench.broker.clients.end(bench.broker.clients.sessions["c"], bench.now_ns),
    }
    first[ends]()
    bench.run()
    if ends == "session":
        assert bench.broker.core.topics.in_use == 0
        return
    assert bench.broker.core.topics.in_use > 0
    bench.broker.clients.end(bench.broker.clients.sessions["absent"], bench.now_ns)
    bench.run()
    assert bench.broker.core.topics.in_use == 0
