"""Who fills the room for sessions pays for it: a user, or the address of who gives no name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.bench import Client, book
from tests.security.guarded import Guarded, reason

from holdfast.broker.broker import Broker
from holdfast.broker.holdings import session_weight
from holdfast.broker.weights import will_weight
from holdfast.config import Limits
from holdfast.mqtt.packets import Connect, Disconnect, Properties, Unsubscribe, Will

QUOTA = 0x97
ROOM = 400_000
HOUR = Properties(session_expiry=3600)
ALICE, BOB = ("alice", "192.0.2.1"), ("bob", "192.0.2.1")
HERE, THERE = (None, "192.0.2.1"), (None, "192.0.2.2")
Whose = tuple[str | None, str]


def limited(room: int = ROOM) -> Guarded:
    contracts = book(limits=Limits(sessions_bytes_max=room))
    return Guarded(security='anonymous = "anywhere"\n', contracts=contracts)


def come(
    bench: Guarded, client_id: str, whose: Whose, will: Will | None = None, clean: bool = True
) -> Client:
    user, address = whose
    bench.gate._address_of = lambda fd: address
    packet = Connect(client_id=client_id, properties=HOUR, will=will, clean_start=clean)
    return bench.knock(packet, certificate=user)


def fill(bench: Guarded, whose: Whose, prefix: str, size: int = 1000) -> int:
    """Sessions with as many filters as are granted to each, until one gets none; says how many."""
    for number in range(1000):
        client = come(bench, f"{prefix}{number}", whose)
        if reason(client) == QUOTA:
            return number
        for each in range(1000):
            if client.subscribe(f"{prefix}/{number}/{each}/{'f' * size}").reasons == [QUOTA]:
                break
        if each == 0:
            return number
    raise AssertionError("there is room without end")


def held(bench: Guarded, whose: Whose) -> int:
    user, address = whose
    return bench.broker.holdings.paid()[user or f"\0{address}"]


@pytest.mark.parametrize(("greedy", "other"), [(ALICE, BOB), (HERE, THERE), (HERE, ALICE), (ALICE, HERE)])
def test_many_sessions_of_one_have_half_of_the_room_and_others_find_some(greedy: Whose, other: Whose) -> None:
    bench = limited()
    assert fill(bench, greedy, "g", size=100) >= 5
    assert ROOM * 3 // 8 < bench.broker.holdings.total <= ROOM // 2
    calm = come(bench, "calm", other)
    assert reason(calm) == 0
    calm.take()
    assert [calm.subscribe(f"calm/{number}").reasons for number in range(20)] == [[0]] * 20
    assert fill(bench, other, "o", size=100) >= 2
    assert bench.broker.holdings.total <= ROOM * 3 // 4


@pytest.mark.parametrize("whose", [ALICE, HERE])
def test_of_what_one_may_have_a_session_has_half(whose: Whose) -> None:
    bench = limited()
    client = come(bench, "large", whose)
    client.take()
    for number in range(1000):
        if client.subscribe(f"large/{number}/{'f' * 1000}").reasons == [QUOTA]:
            break
    assert ROOM // 8 < held(bench, whose) <= ROOM // 4
    assert reason(come(bench, "beside", whose)) == 0


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_will_has_room_up_to_the_bound(over: int) -> None:
    room = ROOM // 2
    bench = limited(room)
    least = session_weight("alice\0c") + will_weight(Will("w", b""))
    will = Will("w", b"x" * (room * 7 // 32 - least + over))
    assert reason(come(bench, "c", ALICE, will)) == (QUOTA if over > 0 else 0)
    if over <= 0:
        assert reason(come(bench, "c", ALICE, will, clean=False)) == 0  # it has that one already


def test_a_session_is_paid_for_at_the_address_where_its_client_came_last() -> None:
    bench = limited()
    come(bench, "c", HERE)
    weight = held(bench, HERE)
    come(bench, "c", THERE, clean=False)
    assert (held(bench, THERE), set(bench.broker.holdings.paid())) == (weight, {"\x00192.0.2.2"})


def sums(broker: Broker) -> dict[str, int]:
    """What the sessions of each weigh together."""
    found: dict[str, int] = {}
    for session in broker.clients.sessions.values():
        assert session.payer is not None
        found[session.payer.name] = found.get(session.payer.name, 0) + session.weight
    return found


STEPS = st.tuples(
    st.sampled_from(["connect", "subscribe", "unsubscribe", "leave"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from([ALICE, BOB, HERE, THERE]),
    st.sampled_from(["x", "x/y", "$share/g/x", "f" * 500]),
    st.booleans(),
)


@given(steps=st.lists(STEPS, max_size=30), room=st.sampled_from([8_000, 10**6]))
@settings(max_examples=50, deadline=None)
def test_what_each_pays_for_is_what_its_sessions_take(
    steps: list[tuple[str, str, Whose, str, bool]], room: int
) -> None:
    bench, clients = limited(room), dict[tuple[str, str | None], Client]()
    for step, name, whose, filter, clean in steps:
        client = clients.get((name, whose[0]))
        if step == "connect":
            will = Will("w", b"x" * 100) if clean else None
            clients[name, whose[0]] = come(bench, name, whose, will, clean)
        elif client is None or client.connection.closing:
            continue
        elif step == "subscribe":
            client.subscribe(filter)
        elif step == "unsubscribe":
            client.say(Unsubscribe(packet_id=1, filters=[filter]))
        else:
            client.say(Disconnect())
        assert bench.broker.holdings.paid() == sums(bench.broker)
    for session in list(bench.broker.clients.sessions.values()):
        bench.broker.clients.end(session, bench.now_ns)
    bench.run()
    assert bench.broker.holdings.paid() == {}
    assert bench.broker.holdings.total == 0
