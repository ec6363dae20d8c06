"""Feeds with records in them, written as a recorder would."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from holdfast.pipeline.feed.journal import FeedWriter
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.records import RECORD

TOPICS = 7


def topic_of(number: int) -> str:
    return f"plant/{number % TOPICS}"


def payload_of(number: int) -> bytes:
    return b'{"number": %d}' % number


def records(first: int, end: int) -> pa.RecordBatch:
    """The columns of RECORD but the offset; record n is of `topic_of(n)` and says n."""
    numbers = range(first, end)
    columns = {
        "topic": [topic_of(number) for number in numbers],
        "payload": [payload_of(number) for number in numbers],
        "publisher": [None if number % 5 == 0 else "machine" for number in numbers],
        "sequence": [None if number % 5 == 0 else number for number in numbers],
        "created_ns": [None if number % 5 == 0 else number * 1000 for number in numbers],
        "arrived_ns": [number * 1000 + 1 for number in numbers],
    }
    fields = [RECORD.field(name) for name in columns]
    return pa.RecordBatch.from_pydict(columns, schema=pa.schema(fields))


def record(data: Path, feed: str, sizes: Iterable[int], bytes_max: int = 2**26) -> int:
    """Appends batches of these sizes, each committed; gives the head."""
    writer = FeedWriter.open(Layout(data).feed(feed), bytes_max=bytes_max)
    try:
        for size in sizes:
            writer.append(records(writer.end, writer.end + size))
            writer.commit()
        return writer.head
    finally:
        writer.close()
