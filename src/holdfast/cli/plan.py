"""`holdfast plan`: what becomes of every contract of a file, as a table or as JSON.

Exit code 0 if every contract is admitted, 1 if one is refused, 2 if the file is wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.mqtt_options import Authority, Certificate, Key, Tls, tls_context
from holdfast.units import format_duration, ms_of

if TYPE_CHECKING:
    from ssl import SSLContext

    from holdfast.contract.admission import Admission
    from holdfast.contract.measured import Comparison
    from holdfast.contract.model import Contract, ContractBook
    from holdfast.contract.plan import Plan

PIPE_COLUMNS = 160


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The contract file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Warn where this running group measured more."),
    ] = None,
    tls: Tls = False,
    authority: Authority = None,
    certificate: Certificate = None,
    key: Key = None,
) -> None:
    """Check a contract file: what can be promised, and at what cost.

    \b
    holdfast plan plant.toml
    holdfast plan plant.toml --against 127.0.0.1:1883

    D_d and D_r are how long after its arrival a message must be dispatched
    and copied to the backup. replicated_fraction is the share of topics
    (each contract weighs its count) that are replicated. What the table
    "deployment" of the file does not say is assumed, and said below the table.

    Exits with 1 if a contract is refused, or would be under the figures that
    a running group measured, with 2 if the file is wrong.
    """
    from holdfast.contract.file import load_with_assumed
    from holdfast.contract.plan import make_plan

    book, assumed = load_with_assumed(file)
    result = make_plan(book)
    comparison: Comparison | None = None
    waits: list[str] = []
    if against is not None:
        context = tls_context(against, tls, authority, certificate, key)
        comparison, waits = compare_with(against, context, book, result)
    if as_json:
        document = as_document(book, result, assumed)
        if comparison is not None:
            document["warnings"] = comparison.warnings()
            document["in_force"] = waits
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        print_table(book, result)
        if assumed:
            said = ", ".join(f"{key} = {value}" for key, value in assumed.items())
            typer.echo(f"assumed, since [deployment] does not say it: {said}")
        if comparison is not None:
            typer.echo("\n".join(waits))
            print_comparison(comparison)
    if not result.admitted or (comparison is not None and comparison.refused):
        raise typer.Exit(1)


def compare_with(
    address: str, tls: SSLContext | None, book: ContractBook, plan: Plan
) -> tuple[Comparison, list[str]]:
    from holdfast.cli.measuring import read_measured
    from holdfast.contract.measured import compare, in_force

    measured = read_measured(address, tls)
    return compare(book, plan, measured), in_force(book, measured)


def print_comparison(comparison: Comparison) -> None:
    for line in comparison.warnings():
        typer.echo(f"warning: {line}", err=True)
    if not comparison.excesses:
        typer.echo("the group measured nothing longer than is configured")


def as_document(book: ContractBook, plan: Plan, assumed: dict[str, str]) -> dict[str, Any]:
    """The plan as plain data; infinite is null."""
    return {
        "admitted": plan.admitted,
        "assumed": assumed,
        "contracts": [_contract_document(contract, admission) for contract, admission in plan.admissions],
        "default": _contract_document(book.default, plan.default),
        "order": plan.order,
        "order_groups": [
            {"deadline_ms": ms_of(value_ns), "names": list(names)} for value_ns, names in plan.groups
        ],
        "replicated_fraction": plan.replicated_fraction,
        "utilisation": plan.load.utilisation,
        "utilisation_max": plan.load.share,
        "topics": sum(contract.count for contract in book.contracts),
    }


def _contract_document(contract: Contract, admission: Admission) -> dict[str, Any]:
    replication_ns = admission.replication_deadline_ns
    return {
        "name": contract.name,
        "dispatch_deadline_ms": ms_of(admission.dispatch_deadline_ns),
        "replication_deadline_ms": None if replication_ns is None else ms_of(replication_ns),
        "admitted": admission.admitted,
        "replicate": admission.replicate,
        "retention_min": admission.retention_min,
        "reason": admission.reason,
    }


def print_table(book: ContractBook, plan: Plan) -> None:
    """The plan for people."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("contract", "topics"):
        table.add_column(column, overflow="fold")
    for column in ("T", "D", "L", "N"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("to", no_wrap=True)
    for column in ("D_d", "D_r"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("replicate", "admitted"):
        table.add_column(column, no_wrap=True)
    table.add_column("why", overflow="fold", ratio=1)
    for contract, admission in (*plan.admissions, (book.default, plan.default)):
        style = "" if admission.admitted else "bold red"
        table.add_row(*(Text(cell) for cell in _row(contract, admission)), style=style)

    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS)
    console.print(table)
    console.print(Text(summary(plan), style="green" if plan.admitted else "bold red"))
    sys.stdout.flush()


def _row(contract: Contract, admission: Admission) -> tuple[str, ...]:
    expected = f"{contract.count} × " if contract.count > 1 else ""
    return (
        contract.name,
        expected + ", ".join(contract.topics),
        _or_infinite(contract.period_ns),
        format_duration(contract.deadline_ns),
        "∞" if contract.loss_tolerance is None else str(contract.loss_tolerance),
        str(contract.retention),
        contract.destination,
        format_duration(admission.dispatch_deadline_ns),
        _or_infinite(admission.replication_deadline_ns),
        "yes" if admission.replicate else "no",
        "yes" if admission.admitted else "NO",
        admission.reason,
    )


def _or_infinite(ns: int | None) -> str:
    return "∞" if ns is None else format_duration(ns)


def summary(plan: Plan) -> str:
    """One line: how many contracts are kept, how much is replicated, how much of a core it takes."""
    answers = [plan.default, *(admission for _, admission in plan.admissions)]
    refused = sum(not admission.admitted for admission in answers)
    admitted = sum(admission.admitted for _, admission in plan.admissions)
    verdict = f"{refused} REFUSED, " if refused else ""
    return (
        f"{verdict}{admitted} of {len(plan.admissions)} contracts admitted; "
        f"{plan.replicated_fraction:.1%} of topics replicated; "
        f"{plan.load.utilisation:.1%} of a core needed, {plan.load.share:.1%} may be used"
    )
