"""One piece of a feed becomes files of its datasets, in this process or in a task of Spark.

Laws:
- a piece is read whole or the taking fails; it may be taken again, under other names, and gives the same rows
- what is held in memory is bounded, whatever the length of the piece
- a file of a log is synced before it is told of; a part of a keyed dataset is only passed on
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import msgspec
import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.pipeline.datasets.files import Sheet, last_of_each, stored, with_version
from holdfast.pipeline.datasets.manifest import Written
from holdfast.pipeline.datasets.parsing import Parser
from holdfast.pipeline.datasets.stage import disk_failure
from holdfast.pipeline.datasets.views import QUARANTINE, QUARANTINE_COLUMNS, arrow_schema, columns_of
from holdfast.pipeline.declared import Dataset
from holdfast.pipeline.feed.place import Readable, open_feed
from holdfast.pipeline.layout import Layout

PARSED_ROWS = 16_384
PARSED_BYTES = 16 * 2**20


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The records [start, end) of a feed, for some of its datasets; their rows come with `version`."""

    where: str
    feed: str
    start: int
    end: int
    datasets: tuple[Dataset, ...]
    data: str
    version: int
    prefix: str


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Files that the manifest may name, and parts of keyed datasets; or `failed` says why there are none."""

    files: tuple[Written, ...] = ()
    parts: tuple[Written, ...] = ()
    failed: str = ""


def take_in_task(piece: Piece) -> Taken:
    try:
        return take_or_say(piece, open_feed(piece.where, piece.feed))
    except HoldfastError as error:
        return Taken(failed=str(error))


def take_or_say(piece: Piece, feed: Readable) -> Taken:
    """What fails is told, not raised: Spark would try the same again at once, and bury the reason."""
    try:
        return take(piece, feed)
    except HoldfastError as error:
        return Taken(failed=str(error))
    except OSError as error:
        return Taken(failed=disk_failure(Layout(piece.data), error))


def together(taken: Sequence[Taken]) -> Taken:
    return Taken(
        files=tuple(file for each in taken for file in each.files),
        parts=tuple(part for each in taken for part in each.parts),
        failed="; ".join(each.failed for each in taken if each.failed),
    )


def take(piece: Piece, feed: Readable) -> Taken:
    layout, parser = Layout(piece.data), Parser(piece.datasets)
    keyed = {each.name: each.key for each in piece.datasets if each.kind == "keyed"}
    with ExitStack() as stack:
        sheets = {
            name: stack.enter_context(
                Sheet(
                    layout.dataset(name),
                    name,
                    piece.prefix,
                    stored(arrow_schema(columns)),
                    sync=name not in keyed,
                )
            )
            for name, columns in _columns(piece.datasets)
        }
        for records in _records(piece, feed):
            for name, rows in parser.parse(records).items():
                fit = last_of_each(rows.fit, keyed[name]) if name in keyed else rows.fit
                sheets[name].add(with_version(fit, piece.version))
                sheets[QUARANTINE].add(with_version(rows.unfit, piece.version))
    written = [each.written for each in sheets.values() if each.written is not None]
    return Taken(
        files=tuple(each for each in written if each.dataset not in keyed),
        parts=tuple(each for each in written if each.dataset in keyed),
    )


def _columns(datasets: Sequence[Dataset]) -> Iterator[tuple[str, dict[str, str]]]:
    yield from ((each.name, columns_of(each)) for each in datasets)
    yield QUARANTINE, QUARANTINE_COLUMNS


def _records(piece: Piece, feed: Readable) -> Iterator[pa.Table]:
    """The records in tables that are worth a call for each column; recorders write smaller batches."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in feed.read(piece.start, piece.end):
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= PARSED_ROWS or size >= PARSED_BYTES:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting).combine_chunks()
