"""The HTTP port of a broker: what it answers, to whom, and what junk does to it."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from conformance.peer import Peer
from conformance.wire import Type, publish
from holdfast.runtime.http import (
    ANSWERS_MAX,
    OPEN_MAX,
    REQUEST_BYTES_MAX,
    Answer,
    Asked,
    HttpPort,
    is_ours,
    understand,
    words,
)
from holdfast.runtime.metrics import names
from holdfast.status import BrokerStatus, decode_status
from runtime.test_serve import contracts
from support.brokers import LOOPBACK, BrokerProcess, StartBroker, free_port, wait_until
from support.certificates import Authority
from support.groups import PATIENT, GroupProcesses
from support.metrics import PAGE, documented, drawn, told

WAIT_S_MAX = 10.0
HTTP = re.compile(rf"listening on http://{re.escape(LOOPBACK)}:(\d+)")


@pytest.fixture
def watched(start_broker: StartBroker, tmp_path: Path) -> BrokerProcess:
    return start_broker("--http", f"{LOOPBACK}:0", "--contracts", str(contracts(tmp_path / "contracts.toml")))


def http_port(broker: BrokerProcess) -> int:
    found = HTTP.search(broker.stdout)
    assert found, broker.stdout
    return int(found[1])


@contextmanager
def asked(port: int, path: str, method: str = "GET", **headers: str) -> Iterator[tuple[HTTPResponse, bytes]]:
    connection = HTTPConnection(LOOPBACK, port, timeout=WAIT_S_MAX)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        yield answer, answer.read()
    finally:
        connection.close()


def status_of(port: int) -> BrokerStatus:
    with asked(port, "/status") as (_, body):
        status = decode_status(body)
    assert isinstance(status, BrokerStatus)
    return status


def samples(port: int) -> dict[tuple[str, str], float]:
    with asked(port, "/metrics") as (_, body):
        families = text_string_to_metric_families(body.decode())
        return {
            (each.name, ",".join(each.labels.values())): each.value
            for family in families
            for each in family.samples
        }


def exchange(broker: BrokerProcess, messages: int) -> None:
    """So many messages to plant/a, all delivered."""
    with Peer(broker.port) as subscriber, Peer(broker.port) as publisher:
        subscriber.connect("s")
        subscriber.subscribe("plant/#")
        publisher.connect("p")
        for _ in range(messages):
            publisher.send(publish("plant/a", b"x"))
        for _ in range(messages):
            subscriber.expect(Type.PUBLISH)


def test_metrics_and_status_tell_of_the_same_messages(watched: BrokerProcess) -> None:
    exchange(watched, 5)
    port = http_port(watched)
    status = status_of(port)
    first = status.contracts[0]
    assert (first.name, first.topics, first.published, first.delivered) == ("first", ["plant/+"], 5, 5)
    assert first.latency.count == 5
    assert (status.role, status.ready, status.pid) == ("alone", True, watched.pid)
    assert status.contracts[-1].name == "default"
    found = samples(port)
    assert found["holdfast_published_total", "first"] == 5
    assert found["holdfast_latency_seconds_bucket", "first,+Inf"] == 5
    assert found["holdfast_latency_seconds_count", "first"] == 5
    assert found["holdfast_deadline_seconds", "first"] == 0.05
    assert found["holdfast_loss_tolerance", "default"] == float("inf")
    assert found["holdfast_role", "alone"] == 1
    assert found["holdfast_slice_seconds_count", ""] > 0
    assert found["process_resident_memory_bytes", ""] > 10 * 2**20


def test_every_family_is_in_every_scrape_once(watched: BrokerProcess) -> None:
    with asked(http_port(watched), "/metrics") as (answer, body):
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        told = re.findall(r"^# TYPE (\S+)", body.decode(), re.MULTILINE)
    assert sorted(told) == sorted(names())
    assert len(set(told)) == len(told)


def test_what_is_documented_and_drawn_is_what_a_scrape_has(watched: BrokerProcess) -> None:
    with asked(http_port(watched), "/metrics") as (_, body):
        scrape = told(body.decode())
    assert documented(pipeline=False) == scrape
    assert drawn(pipeline=False) - scrape.keys() == set()


def test_the_page_says_how_many_families_there_are() -> None:
    (said,) = re.findall(r"grep -c '\^# TYPE'\n(\d+)\n", PAGE.read_text())
    assert int(said) == len(names())


def test_health(watched: BrokerProcess) -> None:
    port = http_port(watched)
    with asked(port, "/health/live") as (answer, _):
        assert answer.status == 200
    with asked(port, "/health/ready") as (answer, body):
        assert (answer.status, body) == (200, b"it serves\n")


def test_only_get_and_head_are_answered(watched: BrokerProcess) -> None:
    port = http_port(watched)
    with asked(port, "/metrics", "POST") as (answer, _):
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    with asked(port, "/metrics", "HEAD") as (answer, body):
        assert (answer.status, body) == (200, b"")
    with asked(port, "/elsewhere") as (answer, body):
        assert answer.status == 404
        assert b"/metrics, /status, /health/live, /health/ready" in body


def test_a_member_says_why_it_is_not_ready_and_when_it_is(tmp_path: Path) -> None:
    file = contracts(tmp_path / "contracts.toml")
    with GroupProcesses(tmp_path, file, keep=False, http=True) as group:
        group.await_protected()
        backup = next(name for name in group.names if name != group.primary())
        status = status_of(group.http[backup])
        assert (status.role, status.ready) == ("backup", True)
        primary = status_of(group.http[group.primary()])
        assert [(link.member, link.health, link.backup) for link in primary.links] == [(backup, "up", True)]
        wait_until(
            lambda: status_of(group.http[group.primary()]).links[0].way_ns is not None, "a way", WAIT_S_MAX
        )
        first = group.primary()
        group.kill(first)
        wait_until(lambda: status_of(group.http[backup]).role == "primary", "the takeover", WAIT_S_MAX)
        taken = status_of(group.http[backup])
        assert [(each.primary, each.x_ns) for each in taken.failovers] == [
            (first, taken.reckoning.failover_last_ns)
        ]
        assert [link.health for link in taken.links] == ["down"]
        found = samples(group.http[backup])
        assert found["holdfast_failovers_total", ""] == 1
        assert found["holdfast_link_up", first] == 0


def test_a_member_without_its_arbiter_is_not_ready_and_says_so(tmp_path: Path) -> None:
    file = contracts(tmp_path / "contracts.toml")
    nobody = f'{PATIENT}zookeeper = "{LOOPBACK}:{free_port()}"\n'
    with GroupProcesses(tmp_path, file, keep=False, http=True, more=nobody) as group:
        for name in group.names:
            with asked(group.http[name], "/health/ready") as (answer, body):
                assert answer.status == 503
                assert body in (
                    b"it looks for a primary\n",
                    b"it has asked the arbiter for the next view, and has no answer yet\n",
                )
            with asked(group.http[name], "/health/live") as (answer, _):
                assert answer.status == 200
            assert not status_of(group.http[name]).ready


def test_a_member_that_is_refused_says_why(tmp_path: Path) -> None:
    file = contracts(tmp_path / "contracts.toml")
    with GroupProcesses(tmp_path, file, keep=False, http=True) as group:
        first = group.primary()
        (backup,) = (name for name in group.names if name != first)
        group.kill(backup)
        file.write_text(file.read_text().replace("[[contract]]", "[[contract]]\ndurable = true", 1))
        group.start(backup)
        differ = "the contract files differ: give every member the same"
        why = f"it looks for a primary; it cannot join {first}: {differ}"
        wait_until(lambda: status_of(group.http[backup]).ready_why == why, "why", WAIT_S_MAX)
        with asked(group.http[backup], "/health/ready") as (answer, body):
            assert (answer.status, body.decode()) == (503, f"{why}\n")


# -- who may ask ---------------------------------------------------------------------------------------------


def test_with_a_token_nobody_learns_anything_without_it(start_broker: StartBroker, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("correct-horse-battery\n")
    token.chmod(0o600)
    port = http_port(start_broker("--http", f"{LOOPBACK}:0", "--http-token", str(token)))
    for path in ("/metrics", "/status", "/health/ready", "/nowhere"):
        for headers in (
            {},
            {"Authorization": "Bearer correct-horse"},
            {"Authorization": "Basic correct-horse-battery"},
        ):
            with asked(port, path, **headers) as (answer, body):
                assert answer.status == 401
                assert b"holdfast" not in body
    with asked(port, "/metrics", Authorization="Bearer correct-horse-battery") as (answer, _):
        assert answer.status == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--http", "0.0.0.0:0"], "say who may ask with --http-token"),
        (["--http", "here"], "--http[0]: found 'here'; expected HOST:PORT"),
        (["--http", f"{LOOPBACK}:0", "--http-token", "no-such-file"], "no-such-file cannot be read"),
        (["--http", f"{LOOPBACK}:0", "--http-token", "/dev/null"], "is open to everybody"),
    ],
)
def test_what_cannot_be_is_said(arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "broker", "--listen", f"{LOOPBACK}:0", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr


def test_answers_leave_nothing_for_the_collector() -> None:
    """A broker under load does not collect cyclic garbage, however often it is asked."""

    def ask(port: int, times: int) -> None:
        for _ in range(times):
            with socket.create_connection((LOOPBACK, port), timeout=WAIT_S_MAX) as peer:
                peer.sendall(b"GET /pieces HTTP/1.1\r\n\r\n")
                while peer.recv(65536):
                    pass

    async def story() -> int:
        pieces = {"/pieces": lambda: Answer(HTTPStatus.OK, "text/plain", (b"x" * 1000 for _ in range(9)))}
        port = HttpPort(asyncio.get_running_loop(), pieces)
        ((_, number),) = await port.listen(LOOPBACK, 0)
        await asyncio.to_thread(ask, number, 3)
        gc.collect()
        gc.disable()
        try:
            await asyncio.to_thread(ask, number, 50)
            return gc.collect()
        finally:
            gc.enable()
            await port.close()

    assert uvloop.run(story()) < 50


# -- junk ----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.none() | st.binary(min_size=1, max_size=20))
def test_any_bytes_are_understood_or_refused(head: bytes, token: bytes | None) -> None:
    assert isinstance(understand(head, token), Asked)


@given(st.binary(min_size=1, max_size=30), st.binary(max_size=30))
def test_no_other_token_will_do(token: bytes, said: bytes) -> None:
    head = b"GET /status HTTP/1.1\r\nAuthorization: Bearer " + said
    granted = understand(head, token).refused is None
    assert granted == (b"\r\n" not in said and said.strip() == token)


def test_junk_and_silence_do_not_keep_it_from_answering(watched: BrokerProcess) -> None:
    port = http_port(watched)
    for junk in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"\x00" * 100 + b"\r\n\r\n",
        b"GET /status HTTP/9\r\n\r\n",
    ):
        with socket.create_connection((LOOPBACK, port), timeout=WAIT_S_MAX) as peer:
            peer.sendall(junk)
            if junk.endswith(b"\r\n\r\n"):
                assert peer.recv(100).startswith(b"HTTP/1.1 400")
    with socket.create_connection((LOOPBACK, port), timeout=WAIT_S_MAX) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * REQUEST_BYTES_MAX)
        assert peer.recv(100).startswith(b"HTTP/1.1 431")
    assert status_of(port).ready


@pytest.mark.parametrize("many", [64, OPEN_MAX - 1, OPEN_MAX, OPEN_MAX + 40])
def test_half_requests_do_not_keep_health_from_answering(watched: BrokerProcess, many: int) -> None:
    port = http_port(watched)
    half = [socket.create_connection((LOOPBACK, port), timeout=WAIT_S_MAX) for _ in range(many)]
    try:
        for each in half:
            each.sendall(b"GET /health/live HTTP/1.1\r\n")
        for _ in range(20):
            with asked(port, "/health/live") as (answer, _):
                assert answer.status == 200
        assert status_of(port).ready
        fds = len(list(Path(f"/proc/{watched.pid}/fd").iterdir()))
        assert fds < OPEN_MAX + 40
    finally:
        for each in half:
            each.close()


class Port:
    """An HTTP port of our own on a loop of its own; `work` runs in a thread, with its number."""

    BIG = 400  # pieces of 64 KiB: more than any socket takes at once

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.port: HttpPort | None = None
        self.routes = {
            "/big": lambda: Answer(HTTPStatus.OK, "text/plain", (b"x" * 65536 for _ in range(self.BIG))),
            "/health/live": lambda: words(HTTPStatus.OK, "it lives"),
        }

    def run(self, work: Callable[[int], None]) -> None:
        async def story() -> None:
            self.port = HttpPort(asyncio.get_running_loop(), self.routes)
            ((_, number),) = await self.port.listen(LOOPBACK, 0, self.tls)
            try:
                await asyncio.to_thread(work, number)
            finally:
                await self.port.close()

        uvloop.run(story())


@pytest.mark.parametrize("many", [ANSWERS_MAX - 1, ANSWERS_MAX, ANSWERS_MAX + 10])
def test_who_does_not_take_its_answer_keeps_nobody_from_one(many: int) -> None:
    def work(number: int) -> None:
        stuck = [socket.create_connection((LOOPBACK, number), timeout=WAIT_S_MAX) for _ in range(many)]
        try:
            for each in stuck:
                each.sendall(b"GET /big HTTP/1.1\r\n\r\n")
                assert each.recv(1)
            for _ in range(3):
                with asked(number, "/health/live") as (answer, _):
                    assert answer.status == 200
                with asked(number, "/big") as (answer, body):
                    assert (answer.status, len(body)) == (200, 65536 * Port.BIG)
        finally:
            for each in stuck:
                each.close()

    Port().run(work)


def test_who_never_greets_in_tls_is_one_of_a_bounded_number(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("broker")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(issued.certificate, issued.key)
    port = Port(context)

    def work(number: int) -> None:
        assert port.port is not None
        silent = []
        try:
            for _ in range(OPEN_MAX + 50):
                silent.append(socket.create_connection((LOOPBACK, number), timeout=WAIT_S_MAX))
            trusting = ssl.create_default_context(cafile=str(authority.certificate))
            connection = HTTPSConnection(LOOPBACK, number, timeout=WAIT_S_MAX, context=trusting)
            connection.request("GET", "/health/live")
            assert connection.getresponse().status == 200
            connection.close()
            assert len(port.port.open) <= OPEN_MAX
        finally:
            for each in silent:
                each.close()

    port.run(work)


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:9464", True),
        ("localhost:9464", True),
        ("[::1]:9464", True),
        ("192.0.2.7", True),
        ("metrics.plant:9464", True),
        ("METRICS.plant", True),
        ("evil.example:9464", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:80", False),
        ("", False),
        ("[", False),
    ],
)
def test_which_names_are_ours(host: str, ours: bool) -> None:
    assert is_ours((host,), "metrics.plant") is ours
    assert is_ours(("127.0.0.1", host), "metrics.plant") is ours


def test_a_page_that_points_its_name_here_learns_nothing(watched: BrokerProcess) -> None:
    port = http_port(watched)
    for path in ("/status", "/metrics"):
        with asked(port, path, Host=f"evil.example:{port}") as (answer, body):
            assert answer.status == 421
            assert b"holdfast_" not in body
            assert b"role" not in body
        for host in (f"localhost:{port}", f"{LOOPBACK}:{port}"):
            with asked(port, path, Host=host) as (answer, _):
                assert answer.status == 200
    with asked(port, "/health/live", Host="probe.of.an.orchestrator") as (answer, _):
        assert answer.status == 200
