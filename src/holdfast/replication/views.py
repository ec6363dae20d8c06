"""Views: who serves, and who takes over.

Laws:
- a member claims only numbers that leave its own index as the remainder by four: no view has two primaries
- a number is claimed above every number its claimer has heard of: views only grow
- an arbiter gives a number once, only above the one that stands, and only to a member that missed no view: it
  has the state of the view that stands and the messages that are to outlive it, or hears everybody else who
  may have them, since they know of that view
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.mqtt.conventions import ViewNote
from holdfast.replication.group import MEMBERS_MAX, GroupConfig

NO_VIEW = -1


class View(Struct, frozen=True):
    """`heirs` are the members that are up to date, in the order in which they take over."""

    number: int = 0
    primary: str = ""
    heirs: tuple[str, ...] = ()


class Heard(Struct, frozen=True):
    """A member, and the highest view that it knew of when it was last heard."""

    name: str
    view: int


class Claim(Struct, frozen=True):
    """That number is asked for. `after` is the last view whose state the claimer has, and `under` whose view
    that was, if it had part in it since it started; `heirs` have part in the new one; `present` are the
    members that the claimer hears, none of them better suited when they were heard. Without `messages` it
    came back with that state, and not with the durable messages of that view."""

    number: int
    after: int
    heirs: tuple[str, ...] = ()
    present: tuple[Heard, ...] = ()
    under: str = ""
    messages: bool = True


class Standing(Struct, frozen=True):
    """What an arbiter keeps: the last view it gave, to whom, who has part in it, and in which of the
    holder's lives: a process that starts again knows nothing of its former one."""

    number: int
    holder: str
    heirs: tuple[str, ...] = ()
    life: str = ""


def is_won(standing: Standing | None, claim: Claim, member: str, life: str) -> bool:
    """Whether a member may have the view that it claims; what it was given it may claim again."""
    if standing is None or (standing.number, standing.holder, standing.life) == (claim.number, member, life):
        return True
    if standing.number >= claim.number:
        return False
    # A view of the same primary may be given while its heirs of before do not know yet: they have its state.
    still_heir = member in standing.heirs and standing.holder == claim.under
    return not lacking(standing, claim) or still_heir or not missed_by(standing, claim, member)


def lacking(standing: Standing, claim: Claim) -> str:
    """What the claimer does not have of the view that stands, in words."""
    if standing.number > claim.after:
        return "its state"
    return "" if claim.messages else "its durable messages"


def missed_by(standing: Standing, claim: Claim, member: str) -> list[str]:
    """Who may have what the claimer lacks, and is not here. What one said before it knew of the view that
    stands says nothing: it may have come to serve in it since."""
    here = {other.name for other in claim.present if other.view >= standing.number}
    return sorted({standing.holder, *standing.heirs} - {member} - here)


def why_lost(standing: Standing, claim: Claim, member: str) -> str:
    what = f"view {standing.number} is {standing.holder}'s"
    if standing.heirs:
        what += f", with {' and '.join(standing.heirs)} as heirs"
    missed, lacks = missed_by(standing, claim, member), lacking(standing, claim)
    if missed and lacks:
        what += f"; this member lacks {lacks}, and {' and '.join(missed)} may have that: start who is missing"
        what += ", with an empty data directory if it lost its own"
    return what


def next_number(above: int, index: int) -> int:
    """The smallest number above that which this member may claim."""
    number = above - above % MEMBERS_MAX + index
    return number if number > above else number + MEMBERS_MAX


def note_of(view: View, group: GroupConfig, teller: str) -> ViewNote:
    """The view as clients are told it. Another member may have a later group file, with more members."""
    places = {member.name: member.place for member in group.members}
    names = (view.primary, *view.heirs) if view.primary in places else ()
    return ViewNote(view.number, teller, tuple(places[name] for name in names if name in places))
