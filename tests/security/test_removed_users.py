"""Who gets the name of a user that was removed gets nothing that was that user's."""

from __future__ import annotations

import pytest
from tests.broker.bench import Client
from tests.replication.pair import MS, Group
from tests.security.guarded import Guarded, known

from holdfast.broker.clients import key_of
from holdfast.mqtt.packets import Connect, Disconnect, Properties
from holdfast.replication.roles import Role
from holdfast.security.gate import SWEPT_AT_ONCE, Gate
from holdfast.security.verified import Verified

NAMED = 'users = "users"'
LONG = {"clean_start": False, "properties": Properties(session_expiry=600)}
BOTH, ALICE = {"alice": "1", "bob": "2"}, {"alice": "1"}
BOB = key_of("bob", "b")


def enter(bench: Guarded, user: str, client_id: str) -> tuple[Client, bool]:
    """A client of that user, and whether its session was there."""
    client = bench.knock(Connect(client_id=client_id, username=user, password=b"p", **LONG))
    if bench.checks:
        bench.answer(user)
    return client, client.take()[0].session_present


def reload(bench: Guarded, users: dict[str, str], *, run: bool = True) -> None:
    bench.gate.reload(known(security=NAMED, users=users), bench.now_ns)
    if run:
        bench.pass_time(1 * MS)


def with_messages_waiting(*, away: bool, sessions: int = 1) -> Guarded:
    bench = Guarded(security=NAMED, users=BOTH)
    for number in range(sessions):
        bob, _ = enter(bench, "bob", "b" if number == 0 else f"b{number}")
        bob.subscribe("q/#", qos=1)
        if away:
            bob.say(Disconnect())
    alice, _ = enter(bench, "alice", "a")
    alice.publish("q/1", b"for bob", qos=1)
    bench.run()
    return bench


@pytest.mark.parametrize("away", [True, False])
def test_sessions_of_a_removed_user_end(away: bool) -> None:
    bench = with_messages_waiting(away=away)
    reload(bench, ALICE)
    assert BOB not in bench.broker.clients.sessions
    assert key_of("alice", "a") in bench.broker.clients.sessions
    reload(bench, {**ALICE, "bob": "another's"})
    again, present = enter(bench, "bob", "b")
    bench.run()
    assert (present, again.messages()) == (False, [])


@pytest.mark.parametrize("sessions", [SWEPT_AT_ONCE - 1, SWEPT_AT_ONCE, SWEPT_AT_ONCE + 1, 3 * SWEPT_AT_ONCE])
def test_however_soon_somebody_has_the_name_again(sessions: int) -> None:
    bench = with_messages_waiting(away=True, sessions=sessions)
    reload(bench, ALICE, run=False)
    reload(bench, {**ALICE, "bob": "another's"}, run=False)
    last = f"b{sessions - 1}"
    again, present = enter(bench, "bob", last)
    bench.pass_time(1 * MS)
    assert (present, again.messages()) == (False, [])
    assert [key for key in bench.broker.clients.sessions if "bob" in key] == [key_of("bob", last)]


def test_many_sessions_end_a_few_in_each_turn() -> None:
    bench = with_messages_waiting(away=True, sessions=2 * SWEPT_AT_ONCE + 1)
    reload(bench, ALICE, run=False)
    bench.turn()
    assert len(bench.broker.clients.sessions) >= SWEPT_AT_ONCE + 2
    for _ in range(2):
        bench.pass_time(1 * MS)
    assert list(bench.broker.clients.sessions) == [key_of("alice", "a")]


def test_a_password_that_changed_is_of_the_same_user() -> None:
    bench = with_messages_waiting(away=True)
    reload(bench, {**ALICE, "bob": "new"})
    _, present = enter(bench, "bob", "b")
    assert present
    assert BOB in bench.broker.clients.sessions


def test_who_is_here_by_a_certificate_stays() -> None:
    bench = Guarded(security=NAMED, users=BOTH)
    bob = bench.user("bob", "b", properties=Properties(session_expiry=600))
    reload(bench, ALICE)
    assert not bob.connection.closing
    assert BOB in bench.broker.clients.sessions


def gate_of(group: Group, name: str, users: dict[str, str]) -> Gate:
    member = group.members[name]
    return Gate(
        member.broker,
        known(security='anonymous = "anywhere"\n' + NAMED, users=users),
        verified=Verified(b"k" * 32),
        serving=lambda: member.role is Role.PRIMARY,
        check=lambda wanted: True,
        address_of=lambda fd: "192.0.2.1",
    )


def bob_at(group: Group) -> None:
    """A session of bob's, that is away."""
    clients = group.primary.broker.clients
    session = clients.make_session("b", 900, "bob")
    session.state.expiry_s = 600
    group.primary.recorder.session(session)
    group.run()


@pytest.mark.parametrize("reloaded", ["a", "b", "ab"])
def test_an_heir_has_no_session_of_a_removed_user(reloaded: str) -> None:
    group = Group()
    gates = {name: gate_of(group, name, BOTH) for name in "ab"}
    bob_at(group)
    for name in reloaded:
        gates[name].reload(known(security=NAMED, users=ALICE), group.now_ns)
    group.pass_time(2 * MS)
    sessions = {name: BOB in member.broker.clients.sessions for name, member in group.members.items()}
    assert sessions == dict.fromkeys("ab", "a" not in reloaded), "the primary decides"
    group.crash("a")
    group.pass_time(100 * MS)
    assert group.members["b"].role is Role.PRIMARY
    assert BOB not in group.members["b"].broker.clients.sessions


def test_a_standby_spares_a_session_that_is_newer_than_the_removal() -> None:
    group = Group()
    gates = {name: gate_of(group, name, BOTH) for name in "ab"}
    bob_at(group)
    for users in (ALICE, BOTH):
        for gate in gates.values():
            gate.reload(known(security=NAMED, users=users), group.now_ns)
        group.pass_time(2 * MS)
    session = group.primary.broker.clients.make_session("b", 901, "bob")
    session.state.expiry_s = 600
    group.primary.recorder.session(session)
    group.run()
    group.crash("a")
    group.pass_time(100 * MS)
    assert BOB in group.members["b"].broker.clients.sessions


@pytest.mark.parametrize("also", ["", "[tls]\ncertificate='c'\nkey='k'\nauthority='a'\nclients='ask'\n"])
def test_a_broker_that_starts_ends_sessions_of_who_is_not_in_its_file(also: str) -> None:
    """Only where nothing else may name them."""
    bench = Guarded(security=f"{NAMED}\n{also}", users=ALICE)
    for name in ("alice", "bob", ""):
        session = bench.broker.clients.make_session("b", len(bench.broker.clients.sessions) + 900, name)
        session.state.expiry_s = 600
    bench.pass_time(1 * MS)
    left = {key_of("alice", "b"), "b"} | ({BOB} if also else set())
    assert set(bench.broker.clients.sessions) == left
