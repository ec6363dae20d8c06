"""Means with 95 % intervals, and percentiles of lists that fit in memory.

One value has no interval, and no value has no mean: both are nan, which the report shows as nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from holdfast.lab.analysis.found import Figure

# Two-sided 95 % quantiles of Student's t for 1, 2, 3, … degrees of freedom.
T_95 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
NORMAL_95 = 1.959964


def t_95(freedom: int) -> float:
    """Beyond the table, an expansion around the normal quantile that is exact to three places."""
    if freedom <= len(T_95):
        return T_95[freedom - 1]
    z = NORMAL_95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def figure(values: Iterable[float | None]) -> Figure:
    """The mean of the values that are there, its interval, and the lowest and the highest."""
    there = [float(each) for each in values if each is not None]
    if not there:
        return Figure(mean=math.nan, ci=math.nan, low=math.nan, high=math.nan)
    low, high, count = min(there), max(there), len(there)
    # Equal values are their mean; computing it may differ in the last place, which would show as a width.
    mean = low if low == high else statistics.fmean(there)
    ci = math.nan if count == 1 else t_95(count - 1) * statistics.stdev(there, mean) / math.sqrt(count)
    return Figure(mean=mean, ci=ci, low=low, high=high)


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest of the sorted values that at least `percent` of them do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
