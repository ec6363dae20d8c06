"""Where a client of a group writes, as a table: what it is doing, what happened, what it does then.

Laws:
- every state has an answer to every event
- a client writes to a primary of the highest view that it knows, or, while there is none, to an heir
- it never moves to a lower view: a primary of one is no PRIMARY_SPOKE
- ENDED is for ever
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    SEEKING = auto()  # nobody has served us yet
    SERVED = auto()  # a primary, or a broker that knows no groups, takes what we write
    LEANING = auto()  # the primary is gone; its heir keeps what we write until it is promoted
    ORPHANED = auto()  # the primary is gone, and no heir is connected
    ENDED = auto()


class Event(Enum):
    PRIMARY_SPOKE = auto()  # of the highest view we know, or a broker that knows no groups
    STANDBY_SPOKE = auto()
    LOST_WITH_HEIR = auto()  # where we write is gone or superseded; a standby is connected
    LOST_ALONE = auto()  # the same, and none is
    CLOSED = auto()


class Action(Enum):
    STAY = auto()
    SETTLE = auto()  # write there from now on; what may be lost is written again if it is somewhere else
    LEAN = auto()  # write to the first connected heir, beginning with what may be lost
    WAIT = auto()  # keep what may be kept
    END = auto()


_S, _E, _A = State, Event, Action

TABLE: dict[tuple[State, Event], tuple[Action, State]] = {
    (_S.SEEKING, _E.PRIMARY_SPOKE): (_A.SETTLE, _S.SERVED),
    (_S.SEEKING, _E.STANDBY_SPOKE): (_A.STAY, _S.SEEKING),
    (_S.SEEKING, _E.LOST_WITH_HEIR): (_A.STAY, _S.SEEKING),
    (_S.SEEKING, _E.LOST_ALONE): (_A.STAY, _S.SEEKING),
    (_S.SEEKING, _E.CLOSED): (_A.END, _S.ENDED),
    (_S.SERVED, _E.PRIMARY_SPOKE): (_A.SETTLE, _S.SERVED),
    (_S.SERVED, _E.STANDBY_SPOKE): (_A.STAY, _S.SERVED),
    (_S.SERVED, _E.LOST_WITH_HEIR): (_A.LEAN, _S.LEANING),
    (_S.SERVED, _E.LOST_ALONE): (_A.WAIT, _S.ORPHANED),
    (_S.SERVED, _E.CLOSED): (_A.END, _S.ENDED),
    (_S.LEANING, _E.PRIMARY_SPOKE): (_A.SETTLE, _S.SERVED),
    (_S.LEANING, _E.STANDBY_SPOKE): (_A.STAY, _S.LEANING),
    (_S.LEANING, _E.LOST_WITH_HEIR): (_A.LEAN, _S.LEANING),
    (_S.LEANING, _E.LOST_ALONE): (_A.WAIT, _S.ORPHANED),
    (_S.LEANING, _E.CLOSED): (_A.END, _S.ENDED),
    (_S.ORPHANED, _E.PRIMARY_SPOKE): (_A.SETTLE, _S.SERVED),
    (_S.ORPHANED, _E.STANDBY_SPOKE): (_A.LEAN, _S.LEANING),
    (_S.ORPHANED, _E.LOST_WITH_HEIR): (_A.LEAN, _S.LEANING),
    (_S.ORPHANED, _E.LOST_ALONE): (_A.WAIT, _S.ORPHANED),
    (_S.ORPHANED, _E.CLOSED): (_A.END, _S.ENDED),
    (_S.ENDED, _E.PRIMARY_SPOKE): (_A.STAY, _S.ENDED),
    (_S.ENDED, _E.STANDBY_SPOKE): (_A.STAY, _S.ENDED),
    (_S.ENDED, _E.LOST_WITH_HEIR): (_A.STAY, _S.ENDED),
    (_S.ENDED, _E.LOST_ALONE): (_A.STAY, _S.ENDED),
    (_S.ENDED, _E.CLOSED): (_A.STAY, _S.ENDED),
}
