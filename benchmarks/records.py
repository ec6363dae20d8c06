"""Records of an experiment that never ran, as large as a long one's.

The topics of FRAME's largest load, trials of a few configurations, a crash in the middle of each, one message
in a thousand lost.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy
import pyarrow
import pyarrow.parquet

from holdfast.contract.model import Deployment
from holdfast.lab.model import Category, Plan, Trial
from holdfast.lab.store import RECEIVED, SENT, TOPICS, Outcome, TrialFolder
from holdfast.units import MS, S

TRIALS = 18
CONFIGURATIONS = ("FRAME+", "FRAME", "FCFS")
LOST_ONE_IN = 1_000
LATENCY_NS = 2 * MS
BEGIN_NS = 1_700_000_000 * S
# Topics, period and deadline in ms, loss tolerance, retention.
CATEGORIES = (
    (10, 50, 0, 2), (10, 50, 3, 0), (4500, 100, 0, 1), (4500, 100, 3, 0), (4500, 100, -1, 0), (5, 500, 0, 1),
)  # fmt: skip

Columns = dict[str, numpy.ndarray]


def plan() -> Plan:
    return Plan(
        deployment=Deployment(
            failover_ns=50 * MS,
            publisher_to_broker_ns=0,
            broker_to_backup_ns=0,
            broker_to_subscriber_ns={"edge": 0},
        ),
        categories=tuple(
            Category(
                name=str(number),
                topics=(f"plant/{number}/+",),
                count=count,
                period_ns=period_ms * MS,
                deadline_ns=period_ms * MS,
                loss_tolerance=None if tolerance < 0 else tolerance,
                retention=retention,
            )
            for number, (count, period_ms, tolerance, retention) in enumerate(CATEGORIES)
        ),
    )


def topic_columns() -> Columns:
    counts = [count for count, *_ in CATEGORIES]
    repeated = {
        "category": [str(number) for number in range(len(CATEGORIES))],
        "period_ns": [each[1] * MS for each in CATEGORIES],
        "deadline_ns": [each[1] * MS for each in CATEGORIES],
        "loss_tolerance": [each[2] for each in CATEGORIES],
        "retention": [each[3] for each in CATEGORIES],
    }
    numbers = numpy.arange(sum(counts))
    names = numpy.array([f"plant/{number}" for number in numbers])
    return {"topic": numbers, "name": names} | {
        name: numpy.repeat(numpy.array(values), counts) for name, values in repeated.items()
    }


def write(path: Path, columns: dict[str, str], values: Columns) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        name: pyarrow.array(values[name], pyarrow.type_for_alias(kind)) for name, kind in columns.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), path)


def write_trial(results: Path, number: int, messages: int) -> int:
    """One trial's files; gives how many messages it has."""
    random = numpy.random.default_rng(number)
    topics = topic_columns()
    period_ns = topics["period_ns"]
    length_ns = int(messages * S / (S / period_ns).sum())
    counts = length_ns // period_ns
    topic = numpy.repeat(topics["topic"], counts)
    place = numpy.arange(len(topic)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
    phase_ns = random.integers(0, period_ns)
    created_ns = BEGIN_NS + place * numpy.repeat(period_ns, counts) + numpy.repeat(phase_ns, counts)
    latency_ns = (random.lognormal(0, 0.7, len(topic)) * LATENCY_NS).astype(numpy.int64)
    sent = {"topic": topic, "sequence": place, "created_ns": created_ns}
    received = sent | {"arrived_ns": created_ns + latency_ns, "duplicate": numpy.zeros(len(topic), bool)}
    arrived = random.integers(0, LOST_ONE_IN, len(topic)) > 0
    order = numpy.argsort(created_ns)
    arrival = numpy.argsort(received["arrived_ns"])
    arrival = arrival[arrived[arrival]]
    folder = TrialFolder(results, number).path
    write(folder / "topics.parquet", TOPICS, topics)
    write(folder / "sent" / "0.parquet", SENT, {name: values[order] for name, values in sent.items()})
    write(
        folder / "received" / "0.parquet", RECEIVED, {name: each[arrival] for name, each in received.items()}
    )
    outcome = Outcome(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + length_ns, fault_ns=BEGIN_NS + length_ns // 2)
    (folder / "outcome.json").write_bytes(msgspec.json.encode(outcome))
    return len(topic)


def write_experiment(results: Path, messages: int) -> int:
    """An experiment's results; gives how many messages all trials have."""
    trials = [
        Trial(
            experiment="benchmark",
            number=number,
            labels={"configuration": CONFIGURATIONS[number % len(CONFIGURATIONS)]},
            repetition=number // len(CONFIGURATIONS),
            seed=number,
            plan=plan(),
        )
        for number in range(1, TRIALS + 1)
    ]
    (results / "experiment.json").write_bytes(msgspec.json.encode({"name": "benchmark", "trials": trials}))
    return sum(write_trial(results, trial.number, messages // TRIALS) for trial in trials)
