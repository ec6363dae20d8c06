"""What a benchmark found: tables to read, verdicts against the targets, and the same as Markdown and JSON."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from .brokers import KINDS


@dataclass(frozen=True)
class Table:
    """One table of figures; the first column names the contestant."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()

    def print(self, console: Console) -> None:
        table = RichTable(title=self.title, title_justify="left", box=box.SIMPLE_HEAD)
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}", style="dim", highlight=False)


@dataclass(frozen=True)
class Verdict:
    """One line of the summary; `reached` is None when a contestant it needs did not run."""

    what: str
    target: str
    measured: str
    reached: bool | None

    def cells(self) -> tuple[str, str, str, str]:
        return self.what, self.target, self.measured, {True: "yes", False: "no", None: "–"}[self.reached]


@dataclass
class Outcome:
    """Everything one benchmark has to say; `data` holds the raw turns."""

    tables: list[Table]
    verdicts: list[Verdict] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    failed: bool = False


@dataclass(frozen=True)
class Machine:
    """Where and when."""

    cpu: str
    cores: int
    kernel: str
    python: str
    date: str
    load: float
    contestants: dict[str, str]

    @classmethod
    def here(cls, names: list[str]) -> Machine:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        return cls(
            cpu=model[1] if model else platform.processor(),
            cores=os.cpu_count() or 1,
            kernel=platform.release(),
            python=platform.python_version(),
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            load=os.getloadavg()[0],
            contestants={name: KINDS[name].version() or "missing" for name in names},
        )

    def line(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.contestants.items())
        place = f"{self.cpu}, {self.cores} cores, Linux {self.kernel}, Python {self.python}"
        return f"{place}; {versions}; {self.date}; load average at the start {self.load:.1f}"


SUMMARY_COLUMNS = ("what", "must reach", "measured", "reached")


def markdown(machine: Machine, verdicts: list[Verdict]) -> str:
    rows = [SUMMARY_COLUMNS, ("---",) * 4, *(verdict.cells() for verdict in verdicts)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    settings = "\n".join(f"- {name}: {KINDS[name].settings}" for name in machine.contestants)
    return (
        f"{table}\n\nMeasured on {machine.line()}.\n"
        f"Figures are medians of turns taken by all contestants in one run, with (lowest–highest).\n\n"
        f"Settings:\n{settings}\n"
    )


def as_json(machine: Machine, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    return {
        "machine": asdict(machine),
        "benchmarks": {
            name: {"verdicts": [asdict(each) for each in outcome.verdicts], "data": outcome.data}
            for name, outcome in outcomes.items()
        },
    }
