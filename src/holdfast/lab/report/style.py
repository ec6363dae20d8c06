"""How every figure looks: one colour and one mark for each configuration, in all figures of all reports.

Laws:
- colours are told apart by people who see few colours, and a mark says the same as the colour
- a figure has no state outside itself, and the same data gives the same bytes
- ink, grid and paper are three colours of their own, so that a page can put its own in their place
- a drawing is exact to a hundredth of a point, and has no more digits than that
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from holdfast.lab.report.published import plain
from holdfast.lab.report.text import short

INK, GRID, PAPER, SOFT = "#1f2328", "#d9dee3", "#fffffe", "#6b7480"
ALERT = "#cc3311"
PAGE_COLOURS = {INK: "var(--ink)", GRID: "var(--line)", PAPER: "var(--paper)", SOFT: "var(--soft)"}
LOG_SPARSE = 100
_TAG, _LONG_NUMBER, _BETWEEN_TAGS = (
    re.compile(r"<[^<>]+>"),
    re.compile(r"-?\d+\.\d{3,}"),
    re.compile(r">\s+<"),
)
_STYLE = re.compile(r'\bstyle="([^"]+)"')

# Colour and mark of each configuration.
Looks = dict[str, dict[str, Any]]

# Okabe and Ito's palette, without yellow, which is lost on white.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#7a5195", "#8c564b")
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_KNOWN = {
    "frame": 0, "frame+": 2, "fcfs": 1, "fcfs-": 3,
    "edf": 0, "fixed-priority": 2, "least-laxity": 4, "maximum-urgency": 5,
    "holdfast": 0, "mosquitto": 1, "nats": 3,
}  # fmt: skip
_RC: dict[Any, Any] = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9,
    "text.parse_math": False, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": SOFT,
    "xtick.color": SOFT, "ytick.color": SOFT, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID,
    "grid.linewidth": 0.7, "axes.axisbelow": True, "axes.titlesize": 9.5, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlepad": 7, "legend.frameon": False, "axes.facecolor": "none",
    "figure.facecolor": PAPER, "savefig.facecolor": PAPER,
    "lines.linewidth": 1.6, "lines.markersize": 4.5, "svg.fonttype": "none", "svg.hashsalt": "holdfast",
    "xtick.major.size": 3, "ytick.major.size": 3, "xtick.minor.size": 0, "ytick.minor.size": 0,
}  # fmt: skip


def canvas(
    rows: int, columns: int, size: tuple[float, float], **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """An empty figure of rows × columns panels, each of that size in inches."""
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [list(row) for row in axes]


def looks(configurations: Sequence[str]) -> Looks:
    """Colour and mark for each; one that is known, by its first word, has the same in every report."""
    places: dict[str, int] = {}
    for each in configurations:
        place = _KNOWN.get(re.split(r"[, ]", plain(each))[0])
        if place is not None and place not in places.values():
            places[each] = place
    free = [each for each in range(len(_COLOURS)) if each not in places.values()] or [0]
    others = [each for each in configurations if each not in places]
    places |= {each: free[index % len(free)] for index, each in enumerate(others)}
    return {each: {"color": _COLOURS[place], "marker": _MARKS[place]} for each, place in places.items()}


def steps(count: int) -> list[dict[str, Any]]:
    """Lines thinner and marks smaller one after the other, so that curves that are equal all show."""
    return [{"linewidth": 1.3 + 0.6 * each, "markersize": 4.5 + each} for each in reversed(range(count))]


def thousands(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def plain_numbers(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def logarithmic(axes: Axes, side: Literal["x", "y"], low: float, high: float) -> None:
    """From low to high: 1, 10, 100, and 2 and 5 between them where there is room."""
    axes.set(**{f"{side}scale": "log", f"{side}lim": (low, high)})
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1,) if high / low > LOG_SPARSE else (1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    plain_numbers(axis)


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names lines at their right ends, (x, y, text, colour), and keeps the names apart."""
    places = []
    for x, y, text, colour in ends:
        fraction = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
        places.append((float(fraction[1]), float(fraction[0]), text, colour))
    height = axes.get_window_extent().height
    apart = _apart([up for up, _, _, _ in sorted(places)], 12.0 / height if height else 0.08)
    for up, (_, right, text, colour) in zip(apart, sorted(places), strict=True):
        axes.annotate(
            text, (right, up), xytext=(6, 0), xycoords="axes fraction", textcoords="offset points",
            color=colour, va="center", fontsize=8.5, fontweight="bold", annotation_clip=False,
        )  # fmt: skip


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights, moved up until each is a gap above the one before, then down to stay in the panel."""
    moved: list[float] = []
    for each in heights:
        moved.append(max(each, moved[-1] + gap) if moved else each)
    ceiling = max(1.0, heights[-1] if heights else 1.0)
    for index in range(len(moved) - 1, -1, -1):
        moved[index] = min(moved[index], ceiling)
        ceiling = moved[index] - gap
    return moved


def rendered(draw: Callable[[], Figure]) -> str:
    """A figure as SVG."""
    svg = io.StringIO()
    with mpl.rc_context(_RC):
        draw().savefig(svg, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return compact(svg.getvalue())


def compact(drawing: str) -> str:
    """The same drawing, a third as long: fewer digits, no indentation, every style once. Text stays."""
    styles: dict[str, str] = {}

    def named(style: re.Match[str]) -> str:
        return f'class="{styles.setdefault(style[1], f"s{len(styles)}")}"'

    def short_tag(tag: re.Match[str]) -> str:
        rounded = _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}", tag[0])
        return _STYLE.sub(named, " ".join(rounded.split()))

    short_drawing = _BETWEEN_TAGS.sub(">\n<", _TAG.sub(short_tag, drawing))
    rules = "".join(f".{name}{{{style}}}\n" for style, name in styles.items())
    return short_drawing.replace("</style>", f"\n{rules}</style>", 1)


def inline(drawing: str, name: str) -> str:
    """A drawing as a part of a page: no declarations, no names that another has, the colours of the page."""
    body = drawing[drawing.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r' xmlns(:\w+)?="[^"]*"', "", body).replace("xlink:href", "href")
    own = f"f{zlib.crc32(name.encode()):08x}-"
    body = re.sub(r'\bid="', f'id="{own}', body)
    body = re.sub(r'\bclass="', f'class="{own}', body)
    body = re.sub(r"^\.(?=s\d+\{)", f".{own}", body, flags=re.MULTILINE)
    body = re.sub(r"url\(#", f"url(#{own}", body)
    body = re.sub(r'href="#', f'href="#{own}', body)
    for colour, variable in PAGE_COLOURS.items():
        body = body.replace(colour, variable)
    return body
