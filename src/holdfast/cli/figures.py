"""Figures and tables as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.units import S, ms_of

if TYPE_CHECKING:
    from rich.table import Table

NOTHING = "–"
# From this width on there is room between columns.
ROOMY_COLUMNS = 100


def short_duration(ns: int | None) -> str:
    """As precise as a person can act on: 0.31ms, 12.4ms, 1.25s; a dash for none."""
    if ns is None:
        return NOTHING
    if abs(ns) >= S:
        return f"{ns / S:.2f}s"
    return f"{ms_of(ns):.{2 if abs(ms_of(ns)) < 10 else 1}f}ms"


def loss_words(longest: int, tolerance: int | None) -> str:
    """The longest run of losses against what may be lost: 0 ≤ 3."""
    if tolerance is None:
        return f"{longest} ≤ ∞"
    return f"{longest} {'≤' if longest <= tolerance else '>'} {tolerance}"


def plain_table(columns: int) -> Table:
    """A table without frame that fits a terminal of 80 columns, and breathes in a wider one."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1) if columns >= ROOMY_COLUMNS else 0)
