"""Sessions, their wills and subscriptions have a bound in bytes, and nobody has more than half of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.bench import Bench, Client, book

from holdfast.broker.broker import Broker
from holdfast.broker.holdings import session_weight
from holdfast.broker.subscriptions import NODE_WEIGHT, weight_of
from holdfast.broker.weights import will_weight
from holdfast.config import Limits
from holdfast.mqtt.packets import Connack, Connect, Disconnect, Properties, Unsubscribe, Will

KEPT = Properties(session_expiry=3600)
QUOTA_EXCEEDED = 0x97
ROOM = 100_000
SMALL = 8192


def limited(room: int = ROOM) -> Bench:
    return Bench(book(limits=Limits(sessions_bytes_max=room)))


def weighed(broker: Broker) -> int:
    """What the sessions that there are weigh together; each pays for all levels of its filters."""
    total, nodes = 0, set()
    for session in broker.clients.sessions.values():
        weight, paid = session_weight(session.key) + will_weight(session.state.last_will), 0
        for subscription in session.subscriptions.values():
            weight += weight_of(subscription.filter, subscription.group)
            levels = subscription.filter.split(b"/")
            paid += len(levels)
            levels = levels[:-1] if levels[-1] == b"#" else levels
            nodes |= {tuple(levels[: depth + 1]) for depth in range(len(levels))}
        assert session.weight == weight + NODE_WEIGHT * paid
        total += weight
    return total + NODE_WEIGHT * len(nodes)


def answer(bench: Bench, packet: Connect) -> Connack:
    connection = bench.broker.open(None, bench.now_ns)
    assert connection is not None
    client = bench.clients[connection] = Client(bench, connection)
    client.say(packet)
    found = client.take()[0]
    assert isinstance(found, Connack)
    return found


def fill(client: Client, prefix: str, most: int = 10_000) -> int:
    """Subscribes until it is refused; says how often it was not."""
    for number in range(most):
        (reason,) = client.subscribe(f"{prefix}/{number}/{'f' * 1000}").reasons
        if reason:
            assert reason == QUOTA_EXCEEDED
            return number
    return most


NAMES = st.sampled_from(["a", "b", "c"])
FILTERS = st.sampled_from(
    ["x", "x/y", "x/y/z", "x/#", "+/y", "$share/g/x/y", "$share/é/x", "é" * 40, "f" * 500]
)
WILLS = st.sampled_from(
    [None, Will("w"), Will("w", b"x" * 300), Will("w", properties=Properties(user=[("k", "é")]))]
)
STEPS = st.one_of(
    st.tuples(st.just("connect"), NAMES, WILLS, st.booleans()),
    st.tuples(st.just("subscribe"), NAMES, FILTERS, st.just(None)),
    st.tuples(st.just("unsubscribe"), NAMES, FILTERS, st.just(None)),
    st.tuples(st.just("leave"), NAMES, st.booleans(), st.just(None)),
)


@given(steps=st.lists(STEPS, max_size=30), room=st.sampled_from([4_000, 8_000, 10**6]))
@settings(max_examples=100, deadline=None)
def test_what_sessions_take_is_what_is_there(steps: list[tuple[str, str, object, object]], room: int) -> None:
    bench, clients = limited(room), dict[str, Client]()
    for step, name, what, clean in steps:
        client = clients.get(name)
        if step == "connect":
            will = what if isinstance(what, Will) else None
            packet = Connect(client_id=name, will=will, clean_start=bool(clean), properties=KEPT)
            connection = bench.broker.open(None, bench.now_ns)
            assert connection is not None
            client = clients[name] = bench.clients[connection] = Client(bench, connection)
            client.say(packet)
        elif client is None or client.connection.closing:
            continue
        elif step == "subscribe":
            client.subscribe(str(what))
        elif step == "unsubscribe":
            client.say(Unsubscribe(packet_id=1, filters=[str(what)]))
        elif what:
            client.say(Disconnect())
        else:
            bench.broker.lost(client.connection, bench.now_ns)
            bench.run()
        assert bench.broker.holdings.total == weighed(bench.broker) <= room
    for session in list(bench.broker.clients.sessions.values()):
        bench.broker.clients.end(session, bench.now_ns)
    bench.run()
    assert bench.broker.holdings.total == 0


def test_who_holds_as_much_as_is_free_is_refused_more_and_others_are_not() -> None:
    bench = limited()
    greedy, other = bench.client("greedy", properties=KEPT), bench.client("other", properties=KEPT)
    before = fill(greedy, "greedy")
    assert ROOM * 3 // 8 < bench.broker.holdings.total <= ROOM // 2 + 2 * session_weight("other")
    assert greedy.subscribe(f"greedy/0/{'f' * 1000}", qos=1).reasons == [1]  # it has that one
    assert before // 3 < fill(other, "other") < before
    assert bench.broker.holdings.total <= ROOM
    assert "refused" in [event for event, _ in bench.events]
    greedy.say(
        Unsubscribe(packet_id=1, filters=[f"greedy/{number}/{'f' * 1000}" for number in range(before)])
    )
    assert fill(greedy, "again") > before // 2


def test_nobody_is_asked_while_there_is_ample_room() -> None:
    room = 10_000_000
    bench = limited(room)
    client = bench.client("deep", properties=KEPT)
    session = bench.broker.clients.sessions["deep"]
    deep, number = "/".join("d" * 100), 0
    while session.weight <= room:  # it pays for levels that its filters share
        assert client.subscribe(f"{deep}/{number}").reasons == [0]
        number += 1
    assert bench.broker.holdings.ample()
    assert client.subscribe(f"{deep}/0/longer/than/any").reasons == [0]
    assert bench.broker.core.tree.grown


def test_a_session_that_ends_gives_back_what_it_took() -> None:
    bench = limited()
    greedy = bench.client("greedy", properties=Properties(session_expiry=60))
    held = fill(greedy, "greedy")
    bench.broker.lost(greedy.connection, bench.now_ns)
    bench.now_ns += 61 * 1_000_000_000
    bench.run()
    assert bench.broker.holdings.total == 0
    assert fill(bench.client("greedy"), "greedy") == held


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_will_has_room_up_to_the_bound(over: int) -> None:
    empty = Will("w", b"")
    least = session_weight("c") + will_weight(empty)
    bench = limited(ROOM)
    packet = Connect(client_id="c", will=Will("w", b"x" * (ROOM * 7 // 16 - least + over)), properties=KEPT)
    assert answer(bench, packet).reason == (QUOTA_EXCEEDED if over > 0 else 0)
    assert len(bench.broker.clients.sessions) == (0 if over > 0 else 1)
    if over <= 0:
        again = Connect(client_id="c", will=packet.will, clean_start=False, properties=KEPT)
        assert answer(bench, again).reason == 0  # what it has is not asked about again
        larger = Connect(client_id="c", will=Will("w", b"x" * 60_000), clean_start=False)
        assert answer(bench, larger).reason == QUOTA_EXCEEDED


def test_however_much_large_sessions_hold_a_small_one_is_let_in() -> None:
    room = 1_000_000
    bench, large = limited(room), 0
    for number in range(60):
        packet = Connect(client_id=f"large{number}", will=Will("w", b"x" * 8_000), properties=KEPT)
        if answer(bench, packet).reason:
            continue
        large += 1
        connection = bench.broker.clients.sessions[f"large{number}"].link
        assert connection is not None
        fill(bench.clients[connection], f"large{number}")
    assert large > 5
    assert room * 3 // 4 < bench.broker.holdings.total <= room * 7 // 8
    for number in range(20):
        small = bench.client(f"small{number}", properties=KEPT)
        for each in range(3):
            assert small.subscribe(f"small/{number}/{each}").reasons == [0]
    assert bench.broker.holdings.total <= room


@pytest.mark.parametrize("over", [0, 1])
def test_a_session_is_small_up_to_the_bound(over: int) -> None:
    bench = limited(ROOM)
    least = session_weight("c") + will_weight(Will("w", b""))
    packet = Connect(client_id="c", will=Will("w", b"x" * (SMALL - least + over)), properties=KEPT)
    while bench.broker.holdings.total + 2 * (SMALL + 1) <= ROOM * 7 // 8:
        bench.client(f"o{bench.broker.connections_made:04}", properties=KEPT)
    assert bench.broker.holdings.total + 2 * SMALL <= ROOM
    assert answer(bench, packet).reason == (QUOTA_EXCEEDED if over else 0)


def test_sessions_without_clients_are_refused_when_there_is_no_room() -> None:
    bench = limited()
    reasons = []
    for number in range(200):
        reasons.append(answer(bench, Connect(client_id=f"c{number}", properties=KEPT)).reason)
        assert bench.broker.holdings.total <= ROOM
    made = reasons.index(QUOTA_EXCEEDED)
    assert ROOM * 7 // 8 // session_weight("c0") < made
    assert set(reasons[:made]) == {0}
    assert set(reasons[made:]) == {QUOTA_EXCEEDED}
    assert answer(bench, Connect(client_id="c0", clean_start=False, properties=KEPT)).reason == 0
