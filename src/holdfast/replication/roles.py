"""What a member of a group is, and what makes it something else.

The table is the whole truth: what it does not list changes nothing. docs/failover.md is drawn from it.
"""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    JOINING = "joining"  # looks for a primary
    SYNCING = "syncing"  # follows a primary, and does not have its state yet
    BACKUP = "backup"  # has the state of the primary, and takes over when it is gone
    CLAIMING = "claiming"  # has asked the arbiter for the next view
    PRIMARY = "primary"  # serves


class Happening(Enum):
    PRIMARY_FOUND = "a primary of this view or a higher one says so"
    SYNCED = "the state is complete"
    PRIMARY_GONE = "the link to the primary closed, or it was silent too long, and nobody comes before us"
    DROPPED = "the primary let go of us, or is heard by those before us and not by us"
    ALONE = "nobody who answers is a primary, and nobody comes before us"
    CLAIM_WON = "the next view is ours"
    CLAIM_LOST = "the next view is somebody else's, or cannot be had now"
    HIGHER_VIEW = "somebody told of a higher view than ours"


class Action(Enum):
    FOLLOW = "ask the primary for its state"
    PROTECT = "be an heir"
    REJOIN = "look for a primary"
    CLAIM = "claim the next view"
    PROMOTE = "open the view, dispatch what was not discarded, let the clients in"
    STEP_DOWN = "send the clients to the new primary, and look for it"


TABLE: dict[tuple[Role, Happening], tuple[Action, Role]] = {
    (Role.JOINING, Happening.PRIMARY_FOUND): (Action.FOLLOW, Role.SYNCING),
    (Role.JOINING, Happening.ALONE): (Action.CLAIM, Role.CLAIMING),
    (Role.SYNCING, Happening.SYNCED): (Action.PROTECT, Role.BACKUP),
    (Role.SYNCING, Happening.PRIMARY_FOUND): (Action.FOLLOW, Role.SYNCING),
    (Role.SYNCING, Happening.PRIMARY_GONE): (Action.REJOIN, Role.JOINING),
    (Role.SYNCING, Happening.DROPPED): (Action.REJOIN, Role.JOINING),
    (Role.BACKUP, Happening.PRIMARY_FOUND): (Action.FOLLOW, Role.SYNCING),
    (Role.BACKUP, Happening.PRIMARY_GONE): (Action.CLAIM, Role.CLAIMING),
    (Role.BACKUP, Happening.DROPPED): (Action.REJOIN, Role.JOINING),
    (Role.CLAIMING, Happening.CLAIM_WON): (Action.PROMOTE, Role.PRIMARY),
    (Role.CLAIMING, Happening.CLAIM_LOST): (Action.REJOIN, Role.JOINING),
    (Role.CLAIMING, Happening.PRIMARY_FOUND): (Action.FOLLOW, Role.SYNCING),
    (Role.PRIMARY, Happening.HIGHER_VIEW): (Action.STEP_DOWN, Role.JOINING),
    (Role.PRIMARY, Happening.PRIMARY_FOUND): (Action.STEP_DOWN, Role.JOINING),
}


def step(role: Role, happening: Happening) -> tuple[Action, Role] | None:
    return TABLE.get((role, happening))
