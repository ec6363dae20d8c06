"""Judges what an experiment expects by what its analysis found.

Laws:
- the worst combination decides, and the worst repetition of it; a ratio is one of means over repetitions
- what nothing was measured of does not hold
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.lab.analysis.found import Analysis, Figure, FigureRow, Labels, Verdict
from holdfast.lab.model import Expect

# The labels of a combination, what else tells apart what it has several of; lowest, mean and highest value.
Found = tuple[Labels, str, float, float, float]


def judge(expected: Iterable[Expect], analysis: Analysis) -> list[Verdict]:
    return [_verdict(each, analysis) for each in expected]


def _verdict(expect: Expect, analysis: Analysis) -> Verdict:
    found = list(MEASURES[expect.measure](analysis))
    chosen = [each for each in found if _has(each[0], expect.where)]
    if expect.against:
        values = [value for each in chosen for value in _ratios(expect, each, found)]
    else:
        values = [each[2] if expect.at_least is not None else each[4] for each in chosen]
    sign, bound = ("≥", expect.at_least) if expect.at_least is not None else ("≤", expect.at_most)
    assert bound is not None
    times = "×" if expect.against else ""
    if not values:
        return Verdict(
            what=expect.what, expected=f"{sign} {bound:g}{times}", found="not measured", holds=False
        )
    worst = min(values) if sign == "≥" else max(values)
    holds = worst >= bound if sign == "≥" else worst <= bound
    return Verdict(
        what=expect.what, expected=f"{sign} {bound:g}{times}", found=f"{worst:.6g}{times}", holds=holds
    )


def _has(labels: Labels, where: dict[str, tuple[str, ...]]) -> bool:
    return all(labels.get(name) in wanted for name, wanted in where.items())


def _ratios(expect: Expect, mine: Found, found: list[Found]) -> Iterable[float]:
    """Against the same thing in the combination with the other labels, if both were measured."""
    wanted = {**mine[0], **expect.against}
    for labels, which, _, mean, _ in found:
        if (labels, which) == (wanted, mine[1]):
            over, under = (mine[3], mean) if expect.measure == "knee" else (mean, mine[3])
            yield over / under if under else float("inf")


# -- measures ------------------------------------------------------------------------------------------------


def _spread(figure: Figure) -> tuple[float, float, float]:
    return figure.low, figure.mean, figure.high


def _same(value: float) -> tuple[float, float, float]:
    return float(value), float(value), float(value)


def _loss(analysis: Analysis) -> Iterable[Found]:
    for row in analysis.rows:
        yield row.labels, row.category, *_spread(row.loss_success)


def _latency(analysis: Analysis) -> Iterable[Found]:
    for row in analysis.rows:
        yield row.labels, row.category, *_spread(row.latency_success)


def _lost(analysis: Analysis) -> Iterable[Found]:
    for row in analysis.rows:
        if row.loss_tolerance == 0:
            yield row.labels, row.category, *_same(row.lost)


def _redispatched(analysis: Analysis) -> Iterable[Found]:
    for row in analysis.recovery:
        if row.redispatched is not None:
            yield row.labels, row.category, *_spread(row.redispatched)


def _peak(analysis: Analysis) -> Iterable[Found]:
    for row in analysis.recovery:
        yield row.labels, row.category, *_spread(row.peak_ms)


def _copies(analysis: Analysis) -> Iterable[Found]:
    sent = {_key(row): row for row in analysis.figures if row.name == "sent"}
    for row in analysis.figures:
        published = sent.get(_key(row))
        if row.name == "copies" and published is not None and published.mean.mean:
            yield row.labels, "", *_same(row.max / published.mean.mean)


def _key(row: FigureRow) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(row.labels.items()))


def _knee(analysis: Analysis) -> Iterable[Found]:
    for knee in analysis.knees:
        yield knee.labels, "", *_same(knee.topics or 0)


MEASURES: dict[str, Callable[[Analysis], Iterable[Found]]] = {
    "loss_success": _loss,
    "latency_success": _latency,
    "redispatched": _redispatched,
    "copies": _copies,
    "peak_ms": _peak,
    "knee": _knee,
    "lost": _lost,
}
