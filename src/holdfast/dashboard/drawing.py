"""Pictures as SVG text: latency against a deadline, who served when, a map. Pure.

Laws:
- nothing is told by colour alone: what is late has a mark of its own, what is down a gap and a cross
- every picture has a title in words, for whoever does not see it
- text from outside is escaped
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from msgspec import Struct

SPARK_WIDTH, SPARK_HEIGHT = 180, 36
# The scale is logarithmic, from a thousandth of the deadline to twice the deadline.
DECADES_BELOW = 3.0
ABOVE = math.log10(2.0)
LANE_HEIGHT = 22
TIMELINE_WIDTH = 1000
BARS_WIDTH, BARS_HEIGHT = 900, 120


class Mark(Struct, frozen=True):
    """Something that happened: how many seconds ago, and in words."""

    ago_s: float
    words: str


class Span(Struct, frozen=True):
    """What a broker was from `from_s` to `to_s` seconds ago."""

    role: str
    from_s: float
    to_s: float


class Lane(Struct, frozen=True):
    name: str
    spans: tuple[Span, ...]


class Dot(Struct, frozen=True):
    """A place on the map, from 0 to 1 from west to east and from north to south."""

    x: float
    y: float
    name: str
    reached: bool


class Ring(Struct, frozen=True):
    """`rx` and `ry` are its radius as a share of the map's width and height."""

    x: float
    y: float
    rx: float
    ry: float
    kind: str
    name: str


def level(latency_ns: int, deadline_ns: int) -> float:
    """Where a latency stands between the bottom (0) and the top (1); the deadline is below the top."""
    if latency_ns <= 0 or deadline_ns <= 0:
        return 0.0
    decades = math.log10(latency_ns / deadline_ns)
    return min(1.0, max(0.0, (decades + DECADES_BELOW) / (DECADES_BELOW + ABOVE)))


def spark(
    latencies_ns: Sequence[int | None],
    deadline_ns: int,
    title: str,
    *,
    width: int = SPARK_WIDTH,
    height: int = SPARK_HEIGHT,
) -> str:
    """A line through what is known, the newest to the right; gaps where nothing came, triangles if late."""
    step = width / max(1, len(latencies_ns) - 1)
    inner = height - 4

    def y(latency_ns: int) -> float:
        return 2 + inner * (1 - level(latency_ns, deadline_ns))

    parts, late, pen = [], [], "M"
    for index, latency_ns in enumerate(latencies_ns):
        if latency_ns is None:
            pen = "M"
            continue
        x = index * step
        parts.append(f"{pen}{x:.1f} {y(latency_ns):.1f}")
        # A point that stands alone is drawn too.
        if pen == "M":
            parts.append("h.01")
        pen = "L"
        if latency_ns > deadline_ns:
            late.append(f"M{x:.1f} {y(latency_ns) - 2:.1f}l3 5h-6z")
    limit = y(deadline_ns)
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>'
        f'<path class="limit" d="M0 {limit:.1f}H{width}"/>'
        f'<path class="line" d="{"".join(parts)}"/>'
        + (f'<path class="late" d="{"".join(late)}"/>' if late else "")
        + "</svg>"
    )


class Scale(Struct, frozen=True):
    """Which buckets are shown, from `first` up to `last`, and how many of them the limit is behind."""

    first: int
    last: int
    limit_at: int

    def x(self, index: int) -> float:
        """Where the bucket begins, from 0 to 1."""
        return (index - self.first) / max(1, self.last - self.first)


def scale_for(counts: Sequence[int], bounds_ns: Sequence[int], limit_ns: int) -> Scale:
    """Every bucket that was met, the limit, and one more at each end."""
    limit_at = sum(bound <= limit_ns for bound in bounds_ns)
    met = [index for index, count in enumerate(counts) if count] or [limit_at]
    return Scale(max(0, min(*met, limit_at) - 1), min(len(counts), max(*met, limit_at) + 2), limit_at)


