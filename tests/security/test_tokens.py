"""Logins by tokens: which are good, what they allow, and when they end."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.replication.pair import Client as GroupClient
from tests.replication.pair import Group
from tests.security.guarded import Guarded, reason, rules_of

from conformance.peer import Peer
from conformance.wire import Type, connect
from holdfast.broker.clients import key_of
from holdfast.broker.rules import Grant
from holdfast.config import loads
from holdfast.errors import ConfigError
from holdfast.mqtt.packets import Connect, Disconnect, Properties, Suback, Subscribe
from holdfast.mqtt.packets import Subscription as Wanted
from holdfast.security.checking import Checking
from holdfast.security.config import BanLimits, Security, load_security
from holdfast.security.gate import Gate, Known
from holdfast.security.gate import Wanted as Asking
from holdfast.security.hook import Attempt
from holdfast.security.tokens import (
    TOKEN_BYTES_MAX,
    BadToken,
    Jwt,
    Token,
    Tokens,
    claimed_user,
    load_tokens,
)
from holdfast.security.verified import Verified
from holdfast.units import MS, S
from support.brokers import START_S_MAX, StartBroker, wait_until

BAD_PASSWORD, NOT_AUTHORIZED, BANNED = 0x86, 0x87, 0x8A
PLANT = Jwt(algorithms=("ES256",), keys=("k",), audience="plant", issuer="us")


def key_pair() -> tuple[Any, bytes]:
    private = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return private, private.public_key().public_bytes(serialization.Encoding.PEM, form)


PRIVATE, PUBLIC = key_pair()
OTHER, OTHER_PUBLIC = key_pair()
TOKENS = Tokens(PLANT, {"one": OTHER_PUBLIC, "two": PUBLIC})


NULL = object()  # a claim that is there, and null


def token(key: Any = PRIVATE, algorithm: str = "ES256", **claims: Any) -> bytes:
    made = {"sub": "alice", "aud": "plant", "iss": "us", "exp": time.time() + 60, **claims}
    given = {name: None if value is NULL else value for name, value in made.items() if value is not None}
    return jwt.encode(given, key, algorithm=algorithm).encode()


def test_a_good_token_is_its_users() -> None:
    found = TOKENS.read(token())
    assert (found.user, found.key, found.grant) == ("alice", "two", None)
    assert 50 * S < found.left_ns <= 60 * S
    assert TOKENS.read(token(OTHER)).key == "one"
    assert TOKENS.read(token(aud=["else", "plant"])).user == "alice"


def unsigned() -> bytes:
    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    claims = {"sub": "alice", "aud": "plant", "iss": "us", "exp": time.time() + 60}
    return part({"alg": "none", "typ": "JWT"}) + b"." + part(claims) + b"."


BAD: dict[str, Callable[[], bytes]] = {
    "expired": lambda: token(exp=time.time() - 1),
    "without an end": lambda: token(exp=None),
    "not yet": lambda: token(nbf=time.time() + 60),
    "for others": lambda: token(aud="else"),
    "for nobody": lambda: token(aud=None),
    "of another issuer": lambda: token(iss="them"),
    "of no issuer": lambda: token(iss=None),
    "of nobody": lambda: token(sub=None),
    "of a name with a wildcard": lambda: token(sub="a/#"),
    "of another key": lambda: token(key_pair()[0]),
    "unsigned": unsigned,
    "unsigned with something": lambda: unsigned() + b"x",
    "cut": lambda: token()[:-5],
    "changed": lambda: token().replace(b".", b".e30", 1),
    "signed by a secret": lambda: token("k" * 64, "HS256"),
    "too long": lambda: token(more="x" * TOKEN_BYTES_MAX),
    "with rights that are none": lambda: token(holdfast={"publish": ["a/#/b"]}),
    "with rights that are nothing": lambda: token(holdfast=NULL),
    "with rights that nobody knows": lambda: token(holdfast={"allow": ["a"]}),
    "endless": lambda: token(exp=10**400),
}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("expired", "it has expired"),
        ("without an end", "it has no claim 'exp'"),
        ("not yet", "it is not valid yet"),
        ("for others", "it is for another audience"),
        ("of another issuer", "it is of another issuer"),
        ("of another key", "none of the keys signed it"),
        ("with rights that are nothing", "its rights cannot be read"),
        ("with rights that are none", "its rights cannot be read: publish[0]"),
        ("with rights that nobody knows", "its rights cannot be read: allow"),
    ],
)
def test_a_bad_token_is_told_in_plain_words(kind: str, words: str) -> None:
    with pytest.raises(BadToken) as error:
        TOKENS.read(BAD[kind]())
    assert str(error.value) == words


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_token_is_no_login(kind: str) -> None:
    with pytest.raises(BadToken):
        TOKENS.read(BAD[kind]())


def test_a_little_late_is_good_where_the_file_says_so() -> None:
    lenient = Tokens(Jwt(algorithms=("ES256",), keys=("k",), audience="plant", leeway_ns=30 * S), TOKENS.keys)
    assert lenient.read(token(exp=time.time() - 5)).left_ns > 20 * S
    with pytest.raises(BadToken):
        lenient.read(token(exp=time.time() - 31))


def test_a_token_may_bring_rights() -> None:
    found = TOKENS.read(token(holdfast={"publish": ["a/%u"], "deny_subscribe": ["b"], "qos_max": 1}))
    assert found.grant == Grant(publish=("a/%u",), deny_subscribe=("b",), qos_max=1)


# The file


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ('algorithms = ["none"]\nkeys = ["k"]\naudience = "a"', "jwt.algorithms"),
        ('algorithms = []\nkeys = ["k"]\naudience = "a"', "jwt.algorithms"),
        ('algorithms = ["HS256", "ES256"]\nkeys = ["k"]\naudience = "a"', "jwt.algorithms"),
        ('algorithms = ["ES256"]\nkeys = []\naudience = "a"', "jwt.keys"),
        ('algorithms = ["ES256"]\nkeys = ["k"]', "jwt.audience"),
    ],
)
def test_what_is_wrong_with_the_table_is_named(document: str, where: str) -> None:
    with pytest.raises(ConfigError) as error:
        loads(f"[jwt]\n{document}", Security)
    assert [problem.path.partition("[")[0] for problem in error.value.problems] == [where]


def test_a_key_that_cannot_be_used_is_named_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("a secret, and a short one")
    (tmp_path / "k").chmod(0o600)
    for algorithm in ("ES256", "HS256"):
        config = Jwt(algorithms=(algorithm,), keys=(str(tmp_path / "k"),), audience="a")  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as error:
            load_tokens(config)
        assert str(tmp_path / "k") in str(error.value)
        assert "short one" not in str(error.value)
    (tmp_path / "k").chmod(0o644)
    (tmp_path / "s.toml").write_text('[jwt]\nalgorithms = ["HS256"]\nkeys = ["k"]\naudience = "a"')
    with pytest.raises(ConfigError, match="chmod 600"):
        load_security(tmp_path / "s.toml")


# At the gate


def tokened(rules: str | None = None, keys: tuple[str, ...] = ("k",)) -> Known:
    security = loads('[jwt]\nalgorithms = ["ES256"]\nkeys = ["k"]\naudience = "plant"', Security)
    tokens = Tokens(PLANT, dict.fromkeys(keys, PUBLIC))
    return Known(security, {}, None if rules is None else rules_of(rules), tokens)


class Bench(Guarded):
    def __init__(self, rules: str | None = None) -> None:
        super().__init__()
        self.gate.reload(tokened(rules), self.now_ns)

    def log_in(self, found: Token, client_id: str = "c", username: str | None = None):
        packet = Connect(
            client_id=client_id,
            clean_start=False,
            username=username,
            password=b"a.b.c",
            properties=Properties(session_expiry=600),
        )
        client = self.knock(packet)
        wanted = self.checks.pop(0)
        assert wanted.how == "token"
        self.gate.checked(wanted, found.user, self.now_ns, found)
        self.run()
        return client


def test_a_tokens_user_is_the_user_and_no_other_name_beside_it() -> None:
    bench = Bench()
    found = Token("alice", 60 * S, "k")
    for username, answer in ((None, 0), ("", 0), ("alice", 0), ("bob", BAD_PASSWORD)):
        assert reason(bench.log_in(found, username=username)) == answer
    assert bench.broker.clients.sessions[key_of("alice", "c")].state.user == "alice"


def attempt_of(name: str, **more: object) -> bytes:
    """A token whose signature nobody made."""
    return token(OTHER, sub=name, **more)


@pytest.mark.parametrize("banned", [False, True])
def test_what_fails_counts_against_whom_the_token_says_it_is(banned: bool) -> None:
    """Without a name in CONNECT, too: a device with an old token keeps out nobody else behind its address."""
    bench = Bench()
    bench.gate.bans.limits = BanLimits(guesses_max=3) if banned else None
    for number in range(5):
        client = bench.knock(Connect(client_id=f"old-{number}", password=attempt_of("old")))
        assert bench.checks[0].whose == "old"
        bench.answer(None)
        assert reason(client) == (BANNED if banned and number >= 3 else BAD_PASSWORD)
    assert [whom.user for whom in bench.gate.bans.now(bench.now_ns)] == (["old"] if banned else [])
    for name in ("good", "old"):  # whatever failed before, a token that is good opens
        client = bench.knock(Connect(client_id=name, password=attempt_of(name)))
        bench.gate.checked(bench.checks.pop(0), name, bench.now_ns, Token(name, 60 * S, "k"))
        bench.run()
        assert reason(client) == 0


@pytest.mark.parametrize(
    ("claims", "user"),
    [({"sub": "alice"}, "alice"), ({"sub": "a/#"}, ""), ({"sub": "x" * 500}, ""), ({"sub": 7}, ""), ({}, "")],
)
def test_whose_a_token_says_it_is(claims: dict[str, object], user: str) -> None:
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
    assert claimed_user(b"e30." + part + b".x") == user


@pytest.mark.parametrize(
    "payload", [b"x", b"____", b"W1tb", base64.urlsafe_b64encode(b"[" * 6000).rstrip(b"=")]
)
def test_what_is_no_token_says_nothing_of_whose_it_is(payload: bytes) -> None:
    assert claimed_user(b"e30." + payload + b".x") == ""


def test_an_old_token_does_not_keep_out_a_good_one_behind_its_address() -> None:
    """On the way through the threads: who did not fail waits a second at most, and is not refused."""

    async def test() -> None:
        answers: list[tuple[str, str | None]] = []
        gate: Any = SimpleNamespace(
            known=tokened(),
            checked=lambda wanted, user, *_: answers.append((wanted.whose, user)),
            too_many=lambda wanted, _: answers.append((wanted.whose, "refused")),
        )
        checking = Checking(asyncio.get_running_loop(), event=lambda *_: None, step=lambda: None)
        checking.gate = gate

        def come(name: str, key: Any) -> None:
            attempt = Attempt("", token(key, sub=name), name, "a")
            connection: Any = SimpleNamespace(closing=False)
            assert checking.take(Asking(connection, Connect(client_id="c"), attempt, None, "token", name))

        for _ in range(40):
            come("old", OTHER)
        while sum(answer == "refused" for _, answer in answers) == 0:
            await asyncio.sleep(0.01)
        before = time.monotonic()
        come("good", PRIVATE)
        while ("good", "good") not in answers:
            assert time.monotonic() < before + 3.0, answers
            await asyncio.sleep(0.01)
        assert ("good", "refused") not in answers

    asyncio.run(test())


def test_when_a_token_ends_its_connection_ends() -> None:
    bench = Bench()
    short, long = bench.log_in(Token("a", 60 * S, "k"), "a"), bench.log_in(Token("b", 90 * S, "k"), "b")
    short.take(), long.take()
    bench.pass_time(59 * S)
    assert not short.connection.closing
    bench.pass_time(2 * S)
    assert reason(short) == NOT_AUTHORIZED
    assert not long.connection.closing
    bench.pass_time(31 * S)
    assert reason(long) == NOT_AUTHORIZED
    assert (bench.gate._expiring._due_ns, bench.gate._expiring._order) == ({}, [])


def test_what_is_kept_of_tokens_that_came_and_went_is_bounded() -> None:
    bench = Bench()
    for number in range(3000):
        bench.log_in(Token("a", (100_000 - number) * S, "k")).say(Disconnect())
    assert len(bench.gate._expiring._order) < 1100


def test_who_came_by_a_key_that_is_gone_is_disconnected() -> None:
    bench = Bench()
    client = bench.log_in(Token("a", 60 * S, "k"))
    client.take()
    bench.gate.reload(tokened(keys=("k", "new")), bench.now_ns)
    assert not client.connection.closing
    bench.gate.reload(tokened(keys=("new",)), bench.now_ns)
    bench.run()
    assert reason(client) == NOT_AUTHORIZED
    assert reason(bench.log_in(Token("a", 60 * S, "k"))) == BAD_PASSWORD


@pytest.mark.parametrize("rules", [None, '[[rule]]\neveryone = true\nsubscribe = ["all", "x/#"]'])
def test_a_tokens_rights_are_its_sessions_alone(rules: str | None) -> None:
    bench = Bench(rules)
    grant = Grant(subscribe=("own/%u", "x/#"), deny_subscribe=("x/secret",))
    mine = bench.log_in(Token("alice", 60 * S, "k", grant), "mine")
    other = bench.log_in(Token("alice", 60 * S, "k"), "other")
    for client in (mine, other):
        client.take()
    asked = ("own/alice", "own/bob", "x/a", "x/#", "all")
    found = [mine.subscribe(filter).reasons[0] for filter in asked]
    assert found == [0, NOT_AUTHORIZED, 0, NOT_AUTHORIZED, 0 if rules else NOT_AUTHORIZED]
    found = [other.subscribe(filter).reasons[0] for filter in asked]
    assert found == [
        0 if rules is None or each in ("x/a", "x/#", "all") else NOT_AUTHORIZED for each in asked
    ]


def test_a_tokens_rights_are_kept_after_a_failover() -> None:
    """What it lets a session have is not taken from it because another member serves."""
    group = Group(2)
    gates = {
        name: Gate(
            member.broker,
            tokened('[[rule]]\neveryone = true\nsubscribe = ["all"]'),
            verified=Verified(b"k" * 32),
            check=lambda wanted: waiting.append(wanted) or True,
            address_of=lambda fd: "",
        )
        for name, member in group.members.items()
    }
    waiting: list[Any] = []
    connection = group.members["a"].open(None, group.now_ns)
    assert connection is not None
    group.clients[connection] = client = GroupClient(group, "a", connection)
    client.say(Connect(client_id="c", password=b"a.b.c", properties=Properties(session_expiry=600)))
    gates["a"].checked(
        waiting.pop(), "alice", group.now_ns, Token("alice", 60 * S, "k", Grant(subscribe=("own/%u",)))
    )
    group.pass_time(10 * MS)
    client.say(Subscribe(packet_id=1, subscriptions=[Wanted(filter="own/alice", qos=1)]))
    group.pass_time(50 * MS)
    assert [packet.reasons for packet in client.take() if isinstance(packet, Suback)] == [[1]]
    group.crash("a")
    group.pass_time(300 * MS)
    assert list(group.members["b"].broker.clients.sessions[key_of("alice", "c")].subscriptions) == [
        "own/alice"
    ]


# A running broker


def test_a_running_broker_takes_tokens_until_they_or_their_keys_end(
    start_broker: StartBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "issuer.pem").write_bytes(PUBLIC)
    (tmp_path / "security.toml").write_text(
        'anonymous = "never"\n[jwt]\nalgorithms = ["ES256"]\nkeys = ["issuer.pem"]\naudience = "plant"\n'
    )
    broker = start_broker("--security", str(tmp_path / "security.toml"), kind="holdfast")

    def enter(given: bytes, name: str | None = "alice") -> tuple[Peer, int | None]:
        peer = Peer(broker.port)
        request.addfinalizer(peer.drop)
        peer.send(connect("c", username=name, password=given))
        return peer, peer.expect(Type.CONNACK, 10.0).reason

    for bad in (b"password", token(exp=time.time() - 5), token(OTHER), unsigned()):
        peer, answer = enter(bad)
        assert answer == BAD_PASSWORD
    wait_until(lambda: 'is="it has expired" user=alice client=c' in broker.stderr, "whose", START_S_MAX)
    peer, answer = enter(token(exp=time.time() + 3))
    assert answer == 0
    peer.expect_disconnect(NOT_AUTHORIZED)
    assert 'is="it has expired"' in broker.stderr
    peer, answer = enter(token(), None)
    assert answer == 0
    (tmp_path / "issuer.pem").write_bytes(OTHER_PUBLIC)
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: "event=reloaded" in broker.stderr, "reloaded", START_S_MAX)
    peer.expect_disconnect(NOT_AUTHORIZED)
    assert [enter(token())[1], enter(token(OTHER))[1]] == [BAD_PASSWORD, 0]
    assert "by=token" in broker.stderr
    assert token().decode()[:20] not in broker.stderr
