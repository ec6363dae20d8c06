"""`holdfast status`: one screen, JSON, and the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.peer import Peer
from conformance.wire import P, Type, publish
from runtime.test_http import http_port
from runtime.test_serve import contracts
from support.brokers import LOOPBACK, BrokerProcess, StartBroker, free_port


def status(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "status", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def watched(start_broker: StartBroker, tmp_path: Path) -> BrokerProcess:
    return start_broker("--http", f"{LOOPBACK}:0", "--contracts", str(contracts(tmp_path / "contracts.toml")))


def late_by_a_second(broker: BrokerProcess) -> None:
    """One message of the contract comes a second after its stamp."""
    with Peer(broker.port) as subscriber, Peer(broker.port) as publisher:
        subscriber.connect("s")
        subscriber.subscribe("plant/#")
        publisher.connect("p")
        stamp = f"{time.time_ns() - 10**9}/1/p.1"
        publisher.send(publish("plant/a", b"x", props=[(P.USER, ("hf", stamp))]))
        subscriber.expect(Type.PUBLISH)


def test_all_is_well_and_then_a_message_is_late(watched: BrokerProcess) -> None:
    url = f"http://{LOOPBACK}:{http_port(watched)}"
    well = status(url)
    assert well.returncode == 0, well.stderr
    assert "✓ all is well" in well.stdout
    assert "first" in well.stdout
    late_by_a_second(watched)
    red = status(url)
    assert red.returncode == 1
    assert "first: 1 of 1 came later than 50ms, " in red.stdout
    (document,) = json.loads(status(url, "--json").stdout)
    assert [each["about"] for each in document["troubles"]] == ["first"]
    assert document["status"]["contracts"][0]["late"] == 1


def test_who_does_not_answer_is_named(tmp_path: Path) -> None:
    port = free_port()
    group = tmp_path / "group.toml"
    group.write_text(
        'name = "g"\n[[member]]\nname = "a"\nmqtt = "127.0.0.1:1"\npeer = "127.0.0.1:2"\n'
        '[[member]]\nname = "b"\nmqtt = "localhost:3"\npeer = "localhost:4"\n'
    )
    done = status("--group", str(group), "--port", str(port))
    assert done.returncode == 2
    assert f"http://127.0.0.1:{port}: " in done.stdout
    assert f"http://localhost:{port}: " in done.stdout


def test_a_token_is_asked_for_and_taken(start_broker: StartBroker, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    token.chmod(0o600)
    url = (
        f"http://{LOOPBACK}:{http_port(start_broker('--http', f'{LOOPBACK}:0', '--http-token', str(token)))}"
    )
    without = status(url)
    assert without.returncode == 2
    assert "give the file of its token with --token" in without.stdout
    assert status(url, "--token", str(token)).returncode == 0


def test_what_is_no_address_is_said() -> None:
    done = status("ftp://here")
    assert done.returncode == 2
    assert "found 'ftp://here'; expected http://HOST:PORT" in done.stderr
