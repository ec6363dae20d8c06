"""The broker as a process: listeners, signals, configuration, sockets that are full."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.peer import Peer
from conformance.wire import Type, connect, parse, publish, subscribe
from holdfast.runtime.ports import free_ports
from support.brokers import LOOPBACK, BrokerProcess, StartBroker, wait_until

WAIT_S_MAX = 10.0

CONTRACTS = """
[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { edge = "1ms" }
[[contract]]
name = "NAME"
topics = ["plant/+"]
period = "50ms"
deadline = "50ms"
loss_tolerance = 0
retention = RETENTION
"""


def contracts(path: Path, name: str = "first", retention: object = 2) -> Path:
    path.write_text(CONTRACTS.replace("NAME", name).replace("RETENTION", str(retention)))
    return path


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", *arguments],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def addresses(broker: BrokerProcess) -> list[str]:
    return [line.removeprefix("listening on mqtt://") for line in broker.stdout.splitlines()]


def test_several_listeners_are_one_broker(start_broker: StartBroker) -> None:
    broker = start_broker("--listen", f"{LOOPBACK}:0")
    wait_until(lambda: len(addresses(broker)) == 2, "both listeners", WAIT_S_MAX)
    ports = [int(address.rpartition(":")[2]) for address in addresses(broker)]
    with Peer(ports[0]) as publisher, Peer(ports[1]) as subscriber:
        publisher.connect("p")
        subscriber.connect("s")
        subscriber.subscribe("t")
        publisher.send(publish("t", b"across"))
        assert subscriber.receive().payload == b"across"


def test_ipv6_where_there_is_any(start_broker: StartBroker) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    broker = start_broker("--listen", "[::1]:0")
    wait_until(lambda: any("[::1]" in address for address in addresses(broker)), "the listener", WAIT_S_MAX)


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        done = holdfast("broker", "--listen", f"{LOOPBACK}:{taken.getsockname()[1]}")
    assert done.returncode == 1
    assert "Choose another with --listen" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_taken_port_for_the_other_members_is_said_with_where_it_stands(tmp_path: Path) -> None:
    mqtt, *others = free_ports(3)
    with socket.create_server((LOOPBACK, 0)) as taken:
        peers = [f"{LOOPBACK}:{taken.getsockname()[1]}", f"{LOOPBACK}:{others[0]}"]
        members = zip("ab", [mqtt, others[1]], peers, strict=True)
        file = tmp_path / "group.toml"
        file.write_text(
            'name = "plant"\n'
            + "".join(
                f'[[member]]\nname = "{name}"\nmqtt = "{LOOPBACK}:{port}"\npeer = "{peer}"\n'
                for name, port, peer in members
            )
        )
        done = holdfast("broker", "--group", str(file), "--member", "a")
    assert done.returncode == 1
    assert done.stderr == (
        f"holdfast: cannot listen on {peers[0]}: Address already in use. "
        "Choose another as peer of a in the group file.\n"
    )


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x"])
def test_an_address_that_cannot_be_read_is_said(address: str) -> None:
    done = holdfast("broker", "--listen", address)
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr


def test_check_config_says_everything_and_starts_nothing(tmp_path: Path) -> None:
    path = contracts(tmp_path / "c.toml", retention='"many"')
    done = holdfast("broker", "--contracts", str(path), "--policy", "best", "--listen", "x", "--check-config")
    assert done.returncode == 2
    for part in ("--policy", "--listen[0]", "contract[0].retention"):
        assert part in done.stderr
    assert holdfast("broker", "--contracts", str(contracts(path)), "--check-config").returncode == 0


@pytest.mark.parametrize("more", [[], ["--check-config"]], ids=["start", "check"])
def test_a_place_for_data_and_a_token_that_cannot_be_used_are_told_with_the_rest(
    tmp_path: Path, more: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    data, token = str(tmp_path / "file" / "below"), str(tmp_path / "token")
    options = ("--policy", "best", "--http", "127.0.0.1:0", "--data", data, "--http-token", token)
    done = holdfast("broker", *options, *more)
    assert done.returncode == 2
    assert "--policy" in done.stderr
    assert f"--data: {data} cannot be used: {tmp_path / 'file'} is not a directory" in done.stderr
    assert f"--http-token: {token} cannot be read: No such file or directory" in done.stderr


def test_check_config_makes_no_directory_for_data(tmp_path: Path) -> None:
    new = tmp_path / "data"
    assert holdfast("broker", "--data", str(new / "below"), "--check-config").returncode == 2
    assert holdfast("broker", "--data", str(new), "--check-config").returncode == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("more", [[], ["--check-config"]], ids=["start", "check"])
def test_every_broken_file_is_named_at_once(tmp_path: Path, more: list[str]) -> None:
    files = {
        "--contracts": contracts(tmp_path / "c.toml", retention='"many"'),
        "--security": tmp_path / "security.toml",
        "--group": tmp_path / "group.toml",
    }
    files["--security"].write_text("anonymous = 7\n")
    files["--group"].write_text('name = "plant"\n')
    options = [str(each) for pair in files.items() for each in pair]
    done = holdfast("broker", "--listen", "x", "--member", "a", *options, *more)
    assert done.returncode == 2
    for path in files.values():
        assert f"{path}: " in done.stderr
    assert "--listen[0]" in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(set(lines)), "what two look at is told once"


def test_a_contract_that_cannot_be_kept_is_refused_at_the_start(tmp_path: Path) -> None:
    path = contracts(tmp_path / "c.toml", retention=0)
    for extra in ([], ["--check-config"]):
        done = holdfast("broker", "--listen", f"{LOOPBACK}:0", "--contracts", str(path), *extra)
        assert done.returncode == 2
        assert "retention" in done.stderr


def test_sigterm_delivers_what_waits_says_why_and_exits_0(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Peer(broker.port) as publisher, Peer(broker.port) as subscriber:
        publisher.connect("p")
        subscriber.connect("s")
        subscriber.subscribe("t")
        publisher.send(b"".join(publish("t", b"%d" % number) for number in range(1000)))
        assert subscriber.receive().payload == b"0"
        os.kill(broker.pid, signal.SIGTERM)
        while (packet := subscriber.expect_any()).type == Type.PUBLISH:
            pass
        assert packet.type == Type.DISCONNECT
        assert packet.reason == 0x8B
        subscriber.expect_closed()
    assert broker.terminate() == 0


def test_sighup_reads_the_contracts_again_and_keeps_the_old_ones_if_broken(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    path = contracts(tmp_path / "c.toml", "first")
    broker = start_broker("--contracts", str(path))
    contracts(path, "second", retention=0)
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: "not reloaded" in broker.stderr, "a refusal in the log", WAIT_S_MAX)
    contracts(path, "second")
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: "event=reloaded" in broker.stderr, "the reload in the log", WAIT_S_MAX)
    assert broker.alive


def starting(path: Path) -> subprocess.Popen[str]:
    """A broker that has just begun to load its command line."""
    process = subprocess.Popen(
        [sys.executable, *f"-m holdfast.cli.main broker --listen {LOOPBACK}:0 --contracts {path}".split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def is_blocked() -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return bool(int(status.split("SigBlk:")[1].split()[0], 16) >> (signal.SIGHUP - 1) & 1)

    wait_until(lambda: is_blocked() or process.poll() is not None, "its signals are held", WAIT_S_MAX)
    return process


def test_sighup_at_any_moment_of_the_start_ends_nothing_and_is_acted_on_later(tmp_path: Path) -> None:
    with starting(contracts(tmp_path / "c.toml")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            while not select.select([process.stdout], [], [], 0.002)[0]:
                process.send_signal(signal.SIGHUP)
            assert process.stdout.readline().startswith("listening on")
            said = ""
            while "event=reloaded" not in said:
                assert select.select([process.stderr], [], [], WAIT_S_MAX)[0], "SIGHUP was forgotten"
                said = process.stderr.readline()
                assert "event=priority" in said or "event=reloaded" in said
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S_MAX) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_that_is_told_to_end_while_it_starts_ends_cleanly(tmp_path: Path, number: int) -> None:
    with starting(contracts(tmp_path / "c.toml")) as process:
        try:
            process.send_signal(number)
            _, said = process.communicate(timeout=WAIT_S_MAX)
        finally:
            process.kill()
    assert process.returncode == 0
    events = [line.split()[1] for line in said.splitlines()]
    assert events in (["event=draining"], ["event=priority", "event=draining"])  # it may have begun to listen


def test_signals_are_held_before_anything_slow_is_loaded_and_only_for_a_broker() -> None:
    code = (
        "import signal, sys, holdfast.cli; "
        "print(signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, []), *sys.modules)"
    )

    def said(*arguments: str) -> str:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

    held, *loaded = said("broker").split()
    assert held == "True"
    assert not {"typer", "msgspec", "asyncio", "tomllib"} & set(loaded)
    assert said("status").startswith("False ")


def test_a_stopped_reader_costs_the_broker_a_bounded_amount(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    """Best effort to a socket that is never read: memory has a bound, and another gets everything."""
    limits = tmp_path / "c.toml"
    limits.write_text("[limits]\nqueue_messages_max = 1000\n")
    broker = start_broker("--contracts", str(limits))

    def resident_kib() -> int:
        status = Path(f"/proc/{broker.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    with (
        Peer(broker.port) as publisher,
        Peer(broker.port) as healthy,
        socket.create_connection((LOOPBACK, broker.port)) as stopped,
    ):
        stopped.sendall(connect("stopped") + subscribe(1, "t"))
        publisher.connect("p")
        healthy.connect("h")
        healthy.subscribe("t")
        before = resident_kib()
        body = b"x" * 2000
        for batch in range(200):
            publisher.send(b"".join(publish("t", b"%06d" % (batch * 100 + i) + body) for i in range(100)))
            for number in range(batch * 100, batch * 100 + 100):
                assert healthy.receive().payload[:6] == b"%06d" % number
        assert resident_kib() - before < 20_000  # 40 MB were published


def test_what_is_said_before_a_close_arrives_though_the_client_was_still_sending(
    start_broker: StartBroker,
) -> None:
    """A reset would throw the reason away: the broker shuts its side and reads the rest."""
    broker = start_broker()
    with socket.create_connection((LOOPBACK, broker.port), timeout=WAIT_S_MAX) as client:
        client.sendall(connect("c") + publish("a/+", b"") + b"\x30" * 200_000)
        said = b""
        while data := client.recv(65_536):  # a reset would be raised here
            said += data
    assert parse(said[said.index(b"\xe0") :]).reason == 0x90
