"""Loops of a broker that stop at a budget: any number around it, and nothing is left out or done twice."""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.bench import MS, Bench, Client, book
from tests.pieces.sizes import any_size, sizes_around

from holdfast.broker.broker import TOPICS_SWEPT_AT_ONCE
from holdfast.broker.channels import (
    TOLD_AT_ONCE,
    TOLD_BYTES_MAX,
    WANTED_AT_ONCE,
    Counts,
    Listener,
    Want,
    key_of,
)
from holdfast.broker.replaying import AT_ONCE, OFFER, QUEUED_DURING_REPLAY_MAX
from holdfast.broker.subscribing import REPLAYED_AT_ONCE
from holdfast.broker.timers import FIRED_MAX, Timers
from holdfast.broker.watchlist import STEP_NS, Watchlist
from holdfast.broker.work import CONNECT, CONTROL_PER_TURN, REPLAYED_PER_TURN
from holdfast.config import Limits
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from holdfast.security.gate import SWEPT_AT_ONCE, Gate


class Item:
    watched = 0


@given(size=any_size(FIRED_MAX), times=st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_every_timer_fires_once_in_order(size: int, times: int) -> None:
    timers, fired = Timers(), []
    for number in range(size):
        timers.at(number % times, lambda number, now_ns: fired.append(number), number)
    runs = 0
    while len(timers):
        timers.run(10)
        runs += 1
    assert fired == sorted(range(size), key=lambda number: number % times)
    assert runs == -(-size // FIRED_MAX)


@given(size=any_size(20), most=st.integers(1, 25), steps=st.integers(1, 4))
def test_everybody_who_is_watched_is_looked_at_once(size: int, most: int, steps: int) -> None:
    items = [Item() for _ in range(size)]
    watchlist: Watchlist[Item] = Watchlist()
    for number, item in enumerate(items):
        watchlist.watch(item, number % steps * STEP_NS)
    looked: list[Item] = []
    while watchlist.next_ns is not None:
        found = watchlist.due(100 * STEP_NS, most)
        assert len(found) <= most
        looked += found
    assert len(looked) == size
    assert set(map(id, looked)) == set(map(id, items))


NAME = 1 + OFFER  # units of one retained message


@pytest.mark.parametrize("size", sizes_around(CONTROL_PER_TURN // CONNECT))
def test_every_client_that_asks_at_once_is_answered(size: int) -> None:
    bench = Bench()
    clients = []
    for _ in range(size):
        connection = bench.broker.open(None, bench.now_ns)
        assert connection is not None
        clients.append(Client(bench, connection))
        bench.clients[connection] = clients[-1]
    for number, client in enumerate(clients):
        subscribes = [Subscribe(each, [Subscription("t", 0)]) for each in (1, 2)]
        client.send(Connect(client_id=f"c{number}"), *subscribes, Unsubscribe(3, ["t"]), Pingreq())
    bench.run()
    wanted = Counter([Connack, Suback, Suback, Unsuback, Pingresp])
    assert [Counter(type(each) for each in client.take()) for client in clients] == [wanted] * size


def all_messages(bench: Bench, client: Client, count: int) -> list[Publish]:
    """Everything that comes while each is acknowledged, and what comes behind it."""
    got: list[Publish] = []
    quiet = 0
    while quiet < 2:
        bench.run()
        found = client.messages()
        client.send(*[Puback(message.packet_id) for message in found if message.packet_id])
        got += found
        quiet = 0 if found else quiet + 1
        assert len(got) <= count, "more came than there was"
    return got


@pytest.mark.parametrize(
    "size",
    sizes_around(
        AT_ONCE // NAME, REPLAYED_AT_ONCE // NAME, QUEUED_DURING_REPLAY_MAX, REPLAYED_PER_TURN // NAME
    ),
)
@pytest.mark.parametrize("qos", [0, 1])
def test_every_retained_message_comes_to_a_new_subscription_once(size: int, qos: int) -> None:
    bench = Bench()
    publisher = bench.client("p")
    for number in range(size):
        publisher.publish(f"t/{number}", b"%d" % number, retain=True)
        bench.run()
    subscribers = [bench.client(name) for name in ("first", "second")]
    for client in subscribers:
        client.send(Subscribe(1, [Subscription("t/#", qos)]))
    for client in subscribers:
        got = all_messages(bench, client, size)
        assert sorted(int(each.payload) for each in got) == list(range(size))


@pytest.mark.parametrize("size", sizes_around(7))
@pytest.mark.parametrize("away", [False, True])
def test_a_window_of_any_size_lets_every_message_through_in_order(size: int, away: bool) -> None:
    bench = Bench()
    options: dict[str, Any] = {
        "clean_start": False, "properties": Properties(session_expiry=60, receive_max=7),
    }  # fmt: skip
    client, publisher = bench.client("s", **options), bench.client("p")
    client.subscribe("t", 1)
    if away:
        bench.broker.lost(client.connection, bench.now_ns)
    for number in range(size):
        publisher.publish("t", b"%d" % number, qos=1, packet_id=number + 1)
    bench.run()
    if away:
        client = bench.client("s", **options)
    first = [each for each in client.got if isinstance(each, Publish)]
    assert len(first) == min(size, 7)
    got = all_messages(bench, client, size)
    assert [int(each.payload) for each in got] == list(range(size))


@pytest.mark.parametrize("size", sizes_around(10))
def test_a_slice_of_any_size_delivers_every_message_in_order(size: int) -> None:
    bench = Bench(book(limits=Limits(slice_jobs_max=10)))
    client, publisher = bench.client("s"), bench.client("p")
    client.subscribe("t")
    publisher.send(*[Publish("t", b"%d" % number) for number in range(size)])
    got = all_messages(bench, client, size)
    assert [int(each.payload) for each in got] == list(range(size))


@given(
    size=any_size(TOLD_AT_ONCE),
    length=st.sampled_from([1, 200, TOLD_BYTES_MAX // 2]),
    wanted=any_size(WANTED_AT_ONCE),
    changes=st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=20),
)
@settings(max_examples=40, deadline=None)
def test_a_listener_is_told_of_every_subscription_to_a_channel(
    size: int, length: int, wanted: int, changes: list[tuple[bool, int]]
) -> None:
    def filter_of(number: int) -> bytes:
        return b"$channels/c/%d" % number + (b"x" * length if number % 50 == 0 else b"")

    counts, there = Counts(), set(range(size))
    for number in there:
        counts.enter(filter_of(number))
    session: Any = None
    wants = {f"{number}": Want(session, filter_of(0), 1, 0) for number in range(wanted)}
    listener, known, asked, waiting = (
        Listener(counts, "e"),
        set[str](),
        list[str](),
        list(changes),
    )
    numbers = []
    while listener.waits or waiting:
        told = listener.next(wants)
        assert len(told.added) + len(told.removed) <= TOLD_AT_ONCE
        known = (known | set(told.added)) - set(told.removed)
        asked += [token for token, _, _ in told.wanted]
        numbers.append(told.number)
        if waiting:
            enters, number = waiting.pop(0)
            if enters != (number in there):
                there ^= {number}
                (counts.enter if enters else counts.leave)(filter_of(number))
                listener.changed(filter_of(number), enters)
    assert known == {key_of(filter_of(number)) for number in there}
    assert asked == list(wants)
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000])
@pytest.mark.parametrize("piece", [1, 7, TOPICS_SWEPT_AT_ONCE])
def test_idle_topics_are_all_forgotten_and_no_other(size: int, piece: int) -> None:
    bench = Bench()
    publisher = bench.client("p")
    for number in range(size):
        publisher.publish(f"idle/{number}", b"x")
        publisher.publish(f"kept/{number}", b"x", retain=True)
    bench.run()
    bench.pass_time(MS)
    topics = bench.broker.core.topics
    before, forgotten = topics.count, 0
    for _ in range(3 * 8192 // piece):  # slots, more than there are
        forgotten += topics.forget_idle(bench.now_ns, piece)
    assert forgotten >= size
    assert topics.count == before - forgotten
    client = bench.client("s")
    client.send(Subscribe(1, [Subscription("kept/#", 0)]))
    assert len(all_messages(bench, client, size)) == size


@given(size=any_size(SWEPT_AT_ONCE))
@settings(max_examples=30, deadline=None)
def test_every_session_is_looked_at_again_a_piece_in_each_turn(size: int) -> None:
    looked: list[str] = []
    timers, sessions = Timers(), {f"s{number}": f"s{number}" for number in range(size)}
    gate: Any = SimpleNamespace(
        broker=SimpleNamespace(
            clients=SimpleNamespace(sessions=sessions),
            subscribing=SimpleNamespace(recheck=looked.append),
            timers=timers,
        ),
        ruled=True,
        _serving=lambda: True,
        _gone=SimpleNamespace(is_over=lambda session: False),
    )
    gate._sweep = partial(Gate._sweep, gate)
    timers.at(0, gate._sweep, list(sessions))
    turn = 0
    while len(timers):
        before = len(looked)
        timers.run(turn)
        turn += 1
        assert len(looked) - before <= SWEPT_AT_ONCE
    assert looked == list(sessions)
