"""Numbers as people read them, the same on the page, in Markdown and in figures.

Laws:
- nothing is rounded up to 100 or down to 0: what is not whole shows as many digits as it takes
- an interval of zero is not written; one that is not known (a single run) is not written either
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

from holdfast.lab.analysis.found import Figure, Labels

# The setting that is a number of its own in every row.
LOAD = "topics"
ALL = "all"
DIGITS_MAX = 6
UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_UNIT = re.compile(r"_(ns|us|ms|s)(_max|_min)?$")


def configuration(labels: Labels) -> str:
    """The choices that make a column: all but the load."""
    return " · ".join(value for name, value in labels.items() if name != LOAD) or ALL


def percent(mean: float) -> str:
    """One digit after the point, or as many as keep 99.97 from being 100.0 and 0.004 from being 0.0."""
    if 0 < mean < 0.1:
        return short(mean, 2)
    for digits in range(1, DIGITS_MAX):
        shown = f"{mean:.{digits}f}"
        if mean == 100.0 or float(shown) != 100.0:
            return shown
    return f"> {100 - 10.0**-DIGITS_MAX:.{DIGITS_MAX}f}"


def printed(mean: float, ci: float) -> str:
    """A number of a paper with the digits that it has there."""
    exact = [format(Decimal(repr(each)), "f") for each in (mean, ci)]
    return exact[0] if ci == 0.0 else " ± ".join(exact)


def with_interval(mean: float, ci: float) -> str:
    if not math.isfinite(mean):
        return "–"
    if not math.isfinite(ci) or ci == 0.0:
        return percent(mean)
    return f"{percent(mean)} ± {short(ci, 2) if ci < 0.1 else f'{ci:.1f}'}"


def success(figure: Figure) -> str:
    return with_interval(figure.mean, figure.ci)


def short(value: float, digits: int = 3) -> str:
    """That many significant digits without an exponent; whole from there on, with separators."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    if places <= 0:
        return f"{value:,.0f}"
    return f"{value:,.{places}f}".rstrip("0").rstrip(".")


def measured(figure: Figure) -> str:
    """A mean that is no percentage, with its interval."""
    if not math.isfinite(figure.ci) or figure.ci == 0.0:
        return short(figure.mean)
    return f"{short(figure.mean)} ± {short(figure.ci)}"


def tolerance(loss_tolerance: int) -> str:
    return "∞" if loss_tolerance < 0 else str(loss_tolerance)


def seconds(value: float) -> str:
    if value < 120:
        return f"{short(value)} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def unit_of(name: str) -> str:
    """The unit of time that the name of a measurement has at its end, or nothing."""
    found = _UNIT.search(name)
    return found[1] if found else ""


def title_of(name: str) -> str:
    """`subscribe_ms` is "subscribe (ms)", `late_ns_max` is "late max (ns)"."""
    unit = unit_of(name)
    words = " ".join(_UNIT.sub(r"\2", name).split("_"))
    return f"{words} ({unit.replace('us', 'µs')})" if unit else words


def once(items: list[str]) -> list[str]:
    """In order of first appearance."""
    return list(dict.fromkeys(items))


def numeric_label(labels: Sequence[Labels]) -> str | None:
    """The first setting besides the load that varies and is a number in every combination."""
    for name in labels[0] if labels else ():
        values = {each.get(name, "") for each in labels}
        if name != LOAD and len(values) > 1 and all(value.replace(".", "", 1).isdigit() for value in values):
            return name
    return None
