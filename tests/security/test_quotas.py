"""What users and addresses may have, who is banned, and what the log says of it, in made-up time."""

import msgspec
import pytest
from tests.broker.bench import Client
from tests.replication.pair import Client as GroupClient
from tests.replication.pair import Group
from tests.security.guarded import Guarded, known, reason

from holdfast.broker.clients import key_of
from holdfast.mqtt.packets import Connect, Disconnect, Properties, Puback, Publish, Unsubscribe
from holdfast.security.gate import Gate
from holdfast.security.quotas import ACCOUNTS_SWEPT_AT, Ledger
from holdfast.security.verified import Verified
from holdfast.units import MS, S

QUOTA, RATE, BANNED, BAD_PASSWORD, TAKEN_OVER = 0x97, 0x9F, 0x8A, 0x86, 0x8E
HOUR = Properties(session_expiry=3600)


def come(bench: Guarded, client_id: str, user: str | None = "alice", address: str = "192.0.2.1") -> Client:
    bench.gate._address_of = lambda fd: address
    return bench.knock(Connect(client_id=client_id, properties=HOUR), certificate=user, local=True)


def sessions_of(bench: Guarded) -> set[str]:
    return {session.client_id for session in bench.broker.clients.sessions.values()}


@pytest.mark.parametrize("table", ["limits", "address_limits"])
@pytest.mark.parametrize("most", [1, 3])
def test_connections_have_a_quota(table: str, most: int) -> None:
    bench = Guarded(security=f"[{table}]\nconnections_max = {most}")
    clients = [come(bench, f"c{number}") for number in range(most + 2)]
    assert [reason(client) for client in clients] == [0] * most + [QUOTA] * 2
    other = come(bench, "other", "bob") if table == "limits" else come(bench, "other", address="192.0.2.2")
    assert reason(other) == 0
    clients[0].say(Disconnect())
    assert reason(come(bench, "c0")) == 0
    kind = "user" if table == "limits" else "address"
    assert bench.gate.ledger.reached == {f"{kind}.connections": 2}


@pytest.mark.parametrize("table", ["limits", "address_limits"])
def test_who_takes_over_its_own_connection_is_counted_once(table: str) -> None:
    bench = Guarded(security=f"[{table}]\nconnections_max = 2")
    first, second = come(bench, "c0"), come(bench, "c1")
    assert [reason(first), reason(second)] == [0, 0]
    for _ in range(5):
        again = come(bench, "c0")
        assert (reason(again), reason(first)) == (0, TAKEN_OVER)
        first = again
    assert reason(come(bench, "c2")) == QUOTA
    assert [account.connections for account in bench.gate._guests[first.connection].accounts] == [2, 2]
    if table == "limits":
        assert reason(come(bench, "c0", "bob")) == 0, "whose session is another"
        assert reason(come(bench, "c0", "bob", "192.0.2.2")) == 0


@pytest.mark.parametrize("table", ["limits", "address_limits"])
def test_connecting_has_a_rate(table: str) -> None:
    bench = Guarded(security=f"[{table}]\nconnects_per_min_max = 6")

    def burst() -> list[int]:
        return [reason(come(bench, "c")) for _ in range(8)]

    assert burst() == [0] * 6 + [RATE] * 2
    other = come(bench, "other", "bob") if table == "limits" else come(bench, "other", address="192.0.2.2")
    assert reason(other) == 0
    bench.now_ns += 10 * S
    assert burst() == [0] + [RATE] * 7
    bench.now_ns += 600 * S
    assert burst() == [0] * 6 + [RATE] * 2


@pytest.mark.parametrize("table", ["limits", "address_limits"])
def test_sessions_have_a_quota_connected_or_not(table: str) -> None:
    bench = Guarded(security=f"[{table}]\nsessions_max = 2")
    for number in range(2):
        come(bench, f"c{number}").say(Disconnect())
    assert reason(come(bench, "c2")) == QUOTA
    assert reason(come(bench, "c1")) == 0  # it has that one already
    other = come(bench, "other", "bob") if table == "limits" else come(bench, "other", address="192.0.2.2")
    assert reason(other) == 0
    gone = bench.knock(Connect(client_id="c1", clean_start=True), certificate="alice")
    gone.say(Disconnect())
    assert reason(come(bench, "c2")) == 0


