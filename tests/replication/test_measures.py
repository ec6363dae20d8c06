"""The way to the backup, measured on a busy machine; and what a group says of itself."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replication.pair import MS, Group

from holdfast.replication.measures import SAMPLES, WayMeter, group_figures
from holdfast.replication.messages import Beat, Worth
from holdfast.replication.roles import Role

US = 1000


def feed(meter: WayMeter, way_ns: int, rounds: int = 1) -> int:
    """So many judgements; returns how often the way was another."""
    return sum(meter.add(way_ns) for _ in range(rounds * SAMPLES))


def test_a_longer_way_counts_once_and_a_shorter_one_only_when_it_is_much_shorter() -> None:
    meter = WayMeter(50 * US)
    assert feed(meter, 30 * US) == 0
    assert feed(meter, 400 * US) == 1
    assert meter.used_ns == 400 * US
    assert feed(meter, 450 * US) == 0
    assert feed(meter, 300 * US) == 0
    assert feed(meter, 100 * US) == 1
    assert feed(meter, 1) == 1
    assert meter.used_ns == meter.configured_ns


@given(st.integers(0, 2**32), st.integers(0, 60 * US))
def test_noise_of_a_busy_machine_changes_nothing(seed: int, way_ns: int) -> None:
    """Most round trips may be late by milliseconds; one in five is not."""
    rng = random.Random(seed)
    meter = WayMeter(50 * US)
    changes = sum(
        meter.add(way_ns + (0 if turn % 5 == 0 else rng.randrange(5 * MS))) for turn in range(10 * SAMPLES)
    )
    assert changes == 0
    assert meter.used_ns == 50 * US


@given(st.lists(st.integers(0, 10 * MS), max_size=3 * SAMPLES))
def test_never_less_than_configured_is_reckoned_with(ways: list[int]) -> None:
    meter = WayMeter(50 * US)
    for way_ns in ways:
        meter.add(way_ns)
        assert meter.used_ns >= 50 * US


def test_proposition_1_is_decided_again_when_the_way_is_longer() -> None:
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("+/+")
    group.pass_time(2 * SAMPLES * group.config.heartbeat_ns)
    publisher.publish("fast/1", b"x")
    group.run()
    before = group.primary.core.copies
    backup = group.primary.peers.link_to("b")
    assert backup is not None
    for _ in range(SAMPLES):
        backup.state.way_ns = 200 * MS
        group.primary._measure(backup)
    assert group.primary.core.to_backup_ns == 200 * MS
    publisher.publish("fast/1", b"y")
    group.run()
    assert group.primary.core.copies == before + 1
    assert ("a", "way to backup") in [(name, event) for name, event, _ in group.events]


@pytest.mark.parametrize(("trip_ns", "told"), [(29 * MS, False), (30 * MS, False), (32 * MS, True)])
def test_a_way_that_is_longer_than_silence_is_told_of_once(trip_ns: int, told: bool) -> None:
    group = Group()
    backup = group.primary.peers.link_to("b")
    assert backup is not None
    beat = Beat(Role.BACKUP, 8, Worth(), 0, sent_ns=1, echo_ns=group.now_ns, held_ns=0)
    now_ns = group.now_ns + trip_ns
    for _ in range(3):
        group.primary.peers._measure(backup.state, beat, now_ns)
    found = [details for name, event, details in group.events if event == "link too slow"]
    assert len(found) == told
    if told:
        assert "32 ms, and 30 ms count as silence" in found[0]["why"]


def test_a_failover_is_measured_and_the_longest_is_kept() -> None:
    group = Group()
    group.client("s").subscribe("#")
    group.stalled.add("a")
    group.pass_time(100 * MS)
    figures = group_figures(group.members["b"])
    silence_us = group.config.silence_ns // 1000
    assert silence_us <= float(figures["group/failover/last us"]) <= 2 * silence_us
    assert figures["group/failover/max us"] == figures["group/failover/last us"]
    assert figures["group/role"] == "primary"
    assert figures["group/protected"] == 0


def test_the_figures_are_topics_that_change_with_the_view() -> None:
    group = Group()
    watcher = group.client("w")
    watcher.subscribe("$SYS/broker/group/#")
    assert group.primary.core.retained_message(b"$SYS/broker/group/protected")[-1] == b"1"
    group.crash("b")
    group.pass_time(1 * MS)
    told = {packet.topic: packet.payload for packet in watcher.take() if getattr(packet, "topic", "")}
    assert told["$SYS/broker/group/protected"] == b"0"
    assert told["$SYS/broker/group/heirs"] == b"-"
    assert told["$SYS/broker/group/failover/max us"] == b"-"
