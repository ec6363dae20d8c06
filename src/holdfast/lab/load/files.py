"""Columns become Parquet files, with the names and types that the store of results fixes.

Laws:
- a file is written beside its name and then renamed: whoever sees it sees all of it
- what is held in memory is bounded: `spill` writes full blocks when there are many
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.lab.load.recorder import Block, Columns

BLOCKS_HELD_MAX = 96
"""About three gigabytes of arrivals; writing while measuring would take a core from what is measured."""


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


def table_of(block: Block, schema: pa.Schema) -> pa.Table:
    arrays = [
        pa.Array.from_buffers(field.type, block.rows, [None, pa.py_buffer(getattr(block, field.name))])
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_tables(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    # Numbers that follow each other become small differences: a third of the time, an eighth of the bytes.
    deltas = {field.name: "DELTA_BINARY_PACKED" for field in schema if pa.types.is_integer(field.type)}
    with pq.ParquetWriter(unfinished, schema, use_dictionary=False, column_encoding=deltas) as writer:
        for table in tables:
            writer.write_table(table)
    os.replace(unfinished, path)


class Files:
    """The files of one process: `NAME-0.parquet` and so on in `folder`."""

    def __init__(self, folder: Path, name: str, columns: Mapping[str, str], source: Columns) -> None:
        self._folder, self._name, self._source = folder, name, source
        self._schema = schema_of(columns)
        self._count = 0

    def _write(self, blocks: list[Block]) -> None:
        path = self._folder / f"{self._name}-{self._count}.parquet"
        self._count += 1
        write_tables(path, self._schema, self._tables(blocks))

    def _tables(self, blocks: list[Block]) -> Iterator[pa.Table]:
        """Each block is let go as soon as it is written."""
        blocks.reverse()
        while blocks:
            yield table_of(blocks.pop(), self._schema)

    async def spill(self) -> None:
        if self._source.full_blocks >= BLOCKS_HELD_MAX:
            await asyncio.to_thread(self._write, self._source.take_full())

    def finish(self) -> None:
        """Writes what is left; at least one file, so that whoever reads finds the columns."""
        blocks = self._source.take()
        if blocks or not self._count:
            self._write(blocks)
