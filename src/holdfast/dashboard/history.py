"""What happened lately, from one look to the next: latencies of contracts, and roles of brokers. Pure.

Laws:
- a counter is compared only with itself: another process (`started_at_ns`) counts from nothing
- what was there before the first look at a broker is not news
- everything kept has a most
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from holdfast.dashboard.drawing import Span
from holdfast.status import BrokerStatus, ContractStatus, Histogram, quantile_ns
from holdfast.units import S

LOOK_S = 1.0
LOOKS_KEPT = 90
SPANS_KEPT = 256
UNREACHABLE = "unreachable"
QUANTILE = 0.99


class Look(Struct, frozen=True):
    """A contract between two looks; None where nothing was delivered."""

    p99_ns: int | None = None
    published: int = 0
    late: int = 0


class Course:
    """The last looks of one contract, the newest last."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque([Look()] * LOOKS_KEPT, maxlen=LOOKS_KEPT)
        self._counts: list[int] = []
        self._published = 0
        self._late = 0

    def add(self, now: ContractStatus, before: ContractStatus | None) -> None:
        """What one broker did since the look before; None if it had done nothing."""
        counts = now.latency.counts
        if before is not None and len(before.latency.counts) == len(counts):
            counts = [new - old for new, old in zip(counts, before.latency.counts, strict=True)]
        if len(self._counts) != len(counts):
            self._counts = [0] * len(counts)
        self._counts = [sum(pair) for pair in zip(self._counts, counts, strict=True)]
        self._published += now.published - (before.published if before is not None else 0)
        self._late += now.late - (before.late if before is not None else 0)

    def close(self, bounds_ns: tuple[int, ...]) -> None:
        """The look is over: what was added becomes the newest."""
        p99_ns = quantile_ns(Histogram(counts=self._counts), QUANTILE, bounds_ns)
        self._looks.append(Look(p99_ns, self._published, self._late))
        self._counts = [0] * len(self._counts)
        self._published = self._late = 0

    @property
    def latencies_ns(self) -> list[int | None]:
        return [look.p99_ns for look in self._looks]

    @property
    def last(self) -> Look:
        return self._looks[-1]

    def rate(self, looks: int = 5) -> float:
        """Messages a second that were published, over some looks."""
        return sum(look.published for look in list(self._looks)[-looks:]) / (looks * LOOK_S)


class Track:
    """What one broker was, and since when."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, str]] = deque(maxlen=SPANS_KEPT)

    def heard(self, status: BrokerStatus, now_ns: int) -> None:
        """Its own account of its changes is more exact than when we looked."""
        if not self._steps:
            self._step(status.started_at_ns, status.changes[0].was if status.changes else status.role)
        latest_ns = self._steps[-1][0]
        for change in status.changes:
            if change.at_ns > latest_ns:
                self._step(change.at_ns, change.role)
        if self._steps[-1][1] != status.role:
            self._step(now_ns, status.role)

    def lost(self, now_ns: int) -> None:
        self._step(now_ns, UNREACHABLE)

    def _step(self, at_ns: int, role: str) -> None:
        if not self._steps or self._steps[-1][1] != role:
            self._steps.append((at_ns, role))

    def spans(self, now_ns: int, span_s: float) -> tuple[Span, ...]:
        """The last `span_s` seconds."""
        steps = list(self._steps)
        ends = [at_ns for at_ns, _ in steps[1:]] + [now_ns]
        found = []
        for (begin_ns, role), end_ns in zip(steps, ends, strict=True):
            from_s, to_s = (now_ns - begin_ns) / S, max(0.0, (now_ns - end_ns) / S)
            if to_s < span_s and from_s >= to_s:
                found.append(Span(role, min(from_s, span_s), to_s))
        return tuple(found)

    @property
    def unreachable_since_ns(self) -> int | None:
        return self._steps[-1][0] if self._steps and self._steps[-1][1] == UNREACHABLE else None
