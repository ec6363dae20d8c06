"""How long one execution of a channel takes, however many parameters and new records there are.

Beside it, in the same run and on the same session of Spark: a job for the same join, written by hand for it
(parameters cached, their cells computed beforehand, new records broadcast, rows as JSON on the driver), and
DuckDB with everything in memory, the cells of both sides computed beforehand. Ours is the whole execution,
from the manifest to results that are safe on disk, sorted and in one payload for each subscription.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .channel_stage import Stage, staged
from .measure import ratio, spread
from .report import Outcome, Table, Verdict
from .stage import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEED = 5
PARAMETERS = (10_000, 100_000, 1_000_000)
RECORDS = (1_000, 10_000, 100_000)
QUICK_PARAMETERS, QUICK_RECORDS = (1_000, 10_000), (100, 1_000)
SINGLE_QUERIES = 15
RATIO_MAX = 1.5
SINGLY_MIN = 1000
CELL_M = 1000
LIMIT = "300s"
PLOT = Path(__file__).parents[1] / "docs" / "results" / "channels" / "growth.svg"

DOCUMENT = f"""
[[feed]]
name = "all"
topics = ["all/#"]

[[dataset]]
name = "records"
feed = "all"
schema = {{ id = "bigint", key = "bigint", lat = "double", lon = "double" }}

[[channel]]
name = "equal"
parameters = {{ key = "bigint" }}
new = ["records"]
time_limit = "{LIMIT}"
query = "SELECT s.subscription, r.id, r.lat FROM subscriptions s JOIN new_records r ON r.key = s.key"

