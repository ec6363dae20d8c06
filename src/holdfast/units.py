"""Durations are whole nanoseconds inside (`_ns`), and text with a unit in files and for people.

Nothing is rounded: `parse_duration` refuses what is not a whole number of nanoseconds, and
`parse_duration(format_duration(ns)) == ns` for every duration that is not negative.
"""

from __future__ import annotations

import re

US = 1_000
MS = 1_000 * US
S = 1_000 * MS
MIN = 60 * S
H = 60 * MIN

# Fits a signed 64-bit integer with room to add a clock reading to it.
DURATION_NS_MAX = 1_000_000 * H

_UNITS = {"ns": 1, "us": US, "µs": US, "μs": US, "ms": MS, "s": S, "min": MIN, "h": H}
# Unit, its size, and from where on it reads better than the next smaller one: 0.05ms, but 2us.
_DECIMAL_UNITS = (("s", S, S), ("ms", MS, 10 * US), ("us", US, US), ("ns", 1, 1))
_UNITS_TEXT = "ns, us, ms, s, min or h"
_TEXT_CHARS_MAX = 64
_DURATION = re.compile(r"([0-9]+)(?:\.([0-9]+))?[ ]?([A-Za-zµμ]*)")


def parse_duration(text: str) -> int:
    """Nanoseconds of "50ms", "0.05ms", "1.5s", "2min"; a ValueError says why the text is not a duration."""
    if len(text) > _TEXT_CHARS_MAX:
        raise ValueError(f"too long for a duration ({len(text)} characters)")
    match = _DURATION.fullmatch(text.strip(" "))
    if match is None:
        negative = text.strip(" ").startswith("-")
        raise ValueError("a duration is not negative" if negative else "not a number followed by a unit")
    whole, fraction, unit = match[1], match[2] or "", match[3]
    if not unit:
        raise ValueError(f'the unit is missing: write "{match[0]}ms" or "{match[0]}s"')
    if unit not in _UNITS:
        raise ValueError(f'"{unit}" is not a unit of time: use {_UNITS_TEXT}')
    scale: int = 10 ** len(fraction)
    ns, rest = divmod(int(whole + fraction) * _UNITS[unit], scale)
    if rest:
        raise ValueError("finer than a nanosecond")
    if ns > DURATION_NS_MAX:
        raise ValueError(f"longer than {format_duration(DURATION_NS_MAX)}")
    return ns


def format_duration(ns: int) -> str:
    """The exact duration in the largest unit that reads well: 49_950_000 is "49.95ms"."""
    if ns < 0:
        return "-" + format_duration(-ns)
    if ns == 0:
        return "0ms"
    for unit, size in (("h", H), ("min", MIN)):
        if ns % size == 0:
            return f"{ns // size}{unit}"
    unit, size = next((unit, size) for unit, size, smallest in _DECIMAL_UNITS if ns >= smallest)
    digits = len(str(size)) - 1
    fraction = f"{ns % size:0{digits}d}".rstrip("0") if ns % size else ""
    return f"{ns // size}.{fraction}{unit}" if fraction else f"{ns // size}{unit}"


def ms_of(ns: int) -> float:
    """Milliseconds, for tables, plots and JSON; never for arithmetic."""
    return ns / MS
