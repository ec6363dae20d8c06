"""A pair of real processes whose state is larger than a piece, a frame, or the log: the heir has all of it.

The backup is away while it grows, comes back, and then the primary is killed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.peer import Peer
from conformance.wire import P, Type, publish
from support.groups import GroupProcesses

FOREVER = {"clean": False, "props": [(P.SESSION_EXPIRY, 3600)]}
LARGE = 200_000
AT_ONCE = 50  # subscriptions in a packet, publications under way


def contracts(directory: Path, state_log_max: int) -> Path:
    path = directory / "contracts.toml"
    path.write_text(
        f"""
        [limits]
        state_log_max = {state_log_max}
        """
    )
    return path


def make_sessions(port: int, count: int) -> None:
    for number in range(count):
        with Peer(port) as client:
            client.connect(f"s{number}", **FOREVER)


def count_sessions(port: int, count: int) -> int:
    found = 0
    for number in range(count):
        with Peer(port) as client:
            found += bool(client.connect(f"s{number}", **FOREVER).session_present)
    return found


def subscribe_to(port: int, count: int) -> None:
    with Peer(port) as client:
        client.connect("many", **FOREVER)
        for first in range(0, count, AT_ONCE):
            filters = [(f"plain/{number}", 1) for number in range(first, min(count, first + AT_ONCE))]
            assert set(client.subscribe(*filters).reasons) == {1}


def count_subscriptions(port: int, count: int) -> int:
    """One message for each, and one behind them that surely comes."""
    with Peer(port) as client, Peer(port) as publisher:
        assert client.connect("many", **FOREVER).session_present
        client.subscribe(("last", 1))
        publisher.connect("p")
        for number in range(count):
            publisher.publish(f"plain/{number}", qos=1)
        publisher.publish("last", qos=1)
        topics = []
        while not topics or topics[-1] != "last":
            topics.append(client.receive().topic)
        return len(set(topics)) - 1


def retain(port: int, count: int, size: int, mark: bytes = b"first") -> None:
    """Every one of them is acknowledged when this returns."""
    with Peer(port) as client:
        client.connect("p")
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(count, first + AT_ONCE))
            for number in numbers:
                payload = mark + b" %d " % number + bytes(size)
                client.send(publish(f"kept/{number}", payload, qos=1, retain=True, pid=number + 1))
            for _ in numbers:
                assert client.expect(Type.PUBACK).reason in (0x00, 0x10)


def retained_at(port: int, count: int) -> set[tuple[str, bytes]]:
    """The topics that have a message of the right size, and what it begins with."""
    found = set()
    with Peer(port) as client:
        client.connect("looks")
        for number in range(count):
            client.subscribe(f"kept/{number}")
            message = client.receive()
            found.add((message.topic, message.payload[:32].split(b" ")[0]))
    return found


def all_of(count: int, mark: bytes = b"first") -> set[tuple[str, bytes]]:
    return {(f"kept/{number}", mark) for number in range(count)}


def await_heir(port: int) -> None:
    """The heir has the state up to now."""
    with Peer(port) as client:
        client.connect("waits")
        granted = client.subscribe(("any", 0), props=[(P.USER, ("hf-depth", "2"))])
        assert granted.reasons == [0]


def lose_backup(group: GroupProcesses) -> tuple[str, str]:
    group.await_protected()
    primary = group.primary()
    (backup,) = set(group.names) - {primary}
    group.kill(backup)
    group.await_event(primary, "unprotected")
    return primary, backup


def come_back_and_take_over(group: GroupProcesses, primary: str, backup: str) -> int:
    group.start(backup)
    group.await_protected()
    group.kill(primary)
    assert group.primary() == backup
    return group.ports[backup]


@pytest.mark.parametrize("state_log_max", [10, 10_000], ids=["snapshot", "healing"])
def test_more_than_a_piece_of_everything_outlives_the_primary(tmp_path: Path, state_log_max: int) -> None:
    with GroupProcesses(tmp_path, contracts(tmp_path, state_log_max), keep=False) as group:
        primary, backup = lose_backup(group)
        make_sessions(group.ports[primary], 400)
        subscribe_to(group.ports[primary], 500)
        retain(group.ports[primary], 500, 10)
        port = come_back_and_take_over(group, primary, backup)
        assert count_subscriptions(port, 500) == 500
        assert retained_at(port, 500) == all_of(500)
        assert count_sessions(port, 400) == 400


def test_more_changes_than_the_log_keeps_by_default_outlive_the_primary(tmp_path: Path) -> None:
    with GroupProcesses(tmp_path, contracts(tmp_path, 10_000), keep=False) as group:
        primary, backup = lose_backup(group)
        make_sessions(group.ports[primary], 400)
        subscribe_to(group.ports[primary], 500)
        for _ in range(21):
            retain(group.ports[primary], 500, 10)
        port = come_back_and_take_over(group, primary, backup)
        assert count_subscriptions(port, 500) == 500
        assert retained_at(port, 500) == all_of(500)
        assert count_sessions(port, 400) == 400


@pytest.mark.parametrize(
    ("state_log_max", "count"), [(10, 300), (10_000, 150)], ids=["snapshot-of-60-MB", "healing-of-30-MB"]
)
def test_retained_messages_larger_than_a_frame_together_outlive_the_primary(
    tmp_path: Path, state_log_max: int, count: int
) -> None:
    """Also what is acknowledged while the backup is brought up to date."""
    with GroupProcesses(tmp_path, contracts(tmp_path, state_log_max)) as group:
        primary, backup = lose_backup(group)
        retain(group.ports[primary], count, LARGE)
        group.start(backup)
        retain(group.ports[primary], 40, LARGE, b"second")
        group.await_protected()
        retain(group.ports[primary], 20, LARGE, b"third")
        await_heir(group.ports[primary])
        group.kill(primary)
        assert group.primary() == backup
        expected = {**dict(all_of(count)), **dict(all_of(40, b"second")), **dict(all_of(20, b"third"))}
        assert retained_at(group.ports[backup], count) == set(expected.items())
        assert not re.search("peer refused|refused by peer", group.log(backup))
