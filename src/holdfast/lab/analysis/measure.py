"""How messages are judged, on Spark: losses, deadlines and latencies of every topic of every trial.

Laws:
- a topic's messages are the numbers from its first to its last that was created within the measuring time, so
  what is lost at either end counts; numbers rise by one, and one that was never sent is lost
- of a message that arrived several times the first arrival counts, the others are duplicates
- received rows are shuffled once and sorted once; all else that meets them is small and is broadcast
- latencies are counted in the buckets of `contract.verdict`: at most 1/64 wide, named by their largest value
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from holdfast.lab.analysis.measured import CategoryMeasured
from holdfast.lab.analysis.records import Recorded, Tables

STEPS_PER_OCTAVE_BITS = 6
OCTAVES_BITS = 6
LONG_BITS = 63
PERMILLES = {"p50": 500, "p99": 990, "p99_9": 999}
TIMES = "trial int, begin_ns long, end_ns long, fault_ns long"


# -- what was sent: small, one row for each topic ------------------------------------------------------------


def spans(spark: SparkSession, tables: Tables, trials: Iterable[Recorded]) -> DataFrame:
    """For each topic of each trial, what it was promised and which numbers count.

    `ever_first` to `ever_last` were ever sent; `fault_sequence` is the first created from the fault on.
    """
    times = spark.createDataFrame(
        [
            (each.trial.number, each.outcome.begin_ns, each.outcome.end_ns, each.outcome.fault_ns)
            for each in trials
        ],
        TIMES,
    )
    counts = F.expr("created_ns >= begin_ns and created_ns < end_ns")
    sequence = F.col("sequence")
    sent = (
        tables.sent.join(F.broadcast(times), "trial")
        .groupBy("trial", "topic")
        .agg(
            F.min(F.when(counts, sequence)).alias("first"),
            F.max(F.when(counts, sequence)).alias("last"),
            F.min("sequence").alias("ever_first"),
            F.max("sequence").alias("ever_last"),
            F.min(F.when(F.expr("created_ns >= fault_ns"), sequence)).alias("fault_sequence"),
        )
    )
    return (
        tables.topics.join(F.broadcast(times), "trial")
        .join(sent, ["trial", "topic"], "left")
        .withColumn("key", _key())
        .withColumn("messages", F.expr("coalesce(last - first + 1, 0)"))
    )


def category_names(topics: DataFrame) -> list[str]:
    return sorted(row.category for row in topics.select("category").distinct().collect())


def _key() -> Column:
    """One number for a topic of a trial, so that sorting compares one column instead of two."""
    return F.expr("shiftleft(cast(trial as bigint), 32) + topic")


# -- what arrived: large -------------------------------------------------------------------------------------


def arrivals(received: DataFrame, topics: DataFrame, categories: list[str]) -> DataFrame:
    """Every arrival that counts: its topic's key, its number in the topic from 1, its latency and its mark.

    The number of what nobody sent is null. The mark packs the category, whether it came late and whether it
    belongs to the peak after the fault, because every column of these rows is carried through the shuffle.
    """
    code = F.array_position(F.array(*map(F.lit, categories)), F.col("category")).cast("int")
    small = topics.select(
        "trial", "topic", "first", "last", "ever_first", "ever_last", "deadline_ns",
        code.alias("code"), F.expr("fault_ns - period_ns").alias("peak_from_ns"),
    )  # fmt: skip
    number = F.expr(
        "case when sequence between first and last then cast(sequence - first + 1 as int)"
        " when sequence between ever_first and ever_last then 0 end"
    )
    mark = F.expr("code * 4 + if(latency_ns > deadline_ns, 2, 0) + if(created_ns >= peak_from_ns, 1, 0)")
    return (
        received.join(F.broadcast(small), ["trial", "topic"])
        .withColumn("number", number)
        .where("number is null or number > 0")
        .withColumn("latency_ns", F.expr("arrived_ns - created_ns"))
        .select(_key().alias("key"), "number", "latency_ns", mark.alias("mark"))
    )


def compared(arrived: DataFrame) -> DataFrame:
    """Every arrival beside the one before it in its topic's numbers: how many are missing between, and
    whether it is `fresh`, the first arrival of its message."""
    in_order = Window.partitionBy("key").orderBy("number", "latency_ns")
    before = F.coalesce(F.lag("number").over(in_order), F.lit(0))
    return arrived.withColumn("before", before).select(
        "key",
        F.expr("cast(shiftright(key, 32) as int)").alias("trial"),
        F.expr("shiftright(mark, 2)").alias("code"),
        "number",
        "latency_ns",
        F.expr("number - before - 1").alias("missing"),
        F.expr("number is not null and number != before").alias("fresh"),
        F.expr("mark & 2 != 0").alias("late"),
        F.expr("mark & 1 != 0").alias("after"),
        bucket("latency_ns").alias("bucket"),
    )


def bucket(latency: str) -> Column:
    """The largest latency in the same bucket: all bits set below the highest seven."""
    return F.expr(f"if({latency} <= 0, 0L, {latency} | {_below(latency, 0, OCTAVES_BITS)})")


def _below(latency: str, octave: int, bits: int) -> str:
    """The bits to set if the highest one is `octave` or one of the 2**bits - 1 above it. Comparisons are
    exact where a logarithm may be off by one at a power of two."""
    if bits == 0:
        return f"{(1 << max(0, octave - STEPS_PER_OCTAVE_BITS)) - 1}L"
    half = octave + (1 << (bits - 1))
    low, high = _below(latency, octave, bits - 1), _below(latency, half, bits - 1)
    return f"if({latency} < {1 << half}L, {low}, {high})" if half < LONG_BITS else low


def tallied(arrived: DataFrame) -> DataFrame:
    """In one pass over the arrivals: a row for each topic (`key`), and one for each bucket of a category."""
    fresh_latency = F.expr("if(fresh, latency_ns, null)")
    bucket_of = ["trial", "code", "bucket"]
    return compared(arrived).groupingSets([["key"], bucket_of], "key", *bucket_of).agg(
        F.count_if("fresh").alias("delivered"),
        F.count_if(F.expr("fresh and late")).alias("late"),
        F.count_if(F.expr("missing = -1")).alias("duplicates"),
        F.count_if(F.expr("number is null")).alias("unknown"),
        F.max("missing").alias("missing"),
        F.max("number").alias("top"),
        F.max(fresh_latency).alias("max_ns"),
        F.max(F.expr("if(fresh and after, latency_ns, null)")).alias("peak_ns"),
    )  # fmt: skip


# -- from topics and buckets to categories: small ------------------------------------------------------------


def by_topic(topics: DataFrame, tally: DataFrame) -> DataFrame:
    """Each topic's longest run of losses, and whether its contract was kept."""
    counted = tally.where("key is not null").drop("trial", "code", "bucket")
    run = "if(delivered = 0, messages, greatest(missing, messages - top))"
    return (
        topics.join(counted, "key", "left")
        .fillna(0, ["delivered", "late", "duplicates", "unknown"])
        .withColumn("run", F.expr(run))
        .withColumn("kept", F.expr("loss_tolerance < 0 or run <= loss_tolerance"))
    )


