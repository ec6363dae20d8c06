"""What a benchmark found: tables to read, verdicts against the targets, and the raw turns as JSON."""

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

NOT_MEASURED = "not measured"
SAID = {True: "yes", False: "no", None: "–"}


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
    """One line of the summary; `reached` is None for what is only reported, or was not measured."""

    what: str
    target: str
    measured: str
    reached: bool | None

    def cells(self) -> tuple[str, str, str, str]:
        return self.what, self.target, self.measured, SAID[self.reached]

    @property
    def whole(self) -> bool:
        return self.measured != NOT_MEASURED


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
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            load=os.getloadavg()[0],
            contestants={name: KINDS[name].version() or "missing" for name in names},
        )

    def place(self) -> str:
        """Where, beside whom, and what else ran."""
        versions = ", ".join(f"{name} {version}" for name, version in self.contestants.items())
        place = f"{self.cpu}, {self.cores} cores, Linux {self.kernel}, Python {self.python}"
        return f"{place}; {versions}; load {self.load:.1f} at the start"


SUMMARY_COLUMNS = ("what", "must reach", "measured", "reached")


def as_json(machine: Machine, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    return {
        "machine": asdict(machine),
        "benchmarks": {
            name: {"verdicts": [asdict(each) for each in outcome.verdicts], "data": outcome.data}
            for name, outcome in outcomes.items()
        },
    }