def bars(counts: Sequence[int], scale: Scale, title: str) -> str:
    """How often what took how long; a root scale, so that the few late ones are seen."""
    most = max(counts, default=0) or 1
    wide = BARS_WIDTH * (scale.x(scale.first + 1) - scale.x(scale.first))
    parts = []
    for index in range(scale.first, min(scale.last, len(counts))):
        high = (BARS_HEIGHT - 4) * math.sqrt(counts[index] / most)
        name = "bar-late" if index > scale.limit_at else "bar"
        parts.append(
            f'<rect class="{name}" x="{BARS_WIDTH * scale.x(index) + 1:.1f}" y="{BARS_HEIGHT - high:.1f}" '
            f'width="{wide - 2:.1f}" height="{high:.1f}"/>'
        )
    limit = BARS_WIDTH * scale.x(scale.limit_at)
    parts.append(f'<path class="limit" d="M{limit:.1f} 0V{BARS_HEIGHT}"/>')
    return (
        f'<svg class="bars" viewBox="0 0 {BARS_WIDTH} {BARS_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def timeline(lanes: Sequence[Lane], marks: Sequence[Mark], span_s: float, title: str) -> str:
    """A lane for each broker: thick while it served, thin while it protected, nothing while down."""
    height = LANE_HEIGHT * len(lanes)

    def x(ago_s: float) -> float:
        return TIMELINE_WIDTH * (1 - min(1.0, max(0.0, ago_s / span_s)))

    parts = []
    for number, lane in enumerate(lanes):
        middle = LANE_HEIGHT * number + LANE_HEIGHT / 2
        for each in lane.spans:
            left, right = x(each.from_s), x(each.to_s)
            thick = {"primary": 12, "backup": 5}.get(each.role, 2)
            parts.append(
                f'<rect class="{_role_class(each.role)}" x="{left:.1f}" y="{middle - thick / 2:.1f}" '
                f'width="{max(1.0, right - left):.1f}" height="{thick}"><title>{escape(lane.name)}: '
                f"{escape(each.role)}</title></rect>"
            )
    for mark in marks:
        if mark.ago_s <= span_s:
            parts.append(
                f'<path class="mark" d="M{x(mark.ago_s):.1f} 0V{height}">'
                f"<title>{escape(mark.words)}</title></path>"
            )
    return (
        f'<svg class="timeline" viewBox="0 0 {TIMELINE_WIDTH} {height}" preserveAspectRatio="none" '
        f'style="height:{height}px" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )


def _role_class(role: str) -> str:
    return f"lane-{role}" if role in ("primary", "backup", "joining", "unreachable") else "lane-joining"


MAP_WIDTH, MAP_HEIGHT = 640, 620


def city(dots: Iterable[Dot], rings: Iterable[Ring], title: str) -> str:
    """Rings with their kind; people inside one are crosses, the others points."""
    parts = ['<g class="grid">']
    for third in (1 / 3, 2 / 3):
        parts.append(
            f'<path d="M{MAP_WIDTH * third:.0f} 0V{MAP_HEIGHT}M0 {MAP_HEIGHT * third:.0f}H{MAP_WIDTH}"/>'
        )
    parts.append("</g>")
    for ring in rings:
        x, y = ring.x * MAP_WIDTH, ring.y * MAP_HEIGHT
        parts.append(
            f'<g class="ring"><title>{escape(ring.name)}</title><ellipse cx="{x:.1f}" cy="{y:.1f}" '
            f'rx="{ring.rx * MAP_WIDTH:.1f}" ry="{ring.ry * MAP_HEIGHT:.1f}"/>'
            f'<text x="{x:.1f}" y="{y:.1f}" dy=".35em">{escape(ring.kind)}</text></g>'
        )
    for dot in dots:
        x, y = dot.x * MAP_WIDTH, dot.y * MAP_HEIGHT
        shape = (
            f'<path class="reached" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"/>'
            if dot.reached
            else f'<circle class="person" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        )
        parts.append(f"<g><title>{escape(dot.name)}</title>{shape}</g>")
    return (
        f'<svg class="map" viewBox="0 0 {MAP_WIDTH} {MAP_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
