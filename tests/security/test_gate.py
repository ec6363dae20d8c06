"""Who is let in and what they may do, on every way that a message can take, in made-up time."""

import pytest
from tests.broker.bench import Client
from tests.security.guarded import Guarded, kinds, known, reason

from holdfast.broker.clients import key_of
from holdfast.broker.meter import Meter
from holdfast.mqtt.conventions import SERVES_CHANNELS, SERVES_PROPERTY
from holdfast.mqtt.packets import (
    Connect,
    Disconnect,
    Properties,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Will,
)
from holdfast.mqtt.packets import Subscription as Wanted
from holdfast.security.config import Listener

S = 1_000_000_000

OWN = """
[[rule]]
everyone = true
publish = ["own/%u/#"]
subscribe = ["own/%u/#", "seen/+"]
[[rule]]
users = ["boss"]
publish = ["#"]
subscribe = ["#"]
[[rule]]
users = ["server"]
serve_channels = true
[[rule]]
users = ["alice"]
subscribe = ["$channel/near/%u"]
"""
NAMED = 'users = "users"'
BAD_PASSWORD, NOT_AUTHORIZED, BUSY, QUOTA = 0x86, 0x87, 0x89, 0x97


# Who


@pytest.mark.parametrize(
    ("policy", "local", "answer"),
    [
        ("never", True, NOT_AUTHORIZED),
        ("loopback", True, 0),
        ("loopback", False, NOT_AUTHORIZED),
        ("anywhere", False, 0),
    ],
)
@pytest.mark.parametrize("version", [4, 5])
def test_who_gives_no_name_is_let_in_where_the_file_says(
    policy: str, local: bool, answer: int, version: int
) -> None:
    bench = Guarded(security=f'anonymous = "{policy}"\n{NAMED}')
    client = bench.knock(Connect(client_id="c", version=version), local=local)
    assert reason(client) == (answer if version == 5 or not answer else 5)


def test_a_password_is_checked_elsewhere_and_nothing_is_answered_before() -> None:
    bench = Guarded(security=NAMED, users={"alice": "hash"})
    client = bench.knock(Connect(client_id="c", username="alice", password=b"secret"))
    client.say(Subscribe(packet_id=1, subscriptions=[Wanted(filter="a", qos=0)]))
    assert client.take() == []
    other = bench.knock(Connect(client_id="d"), local=True)
    assert reason(other) == 0  # nobody else waits
    bench.answer("alice")
    assert kinds(client.take()) == ["Connack", "Suback"]


@pytest.mark.parametrize("name", ["alice", "nobody"])
@pytest.mark.parametrize("version", [4, 5])
def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(name: str, version: int) -> None:
    bench = Guarded(security=NAMED, users={"alice": "hash"})
    client = bench.knock(Connect(client_id="c", username=name, password=b"wrong", version=version))
    assert [wanted.stored for wanted in bench.checks] == ["hash" if name == "alice" else None]
    bench.answer(None)
    assert reason(client) == (BAD_PASSWORD if version == 5 else 4)
    assert client.connection.closing


def test_a_password_that_was_right_is_not_checked_again_until_it_changes() -> None:
    bench = Guarded(security=NAMED, users={"alice": "hash"})
    connect = Connect(client_id="c", username="alice", password=b"secret")
    bench.knock(connect)
    bench.answer("alice")
    assert reason(bench.knock(connect)) == 0
    bench.knock(Connect(client_id="c", username="alice", password=b"other"))
    assert len(bench.checks) == 1
    bench.gate.reload(known(security=NAMED, users={"alice": "new hash"}), bench.now_ns)
    bench.knock(connect)
    assert len(bench.checks) == 2


def test_too_many_checks_at_once_are_refused() -> None:
    bench = Guarded(security=NAMED)
    bench.full = True
    assert reason(bench.knock(Connect(client_id="c", username="a", password=b"p"))) == BUSY


def test_a_client_that_left_while_its_password_was_checked_gets_nothing() -> None:
    bench = Guarded(security=NAMED, users={"alice": "hash"})
    client = bench.knock(Connect(client_id="c", username="alice", password=b"p"))
    bench.broker.lost(client.connection, bench.now_ns)
    bench.answer("alice")
    assert "c" not in bench.broker.clients.sessions
    assert client.take() == []


