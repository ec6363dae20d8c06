"""`holdfast dataset`: what datasets there are, what is in one, and SQL over all of them.

Exit code 0 if there is an answer, 1 if something is not there, 2 if the pipeline file or the query is wrong.
All of it may run while `holdfast pipeline` does.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.pipeline_options import Data
from holdfast.errors import ConfigError, Problem, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from holdfast.pipeline.datasets.manifest import File, Manifest
    from holdfast.pipeline.declared import Dataset as Declared
    from holdfast.pipeline.declared import Pipeline
    from holdfast.pipeline.layout import Layout

PIPE_COLUMNS = 140
CELL_CHARS_MAX = 80

dataset = typer.Typer(
    help="Look into the datasets of a pipeline.",
    no_args_is_help=True,
    add_completion=False,
)

PipelineFile = Annotated[Path, typer.Option("--pipeline", metavar="FILE", help="The pipeline file.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, for other programs.")]
PIPELINE = Path("pipeline.toml")


@dataset.command("list")
def list_datasets(pipeline: PipelineFile = PIPELINE, data: Data = None, as_json: AsJson = False) -> None:
    """Show the datasets: how many rows, in how many files, how old the newest row is.

    \b
    holdfast dataset list --pipeline city.toml

    Exits with 0, or with 2 if the input is wrong.
    """
    from holdfast.pipeline.datasets.asking import quarantined

    declared, layout, manifest = _open(pipeline, data)
    bad = quarantined(layout, manifest) if manifest else {}
    rows = [_summary(name, kind, manifest, bad) for name, kind in _kinds(declared)]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    heads = ("name", "kind", "rows", "files", "bytes", "version", "newest", "quarantined")
    _print_table(heads, [_shown(row) for row in rows], right=heads[2:])


@dataset.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset.")],
    pipeline: PipelineFile = PIPELINE,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show one dataset: its columns, how far it has read, its files.

    \b
    holdfast dataset show positions --pipeline city.toml

    Exits with 0, or with 2 if the input is wrong.
    """
    from holdfast.pipeline.datasets.views import QUARANTINE, QUARANTINE_COLUMNS, columns_of

    declared, layout, manifest = _open(pipeline, data)
    known = {each.name: each for each in declared.datasets}
    if name != QUARANTINE and name not in known:
        text = f'there is no dataset "{name}"; there are {", ".join([*known, QUARANTINE])}'
        raise ConfigError(str(pipeline), [Problem("", text)])
    found = known.get(name)
    columns = columns_of(found) if found else QUARANTINE_COLUMNS
    files = manifest.files(name) if manifest else []
    facts = _facts(found, layout, manifest)
    if as_json:
        told = [{"name": each.name, "rows": each.rows, "bytes": each.bytes} for each in files]
        print(json.dumps({"name": name, **facts, "columns": columns, "files": told}, indent=2))
        return
    for fact, value in facts.items():
        print(f"{fact:<10} {value}")
    _print_table(("column", "type"), list(columns.items()))
    heads = ("file", "rows", "bytes", "versions", "newest")
    _print_table(heads, [_file_row(each) for each in files], right=heads[1:])


