"""DataFrames across the sessions of one Spark, and names for them.

Laws:
- a name means something else in each session: executions that run at the same time have one each, with the
  same data underneath
- what is new and small goes along with the query: the driver reads the few files itself, and
  each file once for all channels; Spark opens no file and starts no job for it
- naming costs no query: Spark's way through a command is taken once for a name, and then its plan is replaced

PySpark has no public way to do these, so this file alone knows classes of Spark's driver.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from holdfast.pipeline.datasets.manifest import File
    from holdfast.pipeline.datasets.views import Datasets

# Up to so much is sent along with a query.
LOCAL_ROWS_MAX = 20_000
LOCAL_BYTES_MAX = 8 * 2**20
FILES_MAX = 512
FILES_BYTES_MAX = 64 * 2**20


@cache
def _java(gateway: Any, name: str) -> Any:
    """A class of the driver; PySpark looks through every jar each time that it is asked for one by name."""
    found = gateway.jvm
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _class(session: SparkSession, name: str) -> Any:
    return _java(session.sparkContext._gateway, name)


def lift(session: SparkSession, frame: DataFrame) -> DataFrame:
    """The same rows in another session; the plan was analysed before, and stays."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    dataset = _class(session, "org.apache.spark.sql.classic.Dataset")
    return ClassicDataFrame(dataset.ofRows(session._jsparkSession, _plan(frame)), session)


def give_name(session: SparkSession, name: str, frame: DataFrame) -> None:
    """In queries of the session the name means these rows from now on."""
    catalog = session._jsparkSession.sessionState().catalog()
    before = catalog.getRawTempView(name)
    if before.isEmpty():
        lift(session, frame).createOrReplaceTempView(name)
        return
    view = before.get()
    plan = _class(session, "scala.Option").apply(_plan(frame))
    catalog.createTempView(name, view.copy(view.tableMeta(), plan), True)


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


class NewRows:
    """What is new in datasets, as DataFrames. Any thread may ask."""

    def __init__(self, datasets: Datasets) -> None:
        self._datasets = datasets
        self._tables: OrderedDict[str, pa.Table] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def frame(self, name: str, after: int, upto: int) -> DataFrame:
        """The same rows as those of `Datasets.new`."""
        files = self._datasets.manifest.added(name, after, upto)
        if not self._is_small(files):
            return self._datasets.new(name, after, upto)
        folder = self._datasets.layout.dataset(name)
        tables = [self._read(folder, each, after) for each in files]
        columns = [field.name for field in self._datasets.schema(name)]
        # In one piece: Spark reads a table up to its first empty piece.
        table = pa.concat_tables(tables).select(columns).combine_chunks()
        return self._datasets.spark.createDataFrame(table, self._datasets.schema(name))

    @staticmethod
    def _is_small(files: Sequence[File]) -> bool:
        """And a log, or what covers the base of a keyed dataset: a base is joined with it by Spark."""
        return (
            bool(files)
            and not any(each.base for each in files)
            and sum(each.rows for each in files) <= LOCAL_ROWS_MAX
            and sum(each.bytes for each in files) <= LOCAL_BYTES_MAX
        )

    def _read(self, folder: Path, file: File, after: int) -> pa.Table:
        import pyarrow.compute as pc

        from holdfast.pipeline.datasets.views import VERSION

        table = self._kept(file.name)
        if table is None:
            import pyarrow.parquet as pq

            table = pq.read_table(folder / file.name, partitioning=None)
            self._keep(file.name, table)
        if file.first_version > after:
            return table
        return table.filter(pc.greater(table.column(VERSION), after))

    def _kept(self, name: str) -> pa.Table | None:
        with self._lock:
            if name in self._tables:
                self._tables.move_to_end(name)
            return self._tables.get(name)

    def _keep(self, name: str, table: pa.Table) -> None:
        with self._lock:
            if name not in self._tables:
                self._bytes += table.nbytes
            self._tables[name] = table
            while len(self._tables) > FILES_MAX or self._bytes > FILES_BYTES_MAX:
                self._bytes -= self._tables.popitem(last=False)[1].nbytes
