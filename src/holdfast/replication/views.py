"""Views: who serves, and who takes over.

Laws:
- a member claims only numbers that leave its own index as the remainder by four: no view has two primaries
- a number is claimed above every number its claimer has heard of: views only grow
- an arbiter gives a number only to a member that missed no view: whose state is not older than what stands
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.mqtt.conventions import ViewNote
from holdfast.replication.group import MEMBERS_MAX, GroupConfig


class View(Struct, frozen=True):
    """`heirs` are the members that are up to date, in the order in which they take over."""

    number: int = 0
    primary: str = ""
    heirs: tuple[str, ...] = ()


class Claim(Struct, frozen=True):
    """That number is asked for; it is to be had while no view above `after` was given."""

    number: int
    after: int


def next_number(above: int, index: int) -> int:
    """The smallest number above that which this member may claim."""
    number = above - above % MEMBERS_MAX + index
    return number if number > above else number + MEMBERS_MAX


def note_of(view: View, group: GroupConfig, teller: str) -> ViewNote:
    """The view as clients are told it."""
    names = (view.primary, *view.heirs) if view.primary else ()
    return ViewNote(view.number, teller, tuple(group.member(name).place for name in names))
