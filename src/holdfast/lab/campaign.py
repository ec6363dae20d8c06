"""All trials of an experiment, one after another or on a cluster, and again where an earlier run stopped.

Laws:
- what is to be run is written down before anything runs
- a trial counts as done exactly if its outcome is there; whatever else is in its folder is taken away first
- a trial that fails leaves its error where its outcome would be, is run again next time, and stops no other
- results of two versions of an experiment never stand in one folder
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.errors import ConfigError, HoldfastError, Problem
from holdfast.lab.generate import Dropped, Generated, generate, seconds_of
from holdfast.lab.machine import Machine, source_commit, this_machine
from holdfast.lab.model import Experiment, Trial
from holdfast.lab.store import Failure, TrialFolder

RunTrial = Callable[[Trial, Path], None]
Only = dict[str, set[str]]


class Record(Experiment, frozen=True, kw_only=True):
    """experiment.json. `commits` has every commit that ran some of the trials, the latest last."""

    trials: tuple[Trial, ...]
    dropped: tuple[Dropped, ...]
    machine: Machine
    commit: str
    dirty: bool
    commits: tuple[str, ...]
    command: str


class Tally(msgspec.Struct, kw_only=True):
    """What came of a campaign; `skipped` were done before."""

    done: int = 0
    skipped: int = 0
    failed: list[Failure] = []


class Progress(Protocol):
    def begin(self, trials: int, skipped: int, left_s: float) -> None: ...

    def start(self, trial: Trial) -> None: ...

    def end(self, trial: Trial, failure: Failure | None, left_s: float) -> None: ...


class Silent:
    """Progress that nobody watches."""

    def begin(self, trials: int, skipped: int, left_s: float) -> None: ...

    def start(self, trial: Trial) -> None: ...

    def end(self, trial: Trial, failure: Failure | None, left_s: float) -> None: ...


class Pace:
    """How long the rest takes: as the trials so far took, or as their plans say before one is done."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.left_s = sum(seconds_of(trial.plan) for trial in trials)
        self._planned_s = self._taken_s = 0.0

    def took(self, trial: Trial, seconds: float) -> float:
        self._planned_s += seconds_of(trial.plan)
        self._taken_s += seconds
        self.left_s -= seconds_of(trial.plan)
        return self.left_s * self._taken_s / self._planned_s


def run_campaign(
    experiment: Experiment,
    results: Path,
    run_trial: RunTrial,
    *,
    quick: bool = False,
    progress: Progress | None = None,
    fresh: bool = False,
    only: Only | None = None,
    master: str | None = None,
) -> Tally:
    """Run what is not done yet: here, by `run_trial`, or on the Spark cluster of that master.

    `only` keeps the trials whose labels have one of these values; `fresh` forgets earlier results.
    """
    if quick:
        experiment = experiment.twin()
    work = _prepare(experiment, results / experiment.folder, fresh, only or {}, progress or Silent())
    work.progress.begin(len(work.todo), work.tally.skipped, work.pace.left_s)
    if master is None:
        _run_here(work, run_trial)
    elif work.todo:
        _run_on_cluster(work, master)
    return work.tally


@dataclass
class _Work:
    folder: Path
    todo: list[Trial]
    tally: Tally
    pace: Pace
    progress: Progress

    def count(self, trial: Trial, failure: Failure | None, took_s: float) -> None:
        if failure is None:
            self.tally.done += 1
        else:
            self.tally.failed.append(failure)
        self.progress.end(trial, failure, self.pace.took(trial, took_s))


def _prepare(experiment: Experiment, folder: Path, fresh: bool, only: Only, progress: Progress) -> _Work:
    """Write down what is to be run, and find out what is left of it."""
    generated = generate(experiment)
    wanted = [trial for trial in generated.trials if _wanted(trial, only)]
    _check_only(experiment, only, wanted, generated.dropped)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    earlier = read_record(folder)
    if earlier is not None:
        _check_same(earlier, experiment, folder)
        # Fewer repetitions than before leave the further ones in the folder, so they stay in the record.
        repetitions = max(experiment.repetitions, earlier.repetitions)
        experiment = msgspec.structs.replace(experiment, repetitions=repetitions)
        generated = generate(experiment)
    _write_record(folder, experiment, generated, earlier)
    todo = [trial for trial in wanted if not TrialFolder(folder, trial.number).complete]
    return _Work(folder, todo, Tally(skipped=len(wanted) - len(todo)), Pace(todo), progress)


def _run_here(work: _Work, run_trial: RunTrial) -> None:
    for trial in work.todo:
        work.progress.start(trial)
        began_s = time.monotonic()
        failure = _attempt(trial, work.folder, run_trial)
        work.count(trial, failure, time.monotonic() - began_s)