def test_a_certificate_is_a_name_and_another_name_beside_it_is_refused() -> None:
    bench = Guarded(OWN, NAMED)
    assert reason(bench.knock(Connect(client_id="c"), certificate="alice")) == 0
    assert reason(bench.knock(Connect(client_id="d", username="alice"), certificate="alice")) == 0
    assert reason(bench.knock(Connect(client_id="e", username="boss"), certificate="alice")) == BAD_PASSWORD


def test_a_session_is_its_users_alone() -> None:
    """Whoever comes with its client identifier, first or last, is in nobody's way."""
    bench = Guarded(OWN)
    asks = Connect(client_id="same", clean_start=False, properties=Properties(session_expiry=60))
    came: list[Client] = []
    for user, topic in (("bob", "own/bob/x"), ("alice", "own/alice/x"), (None, "seen/a")):
        came.append(bench.knock(asks, certificate=user, local=user is None))
        (welcome,) = came[-1].take()
        assert (welcome.reason, welcome.session_present) == (0, False)
        came[-1].subscribe(topic)
    assert not any(each.connection.closing for each in came)
    assert len(bench.broker.clients.sessions) == len(came)
    again = bench.knock(asks, certificate="bob")
    (welcome,) = again.take()
    assert (welcome.reason, welcome.session_present) == (0, True)
    assert [each.connection.closing for each in came] == [True, False, False]
    assert list(again.connection.session.subscriptions) == ["own/bob/x"]
    for user, topic in (("bob", "own/bob/x"), ("alice", "own/alice/x")):
        bench.user("boss").publish(topic, user.encode())
    bench.run()
    assert [message.payload for client in (again, *came[1:]) for message in client.messages()] == [
        b"bob", b"alice",
    ]  # fmt: skip


def test_what_two_users_retain_under_one_client_identifier_is_each_ones_own() -> None:
    bench = Guarded()
    alice, bob = bench.user("alice", "same"), bench.user("bob", "same")
    accounts = {client.connection.session.account for client in (alice, bob)}
    assert len(accounts) == 2


# What


def test_a_publisher_is_told_of_what_it_may_not_publish_and_the_rest_goes_through() -> None:
    bench = Guarded(OWN)
    boss, alice = bench.user("boss"), bench.user("alice")
    boss.subscribe("#")
    for qos, answer in ((0, None), (1, Puback), (2, Pubrec)):
        for topic, allowed in (("own/alice/x", True), ("own/bob/x", False), ("else", False)):
            alice.publish(topic, b"m", qos=qos, packet_id=len(topic) if qos else 0)
            bench.run()
            assert [message.topic for message in boss.messages()] == ([topic] if allowed else [])
            for got in alice.take():
                assert isinstance(got, answer or object)
                assert got.reason == (0 if allowed else NOT_AUTHORIZED)
    assert bench.broker.core.messages_refused == 6


def test_what_was_decided_of_a_topic_is_of_no_other_topic() -> None:
    """Through aliases, and with more topics than a small table holds."""
    bench = Guarded(OWN)
    boss, alice = bench.user("boss"), bench.user("alice")
    boss.subscribe("#")
    names = [f"own/{user}/{number}" for number in range(300) for user in ("alice", "bob")]
    for name in names * 2:
        alice.publish(name)
        bench.run()
    assert [message.topic for message in boss.messages()] == [name for name in names * 2 if "alice" in name]
    for alias, topic in ((1, "own/alice/x"), (2, "own/bob/x"), (1, ""), (2, ""), (1, "own/bob/y"), (1, "")):
        alice.send(Publish(topic=topic, payload=b"", properties=Properties(topic_alias=alias)))
    bench.run()
    assert [message.topic for message in boss.messages()] == ["own/alice/x", "own/alice/x"]


@pytest.mark.parametrize(
    ("filter", "granted"),
    [
        ("own/alice/#", True),
        ("own/alice", True),
        ("own/alice/+/x", True),
        ("seen/+", True),
        ("seen/x", True),
        ("seen/#", False),
        ("own/#", False),
        ("own/+/x", False),
        ("+/alice/x", False),
        ("#", False),
        ("$SYS/#", False),
        ("$SYS/broker/uptime", False),
        ("$share/g/own/bob/#", False),
        ("$share/g/own/alice/#", True),
        ("$channel/near/alice", True),
        ("$channel/near/bob", False),
        ("$channel/$subscriptions", False),
        ("$channel/$catalog", False),
    ],
)
def test_a_filter_is_granted_only_if_all_of_it_is_allowed(filter: str, granted: bool) -> None:
    alice = Guarded(OWN).user("alice")
    (answer,) = alice.subscribe(filter).reasons
    assert answer == (0 if granted else NOT_AUTHORIZED)


