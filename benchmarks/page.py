"""Writes docs/measured.md from what benchmarks keep: `python -m benchmarks.page`. `--check` only compares.

A mark `<!-- measured: NAME … -->` in the page shows the figures of these benchmarks. The rest is by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.lab.report.marks import filled, settle

from .kept import FILE, Kept, load
from .report import SAID

PAGE = FILE.parents[1] / "measured.md"
COMMAND = "make pages"
COLUMNS = ("what", "must reach", "measured", "reached", "how")


def shown(kept: list[Kept], names: list[str]) -> list[str]:
    """A table of these, and where and when they were measured."""
    chosen = [each for name in names for each in kept if each.of == name]
    if missing := set(names) - {each.of for each in chosen}:
        raise SystemExit(f"{PAGE.name} shows {', '.join(sorted(missing))}: {FILE.name} has no figure of it")
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    rows += [(each.what, each.must, each.measured, SAID[each.reached], _how(each)) for each in chosen]
    places: dict[str, list[str]] = {}
    for each in chosen:
        commands = places.setdefault(f"{each.date}, {each.machine}", [])
        if _how(each) not in commands:
            commands.append(_how(each))
    return [*("| " + " | ".join(row) + " |" for row in rows), "", *_where(places)]


def _how(each: Kept) -> str:
    return each.command if each.command == "by hand" else f"`{each.command}`"


def _where(places: dict[str, list[str]]) -> list[str]:
    if len(places) == 1:
        return [f"Measured {next(iter(places))}."]
    return [f"- Measured {place}: {', '.join(commands)}." for place, commands in places.items()]


def made(page: str, kept: list[Kept]) -> str:
    return filled(page, lambda names: shown(kept, names))


def main(arguments: list[str], path: Path = PAGE) -> int:
    return settle({path: made(path.read_text(), load())}, "--check" in arguments, COMMAND)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
