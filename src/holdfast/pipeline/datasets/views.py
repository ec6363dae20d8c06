"""Datasets as Spark sees them: DataFrames over the files that the manifest names.

Laws:
- what a DataFrame reads is settled by (dataset, version): files are named, with their schema; nothing is
  listed or inferred
- `new` and `frame` agree: a log's `frame` is the union of its `new`; a keyed dataset's `new` is those rows of
  its `frame` that came after, so that it is the same before and after compaction
- in a keyed dataset each key is at most once in the base, and at most once in the file that covers it: its
  state is a scan and a join with what is small, never a sort
- the same files give the same DataFrame, analysed once, whoever asks
- an external file has no versions: it is read as it is, and again when its time or size changes
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import Unavailable
from holdfast.pipeline.datasets.manifest import File, Manifest
from holdfast.pipeline.datasets.types import ROW_COLUMNS, arrow_type, parse_type
from holdfast.pipeline.spark import in_words

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from holdfast.pipeline.declared import Dataset, Pipeline
    from holdfast.pipeline.layout import Layout

QUARANTINE = "quarantine"
VERSION = "_version"
QUARANTINE_COLUMNS = {
    "dataset": "string",
    "feed": "string",
    "_offset": "bigint",
    "_topic": "string",
    "payload": "binary",
    "reason": "string",
    "_arrived": "timestamp",
}
FRAMES_MAX = 256


def columns_of(dataset: Dataset) -> dict[str, str]:
    """The columns of a dataset and their types, those that every row of a feed has among them."""
    if dataset.kind == "external":
        return dict(dataset.schema)
    own = {"payload": "binary"} if dataset.format == "raw" else dataset.schema
    return {**own, **ROW_COLUMNS}


def arrow_schema(columns: dict[str, str]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, arrow_type(parse_type(kind))) for name, kind in columns.items()])


def spark_schema(columns: dict[str, str]) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(arrow_schema(columns))


class Datasets:
    """The datasets of a pipeline. Any thread may ask."""

    def __init__(
        self,
        spark: SparkSession,
        declared: Pipeline,
        layout: Layout,
        manifest: Manifest,
        beside: Path = Path(),
    ) -> None:
        """Files of external datasets are relative to the folder `beside`: that of the pipeline file."""
        self.spark = spark
        self.layout = layout
        self.manifest = manifest
        self.pipeline = declared
        self.declared = {each.name: each for each in declared.datasets}
        self._beside = beside
        self._columns = {name: columns_of(each) for name, each in self.declared.items()}
        self._columns[QUARANTINE] = QUARANTINE_COLUMNS
        self._schemas = {name: spark_schema(columns) for name, columns in self._columns.items()}
        self._stored = {
            name: spark_schema({**columns, VERSION: "bigint"}) for name, columns in self._columns.items()
        }
        self._frames: OrderedDict[object, DataFrame] = OrderedDict()
        self._lock = threading.Lock()
        self._externals: dict[str, tuple[tuple[int, int], DataFrame]] = {}
        self._external_lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """Every dataset that queries may name, the built-in one too."""
        return list(self._columns)

    def schema(self, name: str) -> StructType:
        return self._schemas[name]

    def frame(self, name: str, version: int) -> DataFrame:
        """The rows of the dataset at that version; of a keyed one the last of each key."""
        dataset = self.declared.get(name)
        if dataset is not None and dataset.kind == "external":
            return self._external(dataset)
        return self._rows(name, self.manifest.files(name, version), None)

    def new(self, name: str, after: int, upto: int) -> DataFrame:
        """The rows that came with the versions in (after, upto]; of a keyed dataset the last of each key."""
        files = self.manifest.added(name, after, upto)
        whole = all(each.first_version > after for each in files)
        return self._rows(name, files, None if whole else after)

    def rows_new(self, name: str, after: int, upto: int) -> int:
        """At most so many rows are new, from the manifest alone; 0 if and only if there is none.

        It is more than there are if compaction has put new rows and older ones into one file, or if the
        dataset is keyed: its new rows are in one file with those that cover the base.
        """
        return sum(each.rows for each in self.manifest.added(name, after, upto))

    # -- DataFrames ------------------------------------------------------------------------------------------

    def _rows(self, name: str, files: Sequence[File], above: int | None) -> DataFrame:
        """The rows of these files, or those of versions above one."""
        key = (name, tuple(each.name for each in files), above)
        return self._cached(key, lambda: self._make(name, files, above))

    def _make(self, name: str, files: Sequence[File], above: int | None) -> DataFrame:
        from pyspark.sql import functions as f

        base = [each for each in files if each.base]
        cover = [each for each in files if not each.base]
        rows = self._read(name, base or cover)
        if base and cover:
            over, key = self._read(name, cover), list(self.declared[name].key)
            rows = rows.join(f.broadcast(over.select(*key)), key, "left_anti").unionByName(over)
        if above is not None:
            rows = rows.where(f.col(VERSION) > above)
        return rows.select(*self._columns[name])

    def _read(self, name: str, files: Sequence[File]) -> DataFrame:
        if not files:
            return self.spark.createDataFrame([], self._stored[name])
        folder = self.layout.dataset(name).absolute()
        return self.spark.read.schema(self._stored[name]).parquet(
            *(str(folder / each.name) for each in files)
        )

    def _external(self, dataset: Dataset) -> DataFrame:
        path = (self._beside / dataset.file).absolute()
        try:
            found = path.stat()
        except OSError as error:
            text = f"{path}, the file of dataset {dataset.name}, cannot be read: {error.strerror}"
            raise Unavailable(text) from None
        stamp = (found.st_mtime_ns, found.st_size)
        with self._external_lock:
            before = self._externals.get(dataset.name)
            if before is None or before[0] != stamp:
                self._externals[dataset.name] = (stamp, self._read_external(dataset, path))
                if before is not None:
                    before[1].unpersist()
            return self._externals[dataset.name][1]

    def _read_external(self, dataset: Dataset, path: Path) -> DataFrame:
        """All of it at once, and kept: what is wrong in it is known before any query."""
        reader = self.spark.read.schema(self._schemas[dataset.name]).option("mode", "FAILFAST")
        with in_words(f"reading {path}, the file of dataset {dataset.name},"):
            if path.suffix == ".csv":
                rows = reader.options(header=True, enforceSchema=False).csv(str(path))
            elif path.suffix == ".json":
                rows = reader.option("multiLine", _is_array(path)).json(str(path))
            else:
                rows = reader.parquet(str(path))
            rows = rows.persist()
            rows.count()
        return rows

    def _cached(self, key: object, make: Callable[[], DataFrame]) -> DataFrame:
        with self._lock:
            if (found := self._frames.get(key)) is not None:
                self._frames.move_to_end(key)
                return found
        made = make()
        with self._lock:
            self._frames[key] = made
            while len(self._frames) > FRAMES_MAX:
                self._frames.popitem(last=False)
        return made


def _is_array(path: Path) -> bool:
    """A JSON file is one array, or an object a line."""
    with path.open("rb") as file:
        return file.read(4096).lstrip()[:1] == b"["
