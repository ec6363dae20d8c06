"""The buffers of a collector as Arrow, without looking at a row."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from holdfast.pipeline.feed.bodies import COLUMNS, MARK
from holdfast.pipeline.records import RECORD

# Offsets and data of a column of texts or bytes.
Texts: TypeAlias = tuple[bytes, bytes]
# Rows; topics, payloads and publishers; sequence, created, arrived; which have a stamp, None if all have.
Collected: TypeAlias = tuple[int, Texts, Texts, Texts, bytes, bytes, bytes, bytes | None]
# Rows; topics and publishers; sequence.
Marks: TypeAlias = tuple[int, Texts, Texts, bytes]

COLLECTED = pa.schema([RECORD.field(name) for name in COLUMNS])


def _texts(kind: pa.DataType, rows: int, texts: Texts, validity: bytes | None = None) -> pa.Array:
    offsets, data = texts
    bits = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets), pa.py_buffer(data)])


def _numbers(rows: int, data: bytes, validity: bytes | None = None) -> pa.Array:
    bits = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(pa.int64(), rows, [bits, pa.py_buffer(data)])


def record_batch(collected: Collected) -> pa.RecordBatch:
    rows, topics, payloads, publishers, sequences, created, arrived, stamped = collected
    columns = [
        _texts(pa.string(), rows, topics),
        _texts(pa.binary(), rows, payloads),
        _texts(pa.string(), rows, publishers, stamped),
        _numbers(rows, sequences, stamped),
        _numbers(rows, created, stamped),
        _numbers(rows, arrived),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=COLLECTED)


def marks_batch(marks: Marks) -> pa.RecordBatch:
    rows, topics, publishers, sequences = marks
    columns = [
        _texts(pa.string(), rows, topics),
        _texts(pa.string(), rows, publishers),
        _numbers(rows, sequences),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MARK)
