"""A history is one process's: what another had under the same numbers, or has a part of, is no part of it."""

from __future__ import annotations

import pytest
from tests.replication.pair import MS, Group
from tests.replication.test_kept_pair import KeptGroup

from holdfast.replication import serving, transfers
from holdfast.replication.increments import everything
from holdfast.replication.member import Member
from holdfast.replication.roles import Role

S = 1_000 * MS
AB = frozenset("ab")


def state_of(member: Member) -> list[str]:
    return sorted(repr(increment) for increment in everything(member.broker))


def known_to_both(group: Group, count: int) -> None:
    client = group.client("known to both")
    for number in range(count):
        client.subscribe(f"loose/{number}", qos=1)
    group.pass_time(10 * MS)


def alone(group: Group, count: int) -> None:
    client = group.client("known to a", "a")
    for number in range(count):
        client.subscribe(f"fast/{number}", qos=1)
    group.pass_time(10 * MS)


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 20])
def test_a_member_that_served_cut_off_and_without_memory_gets_all_from_the_one_it_finds(count: int) -> None:
    """It opened the view of its former life once more: the same epoch, and numbers that were others."""
    group = Group()
    known_to_both(group, 6)
    before = group.members["a"].log.epoch
    group.crash("a")
    group.pass_time(100 * MS)
    group.cut.add(AB)
    again = group.start("a")
    group.pass_time(2 * S)
    assert again.role is Role.PRIMARY
    assert again.log.epoch == before
    alone(group, count)
    group.heal()
    group.pass_time(2 * S)
    assert group.primary.name == "b"
    assert group.primary.serving.protected_by == ("a",)
    assert state_of(again) == state_of(group.primary)


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 20])
def test_a_member_with_a_journal_gets_all_from_a_primary_that_lost_its_own(count: int) -> None:
    group = KeptGroup()
    known_to_both(group, 6)
    group.crash("b")
    group.crash("a")
    del group.notebooks["a"]
    group.start("a")
    group.pass_time(2 * S)
    alone(group, count)
    back = group.start("b")
    group.pass_time(2 * S)
    assert group.primary.name == "a"
    assert group.primary.serving.protected_by == ("b",)
    assert state_of(back) == state_of(group.primary)


def until_a_part_has_come(group: Group, member: Member) -> None:
    """One member after the other does a turn, until it has a part of a snapshot."""
    while not (member.following.partial and member.broker.clients.sessions):
        group.now_ns += MS
        for name, each in group.members.items():
            for target in each.take_dials():
                group._dial(name, target)
            each.turn(group.now_ns, group.wall_ns)
            for wire in each.broker.core.board.take_ready():
                group._move(name, wire)


@pytest.mark.parametrize("kept", [False, True])
def test_who_serves_with_a_part_of_a_snapshot_tells_all_of_it_to_who_joins(
    monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    monkeypatch.setattr(transfers, "WORD_INCREMENTS_MAX", 2)
    monkeypatch.setattr(serving, "HISTORY_FACTOR", 0)
    group = KeptGroup() if kept else Group()
    known_to_both(group, 6)
    group.crash("b")
    if isinstance(group, KeptGroup):
        del group.notebooks["b"]
    joins = group.start("b")
    until_a_part_has_come(group, joins)
    group.crash("a")
    group.pass_time(2 * S)
    assert group.primary is joins
    assert 0 < len(state_of(joins)) < 7
    new = group.start("a")
    group.pass_time(2 * S)
    assert joins.serving.protected_by == ("a",)
    assert state_of(new) == state_of(joins)
