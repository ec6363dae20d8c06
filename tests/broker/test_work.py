"""What clients ask costs units, a turn spends so many, and nobody waits for another's work."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.bench import WALL_NS, Bench, Client, book

from holdfast.broker import subscribing
from holdfast.broker.core import REPEATED_MAX
from holdfast.broker.meter import Meter
from holdfast.broker.permit import Permit
from holdfast.broker.replaying import SKIPPED_EVERY
from holdfast.broker.retained import Node, RetainedNames
from holdfast.broker.rules import PUBLISHING_ALL
from holdfast.broker.subscribing import CLEARED_AT_ONCE, FILTERS_AT_ONCE
from holdfast.broker.subscriptions import SharedGroup
from holdfast.broker.work import (
    ASIDE_PER_TURN,
    CLEARED,
    CONTROL_PER_TURN,
    DROP,
    ENDED_PER_TURN,
    FILTER,
    FILTER_BYTES,
    GRANT,
    INTERRUPTED_PER_TURN,
    READ_AT_ONCE,
    REPLAYED_PER_TURN,
    ROUND,
)
from holdfast.config import Limits
from holdfast.mqtt.codec import encode
from holdfast.mqtt.conventions import DEADLINE_PROPERTY
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Properties,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from holdfast.mqtt.topics import matches
from holdfast.units import S

QUOTA_EXCEEDED, PACKET_TOO_LARGE, NOT_AUTHORIZED = 0x97, 0x95, 0x87
BATCH = FILTERS_AT_ONCE * (FILTER + 2 * GRANT)  # what is done before it is looked whether a share is spent
TURN_MAX = INTERRUPTED_PER_TURN + ASIDE_PER_TURN + ENDED_PER_TURN + 3 * BATCH
MANY = 20 * ROUND // FILTER


def subscribe(*filters: str, packet_id: int = 1, user: int = 0) -> Subscribe:
    wanted = [Subscription(filter=filter, qos=0) for filter in filters]
    return Subscribe(packet_id, wanted, Properties(user=[("k", "v")] * user))


def names(count: int) -> list[str]:
    return [f"many/{number}" for number in range(count)]


def knock(bench: Bench, packet: Connect) -> Client:
    connection = bench.broker.open(None, bench.now_ns)
    assert connection is not None
    client = Client(bench, connection)
    bench.clients[connection] = client
    client.send(packet)
    return client


def turns_to_rest(bench: Bench) -> int:
    """Runs, and looks at what each turn spends."""
    turns, works = 0, bench.broker.works
    before, more = works.spent, True
    while more:
        more = bench.turn()
        turns += 1
        assert works.spent - before <= TURN_MAX
        before = works.spent
    return turns


def last(client: Client) -> object:
    return client.take()[-1]


# SUBSCRIBE and UNSUBSCRIBE


def test_a_large_subscribe_is_made_in_pieces_in_the_order_of_its_connection() -> None:
    bench = Bench()
    large, small, publisher = bench.client("l"), bench.client("s"), bench.client("p")
    small.subscribe("a")
    large.send(subscribe(*names(MANY)), Publish("a", b"behind"))
    first = len(large.connection.session.subscriptions)
    assert 0 < first <= READ_AT_ONCE // FILTER + FILTERS_AT_ONCE
    publisher.publish("a", b"x")
    small.send(subscribe("b", packet_id=2))
    bench.turn()
    got = small.take()
    assert [packet.payload for packet in got if isinstance(packet, Publish)] == [b"x"]
    assert [packet.packet_id for packet in got if isinstance(packet, Suback)] == [2]
    assert turns_to_rest(bench) > MANY * FILTER // TURN_MAX
    assert list(large.connection.session.subscriptions) == names(MANY)
    (answer,) = large.take()
    assert isinstance(answer, Suback)
    assert answer.reasons == [0] * MANY
    assert [message.payload for message in small.messages()] == [b"behind"]


def test_an_ordinary_subscribe_takes_effect_where_it_is_read_though_a_large_one_waits() -> None:
    bench = Bench()
    large, small = bench.client("l"), bench.client("s")
    large.send(subscribe(*names(MANY)))
    small.send(subscribe("a"))
    assert list(small.connection.session.subscriptions) == ["a"]


def test_a_large_unsubscribe_is_done_in_pieces() -> None:
    bench = Bench(book(limits=Limits(subscriptions_per_session_max=100_000)))
    client = bench.client("c")
    client.say(subscribe(*names(MANY)))
    client.take()
    client.send(Unsubscribe(1, [*names(MANY), "never"]))
    assert len(client.connection.session.subscriptions) > MANY // 2
    turns_to_rest(bench)
    (answer,) = client.take()
    assert isinstance(answer, Unsuback)
    assert answer.reasons == [0] * MANY + [0x11]
    assert len(bench.broker.core.tree) == 0


def test_several_large_ones_take_turns() -> None:
    bench = Bench()
    clients = [bench.client(f"c{number}") for number in range(3)]
    for client in clients:
        client.send(subscribe(*names(MANY)))
    for _ in range(10):
        bench.turn()
    made = [len(client.connection.session.subscriptions) for client in clients]
    assert max(made) - min(made) <= READ_AT_ONCE // FILTER + 2 * ROUND // FILTER
    turns_to_rest(bench)
    assert [len(client.connection.session.subscriptions) for client in clients] == [MANY] * 3


@pytest.mark.parametrize("clean", [True, False])
def test_who_leaves_in_the_middle_is_not_worked_for_any_more(clean: bool) -> None:
    bench = Bench()
    options = {"properties": Properties(session_expiry=0 if clean else 100)}
    client = bench.client("c", **options)
    client.send(subscribe(*names(MANY)))
    bench.turn()
    made = len(client.connection.session.subscriptions)
    bench.broker.lost(client.connection, bench.now_ns)
    turns_to_rest(bench)
    assert bench.broker.subscribing._replaced == {}
    if clean:
        assert len(bench.broker.core.tree) == 0
    else:
        assert len(bench.broker.clients.sessions["c"].subscriptions) == made < MANY


def test_what_is_malformed_at_the_end_of_a_large_subscribe_leaves_nothing_made() -> None:
    bench = Bench()
    client = bench.client("c", properties=Properties(session_expiry=100))
    data = bytearray(encode(subscribe(*names(MANY)), 5))
    data[-1] = 3  # no QoS
    client.send_bytes(bytes(data))
    bench.run()
    assert last(client).reason == 0x82
    assert not bench.broker.clients.sessions["c"].subscriptions


def test_what_a_subscribe_asks_is_read_once_for_all_its_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    requirement_of = subscribing.requirement_of
    monkeypatch.setattr(
        subscribing, "requirement_of", lambda properties: read.append(1) or requirement_of(properties)
    )
    bench = Bench()
    client = bench.client("c")
    client.say(subscribe(*names(500), user=200))
    assert sum(read) == 1
    refused = Properties(user=[(DEADLINE_PROPERTY, "soon")])
    client.say(Subscribe(2, [Subscription(name) for name in names(500)], refused))
    assert sum(read) == 2
    assert set(last(client).reasons) == {0x83}


def test_who_waits_for_its_own_work_is_not_taken_for_silent() -> None:
    bench = Bench()
    client = bench.client("c", keep_alive=1)
    client.send(subscribe(*names(MANY)), Publish("a", b"x"))
    bench.turn()
    bench.now_ns += 100 * S
    bench.turn()
    assert not client.connection.closing
    bench.run()
    assert isinstance(client.take()[0], Suback)


# What no client needs


@pytest.mark.parametrize("over", [0, 1])
def test_a_packet_has_so_many_filters(over: int) -> None:
    bench = Bench(book(limits=Limits(packet_filters_max=50)))
    for packet in (subscribe(*names(50 + over)), Unsubscribe(1, names(50 + over))):
        client = bench.client("c")
        client.say(packet)
        answer = last(client)
        assert client.connection.closing == bool(over)
        if over:
            assert isinstance(answer, Disconnect)
            assert answer.reason == QUOTA_EXCEEDED
            assert "up to 50 topic filters" in (answer.properties.reason_string or "")


@pytest.mark.parametrize("over", [0, 1])
def test_a_packet_has_so_many_user_properties(over: int) -> None:
    bench = Bench(book(limits=Limits(user_properties_max=20)))
    client = bench.client("c")
    client.say(subscribe("a", user=20 + over))
    assert client.connection.closing == bool(over)
    many = Properties(user=[("k", "v")] * (20 + over))
    client = knock(bench, Connect(client_id="d", properties=many))
    bench.run()
    (answer,) = client.take()
    assert isinstance(answer, Connack)
    assert answer.reason == (QUOTA_EXCEEDED if over else 0)
    client = bench.client("e")
    client.say(Puback(1, 0x10, many))
    assert client.connection.closing == bool(over)


@pytest.mark.parametrize("over", [0, 1])
def test_a_packet_that_is_no_message_has_so_many_bytes(over: int) -> None:
    bench = Bench(book(limits=Limits(control_bytes_max=1000)))
    client = bench.client("c")
    head = len(b"\x82\xe5\x07\x00\x01\x00\x00\x03\x00")
    client.send(subscribe("x" * (1000 - head + over)))
    bench.run()
    assert client.connection.closing == bool(over)
    assert last(client).reason == QUOTA_EXCEEDED if over else True
    publisher = bench.client("p")
    publisher.publish("a", b"x" * 5000)
    bench.run()
    assert not publisher.connection.closing


@pytest.mark.parametrize("over", [0, 1])
def test_topics_and_filters_have_so_many_levels(over: int) -> None:
    bench = Bench(book(limits=Limits(topic_levels_max=5)))
    name = "/".join("x" * (5 + over))
    client = bench.client("c")
    assert client.subscribe(name).reasons == [0x8F if over else 0]
    client.publish(name)
    bench.run()
    assert last(client).reason == 0x90 if over else client.messages()
    client = knock(bench, Connect(client_id="d", will=Will(topic=name)))
    bench.run()
    assert last(client).reason == (0x90 if over else 0)


@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_topics_filters_and_groups_have_so_many_bytes(over: int, letter: str) -> None:
    bench = Bench(book(limits=Limits(topic_bytes_max=101)))
    name = "x" + letter * (100 // len(letter.encode()) - 1) + "x" * (len(letter.encode()) + over)
    assert len(name.encode()) == 101 + over
    client = bench.client("c")
    refused = over > 0
    assert client.subscribe(name).reasons == [0x8F if refused else 0]
    assert client.subscribe(f"$share/{name}/a").reasons == [0x8F if refused else 0]
    old = bench.client("old", version=4)
    assert old.subscribe(name).reasons == [0x80 if refused else 0]
    assert len(bench.broker.core.tree) == (0 if refused else 3)
    will = knock(bench, Connect(client_id="d", will=Will(topic=name)))
    bench.run()
    assert last(will).reason == (0x90 if refused else 0)
    client.publish(name)
    bench.run()
    assert last(client).reason == 0x90 if refused else client.messages()


@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_client_identifier_has_so_many_bytes(over: int, version: int, letter: str) -> None:
    bench = Bench(book(limits=Limits(client_id_bytes_max=31)))
    name = letter * (30 // len(letter.encode())) + "x" * (1 + over)
    client = knock(bench, Connect(client_id=name, version=version))
    client.version = version
    bench.run()
    (answer,) = client.take()
    refused = over > 0
    assert isinstance(answer, Connack)
    assert answer.reason == ((0x85 if version == 5 else 2) if refused else 0)
    assert client.connection.closing == refused
    assert list(bench.broker.clients.sessions) == ([] if refused else [name])
    assert not refused or version < 5 or "up to 31 bytes" in str(answer.properties.reason_string)


def test_an_oversized_packet_is_refused_before_it_is_there() -> None:
    bench = Bench(book(limits=Limits(control_bytes_max=1000)))
    client = bench.client("c")
    client.send_bytes(b"\x82\xff\xff\x03")
    bench.run()
    assert last(client).reason == QUOTA_EXCEEDED


@pytest.mark.parametrize("version", [4, 5])
def test_who_is_not_let_in_says_little_and_is_told(version: int) -> None:
    bench = Bench(book(limits=Limits(connect_bytes_max=1000)))
    will = Will(topic="t", payload=b"x" * 1000)
    client = knock(bench, Connect(client_id="c", version=version, will=will))
    bench.run()
    assert client.connection.closing
    assert [packet.reason for packet in client.take()] == ([PACKET_TOO_LARGE] if version == 5 else [])
    client = bench.client("c")
    client.publish("t", b"x" * 5000)
    bench.run()
    assert not client.connection.closing


def test_a_turn_hears_so_much_of_who_is_not_let_in() -> None:
    bench = Bench()
    large = Will(topic="t", payload=b"x" * 65_000)
    clients = [knock(bench, Connect(client_id=f"c{number}", will=large)) for number in range(20)]
    bench.turn()
    answered = sum(bool(client.take()) for client in clients)
    assert 0 < answered <= CONTROL_PER_TURN // (65_000 // 128) + 1 < 20
    bench.run()
    assert answered + sum(bool(client.take()) for client in clients) == 20


# The end of a session


def test_the_subscriptions_of_a_session_that_ended_go_in_pieces_and_get_nothing() -> None:
    bench = Bench(book(limits=Limits(subscriptions_per_session_max=100_000)))
    gone, stays, publisher = bench.client("g"), bench.client("s"), bench.client("p")
    gone.say(Subscribe(1, [Subscription(name, 1) for name in ("$share/g/t", *names(MANY))]))
    stays.subscribe("$share/g/t")
    session = gone.connection.session
    bench.broker.lost(gone.connection, bench.now_ns)
    assert len(bench.broker.core.tree) > MANY // 2
    for number in range(4):
        publisher.publish("t", b"%d" % number, qos=1, packet_id=number + 1)
        publisher.publish(f"many/{number}", b"", qos=1, packet_id=number + 10)
    bench.turn()
    assert len(bench.broker.core.tree) > 10
    assert session.queued == 0
    turns_to_rest(bench)
    assert [message.payload for message in stays.messages()] == [b"0", b"1", b"2", b"3"]
    assert len(bench.broker.core.tree) == 1
    assert bench.broker.core.messages_held == bench.broker.core.retained_count


def test_long_filters_of_a_session_that_ended_count_by_their_bytes() -> None:
    bench = Bench()
    client, size, count = bench.client("a"), 60_000, 50
    for number in range(count):
        client.subscribe(f"{number:03}".ljust(size, "f"))
    bench.broker.lost(client.connection, bench.now_ns)
    at_once = ENDED_PER_TURN * FILTER_BYTES // size + 1
    assert len(bench.broker.core.tree) >= count - at_once
    while before := len(bench.broker.core.tree):
        bench.turn()
        assert 0 < before - len(bench.broker.core.tree) <= INTERRUPTED_PER_TURN * FILTER_BYTES // size + 1


@pytest.mark.parametrize("how", ["expire", "lost", "disconnect"])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65])
def test_many_sessions_that_end_together_are_worked_off_in_bounded_turns(how: str, count: int) -> None:
    bench = Bench()
    expiry = Properties(session_expiry=1 if how == "expire" else 0)
    clients = [bench.client(f"c{number}", properties=expiry) for number in range(count)]
    for number, client in enumerate(clients):
        client.say(subscribe(*(f"{number}/{each}" for each in range(ENDED_PER_TURN // DROP))))
    other = bench.client("o")
    for client in clients:
        if how == "disconnect":
            client.send(Disconnect())
        else:
            bench.broker.lost(client.connection, bench.now_ns)
    assert bench.broker.works.spent
    bench.now_ns += 2 * S if how == "expire" else 0
    other.send(subscribe("a", packet_id=2))
    turns = turns_to_rest(bench)
    assert turns >= count * ENDED_PER_TURN // TURN_MAX
    assert [type(each) for each in other.take()] == [Suback]
    assert list(bench.broker.clients.sessions) == ["o"]
    assert len(bench.broker.core.tree) == 1


@pytest.mark.parametrize("over", [-1, 0, 1, 10 * CLEARED_AT_ONCE])
def test_what_waited_for_a_session_that_ended_goes_in_pieces(over: int) -> None:
    """And what is offered meanwhile is not kept, nor does the session end twice."""
    count = CLEARED * ENDED_PER_TURN + over
    bench = Bench()
    away, publisher = bench.client("a", properties=Properties(session_expiry=1)), bench.client("p")
    away.subscribe("t/#", qos=1)
    bench.broker.lost(away.connection, bench.now_ns)
    for number in range(count):
        publisher.publish("t/x", b"", qos=1, packet_id=1 + number % 60_000)
        if number % 100 == 0:
            bench.run()
    bench.run()
    session = bench.broker.clients.sessions["a"]
    assert session.queued == count
    bench.now_ns += 2 * S
    bench.turn()
    assert (session.queued > 0) == (over > 0)
    assert "a" not in bench.broker.clients.sessions
    again = bench.client("a", properties=Properties(session_expiry=1))
    publisher.publish("t/x", b"", qos=1, packet_id=1)
    turns_to_rest(bench)
    assert session.queued == session.held_bytes == 0
    assert bench.broker.clients.sessions["a"] is again.connection.session
    assert bench.broker.core.messages_held == bench.broker.core.retained_count


# Retained messages


def test_a_replay_counts_what_it_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    walk = RetainedNames.walk

    def counted(self: RetainedNames, filter: bytes) -> Iterator[bytes | None]:
        nonlocal looked
        for name in walk(self, filter):
            looked += 1
            yield name

    monkeypatch.setattr(RetainedNames, "walk", counted)
    bench = Bench()
    publisher, client = bench.client("p"), bench.client("c")
    for number in range(5 * REPLAYED_PER_TURN):
        publisher.publish(f"r/{number}/x", b"x", retain=True)
    bench.run()
    client.send(subscribe("r/+/k", "r/+/l"))
    most, more = looked, True
    while more:
        before = looked
        more = bench.turn()
        most = max(most, looked - before)
    assert looked > 10 * REPLAYED_PER_TURN
    assert most <= REPLAYED_PER_TURN + subscribing.REPLAYED_AT_ONCE


def test_many_replays_to_who_does_not_read_cost_one_look() -> None:
    bench = Bench()
    publisher, slow, other = bench.client("p"), bench.client("s"), bench.client("o")
    for number in range(300):
        publisher.publish(f"r/{number}", b"x", retain=True)
    bench.run()
    slow.stop_reading()
    slow.send(*[subscribe("r/+", packet_id=number + 1) for number in range(50)])
    other.send(subscribe("r/+"))
    bench.run()
    assert len(other.messages()) == 300
    slow.read_again()
    bench.run()
    slow.collect()
    got = [message.topic for message in slow.messages()]
    assert len(set(got)) == 300
    assert len(got) < 1000  # a subscription that was replaced gets no more


def nodes() -> int:
    gc.collect()
    return sum(isinstance(each, Node) for each in gc.get_objects())


@pytest.mark.parametrize("takes_some", [False, True])
def test_a_walk_that_waits_for_its_client_keeps_few_names_that_went(takes_some: bool) -> None:
    bench = Bench()
    publisher = bench.client("p", version=4)
    for number in range(200):
        publisher.publish(f"r/0/{number}/x", b"x", retain=True, qos=1)
    for number in range(90):
        publisher.publish(f"r/{number}", b"x", retain=True, qos=1)
    bench.run()
    slow = bench.client("s", properties=Properties(receive_max=1))
    slow.say(Subscribe(1, [Subscription(filter="r/+/+/x", qos=1)]))
    before = nodes()
    got: list[str] = []

    def take() -> bool:
        messages = slow.messages()
        got.extend(each.topic for each in messages)
        slow.say(*[Puback(packet_id=each.packet_id) for each in messages])
        return bool(messages)

    for number in range(90, 12_000):
        publisher.publish(f"r/{number}", b"x", retain=True, qos=1)
        publisher.publish(f"r/{number - 90}", b"", retain=True, qos=1)
        if number % 200 == 0:
            bench.run()
            assert not takes_some or take()
    assert nodes() - before < 2 * SKIPPED_EVERY
    while take():
        pass
    assert sorted(got) == sorted(f"r/0/{number}/x" for number in range(200))


LEVEL = st.sampled_from([b"a", b"b", b"$c", b""])
NAME = st.lists(LEVEL, min_size=1, max_size=4).map(b"/".join).filter(bool)
FILTER_OF_NAMES = st.sampled_from(
    [b"#", b"+", b"a/#", b"+/a", b"a/+/b", b"+/+", b"$c/#", b"$c/+", b"a", b"a/b/#", b"+/#", b"/+"]
)


@settings(max_examples=300, deadline=None)
@given(
    start=st.sets(NAME, max_size=12),
    changes=st.lists(st.tuples(st.integers(0, 6), NAME, st.booleans()), max_size=20),
    filter=FILTER_OF_NAMES,
)
def test_a_walk_that_is_interrupted_finds_what_was_there_all_the_time(
    start: set[bytes], changes: list[tuple[int, bytes, bool]], filter: bytes
) -> None:
    retained = RetainedNames()
    for name in sorted(start):
        retained.add(name)
    present, always, ever = set(start), set(start), set(start)
    found: list[bytes] = []
    walk = retained.walk(filter)
    names = iter(walk)
    for steps, name, there in changes:
        if not steps:
            walk.skip_gone()
        for _ in range(steps):
            each = next(names, None)
            if each is not None:
                assert each in present
                found.append(each)
        if there:
            retained.add(name)
            present.add(name)
            ever.add(name)
        else:
            retained.discard(name)
            present.discard(name)
            always.discard(name)
    found += [name for name in names if name is not None]
    assert {name for name in always if matches(filter, name)} <= set(found)
    assert all(matches(filter, name) and name in ever for name in found)
    assert len([name for name in found if name in always]) == len(set(found) & always)
    assert sorted(retained.matching(filter)) == sorted(name for name in present if matches(filter, name))
    if retained.surely_none(filter):
        assert retained.matching(filter) == []


# Matching


def deep(rng: random.Random) -> str:
    return "/".join(rng.choice("a+") for _ in range(60))


def test_filters_that_multiply_are_refused_in_words_and_others_are_not() -> None:
    bench = Bench(book(limits=Limits(match_steps_per_session_max=200, match_steps_max=1000)))
    rng = random.Random(1)
    core = bench.broker.core
    for number in range(8):
        client = bench.client(f"c{number}")
        client.say(subscribe(*[deep(rng) for _ in range(50)]))
        answer = last(client)
        assert isinstance(answer, Suback)
        assert {0, QUOTA_EXCEEDED} >= set(answer.reasons)
        assert QUOTA_EXCEEDED in answer.reasons
        assert "fewer levels with +" in (answer.properties.reason_string or "")
        assert core.tree.steps <= 1000
    visited = core.tree.visited
    publisher = bench.client("p")
    for number in range(20):
        publisher.publish("a/" * 59 + str(number))
    assert core.tree.visited - visited <= 20 * core.tree.steps
    assert bench.client("h").subscribe("plant/+/line/+/temperature").reasons == [0]


def test_who_subscribes_first_and_leaves_first_does_not_pay_for_who_came_after() -> None:
    bench = Bench()
    first, second = bench.client("a"), bench.client("b")
    for wanted in ("a/+/" * 10 + "b", "$share/g/" + "a/+/" * 10 + "c"):
        for _ in range(60):
            for client in (first, second):
                assert client.subscribe(wanted).reasons == [0]
            assert first.subscribe(wanted, qos=1).reasons == [1]
            for client in (first, second):
                client.say(Unsubscribe(1, [wanted]))
                client.take()
            assert [client.connection.session.steps for client in (first, second)] == [0, 0]


GROUP = st.sampled_from(["", "", "$share/g/", "$share/h/"])
TREE_FILTER = st.lists(st.sampled_from(["a", "b", "+"]), min_size=1, max_size=5).map("/".join)


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), GROUP, TREE_FILTER, st.booleans(), st.booleans()), max_size=60
    ),
    topic=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5).map("/".join),
)
def test_no_topic_visits_more_nodes_and_groups_than_the_tree_says(
    steps: list[tuple[int, str, str, bool, bool]], topic: str
) -> None:
    bench = Bench()
    clients = [bench.client(f"c{number}") for number in range(3)]
    tree = bench.broker.core.tree
    for index, group, filter, rest, there in steps:
        wanted = group + (f"{filter}/#" if rest else filter)
        if there:
            clients[index].say(subscribe(wanted))
        else:
            clients[index].say(Unsubscribe(1, [wanted]))
        before = tree.visited
        groups = sum(isinstance(match, SharedGroup) for match in tree.matching(topic.encode()))
        assert tree.visited - before + groups <= tree.steps
    sessions = [client.connection.session for client in clients]
    for client in clients:
        bench.broker.lost(client.connection, bench.now_ns)
    bench.run()
    assert tree.steps == 1
    assert sum(session.steps for session in sessions) == 0


def test_wide_nodes_forget_in_time_how_deep_they_were() -> None:
    bench = Bench()
    client = bench.client("c")
    client.say(subscribe("w/deep/" + "x/" * 40, *[f"w/{number}" for number in range(100)]))
    tree = bench.broker.core.tree
    assert tree.steps > 40
    client.say(Unsubscribe(1, ["w/deep/" + "x/" * 40]))
    client.say(Unsubscribe(1, [f"w/{number}" for number in range(90)]))
    assert tree.steps < 5


# What is read


def test_new_topics_beyond_a_share_wait_for_a_turn_and_come_in_order() -> None:
    bench = Bench()
    subscriber, flood, other = bench.client("s"), bench.client("f"), bench.client("o")
    subscriber.subscribe("#")
    flood.send(*[Publish(f"new/{number}", b"%d" % number) for number in range(READ_AT_ONCE)])
    assert flood.connection.tired
    assert flood.connection.owes_answer()
    other.publish("other", b"x")
    bench.turn()
    got = [message.payload for message in subscriber.messages()]
    assert b"x" in got
    assert len(got) < READ_AT_ONCE
    bench.run()
    got += [message.payload for message in subscriber.messages()]
    got.remove(b"x")
    assert got == [b"%d" % number for number in range(READ_AT_ONCE)]
    assert not flood.connection.tired


def test_topics_that_are_denied_are_not_entered_and_cost_units() -> None:
    bench = Bench()
    client = bench.client("c")
    client.connection.permit = Permit(lambda topic: PUBLISHING_ALL if topic == b"allowed" else 0)
    before = bench.broker.core.topics.count
    client.send(*[Publish(f"t/{number}", b"", qos=1, packet_id=number + 1) for number in range(1000)])
    assert client.connection.tired
    bench.run()
    answers = client.take()
    assert [answer.reason for answer in answers] == [NOT_AUTHORIZED] * 1000
    assert bench.broker.core.topics.count == before
    alias = Properties(topic_alias=1)
    client.send(
        Publish("denied", b"", qos=1, packet_id=1, properties=alias),
        Publish("", b"", qos=1, packet_id=2, properties=alias),
        Publish("allowed", b"", qos=1, packet_id=3),
    )
    bench.run()
    assert [answer.reason for answer in client.take()] == [NOT_AUTHORIZED, NOT_AUTHORIZED, 0x10]


def test_acknowledgements_with_properties_cost_units() -> None:
    bench = Bench()
    client = bench.client("c")
    client.send(*[Puback(1, 0x10, Properties(user=[("k", "v")] * 200)) for _ in range(50)])
    assert client.connection.tired
    bench.run()
    assert not client.connection.tired
    assert not client.connection.closing


def test_who_spent_its_share_and_is_too_fast_waits_for_both() -> None:
    bench = Bench()
    client, subscriber = bench.client("c"), bench.client("s")
    subscriber.subscribe("#")
    client.connection.limit(Meter(1000, 0), None)
    client.send(*[Publish(f"new/{number}", b"") for number in range(1500)])
    bench.run()
    for _ in range(40):
        bench.pass_time(S // 10)
    assert len(subscriber.messages()) == 1500


@pytest.mark.parametrize("version", [4, 5])
def test_what_comes_again_and_is_not_safe_yet_is_held_back_and_looked_at_once(version: int) -> None:
    bench = Bench(book(limits=Limits(slice_jobs_max=100)))
    for number in range(10):
        bench.client(f"s{number}").subscribe("t")
    publisher, again = bench.client("p", version=4), bench.client("a", version=version)
    again.say(Publish(topic="t", payload=b"", qos=2, packet_id=7))
    assert isinstance(last(again), Pubrec)
    repeated = encode(Publish(topic="t", payload=b"", qos=2, packet_id=7, dup=True), version)
    sent = 0
    for _ in range(10):
        if publisher.connection.wants_bytes():
            for _ in range(300):
                publisher.publish("t", qos=1)
        if again.connection.wants_bytes():
            again.send_bytes(repeated * 500)
            sent += 500
        bench.turn()
    assert 0 < sent <= 2 * REPEATED_MAX
    assert sum(map(len, bench.broker.core.known_again.values())) <= sent
    assert again.connection.holds == 1
    again.connection.heard_ns -= 3600 * S  # what it says meanwhile is not read: it is not taken for silent
    bench.broker.watch(again.connection, bench.now_ns)
    assert not again.connection.closing
    bench.run()
    assert again.connection.wants_bytes()
    assert [type(each) for each in again.take()] == [Pubrec] * sent
    assert not bench.broker.core.known_again


def test_routes_that_change_under_many_messages_are_looked_up_in_bounded_slices() -> None:
    """What waits when a subscription comes is matched again: no slice does that for all of it."""
    bench = Bench(book(limits=Limits(slice_jobs_max=100_000)))
    publisher, subscriber = bench.client("p"), bench.client("s")
    connection = publisher.connection
    bench.broker.core.work_left = bench.broker.core.share_max = 10**9
    publisher.send(*[Publish(f"t/{number}", b"") for number in range(3000)])
    assert bench.broker.core.jobs_waiting == 3000
    assert not connection.tired
    subscriber.send(subscribe("t/+"))
    bench.broker.turn(bench.now_ns, WALL_NS)
    assert 0 < bench.broker.core.jobs_waiting < 3000
    bench.run()
    assert len(subscriber.messages()) == 3000


@pytest.mark.parametrize("size", [400, 511, 512, 513, 600, 1025, 2049, 5000])
def test_a_table_of_topics_that_grows_has_every_topic_once(size: int) -> None:
    bench = Bench()
    client, core = bench.client("c"), bench.broker.core
    before = core.topics.count
    for number in range(size):
        client.publish(f"t/{number}", b"%d" % number, retain=True)
        bench.run()
        if number % 7 == 0:
            client.publish(f"t/{number // 2}", b"", retain=True)
            client.publish(f"t/{number // 2}", b"%d" % (number // 2), retain=True)
            bench.run()
    assert core.topics.count - before == size
    for number in range(size):
        found = core.retained_message(b"t/%d" % number)
        assert found is not None
        assert found[6] == b"%d" % number
