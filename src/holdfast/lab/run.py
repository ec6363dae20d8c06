"""One trial, from its plan to its records and its outcome.

Laws:
- a trial is complete when it has an outcome, which is written last; what an unfinished one left is removed
- nothing that a trial started outlives it
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.lab.failover import failover
from holdfast.lab.flow import flow
from holdfast.lab.load.files import schema_of, write_tables
from holdfast.lab.load.jobs import topics_of
from holdfast.lab.model import Plan, Trial
from holdfast.lab.store import TOPICS, Outcome
from holdfast.lab.subscribe import subscribe

UNLIMITED = -1
NO_PERIOD = 0

SCENARIOS: dict[str, Callable[[Trial, Path], Outcome]] = {
    "flow": flow,
    "subscribe": subscribe,
    "failover": failover,
}


def run_trial(trial: Trial, folder: Path) -> None:
    """Leaves everything in the folder; whatever goes wrong is raised, and then there is no outcome."""
    for name in ("sent", "received"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "outcome.json").unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "trial.json", msgspec.json.encode(trial))
    write_topics(folder / "topics.parquet", trial.plan)
    outcome = SCENARIOS[trial.plan.scenario](trial, folder)
    write_whole(folder / "outcome.json", msgspec.json.encode(outcome))


def write_whole(path: Path, content: bytes) -> None:
    """Whoever sees the file sees all of it."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


def write_topics(path: Path, plan: Plan) -> None:
    topics = list(topics_of(plan))
    columns = {
        "topic": [each.number for each in topics],
        "name": [each.name for each in topics],
        "category": [each.category.name for each in topics],
        "period_ns": [each.category.period_ns or NO_PERIOD for each in topics],
        "deadline_ns": [each.category.deadline_ns for each in topics],
        "loss_tolerance": [
            UNLIMITED if each.category.loss_tolerance is None else each.category.loss_tolerance
            for each in topics
        ],
        "retention": [each.category.retention for each in topics],
    }
    schema = schema_of(TOPICS)
    write_tables(path, schema, [pa.table(columns, schema=schema)])
