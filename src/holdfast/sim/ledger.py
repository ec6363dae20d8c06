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


class Ledger:
    """`created[stream][number]` is when; `taken` is what each subscriber's user got, `wired` what came."""

    __slots__ = ("acknowledged", "created", "faults", "gaps", "member_views", "mistakes", "redirects",
                 "refusals", "rest", "start_ns", "subscribed", "taken", "views", "wired")  # fmt: skip

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

    def messages(self) -> int:
        return sum(len(times) for times in self.created.values())
