"""What an analysis found: plain data, so that the report needs no Spark."""

from __future__ import annotations

from typing import Any

import msgspec

Labels = dict[str, str]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over repetitions; `ci` is half the width of its 95 % confidence interval."""

    mean: float
    ci: float
    low: float
    high: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One category under one combination of settings. A loss tolerance of -1 is unlimited.

    `loss_success` is the percentage of topics that kept it, `latency_success` that of messages in time.
    """

    labels: Labels
    topics: int
    category: str
    deadline_ns: int
    loss_tolerance: int
    loss_success: Figure
    latency_success: Figure
    latency_ns: dict[str, float]
    """p50, p99, p99_9 and max."""
    messages: int
    lost: int
    duplicates: int
    longest_run: int
    repetitions: int


class CpuRow(msgspec.Struct, frozen=True, kw_only=True):
    """Percent of one core, for a role and for each of its threads."""

    labels: Labels
    topics: int
    role: str
    percent: Figure
    threads: dict[str, Figure]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One topic of one trial around the fault: (place of a message counted from it, latency in ms)."""

    labels: Labels
    category: str
    trial: int
    points: list[tuple[int, float]]
    lost: list[int]
    deadline_ms: float
    peak_ms: float


class RecoveryRow(msgspec.Struct, frozen=True, kw_only=True):
    """After the fault, for a category: the latest message, what was lost, what was dispatched again."""

    labels: Labels
    category: str
    peak_ms: Figure
    lost: int
    redispatched: Figure | None


class FigureRow(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the scenario measured itself."""

    labels: Labels
    name: str
    mean: Figure
    p50: float
    p99: float
    max: float
    count: int


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """The largest load that one configuration holds, and the first that it does not."""

    labels: Labels
    topics: int | None
    broke_at: int | None
    why: str


class FailedTrial(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    labels: Labels
    error: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether something that the experiment expects was seen; `found` is the worst case."""

    what: str
    expected: str
    found: str
    holds: bool


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """`experiment` is experiment.json; `check` lists where Spark and the streaming verdict differ."""

    experiment: dict[str, Any]
    rows: list[Row]
    cpu: list[CpuRow] = []
    series: list[Series] = []
    figures: list[FigureRow] = []
    recovery: list[RecoveryRow] = []
    knees: list[Knee] = []
    failed: list[FailedTrial] = []
    trials: int = 0
    messages: int = 0
    check: list[str] = []
    verdicts: list[Verdict] = []
    seconds: float = 0.0
