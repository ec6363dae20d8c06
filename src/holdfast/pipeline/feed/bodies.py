"""The bodies of a feed's journal, without any I/O.

Laws:
- a batch is Arrow IPC with the columns of RECORD; its first offset and its rows stand before it
- marks say of each publisher and topic how far it is recorded, as of an offset; they come in parts that
  follow each other, and only all of them together count
- a body is at most as long as the journal takes: what is longer is cut into several
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

import pyarrow as pa

from holdfast.pipeline.records import RECORD

KIND_BATCH = 1
KIND_MARKS = 2
KIND_MORE_MARKS = 3

MARK = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("publisher", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
    ]
)
SCHEMAS = {KIND_BATCH: RECORD, KIND_MARKS: MARK, KIND_MORE_MARKS: MARK}
NO_MARKS = pa.RecordBatch.from_pylist([], schema=MARK)
COLUMNS = tuple(name for name in RECORD.names if name != "offset")

# First offset, rows, and how many parts of the same marks follow.
_LEAD = Struct("<QII")
LEAD_BYTES = _LEAD.size


class Lead(NamedTuple):
    offset: int
    rows: int
    following: int


def decode_lead(lead: bytes) -> Lead:
    return Lead._make(_LEAD.unpack(lead))


def encode(lead: Lead, batch: pa.RecordBatch) -> bytes:
    return b"".join((_LEAD.pack(*lead), batch.serialize()))


def decode(kind: int, body: bytes) -> pa.RecordBatch:
    """The batch in a body whose checksum is right; ArrowInvalid or ValueError if it is none all the same."""
    lead = decode_lead(body[:LEAD_BYTES])
    batch = pa.ipc.read_record_batch(pa.py_buffer(body).slice(LEAD_BYTES), SCHEMAS[kind])
    if batch.num_rows != lead.rows:
        raise ValueError(f"{batch.num_rows} rows where {lead.rows} should be")
    return batch


def with_offsets(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """The columns of RECORD; ValueError says which of them is missing or not what it should be."""
    columns = [_offsets(first, batch.num_rows)]
    for name in COLUMNS:
        field = RECORD.field(name)
        column = batch.column(name) if name in batch.schema.names else None
        if column is None or column.type != field.type or (column.null_count and not field.nullable):
            found = "nothing" if column is None else f"{column.type} with {column.null_count} nulls"
            raise ValueError(f"column {name}: {field} expected, found {found}")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=RECORD)


def _offsets(first: int, rows: int) -> pa.Array:
    numbers = array("q", range(first, first + rows))
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(numbers)])


def split(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch in pieces whose bodies are not longer than this; one row that is too long stays so."""
    if batch.num_rows <= 1 or LEAD_BYTES + pa.ipc.get_record_batch_size(batch) <= bytes_max:
        yield batch
        return
    half = batch.num_rows // 2
    yield from split(batch.slice(0, half), bytes_max)
    yield from split(batch.slice(half), bytes_max)
