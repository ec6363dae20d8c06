"""A running pair with users, rules and a secret: what strangers get of it, and what it says of secrets."""

import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conformance.peer import Peer
from conformance.wire import Type, connect, publish, subscribe
from holdfast.replication.messages import (
    Ask,
    Beat,
    Bye,
    Challenge,
    Hello,
    Proof,
    Word,
    Worth,
    decode_word,
    encode_word,
)
from holdfast.replication.roles import Role
from holdfast.security.users import change_users, hash_password
from support.brokers import LOOPBACK
from support.groups import GroupProcesses

PASSWORD = "a password that nobody may see"
SECRET = "a secret that nobody may see, either"
FRAME = Path(__file__).parents[2] / "examples" / "frame.toml"
RULES = """
[[rule]]
everyone = true
subscribe = ["$SYS/#"]
[[rule]]
users = ["alice", "bob"]
publish = ["own/%u/#"]
subscribe = ["own/%u/#"]
"""
SECURITY = """
users = "users"
rules = "rules.toml"
[peers]
secret = "peer.secret"
"""
SESSION_EXPIRY = 0x11
REFUSALS = {0x86, 0x87, 0x9C, 0x9D}  # a standby sends clients elsewhere


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupProcesses]:
    directory = tmp_path_factory.mktemp("pair")
    with change_users(directory / "users") as users:
        users.update({name: hash_password(PASSWORD.encode()) for name in ("alice", "bob")})
    (directory / "rules.toml").write_text(RULES)
    (directory / "peer.secret").write_text(SECRET)
    (directory / "peer.secret").chmod(0o600)
    (directory / "security.toml").write_text(SECURITY)
    with GroupProcesses(directory, FRAME, security=directory / "security.toml", http=True) as group:
        group.await_protected()
        yield group


def test_a_pair_without_a_secret_says_so(pair: GroupProcesses, tmp_path: Path) -> None:
    with GroupProcesses(tmp_path, FRAME) as open_pair:
        open_pair.await_protected()
        for name in open_pair.names:
            assert "peers not protected" in open_pair.log(name)
    for name in pair.names:
        assert "peers not protected" not in pair.log(name)


def enter(pair: GroupProcesses, name: str, client_id: str, password: str = PASSWORD) -> Peer:
    peer = pair.client()
    properties = [(SESSION_EXPIRY, 600)]
    peer.send(connect(client_id, username=name, password=password.encode(), clean=False, props=properties))
    return peer


def ports_of(pair: GroupProcesses) -> set[int]:
    """Everything that the brokers listen on, as the kernel knows it."""
    return {
        found.laddr.port
        for process in pair.processes.values()
        for found in psutil.Process(process.pid).net_connections(kind="inet")
        if found.status == psutil.CONN_LISTEN
    }


def say(port: int, data: bytes) -> bytes:
    """What comes back until the broker closes, or says no more."""
    got = b""
    with socket.create_connection((LOOPBACK, port), timeout=1.0) as stranger:
        stranger.settimeout(0.3)
        try:
            stranger.sendall(data)
            while piece := stranger.recv(65_536):
                got += piece
        except OSError:
            pass
    return got


def frame(word: Word) -> bytes:
    body = encode_word(word)
    return (len(body) + 1).to_bytes(4, "big") + b"\x01" + body


def junk() -> list[bytes]:
    rng = random.Random(7)
    hello = Hello(1, "plant", "", "b", Role.PRIMARY, 10**6, Worth(10**6, 10**6, True, 10**6))
    beat = Beat(Role.PRIMARY, 10**6, Worth(), 1, 1, 1, 1)
    return [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /metrics HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(32),
        b"\xff" * 100,
        b"\x00" * 100,
        rng.randbytes(3000),
        connect("stranger", username="alice", password=b"wrong"),
        connect("stranger", username="nobody", password=PASSWORD.encode()),
        connect("stranger", v=4, username="bob", password=b""),
        connect("stranger", username="alice", password=b"wrong") + subscribe(1, "#") + publish("a", b"x"),
        publish("own/alice/x", b"without a CONNECT"),
        frame(hello) + frame(beat) + frame(Bye()) + frame(Ask(0, 0)),
        frame(Challenge(b"n" * 32)) + frame(Proof(b"p" * 32)) + frame(hello),
        frame(Challenge(b"n" * 32)) + b"\x00\x00\x00\x09\x04" + bytes(8),
    ]