def test_who_gives_no_name_has_the_quotas_of_its_address() -> None:
    bench = Guarded(security="[limits]\nsessions_max = 1\n[address_limits]\nsessions_max = 2")
    answers = [reason(come(bench, f"c{number}", None)) for number in range(3)]
    assert answers == [0, 0, QUOTA]


@pytest.mark.parametrize("table", ["limits", "address_limits"])
def test_subscriptions_have_a_quota_over_all_sessions(table: str) -> None:
    bench = Guarded(security=f"[{table}]\nsubscriptions_max = 3")
    first, second = come(bench, "a"), come(bench, "b")
    given = [first.subscribe("x/1"), first.subscribe("x/2"), second.subscribe("x/1"), second.subscribe("x/2")]
    assert [each.reasons for each in given] == [[0], [0], [0], [QUOTA]]
    assert first.subscribe("x/1", qos=1).reasons == [1]  # it has that one already
    first.say(Unsubscribe(packet_id=1, filters=["x/1"]))
    assert second.subscribe("x/2").reasons == [0]
    for client in (first, second):
        bench.broker.clients.end_now(client.connection.session, bench.now_ns, QUOTA, "")
    bench.run()
    account = bench.gate.ledger.account("user", "alice", 0)
    assert (account.sessions, account.subscriptions, account.connections) == (0, 0, 0)
    assert reason(come(bench, "a")) == 0


@pytest.mark.parametrize("quota", ["retained_max = 2", "retained_bytes_max = 500"])
@pytest.mark.parametrize("table", ["limits", "address_limits"])
def test_retained_messages_have_a_quota(quota: str, table: str) -> None:
    bench = Guarded(security=f"[{table}]\n{quota}")
    client = come(bench, "c")
    client.take()

    def retain(topic: str, payload: bytes = b"x" * 100) -> int:
        client.publish(topic, payload, qos=1, retain=True)
        bench.run()
        (answer,) = [packet for packet in client.take() if isinstance(packet, Puback)]
        return answer.reason if answer.reason >= 0x80 else 0

    assert [retain(topic) for topic in ("a", "b", "c")] == [0, 0, QUOTA]
    assert bench.broker.core.retained_message(b"c") is None
    assert retain("a", b"y" * 90) == 0  # in place of what is there
    if "bytes" in quota:
        assert retain("a", b"y" * 900) == QUOTA
        assert bench.broker.core.retained_message(b"a")[-1] == b"y" * 90
    assert retain("a", b"") == 0
    assert retain("c") == 0


def test_a_user_for_whom_too_much_waits_loses_the_session_with_most_and_others_nothing() -> None:
    bench = Guarded(security="[limits]\nqueued_bytes_max = 10000")
    for user in ("alice", "bob"):
        for name, filter in (("large", "#"), ("small", "small")):
            client = come(bench, f"{user}-{name}", user)
            client.subscribe(filter, qos=1)
            client.say(Disconnect())
    boss = come(bench, "boss", "boss")
    bob = come(bench, "bob-large", "bob")
    bob.say(Disconnect())
    for size in (3000, 3000, 3000):
        boss.publish("large", b"x" * size, qos=1)
        bench.run()
    bench.pass_time(2 * S)
    assert sessions_of(bench) >= {"alice-large", "bob-large"}
    bench.broker.clients.sessions[key_of("bob", "bob-large")].clear()
    boss.publish("small", b"x" * 3000, qos=1, packet_id=2)
    bench.pass_time(2 * S)
    assert sessions_of(bench) == {"alice-small", "bob-large", "bob-small", "boss"}
    assert bench.broker.clients.sessions[key_of("alice", "alice-small")].queued == 1
    assert bench.gate.ledger.reached == {"user.queued_bytes": 1}
    (told,) = [details for event, details in bench.events if event == "overloaded"]
    assert (told["user"], told["client"]) == ("alice", "alice-large")
    assert bench.broker.core.board.messages_dropped == 4


