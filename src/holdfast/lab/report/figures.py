"""The figures of a report, each from the rows that it shows.

Laws:
- axes have units; what spans more than two orders of magnitude has a logarithmic axis
- what was lost is drawn, never left out
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from holdfast.lab.analysis.found import CpuRow, Figure, FigureRow, Knee, Labels, RecoveryRow, Row, Series
from holdfast.lab.report.results import worst_series
from holdfast.lab.report.style import (
    ALERT,
    INK,
    PAPER,
    SOFT,
    Looks,
    canvas,
    label_ends,
    logarithmic,
    looks,
    plain_numbers,
    steps,
    thousands,
)
from holdfast.lab.report.text import ALL, LOAD, configuration, numeric_label, once, percent, short, title_of
from holdfast.units import MS

PANELS_ACROSS = 3
TICKS_MAX = 10
LEVEL_TICKS_MAX = 4
# With more, marks touch each other.
MARKED_POINTS_MAX = 100
VECTOR_POINTS_MAX = 4000
LATENCY_MS_MIN = 1e-3
Point = tuple[float, Figure]
# Where, the figure itself, and its 99th percentile.
Spot = tuple[float, Figure, float]


def cpu_curves(rows: Sequence[CpuRow]) -> Drawing:
    """As FRAME, Figure 7: a panel for each role, and for each thread of a role that has several."""
    panels: list[tuple[str, dict[str, list[Point]]]] = []
    for role in once([row.role for row in rows]):
        here = [row for row in rows if row.role == role]
        panels.append((role, _curves(here, None)))
        threads = once([thread for row in here for thread in row.threads])
        for thread in threads if len(threads) > 1 else ():
            panels.append((f"{role}, thread {thread}", _curves(here, thread)))
    across = min(PANELS_ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    figure, axes = canvas(down, across, (3.9, 2.9))
    style = looks(once([configuration(row.labels) for row in rows]))
    places = [axes[index // across][index % across] for index in range(down * across)]
    for place, (title, curves) in zip(places, panels, strict=False):
        place.set_title(title)
        _draw_curves(place, curves, style)
        place.set_ylim(bottom=0)
        place.set_ylabel("CPU (% of one core)")
    for place in places[len(panels) :]:
        place.set_axis_off()
    _name_curves(figure, places, panels, style)
    return figure


def _curves(rows: Sequence[CpuRow], thread: str | None) -> dict[str, list[Point]]:
    curves: dict[str, list[Point]] = {}
    for row in sorted(rows, key=lambda row: row.topics):
        figure = row.percent if thread is None else row.threads.get(thread)
        if figure is not None:
            curves.setdefault(configuration(row.labels), []).append((float(row.topics), figure))
    return curves


def _draw_curves(axes: Axes, curves: dict[str, list[Point]], style: Looks) -> None:
    for (name, points), step in zip(curves.items(), steps(len(curves)), strict=True):
        across, means = [x for x, _ in points], [figure.mean for _, figure in points]
        spread = [figure.ci if math.isfinite(figure.ci) else 0.0 for _, figure in points]
        axes.errorbar(across, means, yerr=spread, capsize=2, elinewidth=0.9, **step, **style[name])
    loads = sorted({x for points in curves.values() for x, _ in points})
    _load_axis(axes, loads)


def _load_axis(axes: Axes, loads: Sequence[float]) -> None:
    axes.set_xlabel("topics")
    if loads and loads[0] > 0 and loads[-1] / loads[0] > 20:
        logarithmic(axes, "x", loads[0] / 1.2, loads[-1] * 1.2)
    if len(loads) <= TICKS_MAX:
        axes.set_xticks(loads)
    thousands(axes.xaxis)
    if len(loads) > LEVEL_TICKS_MAX:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor", fontsize=8)


def _name_curves(
    figure: Drawing,
    places: Sequence[Axes],
    panels: Sequence[tuple[str, dict[str, list[Point]]]],
    style: Looks,
) -> None:
    figure.draw_without_rendering()
    for place, (_, curves) in zip(places, panels, strict=False):
        ends = [(*_end(points), name, style[name]["color"]) for name, points in curves.items()]
        label_ends(place, ends)


def _end(points: Sequence[Point]) -> tuple[float, float]:
    return points[-1][0], points[-1][1].mean


def success_curves(rows: Sequence[Row]) -> Drawing:
    """The worst category of each configuration as the load rises: losses, and deadlines."""
    figure, axes = canvas(1, 2, (4.8, 3.2), sharey=True)
    style = looks(once([configuration(row.labels) for row in rows]))
    panels = []
    for title, pick in (("loss tolerance kept", _loss), ("deadline met", _latency)):
        worst: dict[tuple[str, int], Figure] = {}
        for row in rows:
            key = (configuration(row.labels), row.topics)
            worst[key] = min(worst.get(key, pick(row)), pick(row), key=lambda figure: figure.mean)
        curves: dict[str, list[Point]] = {}
        for (name, topics), found in sorted(worst.items(), key=lambda item: item[0][1]):
            curves.setdefault(name, []).append((float(topics), found))
        panels.append((title, curves))
    for place, (title, curves) in zip(axes[0], panels, strict=True):
        place.set_title(title)
        _draw_curves(place, curves, style)
        place.set_ylim(-4, 104)
    axes[0][0].set_ylabel("worst category (%)")
    _name_curves(figure, axes[0], panels, style)
    return figure


def _loss(row: Row) -> Figure:
    return row.loss_success


def _latency(row: Row) -> Figure:
    return row.latency_success


def series_grid(series: Sequence[Series]) -> Drawing:
    """As FRAME, Figure 9: a column for each category, a row for each configuration.

    Of several repetitions the one with the highest peak is drawn."""
    shown = worst_series(series)
    names, categories = once([name for name, _ in shown]), once([category for _, category in shown])
    size = (3.7, 1.75) if len(shown) > 1 else (9.5, 3.2)
    figure, axes = canvas(len(names), len(categories), size, sharex="col", sharey=True)
    style = looks(names)
    for place in (place for row in axes for place in row):
        logarithmic(place, "y", *_latency_bounds(shown.values()))
    for down, name in enumerate(names):
        for across, category in enumerate(categories):
            place = axes[down][across]
            if found := shown.get((name, category)):
                _draw_series(place, found, style[name])
            else:
                place.text(0.5, 0.5, "not measured", transform=place.transAxes, ha="center", color=SOFT)
            if down == 0:
                place.set_title(f"category {category}")
            if across == 0:
                place.set_ylabel(f"{name}\nlatency (ms)", color=INK)
            if down == len(names) - 1:
                place.set_xlabel("message, counted from the crash" if _has_fault(shown) else "message")
    return figure


def _has_fault(shown: dict[tuple[str, str], Series]) -> bool:
    return any(point[0] < 0 for each in shown.values() for point in each.points)


def _draw_series(axes: Axes, series: Series, style: dict[str, Any]) -> None:
    # A lost message breaks the line.
    points = sorted([*series.points, *((x, math.nan) for x in series.lost)])
    few = len(points) <= MARKED_POINTS_MAX
    axes.plot(
        [x for x, _ in points], [max(y, LATENCY_MS_MIN) for _, y in points], color=style["color"],
        linewidth=0.9, marker="." if few else "", markersize=3, rasterized=len(points) > VECTOR_POINTS_MAX,
    )  # fmt: skip
    axes.axhline(series.deadline_ms, color=INK, linewidth=0.9, linestyle=(0, (5, 3)))
    axes.annotate(
        f"deadline {short(series.deadline_ms)}", (1, series.deadline_ms), xycoords=("axes fraction", "data"),
        xytext=(-2, 2), textcoords="offset points", ha="right", va="bottom", fontsize=7,
    )  # fmt: skip
    if any(x < 0 for x, _ in points):
        axes.axvline(-0.5, color=ALERT, linewidth=1)
    axes.plot(
        series.lost, [0.06] * len(series.lost), transform=axes.get_xaxis_transform(), linestyle="none",
        marker="|", color=ALERT, markersize=7, markeredgewidth=1.2,
    )  # fmt: skip
    late = series.lost or series.peak_ms > series.deadline_ms
    lost = f", {len(series.lost):,} lost" if series.lost else ""
    axes.text(
        0.015, 0.95, f"peak {short(series.peak_ms)} ms{lost}", transform=axes.transAxes, va="top",
        fontsize=7.5, color=ALERT if late else INK,
    )  # fmt: skip


def _latency_bounds(shown: Collection[Series]) -> tuple[float, float]:
    """Room above for what a panel says, and below for what was lost."""
    values = [y for each in shown for _, y in each.points] + [each.deadline_ms for each in shown]
    return max(min(values), LATENCY_MS_MIN) / 4, max(values) * 8


def recovery_dots(rows: Sequence[RecoveryRow]) -> Drawing:
    """The highest latency after the crash: a line for each category, a mark for each configuration."""
    loads = once([row.labels.get(LOAD, "") for row in rows])
    categories = once([row.category for row in rows])
    names = once([configuration(row.labels) for row in rows])
    style = looks(names)
    figure, axes = canvas(
        1, len(loads), (max(4.2, 7.5 / len(loads)), 1.1 + 0.55 * len(categories)), sharey=True
    )
    for place, load in zip(axes[0], loads, strict=True):
        for index, name in enumerate(names):
            aside = 0.16 * (index - (len(names) - 1) / 2)
            here = [
                row for row in rows if row.labels.get(LOAD, "") == load and configuration(row.labels) == name
            ]
            place.errorbar(
                [row.peak_ms.mean for row in here], [categories.index(row.category) + aside for row in here],
                xerr=[[_below(row.peak_ms) for row in here], [_above(row.peak_ms) for row in here]],
                linestyle="none", label=name, capsize=2, elinewidth=0.9, markersize=6, **style[name],
            )  # fmt: skip
        logarithmic(place, "x", *_peak_bounds(rows))
        place.set_title(f"{load} topics" if load else "")
        place.set_xlabel("highest latency after the crash (ms), and its range over repetitions")
    axes[0][0].set_yticks(range(len(categories)), [f"category {each}" for each in categories])
    axes[0][0].set_ylim(len(categories) - 0.5, -0.5)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper right", ncols=len(names))
    return figure


def _peak_bounds(rows: Sequence[RecoveryRow]) -> tuple[float, float]:
    low = min(row.peak_ms.low for row in rows)
    return max(low, LATENCY_MS_MIN) / 1.5, max(row.peak_ms.high for row in rows) * 1.5


def _below(figure: Figure) -> float:
    return max(figure.mean - figure.low, 0.0)


def _above(figure: Figure) -> float:
    return max(figure.high - figure.mean, 0.0)


def knee_bars(knees: Sequence[Knee], topics_max: int | None) -> Drawing:
    """How many topics each configuration holds, and where it broke."""
    names = [configuration(knee.labels) for knee in knees]
    style = looks(names)
    figure, axes = canvas(1, 1, (8.6, 1.1 + 0.42 * len(knees)))
    place = axes[0][0]
    for index, knee in enumerate(knees):
        colour = style[names[index]]["color"]
        place.barh(index, knee.topics or 0, color=colour, height=0.62)
        edge = f"{knee.topics:,}" if knee.topics else "holds none"
        broke = f", broke at {knee.broke_at:,}" if knee.broke_at else ", nothing broke"
        place.annotate(
            edge + broke,
            (knee.topics or 0, index),
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=INK,
        )
    place.set_yticks(range(len(names)), names)
    place.set_ylim(len(names) - 0.4, -0.9)
    place.set_xlim(0, 1.45 * max([knee.topics or 0 for knee in knees] + [topics_max or 1]))
    place.grid(visible=False, axis="y")
    thousands(place.xaxis)
    place.set_xlabel("topics")
    if topics_max:
        place.axvline(topics_max, color=INK, linewidth=0.9, linestyle=(0, (5, 3)))
        place.annotate(
            f"largest in the paper: {topics_max:,}", (topics_max, -0.75), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    return figure


def figure_chart(rows: Sequence[FigureRow]) -> Drawing:
    """One measurement: over the setting that is a number, if there is one, or a line for each setting."""
    over = numeric_label([row.labels for row in rows])
    if over is None:
        return _by_setting(rows)
    curves: dict[str, list[Spot]] = {}
    for row in sorted(rows, key=lambda row: float(row.labels[over])):
        spot = (float(row.labels[over]), row.mean, row.p99)
        curves.setdefault(_without(row.labels, over), []).append(spot)
    return _over_number(curves, over, f"{title_of(rows[0].name)}: mean, dotted p99")


def latency_chart(rows: Sequence[Row], over: str) -> Drawing:
    """The latency of each category over a setting that is a number."""
    curves: dict[str, list[Spot]] = {}
    for row in sorted(rows, key=lambda row: float(row.labels[over])):
        middle = row.latency_ns["p50"] / MS
        figure = Figure(mean=middle, ci=0.0, low=middle, high=middle)
        spot = (float(row.labels[over]), figure, row.latency_ns["p99"] / MS)
        rest = _without(row.labels, over)
        name = f"category {row.category}" if rest == ALL else f"{rest}, category {row.category}"
        curves.setdefault(name, []).append(spot)
    return _over_number(curves, over, "latency (ms): median, dotted p99")


def _without(labels: Labels, name: str) -> str:
    return configuration({each: value for each, value in labels.items() if each != name})


def _over_number(curves: dict[str, list[Spot]], across: str, up: str) -> Drawing:
    figure, axes = canvas(1, 1, (6.8, 3.4))
    place = axes[0][0]
    style = looks(list(curves))
    for (name, spots), step in zip(curves.items(), steps(len(curves)), strict=True):
        xs, colour = [x for x, _, _ in spots], style[name]["color"]
        spread = [each.ci if math.isfinite(each.ci) else 0.0 for _, each, _ in spots]
        place.errorbar(xs, [each.mean for _, each, _ in spots], yerr=spread, capsize=2, **step, **style[name])
        place.plot(xs, [high for _, _, high in spots], color=colour, linestyle=":", linewidth=1.2)
    place.set_xticks(sorted({x for spots in curves.values() for x, _, _ in spots}))
    plain_numbers(place.xaxis)
    place.set_ylim(bottom=0)
    place.set_xlabel(across)
    place.set_ylabel(up)
    figure.draw_without_rendering()
    ends = []
    for name, spots in curves.items():
        x, middle, high = spots[-1]
        ends += [(x, middle.mean, name, style[name]["color"]), (x, high, "p99", style[name]["color"])]
    label_ends(place, ends)
    return figure


def _by_setting(rows: Sequence[FigureRow]) -> Drawing:
    """A line from the median to the highest for each setting, the mean a mark on it."""
    names = [configuration(row.labels) for row in rows]
    style = looks(once(names))
    figure, axes = canvas(1, 1, (8.0, 1.1 + 0.42 * len(rows)))
    place = axes[0][0]
    for index, (name, row) in enumerate(zip(names, rows, strict=True)):
        colour = style[name]["color"]
        place.plot(
            [row.p50, row.max], [index, index], color=colour, linewidth=2, alpha=0.45, solid_capstyle="butt"
        )
        place.plot(
            [row.p50, row.p99, row.max], [index] * 3, linestyle="none", marker="|", color=colour, markersize=9
        )
        place.plot([row.mean.mean], [index], linestyle="none", markersize=6, **style[name])
        place.annotate(
            f"mean {short(row.mean.mean)}, max {short(row.max)}", (row.max, index), xytext=(8, 0),
            textcoords="offset points", va="center", fontsize=8, annotation_clip=False,
        )  # fmt: skip
    lowest = min((row.p50 for row in rows if row.p50 > 0), default=0.0)
    highest = max(row.max for row in rows)
    if lowest > 0 and highest / lowest > 100:
        logarithmic(place, "x", lowest / 1.5, highest * 8)
    else:
        place.set_xlim(0, highest * 1.35 or 1)
        plain_numbers(place.xaxis)
    place.set_yticks(range(len(names)), names)
    place.set_ylim(len(names) - 0.5, -0.5)
    place.grid(visible=False, axis="y")
    place.set_xlabel(f"{title_of(rows[0].name)}: mean, and p50, p99 and max as ticks")
    return figure


def misses_heat(rows: Sequence[Row]) -> Drawing:
    """Who misses what: a panel for each category, the load across, the configuration down."""
    categories = once([row.category for row in rows])
    names = once([configuration(row.labels) for row in rows])
    loads = sorted({row.topics for row in rows})
    across = min(PANELS_ACROSS, len(categories))
    down = math.ceil(len(categories) / across)
    size = (max(2.6, 0.62 * len(loads)) + (1.0 / across), 0.8 + 0.36 * len(names))
    figure, axes = canvas(down, across, size, sharex=True, sharey=True)
    places = [axes[index // across][index % across] for index in range(down * across)]
    for place, category in zip(places, categories, strict=False):
        here = {
            (configuration(r.labels), r.topics): 100 - r.latency_success.mean
            for r in rows
            if r.category == category
        }
        grid = [[here.get((name, load), math.nan) for load in loads] for name in names]
        place.imshow(grid, aspect="auto", cmap="OrRd", vmin=0, vmax=100)
        place.set_title(f"category {category}")
        place.grid(visible=False)
        place.hlines([each + 0.5 for each in range(len(names) - 1)], -0.5, len(loads) - 0.5, color=PAPER)
        place.vlines([each + 0.5 for each in range(len(loads) - 1)], -0.5, len(names) - 0.5, color=PAPER)
        for (name, load), missed in here.items():
            place.text(
                loads.index(load), names.index(name), percent(missed) if missed else "0", ha="center",
                va="center", fontsize=7.5, color="#ffffff" if missed > 60 else "#000000",
            )  # fmt: skip
    for place in places[len(categories) :]:
        place.set_axis_off()
    places[0].set_xticks(range(len(loads)), [f"{load:,}" for load in loads], rotation=30)
    places[0].set_yticks(range(len(names)), names)
    figure.supxlabel("topics", fontsize=9)
    return figure