def test_even_who_may_see_all_does_not_see_the_brokers_own() -> None:
    boss = Guarded(OWN).user("boss")
    assert boss.subscribe("$SYS/#").reasons == [NOT_AUTHORIZED]
    assert boss.subscribe("$channel/near/alice").reasons == [NOT_AUTHORIZED]


def test_before_mqtt_5_a_refused_filter_is_a_failure() -> None:
    bench = Guarded(OWN)
    old = bench.knock(Connect(client_id="c", version=4), certificate="alice")
    old.take()
    old.say(Subscribe(packet_id=1, subscriptions=[Wanted(filter="#", qos=0), Wanted(filter="seen/a", qos=0)]))
    (answer,) = [packet for packet in old.take() if isinstance(packet, Suback)]
    assert answer.reasons == [0x80, 0]


def test_a_retained_message_does_not_reach_who_may_not_have_it() -> None:
    bench = Guarded(OWN)
    bench.user("boss").publish("own/bob/x", b"kept", retain=True)
    bench.run()
    alice, bob = bench.user("alice"), bench.user("bob")
    for filter in ("own/bob/x", "#"):
        alice.say(Subscribe(packet_id=1, subscriptions=[Wanted(filter=filter, qos=0)]))
    bob.say(Subscribe(packet_id=1, subscriptions=[Wanted(filter="own/bob/#", qos=0)]))
    assert [message.payload for message in bob.messages()] == [b"kept"]
    assert alice.messages() == []


def test_a_will_that_may_not_be_published_is_refused_at_connect() -> None:
    bench = Guarded(OWN)
    for topic, answer in (("own/alice/gone", 0), ("own/bob/gone", NOT_AUTHORIZED)):
        packet = Connect(client_id="c", will=Will(topic=topic, payload=b"w"))
        assert reason(bench.knock(packet, certificate="alice")) == answer


def test_a_will_is_judged_again_when_it_is_due() -> None:
    bench = Guarded(OWN)
    boss = bench.user("boss")
    boss.subscribe("#")
    will = Will(topic="own/alice/gone", payload=b"w")
    alice = bench.user("alice", will=will)
    bob = bench.user("bob", will=Will(topic="own/bob/gone", payload=b"w"))
    bench.gate.reload(known(OWN.replace("own/%u/#", "own/alice/#", 1)), bench.now_ns)
    bench.run()
    for client in (alice, bob):
        bench.broker.lost(client.connection, bench.now_ns)
    bench.run()
    assert [message.topic for message in boss.messages()] == ["own/alice/gone"]


def test_serving_channels_is_a_right_of_its_own() -> None:
    bench = Guarded(OWN)
    serves = Properties(user=[(SERVES_PROPERTY, SERVES_CHANNELS)])
    for user, answer in (("server", 0), ("boss", NOT_AUTHORIZED), ("alice", NOT_AUTHORIZED)):
        assert reason(bench.knock(Connect(client_id=user, properties=serves), certificate=user)) == answer
    alice, boss = bench.user("alice", "a"), bench.user("boss", "b")
    assert alice.subscribe("$channel/near/alice").reasons == [0]
    for client in (alice, boss):
        client.publish("$channel/near/alice", b"made up", qos=1)
        bench.run()
        assert [packet.reason for packet in client.take()] == [NOT_AUTHORIZED]


def test_last_results_go_only_to_a_subscription_that_is_still_allowed() -> None:
    bench = Guarded(OWN)
    server = bench.knock(
        Connect(client_id="s", properties=Properties(user=[(SERVES_PROPERTY, SERVES_CHANNELS)])),
        certificate="server",
    )
    server.take()
    server.subscribe("$channel/$subscriptions", qos=1)
    alice = bench.user("alice")
    alice.subscribe("$channel/near/alice", properties=Properties(user=[("hf-last", "2")]))
    (token,) = list(bench.broker.channels.wants)
    server.publish(f"$channel/$last/{token}", b"first")
    bench.run()
    assert [message.payload for message in alice.messages()] == [b"first"]
    bench.gate.reload(known(OWN.replace("$channel/near/%u", "$channel/far/%u")), bench.now_ns)
    bench.run()
    server.publish(f"$channel/$last/{token}", b"second")
    bench.run()
    assert alice.messages() == []


