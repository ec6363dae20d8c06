"""What one trial comes to, before repetitions are put together.

Latencies are those of first arrivals. p50, p99 and p99.9 are at most 1/64 above the exact ones, as in
`contract.verdict`; maxima are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.lab.analysis.records import Recorded


@dataclass(frozen=True, kw_only=True)
class CategoryMeasured:
    """One category in one trial. An `unknown` arrival is one that nobody sent; `peak_ns` is the highest
    latency of a message created after the fault, or up to a period before it."""

    category: str
    deadline_ns: int
    loss_tolerance: int
    topics: int
    topics_kept: int
    messages: int
    delivered: int
    in_time: int
    longest_run: int
    duplicates: int
    unknown: int
    peak_ns: int | None
    latency_ns: dict[str, int]
    """p50, p99, p99_9 and max; empty if nothing arrived."""

    @property
    def lost(self) -> int:
        return self.messages - self.delivered

    @property
    def loss_success(self) -> float:
        return 100 * self.topics_kept / self.topics

    @property
    def latency_success(self) -> float | None:
        """A message that never arrived is late too; None if there was no message."""
        return 100 * self.in_time / self.messages if self.messages else None


@dataclass(frozen=True, kw_only=True)
class TrialMeasured:
    """A complete trial and its categories: none if it recorded no messages."""

    recorded: Recorded
    categories: list[CategoryMeasured] = field(default_factory=list)

    @property
    def labels(self) -> dict[str, str]:
        return self.recorded.trial.labels

    @property
    def topics(self) -> int:
        return self.recorded.trial.plan.topics

    @property
    def number(self) -> int:
        return self.recorded.trial.number
