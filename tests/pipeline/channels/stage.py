"""A data folder with datasets that tests fill by hand, and the channels that run on it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from holdfast.pipeline.channels.service import Channels
from holdfast.pipeline.datasets.manifest import Manifest, Written
from holdfast.pipeline.datasets.views import VERSION, Datasets, arrow_schema, columns_of
from holdfast.pipeline.declared import parse_pipeline
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.results import Results
from holdfast.pipeline.spark import session

MASTER = "local[2]"


def spark() -> SparkSession:
    """The session that all tests of a process share."""
    return session(MASTER, memory="1g")


class Told:
    """Stands where the brokers tell which subscriptions exist."""

    def __init__(self) -> None:
        self._of: dict[str, list[str]] = {}
        self._versions: dict[str, int] = {}

    def tell(self, channel: str, subscriptions: Iterable[str]) -> None:
        self._of[channel] = list(subscriptions)
        self._versions[channel] = self.version(channel) + 1

    def version(self, channel: str) -> int:
        return self._versions.get(channel, 0)

    def of(self, channel: str) -> list[str]:
        return list(self._of.get(channel, ()))


class Stage:
    """One pipeline in `folder`; `add` is what ingestion does: one version with these rows."""

    def __init__(self, folder: Path, document: str) -> None:
        self.source = folder / "pipeline.toml"
        self.source.parent.mkdir(parents=True, exist_ok=True)
        self.source.write_text(document)
        self.declared = parse_pipeline(document)
        self.layout = Layout(folder / "data")
        self.manifest = Manifest.writer(self.layout.manifest)
        self.datasets = Datasets(spark(), self.declared, self.layout, self.manifest, folder)
        self.results = Results(self.layout)
        self.told = Told()
        self.channels = Channels(spark(), self.declared, self.datasets, self.results, self.told, self.source)

    def close(self) -> None:
        self.channels.close()
        self.results.close()
        self.manifest.close()

    def add(self, rows: Mapping[str, Sequence[Mapping[str, Any]] | pa.Table]) -> int:
        files = [self._write(name, given) for name, given in rows.items()]
        return self.manifest.commit(files)

    def _write(self, name: str, given: Sequence[Mapping[str, Any]] | pa.Table) -> Written:
        version = self.manifest.version + 1
        schema = arrow_schema({**columns_of(self.datasets.declared[name]), VERSION: "bigint"})
        if not isinstance(given, pa.Table):
            given = pa.Table.from_pylist([dict(row) for row in given])
        size = given.num_rows
        missing = {
            field.name: pa.nulls(size, field.type) for field in schema if field.name not in given.column_names
        }
        missing[VERSION] = pa.array([version] * size, pa.int64())
        for column, values in missing.items():
            given = given.append_column(column, values)
        table = given.select(schema.names).cast(schema)
        folder = self.layout.dataset(name)
        folder.mkdir(parents=True, exist_ok=True)
        file = f"{uuid4().hex}.parquet"
        pq.write_table(table, folder / file)
        now_ns = time.time_ns()
        return Written(
            dataset=name, name=file, rows=size, bytes=(folder / file).stat().st_size,
            first_version=version, last_version=version, oldest_ns=now_ns, newest_ns=now_ns,
        )  # fmt: skip

    def compact(self, name: str) -> None:
        """All files of a log become one; its rows belong to the versions that brought them."""
        files = self.manifest.files(name)
        folder = self.layout.dataset(name)
        file = f"{uuid4().hex}.parquet"
        table = pa.concat_tables(pq.read_table(folder / each.name, partitioning=None) for each in files)
        pq.write_table(table, folder / file)
        written = Written(
            dataset=name, name=file, rows=table.num_rows, bytes=(folder / file).stat().st_size,
            first_version=min(each.first_version for each in files),
            last_version=max(each.last_version for each in files), oldest_ns=0, newest_ns=time.time_ns(),
        )  # fmt: skip
        self.manifest.commit([written], files)

    def execute(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Rows by subscription of one execution of the channel."""
        return self.found(self.channels.execute(name, time.time_ns()))

    def found(self, execution: Any) -> dict[str, list[dict[str, Any]]]:
        if execution is None:
            return {}
        kept = {each.number: each for each in self.results.undelivered(execution.channel)}
        if execution.number not in kept:
            return {}
        table = self.results.read(kept[execution.number])
        return {
            subscription: json.loads(payload)["rows"]
            for subscription, payload in zip(*(column.to_pylist() for column in table.columns), strict=True)
        }
