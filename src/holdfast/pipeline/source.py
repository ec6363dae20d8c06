"""Feeds as rows of Spark: in a batch, as a stream, or the ranges that somebody names.

Laws:
- a range is read whole or the task fails, and says which feed, which offsets and what to do
- the partitions of a range follow from the range, the journal and `recordsPerPartition`: done again after a
  crash they are the same, with the same rows in the same order
- a trigger takes at most `maxRecordsPerTrigger`, shared fairly by the feeds
- a stream keeps to its feeds and to its journals: others need another checkpoint
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from holdfast.errors import Unavailable
from holdfast.pieces import pieces_of
from holdfast.pipeline.feed.place import Readable, Served, open_feed
from holdfast.pipeline.format import EARLIEST, Reading
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.records import RECORD, SPARK_SCHEMA
from holdfast.pipeline.spark import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A journal has as many rows in a batch as came between two commits. Small ones are put together; large ones
# go as they are: more than a processor's cache holds makes Spark slower.
BATCH_ROWS = 4_000
# All columns may be null, as Spark has them.
ROWS = pa.schema([pa.field("feed", pa.string()), *(pa.field(each.name, each.type) for each in RECORD)])

Offsets = dict[str, int]


class Range(NamedTuple):
    """The records [start, end) of a feed."""

    feed: str
    start: int
    end: int

    def __str__(self) -> str:
        return f"feed {self.feed}, offsets [{self.start}, {self.end})"


class Piece(InputPartition):
    def __init__(self, read: Range) -> None:
        super().__init__(read)
        self.read = read


def frame_of_ranges(
    spark: SparkSession, where: str | Path, ranges: Sequence[tuple[str, int, int]]
) -> DataFrame:
    """The records of these ranges (feed, start, end), one task for each range: cut long ones before."""
    listed = [Range(*each) for each in ranges]
    place = str(where)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_range(place, listed[number])

    numbers = spark.range(0, len(listed), 1, max(1, len(listed)))
    return map_in_arrow(numbers, read, SPARK_SCHEMA)


def read_range(where: str | Served, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The rows of a range, exactly, in batches of BATCH_ROWS or more."""
    with _said(where, wanted):
        expected = wanted.start
        found = open_feed(where, wanted.feed).read(wanted.start, wanted.end)
        for batches in pieces_of(found, lambda batch: batch.num_rows, size_max=BATCH_ROWS):
            for batch in batches:
                if not batch.num_rows or batch.column(0)[0].as_py() != expected:
                    raise Unavailable(f"the journal gives no record {expected}")
                expected += batch.num_rows
            yield _rows(wanted.feed, batches)
        if expected != wanted.end:
            raise Unavailable(f"the journal ends at {expected}")


