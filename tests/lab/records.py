"""Results of an experiment that never ran: records as trials write them, made from lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow
import pyarrow.parquet

from holdfast.contract.model import Deployment
from holdfast.lab.model import Category, Plan, Trial
from holdfast.lab.store import RECEIVED, SENT, TOPICS, Outcome, TrialFolder
from holdfast.units import MS

BEGIN_NS = 1_700_000_000_000_000_000
END_NS = BEGIN_NS + 1_000 * MS
PERIOD_NS = 50 * MS


@dataclass
class Topic:
    """A topic's messages: (sequence, created_ns) if sent, (sequence, created_ns, arrived_ns) if received."""

    category: str = "0"
    deadline_ns: int = 50 * MS
    loss_tolerance: int = 0
    sent: list[tuple[int, int]] = field(default_factory=list)
    received: list[tuple[int, int, int]] = field(default_factory=list)

    @classmethod
    def steady(
        cls, latencies: Sequence[int | None], first: int = 100, begin_ns: int = BEGIN_NS, **fields: object
    ) -> Topic:
        """One message a period, each with its latency in ns, or lost if that is None."""
        topic = cls(**fields)  # type: ignore[arg-type]
        for place, latency_ns in enumerate(latencies):
            sequence, created_ns = first + place, begin_ns + place * PERIOD_NS
            topic.sent.append((sequence, created_ns))
            if latency_ns is not None:
                topic.received.append((sequence, created_ns, created_ns + latency_ns))
        return topic


def write_table(path: Path, columns: dict[str, str], rows: Sequence[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in columns.items()])
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    pyarrow.parquet.write_table(pyarrow.table([list(each) for each in values], schema=schema), path)


def write_trial(results: Path, number: int, topics: Sequence[Topic], outcome: Outcome | None = None) -> None:
    """The files of a complete trial; what was received is in two files, in the order of arrival."""
    folder = TrialFolder(results, number).path
    numbered = list(enumerate(topics))
    write_table(
        folder / "topics.parquet",
        TOPICS,
        [
            (topic, f"plant/{topic}", each.category, PERIOD_NS, each.deadline_ns, each.loss_tolerance, 0)
            for topic, each in numbered
        ],
    )
    write_table(
        folder / "sent/0.parquet", SENT, [(topic, *row) for topic, each in numbered for row in each.sent]
    )
    for part in range(2):
        arrivals = [(topic, *row) for topic, each in numbered if topic % 2 == part for row in each.received]
        rows = [(*row, False) for row in sorted(arrivals, key=lambda row: row[3])]
        write_table(folder / f"received/{part}.parquet", RECEIVED, rows)
    outcome = outcome or Outcome(begin_ns=BEGIN_NS, end_ns=END_NS)
    (folder / "outcome.json").write_bytes(msgspec.json.encode(outcome))


def plan(topics: int = 1) -> Plan:
    category = Category(
        name="0",
        topics=("plant/+",),
        count=topics,
        deadline_ns=50 * MS,
        loss_tolerance=0,
        period_ns=PERIOD_NS,
    )
    deployment = Deployment(
        failover_ns=50 * MS,
        publisher_to_broker_ns=0,
        broker_to_backup_ns=0,
        broker_to_subscriber_ns={"edge": 0},
    )
    return Plan(deployment=deployment, categories=(category,))


def trial(number: int, labels: dict[str, str] | None = None, repetition: int = 1, topics: int = 1) -> Trial:
    return Trial(
        experiment="made",
        number=number,
        labels=labels or {},
        repetition=repetition,
        seed=number,
        plan=plan(topics),
    )


def write_experiment(results: Path, trials: Sequence[Trial]) -> None:
    results.mkdir(parents=True, exist_ok=True)
    content = {"name": "made", "title": "Made up", "trials": trials}
    (results / "experiment.json").write_bytes(msgspec.json.encode(content))
