"""Numbers as people read them, the same on the page, in Markdown and in figures.

Laws:
- nothing is rounded up to 100 or down to 0: what is not whole shows as many digits as it takes
- an interval of zero is not written; one that is not known (a single run) is not written either
"""

from __future__ import annotations

import math

from holdfast.lab.analysis.found import Figure, Labels

# The setting that is a number of its own in every row.
LOAD = "topics"
DIGITS_MAX = 6
UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def configuration(labels: Labels) -> str:
    """The choices that make a column: all but the load."""
    return " · ".join(value for name, value in labels.items() if name != LOAD) or "all"


def percent(mean: float) -> str:
    """One digit after the point, or as many as keep 99.97 from being 100.0 and 0.004 from being 0.0."""
    for digits in range(1, DIGITS_MAX):
        shown = f"{mean:.{digits}f}"
        if mean in (0.0, 100.0) or float(shown) not in (0.0, 100.0):
            return shown
    return (
        f"< {10.0**-DIGITS_MAX:.{DIGITS_MAX}f}"
        if mean < 50
        else f"> {100 - 10.0**-DIGITS_MAX:.{DIGITS_MAX}f}"
    )


def with_interval(mean: float, ci: float) -> str:
    if not math.isfinite(mean):
        return "–"
    if not math.isfinite(ci) or ci == 0.0:
        return percent(mean)
    return f"{percent(mean)} ± {short(ci) if ci < 0.1 else f'{ci:.1f}'}"


def success(figure: Figure) -> str:
    return with_interval(figure.mean, figure.ci)


def short(value: float) -> str:
    """Three significant digits without an exponent; whole numbers from a hundred on, with separators."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    if digits <= 0:
        return f"{value:,.0f}"
    shown = f"{value:,.{min(digits, 9)}f}"
    return shown.rstrip("0").rstrip(".") if float(value).is_integer() else shown


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
    """The unit that the name of a measurement ends with, or nothing."""
    return name.rpartition("_")[2] if name.rpartition("_")[2] in UNITS else ""


def title_of(name: str) -> str:
    """`suback_ms` is "suback (ms)"."""
    unit = unit_of(name)
    words = (name.removesuffix(f"_{unit}") if unit else name).replace("_", " ")
    return f"{words} ({unit.replace('us', 'µs')})" if unit else words


def once(items: list[str]) -> list[str]:
    """In order of first appearance."""
    return list(dict.fromkeys(items))
