"""Journals of real brokers on real disks: everybody is killed, everybody comes back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.peer import Peer
from conformance.wire import P, Type, ack, publish
from holdfast.status import troubles
from runtime.test_http import http_port, status_of
from support.brokers import LOOPBACK, StartBroker, wait_until
from support.disks import fill, small_disk
from support.groups import GroupProcesses

WAIT_S_MAX = 10.0
ANSWER_S_MAX = 1.0
FOREVER = {"clean": False, "props": [(P.SESSION_EXPIRY, 0xFFFFFFFF)]}
CONTRACTS = """
[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { edge = "1ms" }
[[contract]]
name = "kept"
topics = ["kept/+"]
period = "100ms"
deadline = "100ms"
loss_tolerance = 0
retention = 2
durable = true
"""


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    path = tmp_path / "contracts.toml"
    path.write_text(CONTRACTS)
    return path


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk that is soon full."""
    with small_disk(tmp_path, 256) as mounted:
        yield mounted


def leave_something(port: int) -> int:
    """A session with a subscription, a retained message, and messages that wait; returns how many."""
    with Peer(port) as subscriber, Peer(port) as publisher:
        publisher.connect("p")
        publisher.publish("other/r", b"retained", qos=1, retain=True)
        subscriber.connect("s", **FOREVER)
        subscriber.subscribe(("kept/+", 1))
        subscriber.drop()
        for number in range(20):
            answer = publisher.publish("kept/1", b"%d" % number, qos=1 + number % 2)
            assert answer is not None
            assert answer.reason in (0x00, 0x10)
    return 20


def check_everything(port: int, count: int) -> None:
    with Peer(port) as subscriber:
        assert subscriber.connect("s", **FOREVER).session_present
        assert subscriber.receive_payloads(count) == [b"%d" % number for number in range(count)]
        subscriber.subscribe("other/r")
        assert subscriber.receive().payload == b"retained"


def test_a_broker_alone_goes_on_where_it_was_killed(start_broker: StartBroker, contracts: Path) -> None:
    options = ("--contracts", str(contracts), "--data", str(contracts.parent / "data"))
    first = start_broker(*options)
    count = leave_something(first.port)
    first.kill()
    second = start_broker(*options)
    check_everything(second.port, count)
    assert second.terminate() == 0
    third = start_broker(*options)
    with Peer(third.port) as subscriber:
        assert subscriber.connect("s", **FOREVER).session_present
        subscriber.expect_quiet()


def test_a_journal_whose_end_was_lost_says_so_in_the_status(
    start_broker: StartBroker, contracts: Path
) -> None:
    data = contracts.parent / "data"
    options = ("--contracts", str(contracts), "--data", str(data), "--http", f"{LOOPBACK}:0")
    first = start_broker(*options)
    leave_something(first.port)
    before = status_of(http_port(first))
    assert before.journal is not None
    assert (before.journal.cut_bytes, before.journal.cut_why) == (0, "")
    first.kill()
    last = max(data.glob("*.journal"))
    os.truncate(last, last.stat().st_size - 3)
    after = status_of(http_port(start_broker(*options)))
    assert after.journal is not None
    assert after.journal.cut_bytes > 0
    assert last.name in after.journal.cut_why
    assert any("of the journal were cut at the start" in each.words for each in troubles(after))


def test_when_both_are_killed_everything_acknowledged_comes_back(tmp_path: Path, contracts: Path) -> None:
    with GroupProcesses(tmp_path, contracts) as group:
        group.await_protected()
        count = leave_something(group.ports[group.primary()])
        view = last_view(group)
        group.kill("a", "b")
        group.start("b")
        group.start("a")
        check_everything(group.ports[group.primary()], count)
        assert last_view(group) > view
        group.await_protected()


def last_view(group: GroupProcesses) -> int:
    found = [int(view) for name in group.names for view in re.findall(r"view=(\d+)", group.log(name))]
    return max(found)


@pytest.mark.parametrize("first", ["a", "b"])
def test_what_came_until_the_last_moment_is_there_if_it_was_acknowledged(
    tmp_path: Path, contracts: Path, first: str
) -> None:
    """Killed in mid-traffic; one member alone comes back."""
    with GroupProcesses(tmp_path, contracts) as group:
        group.await_protected()
        with group.client() as subscriber, group.client() as publisher:
            subscriber.connect("s", **FOREVER)
            subscriber.subscribe(("kept/+", 1))
            subscriber.drop()
            publisher.connect("p")
            for number in range(1, 501):
                publisher.send(publish("kept/1", b"%d" % number, qos=1, pid=number))
            acknowledged = {publisher.expect(Type.PUBACK).pid for _ in range(200)}
            group.kill("a", "b")
            rest = publisher.rest()
            acknowledged |= {int.from_bytes(rest[at + 2 : at + 4]) for at in range(0, len(rest) - 3, 4)}
        group.start(first)
        with group.client() as subscriber:
            assert subscriber.connect("s", **FOREVER).session_present
            got = set[int]()
            while not acknowledged <= got:
                got.add(int(subscriber.receive(WAIT_S_MAX).payload))


# Disks that are full


def test_a_full_disk_refuses_durable_messages_and_nothing_else(
    start_broker: StartBroker, contracts: Path, tiny: Path
) -> None:
    broker = start_broker("--contracts", str(contracts), "--data", str(tiny / "data"))
    with Peer(broker.port) as client:
        client.connect("c", **FOREVER)
        client.subscribe(("+/+", 1))
        ballast = fill(tiny)
        (tiny / "data" / "sub").mkdir()
        client.send(publish("kept/1", bytes(8192), qos=1, pid=100))
        under_way = client.expect(Type.PUBACK)
        assert (under_way.pid, under_way.reason) == (100, 0x97)
        wait_until(lambda: 'event="journal failed"' in broker.stderr, "the journal failing", WAIT_S_MAX)
        assert client.receive(WAIT_S_MAX).payload == bytes(8192)
        client.send(publish("other/1", b"goes on", qos=0))
        assert client.receive().payload == b"goes on"
        client.send(publish("kept/1", b"refused", qos=1, pid=101))
        refused = client.expect(Type.PUBACK)
        assert (refused.pid, refused.reason) == (101, 0x97)
        assert b"journal" in str(refused.prop(P.REASON_STRING)).encode()
        ballast.unlink()
        wait_until(lambda: 'event="journal recovered"' in broker.stderr, "its recovery", WAIT_S_MAX)
        answer = client.publish("kept/1", b"taken again", qos=1)
        assert answer is not None
        assert answer.reason == 0
    assert broker.stderr.count('event="journal failed"') == 1
    assert broker.stderr.count('event="journal recovered"') == 1
    assert broker.stderr.count('event="foreign files"') == 1
    assert (tiny / "data" / "sub").is_dir()


def test_a_full_disk_leaves_nobody_without_an_answer_and_nothing_acknowledged_is_lost(
    start_broker: StartBroker, contracts: Path, tiny: Path
) -> None:
    """100 durable messages under way when the disk is full, 100 plain ones between them."""
    options = ("--contracts", str(contracts), "--data", str(tiny / "data"))
    broker = start_broker(*options)
    with Peer(broker.port) as publisher, Peer(broker.port) as subscriber:
        subscriber.connect("s", **FOREVER)
        subscriber.subscribe(("kept/+", 1))
        subscriber.drop()
        publisher.connect("p")
        ballast = fill(tiny)
        packets = [
            publish(("kept/1", "other/1")[pid % 2], b"%d" % pid + bytes(500), qos=1, pid=pid)
            for pid in range(1, 201)
        ]
        begin = time.monotonic()
        publisher.send(*packets)
        reasons = {answer.pid: answer.reason for answer in (publisher.expect(Type.PUBACK) for _ in packets)}
        assert time.monotonic() - begin < ANSWER_S_MAX
        assert sorted(reasons) == list(range(1, 201))
        assert all(reasons[pid] in (0x00, 0x10) for pid in range(1, 201, 2))
        assert [reasons[pid] for pid in range(2, 201, 2)].count(0x97) > 50
        ballast.unlink()
        wait_until(lambda: 'event="journal recovered"' in broker.stderr, "its recovery", WAIT_S_MAX)
        for pid in range(201, 221):
            publisher.send(publish("kept/1", b"%d" % pid, qos=1, pid=pid))
            reasons[pid] = publisher.expect(Type.PUBACK).reason
        assert [reasons[pid] for pid in range(201, 221)] == [0x00] * 20
    broker.kill()
    again = start_broker(*options)
    acknowledged = {pid for pid, reason in reasons.items() if reason == 0x00 and (pid > 200 or pid % 2 == 0)}
    with Peer(again.port) as subscriber:
        assert subscriber.connect("s", **FOREVER).session_present
        got = set[int]()
        while not acknowledged <= got:
            message = subscriber.receive(WAIT_S_MAX)
            got.add(int(message.payload.rstrip(b"\0")))
            subscriber.send(ack(Type.PUBACK, message.pid))


def test_a_small_disk_is_never_filled_by_what_was_delivered(
    start_broker: StartBroker, contracts: Path, tmp_path: Path
) -> None:
    """Four times the room is written, to a subscriber that takes all of it, and by a broker that is killed
    and comes back on a full disk."""
    with small_disk(tmp_path, 1024) as disk:
        options = ("--contracts", str(contracts), "--data", str(disk / "data"))
        broker = start_broker(*options)
        with Peer(broker.port) as client:
            client.connect("c", **FOREVER)
            client.subscribe(("kept/+", 1))
            for number in range(1, 1025):
                client.send(publish("kept/1", b"%d " % number + bytes(4096), qos=1, pid=number))
                packets = [client.expect_any(), client.expect_any()]
                for packet in packets:
                    if packet.type == Type.PUBLISH:
                        client.send(ack(Type.PUBACK, packet.pid))
                assert [each.reason for each in packets if each.type == Type.PUBACK] == [0x00]
        assert "journal failed" not in broker.stderr
        broker.kill()
        fill(disk)
        again = start_broker(*options)
        wait_until(lambda: 'event="journal recovered"' in again.stderr, "its recovery", WAIT_S_MAX)
        with Peer(again.port) as client:
            client.connect("p")
            answer = client.publish("kept/1", b"taken", qos=1)
            assert answer is not None
            assert answer.reason in (0x00, 0x10)


def test_a_backup_with_a_full_disk_protects_in_memory_and_says_so(
    tmp_path: Path, contracts: Path, tiny: Path
) -> None:
    group = GroupProcesses(tmp_path, contracts)
    group.data["b"] = tiny / "data"
    with group:
        group.await_protected()
        assert group.primary() == "a"
        fill(tiny)
        with group.client("a") as client:
            client.connect("c")
            client.publish("other/large", bytes(8192), qos=1, retain=True)
        group.await_event("b", 'event="journal failed"')
        count = leave_something(group.ports["a"])
        assert "journal failed" not in group.log("a")
        group.kill("a")
        check_everything(group.ports[group.primary()], count)


# Directories that cannot be used


def run_broker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "broker", "--listen", f"{LOOPBACK}:0", *arguments],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_two_brokers_never_share_a_directory(start_broker: StartBroker, tmp_path: Path) -> None:
    first = start_broker("--data", str(tmp_path / "data"))
    second = run_broker("--data", str(tmp_path / "data"))
    assert second.returncode == 2
    assert f"in use by process {first.pid}" in second.stderr
    assert len(second.stderr.splitlines()) == 1