@pytest.mark.parametrize(("messages", "ends"), [(3, False), (4, True)])
def test_what_is_not_acknowledged_counts_as_what_waits(messages: int, ends: bool) -> None:
    bench = Guarded(security="[limits]\nqueued_bytes_max = 12000")
    reader, boss = come(bench, "reader", "alice"), come(bench, "boss", "boss")
    reader.subscribe("large", qos=1)
    for number in range(messages):
        boss.publish("large", b"x" * 3000, qos=1, packet_id=number + 1)
        bench.run()
    session = bench.broker.clients.sessions[key_of("alice", "reader")]
    assert (session.queued, session.in_flight) == (0, messages), "nothing waits; nothing is acknowledged"
    bench.pass_time(2 * S)
    assert sessions_of(bench) == ({"boss"} if ends else {"boss", "reader"})


def test_an_address_has_so_many_connections_that_are_not_let_in_yet() -> None:
    bench = Guarded(security="[address_limits]\nstrangers_max = 3")
    silent = []
    for _ in range(6):
        connection = bench.broker.open(None, bench.now_ns)
        assert connection is not None
        bench.clients[connection] = Client(bench, connection)
        silent.append(connection)
    bench.run()
    assert [connection.closing for connection in silent] == [False] * 3 + [True] * 3
    assert reason(come(bench, "c")) == 0
    bench.broker.lost(silent[0], bench.now_ns)
    for _ in range(2):
        assert reason(come(bench, "c")) == 0


def test_quotas_hold_after_a_failover() -> None:
    security = 'anonymous = "anywhere"\n[limits]\nsessions_max = 1\nsubscriptions_max = 2\nretained_max = 1'
    group = Group(2)
    for member in group.members.values():
        Gate(
            member.broker,
            known(None, security),
            verified=Verified(b"k" * 32),
            check=lambda wanted: False,
            address_of=lambda fd: "",
        )

    def come(member: str, client_id: str) -> GroupClient:
        connection = group.members[member].open(None, group.now_ns)
        assert connection is not None
        connection.certificate_name = "alice"
        group.clients[connection] = client = GroupClient(group, member, connection)
        client.say(Connect(client_id=client_id, clean_start=False, properties=HOUR))
        return client

    first = come("a", "c")
    first.take()
    for number in range(2):
        assert first.subscribe(f"x/{number}").reasons == [0]
    first.publish("kept", b"x", retain=True)
    group.pass_time(50 * MS)
    group.crash("a")
    group.pass_time(200 * MS)
    assert reason(come("b", "d")) == QUOTA  # type: ignore[arg-type]
    again = come("b", "c")
    assert reason(again) == 0  # type: ignore[arg-type]
    assert again.subscribe("x/2").reasons == [QUOTA]
    again.say(Publish(topic="kept too", payload=b"x", qos=1, packet_id=1, retain=True))
    assert [packet.reason for packet in again.take() if isinstance(packet, Puback)] == [QUOTA]


def test_who_has_nothing_and_did_not_come_lately_is_forgotten() -> None:
    ledger = Ledger(known().security)
    keeps = ledger.account("user", "keeps", 0)
    keeps.sessions = 1
    for number in range(10 * ACCOUNTS_SWEPT_AT):
        ledger.account("address", str(number), 120 * S)
    assert ledger.count("address") <= 2 * ACCOUNTS_SWEPT_AT + 2
    assert ledger.account("user", "keeps", 0) is keeps


# Who is banned


