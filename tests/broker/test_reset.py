"""A client that was reset hears nothing any more: what it said counts, as far as others see it."""

from __future__ import annotations

import pytest
from tests.broker.bench import Bench, Client

from holdfast.broker.work import FILTER
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import Disconnect, Properties, Publish, Subscribe, Subscription, Will

FILTERS_BYTES_MAX = 1024


def filters_of(client: Client) -> int:
    assert client.connection.session is not None
    return len(client.connection.session.subscriptions)


def ask(name: str, size: int) -> Subscribe:
    """A SUBSCRIBE whose body has so many bytes."""
    return Subscribe(1, [Subscription(name.ljust(size - 6, "x"))])


def asks(size: int, count: int) -> list[Subscribe]:
    return [ask(f"{number:03}", size) for number in range(count)]


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_of_who_was_reset_so_many_bytes_of_filters_are_heard(over: int) -> None:
    bench = Bench()
    client = bench.client("a")
    client.connection.unheard = True
    half = FILTERS_BYTES_MAX // 2
    client.say(ask("a", half), ask("b", half + over), ask("c", 10), ask("d", 10))
    assert len(encode(ask("a", half), 5)) == half + len(b"\x82\x80\x04")
    assert filters_of(client) == (2 if over > 0 else 3)


def test_who_is_there_is_heard_whatever_it_asks() -> None:
    bench = Bench()
    client = bench.client("a")
    client.say(*asks(100, 50))
    assert filters_of(client) == 50


def test_what_many_filters_of_who_was_reset_cost_is_bounded() -> None:
    bench = Bench()
    for number in range(50):
        bench.client("writer").publish(f"r/{number}", b"x", retain=True)
    bench.run()
    client = bench.client("a")
    client.connection.unheard = True
    before = bench.broker.works.spent
    client.say(*[Subscribe(1, [Subscription("r/#")])] * 10_000)
    assert bench.broker.works.spent - before < FILTERS_BYTES_MAX * FILTER
    assert client.messages() == [], "nobody is there to take what is retained"
    assert not bench.broker.subscribing.replays.order


def test_messages_and_goodbye_of_who_was_reset_count() -> None:
    bench = Bench()
    watcher = bench.client("w")
    watcher.subscribe("#")
    will = Will(topic="will", payload=b"")
    client = bench.client("a", will=will)
    client.connection.unheard = True
    client.say(
        *asks(1000, 3),
        *[Publish(topic=f"t/{number}", payload=b"x") for number in range(100)],
        Disconnect(),
    )
    assert [each.topic for each in watcher.messages()] == [f"t/{number}" for number in range(100)]
    assert client.connection.closing


def test_a_session_that_comes_back_hears_everything_again() -> None:
    bench = Bench()
    bench.client("writer").publish("r/1", b"x", retain=True)
    lasting = Properties(session_expiry=100)
    client = bench.client("a", clean_start=False, properties=lasting)
    client.connection.unheard = True
    client.say(Subscribe(1, [Subscription("r/#")]))
    bench.broker.lost(client.connection, bench.now_ns)
    again = bench.client("a", clean_start=False, properties=lasting)
    assert again.connection.session is not None
    assert "r/#" in again.connection.session.subscriptions, "what was heard holds"
    again.subscribe("r/+")
    again.say(*asks(1000, 3))
    assert filters_of(again) == 5
