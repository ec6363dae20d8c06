"""`holdfast channel`: which channels there are and how they do, run one now, see how Spark runs it.

Nothing here changes anything: `run-once` executes and commits nothing. Exit code 0 if it is done, 1 if
something is not there or the query fails, 2 if the input is wrong.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.errors import ConfigError, Problem
from holdfast.units import S, format_duration

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.pipeline.channels.trial import Trial
    from holdfast.pipeline.declared import Channel, Pipeline
    from holdfast.pipeline.results import Results

PIPE_COLUMNS = 140
PIPELINE = Path("pipeline.toml")

channel = typer.Typer(
    help="Standing queries over datasets: which there are, and how they do.",
    no_args_is_help=True,
    add_completion=False,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A channel of the pipeline file.")]
File = Annotated[Path, typer.Option("--pipeline", metavar="FILE", help="The pipeline file.")]
Subscription = Annotated[
    list[str],
    typer.Option(
        "--subscription", metavar="VALUES", help="As in the topic, alice or 12/north; can be repeated."
    ),
]


@channel.command("list")
def list_channels(pipeline: File = PIPELINE) -> None:
    """Show the channels, and what their last executions did.

    \b
    holdfast channel list --pipeline city.toml

    Exits with 0, or with 2 if the input is wrong.
    """
    from rich import box
    from rich.table import Table

    from holdfast.pipeline.declared import load_pipeline

    declared = load_pipeline(pipeline)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "period", "parameters", "new"):
        table.add_column(column, overflow="fold")
    for column in ("executions", "last", "took", "rows", "behind"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("last failure", overflow="fold")
    with _results(declared) as results:
        for each in declared.channels:
            table.add_row(*_row(each, results, time.time_ns()))
    _console().print(table)


def _row(each: Channel, results: Results | None, now_ns: int) -> Iterator[str]:
    parameters = ", ".join(f"{name} {kind}" for name, kind in each.parameters.items())
    yield from (each.name, format_duration(each.period_ns), parameters or "–", ", ".join(each.new) or "–")
    last = results.executions(each.name, 1) if results is not None else []
    if results is None or not last:
        yield from ("0", "never", "–", "–", "–", "–")
        return
    execution, failure = last[0], results.failure(each.name)
    waiting = len(results.undelivered(each.name))
    yield from (
        str(execution.number),
        f"{_ago(now_ns - execution.started_ns)} ago",
        format_duration((execution.finished_ns - execution.started_ns) // 1_000_000 * 1_000_000),
        str(execution.rows),
        f"{waiting} to deliver" if waiting else "–",
    )
    if failure is None:
        yield "–"
    else:
        again = f", {failure.in_a_row} in a row" if failure.in_a_row else ", works again"
        yield f"{_ago(now_ns - failure.at_ns)} ago{again}: {failure.reason}"


def _ago(ns: int) -> str:
    return format_duration(max(0, ns) // S * S) if ns >= S else "0s"


@channel.command()
def show(name: Name, pipeline: File = PIPELINE) -> None:
    """Show how a channel is declared, its query, and its last executions.

    \b
    holdfast channel show emergencies_near_me --pipeline city.toml

    Exits with 0, or with 2 if the input is wrong.
    """
    from holdfast.mqtt.channels import channel_topic
    from holdfast.pipeline.channels.queries import read_queries
    from holdfast.pipeline.declared import load_pipeline

    declared = load_pipeline(pipeline)
    each = _find(declared, name, pipeline)
    query = read_queries([each], pipeline)[name]
    levels = "/".join(f"<{column}>" for column in each.parameters)
    print(f"name        {each.name}")
    print(f"period      {format_duration(each.period_ns)}")
    print(f"time limit  {format_duration(each.time_limit_ns)}")
    print(f"retention   {format_duration(each.retention_ns)}")
    print(f"parameters  {', '.join(f'{key} {kind}' for key, kind in each.parameters.items()) or 'none'}")
    print(f"subscribe   {channel_topic(each.name, levels)}")
    print(f"new         {', '.join(each.new) or 'nothing: it looks at whole datasets every period'}")
    print(f"query       {query.file or pipeline}{f', line {query.line}' if query.line else ''}\n")
    print(query.text.strip("\n"))
    with _results(declared) as results:
        for execution in results.executions(name, 5) if results is not None else []:
            took = format_duration((execution.finished_ns - execution.started_ns) // 1_000_000 * 1_000_000)
            covers = f"versions {execution.after} to {execution.upto}"
            print(f"\nexecution {execution.number}: {execution.rows} rows in {took}, {covers}", end="")
        print()


@channel.command("run-once")
def run_once(name: Name, subscription: Subscription = [], pipeline: File = PIPELINE) -> None:  # noqa: B006
    """Execute a channel over everything that is there, and print the notifications; nothing is kept.

    \b
    holdfast channel run-once emergencies_near_me --subscription alice --subscription bob

    Exits with 1 if the query fails or Spark is not there, with 2 if the input is wrong.
    """
    with _trial(name, subscription, pipeline) as trial:
        for topic, payload in trial.run():
            print(f"{topic} {json.dumps(json.loads(payload), ensure_ascii=False)}")


@channel.command()
def explain(name: Name, subscription: Subscription = [], pipeline: File = PIPELINE) -> None:  # noqa: B006
    """Show how Spark would run a channel over everything that is there, and how much that is.

    \b
    holdfast channel explain emergencies_near_me --subscription alice

    Exits with 1 if the query fails or Spark is not there, with 2 if the input is wrong.
    """
    with _trial(name, subscription, pipeline) as trial:
        for relation, rows in trial.sizes():
            print(f"{relation}: {rows:,} rows")
        print()
        print(trial.plan())


@contextmanager
def _trial(name: str, subscriptions: list[str], pipeline: Path) -> Iterator[Trial]:
    from holdfast.pipeline.channels.trial import opened
    from holdfast.pipeline.declared import load_pipeline

    declared = load_pipeline(pipeline)
    with opened(declared, _find(declared, name, pipeline), subscriptions, pipeline) as trial:
        yield trial


def _find(declared: Pipeline, name: str, pipeline: Path) -> Channel:
    known = {each.name: each for each in declared.channels}
    if name not in known:
        listed = ", ".join(known) or "none"
        raise ConfigError(str(pipeline), [Problem("", f'there is no channel "{name}"; declared: {listed}')])
    return known[name]


@contextmanager
def _results(declared: Pipeline) -> Iterator[Results | None]:
    """What is kept of executions; None before the first."""
    from holdfast.pipeline.layout import Layout
    from holdfast.pipeline.results import Results

    layout = Layout(declared.data)
    if not layout.executions.exists():
        yield None
        return
    results = Results(layout)
    try:
        yield results
    finally:
        results.close()


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=PIPE_COLUMNS)
