"""The table of attacks in docs/security.md: a row for each, as it was last measured.

`python -m hostile` writes the rows of the attacks that it ran. One that could not be judged, since the
machine was busy, keeps the row that it had.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hostile.attacks import all_attacks
from hostile.measure import Result

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- attacks: written by make hostile -->\n", "<!-- end of attacks -->\n"
HEAD = (
    "| attack | what it does | p50, p99 before | p50, p99 under it | late | lost | "
    "memory: before, peak, after |\n"
    "| --- | --- | --- | --- | --- | --- | --- |\n"
)
UNKNOWN = "not measured yet"


def line(result: Result) -> str:
    quiet, under = result.quiet, result.attacked
    cells = (
        f"`{result.attack}`",
        all_attacks()[result.attack].says,
        f"{quiet.p50_ms:.1f}, {quiet.p99_ms:.1f} ms",
        f"{under.p50_ms:.1f}, {under.p99_ms:.1f} ms",
        f"{under.late - result.excused} of {under.sent}",
        str(under.lost),
        f"{result.before_mib:.0f}, {result.peak_mib:.0f}, {result.after_mib:.0f} MiB",
    )
    return f"| {' | '.join(cells)} |"


def rows(text: str) -> dict[str, str]:
    """Those that the page has, by the names of their attacks."""
    inside = text.partition(BEGIN)[2].partition(END)[0]
    return {each.split("`")[1]: each for each in inside.splitlines() if each.startswith("| `")}


def with_rows(text: str, results: Iterable[Result]) -> str:
    """The page with what these say, and a row for every attack in the order in which they are told."""
    known = rows(text) | {result.attack: line(result) for result in results}
    made = [
        known.get(name, f"| `{name}` | {each.says} | {UNKNOWN} | | | | |")
        for name, each in all_attacks().items()
    ]
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + HEAD + "\n".join(made) + "\n" + END + rest.partition(END)[2]
