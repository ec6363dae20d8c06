"""Feeds, datasets and channels that work in pieces: any sizes, and every record is there once, in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pieces.sizes import any_size, sizes_around
from tests.pipeline.feeds import payload_of, record, records

from holdfast.endpoint import Outgoing
from holdfast.pipeline import delivery, source
from holdfast.pipeline.channels import notifications
from holdfast.pipeline.datasets import files, taking
from holdfast.pipeline.datasets.files import Sheet
from holdfast.pipeline.delivery import Delivery
from holdfast.pipeline.feed.bodies import LEAD_BYTES, split, with_offsets
from holdfast.pipeline.feed.journal import FeedReader
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.results import FOUND
from holdfast.pipeline.source import Range, read_range

SIZES = (3, 1, 40, 7, 25, 1, 1, 60)
RECORDS = sum(SIZES)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    assert record(folder, "plant", SIZES) == RECORDS
    return folder


RANGES = st.tuples(st.integers(0, RECORDS), st.integers(0, RECORDS)).map(sorted)


@given(rows=any_size(16), bytes_max=st.integers(1, 4000))
@settings(max_examples=50, deadline=None)
def test_a_batch_that_is_split_has_every_row_once(rows: int, bytes_max: int) -> None:
    batch = with_offsets(records(0, rows), 0)
    pieces = list(split(batch, bytes_max))
    assert pa.Table.from_batches(pieces, batch.schema).column("offset").to_pylist() == list(range(rows))
    for piece in pieces:
        assert piece.num_rows <= 1 or LEAD_BYTES + pa.ipc.get_record_batch_size(piece) <= bytes_max


@given(between=RANGES, records_max=st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_a_range_that_is_cut_is_covered_once(data: Path, between: list[int], records_max: int) -> None:
    start, end = between
    reader = FeedReader(Layout(data).feed("plant"))
    cut = reader.cut(start, end, records_max)
    assert [offset for piece in cut for offset in range(*piece)] == list(range(start, end))
    assert all(0 < behind - first <= records_max for first, behind in cut)
    found = [
        row for first, behind in cut for batch in reader.read(first, behind) for row in batch.to_pylist()
    ]
    assert [(row["offset"], row["payload"]) for row in found] == [
        (offset, payload_of(offset)) for offset in range(start, end)
    ]


@given(between=RANGES, rows=st.integers(1, 70))
@settings(max_examples=40, deadline=None)
def test_a_range_is_read_whole_in_batches_of_any_size(data: Path, between: list[int], rows: int) -> None:
    start, end = between
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BATCH_ROWS", rows)
        batches = list(read_range(str(data), Range("plant", start, end)))
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(start, end))
    assert all(batch.num_rows >= rows for batch in batches[:-1])


@given(between=RANGES, rows=st.integers(1, 70), size=st.sampled_from([1, 1000, 2**24]))
@settings(max_examples=40, deadline=None)
def test_records_for_the_datasets_come_whole(data: Path, between: list[int], rows: int, size: int) -> None:
    start, end = between
    piece: Any = SimpleNamespace(start=start, end=end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taking, "PARSED_ROWS", rows)
        patch.setattr(taking, "PARSED_BYTES", size)
        tables = list(taking._records(piece, FeedReader(Layout(data).feed("plant"))))
    offsets = [offset for table in tables for offset in table.column("offset").to_pylist()]
    assert offsets == list(range(start, end))


@given(rows=st.lists(any_size(5), max_size=8), group=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_a_sheet_has_every_row_of_every_group(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], group: int
) -> None:
    schema = files.stored(pa.schema([("_arrived", pa.timestamp("us", "UTC")), ("n", pa.int64())]))
    numbers = iter(range(sum(rows)))
    folder = tmp_path_factory.mktemp("sheet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "GROUP_ROWS_MAX", group)
        with Sheet(folder, "d", "p", schema, sync=False) as sheet:
            for size in rows:
                rows_now = pa.array([next(numbers) for _ in range(size)], pa.int64())
                sheet.add(pa.table([rows_now.cast(field.type) for field in schema], schema=schema))
    assert (sheet.written is None) == (sum(rows) == 0)
    if sheet.written is not None:
        whole = files.read_whole([sheet.path], schema)
        assert whole.column("n").to_pylist() == list(range(sum(rows)))
        assert sheet.written.rows == sum(rows)


@given(lengths=st.lists(st.integers(0, 30), max_size=20), most=st.integers(1, 60))
def test_of_rows_that_do_not_fit_every_one_is_counted(lengths: list[int], most: int) -> None:
    rows = ["x" * length for length in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notifications, "PAYLOAD_BYTES_MAX", most)
        text, left_out = notifications._cut(rows)
    kept = rows[: len(rows) - left_out]
    assert text == ",".join(kept)
    assert len(text) <= most
    assert not left_out or len(",".join(rows[: len(kept) + 1])) > most


class FakeClient:
    def __init__(self) -> None:
        self.parts: list[list[Outgoing]] = []
        self.under_way = 0
        self.under_way_max = 0

    async def publish_many(self, messages: list[Outgoing], *, stamp: bool) -> None:
        self.parts.append(messages)
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1


@pytest.mark.parametrize("size", [*sizes_around(delivery.PART_MESSAGES), 6 * delivery.PART_MESSAGES + 1])
def test_every_result_of_an_execution_is_published_once(size: int) -> None:
    names, payloads = [f"{number:06d}" for number in range(size)], [b"%d" % number for number in range(size)]
    found = pa.table([names, payloads], schema=FOUND)
    results: Any = SimpleNamespace(read=lambda execution: found, epoch="e")
    subscribers: Any = None
    carrier = Delivery("", results, subscribers, lambda *_: None)
    client: Any = FakeClient()
    execution: Any = SimpleNamespace(channel="c", number=1, finished_ns=1)
    asyncio.run(carrier._send(client, execution))
    assert [message.payload for part in client.parts for message in part] == payloads
    assert all(len(part) <= delivery.PART_MESSAGES for part in client.parts)
    assert client.under_way_max <= delivery.PARTS_MAX
    assert carrier.counts.notifications == size
