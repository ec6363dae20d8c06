"""What really happened in one run, written down by the drivers for the checkers, in true virtual time.

A message is known by its payload alone: publisher, topic, number within the two, and when it was made. So
what the checkers know does not depend on the stamps and counters of the code that they judge.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import NamedTuple

from holdfast.sim.world import START_NS

MAGIC = b"\xf5Hf\xfa"
PAYLOAD = Struct("<4sHHIQ")
ON_THE_WIRE = re.compile(re.escape(MAGIC) + b".{16}", re.DOTALL)

Stream = tuple[int, int]


class Identity(NamedTuple):
    """Which message: the number counts from 0 within a publisher and a topic."""

    publisher: int
    topic: int
    number: int


def payload_of(publisher: int, topic: int, number: int, created_ns: int) -> bytes:
    return PAYLOAD.pack(MAGIC, publisher, topic, number, created_ns)


class ViewSeen(NamedTuple):
    """Somebody believes from now on that the view has this number and this primary."""

    at_ns: int
    who: str
    life: int
    number: int
    primary: str


class State(NamedTuple):
    """What a broker knows of its clients: sessions, subscriptions and retained messages, by name."""

    sessions: frozenset[str]
    subscriptions: frozenset[tuple[str, str]]
    retained: dict[str, bytes]


class Promotion(NamedTuple):
    """A member serves from now on, with this state, in this view."""

    at_ns: int
    who: str
    state: State
    view: int = 0


class Stall(NamedTuple):
    """A member or a client stood still from then to then, and was the primary or not."""

    since_ns: int
    until_ns: int
    who: str
    led: bool


class Grant(NamedTuple):
    """A SUBACK that came from that member."""

    at_ns: int
    member: str


class Kept(NamedTuple):
    """A retained message: when it was published, and when that was acknowledged."""

    topic: str
    payload: bytes
    sent_ns: int
    acknowledged_ns: int | None


class Seen(NamedTuple):
    """What an ordinary client got when it came back at the end: which of its subscriptions it tried, through
    which of them something came, and the retained messages of the topics it asked for."""

    tried: list[str]
    through: set[str]
    retained: dict[str, bytes]


class Instant:
    """A subscription and, just behind it at the same broker, a message for it."""

    __slots__ = ("acknowledged_ns", "granted", "received")

    def __init__(self) -> None:
        self.granted = False  # over the connection that the request went over
        self.acknowledged_ns: int | None = None
        self.received = 0


class Ledger:
    """`created[stream][number]` is when; `taken` is what each subscriber's user got, `wired` what came.

    Of clients: `granted` by (client, filter), `retained` by topic, `sessions` by client when a CONNACK first
    said so, `lost_sessions` that a later CONNACK did not know; `seen` is what a client found at the end."""

    __slots__ = (
        "acknowledged", "created", "faults", "gaps", "granted", "hung_up", "instants", "lost_sessions",
        "member_views", "mistakes", "moments", "overfull", "overwork", "promotions", "redirects",
        "refusals", "rest", "retained", "seen", "sessions", "stalled_clients", "stalls", "start_ns", "states",
        "subscribed", "taken", "unserved", "views", "wired",
    )  # fmt: skip

    def __init__(self, subscribers: int) -> None:
        self.start_ns = START_NS
        self.created: dict[Stream, list[int]] = {}
        self.taken: list[list[tuple[int, list[bytes]]]] = [[] for _ in range(subscribers)]
        self.gaps: list[dict[bytes, int]] = [{} for _ in range(subscribers)]
        self.wired: list[list[tuple[int, str, bytes]]] = [[] for _ in range(subscribers)]
        self.subscribed: list[dict[int, int]] = [{} for _ in range(subscribers)]
        self.acknowledged: dict[Identity, int] = {}
        self.views: list[ViewSeen] = []
        self.member_views: list[ViewSeen] = []
        self.redirects: list[tuple[int, str, int]] = []
        self.faults: list[tuple[int, str, str]] = []
        self.mistakes: list[tuple[int, str, str]] = []
        self.refusals: list[tuple[int, str, str]] = []
        self.rest: list[str] = []
        self.granted: dict[tuple[str, str], Grant] = {}
        self.retained: dict[str, list[Kept]] = {}
        self.sessions: dict[str, int] = {}
        self.lost_sessions: list[tuple[int, str]] = []
        self.promotions: list[Promotion] = []
        self.states: dict[str, State] = {}  # of the primary and its heirs at the end, the primary first
        self.seen: Seen | None = None
        self.instants: list[Instant] = []
        self.hung_up: list[tuple[int, str, str]] = []  # by a primary, on a good client
        self.overwork: list[tuple[int, str, int, int]] = []
        self.overfull: list[tuple[int, str, str, int, int]] = []
        self.unserved: list[tuple[int, int]] = []
        self.moments: list[str] = []
        self.stalls: list[Stall] = []
        self.stalled_clients: list[Stall] = []

    def messages(self) -> int:
        return sum(len(times) for times in self.created.values())
