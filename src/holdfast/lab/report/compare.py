"""Our number for what a paper says, or nothing if we have none.

Where several of ours fit, the worst counts: losses of all categories together, the highest of a peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from holdfast.lab.analysis.found import Analysis, Figure, Labels
from holdfast.lab.report.published import Ours, plain
from holdfast.lab.report.text import LOAD, UNITS, short, unit_of

MEANS = ("mean", "percent", "latency_ns.p50")


def ours(analysis: Analysis, want: Ours) -> str | None:
    found = _number(analysis, want, want.at)
    if found is not None and want.against is not None:
        found = _compared(found, _number(analysis, want, want.against), want)
    return None if found is None else f"{short(found * want.scale)} {want.unit}".strip()


def _compared(found: float, other: float | None, want: Ours) -> float | None:
    if other is None or (other == 0 and want.by != "difference"):
        return None
    if want.by == "difference":
        return found - other
    return found / other if want.by == "ratio" else 100 * (1 - found / other)


def _number(analysis: Analysis, want: Ours, at: list[str]) -> float | None:
    found = [value for value in _SOURCES[want.source](analysis, want, at) if value is not None]
    if not found:
        return None
    if want.value == "lost" and want.source != "series":
        return sum(found)
    return fmean(found) if want.value in MEANS else max(found)


def _fits(labels: Labels, at: list[str], want: Ours, topics: int | None = None) -> bool:
    values = {plain(value) for value in labels.values()}
    load = labels.get(LOAD, "") if topics is None else str(topics)
    return all(plain(each) in values for each in at) and (
        want.topics is None or plain(load) == str(want.topics)
    )


def _category(want: Ours, category: str) -> bool:
    return want.category is None or want.category == category


def _rows(analysis: Analysis, want: Ours, at: list[str]) -> Iterator[float | None]:
    for row in analysis.rows:
        if _fits(row.labels, at, want, row.topics) and _category(want, row.category):
            part, _, key = want.value.partition(".")
            yield row.latency_ns.get(key) if key else float(getattr(row, part))


def _cpu(analysis: Analysis, want: Ours, at: list[str]) -> Iterator[float | None]:
    for row in analysis.cpu:
        if _fits(row.labels, at, want, row.topics) and row.role == want.role:
            yield row.percent.mean


def _series(analysis: Analysis, want: Ours, at: list[str]) -> Iterator[float | None]:
    for series in analysis.series:
        if _fits(series.labels, at, want) and _category(want, series.category):
            yield float(len(series.lost)) if want.value == "lost" else series.peak_ms


def _recovery(analysis: Analysis, want: Ours, at: list[str]) -> Iterator[float | None]:
    for row in analysis.recovery:
        if _fits(row.labels, at, want) and _category(want, row.category):
            part, _, key = want.value.partition(".")
            found = getattr(row, part)
            yield float(getattr(found, key or "mean")) if isinstance(found, Figure) else found


def _figures(analysis: Analysis, want: Ours, at: list[str]) -> Iterator[float | None]:
    into = UNITS.get(want.unit.replace("µs", "us"))
    for row in analysis.figures:
        if _fits(row.labels, at, want) and want.name in (None, row.name):
            unit = UNITS.get(unit_of(row.name))
            value = row.mean.mean if want.value == "mean" else float(getattr(row, want.value))
            yield value * unit / into if unit and into else value


def _knees(analysis: Analysis, want: Ours, at: list[str]) -> Iterator[float | None]:
    for knee in analysis.knees:
        if _fits(knee.labels, at, want):
            yield None if knee.topics is None else float(knee.topics)


_SOURCES = {
    "row": _rows, "cpu": _cpu, "series": _series, "recovery": _recovery, "figure": _figures, "knee": _knees,
}  # fmt: skip
