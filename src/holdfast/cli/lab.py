"""`holdfast lab`: which experiments there are, run one, report what it found.

Exit code 0 if every trial is done and what is expected holds, 1 if not or if something is not installed, 2 if
the input is wrong.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.errors import ConfigError, Problem, Unavailable

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.lab.campaign import Tally
    from holdfast.lab.model import Experiment, Trial
    from holdfast.lab.store import Failure

RESULTS = Path("results")
PIPE_COLUMNS = 140
# What `make lab` installs besides Holdfast itself.
EXTRAS = ("pyspark", "pyarrow", "matplotlib", "pandas", "numpy")

lab = typer.Typer(
    help="Run the published experiments again on real processes, and more.",
    no_args_is_help=True,
    add_completion=False,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="An experiment, or the path of its .toml file.")]
Results = Annotated[Path, typer.Option(metavar="DIR", help="Where the results of experiments are.")]
QuickTwin = Annotated[bool, typer.Option("--quick", help="The twin of reduced size: under two minutes.")]


@lab.command("list")
def list_experiments() -> None:
    """Show the experiments that there are, and how long they take.

    \b
    holdfast lab list

    Exits with 0, or with 2 if an experiment's file is wrong.
    """
    from rich import box
    from rich.table import Table

    from holdfast.lab.experiments import find_experiments, folder, load_experiment

    found = find_experiments()
    if not found:
        raise Unavailable(f"there are no experiments in {folder()}: go to a clone of Holdfast")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "title", "as in"):
        table.add_column(column, overflow="fold")
    for column in ("trials", "time", "quick", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    problems: list[ConfigError] = []
    for name, path in found.items():
        try:
            table.add_row(name, *_row(load_experiment(path)))
        except ConfigError as error:
            problems.append(error)
    _console().print(table)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise typer.Exit(2)


def _row(experiment: Experiment) -> Iterator[str]:
    from holdfast.lab.generate import generate

    yield from (experiment.title, experiment.paper)
    for quick in (False, True):
        generated = generate(experiment, quick=quick)
        yield from (str(len(generated.trials)), _about(generated.seconds))


def _about(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=PIPE_COLUMNS)


@lab.command()
def run(
    name: Name,
    quick: QuickTwin = False,
    results: Results = RESULTS,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Run on this Spark cluster, one trial on a machine at a time."),
    ] = None,
    repetitions: Annotated[int | None, typer.Option(min=1, max=1000, help="Instead of the file's.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget earlier results of it.")] = False,
    only: Annotated[
        list[str], typer.Option(metavar="LABEL=VALUE", help="Only trials of this label; can be repeated.")
    ] = [],  # noqa: B006
    settings: Annotated[
        list[str], typer.Option("--set", metavar="PATH=VALUE", help="Another value in all trials.")
    ] = [],  # noqa: B006
) -> None:
    """Run the trials of an experiment that are not done yet.

    \b
    holdfast lab run frame-table4
    holdfast lab run frame-table4 --quick
    holdfast lab run frame-table4 --only configuration=FRAME --only topics=13525
    holdfast lab run frame-table4 --set warm_up=35s --repetitions 10

    What an interruption left is run the next time. Exits with 1 if a trial failed.
    """
    from holdfast.lab.campaign import run_campaign
    from holdfast.lab.generate import generate

    experiment = _experiment(name, quick, repetitions, settings)
    for dropped in generate(experiment).dropped:
        print(f"dropped {', '.join(dropped.labels.values())}: {dropped.why}", file=sys.stderr)
    with _extras():
        from holdfast.lab.run import run_trial

        chosen = _only(only)
        try:
            with _Bar() as bar:
                tally = run_campaign(
                    experiment, results, run_trial, progress=bar, fresh=fresh, only=chosen, master=master
                )
        except KeyboardInterrupt:
            print("stopped; the same command runs what is left", file=sys.stderr)
            raise typer.Exit(1) from None
    _say(results / experiment.folder, tally)
    if tally.failed:
        raise typer.Exit(1)


def _experiment(name: str, quick: bool, repetitions: int | None, settings: list[str]) -> Experiment:
    import msgspec

    from holdfast.lab.experiments import load_experiment, with_settings

    experiment = load_experiment(name)
    if quick:
        experiment = experiment.twin()
    if settings:
        pairs = (_pair(each, "--set", "measure=60s") for each in settings)
        experiment = with_settings(experiment, {path: _value(written) for path, written in pairs})
    if repetitions is not None:
        experiment = msgspec.structs.replace(experiment, repetitions=repetitions)
    return experiment


def _only(pairs: list[str]) -> dict[str, set[str]]:
    wanted: dict[str, set[str]] = {}
    for each in pairs:
        label, value = _pair(each, "--only", "topics=13525")
        wanted.setdefault(label, set()).add(value)
    return wanted


def _pair(written: str, option: str, example: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not (name and equals and value):
        message = f'"{written}" is not a name and a value; for example {option} {example}'
        raise ConfigError("holdfast lab run", [Problem(option, message)])
    return name.strip(), value.strip()


def _value(written: str) -> Any:
    """A value as a file writes it; text needs no quotes."""
    try:
        return tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        return written


def _say(folder: Path, tally: Tally) -> None:
    before = f", {tally.skipped} before" if tally.skipped else ""
    print(f"{tally.done} trials done{before}, {len(tally.failed)} failed: {folder}")
    for failure in tally.failed:
        labels = ", ".join(failure.labels.values())
        print(f"trial {failure.number} ({labels}) failed: {failure.error}", file=sys.stderr)
    if tally.failed:
        print("the same command runs them again", file=sys.stderr)


class _Bar:
    """Which trial it is, of how many, and how long the rest takes."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=None, left="")

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, trials: int, skipped: int, left_s: float) -> None:
        total = trials + skipped
        self._progress.update(self._task, total=total, completed=skipped, left=_left(left_s))

    def start(self, trial: Trial) -> None:
        labels = ", ".join(trial.labels.values())
        self._progress.update(self._task, description=f"trial {trial.number} {labels}")

    def end(self, trial: Trial, failure: Failure | None, left_s: float) -> None:
        console = self._progress.console
        if failure is not None:
            console.print(f"trial {trial.number} failed: {failure.error}", markup=False)
        elif not console.is_terminal:
            labels = ", ".join(trial.labels.values())
            console.print(f"trial {trial.number} done ({labels}), {_left(left_s)}", markup=False)
        self._progress.update(self._task, advance=1, left=_left(left_s))


