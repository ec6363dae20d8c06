"""Figures as people read them on the page. Pure: a clock time is that of this machine's zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from holdfast.units import MIN, MS, US, H, S, format_duration, ms_of

NOTHING = "–"
INFINITE = "∞"
SPACE = "\N{NARROW NO-BREAK SPACE}"


def exact(ns: int | None) -> str:
    """As it was written, with a space before the unit: 49.95 ms; infinite for None."""
    if ns is None:
        return INFINITE
    written = format_duration(ns).replace("-", "−").replace("us", "µs")
    return re.sub(r"(?<=\d)(?=[a-zµ])", SPACE, written)


def about(ns: int | None) -> str:
    """As precise as a person can act on: 12 µs, 0.31 ms, 12.4 ms, 1.25 s; a dash for none."""
    if ns is None:
        return NOTHING
    if ns >= 2 * MIN:
        return long(ns)
    if ns >= S:
        return f"{ns / S:.{2 if ns < 10 * S else 1}f}{SPACE}s"
    if ns >= 100 * US:
        return f"{ms_of(ns):.{2 if ns < 10 * MS else 1}f}{SPACE}ms"
    return f"{ns / US:.0f}{SPACE}µs"


def long(ns: int) -> str:
    """Of something that goes on: 12 s, 3 min, 2 h 5 min, 3 days."""
    if ns < 2 * MIN:
        return f"{max(0, ns) // S}{SPACE}s"
    if ns < 2 * H:
        return f"{ns // MIN}{SPACE}min"
    if ns < 48 * H:
        return f"{ns // H}{SPACE}h {ns % H // MIN}{SPACE}min"
    return f"{ns // (24 * H)} days"


def clock(ns: int) -> str:
    """14:03:11, of the wall clock."""
    return datetime.fromtimestamp(ns / S, UTC).astimezone().strftime("%H:%M:%S")


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def memory(size: int) -> str:
    return f"{size / 2**20:.0f}{SPACE}MiB"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def tolerance(value: int | None) -> str:
    """How many may be lost in a row, in words."""
    if value is None:
        return "best effort"
    return "none lost" if value == 0 else f"≤ {value} lost in a row"
