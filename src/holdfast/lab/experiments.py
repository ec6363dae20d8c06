"""Experiments are TOML files: where they are, and what they say.

Laws:
- a file is a plan of a trial, and beside it what varies, how often, and what makes its twin of reduced size
- everything that is wrong with a file is said at once, each with the path to it
- an experiment is called as its file is
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from holdfast.config import convert, parse, read
from holdfast.errors import ConfigError, Problem
from holdfast.lab.model import REPETITIONS_MAX, Expect, Experiment, Plan, Quick, Vary
from holdfast.lab.paths import flatten, hint_at, missing_table, setting_problems, with_value
from holdfast.readers import INT_MAX, text, whole

FOLDER_VARIABLE = "HOLDFAST_EXPERIMENTS"
SOURCE_TREE = Path(__file__).parents[3]
PLAN_KEYS = tuple(field.encode_name for field in msgspec.structs.fields(Plan))


class _File(Plan, frozen=True, kw_only=True):
    title: Annotated[str, text(200, "Success for loss tolerance under a crash")]
    paper: Annotated[str, text(200, "FRAME, Table 4")]
    repetitions: Annotated[int, whole(1, REPETITIONS_MAX, 3)] = 1
    seed: Annotated[int, whole(0, INT_MAX, 1)] = 1
    vary: tuple[Vary, ...] = ()
    quick: Quick = Quick()
    expect: tuple[Expect, ...] = ()


def folder() -> Path:
    """Where the experiments are: as the environment says, here, or beside the sources."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    here = Path("experiments")
    return here if here.is_dir() else SOURCE_TREE / "experiments"


def find_experiments() -> dict[str, Path]:
    """The files of all experiments by name."""
    return {path.stem: path for path in sorted(folder().glob("*.toml"))}


def load_experiment(name_or_path: str | Path) -> Experiment:
    """The experiment of that name, or in that file."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        found = find_experiments()
        if str(name_or_path) not in found:
            known = ", ".join(found) or "none"
            message = f"there is no experiment of that name in {folder()}; there are {known}"
            raise ConfigError(str(name_or_path), [Problem("", message)])
        path = found[str(name_or_path)]
    return read_experiment(parse(read(path), str(path)), path.stem, str(path))


def read_experiment(table: dict[str, Any], name: str, source: str) -> Experiment:
    """What a parsed file says."""
    problems = list(_connection_problems(table))
    try:
        file = convert(table, _File, source)
    except ConfigError as error:
        raise ConfigError(source, [*error.problems, *problems]) from None
    if problems:
        raise ConfigError(source, problems)
    return Experiment(
        name=name,
        title=file.title,
        paper=file.paper,
        repetitions=file.repetitions,
        seed=file.seed,
        vary=file.vary,
        quick=file.quick,
        expect=file.expect,
        plan={key: value for key, value in table.items() if key in PLAN_KEYS},
    )


def with_settings(experiment: Experiment, settings: dict[str, Any]) -> Experiment:
    """The experiment with other settings in all its trials; what varies stays as it is."""
    plan, problems = experiment.plan, []
    for path, value in settings.items():
        found = list(setting_problems(Plan, path, value, ""))
        if not found and (message := missing_table(plan, path)):
            found = [Problem(path, message)]
        problems += found
        plan = plan if found else with_value(plan, path, value)
    if not problems:
        varied = {path for vary in experiment.vary for each in vary.options for path in each.settings}
        problems = [Problem(path, "is set by what varies") for path in settings if _covered(path, varied)]
    if problems:
        raise ConfigError(experiment.name, problems)
    convert(plan, Plan, experiment.name)
    return msgspec.structs.replace(experiment, plan=plan)


# -- what is wrong between the parts of a file; a part that is wrong by itself is told of elsewhere ----------


def _connection_problems(table: dict[str, Any]) -> Iterator[Problem]:
    varies = [_table(each) for each in _list(table.get("vary"))]
    quick = _table(table.get("quick"))
    settings = [*_vary_settings(varies), *(("quick.set", path) for path in flatten(_table(quick.get("set"))))]
    for at, path in settings:
        if _leads_somewhere(path) and (message := missing_table(table, path)):
            yield Problem(at, f"{path}: {message}")
    varied = {path for _, path in _vary_settings(varies)}
    for path in flatten(_table(quick.get("set"))):
        if _covered(path, varied):
            yield Problem("quick.set", f"{path} varies: choose which labels to keep instead")
    yield from _twice_problems(varies)
    yield from _keep_problems(varies, quick.get("keep"))


def _vary_settings(varies: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for index, vary in enumerate(varies):
        for place, path in enumerate(_list(vary.get("paths"))):
            if isinstance(path, str):
                yield f"vary[{index}].paths[{place}]", path
        for place, choice in enumerate(_list(vary.get("choice"))):
            for path in flatten(_table(_table(choice).get("set"))):
                yield f"vary[{index}].choice[{place}].set", path


def _twice_problems(varies: list[dict[str, Any]]) -> Iterator[Problem]:
    names = [vary.get("name") for vary in varies]
    by_vary: list[set[str]] = []
    for index, vary in enumerate(varies):
        if vary.get("name") in names[:index]:
            yield Problem(f"vary[{index}].name", f'"{vary.get("name")}" varies already: choose another')
        mine = {path for _, path in _vary_settings([vary])}
        for earlier in by_vary:
            for path in sorted(each for each in mine if _covered(each, earlier)):
                yield Problem(f"vary[{index}]", f"{path} is set by an earlier [[vary]] too: one sets it")
        by_vary.append(mine)


def _keep_problems(varies: list[dict[str, Any]], keep: object) -> Iterator[Problem]:
    for name, labels in _table(keep).items():
        at = f"quick.keep.{name}"
        vary = next((each for each in varies if each.get("name") == name), None)
        if vary is None:
            known = ", ".join(str(each.get("name")) for each in varies) or "nothing"
            yield Problem(at, f"nothing of that name varies; there are {known}")
            continue
        try:
            known_labels = [each.label for each in convert(vary, Vary, at).options]
        except ConfigError:
            continue
        if not _list(labels):
            yield Problem(at, "keeps nothing; name at least one label")
        for label in _list(labels):
            if label not in known_labels:
                yield Problem(at, f'there is no "{label}"; there are {", ".join(known_labels)}')


def _leads_somewhere(path: str) -> bool:
    try:
        hint_at(Plan, path)
    except LookupError:
        return False
    return True


def _covered(path: str, others: Iterable[str]) -> bool:
    return any(f"{path}.".startswith(f"{each}.") or f"{each}.".startswith(f"{path}.") for each in others)


def _list(found: object) -> list[Any]:
    return found if isinstance(found, list) else []


def _table(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}
