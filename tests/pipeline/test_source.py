"""Feeds in Spark: exactly the range that was asked for, or an error that says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from holdfast.address import Address
from holdfast.errors import ConfigError, Unavailable
from holdfast.journal import Corrupt
from holdfast.pipeline import source
from holdfast.pipeline.feed.journal import FeedReader, FeedWriter
from holdfast.pipeline.format import READING_BATCH, Format, publish_options, read_options
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.records import SPARK_SCHEMA
from holdfast.pipeline.source import Range, StreamReader, frame_of_ranges, read_range, share
from pipeline.feeds import payload_of, record, records, topic_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZES = (700, 1, 300, 45_000, 9, 3990)
RECORDS = sum(SIZES)
KINDS = {"STRING": "string", "BIGINT": "long", "BINARY": "binary"}
SCHEMA = StructType.fromJson(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": KINDS[kind], "nullable": True, "metadata": {}}
            for name, kind in (column.split() for column in SPARK_SCHEMA.split(", "))
        ],
    }
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the feeds `plant` and `town`."""
    folder = tmp_path_factory.mktemp("data")
    assert record(folder, "plant", SIZES) == RECORDS
    assert record(folder, "town", [100]) == 100
    return folder


@pytest.fixture
def own(data: Path, tmp_path: Path) -> Path:
    """A copy of the folder that may be damaged."""
    shutil.copytree(data, tmp_path / "data")
    return tmp_path / "data"


def stream(data: Path | str, **options: str) -> StreamReader:
    given = {"data": str(data), "feeds": "plant", "startingOffsets": "earliest", **options}
    return Format(given).streamReader(SCHEMA)


def check_rows(table: pa.Table, feed: str, start: int, end: int) -> None:
    """Every record of the range once, each with its own columns."""
    table = table.sort_by("offset")
    assert table.column("offset").to_pylist() == list(range(start, end))
    assert set(table.column("feed").to_pylist()) <= {feed}
    assert table.column("topic").to_pylist() == [topic_of(number) for number in range(start, end)]
    assert table.column("payload").to_pylist() == [payload_of(number) for number in range(start, end)]
    expected = records(start, end)
    for name in ("publisher", "sequence", "created_ns", "arrived_ns"):
        assert table.column(name).to_pylist() == expected.column(name).to_pylist()


# -- in Spark ------------------------------------------------------------------------------------------------


def test_a_batch_has_every_record_of_its_range_once(spark: SparkSession, data: Path) -> None:
    """The format is found by its name alone."""

    def read(**options: str) -> DataFrame:
        return spark.read.format("holdfast").options(data=str(data), feeds="plant", **options).load()

    whole = read(recordsPerPartition="20000")
    assert whole.rdd.getNumPartitions() == 4
    check_rows(whole.toArrow(), "plant", 0, RECORDS)
    part = read(startingOffsets='{"plant": 650}', endingOffsets='{"plant": 1002}')
    check_rows(part.toArrow(), "plant", 650, 1002)
    assert read(startingOffsets="latest").count() == 0
    both = spark.read.format("holdfast").options(data=str(data), feeds="plant, town").load()
    counts = {row["feed"]: row["count"] for row in both.groupBy("feed").count().collect()}
    assert counts == {"plant": RECORDS, "town": 100}
    with pytest.raises(Exception, match="unknown option; known are data, feeds"):
        read(maxRowsPerTrigger="1").collect()


