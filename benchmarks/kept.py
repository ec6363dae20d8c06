"""What was measured, in docs/results/measured.json: one figure a line, and docs/measured.md is made of it.

Laws:
- a benchmark that was measured again replaces its own figures where they stand, and no others
- one that failed, was cut short by --quick, or lacked a contestant replaces nothing
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from .report import Machine, Outcome, Verdict

FILE = Path(__file__).parents[1] / "docs" / "results" / "measured.json"


class Kept(msgspec.Struct, frozen=True):
    """`of` is the benchmark, or another name for what has no benchmark; `reached` is None for what is only
    reported.
    """

    of: str
    what: str
    must: str
    measured: str
    reached: bool | None
    command: str
    date: str
    machine: str


def load(path: Path = FILE) -> list[Kept]:
    return msgspec.json.decode(path.read_bytes(), type=list[Kept])


def save(kept: Iterable[Kept], path: Path = FILE) -> None:
    lines = b",\n".join(msgspec.json.encode(each) for each in kept)
    path.write_bytes(b"[\n" + lines + b"\n]\n")


def worth_keeping(outcome: Outcome) -> bool:
    return not outcome.failed and bool(outcome.verdicts) and all(each.whole for each in outcome.verdicts)


def figures(of: str, verdicts: Iterable[Verdict], command: str, machine: Machine) -> list[Kept]:
    return [
        Kept(of, each.what, each.target, each.measured, each.reached, command, machine.date, machine.place())
        for each in verdicts
    ]


def replaced(kept: list[Kept], of: str, new: list[Kept]) -> list[Kept]:
    """These figures of that benchmark where it had some, else at the end."""
    at = next((index for index, each in enumerate(kept) if each.of == of), len(kept))
    return [*kept[:at], *new, *(each for each in kept[at:] if each.of != of)]
