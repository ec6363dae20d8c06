"""A pair of processes, a real ZooKeeper, and a link between them that is cut."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.brokers import wait_until
from support.groups import PATIENT, GroupProcesses
from support.zookeeper import ZooKeeperProcess

WAIT_S_MAX = 20.0
# Longer than a member waits for others, than an arbiter is waited for, and than both together.
SETTLED_S = 4.0


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess() as process:
        yield process


@pytest.fixture
def group(tmp_path: Path, zookeeper: ZooKeeperProcess) -> Iterator[GroupProcesses]:
    contracts = tmp_path / "contracts.toml"
    contracts.write_text("")
    more = f'{PATIENT}zookeeper = "{zookeeper.hosts}"\n'
    with GroupProcesses(tmp_path, contracts, keep=False, relayed=True, more=more) as processes:
        processes.await_protected()
        yield processes


def serving_for_a_while(group: GroupProcesses) -> set[tuple[str, ...]]:
    """Who served, looked at again and again."""
    seen = set[tuple[str, ...]]()
    deadline = time.monotonic() + SETTLED_S
    while time.monotonic() < deadline:
        seen.add(tuple(group.serving()))
    return seen


def test_when_the_link_is_cut_one_serves_and_the_other_comes_back_to_it(
    group: GroupProcesses,
) -> None:
    group.cut()
    wait_until(
        lambda: any("claim lost" in group.log(name) for name in group.names), "a lost claim", WAIT_S_MAX
    )
    seen = serving_for_a_while(group)
    assert len(seen) == 1, seen
    (found,) = seen
    assert len(found) == 1
    group.heal()
    group.await_protected()
    assert group.primary() == found[0]


def test_when_the_primary_is_killed_its_heir_has_the_arbiters_word(group: GroupProcesses) -> None:
    primary = group.primary()
    group.kill(primary)
    (heir,) = group.processes
    group.await_event(heir, "event=serving")
    assert group.primary() == heir


def test_without_zookeeper_the_primary_goes_on_and_the_backup_waits(
    group: GroupProcesses, zookeeper: ZooKeeperProcess
) -> None:
    primary = group.primary()
    (other,) = [name for name in group.names if name != primary]
    zookeeper.kill()
    group.cut()
    group.await_event(primary, 'event="not arbitrated"')
    group.await_event(other, 'event="claim lost"')
    assert serving_for_a_while(group) == {(primary,)}
    with group.client(primary) as client:
        client.connect("c")
        answer = client.publish("t", b"x", qos=1)
        assert answer is not None
        assert answer.reason < 0x80
    zookeeper.start()
    group.heal()
    group.await_protected()


def test_a_group_starts_when_its_zookeeper_does(tmp_path: Path) -> None:
    contracts = tmp_path / "contracts.toml"
    contracts.write_text("")
    zookeeper = ZooKeeperProcess()
    more = f'{PATIENT}zookeeper = "{zookeeper.hosts}"\n'
    with GroupProcesses(tmp_path, contracts, keep=False, more=more) as group:
        group.await_event("a", 'event="claim lost"')
        assert group.serving() == []
        with zookeeper:
            group.await_protected()
            assert len(group.serving()) == 1
