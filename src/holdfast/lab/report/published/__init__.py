"""What the papers print, as data: one file for each experiment that has something to compare with.

Laws:
- a number stands here only if the text of the paper gives it; what only a drawing shows is absent
- a file is named after the experiment; an experiment without a file is compared with nothing
- how to find our number for a statement stands beside the statement, so that nothing else knows a paper
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Literal

import msgspec

Measure = Literal["loss_success", "latency_success"]
Source = Literal["row", "cpu", "series", "recovery", "figure", "knee"]
Comparison = Literal["ratio", "difference", "saving"]


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a table; a value for each configuration, with half its 95 % interval if it is printed."""

    deadline_ms: int
    loss_tolerance: int
    values: list[float | tuple[float, float]]


class Block(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topics: int
    rows: list[PublishedRow]
    where: str = ""


class Ours(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where our number is: `value` of what comes `from` there and has all the labels of `at`.

    With `against`, the number is compared `by` with the one that has those labels instead.
    """

    source: Source = msgspec.field(name="from")
    value: str
    at: list[str] = []
    topics: int | None = None
    category: str | None = None
    name: str | None = None
    role: str | None = None
    against: list[str] | None = None
    by: Comparison = "ratio"
    unit: str = ""
    scale: float = 1.0


class Stated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that the text says besides the table."""

    where: str
    what: str
    published: str
    ours: Ours | None = None


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    paper: str
    where: str
    what: str
    measure: Measure | None = None
    configurations: list[str] = []
    blocks: list[Block] = msgspec.field(name="block", default_factory=list)
    stated: list[Stated] = []
    topics_max: int | None = None
    """The largest load that the paper tried."""

    def value(
        self, topics: int, deadline_ns: int, loss_tolerance: int, configuration: str
    ) -> tuple[float, float] | None:
        """Mean and half of the interval, or None if the paper does not print it."""
        for block in self.blocks:
            for row in block.rows if block.topics == topics else ():
                if (row.deadline_ms * 1_000_000, row.loss_tolerance) == (deadline_ns, loss_tolerance):
                    return _of(
                        dict(zip(map(plain, self.configurations), row.values, strict=True)), configuration
                    )
        return None


def _of(values: Mapping[str, float | tuple[float, float]], configuration: str) -> tuple[float, float] | None:
    found = values.get(plain(configuration))
    return (found, 0.0) if isinstance(found, float) else found


def plain(label: str) -> str:
    """A label as it is compared: a minus is a hyphen, case and separators of thousands do not count."""
    return label.replace("−", "-").replace(",", "").strip().casefold()


def names() -> list[str]:
    return sorted(
        each.name.removesuffix(".toml") for each in files(__name__).iterdir() if each.name.endswith(".toml")
    )


def published(experiment: str) -> Published | None:
    if experiment not in names():
        return None
    text = (files(__name__) / f"{experiment}.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), type=Published)