@dataset.command()
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A query over datasets by their names.")],
    pipeline: PipelineFile = PIPELINE,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="All rows, a JSON object a line.")] = False,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="All rows into this Parquet file.")
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Rows in the terminal.")] = 100,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark's master.")] = "local[*]",
) -> None:
    """Ask the datasets, as they are now, in Spark's SQL.

    \b
    holdfast dataset query 'SELECT count(*) FROM positions' --pipeline city.toml

    Exits with 1 if the query fails or Spark is not there, with 2 if the input is wrong.
    """
    from holdfast.pipeline import spark
    from holdfast.pipeline.datasets.asking import Question
    from holdfast.pipeline.datasets.ingest import check_shapes
    from holdfast.pipeline.datasets.views import Datasets

    if as_json and parquet:
        raise ConfigError("query", [Problem("", "--json or --parquet, not both")])
    if parquet and not parquet.absolute().parent.is_dir():
        raise ConfigError("query", [Problem("--parquet", f"there is no folder {parquet.parent}")])
    declared, layout, manifest = _open(pipeline, data)
    if manifest is None:
        raise Unavailable(f"{layout.data} has no datasets yet: run `holdfast pipeline` first")
    check_shapes({each.name: each for each in declared.datasets}, manifest, str(pipeline))
    say("starting Spark …")
    session = spark.session(master, memory=declared.spark.memory, say=say)
    question = Question(Datasets(session, declared, layout, manifest, pipeline.parent), sql)
    say("asking …")
    if parquet:
        question.write(parquet)
        say(f"wrote {parquet}")
    elif as_json:
        for line in question.lines():
            print(line)
    else:
        found, more = question.first(rows)
        _print_table(
            question.columns, [[_cell(value) for value in row.values()] for row in found.to_pylist()]
        )
        if more:
            say(f"these are the first {rows} rows; --rows shows more, --json or --parquet gives all")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _open(pipeline: Path, data: Path | None) -> tuple[Pipeline, Layout, Manifest | None]:
    from holdfast.pipeline.datasets.manifest import Manifest
    from holdfast.pipeline.declared import Instead, load_pipeline
    from holdfast.pipeline.layout import Layout

    declared = load_pipeline(pipeline, Instead(data=data))
    layout = Layout(declared.data)
    return declared, layout, Manifest(layout.manifest) if layout.manifest.exists() else None


def _kinds(declared: Pipeline) -> list[tuple[str, str]]:
    return [*((each.name, each.kind) for each in declared.datasets), ("quarantine", "built in")]


def _summary(name: str, kind: str, manifest: Manifest | None, bad: dict[str, int]) -> dict[str, Any]:
    files = manifest.files(name) if manifest else []
    newest_ns = max((each.newest_ns for each in files), default=None)
    return {
        "name": name,
        "kind": kind,
        "rows": None if kind == "external" else sum(each.rows for each in files),
        # Rows that cover others of a keyed dataset are counted twice.
        "rows_exact": not (any(each.base for each in files) and any(not each.base for each in files)),
        "files": None if kind == "external" else len(files),
        "bytes": None if kind == "external" else sum(each.bytes for each in files),
        "version": max((each.last_version for each in files), default=None),
        "newest_age_s": None if newest_ns is None else round((time.time_ns() - newest_ns) / 1e9, 3),
        "quarantined": None if kind in ("external", "built in") else bad.get(name, 0),
    }


def _shown(row: dict[str, Any]) -> list[str]:
    rows = "" if row["rows"] is None else f"{'' if row['rows_exact'] else '≤ '}{row['rows']}"
    rest = (row["files"], row["bytes"], row["version"])
    return [
        row["name"],
        row["kind"],
        rows,
        *("" if each is None else str(each) for each in rest),
        "" if row["newest_age_s"] is None else f"{_age(row['newest_age_s'])} ago",
        "" if row["quarantined"] is None else str(row["quarantined"]),
    ]


def _facts(found: Declared | None, layout: Layout, manifest: Manifest | None) -> dict[str, Any]:
    from holdfast.pipeline.datasets.tending import QUARANTINE_RETENTION_NS
    from holdfast.pipeline.feed.place import open_feed
    from holdfast.units import format_duration

    if found is None:
        return {"kind": "built in", "retention": format_duration(QUARANTINE_RETENTION_NS)}
    if found.kind == "external":
        return {"kind": found.kind, "file": found.file}
    facts: dict[str, Any] = {"kind": found.kind, "feed": found.feed, "format": found.format}
    if found.key:
        facts["key"] = ", ".join(found.key)
    kept_ns = found.retention_ns
    facts["retention"] = "unlimited" if kept_ns is None else format_duration(kept_ns)
    facts["offset"] = (manifest.offset(found.name) if manifest else None) or 0
    facts["head"] = open_feed(layout.data, found.feed).head if layout.data.is_dir() else 0
    return facts


def _file_row(file: File) -> list[str]:
    age = f"{_age((time.time_ns() - file.newest_ns) / 1e9)} ago"
    return [file.name, str(file.rows), str(file.bytes), f"{file.first_version}–{file.last_version}", age]


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _cell(value: object) -> str:
    shown = "null" if value is None else str(value)
    return shown if len(shown) <= CELL_CHARS_MAX else shown[: CELL_CHARS_MAX - 1] + "…"


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(Text(head), justify="right" if head in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=PIPE_COLUMNS)