def _rows(feed: str, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    columns = batches[0].columns
    if len(batches) > 1:
        columns = [pa.concat_arrays([each.column(place) for each in batches]) for place in range(len(RECORD))]
    feeds = pa.repeat(pa.scalar(feed, pa.string()), len(columns[0]))
    return pa.RecordBatch.from_arrays([feeds, *columns], schema=ROWS)


@contextmanager
def _said(where: str | Served, wanted: Range) -> Iterator[None]:
    try:
        yield
    except Unavailable as error:
        raise Unavailable(f"{wanted} of {where} cannot be read: {error}") from error


class Feeds:
    """The feeds that the options name."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        _check_there(reading)
        self.opened: dict[str, Readable] = {name: open_feed(reading.place, name) for name in reading.feeds}

    def at(self, place: str | Mapping[str, int]) -> Offsets:
        if isinstance(place, Mapping):
            return dict(place)
        if place == EARLIEST:
            return {name: feed.first for name, feed in self.opened.items()}
        return {name: feed.head for name, feed in self.opened.items()}

    def cut(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[Piece]:
        pieces = []
        for name in self.reading.feeds:
            wanted = Range(name, start[name], end[name])
            if wanted.end < wanted.start:
                raise Unavailable(
                    f"{wanted} end before they begin: give endingOffsets behind startingOffsets"
                )
            with _said(self.reading.data, wanted):
                cut = self.opened[name].cut(wanted.start, wanted.end, self.reading.records_per_partition)
            pieces += [Piece(Range(name, *each)) for each in cut]
        return pieces


def _check_there(reading: Reading) -> None:
    """A name with a slip in it would be an empty feed for ever."""
    if "://" in reading.data or not Path(reading.data).is_dir():
        return
    feeds = Layout(reading.data).feeds
    there = sorted(path.name for path in feeds.iterdir() if path.is_dir()) if feeds.is_dir() else []
    if missing := [name for name in reading.feeds if name not in there]:
        raise Unavailable(
            f"nobody records the feed {', '.join(missing)} in {reading.data}; there are: "
            f"{', '.join(there) or 'none'}. Start `holdfast record` with it first."
        )


class RangesReader(DataSourceReader):
    """`spark.read`: what is there now, or between two offsets."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def partitions(self) -> Sequence[InputPartition]:
        feeds = Feeds(self.reading)
        # Spark takes no partitions at all for one that it must not read.
        return feeds.cut(feeds.at(self.reading.starting), feeds.at(self.reading.ending)) or [
            Piece(Range(self.reading.feeds[0], 0, 0))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return read_range(self.reading.place, partition.read)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: an offset of Spark is an offset of each feed."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self._upto: Offsets | None = None
        self._opened: Feeds | None = None

    def __reduce__(self) -> tuple[type[StreamReader], tuple[Reading]]:
        """To the executors goes what the options say; what is open here stays."""
        return StreamReader, (self.reading,)

    def _feeds(self) -> Feeds:
        if self._opened is None:
            self._opened = Feeds(self.reading)
        return self._opened

    def initialOffset(self) -> Offsets:
        feeds = self._feeds()
        offsets = feeds.at(self.reading.starting)
        self._mark(feeds, offsets)
        return offsets

    def prepareForTriggerAvailableNow(self) -> None:
        self._upto = self._heads(self._feeds())

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.reading.records_per_trigger)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        feeds = self._feeds()
        self._check(start, feeds)
        heads = self._heads(feeds) if self._upto is None else self._upto
        there = {name: max(0, heads[name] - start[name]) for name in self.reading.feeds}
        if isinstance(limit, ReadMaxRows):
            there = share(there, limit.max_rows)
        else:
            assert isinstance(limit, ReadAllAvailable), limit
        return {name: start[name] + count for name, count in there.items()}

    def reportLatestOffset(self) -> Offsets:
        return self._heads(self._feeds())

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return self._feeds().cut(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return read_range(self.reading.place, partition.read)

    def commit(self, end: Offsets) -> None:
        self._mark(self._feeds(), end)

    def _mark(self, feeds: Feeds, offsets: Offsets) -> None:
        if self.reading.consumer:
            for name, offset in offsets.items():
                feeds.opened[name].commit(self.reading.consumer, offset)

    def _heads(self, feeds: Feeds) -> Offsets:
        return {name: feed.head for name, feed in feeds.opened.items()}

    def _check(self, start: Offsets, feeds: Feeds) -> None:
        if start.keys() != set(self.reading.feeds):
            raise Unavailable(
                f"the checkpoint is of the feeds {', '.join(sorted(start))}, the options name "
                f"{', '.join(self.reading.feeds)}: name the same, or begin with another checkpoint"
            )
        for name, offset in start.items():
            if offset > feeds.opened[name].head:
                raise Unavailable(
                    f"the checkpoint is at offset {offset} of the feed {name}, which ends at "
                    f"{feeds.opened[name].head}: this is another journal. Begin with another checkpoint."
                )


def share(there: Mapping[str, int], records_max: int) -> Offsets:
    """How many records of each feed, so many in all; who has less than an equal share leaves the rest."""
    taken: Offsets = {}
    left = records_max
    for place, (name, count) in enumerate(sorted(there.items(), key=lambda item: item[1])):
        taken[name] = min(count, -(-left // (len(there) - place)))
        left -= taken[name]
    return taken
