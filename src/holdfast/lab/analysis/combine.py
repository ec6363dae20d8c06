"""Repetitions become means with intervals, and loads become a knee. No Spark here.

Laws:
- a combination is all complete trials with the same labels; counts are of its repetitions together, the
  longest run and the highest latency are the worst of them, other latencies are means
- nothing is rounded and no trial is left out
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from holdfast.lab.analysis.found import CpuRow, FigureRow, Knee, Labels, RecoveryRow, Row
from holdfast.lab.analysis.measured import CategoryMeasured, TrialMeasured
from holdfast.lab.analysis.statistics import figure, percentile
from holdfast.lab.store import CpuSample
from holdfast.units import MS

LATENCY_HOLDS = 99.9
LOSS_HOLDS = 100.0
LOAD_LABEL = "topics"

Combination = list[TrialMeasured]


def combinations(trials: Iterable[TrialMeasured]) -> list[Combination]:
    """In the order of their first trials."""
    groups: dict[tuple[tuple[str, str], ...], Combination] = defaultdict(list)
    for trial in trials:
        groups[tuple(trial.labels.items())].append(trial)
    return list(groups.values())


# -- messages ------------------------------------------------------------------------------------------------


def rows(combination: Combination) -> list[Row]:
    """A row for each category that had messages; of one without, nothing can be said."""
    first = combination[0]
    found = (_row(first.labels, first.topics, each) for each in _by_category(combination).values())
    return [row for row in found if row.messages]


def _by_category(combination: Combination) -> dict[str, list[CategoryMeasured]]:
    groups: dict[str, list[CategoryMeasured]] = defaultdict(list)
    for trial in combination:
        for each in trial.categories:
            groups[each.category].append(each)
    return groups


def _row(labels: Labels, topics: int, found: list[CategoryMeasured]) -> Row:
    return Row(
        labels=labels,
        topics=topics,
        category=found[0].category,
        deadline_ns=found[0].deadline_ns,
        loss_tolerance=found[0].loss_tolerance,
        loss_success=figure(each.loss_success for each in found),
        latency_success=figure(each.latency_success for each in found),
        latency_ns=_latencies([each.latency_ns for each in found if each.latency_ns]),
        messages=sum(each.messages for each in found),
        lost=sum(each.lost for each in found),
        duplicates=sum(each.duplicates for each in found),
        longest_run=max(each.longest_run for each in found),
        repetitions=len(found),
    )


def _latencies(found: list[dict[str, int]]) -> dict[str, float]:
    if not found:
        return {}
    means = {name: figure(each[name] for each in found).mean for name in found[0]}
    return means | {"max": float(max(each["max"] for each in found))}


def recovery(combination: Combination) -> list[RecoveryRow]:
    """For each category, if there was a fault and something arrived after it."""
    dispatched = [trial.recorded.outcome.redispatched for trial in combination]
    again = figure(dispatched) if any(each is not None for each in dispatched) else None
    return [
        RecoveryRow(
            labels=combination[0].labels,
            category=name,
            peak_ms=figure(each.peak_ns / MS for each in found if each.peak_ns is not None),
            lost=sum(each.lost for each in found),
            redispatched=again,
        )
        for name, found in _by_category(combination).items()
        if any(each.peak_ns is not None for each in found)
    ]


# -- what the outcomes say -----------------------------------------------------------------------------------


def cpu(combination: Combination) -> list[CpuRow]:
    used = [_cpu(trial.recorded.outcome.cpu) for trial in combination]
    found: dict[str, set[str]] = defaultdict(set)
    for trial in used:
        for role, threads in trial.items():
            found[role] |= threads.keys()
    first = combination[0]
    return [
        CpuRow(
            labels=first.labels,
            topics=first.topics,
            role=role,
            percent=figure(sum(trial[role].values()) for trial in used if role in trial),
            threads={
                name: figure(trial[role].get(name, 0.0) for trial in used if role in trial)
                for name in sorted(threads)
            },
        )
        for role, threads in found.items()
    ]


def _cpu(samples: Iterable[CpuSample]) -> dict[str, dict[str, float]]:
    """Percent of a core by role and thread, all processes of a role together."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for sample in samples:
        for thread, seconds in sample.seconds.items():
            found[sample.role][thread] += 100 * seconds / sample.wall_s
    return found


def figures(combination: Combination) -> Iterator[FigureRow]:
    """The mean is over the means of repetitions; percentiles are of all values together."""
    trials = [trial.recorded.outcome.figures for trial in combination]
    for name in dict.fromkeys(name for trial in trials for name, values in trial.items() if values):
        lists = [trial[name] for trial in trials if trial.get(name)]
        ordered = sorted(value for values in lists for value in values)
        yield FigureRow(
            labels=combination[0].labels,
            name=name,
            mean=figure(sum(values) / len(values) for values in lists),
            p50=percentile(ordered, 50),
            p99=percentile(ordered, 99),
            max=ordered[-1],
            count=len(ordered),
        )


# -- over loads ----------------------------------------------------------------------------------------------


def knees(found: Sequence[Row]) -> list[Knee]:
    """Where each configuration breaks, if the load varies: every load up to its knee holds."""
    groups: dict[tuple[tuple[str, str], ...], dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in found:
        if LOAD_LABEL in row.labels:
            rest = tuple((name, label) for name, label in row.labels.items() if name != LOAD_LABEL)
            groups[rest][row.topics].append(row)
    return [_knee(dict(rest), dict(sorted(steps.items()))) for rest, steps in groups.items()]


def _knee(labels: Labels, steps: dict[int, list[Row]]) -> Knee:
    held = list(takewhile(lambda topics: not _broken(steps[topics]), steps))
    broke_at = next((topics for topics in steps if topics not in held), None)
    why = "every load that was tried holds" if broke_at is None else "; ".join(_broken(steps[broke_at]))
    return Knee(labels=labels, topics=held[-1] if held else None, broke_at=broke_at, why=why)


def _broken(categories: Iterable[Row]) -> list[str]:
    """What does not hold, in words."""
    said = []
    for row in categories:
        if row.loss_success.mean < LOSS_HOLDS:
            said.append(f"category {row.category}: {row.loss_success.mean:.4g} % of topics kept")
        if row.latency_success.mean < LATENCY_HOLDS:
            said.append(f"category {row.category}: {row.latency_success.mean:.4g} % in time")
    return said
