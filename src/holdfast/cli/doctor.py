"""`holdfast doctor`: what this machine does to which contract.

Exit code 0 if nothing is in the way, 1 if a contract cannot be kept here, 2 if the input is wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.runtime.diagnosis import Finding

PIPE_COLUMNS = 160
MARKS = {"ok": "✓", "warning": "!", "broken": "✗"}


def doctor(
    contracts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge by the contracts and limits of this file.")
    ] = None,
    group: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also the group's timing, and its arbiter.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the journal is to be: fsync is measured there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Examine this machine: what is in the way of which contract, and what would help.

    \b
    holdfast doctor
    holdfast doctor --contracts plant.toml --group group.toml --data /var/lib/holdfast

    It looks at the clock, cores, memory, limits and kernel settings, Java and ZooKeeper, and
    measures timers, loopback and the disk for a few seconds. It changes nothing; one file of
    a few kilobytes is written and goes again.

    Exits with 0 if nothing is in the way (!  is worth a look), 1 if a contract cannot be kept
    here or the arbiter does not answer (✗), 2 if the input is wrong.
    """
    from holdfast.config import load
    from holdfast.contract.file import load_contracts
    from holdfast.contract.model import ContractBook
    from holdfast.replication.group import GroupConfig
    from holdfast.runtime.diagnosis import diagnose
    from holdfast.runtime.machine import examine

    book = ContractBook() if contracts is None else load_contracts(contracts)
    members = None if group is None else load(group, GroupConfig)
    machine = examine(data, "" if members is None else members.zookeeper)
    findings = diagnose(machine, book, members)
    if as_json:
        import msgspec

        document = {"machine": msgspec.to_builtins(machine), "findings": msgspec.to_builtins(findings)}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        print_findings(findings)
    if any(each.state == "broken" for each in findings):
        raise typer.Exit(1)


def print_findings(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "check", "found", "what it does", "contracts"):
        table.add_column(column, no_wrap=column in ("", "check"))
    for each in findings:
        names = ", ".join(each.contracts) or "-"
        table.add_row(MARKS[each.state], each.check, escape(each.found), escape(each.means), escape(names))
    console.print(table)