# New rules, users and limits


def test_new_rules_hold_at_once_for_who_is_connected() -> None:
    bench = Guarded(OWN)
    boss, alice = bench.user("boss"), bench.user("alice")
    boss.subscribe("#")
    alice.subscribe("seen/+")
    alice.subscribe("own/alice/x")
    alice.publish("own/alice/x")
    bench.run()
    assert boss.messages()
    alice.take()
    bench.gate.reload(
        known(OWN.replace("own/%u/#", "new/%u/#").replace('"seen/+"', '"seen/b"')), bench.now_ns
    )
    bench.run()
    alice.publish("own/alice/x")
    alice.publish("new/alice/x")
    boss.publish("seen/a")
    boss.publish("own/alice/x")
    bench.run()
    assert [message.topic for message in boss.messages()][:1] == ["new/alice/x"]
    assert alice.messages() == []
    assert list(alice.connection.session.subscriptions) == []


def test_sessions_without_a_connection_lose_what_their_users_may_not_have_any_more() -> None:
    bench = Guarded(OWN)
    alice = bench.user("alice", properties=Properties(session_expiry=600))
    alice.subscribe("seen/+", qos=1)
    alice.say(Disconnect())
    bench.gate.reload(known(OWN.replace('"seen/+"', '"seen/b"')), bench.now_ns)
    bench.run()
    bench.user("boss").publish("seen/a", qos=1)
    bench.run()
    session = bench.broker.clients.sessions[key_of("alice", "alice-1")]
    assert (session.subscriptions, session.queued) == ({}, 0)


def test_a_session_comes_back_only_with_what_its_user_may_have_here() -> None:
    """Another broker may have let it subscribe."""
    bench = Guarded(OWN)
    alice = bench.user("alice", properties=Properties(session_expiry=600))
    alice.subscribe("seen/+")
    session = alice.connection.session
    alice.say(Disconnect())
    bench.gate.known = known(OWN.replace('"seen/+"', '"seen/b"'))
    bench.user("alice", clean_start=False, properties=Properties(session_expiry=600))
    assert not session.subscriptions


def test_who_is_gone_from_the_files_or_has_another_password_is_disconnected() -> None:
    users = {"stays": "1", "goes": "2", "changes": "3"}
    bench = Guarded(security=NAMED, users=users)
    clients = {}
    for name in users:
        clients[name] = bench.knock(Connect(client_id=name, username=name, password=b"p"))
        bench.answer(name)
        clients[name].take()
    clients[""] = bench.knock(Connect(client_id="nameless"), local=True)
    clients["certified"] = bench.knock(Connect(client_id="certified"), certificate="certified")
    new = known(security=f'anonymous = "never"\n{NAMED}', users={"stays": "1", "changes": "4"})
    assert bench.gate.reload(new, bench.now_ns) == 3
    bench.run()
    closed = {name for name, client in clients.items() if client.connection.closing}
    assert closed == {"goes", "changes", ""}
    words = {}
    for name in closed:
        farewell = clients[name].take()[-1]
        assert isinstance(farewell, Disconnect)
        assert farewell.reason == NOT_AUTHORIZED
        words[name] = farewell.properties.reason_string
    assert words == {
        "goes": "this user is not known here any more",
        "changes": "this user has another password now",
        "": "a user name and a password are asked for here now",
    }


def test_a_check_that_began_before_the_password_changed_lets_nobody_in() -> None:
    bench = Guarded(security=NAMED, users={"alice": "old"})
    client = bench.knock(Connect(client_id="c", username="alice", password=b"p"))
    bench.gate.reload(known(security=NAMED, users={"alice": "new"}), bench.now_ns)
    bench.answer("alice")
    assert reason(client) == BAD_PASSWORD


# Limits


