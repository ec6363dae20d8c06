"""The answer of Spark beside the streaming verdict, on the same records.

Laws:
- the two share nothing but the records: here messages are taken one by one, in the order of their arrival
- topics are judged one by one, categories by their latencies
- at most ROWS_MAX records are taken: the lowest topics of every category in turn
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyspark.sql import Row
from pyspark.sql import functions as F

from holdfast.contract.verdict import Verdict
from holdfast.errors import ConfigError, Problem
from holdfast.lab.analysis import measure
from holdfast.lab.analysis.measured import CategoryMeasured
from holdfast.lab.analysis.records import Recorded, Tables, read_experiment, sort_out, tables
from holdfast.pipeline import spark

ROWS_MAX = 500_000
DIFFERENCES_MAX = 20
WINDOW = 1 << 14

Record = dict[str, Any]


@dataclass(frozen=True)
class _Judged:
    """What the streaming verdict says: of each topic by number, of each category by name."""

    topics: dict[int, Verdict]
    categories: dict[str, Verdict]


def check_against_verdict(results: Path, number: int, master: str) -> list[str]:
    trials = [trial for trial in read_experiment(results)[1] if trial.number == number]
    if not trials:
        raise ConfigError(str(results), [Problem("", f"the experiment has no trial {number}")])
    complete, failed = sort_out(results, trials)
    if failed:
        return [f"trial {number} was not analysed: {failed[0].error}"]
    recorded = complete[0]
    if not recorded.flow:
        return []
    chosen = _chosen(recorded)
    rows, categories = _on_spark(results, recorded, [row["topic"] for row in chosen], master)
    differences = list(_differences(chosen, rows, categories, _streamed(recorded, chosen)))
    return [f"trial {number}: {each}" for each in differences[:DIFFERENCES_MAX]]


def _chosen(recorded: Recorded) -> list[Record]:
    """The topics to check: rows of TOPICS."""
    sizes: dict[int, int] = defaultdict(int)
    for path in recorded.files[1:]:
        counts = pyarrow.compute.value_counts(pyarrow.parquet.read_table(path, columns=["topic"])["topic"])
        for each in counts.to_pylist():
            sizes[each["values"]] += each["counts"]
    places: dict[str, int] = defaultdict(int)
    ranked = []
    for row in sorted(_rows(recorded.folder / "topics.parquet"), key=lambda row: row["topic"]):
        ranked.append((places[row["category"]], row))
        places[row["category"]] += 1
    chosen: list[Record] = []
    total = 0
    for _, row in sorted(ranked, key=lambda pair: pair[0]):
        total += sizes[row["topic"]]
        if total > ROWS_MAX and chosen:
            break
        chosen.append(row)
    return chosen


def _on_spark(
    results: Path, recorded: Recorded, chosen: list[int], master: str
) -> tuple[dict[int, Row], dict[str, CategoryMeasured]]:
    session = spark.session(master, settings=spark.LARGE_JOBS)
    wanted = session.createDataFrame([(topic,) for topic in chosen], "topic int")
    with tables(session, results, [recorded]) as records:
        some = Tables(records.topics.join(F.broadcast(wanted), "topic"), records.sent, records.received)
        topics = measure.spans(session, some, [recorded]).persist()
        names = measure.category_names(topics)
        tally = measure.tallied(measure.arrivals(records.received, topics, names)).persist()
        try:
            judged = measure.by_topic(topics, tally).persist()
            rows = {row.topic: row for row in judged.collect()}
            found = measure.by_category(judged, tally, names)
        finally:
            session.catalog.clearCache()
    return rows, {each.category: each for each in found[recorded.trial.number]}


def _streamed(recorded: Recorded, chosen: list[Record]) -> _Judged:
    topics = {row["topic"]: _verdict(row) for row in chosen}
    categories = {row["category"]: _verdict(row) for row in chosen}
    category = {row["topic"]: row["category"] for row in chosen}
    for row in _messages(recorded, "sent", topics, "sequence"):
        for verdict in (topics[row["topic"]], categories[category[row["topic"]]]):
            verdict.published(str(row["topic"]), row["sequence"], row["created_ns"])
    for row in _messages(recorded, "received", topics, "arrived_ns"):
        for verdict in (topics[row["topic"]], categories[category[row["topic"]]]):
            verdict.arrived(str(row["topic"]), row["sequence"], row["created_ns"], row["arrived_ns"])
    return _Judged(topics, categories)


def _verdict(row: Record) -> Verdict:
    tolerance = row["loss_tolerance"]
    return Verdict(
        deadline_ns=row["deadline_ns"], loss_tolerance=None if tolerance < 0 else tolerance, window=WINDOW
    )


def _messages(recorded: Recorded, kind: str, topics: Iterable[int], order: str) -> Iterator[Record]:
    """The messages of these topics that were created within the measuring time."""
    paths = [path for path in recorded.files if path.parent.name == kind]
    compute = pyarrow.compute
    wanted = pyarrow.array(list(topics), pyarrow.int32())
    parts = []
    for path in paths:
        table = pyarrow.parquet.read_table(path)
        created = table["created_ns"]
        inside = compute.and_(
            compute.greater_equal(created, recorded.outcome.begin_ns),
            compute.less(created, recorded.outcome.end_ns),
        )
        parts.append(table.filter(compute.and_(inside, compute.is_in(table["topic"], value_set=wanted))))
    if parts:
        for batch in pyarrow.concat_tables(parts).sort_by(order).to_batches(max_chunksize=1 << 16):
            yield from batch.to_pylist()


def _rows(path: Path) -> list[Record]:
    rows: list[Record] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def _differences(
    chosen: list[Record],
    rows: dict[int, Row],
    categories: dict[str, CategoryMeasured],
    judged: _Judged,
) -> Iterator[str]:
    for topic in chosen:
        row, report = rows[topic["topic"]], judged.topics[topic["topic"]].report()
        pairs = {
            "messages": (row.messages, report.published),
            "delivered": (row.delivered, report.arrived),
            "longest run of losses": (row.run, report.longest_loss_run),
            "loss contract kept": (row.kept, report.loss_kept),
            "late": (row.late, report.deadline_misses),
            "duplicates": (row.duplicates, report.duplicates + report.stale),
        }
        yield from _unequal(str(topic["name"]), pairs)
    for name, found in categories.items():
        report = judged.categories[name].report()
        shares = {
            "p50": (found.latency_ns.get("p50"), report.latency_p50_ns),
            "p99": (found.latency_ns.get("p99"), report.latency_p99_ns),
            "highest latency": (found.latency_ns.get("max"), report.latency_max_ns),
            "lost": (found.lost, report.lost),
            "longest run of losses": (found.longest_run, report.longest_loss_run),
        }
        yield from _unequal(f"category {name}", shares)


def _unequal(whose: str, pairs: Mapping[str, tuple[object, object]]) -> Iterator[str]:
    for what, (ours, streamed) in pairs.items():
        if ours != streamed:
            yield f"{whose}: {what} is {ours} on Spark, {streamed} by the streaming verdict"
