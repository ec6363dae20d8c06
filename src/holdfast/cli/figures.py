"""Figures as people read them."""

from __future__ import annotations

from holdfast.units import MS, US, S

NOTHING = "–"


def short_duration(ns: int | None) -> str:
    """Three digits are enough to act on: 0.31ms, 12.4ms, 1.25s; a dash for none."""
    if ns is None:
        return NOTHING
    for unit, size in (("s", S), ("ms", MS), ("us", US)):
        if abs(ns) >= size or unit == "us":
            return f"{ns / size:.3g}{unit}" if abs(ns) < 1000 * size else f"{ns // size}{unit}"
    raise AssertionError("the last unit takes everything")


def loss_words(longest: int, tolerance: int | None) -> str:
    """The longest run of losses against what may be lost: 0/3."""
    return f"{longest}/{'∞' if tolerance is None else tolerance}"