def test_a_listener_and_a_user_have_so_many_connections() -> None:
    bench = Guarded(security="[limits]\nconnections_max = 2")
    small = Listener(address="h:1", connections_max=3)

    def come(user: str | None, number: int) -> int:
        packet = Connect(client_id=f"{user}-{number}")
        client = bench.knock(packet, certificate=user, listener=small, local=True)
        clients.append(client)
        return reason(client)

    clients: list = []
    assert [come("alice", number) for number in range(3)] == [0, 0, QUOTA]
    assert [come("bob", number) for number in range(2)] == [0, QUOTA]
    bench.broker.lost(clients[0].connection, bench.now_ns)
    assert come("alice", 7) == 0
    assert reason(bench.knock(Connect(client_id="elsewhere"), certificate="carol")) == 0


def test_a_listener_has_a_largest_packet_and_says_so() -> None:
    bench = Guarded()
    client = bench.knock(
        Connect(client_id="c"), local=True, listener=Listener(address="h:1", packet_bytes_max=100)
    )
    (answer,) = client.take()
    assert answer.properties.max_packet_size == 100
    client.publish("a", b"x" * 100)
    bench.run()
    assert reason(client) == 0x95


def test_who_is_not_let_in_yet_says_little() -> None:
    bench = Guarded()
    client = bench.knock(Connect(client_id="c", will=Will(topic="t", payload=b"x" * 65_535)), local=True)
    assert reason(client) == 0
    client.publish("t", b"x" * 300_000)
    bench.run()
    assert not client.connection.closing
    stranger = bench.knock(Connect(client_id="d", will=Will(topic="t", payload=b"x" * 65_535)), local=False)
    assert reason(stranger) == NOT_AUTHORIZED
    huge = bench.knock(
        Connect(client_id="e", properties=Properties(user=[("k", "v" * 60_000)] * 5)), local=True
    )
    assert huge.connection.closing
    assert reason(huge) == 0x95


@pytest.mark.parametrize("limit", ["messages_per_s_max = 10", "bytes_per_s_max = 130"])
def test_a_fast_publisher_is_slowed_and_loses_nothing(limit: str) -> None:
    """Messages have 13 bytes: ten in a second, and a second's worth at once."""
    bench = Guarded(security=f"[limits]\n{limit}")
    fast, watcher = bench.user("fast", keep_alive=5), bench.user("watcher")
    watcher.subscribe("t")
    for number in range(100):
        fast.publish("t", b"%07d" % number)
    bench.run()
    got: list[bytes] = []
    for tenth in range(100):
        got += [message.payload for message in watcher.messages()]
        assert min(100, tenth + 10) - 1 <= len(got) <= tenth + 12
        assert fast.connection.wants_bytes() == (fast.connection.slowed_ns == 0)
        bench.pass_time(S // 10)
    assert got == [b"%07d" % number for number in range(100)]
    assert fast.connection.wants_bytes()
    assert not fast.connection.closing  # its keep alive passed meanwhile, unread


def test_who_is_slowed_is_not_taken_for_silent_or_for_stuck_in_a_packet() -> None:
    bench = Guarded(security="[limits]\nbytes_per_s_max = 100")
    fast, watcher = bench.user("fast", keep_alive=5), bench.user("watcher")
    watcher.subscribe("t")
    for _ in range(3):
        fast.publish("t", b"x" * 5000)
    for _ in range(60):
        bench.pass_time(2 * S)
    assert len(watcher.messages()) == 3
    assert not fast.connection.closing


def test_the_connections_of_a_user_share_its_rate_and_others_are_not_slowed() -> None:
    bench = Guarded(security="[limits]\nmessages_per_s_max = 10")
    one, two, other, watcher = (bench.user(u, c) for u, c in (("u", "1"), ("u", "2"), ("v", "3"), ("w", "4")))
    watcher.subscribe("#")
    for number in range(20):
        for client, topic in ((one, "u"), (two, "u")):
            client.publish(topic)
        if number < 10:
            other.publish("v")
    bench.run()
    topics = [message.topic for message in watcher.messages()]
    assert topics.count("v") == 10
    assert 10 <= topics.count("u") <= 13


def test_a_meter_lets_through_its_rate() -> None:
    meter = Meter(100, 0)
    now_ns = 10 * S
    even_ns = [meter.count(True, 1, now_ns) for _ in range(300)][-1]
    assert even_ns - now_ns == 2 * S
    assert meter.count(False, 1, now_ns) == even_ns
    assert meter.count(True, 1, even_ns + 5 * S) < even_ns + 5 * S