def _run_on_cluster(work: _Work, master: str) -> None:
    from holdfast.lab.cluster import run_on_cluster

    before_s = time.monotonic()
    told: set[int] = set()

    def done(trial: Trial) -> None:
        nonlocal before_s
        now_s = time.monotonic()
        told.add(trial.number)
        work.count(trial, _failure_of(trial, work.folder), now_s - before_s)
        before_s = now_s

    for trial in work.todo:
        _clear(trial, work.folder)
    run_on_cluster(work.todo, work.folder, master, done=done)
    for trial in work.todo:
        if trial.number not in told:
            done(trial)


# -- one trial -----------------------------------------------------------------------------------------------


def _attempt(trial: Trial, results: Path, run_trial: RunTrial) -> Failure | None:
    folder = _clear(trial, results)
    try:
        run_trial(trial, folder)
    except Exception as error:
        return _fail(trial, folder, error)
    return _failure_of(trial, results)


def _clear(trial: Trial, results: Path) -> Path:
    folder = TrialFolder(results, trial.number).path
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _fail(trial: Trial, folder: Path, error: Exception) -> Failure:
    failure = Failure.of(trial, error)
    _write(folder / "failed.json", failure)
    return failure


def _failure_of(trial: Trial, results: Path) -> Failure | None:
    """What the trial left where its outcome should be."""
    folder = TrialFolder(results, trial.number)
    if folder.complete:
        return None
    try:
        return msgspec.json.decode((folder.path / "failed.json").read_bytes(), type=Failure)
    except (OSError, msgspec.MsgspecError):
        folder.path.mkdir(parents=True, exist_ok=True)
        return _fail(trial, folder.path, HoldfastError("it ended without an outcome, and without an error"))


# -- which trials --------------------------------------------------------------------------------------------


def _wanted(trial: Trial, only: Only) -> bool:
    return all(trial.labels.get(name) in labels for name, labels in only.items())


def _check_only(
    experiment: Experiment, only: Only, wanted: Sequence[Trial], dropped: Sequence[Dropped]
) -> None:
    problems = []
    known = {vary.name: [each.label for each in vary.options] for vary in experiment.vary}
    for name, labels in only.items():
        if name not in known:
            problems.append(Problem(name, f"does not vary; {', '.join(known) or 'nothing'} does"))
            continue
        for label in sorted(labels - set(known[name])):
            problems.append(Problem(name, f'there is no "{label}"; there are {", ".join(known[name])}'))
    if not wanted and not problems:
        said = (f"{', '.join(each.labels.values())}: {each.why}" for each in dropped)
        problems += [Problem("", f"there is no trial to run; dropped: {each}") for each in said]
    if problems:
        raise ConfigError(experiment.name, problems)


# -- the record ----------------------------------------------------------------------------------------------


def read_record(folder: Path) -> Record | None:
    """experiment.json of a results folder, if there is one."""
    path = folder / "experiment.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ConfigError) as error:
        message = f"cannot be read ({error}): start again with --fresh, or choose another --results"
        raise ConfigError(str(path), [Problem("", message)]) from None


def _check_same(earlier: Experiment, now: Experiment, folder: Path) -> None:
    """More or fewer repetitions are the same experiment; anything else is another."""
    before, after = _plain(earlier), _plain(now)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    if changed:
        message = (
            f"the experiment has changed since these results ({', '.join(changed)}): "
            "start again with --fresh, or choose another --results"
        )
        raise ConfigError(str(folder), [Problem("", message)])


def _plain(experiment: Experiment) -> dict[str, Any]:
    """By name, what decides about the trials; a title or a smaller twin does not."""
    shown: dict[str, Any] = msgspec.to_builtins(experiment)
    return {"seed": shown["seed"], "vary": shown["vary"], **shown["plan"]}


def _write_record(folder: Path, experiment: Experiment, generated: Generated, earlier: Record | None) -> None:
    commit, dirty = source_commit()
    commits = [each for each in (earlier.commits if earlier else ()) if each != commit]
    record = Record(
        **{name: getattr(experiment, name) for name in experiment.__struct_fields__},
        trials=generated.trials,
        dropped=generated.dropped,
        machine=this_machine(),
        commit=commit,
        dirty=dirty or (earlier is not None and earlier.dirty),
        commits=(*commits, commit),
        command=shlex.join(["holdfast", *sys.argv[1:]]),
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "experiment.json", record)


def _write(path: Path, content: object) -> None:
    """Whole or not at all, so that an interruption leaves nothing that cannot be read."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    os.replace(part, path)