[[channel]]
name = "near"
parameters = {{ lat = "double", lon = "double" }}
new = ["records"]
time_limit = "{LIMIT}"
query = '''
SELECT s.subscription, r.id, r.lat
FROM subscriptions s
JOIN (SELECT *, explode(cells) AS near
      FROM (SELECT *, neighbours(lat, lon, {CELL_M}, {CELL_M}) AS cells FROM new_records)) r
  ON cell(s.lat, s.lon, {CELL_M}) = r.near AND distance(s.lat, s.lon, r.lat, r.lon) <= {CELL_M}
'''
"""
ROW = "to_json(struct(r.id, r.lat)) AS row"
BY_HAND = {
    "equal": f"SELECT /*+ BROADCAST(r) */ p.subscription, {ROW} FROM parameters p JOIN new r USING (key)",
    "near": f"""
        SELECT /*+ BROADCAST(r) */ p.subscription, {ROW}
        FROM parameters p
        JOIN (SELECT id, lat, lon, explode(cells) AS cell
              FROM (SELECT id, lat, lon, neighbours(lat, lon, {CELL_M}, {CELL_M}) AS cells FROM new)) r
          ON r.cell = p.cell AND distance(p.lat, p.lon, r.lat, r.lon) <= {CELL_M}
        """,
}
# Degrees: a country about so large that a million places have 14 within a kilometre of each record.
SOUTH, WEST, HEIGHT, WIDTH = 48.0, 8.0, 4.3, 6.5


def records(draw: random.Random, count: int, keys: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "key": pa.array([draw.randrange(keys) for _ in range(count)], pa.int64()),
            "lat": [SOUTH + HEIGHT * draw.random() for _ in range(count)],
            "lon": [WEST + WIDTH * draw.random() for _ in range(count)],
        }
    )


def subscriptions(name: str, draw: random.Random, count: int) -> list[str]:
    if name == "equal":
        return [str(number) for number in range(count)]
    return [f"{SOUTH + HEIGHT * draw.random():.7f}/{WEST + WIDTH * draw.random():.7f}" for _ in range(count)]


@dataclass
class Turns:
    """Milliseconds of each contestant, turn by turn, and how many rows were found."""

    ms: dict[str, list[float]] = field(default_factory=dict)
    rows: int = 0

    def add(self, name: str, work: Callable[[], int]) -> None:
        begin_ns = time.perf_counter_ns()
        rows = work()
        self.ms.setdefault(name, []).append((time.perf_counter_ns() - begin_ns) / 1e6)
        self.rows = self.rows or rows
        if rows != self.rows:
            raise AssertionError(f"{name} found {rows} rows, others {self.rows}")


class ByHand:
    """The best job for one join that we know to write: nothing in it is general."""

    def __init__(self, stage: Stage, name: str) -> None:
        from holdfast.pipeline.channels.near import register

        self._stage, self._name = stage, name
        self._session = stage.spark.newSession()
        self._session.conf.set("spark.sql.adaptive.enabled", "false")
        self._session.conf.set(
            "spark.sql.optimizer.excludedRules",
            "org.apache.spark.sql.catalyst.optimizer.InferFiltersFromGenerate",
        )
        register(self._session)
        self._schema = stage.datasets.schema("records")
        channel = stage.channels._channels[name].subscriptions
        rows = pa.concat_tables(each.rows for each in channel._segments).combine_chunks()
        frame = self._session.createDataFrame(rows)
        if name == "near":
            frame = frame.selectExpr("*", f"cell(lat, lon, {CELL_M}) AS cell")
        self.parameters: DataFrame = frame.cache()
        self.parameters.count()
        self.parameters.createOrReplaceTempView("parameters")

    def run(self, path: Path) -> int:
        new = self._session.read.schema(self._schema).parquet(str(path))
        new.createOrReplaceTempView("new")
        return int(self._session.sql(BY_HAND[self._name]).toArrow().num_rows)

    def close(self) -> None:
        self.parameters.unpersist()


class InDuckDB:
    """The limit of one machine: all in memory, and the cells of both sides known."""

    def __init__(self, hand: ByHand, name: str) -> None:
        import duckdb

        self._name, self._hand = name, hand
        self._base = duckdb.connect()
        self._base.execute("SET threads = 2")
        given = hand.parameters.toArrow()
        self._base.register("given", given)
        self._base.execute("CREATE TABLE parameters AS SELECT * FROM given")

    def prepare(self, rows: pa.Table) -> None:
        frame = self._hand._session.createDataFrame(rows)
        if self._name == "near":
            cells = frame.selectExpr("*", f"neighbours(lat, lon, {CELL_M}, {CELL_M}) AS cells")
            frame = cells.selectExpr("id", "lat", "lon", "explode(cells) AS cell")
        self._base.register("new", frame.toArrow())
        self._base.execute("CREATE OR REPLACE TABLE fresh AS SELECT * FROM new")

    def run(self) -> int:
        equal = "SELECT p.subscription, r.id, r.lat FROM parameters p JOIN fresh r USING (key)"
        metres = (
            "12742017.6 * asin(sqrt(least(1, pow(sin(radians(r.lat - p.lat) / 2), 2) + cos(radians(p.lat)) "
            "* cos(radians(r.lat)) * pow(sin(radians(r.lon - p.lon) / 2), 2))))"
        )
        near = "SELECT p.subscription, r.id, r.lat FROM parameters p JOIN fresh r USING (cell)"
        near += f" WHERE {metres} <= {CELL_M}"
        found: Any = self._base.sql(equal if self._name == "equal" else near).to_arrow_table()
        return int(found.num_rows)


def compare(stage: Stage, name: str, parameters: int, count: int, turns: int) -> Turns:
    draw = random.Random(SEED)
    stage.told.tell(name, subscriptions(name, draw, parameters))
    stage.add("records", records(draw, 10, parameters))
    stage.channels.execute(name, time.time_ns())
    hand = ByHand(stage, name)
    duck = InDuckDB(hand, name)
    found = Turns()
    for turn in range(turns + 2):
        rows = records(draw, count, parameters)
        path = stage.add("records", rows)
        duck.prepare(rows)
        turned = found if turn >= 2 else Turns()
        found.rows = 0
        turned.add("channel", lambda: _executed(stage, name))
        turned.add("by hand", lambda path=path: hand.run(path))  # type: ignore[misc]
        turned.add("DuckDB", duck.run)
    hand.close()
    return found


def _executed(stage: Stage, name: str) -> int:
    execution = stage.channels.execute(name, time.time_ns())
    assert execution is not None
    return execution.rows


def grow(stage: Stage, parameters: tuple[int, ...], counts: tuple[int, ...], turns: int) -> dict[str, Any]:
    """Median milliseconds of the whole execution by parameters and records."""
    took: dict[str, dict[str, float]] = {}
    for size in parameters:
        draw = random.Random(SEED)
        stage.told.tell("equal", subscriptions("equal", draw, size))
        for count in (10, *counts):
            turned = []
            for _ in range(turns + 1):
                stage.add("records", records(draw, count, size))
                begin_ns = time.perf_counter_ns()
                stage.channels.execute("equal", time.time_ns())
                turned.append((time.perf_counter_ns() - begin_ns) / 1e6)
            took.setdefault(str(size), {})[str(count)] = median(turned[1:])
    return took


def singly(stage: Stage, parameters: int, count: int) -> tuple[float, float]:
    """Milliseconds of one execution for all, and of one query for one of them."""
    draw = random.Random(SEED)
    stage.told.tell("equal", subscriptions("equal", draw, parameters))
    together: list[float] = []
    for _ in range(4):
        path = stage.add("records", records(draw, count, parameters))
        begin_ns = time.perf_counter_ns()
        stage.channels.execute("equal", time.time_ns())
        together.append((time.perf_counter_ns() - begin_ns) / 1e6)
    session = stage.spark.newSession()
    new = session.read.schema(stage.datasets.schema("records")).parquet(str(path))
    new.createOrReplaceTempView("new_records")
    each: list[float] = []
    for number in range(SINGLE_QUERIES):
        begin_ns = time.perf_counter_ns()
        session.sql(f"SELECT id, lat FROM new_records WHERE key = {draw.randrange(parameters)}").toArrow()
        if number >= 5:
            each.append((time.perf_counter_ns() - begin_ns) / 1e6)
    return median(together[1:]), median(each)


def executing(run: Run) -> Outcome:
    sizes, counts = (QUICK_PARAMETERS, QUICK_RECORDS) if run.quick else (PARAMETERS, RECORDS)
    with staged(DOCUMENT) as stage:
        compared = {name: compare(stage, name, sizes[-1], counts[1], run.turns) for name in ("equal", "near")}
        alone_at = 10_000 if not run.quick else 1_000
        together_ms, single_ms = singly(stage, alone_at, counts[1])
        growth = grow(stage, sizes, counts, 3)
    if not run.quick:
        plot(growth)
    times = alone_at * single_ms / together_ms
    return Outcome(
        [_compared(compared, sizes[-1], counts[1]), _growth(growth)],
        [
            *(_verdict(name, turns, sizes[-1], counts[1]) for name, turns in compared.items()),
            Verdict(
                f"one execution against one query per subscription, {alone_at:,} parameters",
                f"at least {SINGLY_MIN:,}× faster",
                f"{times:,.0f}×: {together_ms:.0f} ms, and {single_ms:.0f} ms for each of {alone_at:,} "
                f"(from {SINGLE_QUERIES} of them)",
                times >= SINGLY_MIN,
            ),
            *(_grown(size, took) for size, took in growth.items()),
        ],
        {
            "compared": {name: turns.ms for name, turns in compared.items()},
            "growth": growth,
            "singly": {"together_ms": together_ms, "single_ms": single_ms},
        },
    )


def _compared(compared: dict[str, Turns], parameters: int, count: int) -> Table:
    rows = [
        (name, f"{turns.rows:,}", *(spread(turns.ms[who]).show("{:.0f}") for who in turns.ms))
        for name, turns in compared.items()
    ]
    title = f"executing: {parameters:,} distinct parameters, {count:,} new records, milliseconds"
    notes = (
        "channel: the whole execution, to results that are safe on disk; the others: rows on the driver",
    )
    return Table(title, ("join", "rows found", "channel", "by hand", "DuckDB"), rows, notes)


def _verdict(name: str, turns: Turns, parameters: int, count: int) -> Verdict:
    against = ratio(turns.ms["channel"], turns.ms["by hand"])
    shown = ", ".join(f"{who} {median(ms):.0f}" for who, ms in turns.ms.items())
    what = {"equal": "equality", "near": "within a radius"}[name]
    return Verdict(
        f"execution by {what}, {parameters:,} parameters, {count:,} records",
        f"at most {RATIO_MAX}× a job by hand",
        f"{against.show('{:.2f}')}×; ms: {shown}",
        against.median <= RATIO_MAX,
    )


def _grown(size: str, took: dict[str, float]) -> Verdict:
    counts = ", ".join(f"{int(count):,}" for count in took)
    return Verdict(
        f"a whole execution by equality, {int(size):,} parameters; {counts} new records",
        "reported",
        f"{', '.join(f'{ms:.0f}' for ms in took.values())} ms",
        None,
    )


def _growth(growth: dict[str, dict[str, float]]) -> Table:
    counts = list(next(iter(growth.values())))
    rows = [
        (f"{int(size):,} parameters", *(f"{took[count]:.0f}" for count in counts))
        for size, took in growth.items()
    ]
    fixed = min(min(took.values()) for took in growth.values())
    note = f"fixed cost: {fixed:.0f} ms (planning, two small jobs, one transaction), at the fewest of both"
    return Table(
        "executing: growth of an execution by equality, milliseconds",
        ("", *(f"{int(count):,} records" for count in counts)),
        rows,
        (note,),
    )


def plot(growth: dict[str, dict[str, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for size, took in growth.items():
        axes.plot(
            [int(count) for count in took], list(took.values()), "o-", label=f"{int(size):,} parameters"
        )
    axes.set(xscale="log", yscale="log", xlabel="new records", ylabel="ms of one execution")
    axes.grid(alpha=0.3)
    axes.legend()
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT)
    pyplot.close(figure)
