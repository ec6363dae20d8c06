"""The latencies of single topics: message by message around the fault, or over the whole course of a link.

Laws:
- a category is shown by its lowest topic, a combination by the repetition with the category's highest peak
- index 0 is the first message created at the fault or after it; without a fault, the first that was measured
- a course of more than COURSE_POINTS messages is thinned: of neighbours the highest latency stays
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from holdfast.lab.analysis.combine import Combination
from holdfast.lab.analysis.found import Series
from holdfast.lab.analysis.measured import TrialMeasured
from holdfast.units import MS

AROUND_MESSAGES = 200
COURSE_POINTS = 600
COURSE_MESSAGES_MAX = 20_000
# What was created up to a period before the fault may still be on its way when it comes.
PEAK_FROM = -1


@dataclass(frozen=True)
class _Shown:
    """One topic of a trial and the indexes to show: from `low` to `high`, counted from sequence `zero`."""

    trial: TrialMeasured
    row: Row

    @property
    def fault(self) -> bool:
        return self.trial.recorded.outcome.fault_ns is not None

    @property
    def zero(self) -> int:
        if not self.fault:
            return int(self.row.first)
        return int(self.row.ever_last + 1 if self.row.fault_sequence is None else self.row.fault_sequence)

    @property
    def low(self) -> int:
        return max(int(self.row.first) - self.zero, -AROUND_MESSAGES)

    @property
    def high(self) -> int:
        return min(int(self.row.last) - self.zero, AROUND_MESSAGES if self.fault else COURSE_MESSAGES_MAX)


def series(found: Iterable[Combination], topics: DataFrame, received: DataFrame) -> list[Series]:
    """For each combination with a fault or a link that varies, and each of its categories."""
    wanted = {
        (trial.number, category): trial
        for combination in found
        for category, trial in _worst(combination).items()
    }
    if not wanted:
        return []
    numbers = sorted({number for number, _ in wanted})
    rows = (
        topics.where(F.col("trial").isin(numbers) & (F.col("messages") > 0))
        .groupBy("trial", "category")
        .agg(F.min_by(F.struct(*topics.columns), "topic").alias("lowest"))
        .select("lowest.*")
        .orderBy("trial", "topic")
        .collect()
    )
    shown = [
        _Shown(wanted[row.trial, row.category], row) for row in rows if (row.trial, row.category) in wanted
    ]
    points = _points(shown, received)
    return [_series(each, points[each.row.trial, each.row.topic]) for each in shown]


def _worst(combination: Combination) -> dict[str, TrialMeasured]:
    """Of each category, the repetition to show."""
    worst: dict[str, tuple[float, TrialMeasured]] = {}
    for trial in combination:
        fault = trial.recorded.outcome.fault_ns is not None
        if not fault and not trial.recorded.trial.plan.links:
            continue
        for each in trial.categories:
            peak = (each.peak_ns if fault else each.latency_ns.get("max")) or 0
            if each.category not in worst or peak > worst[each.category][0]:
                worst[each.category] = (peak, trial)
    return {category: trial for category, (_, trial) in worst.items()}


def _points(shown: list[_Shown], received: DataFrame) -> dict[tuple[int, int], dict[int, int]]:
    """By trial and topic: the latency of each index that arrived."""
    small = received.sparkSession.createDataFrame(
        [(each.row.trial, each.row.topic, each.zero, each.low, each.high) for each in shown],
        "trial int, topic int, zero long, low long, high long",
    )
    # Both are also in `small`; said again they let whole files and pages be skipped.
    some = F.col("trial").isin(sorted({each.row.trial for each in shown})) & F.col("topic").isin(
        sorted({each.row.topic for each in shown})
    )
    rows = (
        received.where(some)
        .join(F.broadcast(small), ["trial", "topic"])
        .withColumn("index", F.expr("sequence - zero"))
        .where("index between low and high")
        .groupBy("trial", "topic", "index")
        .agg(F.min(F.expr("arrived_ns - created_ns")).alias("latency_ns"))
        .orderBy("index")
        .collect()
    )
    points: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for row in rows:
        points[row.trial, row.topic][row["index"]] = row.latency_ns
    return points


def _series(shown: _Shown, latencies: dict[int, int]) -> Series:
    lost = [index for index in range(shown.low, shown.high + 1) if index not in latencies]
    peaks = [ns for index, ns in latencies.items() if not shown.fault or index >= PEAK_FROM]
    return Series(
        labels=shown.trial.labels,
        category=shown.row.category,
        trial=shown.row.trial,
        points=[(index, ns / MS) for index, ns in _thinned(list(latencies.items()))],
        lost=lost,
        deadline_ms=shown.row.deadline_ns / MS,
        peak_ms=max(peaks, default=0) / MS,
    )


def _thinned(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    step = -(-len(points) // COURSE_POINTS) or 1
    return [max(points[at : at + step], key=lambda point: point[1]) for at in range(0, len(points), step)]
