"""A real broker with a security file: passwords, hooks, new files while it runs, and addresses it refuses."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.peer import Peer
from conformance.wire import PINGREQ, Type, connect
from holdfast.security.users import change_users, hash_password
from support.brokers import START_S_MAX, BrokerProcess, StartBroker, wait_until

HASHES = {name: hash_password(f"password of {name}".encode()) for name in ("alice", "bob")}
BAD_PASSWORD, NOT_AUTHORIZED = 0x86, 0x87
RULES = """
[[rule]]
users = ["alice"]
publish = ["#"]
subscribe = ["#"]
"""


def write(directory: Path, security: str = 'users = "users"\n', rules: str | None = None) -> Path:
    with change_users(directory / "users") as users:
        users.update(HASHES)
    if rules is not None:
        (directory / "rules.toml").write_text(rules)
        security += 'rules = "rules.toml"\n'
    (directory / "security.toml").write_text(security)
    return directory / "security.toml"


opened: list[Peer] = []


@pytest.fixture(autouse=True)
def closed_in_the_end() -> Iterator[None]:
    yield
    while opened:
        opened.pop().drop()


def enter(port: int, name: str, password: str | None = None, client_id: str = "", v: int = 5) -> Peer:
    """A connection that has said CONNECT."""
    peer = Peer(port, v)
    opened.append(peer)
    given = (password or f"password of {name}").encode()
    peer.send(connect(client_id or f"c-{name}", v=v, username=name, password=given))
    return peer


def answer(peer: Peer) -> int:
    reason = peer.expect(Type.CONNACK, 10.0).reason
    assert reason is not None
    return reason


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("security"), 'anonymous = "never"\nusers = "users"\n')


@pytest.fixture(scope="module")
def guarded(files: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess("--security", str(files), kind="holdfast") as process:
        yield process


def test_the_right_password_opens_and_no_other_does(guarded: BrokerProcess) -> None:
    with enter(guarded.port, "alice") as right:
        assert answer(right) == 0
    for name, password in (("alice", "wrong"), ("nobody", "wrong"), ("bob", "password of alice")):
        with enter(guarded.port, name, password) as wrong:
            assert answer(wrong) == BAD_PASSWORD
            wrong.expect_closed()
    with Peer(guarded.port) as nameless:
        nameless.send(connect("nameless"))
        assert answer(nameless) == NOT_AUTHORIZED
    with enter(guarded.port, "alice", "wrong", v=4) as old:
        assert answer(old) == 4


def test_while_a_password_is_checked_everybody_else_is_served(start_broker: StartBroker, files: Path) -> None:
    broker = start_broker("--security", str(files), kind="holdfast")
    with enter(broker.port, "alice") as other:
        assert answer(other) == 0
        waiting = [enter(broker.port, "bob", client_id=f"b-{number}") for number in range(20)]
        for _ in range(3):
            began = time.monotonic()
            other.send(PINGREQ)
            other.expect(Type.PINGRESP)
            assert time.monotonic() - began < 0.2
        for peer in waiting:
            assert answer(peer) == 0
            peer.drop()


def test_guessing_is_slowed_and_who_was_let_in_before_is_not(start_broker: StartBroker, files: Path) -> None:
    broker = start_broker("--security", str(files), kind="holdfast")
    with enter(broker.port, "alice") as first:
        assert answer(first) == 0
    began = time.monotonic()
    peers = [enter(broker.port, "alice", f"guess {number}", client_id=f"g{number}") for number in range(6)]
    assert {answer(peer) for peer in peers} == {BAD_PASSWORD}
    assert time.monotonic() - began > 0.5
    with enter(broker.port, "alice", "one more guess") as last:
        assert answer(last) == BAD_PASSWORD
    began = time.monotonic()
    with enter(broker.port, "alice") as again:
        assert answer(again) == 0
    assert time.monotonic() - began < 0.5
    for peer in peers:
        peer.drop()


def test_who_guesses_does_not_keep_out_others_behind_its_address(
    start_broker: StartBroker, files: Path
) -> None:
    broker = start_broker("--security", str(files), kind="holdfast")
    guesses = [enter(broker.port, "alice", f"guess {number}", client_id=f"g{number}") for number in range(40)]
    wait_until(lambda: "reason=0x86" in broker.stderr, "a guess that failed", START_S_MAX)
    guesses += [enter(broker.port, "alice", f"more {number}", client_id=f"m{number}") for number in range(40)]
    with enter(broker.port, "bob") as innocent:
        assert answer(innocent) == 0


def test_new_files_hold_at_once_and_broken_ones_change_nothing(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker("--security", str(write(tmp_path, rules=RULES)), kind="holdfast")
    alice, bob = enter(broker.port, "alice"), enter(broker.port, "bob")
    assert [answer(alice), answer(bob)] == [0, 0]
    good = (tmp_path / "users").read_text()
    (tmp_path / "users").write_text("nonsense")
    reload(broker, "not reloaded")
    assert published(alice, "a") == 0
    (tmp_path / "users").write_text("".join(line for line in good.splitlines(True) if "bob" not in line))
    (tmp_path / "rules.toml").write_text(RULES.replace('publish = ["#"]', 'publish = ["b"]'))
    reload(broker, "event=reloaded")
    bob.expect_disconnect(NOT_AUTHORIZED)
    assert published(alice, "a") == NOT_AUTHORIZED
    assert published(alice, "b") == 0
    assert "line 1" in broker.stderr
    assert "nonsense" not in broker.stderr


def published(peer: Peer, topic: str) -> int:
    found = peer.publish(topic, b"", qos=1)
    assert found is not None
    return found.reason & ~0x10  # nobody subscribes


def reload(broker: BrokerProcess, words: str) -> None:
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: words in broker.stderr, words, START_S_MAX)


# Hooks


HOOK = """
import time

