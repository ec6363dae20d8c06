"""Where a client of a group writes, as a table: what it is doing, what happened, what it does then.

Laws:
- every state has an answer to every event
- a client writes to a primary of the highest view that it knows, or, while there is none, to an heir
- it never moves to a lower view: a primary of one is no PRIMARY_SPOKE
- ENDED is for ever
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    SEEKING = "nobody has served us yet"
    SERVED = "a primary, or a broker that knows no groups, takes what we write"
    LEANING = "the primary is gone; its heir keeps what we write until it is promoted"
    ORPHANED = "the primary is gone, and no heir is connected"
    ENDED = "our user closed us, or no broker came back in time"


class Event(Enum):
    PRIMARY_SPOKE = "a primary of the highest view we know speaks, or a broker that knows no groups"
    STANDBY_SPOKE = "a standby speaks"
    LOST_WITH_HEIR = "where we write is gone or superseded; a standby is connected"
    LOST_ALONE = "where we write is gone or superseded; no standby is connected"
    CLOSED = "we are closed"


class Action(Enum):
    STAY = "go on"
    SETTLE = "write there from now on; what may be lost is written again if it is somewhere else"
    LEAN = "write to the first connected heir, beginning with what may be lost"
    WAIT = "keep what may be kept"
    END = "end for ever"


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
