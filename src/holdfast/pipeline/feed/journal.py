"""A feed on disk: batches of records, numbered by offsets, in the segments of a journal.

Laws:
- an offset names one record for ever; offsets have no gap
- a reader sees what HEAD shows and nothing else: never a record that a crash may take away
- a range is read whole or not at all: Gone, Beyond or Corrupt, never short and never silent
- a segment goes only when it is below every consumer's mark, old enough, and followed by whole marks, from
  which what was recorded is known without it
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import pyarrow as pa

from holdfast.errors import Unavailable
from holdfast.journal import Bounds, Corrupt, Cut, Journal, State
from holdfast.journal.format import HEADER_BYTES, segment_first, segment_name
from holdfast.journal.format import Head as RecordHead
from holdfast.journal.opening import Segment
from holdfast.journal.reading import Place, SegmentFile
from holdfast.pipeline.feed.bodies import (
    KIND_BATCH,
    KIND_MARKS,
    KIND_MORE_MARKS,
    LEAD_BYTES,
    NO_MARKS,
    Lead,
    decode,
    decode_lead,
    encode,
    split,
    with_offsets,
)
from holdfast.pipeline.feed.consumers import Consumers
from holdfast.pipeline.feed.errors import Beyond, Gone
from holdfast.pipeline.feed.head import Head, read_head, write_head

BYTES_MAX_DEFAULT = 2**34
SEGMENT_BYTES_MAX = 64 * 2**20
SEGMENTS = 8
# Marks are written anew when so many times their size, and a whole segment, has followed them.
MARKS_SHARE = 4
INDEXES_MAX = 32
OFFSETS_MAX = 10_000


def segments_of(directory: Path) -> Path:
    return directory / "journal"


def _lead(place: Place) -> Lead:
    return decode_lead(place.lead)


def first_offset(path: Path, end: int | None = None) -> int | None:
    """The offset with which a segment begins; None if it has no record yet."""
    with SegmentFile(path) as file:
        for place in file.walk(HEADER_BYTES, file.first, file.size if end is None else end, LEAD_BYTES):
            return _lead(place).offset
    return None


class FeedWriter:
    """Belongs to one process at a time, and in it to one thread at a time.

    With `marked` the caller says how far each publisher and topic is recorded, with `append_marks` whenever
    `marks_due`; without it nobody will ask.
    """

    def __init__(self, directory: Path, journal: Journal, *, marked: bool) -> None:
        self.directory = directory
        self.consumers = Consumers(directory)
        self._journal = journal
        self._marked = marked
        self._marks_number = 0
        self._marks_bytes = 0
        self._since_marks_bytes = 0
        self._end = self._find_end()
        self._shown: Head | None = None
        self._firsts: dict[int, int] = {}
        self._find_marks()
        self._durable = self._end
        self._show()

    @classmethod
    def open(cls, directory: Path, *, bytes_max: int = BYTES_MAX_DEFAULT, marked: bool = False) -> Self:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"cannot make {directory} for a feed: {error.strerror or error}") from error
        segment_bytes = min(SEGMENT_BYTES_MAX, bytes_max // SEGMENTS)
        bounds = Bounds(
            segment_bytes=segment_bytes, bytes_max=bytes_max, waiting_bytes_max=max(2**26, 2 * segment_bytes)
        )
        journal = Journal.open(segments_of(directory), bounds)
        try:
            return cls(directory, journal, marked=marked)
        except BaseException:
            journal.close()
            raise

    @property
    def head(self) -> int:
        return self._durable

    @property
    def end(self) -> int:
        """One past the last offset that was given."""
        return self._end

    @property
    def cut(self) -> Cut | None:
        """The torn end that a crash had left, which opening cut away."""
        return self._journal.cut

    @property
    def failed(self) -> bool:
        return self._journal.state is State.FAILED

    @property
    def used_bytes(self) -> int:
        return self._journal.used_bytes

    # -- appending -----------------------------------------------------------------------------------------

    def append(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Takes the columns of RECORD but `offset`, all rows or none; gives the offsets [first, end)."""
        first = self._end
        bodies = []
        for piece in split(with_offsets(batch, first), self._journal.bounds.body_bytes_max):
            if piece.num_rows:
                bodies.append(encode(Lead(self._end, piece.num_rows, 0), piece))
                self._end += piece.num_rows
        try:
            self._journal.append_many(KIND_BATCH, bodies)
        except Unavailable:
            self._end = first
            raise
        self._since_marks_bytes += sum(map(len, bodies))
        if not self._marked and self.marks_due:
            self.append_marks([])
        return first, self._end

    @property
    def marks_due(self) -> bool:
        bounds = self._journal.bounds
        wanted = max(bounds.segment_bytes, MARKS_SHARE * self._marks_bytes)
        return self._since_marks_bytes >= min(wanted, bounds.bytes_max // MARKS_SHARE)

    def append_marks(self, marks: Sequence[pa.RecordBatch]) -> None:
        """How far everything is recorded, as of the records that were appended so far."""
        longest = self._journal.bounds.body_bytes_max
        pieces = [piece for batch in marks for piece in split(batch, longest)] or [NO_MARKS]
        bodies = [
            encode(Lead(self._end, piece.num_rows, len(pieces) - place), piece)
            for place, piece in enumerate(pieces, 1)
        ]
        number = self._journal.append(KIND_MARKS, bodies[0], use_reserve=True)
        self._journal.append_many(KIND_MORE_MARKS, bodies[1:], use_reserve=True)
        self._marks_number = number
        self._marks_bytes = sum(map(len, bodies))
        self._since_marks_bytes = 0

    def commit(self) -> int:
        """What was appended is durable when this returns; gives the head. After a failure it tries again."""
        durable_number = self._journal.recover() if self.failed else self._journal.commit()
        assert durable_number == self._journal.next_number - 1
        self._durable = self._end
        self._show()
        return self._durable

    def _show(self) -> None:
        last = self._journal.segments[-1]
        head = Head(self._durable, last.first, last.size)
        if head == self._shown:
            return
        try:
            write_head(self.directory, head)
        except OSError as error:
            raise Unavailable(f"cannot write HEAD in {self.directory}: {error.strerror or error}") from error
        self._shown = head

    # -- what is there -------------------------------------------------------------------------------------

    def _path(self, first: int) -> Path:
        return segments_of(self.directory) / segment_name(first)

    def _places(self, segment: Segment) -> list[Place]:
        with SegmentFile(self._path(segment.first)) as file:
            return list(file.walk(HEADER_BYTES, file.first, segment.size, LEAD_BYTES))

    def _find_end(self) -> int:
        for segment in reversed(self._journal.segments):
            if places := self._places(segment):
                lead = _lead(places[-1])
                return lead.offset + (lead.rows if places[-1].head.kind == KIND_BATCH else 0)
        return 0

    def _find_marks(self) -> None:
        """Where the last whole marks begin, how long they are, and how much follows them."""
        more: dict[int, int] = {}
        for segment in reversed(self._journal.segments):
            for place in reversed(self._places(segment)):
                head = place.head
                if head.kind == KIND_MORE_MARKS:
                    more[head.number] = head.length
                elif head.kind == KIND_BATCH:
                    self._since_marks_bytes += head.length
                else:
                    parts = range(head.number + 1, head.number + 1 + _lead(place).following)
                    if all(part in more for part in parts):
                        self._marks_number = head.number
                        self._marks_bytes = head.length + sum(more[part] for part in parts)
                        return

    def recall(self) -> Iterator[pa.RecordBatch]:
        """The last marks, with the columns of MARK, and then every record that followed them."""
        last_part = 0
        for record in self._journal.replay(self._marks_number or None):
            if record.number == self._marks_number:
                last_part = record.number + decode_lead(record.body[:LEAD_BYTES]).following
            if record.kind == KIND_BATCH or record.number <= last_part:
                yield decode(record.kind, record.body)

    def prune(self, retention_ns: int, now_ns: int) -> int:
        """Removes whole segments, below every consumer's mark and older than the retention; says how many."""
        needed = min([self._durable, *self.consumers.marks().values()])
        before = 0
        for segment, following in pairwise(self._journal.segments):
            end = self._first_offset(following)
            if end is None or end > needed or following.first > self._marks_number:
                break
            if self._path(segment.first).stat().st_mtime_ns > now_ns - retention_ns:
                break
            before = following.first
        return self._journal.prune(before)

    def _first_offset(self, segment: Segment) -> int | None:
        if segment.first not in self._firsts:
            found = first_offset(self._path(segment.first), segment.size)
            if found is None:
                return None
            self._firsts = {
                each.first: self._firsts[each.first]
                for each in self._journal.segments
                if each.first in self._firsts
            }
            self._firsts[segment.first] = found
        return self._firsts[segment.first]

    def close(self) -> None:
        """Commits what was appended, if the disk takes it, and lets the feed go."""
        try:
            if self._journal.state is State.OPEN:
                self.commit()
        finally:
            self._journal.close()


class _Batch(NamedTuple):
    """Where a batch of records is."""

    head: RecordHead
    body_at: int
    offset: int
    end: int


class _Index:
    """The batches of one segment, as far as it was walked."""

    def __init__(self, first: int) -> None:
        self.batches: list[_Batch] = []
        self._at = HEADER_BYTES
        self._number = first

    def extend(self, file: SegmentFile, end: int) -> None:
        for place in file.walk(self._at, self._number, end, LEAD_BYTES):
            lead = _lead(place)
            if place.head.kind == KIND_BATCH:
                batch = _Batch(place.head, place.body_at, lead.offset, lead.offset + lead.rows)
                self.batches.append(batch)
            self._at, self._number = place.end, place.head.number + 1

    def between(self, start: int, end: int) -> Iterator[_Batch]:
        """The batches that have offsets of the range."""
        place = max(0, bisect_right(self.batches, start, key=lambda batch: batch.offset) - 1)
        for batch in self.batches[place:]:
            if batch.offset >= end:
                return
            if batch.end > start:
                yield batch


class FeedReader:
    """Of any process that sees the files: it never locks, and writes nothing but consumers' marks.

    A feed that nobody has recorded yet is empty.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._indexes: dict[int, _Index] = {}
        self._offsets: dict[int, int] = {}

    @property
    def head(self) -> int:
        """One past the last durable offset."""
        head = read_head(self.directory)
        return 0 if head is None else head.offset

    @property
    def first(self) -> int:
        """The first offset that is still there; the head if there is none."""
        while (found := self._listed()) is not None:
            head, firsts = found
            with contextlib.suppress(FileNotFoundError):
                offset = first_offset(self._path(firsts[0]), head.size if firsts[0] == head.segment else None)
                return head.offset if offset is None else offset
        return 0

    def cut(self, start: int, end: int, records_max: int) -> list[tuple[int, int]]:
        """Ranges that cover [start, end) exactly, none with more records than so many; they meet where
        batches do, unless a batch alone is too long."""
        assert records_max > 0
        ranges: list[tuple[int, int]] = []
        begun = start
        for _, batch in self._batches(start, end):
            behind = min(batch.end, end)
            if behind - begun > records_max and batch.offset > begun:
                ranges.append((begun, batch.offset))
                begun = batch.offset
            while behind - begun > records_max:
                ranges.append((begun, begun + records_max))
                begun += records_max
        if begun < end:
            ranges.append((begun, end))
        return ranges

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Exactly [start, end), in batches with the columns of RECORD."""
        for file, batch in self._batches(start, end):
            try:
                found = decode(KIND_BATCH, file.body(batch.head, batch.body_at))
            except (pa.ArrowInvalid, ValueError) as error:
                raise Corrupt(str(file.path), batch.body_at, f"no batch of records: {error}") from error
            skipped = max(0, start - batch.offset)
            yield found.slice(skipped, min(end, batch.end) - batch.offset - skipped)

    def commit(self, consumer: str, offset: int) -> None:
        """This consumer needs nothing below the offset any more."""
        head = self.head
        if offset > head:
            raise Beyond(str(self.directory), offset, head)
        Consumers(self.directory).commit(consumer, offset)

    def _path(self, first: int) -> Path:
        return segments_of(self.directory) / segment_name(first)

    def _listed(self) -> tuple[Head, list[int]] | None:
        """HEAD, and the first numbers of the segments with something durable; None if there is no HEAD."""
        head = read_head(self.directory)
        while head is not None:
            names = os.listdir(segments_of(self.directory))
            firsts = sorted(first for name in names if (first := segment_first(name)) is not None)
            if head.segment in firsts:
                return head, firsts[: firsts.index(head.segment) + 1]
            # It may have been pruned since HEAD was read.
            again = read_head(self.directory)
            if again == head:
                raise Corrupt(str(self._path(head.segment)), 0, "the file is missing, and HEAD names it")
            head = again
        return None

    def _batches(self, start: int, end: int) -> Iterator[tuple[SegmentFile, _Batch]]:
        """The batches that cover a range, each with its open file. What is missing is an error."""
        if not 0 <= start <= end:
            raise ValueError(f"[{start}, {end}) is not a range of offsets")
        found = self._listed()
        durable = 0 if found is None else found[0].offset
        if end > durable:
            raise Beyond(str(self.directory), end, durable)
        if found is None or start == end:
            return
        head, firsts = found
        expected = start
        for first in self._covering(head, firsts, start):
            try:
                file = SegmentFile(self._path(first))
            except FileNotFoundError:
                raise Gone(str(self.directory), start, self.first) from None
            with file:
                size = head.size if first == head.segment else file.size
                for batch in self._index(file, size).between(expected, end):
                    if batch.offset > expected:
                        text = f"offset {batch.offset} stands where {expected} should"
                        raise Corrupt(str(file.path), batch.body_at, text)
                    yield file, batch
                    expected = min(batch.end, end)
            if expected == end:
                return
        where = str(self._path(head.segment))
        raise Corrupt(where, head.size, f"it ends with offset {expected}, and HEAD says {durable}")

    def _covering(self, head: Head, firsts: list[int], start: int) -> list[int]:
        """The segments from the one that holds an offset on."""
        for place in range(len(firsts) - 1, -1, -1):
            try:
                offset = self._offset_of(firsts[place], head)
            except FileNotFoundError:
                break
            if offset is not None and offset <= start:
                return firsts[place:]
        raise Gone(str(self.directory), start, self.first)

    def _offset_of(self, first: int, head: Head) -> int | None:
        if first not in self._offsets:
            offset = first_offset(self._path(first), head.size if first == head.segment else None)
            if offset is None:
                return None
            if len(self._offsets) >= OFFSETS_MAX:
                self._offsets.clear()
            self._offsets[first] = offset
        return self._offsets[first]

    def _index(self, file: SegmentFile, size: int) -> _Index:
        index = self._indexes.pop(file.first, None) or _Index(file.first)
        self._indexes[file.first] = index
        if len(self._indexes) > INDEXES_MAX:
            del self._indexes[next(iter(self._indexes))]
        index.extend(file, size)
        return index