def test_a_client_that_flaps_is_banned_for_a_while_and_no_other() -> None:
    bench = Guarded(security='[bans]\nflaps_max = 3\nwithin = "10s"\nlasts = "60s"')
    for _ in range(4):
        client = come(bench, "flaps")
        assert reason(client) == 0
        client.say(Disconnect())
    refused = come(bench, "flaps")
    (answer,) = refused.take()
    assert (answer.reason, answer.properties.reason_string) == (
        BANNED,
        "this client connected and left too often; come again in 60 s",
    )
    assert [reason(come(bench, "other")), reason(come(bench, "flaps-too", "bob"))] == [0, 0]
    (ban,) = bench.gate.quotas(bench.now_ns, 10**18).banned_latest
    assert (ban.why, ban.user, ban.client_id, ban.until_at_ns) == ("flaps", "alice", "flaps", 10**18 + 60 * S)
    (told,) = [details for event, details in bench.events if event == "banned"]
    assert told == {"is": "flaps", "user": "alice", "client": "flaps", "lasts": "1min"}
    bench.now_ns += 60 * S
    assert reason(come(bench, "flaps")) == 0
    assert bench.gate.quotas(bench.now_ns, 0).banned == 0


def test_who_comes_and_goes_slowly_is_not_banned() -> None:
    bench = Guarded(security='[bans]\nflaps_max = 3\nwithin = "10s"\nlasts = "60s"')
    for _ in range(20):
        client = come(bench, "slow")
        assert reason(client) == 0
        client.say(Disconnect())
        bench.now_ns += 4 * S


def test_who_guesses_is_banned_there_and_a_password_that_was_right_is_not() -> None:
    users = {"alice": "hash", "bob": "hash"}
    bench = Guarded(security='users = "users"\n[bans]\nguesses_max = 2\nlasts = "60s"', users=users)

    def guess(user: str, right: bool = False, address: str = "192.0.2.1") -> int:
        bench.gate._address_of = lambda fd: address
        password = b"right" if right else b"wrong"
        client = bench.knock(Connect(client_id=f"c-{user}", username=user, password=password))
        if bench.checks:
            bench.answer(user if right else None)
        return reason(client)

    assert guess("bob", right=True) == 0
    assert [guess("alice") for _ in range(5)] == [BAD_PASSWORD] * 2 + [BANNED] * 3
    assert guess("alice", right=True) == BANNED
    assert guess("alice", right=True, address="192.0.2.2") == 0
    assert guess("alice", right=True) == 0  # it is known by now
    assert [guess("bob") for _ in range(4)] == [BAD_PASSWORD] * 2 + [BANNED] * 2
    assert guess("bob", right=True) == 0
    bench.now_ns += 60 * S
    assert guess("alice") == BAD_PASSWORD


# What is said


def test_every_login_and_refusal_says_whose_it_is() -> None:
    bench = Guarded('[[rule]]\neveryone = true\npublish = ["%u"]', security='users = "users"')
    alice = come(bench, "c-alice")
    bench.knock(Connect(client_id="guess", username="bob", password=b"secret"))
    bench.answer(None)
    alice.take()
    alice.publish("else")
    alice.subscribe("some")
    told = [(event, details) for event, details in bench.events if event in ("login", "refused")]
    whose = {"user": "alice", "client": "c-alice", "address": "192.0.2.1"}
    assert told[0] == ("login", {**whose, "by": "certificate"})
    assert [{name: details[name] for name in ("user", "client")} for _, details in told[1:]] == [
        {"user": "bob", "client": "guess"},
        {"user": "alice", "client": "c-alice"},
        {"user": "alice", "client": "c-alice"},
    ]
    assert [details.get("topic", details.get("filter")) for _, details in told[1:]] == [None, "else", "some"]
    assert "secret" not in str(bench.events)


def test_a_quota_status_can_be_told() -> None:
    bench = Guarded(security="[bans]\nflaps_max = 1")
    for _ in range(2):
        come(bench, "c").say(Disconnect())
    status = bench.gate.quotas(bench.now_ns, 10**18)
    assert msgspec.json.decode(msgspec.json.encode(status))["bans"] == {"flaps": 1}
    assert (status.users, status.addresses) == (1, 1)