def test_the_journal_of_another_member_is_not_taken(tmp_path: Path, contracts: Path) -> None:
    with GroupProcesses(tmp_path, contracts) as group:
        group.await_protected()
        leave_something(group.ports[group.primary()])
        group.kill("a", "b")
        done = run_broker("--data", str(group.data["a"]))
        assert done.returncode == 2
        assert "is the journal of member plant/a" in done.stderr


@pytest.mark.parametrize("damage", ["middle", "version", "foreign"])
def test_a_directory_that_cannot_be_trusted_is_an_error_at_the_start(
    start_broker: StartBroker, contracts: Path, damage: str
) -> None:
    data = contracts.parent / "data"
    options = ("--contracts", str(contracts), "--data", str(data))
    broker = start_broker(*options)
    leave_something(broker.port)
    broker.kill()
    (segment,) = data.glob("*.journal")
    content = bytearray(segment.read_bytes())
    if damage == "middle":
        content[len(content) // 2] ^= 0xFF
        expected = "is damaged at byte"
    elif damage == "version":
        content[8] = 99
        expected = "journal version 99"
    else:
        (data / "notes.txt").write_text("mine")
        expected = "not a file of a journal"
    segment.write_bytes(content)
    before = {path: path.read_bytes() for path in data.iterdir() if path.suffix == ".journal"}
    done = run_broker(*options)
    assert done.returncode == 2
    assert expected in done.stderr
    assert {path: path.read_bytes() for path in data.iterdir() if path.suffix == ".journal"} == before


def test_a_directory_whose_parent_is_not_there(tmp_path: Path) -> None:
    done = run_broker("--data", str(tmp_path / "no" / "data"))
    assert done.returncode == 2
    assert f"there is no directory {tmp_path / 'no'}" in done.stderr
