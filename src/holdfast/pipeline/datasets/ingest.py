"""Ingestion: what the feeds have becomes files of datasets, once.

Laws:
- the offsets in the manifest are the only truth of how far a dataset has read; they move in the transaction
  that names the files of those records, so that a crash before it has done nothing, and after it everything
- files that no manifest names are nobody's: `tend` sweeps them
- a feed that cannot be read does not stop the others, and is tried again at each step
- a step takes a bounded number of records
- what a retention took away before a dataset read it is told in the quarantine, never passed over in silence
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError, HoldfastError, Problem, Unavailable
from holdfast.pipeline.datasets.files import (
    Sheet,
    last_of_each,
    read_whole,
    stored,
    sync,
    with_version,
)
from holdfast.pipeline.datasets.manifest import File, Manifest, Shape, Written
from holdfast.pipeline.datasets.parsing import quarantine_table
from holdfast.pipeline.datasets.stage import Stage, disk_in_words
from holdfast.pipeline.datasets.taking import Piece, Taken, take_in_task, take_or_say, together
from holdfast.pipeline.datasets.tending import Tending
from holdfast.pipeline.datasets.views import (
    QUARANTINE,
    QUARANTINE_COLUMNS,
    Datasets,
    arrow_schema,
    columns_of,
)
from holdfast.pipeline.declared import Dataset
from holdfast.pipeline.feed.place import Readable
from holdfast.pipeline.spark import in_words

CONSUMER = "datasets"
# What a step takes of each feed at most, what it does itself rather than ask Spark, and what a task takes.
RECORDS_MAX = 500_000
OWN_RECORDS_MAX = 20_000
TASK_RECORDS_MAX = 50_000


def shape_of(dataset: Dataset) -> Shape:
    return Shape(
        kind=dataset.kind,
        feed=dataset.feed,
        format=dataset.format,
        columns=columns_of(dataset),
        key=dataset.key,
    )


def check_shapes(datasets: Mapping[str, Dataset], manifest: Manifest, source: str = "pipeline") -> None:
    """A ConfigError if files that are there were written as something else than is declared now."""
    problems = []
    for dataset in datasets.values():
        if dataset.kind != "external" and (before := manifest.shape(dataset.name)) is not None:
            problems += [
                Problem(
                    f"dataset {dataset.name}",
                    f"{text}. Declare it as before, or give the dataset another name: "
                    "it then begins with what the feed still keeps",
                )
                for text in _changes(before, shape_of(dataset))
            ]
    if problems:
        raise ConfigError(source, problems)


def _changes(before: Shape, now: Shape) -> Iterator[str]:
    for what, was, is_now in (
        ("kind", before.kind, now.kind),
        ("feed", before.feed, now.feed),
        ("format", before.format, now.format),
        ("key", ", ".join(before.key), ", ".join(now.key)),
    ):
        if was != is_now:
            yield f'its {what} is "{is_now}", and its files were written with "{was}"'
    if before.format != now.format:
        return
    for column, kind in before.columns.items():
        if column not in now.columns:
            yield f"its files have a column {column} ({kind}), which is not declared any more"
        elif now.columns[column] != kind:
            yield f"column {column} is {now.columns[column]}, and in its files {kind}"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes of a feed for the datasets that have all read equally far.

    Of the records from `missing` to `start` nothing is left in the feed.
    """

    feed: str
    missing: int
    start: int
    end: int
    datasets: tuple[Dataset, ...]