def _left(seconds: float) -> str:
    return f"{_about(seconds)} left"


@lab.command()
def report(
    name: Name,
    results: Results = RESULTS,
    master: Annotated[str, typer.Option(metavar="URL", help="The Spark that analyses.")] = "local[*]",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and write no report.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the report goes.")] = None,
    quick: QuickTwin = False,
) -> None:
    """Analyse what an experiment recorded, and write it beside the published figures.

    \b
    holdfast lab report frame-table4

    The report goes into the folder of the results unless --out says another. Exits with 1 if something that
    the experiment expects does not hold.
    """
    import msgspec

    from holdfast.lab.campaign import read_record
    from holdfast.lab.expect import judge
    from holdfast.lab.experiments import load_experiment

    called = f"{Path(name).stem if name.endswith('.toml') else name}{'-quick' if quick else ''}"
    folder = results / called
    if read_record(folder) is None:
        option = " --quick" if quick else ""
        raise Unavailable(f"there are no results in {folder}: first holdfast lab run {name}{option}")
    with _extras():
        from holdfast.lab.analysis import analyse
        from holdfast.lab.report.page import write_report
        from holdfast.lab.report.results import as_json as document_of

        analysis = analyse(folder, master)
        verdicts = judge(load_experiment(name).expect, analysis)
        analysis = msgspec.structs.replace(analysis, verdicts=verdicts)
        if as_json:
            print(json.dumps(document_of(analysis), indent=2, ensure_ascii=False))
        else:
            print(f"the report is {write_report(analysis, out or folder / 'report')}")
            for each in verdicts:
                holds = "holds" if each.holds else "does not hold"
                print(f"{holds}: {each.what}: {each.found} ({each.expected})")
    if not all(each.holds for each in verdicts):
        raise typer.Exit(1)


@contextmanager
def _extras() -> Iterator[None]:
    """A library that only the lab needs may be missing: then say what installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        raise Unavailable(
            f"the lab needs {missing}, which is not installed: run make lab, or pip install 'holdfast[lab]'"
        ) from None