def test_a_scan_of_all_ports_gets_nothing_and_changes_nothing(pair: GroupProcesses) -> None:
    primary = pair.primary()
    ports = ports_of(pair)
    assert ports == {*pair.ports.values(), *pair.listen_peer.values(), *pair.http.values()}
    roles = {name: pair.log(name).count("event=role") for name in pair.names}
    with enter(pair, "alice", "watches") as alice:
        assert alice.expect(Type.CONNACK, 10.0).reason == 0
        alice.subscribe("own/alice/#")
        for port in sorted(ports):
            for data in junk():
                judge(port, data, say(port, data), pair)
        assert alice.publish("own/alice/x", b"still here", qos=1).reason == 0
        assert alice.receive().payload == b"still here"
        alice.expect_nothing()
    assert pair.primary() == primary
    assert roles == {name: pair.log(name).count("event=role") for name in pair.names}


def judge(port: int, data: bytes, got: bytes, pair: GroupProcesses) -> None:
    """Refusals in words are all that a stranger hears; from members a nonce, too. On loopback metrics are
    not kept from anybody."""
    if port in pair.listen_peer.values():
        while got:
            size = int.from_bytes(got[:4], "big")
            word = decode_word(got[5 : 4 + size])
            assert type(word).__name__ in ("Challenge", "Refusal"), (data, word)
            got = got[4 + size :]
        return
    if port in pair.http.values():
        assert got == b"" or got.startswith(b"HTTP/1.1 "), (data, got)
        assert PASSWORD.encode() not in got
    elif got:
        assert got[0] == 0x20, (data, got)  # one CONNACK that refuses
        reason = got[3]
        assert reason in REFUSALS | {3, 4, 5, 0x84}, (data, got)
        assert len(got) == 2 + got[1], (data, got)


def test_a_session_belongs_to_its_user_after_a_failover_too(pair: GroupProcesses) -> None:
    with enter(pair, "bob", "kept") as bob:
        assert bob.expect(Type.CONNACK, 10.0).reason == 0
        bob.subscribe(("own/bob/#", 1))
    first = pair.primary()
    pair.kill(first)
    with enter(pair, "alice", "kept") as alice:
        welcome = alice.expect(Type.CONNACK, 10.0)
        assert (welcome.reason, welcome.session_present) == (0, False)
    with enter(pair, "bob", "kept") as bob:
        welcome = bob.expect(Type.CONNACK, 10.0)
        assert (welcome.reason, welcome.session_present) == (0, True)
        bob.publish("own/bob/x", b"mine", qos=1)
        assert bob.receive().payload == b"mine"
    pair.start(first)
    pair.await_protected()


def test_no_secret_is_in_anything_that_a_running_system_shows(pair: GroupProcesses, tmp_path: Path) -> None:
    """Logs, what was kept on disk, arguments and environments of processes, metrics, and all under $SYS."""
    password_file = tmp_path / "password"
    password_file.write_text(PASSWORD + "\n")
    password_file.chmod(0o600)
    address = f"{LOOPBACK}:{pair.ports[pair.primary()]}"
    shown = [sub_with(address, "-P", PASSWORD), sub_with(address, f"--pw={PASSWORD}")]
    shown.append(sub_with(address, "--password-file", str(password_file)))
    with enter(pair, "alice", "wrong", PASSWORD + " not") as wrong:
        assert wrong.expect(Type.CONNACK, 10.0).reason == 0x86
    with enter(pair, "alice", "asks") as alice:
        assert alice.expect(Type.CONNACK, 10.0).reason == 0
        alice.subscribe("$SYS/#")
        shown += [alice.receive(5.0).payload for _ in range(30)]
    for port in pair.http.values():
        shown += [say(port, b"GET %s HTTP/1.0\r\n\r\n" % path) for path in (b"/metrics", b"/status")]
    for name, process in pair.processes.items():
        shown += [Path(f"/proc/{process.pid}/{what}").read_bytes() for what in ("cmdline", "environ")]
        shown += [pair.log(name).encode()]
        shown += [path.read_bytes() for path in pair.data[name].rglob("*") if path.is_file()]
    everything = b"\n".join(shown)
    assert len(everything) > 10_000
    for secret in (PASSWORD, SECRET):
        assert secret.encode() not in everything


def sub_with(address: str, *password: str) -> bytes:
    """What others see of `holdfast sub` while it is connected, and all that it says."""
    command = [sys.executable, "-m", "holdfast.cli.main", "sub", "-h", address, "-t", "$SYS/broker/version"]
    running = subprocess.Popen(
        [*command, "-u", "alice", *password], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert running.stdout is not None
    try:
        said = running.stdout.readline()
        assert said.startswith(b"holdfast "), said  # it is connected when it shows the first message
        seen = [Path(f"/proc/{running.pid}/{what}").read_bytes() for what in ("cmdline", "environ")]
    finally:
        running.terminate()
        rest = running.communicate(timeout=10)[0]
    assert b"holdfast" in seen[0]
    return b"\n".join([*seen, said, rest])
