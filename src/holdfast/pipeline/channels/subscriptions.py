"""The relation `subscriptions` of one channel: kept in Spark, and changed in small steps.

Laws:
- the relation holds each subscription that exists and fits the channel's parameters once, whatever came
  and went before: the same rows as if it were built anew
- what a change costs grows with the change: rows lie in segments that Spark has cached, each at least GROWTH
  times the next; the last ones that came are sent along with the query, and those that went are taken
  away while it reads, until a segment is written anew
- a subscription that does not fit has no row and is counted: a broker without a catalog may have granted it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.channels.frames import lift
from holdfast.pipeline.parameters import Value, parse_subscription

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.pipeline.declared import Channel

# Up to so many rows go along with a query, and up to so many, or this share of all, are taken away in it.
LOOSE_MAX = 1000
GONE_SHARE = 64
GROWTH = 4
# A segment below this is one partition: a task costs more than reading it.
PARTITION_ROWS_MIN = 50_000

ARROW_TYPES = {"string": pa.string(), "bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_()}


def schema_of(channel: Channel) -> pa.Schema:
    own = [pa.field(name, ARROW_TYPES[kind], nullable=False) for name, kind in channel.parameters.items()]
    return pa.schema([pa.field("subscription", pa.string(), nullable=False), *own])


def rows_of(channel: Channel, subscriptions: Iterable[str]) -> tuple[pa.Table, set[str]]:
    """The rows of these subscriptions, and those that do not fit."""
    types = tuple(channel.parameters.values())
    taken: list[str] = []
    values: list[tuple[Value, ...]] = []
    unfit: set[str] = set()
    for each in subscriptions:
        try:
            values.append(parse_subscription(each, types))
        except ValueError:
            unfit.add(each)
        else:
            taken.append(each)
    schema = schema_of(channel)
    if not values:
        return schema.empty_table(), unfit
    columns: list[Sequence[Value]] = [taken, *zip(*values, strict=True)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema), unfit


@dataclass(slots=True)
class Segment:
    rows: pa.Table
    frame: DataFrame


class Subscriptions:
    """For one channel; a thread at a time."""

    def __init__(self, spark: SparkSession, bulk: Callable[[], SparkSession], channel: Channel) -> None:
        """`bulk` gives a session in which rows from Python do not become part of a plan: for segments."""
        self.channel = channel
        self._local = spark
        self._bulk = bulk
        self._known: set[str] = set()
        self._unfit: set[str] = set()
        self._segments: list[Segment] = []
        self._loose = schema_of(channel).empty_table()
        self._gone: set[str] = set()
        self._frame: DataFrame | None = None

    def __len__(self) -> int:
        return len(self._known) - len(self._unfit)

    @property
    def unfit(self) -> int:
        return len(self._unfit)

    def update(self, present: Iterable[str]) -> None:
        """These are the subscriptions now."""
        now = set(present)
        came, went = now - self._known, self._known - now
        if not came and not went:
            return
        try:
            self._known, self._frame = now, None
            self._remove(went)
            self._add(came)
            self._settle()
        except BaseException:
            self.close()
            raise

    def frame(self) -> DataFrame:
        """The relation as it is."""
        if self._frame is None:
            parts = [each.frame for each in self._segments]
            if self._gone and parts:
                parts = [self._union(parts).join(self._gone_frame(), "subscription", "left_anti")]
            if self._loose.num_rows or not parts:
                parts.append(self._local.createDataFrame(self._loose))
            self._frame = self._union(parts)
        return self._frame

    def close(self) -> None:
        """Gives back what Spark keeps; an update begins from nothing then."""
        segments, self._segments, self._frame = self._segments, [], None
        self._known, self._unfit, self._gone = set(), set(), set()
        self._loose = self._loose.slice(0, 0)
        for each in segments:
            each.frame.unpersist()

    # -- changes -------------------------------------------------------------------------------------------

    def _remove(self, went: set[str]) -> None:
        held = went - self._unfit
        self._unfit -= went
        if held and self._loose.num_rows:
            loose = pc.is_in(self._loose.column("subscription"), pa.array(held, pa.string()))
            held -= set(self._loose.filter(loose).column("subscription").to_pylist())
            self._loose = self._loose.filter(pc.invert(loose))
        self._gone |= held

    def _add(self, came: set[str]) -> None:
        back = came & self._gone
        self._gone -= back
        rows, unfit = rows_of(self.channel, came - back)
        # In one piece: Spark reads a table up to its first empty piece.
        self._loose = pa.concat_tables([self._loose, rows]).combine_chunks()
        self._unfit |= unfit

    def _settle(self) -> None:
        """Loose rows become a segment when they are many; all is written anew when many rows are gone."""
        held = sum(each.rows.num_rows for each in self._segments)
        if len(self._gone) > max(LOOSE_MAX, held // GONE_SHARE):
            self._write(self._take(0))
        elif self._loose.num_rows > LOOSE_MAX:
            size, first = self._loose.num_rows, len(self._segments)
            while first and self._segments[first - 1].rows.num_rows < GROWTH * size:
                first -= 1
                size += self._segments[first].rows.num_rows
            self._write(self._take(first))

    def _take(self, first: int) -> pa.Table:
        """The rows of the segments from `first` on and the loose ones, without those that are gone."""
        taken, self._segments = self._segments[first:], self._segments[:first]
        held = pa.concat_tables([self._loose.slice(0, 0), *(each.rows for each in taken)])
        if self._gone:
            inside = pc.is_in(held.column("subscription"), pa.array(self._gone, pa.string()))
            self._gone -= set(held.filter(inside).column("subscription").to_pylist())
            held = held.filter(pc.invert(inside))
        for each in taken:
            each.frame.unpersist()
        rows, self._loose = pa.concat_tables([held, self._loose]).combine_chunks(), self._loose.slice(0, 0)
        return rows

    def _write(self, rows: pa.Table) -> None:
        if rows.num_rows:
            frame = self._bulk().createDataFrame(rows)
            if rows.num_rows < PARTITION_ROWS_MIN:
                frame = frame.coalesce(1)
            frame.persist()
            frame.count()
            self._segments.append(Segment(rows, frame))

    def _gone_frame(self) -> DataFrame:
        from pyspark.sql import functions as f

        gone = pa.table({"subscription": pa.array(sorted(self._gone), pa.string())})
        return f.broadcast(self._local.createDataFrame(gone))

    def _union(self, parts: list[DataFrame]) -> DataFrame:
        lifted = [lift(self._local, each) for each in parts]
        return reduce(lambda one, other: one.union(other), lifted)