def by_category(
    judged: DataFrame, tally: DataFrame, categories: list[str]
) -> dict[int, list[CategoryMeasured]]:
    """For each trial its categories, in the order in which their topics are numbered."""
    sums = [F.sum(name).alias(name) for name in ("messages", "delivered", "late", "duplicates", "unknown")]
    rows = (
        judged.groupBy("trial", "category")
        .agg(
            F.min("topic").alias("place"),
            F.count("*").alias("topics"),
            F.count_if("kept").alias("topics_kept"),
            F.max("run").alias("longest_run"),
            F.first("deadline_ns").alias("deadline_ns"),
            F.first("loss_tolerance").alias("loss_tolerance"),
            F.max("max_ns").alias("max_ns"),
            F.max("peak_ns").alias("peak_ns"),
            *sums,
        )
        .collect()
    )
    latencies = _percentiles(tally, categories)
    found: dict[int, list[CategoryMeasured]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.trial, row.place)):
        found[row.trial].append(_category(row, latencies.get((row.trial, row.category), {})))
    return found


def _category(row: Row, buckets: dict[str, int]) -> CategoryMeasured:
    latencies = {name: min(top, row.max_ns) for name, top in buckets.items()}
    return CategoryMeasured(
        category=row.category,
        deadline_ns=row.deadline_ns,
        loss_tolerance=row.loss_tolerance,
        topics=row.topics,
        topics_kept=row.topics_kept,
        messages=row.messages,
        delivered=row.delivered,
        in_time=row.delivered - row.late,
        longest_run=row.longest_run,
        duplicates=row.duplicates,
        unknown=row.unknown,
        peak_ns=row.peak_ns,
        latency_ns=latencies | {"max": row.max_ns} if latencies else {},
    )


def _percentiles(tally: DataFrame, categories: list[str]) -> dict[tuple[int, str], dict[str, int]]:
    """The buckets in which the latencies of each trial and category reach each share."""
    whole = Window.partitionBy("trial", "code")
    reached = [
        F.min(F.expr(f"if(reached * 1000 >= total * {permille}, bucket, null)")).alias(name)
        for name, permille in PERMILLES.items()
    ]
    rows = (
        tally.where("key is null and delivered > 0")
        .withColumn("reached", F.sum("delivered").over(whole.orderBy("bucket")))
        .withColumn("total", F.sum("delivered").over(whole))
        .groupBy("trial", "code")
        .agg(*reached)
        .collect()
    )
    return {(row.trial, categories[row.code - 1]): {name: row[name] for name in PERMILLES} for row in rows}
