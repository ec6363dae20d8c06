"""What an experiment expects, judged by what was found."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.errors import ConfigError
from holdfast.lab.analysis.found import Analysis, Figure, FigureRow, Knee, RecoveryRow, Row
from holdfast.lab.expect import judge
from holdfast.lab.model import Expect

OURS = {"configuration": ("FRAME",)}


def figure(mean: float, low: float | None = None, high: float | None = None) -> Figure:
    return Figure(mean=mean, ci=0.0, low=mean if low is None else low, high=mean if high is None else high)


def row(configuration: str, category: str, loss: Figure, lost: int = 0) -> Row:
    return Row(
        labels={"configuration": configuration},
        topics=10,
        category=category,
        deadline_ns=1,
        loss_tolerance=0,
        loss_success=loss,
        latency_success=figure(100.0),
        latency_ns={},
        messages=100,
        lost=lost,
        duplicates=0,
        longest_run=lost,
        repetitions=2,
    )


def verdict(expect: Expect, **found: object) -> tuple[bool, str]:
    analysis = msgspec.structs.replace(Analysis(experiment={}, rows=[]), **found)
    (judged,) = judge([expect], analysis)
    return judged.holds, judged.found


def test_the_worst_repetition_of_the_worst_category_decides() -> None:
    expect = Expect(what="kept", measure="loss_success", where=OURS, at_least=100.0)
    good, worse = row("FRAME", "0", figure(100.0)), row("FRAME", "2", figure(99.0, low=90.0))
    other = row("FCFS", "0", figure(0.0))
    assert verdict(expect, rows=[good, other]) == (True, "100")
    assert verdict(expect, rows=[good, worse, other]) == (False, "90")


def test_what_was_not_measured_does_not_hold() -> None:
    expect = Expect(what="kept", measure="loss_success", where=OURS, at_least=0.0)
    assert verdict(expect, rows=[row("FCFS", "0", figure(100.0))]) == (False, "not measured")


def test_the_means_of_peaks_are_compared_category_by_category() -> None:
    def peak(configuration: str, category: str, mean: float) -> RecoveryRow:
        labels = {"configuration": configuration, "topics": "7525"}
        peak_ms = figure(mean, mean / 2, mean * 2)
        return RecoveryRow(labels=labels, category=category, peak_ms=peak_ms, lost=0, redispatched=None)

    against = {"configuration": "FCFS-"}
    expect = Expect(what="peak", measure="peak_ms", where=OURS, against=against, at_least=5.0)
    recovery = [peak("FRAME", "0", 2.0), peak("FRAME", "2", 10.0)]
    recovery += [peak("FCFS-", "0", 20.0), peak("FCFS-", "2", 45.0)]
    assert verdict(expect, recovery=recovery) == (False, "4.5×")


def test_knees_are_compared_the_other_way_round() -> None:
    knees = [
        Knee(labels={"configuration": name}, topics=topics, broke_at=None, why="")
        for name, topics in (("FRAME", 90_000), ("FCFS", 45_000))
    ]
    against = {"configuration": "FCFS"}
    expect = Expect(what="knee", measure="knee", where=OURS, against=against, at_least=1.5)
    assert verdict(expect, knees=knees) == (True, "2×")


def test_copies_are_for_each_message() -> None:
    def figures(copies: float) -> list[FigureRow]:
        labels = {"configuration": "FRAME"}
        return [
            FigureRow(labels=labels, name=name, mean=figure(value), p50=value, p99=value, max=value, count=1)
            for name, value in (("sent", 1000.0), ("copies", copies))
        ]

    expect = Expect(what="copies", measure="copies", where=OURS, at_most=0.34)
    assert verdict(expect, figures=figures(300.0)) == (True, "0.3")
    assert verdict(expect, figures=figures(900.0)) == (False, "0.9")


def test_one_bound_is_given() -> None:
    with pytest.raises(ConfigError, match="either at_least or at_most"):
        Expect(what="kept", measure="lost")
