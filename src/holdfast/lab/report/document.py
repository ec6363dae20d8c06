"""What a report says, before it is HTML or Markdown: parts with text, tables and plots.

A plot is drawn when the page is written; Markdown only links to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# How a cell reads at a glance: from whole success to none, or a number from a paper.
Tone = Literal["", "whole", "slight", "some", "most", "none", "published", "label"]


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Column:
    """`group` is written once above neighbouring columns that share it; `words` may take several lines."""

    title: str
    group: str = ""
    words: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    title: str
    rows: list[list[Cell]]


@dataclass(frozen=True, slots=True)
class Table:
    caption: str
    columns: list[Column]
    blocks: list[Block]
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """`name` is the file's; `caption` says what to see in it."""

    name: str
    caption: str
    draw: Callable[[], Drawing]


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    title: str
    text: list[str] = field(default_factory=list)
    items: list[Table | Plot] = field(default_factory=list)