class Ingestion:
    """One thread steps; another may tend meanwhile."""

    def __init__(
        self,
        datasets: Datasets,
        feeds: Mapping[str, Readable],
        where: str | Path | None = None,
        *,
        records_max: int = RECORDS_MAX,
        own_records_max: int = OWN_RECORDS_MAX,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`where` is the place of the feeds as tasks of Spark find it; the data folder if not given."""
        self.datasets = datasets
        self.manifest = datasets.manifest
        self.feeds = feeds
        self._layout = datasets.layout
        self._where = str(where or datasets.layout.data.absolute())
        self._records_max = records_max
        self._own_records_max = own_records_max
        self._clock = clock
        self._stage = Stage(self._layout, self.manifest)
        self._tending = Tending(datasets, self._stage, clock)
        self._told: dict[str, int] = {}
        read = {name: each for name, each in datasets.declared.items() if each.kind != "external"}
        self._of_feed = {
            feed: tuple(each for each in read.values() if each.feed == feed) for feed in self.feeds
        }
        check_shapes(read, self.manifest)
        for name, each in read.items():
            if self.manifest.shape(name) != shape_of(each):
                self.manifest.declare(name, shape_of(each))

    def step(self) -> int:
        """Takes what the feeds have, at most so much of each; gives the number of records.

        If some feed could not be read, Unavailable says so after the others are safe.
        """
        failed: list[str] = []
        with self.manifest.writing() as version, self._stage.work() as prefix:
            due: list[Reading] = []
            for feed in self.feeds:
                try:
                    due += self._due(feed)
                except HoldfastError as error:
                    failed.append(f"feed {feed}: {error}")
            taken = self._take(due, version, prefix) if due else []
            failed += [f"feed {reading.feed}: {got.failed}" for reading, got in taken if got.failed]
            good = [(reading, got) for reading, got in taken if not got.failed]
            if good:
                with disk_in_words(self._layout):
                    self._commit(good, version, prefix)
        failed += self._tell()
        if failed:
            raise Unavailable(f"{'; '.join(dict.fromkeys(failed))}. It is tried again, and nothing is lost.")
        return sum(reading.end - reading.start for reading, _ in good)

    def tend(self) -> None:
        """Compacts, expires and sweeps, a bounded amount each time. Steps wait only for its last moment."""
        with disk_in_words(self._layout):
            self._tending.tend()
            self._stage.sweep()

    # -- what is due -----------------------------------------------------------------------------------------

    def _due(self, feed: str) -> Iterator[Reading]:
        """Datasets that have read equally far go together; one that is behind stops where others are."""
        reader, head = self.feeds[feed], self.feeds[feed].head
        by_offset: dict[int | None, list[Dataset]] = {}
        for dataset in self._of_feed[feed]:
            by_offset.setdefault(self.manifest.offset(dataset.name), []).append(dataset)
        if all(offset == head for offset in by_offset):
            return
        first = reader.first
        # One that has read nothing begins with what is there.
        begun = {(first if offset is None else offset): each for offset, each in by_offset.items()}
        if None in by_offset and first in by_offset:
            begun[first] = [*by_offset[None], *by_offset[first]]
        stops = [*sorted(begun), head]
        if stops[-2] > head:
            raise Unavailable(
                f"its datasets have read up to {stops[-2]}, and it ends with {head}: it is not the feed that "
                "it was. Bring its journal back, or move the data folder away to begin again"
            )
        for offset, stop in pairwise(stops):
            start = max(offset, min(first, stop))
            end = min(stop, start + self._records_max)
            if end > offset:
                yield Reading(feed=feed, missing=offset, start=start, end=end, datasets=tuple(begun[offset]))

    # -- taking it -------------------------------------------------------------------------------------------

    def _take(self, due: Sequence[Reading], version: int, prefix: str) -> list[tuple[Reading, Taken]]:
        """A few records are no work for Spark: a job costs more than taking them here."""
        if sum(each.end - each.start for each in due) <= self._own_records_max:
            return [
                (
                    each,
                    take_or_say(
                        self._piece(each, each.start, each.end, version, prefix), self.feeds[each.feed]
                    ),
                )
                for each in due
            ]
        pieces: list[tuple[int, Piece]] = []
        told: dict[int, list[Taken]] = {number: [] for number in range(len(due))}
        for number, each in enumerate(due):
            try:
                ranges = self.feeds[each.feed].cut(each.start, each.end, TASK_RECORDS_MAX)
            except HoldfastError as error:
                told[number].append(Taken(failed=str(error)))
                continue
            pieces += [(number, self._piece(each, *ends, version, prefix)) for ends in ranges]
        context = self.datasets.spark.sparkContext
        with in_words("ingestion"):
            tasks = context.parallelize([piece for _, piece in pieces], max(1, len(pieces)))
            found = tasks.map(take_in_task).collect()
        for (number, _), taken in zip(pieces, found, strict=True):
            told[number].append(taken)
        return [(each, together(told[number])) for number, each in enumerate(due)]

    def _piece(self, reading: Reading, start: int, end: int, version: int, prefix: str) -> Piece:
        return Piece(
            where=self._where,
            feed=reading.feed,
            start=start,
            end=end,
            datasets=reading.datasets,
            data=str(self._layout.data.absolute()),
            version=version,
            prefix=prefix,
        )

    # -- the transaction -------------------------------------------------------------------------------------

    def _commit(self, good: Sequence[tuple[Reading, Taken]], version: int, prefix: str) -> None:
        added = [file for _, taken in good for file in taken.files]
        added += self._missing([reading for reading, _ in good], version, prefix)
        parts: dict[str, list[Path]] = {}
        for _, taken in good:
            for part in taken.parts:
                parts.setdefault(part.dataset, []).append(self._layout.dataset(part.dataset) / part.name)
        removed: list[File] = []
        for name, paths in parts.items():
            covers = [each for each in self.manifest.files(name) if not each.base]
            added.append(self._cover(self.datasets.declared[name], covers, paths, prefix))
            removed += covers
        for dataset in {each.dataset for each in added}:
            sync(self._layout.dataset(dataset))
        offsets = {dataset.name: reading.end for reading, _ in good for dataset in reading.datasets}
        made = self.manifest.commit(added, removed, offsets)
        assert made == version, "two writers"
        for path in (path for paths in parts.values() for path in paths):
            path.unlink()

    def _cover(self, dataset: Dataset, covers: Sequence[File], parts: Sequence[Path], prefix: str) -> Written:
        """What came covers what there was: the last row of each key since the base was written."""
        schema = stored(arrow_schema(columns_of(dataset)))
        folder = self._layout.dataset(dataset.name)
        rows = read_whole([*(folder / each.name for each in covers), *parts], schema)
        with Sheet(folder, dataset.name, prefix, schema) as sheet:
            sheet.add(last_of_each(rows, dataset.key))
        assert sheet.written is not None
        return sheet.written

    def _missing(self, good: Sequence[Reading], version: int, prefix: str) -> list[Written]:
        now_us = self._clock() // 1000
        rows = [
            (
                dataset.name,
                reading.feed,
                reading.missing,
                "",
                b"",
                f"records {reading.missing} to {reading.start - 1} were deleted before the dataset read them",
                now_us,
            )
            for reading in good
            if reading.missing < reading.start
            for dataset in reading.datasets
        ]
        schema = stored(arrow_schema(QUARANTINE_COLUMNS))
        with Sheet(self._layout.dataset(QUARANTINE), QUARANTINE, prefix, schema) as sheet:
            sheet.add(with_version(quarantine_table(rows), version))
        return [sheet.written] if sheet.written is not None else []

    def _tell(self) -> list[str]:
        """The recorder may delete what every dataset of a feed has read."""
        failed = []
        for feed, reader in self.feeds.items():
            offsets = [self.manifest.offset(each.name) for each in self._of_feed[feed]]
            known = [offset for offset in offsets if offset is not None]
            if not known or len(known) < len(offsets) or self._told.get(feed) == min(known):
                continue
            try:
                reader.commit(CONSUMER, min(known))
            except HoldfastError as error:
                failed.append(f"feed {feed}: {error}")
            else:
                self._told[feed] = min(known)
        return failed
