"""What a person is told: plain words and figures, with nothing left to decide for who draws it. Pure.

Law: what is good, bad or unknown is a word and a sign before it is a colour.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from holdfast.dashboard.drawing import Lane, Mark


class Mood(Enum):
    """Also the name of a class in the style sheet."""

    GOOD = "good"
    BAD = "bad"
    WARN = "warn"
    UNKNOWN = "unknown"

    @property
    def sign(self) -> str:
        return SIGNS[self]


SIGNS = {Mood.GOOD: "✓", Mood.BAD: "✕", Mood.WARN: "!", Mood.UNKNOWN: "…"}


class Headline(Struct, frozen=True):
    """The whole in a sentence, and what somebody should look at, each in a sentence."""

    mood: Mood
    words: str
    details: tuple[str, ...] = ()


class LinkSeen(Struct, frozen=True):
    mood: Mood
    words: str


class BrokerCard(Struct, frozen=True):
    """`facts` are names and values; `why` is said when something is not well."""

    name: str
    url: str
    role: str
    mood: Mood
    why: str
    facts: tuple[tuple[str, str], ...]
    links: tuple[LinkSeen, ...]


class ContractRow(Struct, frozen=True):
    """`promise` is what is promised and what the publisher brings, `latencies_ns` the p99 of each look,
    `limit_ns` what it is held against at the broker, `counts` how often each bucket of BOUNDS_NS was met."""

    name: str
    topics: str
    promise: tuple[str, str]
    mood: Mood
    verdict: str
    why: str
    latencies_ns: tuple[int | None, ...]
    limit_ns: int
    deadline: str
    latency: str
    loss_run: str
    loss_dots: tuple[int, int | None]
    rate: str
    totals: tuple[tuple[str, str], ...]
    counts: tuple[int, ...]
    copying: str


class FailoverLine(Struct, frozen=True):
    at: str
    words: str
    took: str


class Timeline(Struct, frozen=True):
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    lines: tuple[FailoverLine, ...]


class ChannelRow(Struct, frozen=True):
    name: str
    period: str
    last_run: str
    took: str
    results: str
    subscribers: str
    mood: Mood
    verdict: str
    why: str


class Pipeline(Struct, frozen=True):
    """`words` stands for the whole when there are no channels to show, and above them when there are."""

    mood: Mood
    words: str
    facts: tuple[tuple[str, str], ...] = ()
    channels: tuple[ChannelRow, ...] = ()


class Picture(Struct, frozen=True):
    group: str
    view: str
    headline: Headline
    brokers: tuple[BrokerCard, ...]
    contracts: tuple[ContractRow, ...]
    contracts_words: str
    contracts_left_out: int
    timeline: Timeline
    pipeline: Pipeline | None
    at: str
