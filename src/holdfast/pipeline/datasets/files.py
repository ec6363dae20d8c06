"""Parquet files of datasets: written whole and synced before anybody names them, read in the order of rows.

Laws:
- a file has a name that nobody else gives, and is never changed
- every row has the version that it came with, in the column `_version`, which queries do not see
- a file that was written under an older declaration reads as the newer one: columns that it has not are null
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.pipeline.datasets.manifest import Written
from holdfast.pipeline.datasets.views import VERSION

GROUP_ROWS_MAX = 131_072
GROUP_BYTES_MAX = 64 * 2**20
READ_ROWS = 65_536
OFFSET = "_offset"


def stored(schema: pa.Schema) -> pa.Schema:
    """The columns of a dataset, and the version of each row."""
    return schema.append(pa.field(VERSION, pa.int64()))


def with_version(rows: pa.Table, version: int) -> pa.Table:
    return rows.append_column(
        pa.field(VERSION, pa.int64()), pa.repeat(pa.scalar(version, pa.int64()), rows.num_rows)
    )


class Sheet:
    """One Parquet file under way. It comes to be with its first row; `written` is None if there was none."""

    def __init__(
        self,
        folder: Path,
        dataset: str,
        prefix: str,
        schema: pa.Schema,
        *,
        base: bool = False,
        sync: bool = True,
    ) -> None:
        self.path = folder / f"{prefix}-{secrets.token_hex(8)}.parquet"
        self.written: Written | None = None
        self._dataset = dataset
        self._schema = schema
        self._base = base
        self._sync = sync
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._rows = 0
        self._arrived: list[int] = []
        self._versions: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            self._finish()
        except BaseException:
            self._discard()
            raise

    def add(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS_MAX or self._waiting_bytes >= GROUP_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        group = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pa.OSFile(str(self.path), "wb")
            self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        self._writer.write_table(group, row_group_size=GROUP_ROWS_MAX)
        self._rows += group.num_rows
        for column, seen in (("_arrived", self._arrived), (VERSION, self._versions)):
            ends = pc.min_max(group[column].cast(pa.int64()))
            seen[:] = [min([ends["min"].as_py(), *seen]), max([ends["max"].as_py(), *seen])]

    def _finish(self) -> None:
        if self._waiting:
            self._flush()
        if self._writer is None:
            return
        self._writer.close()
        self._file.close()
        if self._sync:
            sync(self.path)
        self.written = Written(
            dataset=self._dataset,
            name=self.path.name,
            rows=self._rows,
            bytes=self.path.stat().st_size,
            first_version=self._versions[0],
            last_version=self._versions[1],
            oldest_ns=self._arrived[0] * 1000,
            newest_ns=self._arrived[1] * 1000,
            base=self._base,
        )

    def _discard(self) -> None:
        """On a full disk not even its end can be written, and nobody will read it."""
        if self._writer is not None:
            with suppress(OSError, ValueError):
                self._writer.close()
            with suppress(OSError, ValueError):
                self._file.close()
            self.path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """A file, or the names in a folder, is safe on disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_parts(paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of the files, a bounded number at a time."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(READ_ROWS):
                yield conform(pa.Table.from_batches([batch]), schema)


def read_whole(paths: Sequence[Path], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *read_parts(paths, schema)])


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.table(
        [
            rows[field.name] if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ],
        schema=schema,
    )


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The row with the highest offset of each key. No two rows of a dataset have one offset."""
    last = rows.group_by(list(key), use_threads=False).aggregate([(OFFSET, "max")])
    return rows.filter(pc.is_in(rows[OFFSET], last[f"{OFFSET}_max"].combine_chunks()))


def without_keys(rows: pa.Table, key: Sequence[str], covering: pa.Table) -> pa.Table:
    """The rows whose key `covering` has not."""
    left = rows.select([*key, OFFSET]).join(
        covering.select(list(key)), list(key), join_type="left anti", use_threads=False
    )
    return rows.filter(pc.is_in(rows[OFFSET], left[OFFSET].combine_chunks()))