def test_ranges_that_are_named_are_read_with_a_task_each(spark: SparkSession, data: Path) -> None:
    frame = frame_of_ranges(spark, data, [("plant", 0, 1500), ("plant", 1500, RECORDS)])
    assert frame.rdd.getNumPartitions() == 2
    check_rows(frame.toArrow(), "plant", 0, RECORDS)
    assert frame_of_ranges(spark, data, []).count() == 0
    with pytest.raises(Exception, match=rf"feed plant, offsets \[0, {RECORDS + 1}\).*was never reached"):
        frame_of_ranges(spark, data, [("plant", 0, RECORDS + 1)]).collect()


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, own: Path, tmp_path: Path) -> None:
    batches: list[list[int]] = []

    def run(limit: int) -> None:
        options = {"maxRecordsPerTrigger": str(limit), "consumer": "test"}
        frame = (
            spark.readStream.format("holdfast")
            .options(data=str(own), feeds="plant", startingOffsets="earliest", **options)
            .load()
        )
        query = (
            frame.writeStream.foreachBatch(
                lambda rows, _: batches.append(rows.select("offset").toArrow().column(0).to_pylist())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)

    run(30_000)
    assert [len(batch) for batch in batches] == [30_000, 20_000]
    assert record(own, "plant", [500]) == RECORDS + 500
    run(400)
    assert [len(batch) for batch in batches[2:]] == [400, 100]
    assert [offset for batch in batches for offset in sorted(batch)] == list(range(RECORDS + 500))
    # The last batch is told when the next one is planned.
    mark = int((Layout(own).feed("plant") / "consumers" / "test").read_text())
    assert RECORDS <= mark <= RECORDS + 500


def test_a_feed_that_a_recorder_serves_is_the_same_feed(spark: SparkSession, own: Path) -> None:
    from holdfast.pipeline.feed.flight import serve_feeds
    from holdfast.pipeline.feed.place import FeedDoor

    with serve_feeds(FeedDoor(Address("127.0.0.1", 0)), Layout(own), ["plant", "town"]) as address:
        frame = spark.read.format("holdfast").options(
            data=address, feeds="plant", recordsPerPartition="30000"
        )
        check_rows(frame.load().toArrow(), "plant", 0, RECORDS)
        reader = stream(address, consumer="far")
        assert reader.initialOffset() == {"plant": 0}
        reader.commit({"plant": 700})
        assert (Layout(own).feed("plant") / "consumers" / "far").read_text() == "700\n"
        with pytest.raises(Unavailable, match=r"feed plant, offsets \[0, 50001\).*was never reached"):
            list(read_range(address, Range("plant", 0, RECORDS + 1)))
        with pytest.raises(Unavailable, match="nowhere"):
            stream(address, feeds="nowhere").initialOffset()


# -- exactly the range ---------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, RECORDS), st.integers(0, RECORDS))
def test_any_range_comes_whole_and_in_order(data: Path, one: int, other: int) -> None:
    start, end = min(one, other), max(one, other)
    batches = list(read_range(str(data), Range("plant", start, end)))
    found = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert found == list(range(start, end))
    assert all(batch.num_rows for batch in batches)


@settings(deadline=None)
@given(st.integers(0, RECORDS), st.integers(1, 60_000), st.data())
def test_partitions_cover_a_range_and_are_cut_the_same_again(
    data: Path, start: int, size: int, draw: st.DataObject
) -> None:
    end = draw.draw(st.integers(start, RECORDS))
    reader = stream(data, recordsPerPartition=str(size))
    ranges = [piece.read for piece in reader.partitions({"plant": start}, {"plant": end})]
    assert [offset for each in ranges for offset in range(each.start, each.end)] == list(range(start, end))
    assert all(0 < each.end - each.start <= size for each in ranges)
    again = stream(data, recordsPerPartition=str(size)).partitions({"plant": start}, {"plant": end})
    assert [piece.read for piece in again] == ranges


def test_a_damaged_segment_is_named_with_the_range(own: Path) -> None:
    segment = max((Layout(own).feed("plant") / "journal").iterdir(), key=lambda path: path.stat().st_size)
    with segment.open("r+b") as file:
        file.seek(100_000)
        file.write(b"damaged")
    with pytest.raises(Unavailable, match=r"feed plant, offsets \[900, 2000\).*cannot be read") as raised:
        list(read_range(str(own), Range("plant", 900, 2000)))
    assert isinstance(raised.value.__cause__, Corrupt)
    assert segment.name in str(raised.value)


def test_what_was_pruned_is_an_error_that_says_from_where_to_go_on(tmp_path: Path) -> None:
    writer = FeedWriter.open(Layout(tmp_path).feed("plant"), bytes_max=2**20)
    for first in range(0, 20_000, 1000):
        writer.append(records(first, first + 1000))
        writer.commit()
        writer.prune(0, 2**62)
    writer.close()
    first = FeedReader(Layout(tmp_path).feed("plant")).first
    assert first > 0
    with pytest.raises(Unavailable, match=rf"feed plant, offsets \[0, 20000\).*Go on from {first}"):
        list(read_range(str(tmp_path), Range("plant", 0, 20_000)))
    with pytest.raises(Unavailable, match="was pruned"):
        stream(tmp_path).partitions({"plant": 0}, {"plant": 20_000})
    assert stream(tmp_path).initialOffset() == {"plant": first}


@pytest.mark.parametrize("wrong", ["the end", "the middle", "the beginning", "the order"])
def test_a_journal_that_gives_something_else_is_never_silent(
    wrong: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short(FeedReader):
        def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
            batches = list(super().read(start, end))
            if wrong == "the order":
                return reversed(batches)
            del batches[{"the end": -1, "the middle": len(batches) // 2, "the beginning": 0}[wrong]]
            return iter(batches)

    monkeypatch.setattr(source, "open_feed", lambda where, name: Short(Layout(where).feed(name)))
    with pytest.raises(Unavailable, match=r"offsets \[0, 50000\).*(gives no record|ends at)"):
        list(read_range(str(data), Range("plant", 0, RECORDS)))


# -- triggers ------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), min_size=1), st.integers(1, 3000))
def test_a_trigger_is_shared_fairly(there: dict[str, int], records_max: int) -> None:
    taken = share(there, records_max)
    assert sum(taken.values()) == min(records_max, sum(there.values()))
    assert all(0 <= taken[name] <= there[name] for name in there)
    most = max(taken.values())
    assert all(count == there[name] or count >= most - 1 for name, count in taken.items())


def test_offsets_of_a_stream(own: Path) -> None:
    reader = stream(own, maxRecordsPerTrigger="150", feeds="plant,town")
    begin = reader.initialOffset()
    assert begin == {"plant": 0, "town": 0}
    assert reader.latestOffset(begin, reader.getDefaultReadLimit()) == {"plant": 75, "town": 75}
    assert reader.latestOffset({"plant": 75, "town": 75}, ReadMaxRows(150)) == {"plant": 200, "town": 100}
    assert reader.latestOffset(begin, ReadAllAvailable()) == {"plant": RECORDS, "town": 100}
    reader.prepareForTriggerAvailableNow()
    assert record(own, "town", [50]) == 150
    assert reader.latestOffset({"plant": RECORDS, "town": 90}, ReadMaxRows(150)) == {
        "plant": RECORDS,
        "town": 100,
    }
    assert reader.reportLatestOffset() == {"plant": RECORDS, "town": 150}
    assert stream(own, startingOffsets="latest").initialOffset() == {"plant": RECORDS}
    assert stream(own, startingOffsets='{"plant": 7}').initialOffset() == {"plant": 7}


def test_a_checkpoint_of_other_feeds_or_another_journal_is_refused(data: Path) -> None:
    with pytest.raises(
        Unavailable, match="the checkpoint is of the feeds plant, the options name plant, town"
    ):
        stream(data, feeds="plant,town").latestOffset({"plant": 3}, ReadMaxRows(10))
    with pytest.raises(Unavailable, match=r"this is another journal\. Begin with another checkpoint"):
        stream(data).latestOffset({"plant": RECORDS + 1}, ReadMaxRows(10))


# -- options -------------------------------------------------------------------------------------------------


def problems(options: dict[str, str], *, streaming: bool = False) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read_options(options, SCHEMA, streaming=streaming)
    return [str(problem) for problem in raised.value.problems]


def test_options_say_everything_that_is_wrong_at_once() -> None:
    found = problems(
        {"feeds": "Plant", "startingOffsets": "now", "recordsPerPartition": "0", "consumer": "x"}
    )
    assert found == [
        f"consumer: unknown option; known are {', '.join(READING_BATCH)}",
        "feeds: found 'Plant'; expected names of feeds, with commas between",
        "data: is missing",
        "startingOffsets: found 'now'; expected earliest, latest or an offset of each feed: "
        '{"Plant": 1200}',
        "recordsPerPartition: found '0'; expected a whole number from 1 to 2147483648",
    ]


@pytest.mark.parametrize(
    "offsets", ['{"plant": -1}', '{"plant": true}', '{"plant": 1.5}', '{"town": 1}', "[1]", "{}", "", "7"]
)
def test_offsets_that_make_no_sense_are_refused(offsets: str) -> None:
    options = {"data": "d", "feeds": "plant", "startingOffsets": offsets}
    assert "startingOffsets: found" in problems(options)[0]
    assert (
        "endingoffsets: unknown option" in problems(options | {"endingOffsets": "latest"}, streaming=True)[0]
    )
    good = options | {"startingOffsets": json.dumps({"plant": 5})}
    assert read_options(good, SCHEMA, streaming=True).starting == {"plant": 5}


def test_a_feed_that_nobody_records_is_named_with_those_that_are(data: Path) -> None:
    with pytest.raises(Unavailable, match=r"nobody records the feed plnt in .*; there are: plant, town"):
        stream(data, feeds="plnt").initialOffset()
    with pytest.raises(Unavailable, match="there is no data folder"):
        stream(data / "other").initialOffset()


def test_columns_that_are_no_message_are_named() -> None:
    schema = StructType().add("topic", "integer").add("payload", "binary").add("colour", "string")
    with pytest.raises(ConfigError) as raised:
        publish_options({"qos": "3", "brokers": "there:port", "topic": "x"}, schema, overwrite=True)
    said = str(raised.value)
    for part in (
        "topic: unknown option; known are brokers, ",
        "topic: the column is int; expected string",
        "colour: no column of a message; known are topic, payload, qos, retain, sequence",
        "qos: found '3'; expected a whole number from 0 to 2",
        'mode: a message that was published stays so: use mode("append")',
        "brokers: found 'there:port'; expected host:port",
    ):
        assert part in said
