"""`python -m benchmarks [names…] [--quick] [--json FILE] [--against holdfast,mosquitto,nats,amqtt]
[--before DIR]`"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.errors import Unavailable

from . import (
    analysis,
    client,
    crash,
    executing,
    executions,
    failover,
    growth,
    ingesting,
    instructions,
    kills,
    latency,
    memory,
    metrics,
    notifying,
    paho,
    periods,
    protection,
    reading,
    recording,
    stalls,
    suback,
    throughput,
    tls,
)
from .brokers import KINDS, NAMES, NotStarted, raise_file_limit
from .kept import FILE, figures, load, replaced, save, worth_keeping
from .load import Lost
from .measure import TurnFailed
from .report import SUMMARY_COLUMNS, Machine, Outcome, Table, Verdict, as_json
from .stage import Run
from .wires import Refused

BENCHMARKS = {
    "qos0": throughput.qos0,
    "stamped": throughput.stamped,
    "fanout": throughput.fanout,
    "qos1": throughput.qos1,
    "latency": latency.latency,
    "growth": growth.growth,
    "client": client.client,
    "memory": memory.memory,
    "soak": memory.soak,
    "crash": crash.crash,
    "failover": failover.failover,
    "stalls": stalls.stalls,
    "protection": protection.protection,
    "suback": suback.suback,
    "metrics": metrics.metrics,
    "paho": paho.paho,
    "recording": recording.recording,
    "notifying": notifying.notifying,
    "analysis": analysis.analysis,
    "reading": reading.reading,
    "kills": kills.kills,
    "ingesting": ingesting.ingesting,
    "executing": executing.executing,
    "periods": periods.periods,
    "executions": executions.executions,
    "tls": tls.tls,
    "instructions": instructions.instructions,
}
WIDTH_MIN = 120
EVERYBODY = ",".join(NAMES)


def contestants(against: str, console: Console) -> list[str]:
    """Those asked for that are installed; the others are named, not passed over."""
    asked = [name.strip() for name in against.split(",")]
    if unknown := [name for name in asked if name not in KINDS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(NAMES)}")
    present = [name for name in asked if KINDS[name].version() is not None]
    for name in asked:
        if name not in present:
            console.print(f"{name} is not installed here: left out", style="yellow")
    return present


def attempt(name: str, run: Run, console: Console) -> Outcome:
    """One benchmark; if a contestant fails in it, that is its verdict and the others still run."""
    try:
        return BENCHMARKS[name](run)
    except (NotStarted, Unavailable, TurnFailed, Lost, Refused) as error:
        console.print(f"{name} failed: {error}", style="red", markup=False, highlight=False)
        reason = str(error).strip().splitlines()[0]
        return Outcome([], [Verdict(name, "every contestant runs", f"failed: {reason}", False)], failed=True)


def command(name: str, against: str, before: Path | None) -> str:
    """What measures this again."""
    options = "" if against == EVERYBODY else f" --against {against}"
    return f"python -m benchmarks {name}{options}{' --before DIR' if before else ''}"


def keep(outcomes: dict[str, Outcome], commands: dict[str, str], machine: Machine, console: Console) -> None:
    kept = load()
    for name, outcome in outcomes.items():
        if worth_keeping(outcome):
            kept = replaced(kept, name, figures(name, outcome.verdicts, commands[name], machine))
            console.print(f"{name} is kept in {FILE}", highlight=False)
    save(kept)


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"which of {', '.join(BENCHMARKS)}; all if none")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="short turns: all within two minutes")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the raw turns here")] = None,
    against: Annotated[str, typer.Option(help="the contestants")] = EVERYBODY,
    before: Annotated[
        Path | None, typer.Option(help="a built tree for `instructions` to compare with")
    ] = None,
) -> None:
    """Measure Holdfast beside its peers and say which targets are reached.

    What a whole run measured is kept in docs/results/measured.json. `make pages` writes the page.
    """
    console = Console()
    console.width = max(console.width, WIDTH_MIN)
    chosen = names or list(BENCHMARKS)
    if unknown := [name for name in chosen if name not in BENCHMARKS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(BENCHMARKS)}")
    raise_file_limit()
    run = Run(contestants(against, console), quick, before)
    machine = Machine.here(run.names)
    console.print(f"{machine.date}, {machine.place()}", highlight=False)
    outcomes: dict[str, Outcome] = {}
    for name in chosen:
        begin = time.monotonic()
        outcomes[name] = attempt(name, run, console)
        for table in outcomes[name].tables:
            table.print(console)
        console.print(f"{name} took {time.monotonic() - begin:.0f} s\n", style="dim", highlight=False)
    verdicts = [verdict for outcome in outcomes.values() for verdict in outcome.verdicts]
    Table("summary", SUMMARY_COLUMNS, [verdict.cells() for verdict in verdicts]).print(console)
    if json_file:
        json_file.write_text(json.dumps(as_json(machine, outcomes), indent=1))
    if not quick:
        commands = {name: command(name, against, before) for name in chosen}
        keep(outcomes, commands, machine, console)
    raise typer.Exit(any(outcome.failed for outcome in outcomes.values()))


typer.run(main)
