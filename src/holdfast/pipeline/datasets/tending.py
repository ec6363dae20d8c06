"""Keeping datasets in order: small files become larger ones, what covers a base goes into it, old rows go.

Laws:
- the rows of a dataset are the same before and after, but for those that have expired
- files that are replaced stay for a grace time that no query outlives; it is counted by a clock that does not
  go back, anew after each start
- a row of a log goes with its file, when the newest row of it is older than the retention: at most a tenth of
  the retention late, since rows that are farther apart are not put into one file. A row of a keyed dataset
  goes when its base is written again, which is as late at most
- an amount of work is bounded each time, but for a keyed base, which is streamed and never held
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.datasets.files import (
    Sheet,
    read_parts,
    read_whole,
    stored,
    sync,
    without_keys,
)
from holdfast.pipeline.datasets.manifest import File
from holdfast.pipeline.datasets.stage import Stage
from holdfast.pipeline.datasets.views import (
    QUARANTINE,
    QUARANTINE_COLUMNS,
    VERSION,
    Datasets,
    arrow_schema,
    columns_of,
)
from holdfast.pipeline.declared import HOUR, Dataset
from holdfast.units import S

QUARANTINE_RETENTION_NS = 7 * 24 * HOUR
# So many neighbours of one size, or smaller, become one file.
FILES_MIN = 16
SIZES = (2**20, 2**24, 2**27)
MERGED_BYTES_MAX = 2**28
# The share of a retention that a row may stay longer.
LATE_SHARE = 10
# A cover is written again at each step: it is small, or small beside its base.
COVER_ROWS_MIN = 10_000
COVER_ROWS_MAX = 100_000
COVER_SHARE = 8
GRACE_NS_MIN = 120 * S


class Tending:
    def __init__(self, datasets: Datasets, stage: Stage, clock: Callable[[], int]) -> None:
        self._datasets = datasets
        self._manifest = datasets.manifest
        self._layout = datasets.layout
        self._stage = stage
        self._clock = clock
        self._gone_since: dict[tuple[str, str], int] = {}
        self.grace_ns = max([GRACE_NS_MIN, *(2 * each.time_limit_ns for each in datasets.pipeline.channels)])

    def tend(self) -> None:
        now_ns = self._clock()
        for dataset in self._datasets.declared.values():
            if dataset.kind == "log":
                self._tend_log(dataset.name, columns_of(dataset), dataset.retention_ns, now_ns)
            elif dataset.kind == "keyed":
                self._tend_keyed(dataset, now_ns)
        self._tend_log(QUARANTINE, QUARANTINE_COLUMNS, QUARANTINE_RETENTION_NS, now_ns)
        self._delete_removed(time.monotonic_ns())

    # -- logs ------------------------------------------------------------------------------------------------

    def _tend_log(self, name: str, columns: dict[str, str], retention_ns: int | None, now_ns: int) -> None:
        files = self._manifest.files(name)
        if retention_ns is not None:
            expired = [each for each in files if each.newest_ns < now_ns - retention_ns]
            if expired:
                self._manifest.commit(removed=expired)
                files = [each for each in files if each not in expired]
        for run in runs(files, retention_ns):
            self._merge(name, stored(arrow_schema(columns)), run)

    def _merge(self, name: str, schema: pa.Schema, run: Sequence[File]) -> None:
        folder = self._layout.dataset(name)
        with self._stage.work() as prefix:
            with Sheet(folder, name, prefix, schema) as sheet:
                for rows in read_parts([folder / each.name for each in run], schema):
                    sheet.add(rows)
            self._replace(name, run, sheet)

    def _replace(self, name: str, removed: Sequence[File], *sheets: Sheet) -> None:
        added = [each.written for each in sheets if each.written is not None]
        if added:
            sync(self._layout.dataset(name))
        self._manifest.commit(added, removed)

    # -- keyed -----------------------------------------------------------------------------------------------

    def _tend_keyed(self, dataset: Dataset, now_ns: int) -> None:
        files = self._manifest.files(dataset.name)
        if not files:
            return
        base = [each for each in files if each.base]
        covers = [each for each in files if not each.base]
        base_rows = sum(each.rows for each in base)
        cover_rows_max = max(COVER_ROWS_MIN, min(COVER_ROWS_MAX, base_rows // COVER_SHARE))
        oldest_ns = None
        late = False
        if dataset.retention_ns is not None:
            oldest_ns = now_ns - dataset.retention_ns
            late_ns = oldest_ns - dataset.retention_ns // LATE_SHARE
            late = any(each.oldest_ns < late_ns for each in files)
        if late or sum(each.rows for each in covers) > cover_rows_max:
            self._fold(dataset, base, covers, oldest_ns)

    def _fold(
        self, dataset: Dataset, base: Sequence[File], covers: Sequence[File], oldest_ns: int | None
    ) -> None:
        """Base and cover become a base. What came while that was written stays as the cover."""
        folder, schema = self._layout.dataset(dataset.name), stored(arrow_schema(columns_of(dataset)))
        over = read_whole([folder / each.name for each in covers], schema)
        with self._stage.work() as prefix:
            with Sheet(folder, dataset.name, prefix, schema, base=True) as whole:
                for rows in read_parts([folder / each.name for each in base], schema):
                    whole.add(_arrived_since(without_keys(rows, dataset.key, over), oldest_ns))
                whole.add(_arrived_since(over, oldest_ns))
            with self._manifest.writing():
                newer = [each for each in self._manifest.files(dataset.name) if not each.base]
                with Sheet(folder, dataset.name, prefix, schema) as cover:
                    if newer != list(covers):
                        rows = read_whole([folder / each.name for each in newer], schema)
                        seen = max((each.last_version for each in covers), default=0)
                        cover.add(rows.filter(pc.greater(rows[VERSION], seen)))
                self._replace(dataset.name, [*base, *newer], whole, cover)

    # -- files that were replaced ----------------------------------------------------------------------------

    def _delete_removed(self, now_ns: int) -> None:
        removed = {(each.dataset, each.name): each for each in self._manifest.removed()}
        self._gone_since = {key: self._gone_since.get(key, now_ns) for key in removed}
        due = [
            removed[key] for key, since_ns in self._gone_since.items() if now_ns - since_ns >= self.grace_ns
        ]
        if due:
            for each in due:
                (self._layout.dataset(each.dataset) / each.name).unlink(missing_ok=True)
            self._manifest.forget(due)


def runs(files: Sequence[File], retention_ns: int | None) -> Iterator[list[File]]:
    """Neighbours that are worth being one file, smallest first. No file is in two runs."""
    taken: set[str] = set()
    for size in SIZES:
        run: list[File] = []
        for file in [*files, None]:
            if (
                file is not None
                and file.bytes < size
                and file.name not in taken
                and _joins(run, file, retention_ns)
            ):
                run.append(file)
                continue
            if len(run) >= FILES_MIN:
                taken |= {each.name for each in run}
                yield run
            run = [file] if file is not None and file.bytes < size and file.name not in taken else []


def _joins(run: Sequence[File], file: File, retention_ns: int | None) -> bool:
    if sum(each.bytes for each in run) + file.bytes > MERGED_BYTES_MAX:
        return False
    if retention_ns is None or not run:
        return True
    newest_ns = max(file.newest_ns, *(each.newest_ns for each in run))
    oldest_ns = min(file.oldest_ns, *(each.oldest_ns for each in run))
    return newest_ns - oldest_ns <= retention_ns // LATE_SHARE


def _arrived_since(rows: pa.Table, oldest_ns: int | None) -> pa.Table:
    if oldest_ns is None:
        return rows
    oldest = pa.scalar(oldest_ns // 1000, pa.timestamp("us", "UTC"))
    return rows.filter(pc.greater_equal(rows["_arrived"], oldest))
