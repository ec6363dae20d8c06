"""Draws the state tables of a member and of a client into docs/failover.md.

`python tools/draw_tables.py` writes what stands between the marks; `--check` says whether it would change.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from holdfast.endpoint import failover
from holdfast.replication import roles

PAGE = Path(__file__).parents[1] / "docs" / "failover.md"
MARKED = re.compile(r"(<!-- drawn: (\S+) -->\n).*?(<!-- /drawn -->)", re.DOTALL)

AGAIN = "run .venv/bin/python tools/draw_tables.py"

Before = TypeVar("Before", bound=Enum)
Input = TypeVar("Input", bound=Enum)


def spoken(each: Enum) -> str:
    return each.name.lower().replace("_", " ")


def diagram(
    table: Mapping[tuple[Before, Input], tuple[Enum, Enum]], first: Enum, still: Enum | None = None
) -> str:
    """A state diagram; what neither moves nor does anything (`still`) is left out."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.name.lower()}"]
    for (before, event), (action, after) in table.items():
        if action is not still:
            way = f"{before.name.lower()} --> {after.name.lower()}"
            lines.append(f"    {way}: {spoken(event)} / {spoken(action)}")
    return "\n".join([*lines, "```"])


def legend(title: str, names: type[Enum], leave_out: Enum | None = None) -> str:
    lines = [f"| {title} | |", "| --- | --- |"]
    lines += [f"| {spoken(each)} | {each.value} |" for each in names if each is not leave_out]
    return "\n".join(lines)


def member_drawing() -> str:
    return "\n\n".join(
        [
            diagram(roles.TABLE, roles.Role.JOINING),
            legend("what happens", roles.Happening),
            legend("what it does then", roles.Action),
        ]
    )


def client_drawing() -> str:
    stay = failover.Action.STAY
    return "\n\n".join(
        [
            diagram(failover.TABLE, failover.State.SEEKING, stay),
            legend("what a client is", failover.State),
            legend("what it does then", failover.Action, stay),
        ]
    )


DRAWINGS: dict[str, Callable[[], str]] = {"member": member_drawing, "client": client_drawing}


def drawn(page: str) -> str:
    """The page with the drawings that the tables give now."""
    return MARKED.sub(lambda found: f"{found[1]}{DRAWINGS[found[2]]()}\n{found[3]}", page)


def main(arguments: list[str]) -> int:
    page = PAGE.read_text()
    now = drawn(page)
    if now == page:
        return 0
    if arguments == ["--check"]:
        print(f"{PAGE.name} shows other tables than the code has: {AGAIN}", file=sys.stderr)
        return 1
    PAGE.write_text(now)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
