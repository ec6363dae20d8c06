"""Batches of records for tests."""

import pyarrow as pa

from holdfast.pipeline.records import RECORD

COLUMNS = pa.schema([field for field in RECORD if field.name != "offset"])


def batch(numbers: range, *, topic: str = "plant/a", payload_bytes: int = 8) -> pa.RecordBatch:
    """One record for each number, which is its payload; odd ones have a stamp."""
    rows = [
        {
            "topic": topic,
            "payload": str(number).encode().rjust(payload_bytes, b"."),
            "publisher": "p.1" if number % 2 else None,
            "sequence": number if number % 2 else None,
            "created_ns": number * 10 if number % 2 else None,
            "arrived_ns": number * 10 + 5,
        }
        for number in numbers
    ]
    return pa.RecordBatch.from_pylist(rows, schema=COLUMNS)


def numbers_of(batches: list[pa.RecordBatch]) -> list[int]:
    return [int(payload.as_py().lstrip(b".")) for each in batches for payload in each.column("payload")]
