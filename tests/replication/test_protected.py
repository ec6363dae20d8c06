"""`protected` is said when every heir knows the order in which they take over, not before."""

from __future__ import annotations

import itertools

import pytest
from tests.replication.pair import MS, NAMES, Group

from holdfast.replication.views import View

Event = tuple[str, str, dict[str, object]]


class Noted(list[Event]):
    """The events of a group; which views its heirs knew when `protected` was said, besides the right one."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.protected = 0
        self.others: list[tuple[View, View]] = []

    def append(self, event: Event) -> None:
        super().append(event)
        name, what, details = event
        if what == "protected":
            self.protected += 1
            view = self.group.members[name].view
            assert ", ".join(view.heirs) == details["heirs"]
            known = [self.group.members[heir].view for heir in view.heirs]
            self.others += [(view, each) for each in known if each != view]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_heir_knows_the_order_when_protected_is_said(size: int) -> None:
    """Members start one after the other; primary and next first heir are killed, and come back."""
    group = Group(size)
    for name in NAMES[:size]:
        group.crash(name)
    group.events = noted = Noted(group)
    for name in NAMES[:size]:
        group.start(name)
        group.pass_time(1_500 * MS, 5 * MS)
    for gone in ("primary", "first heir"):
        name = group.primary.name if gone == "primary" else group.primary.view.heirs[0]
        group.crash(name)
        group.pass_time(500 * MS, 5 * MS)
        group.start(name)
        group.pass_time(1_500 * MS, 5 * MS)
    assert len(group.primary.view.heirs) == size - 1
    assert group.primary.serving.protected_by == group.primary.view.heirs
    assert noted.protected >= size
    assert noted.others == []


class Slow(Group):
    """Nothing that is said between members arrives once the primary has opened a view of all of them."""

    holds = False

    def _move(self, name: str, wire: object) -> None:
        if self.holds and len(self.primary.view.heirs) == len(self.members) - 1:
            self.cut = {frozenset(pair) for pair in itertools.combinations(self.members, 2)}
        super()._move(name, wire)


@pytest.mark.parametrize("size", [2, 3])
def test_it_is_not_said_while_an_heir_is_not_heard(size: int) -> None:
    """What the new view is, is on its way to the heirs; that the view comes, those of before knew."""
    group = Slow(size)
    late = NAMES[size - 1]
    group.crash(late)
    group.pass_time(200 * MS)
    group.events = noted = Noted(group)
    group.holds = True
    group.start(late)
    while not group.cut:
        group.now_ns += MS // 20
        group.run()
    group.pass_time(5 * MS)
    heirs = group.primary.view.heirs
    assert noted.protected == 0
    assert group.primary.serving.protected_by == heirs[: size - 2]
    group.holds = False
    group.heal()
    group.pass_time(1 * MS)
    assert (noted.protected, noted.others) == (1, [])
    assert group.primary.serving.protected_by == heirs