def authenticate(attempt):
    if attempt.username == "breaks":
        raise ValueError("with " + attempt.password.decode())
    if attempt.username == "strange":
        return 7
    if attempt.password == b"right of " + attempt.username.encode():
        return "hooked-" + attempt.username

async def slow(attempt):
    import asyncio
    await asyncio.sleep(0 if attempt.username == "quick" else 3600)
    return attempt.username
"""


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that offers hooks, as if it were installed."""
    (tmp_path / "our_hooks.py").write_text(HOOK)
    offered = tmp_path / "our_hooks-1.dist-info"
    offered.mkdir()
    (offered / "METADATA").write_text("Metadata-Version: 2.1\nName: our-hooks\nVersion: 1\n")
    (offered / "entry_points.txt").write_text(
        "[holdfast.authentication]\nours = our_hooks:authenticate\nslow = our_hooks:slow\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def test_a_hook_knows_users_that_the_file_does_not(start_broker: StartBroker, hooks: Path) -> None:
    rules = '[[rule]]\nusers = ["hooked-carol"]\npublish = ["%u"]\n'
    path = write(hooks, 'users = "users"\nhook = "ours"\n', rules)
    broker = start_broker("--security", str(path), kind="holdfast")
    with enter(broker.port, "carol", "right of carol") as carol, enter(broker.port, "alice") as alice:
        assert [answer(carol), answer(alice)] == [0, 0]
        assert published(carol, "hooked-carol") == 0
        assert published(carol, "carol") == NOT_AUTHORIZED
    for name in ("carol", "breaks", "strange"):
        with enter(broker.port, name, "password that nobody may see") as wrong:
            assert answer(wrong) == BAD_PASSWORD
    assert "is=ValueError user=breaks client=c-breaks address=" in broker.stderr
    assert "nobody may see" not in broker.stderr


def test_a_hook_that_does_not_answer_is_a_refusal_and_holds_up_nobody(
    start_broker: StartBroker, hooks: Path
) -> None:
    broker = start_broker("--security", str(write(hooks, 'hook = "slow"\n')), kind="holdfast")
    with enter(broker.port, "late") as late, enter(broker.port, "quick") as quick:
        assert answer(quick) == 0
        assert answer(late) == BAD_PASSWORD
    assert 'is=timeout why="no answer in 5 s" user=late client=c-late address=' in broker.stderr


def test_a_hook_that_is_not_there_is_told_at_the_start(hooks: Path) -> None:
    said = check("--security", str(write(hooks, 'hook = "missing"\n')))
    assert "no package offers 'missing'" in said
    assert "ours, slow" in said


# Addresses


def check(*arguments: str) -> str:
    """What a broker says that does not start."""
    command = [sys.executable, "-m", "holdfast.cli.main", "broker", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
def test_a_broker_does_not_listen_to_strangers_unless_it_is_told_to(host: str) -> None:
    said = check("--listen", f"{host}:0")
    assert 'write anonymous = "anywhere"' in said
    assert "holdfast user add" in said


@pytest.mark.parametrize("security", ['anonymous = "anywhere"\n', 'users = "users"\n'])
def test_a_broker_that_is_told_to_listens_anywhere(
    start_broker: StartBroker, tmp_path: Path, security: str
) -> None:
    path = write(tmp_path, security + '[[listener]]\naddress = "0.0.0.0:0"\n')
    broker = start_broker("--security", str(path), kind="holdfast")
    assert "listening on mqtt://0.0.0.0:" in broker.stdout


def test_members_on_other_hosts_need_a_secret_or_tls(tmp_path: Path) -> None:
    group = tmp_path / "group.toml"
    group.write_text(
        'name = "plant"\n'
        '[[member]]\nname = "a"\nmqtt = "127.0.0.1:0"\npeer = "127.0.0.1:0"\n'
        '[[member]]\nname = "b"\nmqtt = "192.0.2.7:1883"\npeer = "192.0.2.7:7883"\n'
    )
    said = check("--group", str(group), "--member", "a")
    assert "anybody who reaches 192.0.2.7:7883 could pose as a member" in said
    assert 'secret = "peer.secret"' in said
