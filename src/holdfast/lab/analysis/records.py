"""The records of all trials as one table of each kind, with the trial as a column.

Laws:
- a trial is complete and its files can be read, or it is named with the reason
- the trial is a partition of the table, not a value in each row: Spark takes it from folders `trial=N`, which
  hold links into the trials and are beside them, so that every executor that sees the results sees the links
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow
import pyarrow.parquet

from holdfast.errors import ConfigError, Problem
from holdfast.lab.analysis.found import FailedTrial
from holdfast.lab.model import Trial
from holdfast.lab.store import RECEIVED, SENT, TOPICS, Failure, Outcome, TrialFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = {"topics.parquet": TOPICS, "sent": SENT, "received": RECEIVED}
SQL_TYPES = {"int32": "int", "int64": "long", "bool": "boolean", "string": "string"}
# As many rows as are sorted in memory; few partitions for few rows, because each costs a task at every step.
PARTITION_ROWS = 2_000_000
PARTITIONS_MIN, PARTITIONS_MAX = 2, 1_000
NOT_RUN = "it has no outcome: it has not run, or was interrupted"


class _Experiment(msgspec.Struct, frozen=True):
    """What the analysis reads of experiment.json."""

    trials: list[Trial]


@dataclass(frozen=True)
class Recorded:
    """A complete trial: its files if it recorded messages, and how many rows they have."""

    trial: Trial
    outcome: Outcome
    folder: Path
    files: tuple[Path, ...] = ()
    rows: int = 0

    @property
    def flow(self) -> bool:
        return bool(self.files)


@dataclass(frozen=True)
class Tables:
    """TOPICS, SENT and RECEIVED of all trials, each with a column `trial`."""

    topics: DataFrame
    sent: DataFrame
    received: DataFrame


def read_experiment(results: Path) -> tuple[dict[str, Any], list[Trial]]:
    """experiment.json: the experiment, and the trials that it consists of."""
    path = results / "experiment.json"
    try:
        content = path.read_bytes()
        experiment = msgspec.json.decode(content, type=dict[str, Any])
        trials = msgspec.json.decode(content, type=_Experiment).trials
    except FileNotFoundError:
        problem = Problem("", "there are no results here; run the experiment first: holdfast lab run NAME")
    except msgspec.DecodeError as error:
        problem = Problem("", f"not the record of an experiment ({error}); run the experiment again")
    else:
        del experiment["trials"]
        return experiment, trials
    raise ConfigError(str(path), [problem])


def sort_out(results: Path, trials: Iterable[Trial]) -> tuple[list[Recorded], list[FailedTrial]]:
    """The trials that can be analysed, and the others."""
    complete, failed = [], []
    for trial in trials:
        found = _recorded(results, trial)
        if isinstance(found, Recorded):
            complete.append(found)
        else:
            failed.append(FailedTrial(number=trial.number, labels=trial.labels, error=found))
    return complete, failed


def _recorded(results: Path, trial: Trial) -> Recorded | str:
    folder = TrialFolder(results, trial.number)
    if not folder.complete:
        return _failure(folder.path)
    try:
        outcome = folder.outcome()
    except msgspec.DecodeError as error:
        return f"its outcome cannot be read: {error}"
    files, rows = _files(folder.path), 0
    for path in files:
        try:
            rows += pyarrow.parquet.read_metadata(path).num_rows
        except (pyarrow.ArrowInvalid, OSError) as error:
            return f"{path.relative_to(folder.path)} cannot be read: {error}"
    return Recorded(trial, outcome, folder.path, files, rows)


def _files(folder: Path) -> tuple[Path, ...]:
    topics = folder / "topics.parquet"
    found = sorted(path for kind in ("sent", "received") for path in (folder / kind).glob("*.parquet"))
    return (topics, *found) if topics.exists() else ()


def _failure(folder: Path) -> str:
    """What a trial that failed says of it."""
    try:
        return msgspec.json.decode((folder / "failed.json").read_bytes(), type=Failure).error
    except (OSError, msgspec.DecodeError):
        return NOT_RUN


@contextmanager
def tables(spark: SparkSession, results: Path, trials: list[Recorded]) -> Iterator[Tables]:
    """The records of these trials, for as long as the block lasts."""
    rows = sum(each.rows for each in trials)
    partitions = min(PARTITIONS_MAX, max(PARTITIONS_MIN, rows // PARTITION_ROWS))
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    links = Path(tempfile.mkdtemp(prefix="links-", dir=results.resolve()))
    try:
        for recorded in trials:
            for kind in KINDS:
                if (recorded.folder / kind).exists():
                    place = links / kind / f"trial={recorded.trial.number}"
                    place.mkdir(parents=True)
                    (place / kind).symlink_to((recorded.folder / kind).resolve())
        topics, sent, received = (_table(spark, links, kind) for kind in KINDS)
        yield Tables(topics, sent, received)
    finally:
        shutil.rmtree(links)


def _table(spark: SparkSession, links: Path, kind: str) -> DataFrame:
    (links / kind).mkdir(exist_ok=True)
    columns = {name: SQL_TYPES[type_name] for name, type_name in KINDS[kind].items()} | {"trial": "int"}
    schema = ", ".join(f"{name} {sql_type}" for name, sql_type in columns.items())
    reader = spark.read.schema(schema)
    return reader.parquet((links / kind).as_uri())
