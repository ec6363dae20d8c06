"""The journal: numbered records, safe on disk once `durable_number` has reached them.

Laws: what was durable is never cut, overwritten or reported twice under one number; numbers have no gap; a
group is one write and one sync; nothing follows an unsynced group; all that lies before a file can be pruned;
nothing is removed that it did not make itself.
Two sides, which may be two threads: `append` and `take` belong to one, `store`, `prune`, `recover` and the
reserve to the other, and a batch passes from the first to the second.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NoReturn, Self

from holdfast.errors import ConfigError, Problem, Unavailable
from holdfast.journal.disk import Disk, File, RealDisk
from holdfast.journal.errors import Corrupt, NotAccepted, Refusal
from holdfast.journal.format import (
    FIRST_NUMBER,
    HEADER_BYTES,
    KIND_MAX,
    MARK_BYTES,
    RECORD_BYTES,
    Header,
    Record,
    Scan,
    encode_header,
    encode_mark,
    encode_record,
    segment_name,
)
from holdfast.journal.opening import Cut, Segment, find_segments, find_tail, foreign_names, read_header

SEGMENT_BYTES_MIN = 4096
SEGMENT_BYTES_MAX = 2**30
SEGMENTS_MIN = 4
RESERVE_SHARE = 8
HELD_SHARE = 4  # of what is free, at most, is held back on the disk
SEGMENT_OVERHEAD_BYTES = HEADER_BYTES + MARK_BYTES


class State(Enum):
    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Bounds:
    """`segment_bytes` bounds one file, `bytes_max` all of them together, `waiting_bytes_max` what is
    accepted and not yet on disk. The last eighth of `bytes_max` is for what makes pruning possible:
    snapshots."""

    segment_bytes: int = 16 * 2**20
    bytes_max: int = 2**30
    waiting_bytes_max: int = 64 * 2**20

    def __post_init__(self) -> None:
        problems = []
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            text = f"{self.segment_bytes} is not between {SEGMENT_BYTES_MIN} and {SEGMENT_BYTES_MAX}"
            problems.append(Problem("segment_bytes", text))
        if self.bytes_max < SEGMENTS_MIN * self.segment_bytes:
            text = f"{self.bytes_max} is less than {SEGMENTS_MIN} segments of {self.segment_bytes}"
            problems.append(Problem("bytes_max", text))
        if self.waiting_bytes_max < self.segment_bytes:
            text = f"{self.waiting_bytes_max} is less than one segment of {self.segment_bytes}"
            problems.append(Problem("waiting_bytes_max", text))
        if problems:
            raise ConfigError("journal", problems)

    @property
    def reserve_bytes(self) -> int:
        return self.bytes_max // RESERVE_SHARE

    @property
    def body_bytes_max(self) -> int:
        """One record fits into an empty segment, even behind the mark that closed the journal last time."""
        return self.records_end_max - HEADER_BYTES - 2 * MARK_BYTES - RECORD_BYTES

    @property
    def records_end_max(self) -> int:
        """Where the records of a segment end at the latest: the mark of a clean end fits behind them."""
        return self.segment_bytes - MARK_BYTES


@dataclass(slots=True)
class Run:
    """Records that go into one segment with one write: into the current one, or into a new one."""

    first: int
    rotates: bool
    parts: list[bytes]
    bytes: int


# All that waited when it was taken.
Batch = list[Run]


class Journal:
    def __init__(self, disk: Disk, bounds: Bounds) -> None:
        """Opens the journal on a disk: locks it, cuts the torn end of a crash, and syncs what survived."""
        self.disk = disk
        self.bounds = bounds
        self.state = State.OPEN
        self.why = ""
        self.cut: Cut | None = None
        self._end_max = bounds.records_end_max
        self._body_max = bounds.body_bytes_max
        self._bytes_max = bounds.bytes_max
        self._waiting_max = bounds.waiting_bytes_max
        self._ordinary_max = bounds.bytes_max - bounds.reserve_bytes
        self._runs: list[Run] = []
        self._appended_bytes = 0
        self._written_bytes = 0
        self._unstored: deque[Run] = deque()
        self.free_bytes = 0  # on the disk, when it was last looked at, without the reserve
        self.reserved_bytes = 0
        self.foreign: tuple[str, ...] = ()  # what others had put into its directory when it was tried again
        self._segments: list[Segment] = []
        self._begun = ""  # a file that was made and is no segment yet
        self._file: File | None = None
        try:
            disk.lock()
        except OSError as error:
            self._raise_unusable(error)
        try:
            self._load()
        except BaseException as error:
            if self._file is not None:
                self._file.close()
            disk.unlock()
            if isinstance(error, OSError):
                self._raise_unusable(error)
            raise

    @classmethod
    def open(cls, directory: str | Path, bounds: Bounds | None = None) -> Self:
        """The journal in a directory, which is made if it is not there. Only one process may have it open."""
        try:
            disk = RealDisk(Path(directory))
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise Unavailable(f"cannot use {directory} for a journal: {reason}") from error
        return cls(disk, bounds or Bounds())

    def _raise_unusable(self, error: OSError) -> NoReturn:
        where = f" ({error.filename})" if error.filename else ""
        raise Unavailable(
            f"cannot open the journal {self.disk.name}: {error.strerror or error}{where}. "
            "It needs a directory on a disk that can be read and written."
        ) from error

    # Opening

    def _load(self) -> None:
        found = find_segments(self.disk)
        self._segments = found.segments
        self._salt = found.salt if found.salt is not None else self.disk.salt()
        if not self._segments:
            if found.torn_name:
                self.disk.remove(found.torn_name)
            self._next_number = FIRST_NUMBER
            self._file = self._create(FIRST_NUMBER)
            self._sealed = True
        else:
            tail = find_tail(self.disk, self._segments[-1], self._salt, found.torn_first)
            if found.torn_name:
                self.disk.remove(found.torn_name)
            self._file = self.disk.append_to(segment_name(tail.segment.first))
            if tail.cut is not None or tail.segment.size != self._segments[-1].size:
                self._file.cut(tail.segment.size)
            # A process may have died between write and sync: what is read now must not vanish later.
            self._file.sync()
            self.disk.sync_names()
            self._segments[-1] = tail.segment
            self._next_number = tail.next_number
            self._sealed = tail.sealed
            self.cut = tail.cut
        self.durable_number = self._next_number - 1
        self._stored_bytes = sum(segment.size for segment in self._segments)
        self._tail_bytes, self._tail_first = self._segments[-1].size, self._segments[-1].first
        self.look()

    def _create(self, first: int) -> File:
        """A new segment: its header is safe before any record may follow, and its name before it is used."""
        header = encode_header(Header(first, self._salt))
        file = self.disk.create(segment_name(first))
        self._begun = segment_name(first)
        try:
            file.write(header)
            file.sync()
            self.disk.sync_names()
        except OSError:
            file.close()
            raise
        self._begun = ""
        self._segments.append(Segment(first, len(header)))
        return file

    # The side that appends

    @property
    def next_number(self) -> int:
        return self._next_number

    @property
    def first_number(self) -> int:
        """The lowest number that can still be replayed, once something has that number."""
        return self._segments[0].first

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The files, oldest first, each with how much of it is durable."""
        return tuple(self._segments)

    @property
    def waiting_bytes(self) -> int:
        return self._appended_bytes - self._written_bytes

    @property
    def used_bytes(self) -> int:
        """On disk, and accepted for it."""
        return self._stored_bytes + self.waiting_bytes

    def append(self, kind: int, body: bytes, *, use_reserve: bool = False, new_file: bool = False) -> int:
        """Accepts one record and returns its number. It is safe only when `durable_number` says so. What is
        to be pruned up to this record needs a `new_file` that begins with it."""
        self._admit(kind, len(body), RECORD_BYTES + len(body), use_reserve)
        return self._add(kind, body, new_file)

    def append_many(self, kind: int, bodies: Sequence[bytes], *, use_reserve: bool = False) -> range:
        """Accepts all of them or none, and returns their numbers."""
        first = self._next_number
        if bodies:
            sizes = [len(body) for body in bodies]
            self._admit(kind, max(sizes), sum(sizes) + RECORD_BYTES * len(sizes), use_reserve)
            for body in bodies:
                self._add(kind, body)
        return range(first, self._next_number)

    def _add(self, kind: int, body: bytes, new_file: bool = False) -> int:
        number = self._next_number
        record = encode_record(kind, number, body, self._salt)
        size = len(record)
        runs = self._runs
        if not runs or new_file or self._tail_bytes + size > self._end_max:
            size += self._begin_run(number, size, new_file)
        run = self._runs[-1]
        run.parts.append(record)
        run.bytes += size
        self._tail_bytes += size
        self._appended_bytes += size
        self._next_number = number + 1
        return number

    def _begin_run(self, number: int, size: int, new_file: bool) -> int:
        """Opens the run that a record of `size` goes to; returns what the run costs besides its records. A
        file without a record is new."""
        rotates = self._tail_bytes + (0 if self._runs else MARK_BYTES) + size > self._end_max
        rotates |= new_file and self._tail_first < number
        if rotates:
            self._tail_bytes, self._tail_first = 0, number
        self._runs.append(Run(number, rotates, [encode_mark(number, self._salt)], 0))
        return SEGMENT_OVERHEAD_BYTES if rotates else MARK_BYTES

    def _admit(self, kind: int, longest: int, size: int, use_reserve: bool) -> None:
        if not 0 < kind <= KIND_MAX:
            raise ValueError(f"kind {kind} is not between 1 and {KIND_MAX}")
        if self.state is not State.OPEN:
            self._refuse_by_state()
        if longest > self._body_max:
            raise NotAccepted(
                Refusal.TOO_LONG,
                f"a record of {longest} bytes is longer than the {self._body_max} that fit into a segment of "
                f"{self.bounds.segment_bytes}: split it, or raise segment_bytes",
            )
        # Two neighbouring segments hold more than one segment's worth of records, or they would be one.
        size += (2 + 2 * size // self._body_max) * SEGMENT_OVERHEAD_BYTES
        waiting = self._appended_bytes - self._written_bytes
        if waiting + size > self._waiting_max:
            raise NotAccepted(
                Refusal.BEHIND,
                f"the disk of journal {self.disk.name} is behind: {waiting} bytes wait, "
                f"and waiting_bytes_max is {self._waiting_max}",
            )
        limit = self._bytes_max if use_reserve else self._ordinary_max
        if self._stored_bytes + waiting + size > limit:
            raise NotAccepted(
                Refusal.FULL,
                f"the journal {self.disk.name} is full: {self.used_bytes} of {limit} bytes are used. "
                "Prune it after a snapshot, or raise bytes_max.",
            )

    def _refuse_by_state(self) -> NoReturn:
        if self.state is State.CLOSED:
            raise NotAccepted(Refusal.CLOSED, f"the journal {self.disk.name} is closed")
        raise NotAccepted(Refusal.FAILED, self.why)

    def take(self) -> Batch | None:
        """All that waits, as the one group that it will be on disk; None if nothing does."""
        if not self._runs:
            return None
        runs, self._runs = self._runs, []
        return runs

    # The side that stores

    def commit(self) -> int:
        """For use without a committer: what waits is safe when this returns."""
        batch = self.take()
        return self.durable_number if batch is None else self.store(batch)

    def store(self, batch: Batch) -> int:
        """Writes and syncs a batch; returns the highest durable number. After a failure the batch is kept for
        `recover`, and so is one that comes while the journal has failed."""
        self._unstored.extend(batch)
        if self.state is not State.OPEN:
            self._refuse_by_state()
        return self._store_waiting()

    def _store_waiting(self) -> int:
        while self._unstored:
            run = self._unstored[0]
            try:
                self._store_run(run)
            except OSError as error:
                self._fail(error)
            self._written_bytes += run.bytes
            self._unstored.popleft()
        self.look()
        return self.durable_number

    def _store_run(self, run: Run) -> None:
        assert self._file is not None
        if run.rotates and self._segments[-1].first != run.first:
            file = self._create(run.first)
            self._stored_bytes += HEADER_BYTES
            self._file.close()
            self._file = file
        data = b"".join(run.parts)
        self._file.write(data)
        self._file.sync()
        segment = self._segments[-1]
        self._segments[-1] = Segment(segment.first, segment.size + len(data))
        self._stored_bytes += len(data)
        self._sealed = False
        self.durable_number = run.first + len(run.parts) - 2

    def _fail(self, error: OSError) -> NoReturn:
        """Nothing more is accepted. The half-written group is cut now if the disk lets us, else by
        `recover`."""
        self.state = State.FAILED
        self.why = (
            f"the journal {self.disk.name} has failed: {error.strerror or error}. What was safe up to number "
            f"{self.durable_number} is safe still; {self._next_number - 1 - self.durable_number} accepted "
            "records are kept in memory. Make room or mend the disk; it is tried again."
        )
        # If it cannot be cut now, `recover` cuts again and insists.
        with suppress(OSError):
            self._cut_unsynced()
        raise NotAccepted(Refusal.FAILED, self.why) from error

    def _cut_unsynced(self) -> None:
        assert self._file is not None
        tail = self._segments[-1]
        self._file.cut(tail.size)
        if self._begun:
            with suppress(FileNotFoundError):
                self.disk.remove(self._begun)
            self._begun = ""
        self.disk.sync_names()
        self._file.sync()

    def recover(self, *, anew: bool = False) -> int:
        """Tries again after a failure: cuts what was half written, checks that the last segment still
        holds what was durable, and stores what was kept; `anew` forgets that instead. Returns the highest
        durable number, or raises and stays failed."""
        if self.state is State.FAILED:
            try:
                self._reopen_tail()
            except OSError as error:
                self._fail(error)
            if anew:
                self._forget_unstored()
            self.state, self.why = State.OPEN, ""
        return self._store_waiting()

    def _forget_unstored(self) -> None:
        """Nothing is appended in the failed state, so both sides' figures may be set here."""
        self._runs, self._written_bytes = [], self._appended_bytes
        self._unstored.clear()
        self._next_number = self.durable_number + 1
        self._tail_bytes, self._tail_first = self._segments[-1].size, self._segments[-1].first

    def _reopen_tail(self) -> None:
        assert self._file is not None
        tail = self._segments[-1]
        name = segment_name(tail.first)
        # After a failed sync the kernel may have dropped what it could not write: look at the file anew.
        self._file.close()
        self._file = self.disk.append_to(name)
        self._cut_unsynced()
        self.foreign = foreign_names(self.disk.names())
        scan = Scan(self.disk.read(name, tail.size), Header(tail.first, self._salt)).to_end()
        if scan.broken or scan.offset != tail.size or scan.number != self.durable_number + 1:
            text = scan.broken or f"it ends at number {scan.number - 1} but {self.durable_number} was durable"
            raise Corrupt(f"{self.disk.name}/{name}", scan.offset, text)

    def prune(self, before_number: int) -> int:
        """Removes the segments that hold only numbers below this one, oldest first; returns how many. The
        last segment stays, so that numbers go on. It works in the failed state too: it makes room."""
        removed = 0
        try:
            while len(self._segments) > 1 and self._segments[1].first <= before_number:
                oldest = self._segments[0]
                self.disk.remove(segment_name(oldest.first))
                del self._segments[0]
                self._stored_bytes -= oldest.size
                removed += 1
                self.disk.sync_names()
        except OSError as error:
            raise Unavailable(
                f"cannot remove old segments of the journal {self.disk.name}: {error.strerror or error}"
            ) from error
        return removed

    def mark_behind(self, behind: bool) -> None:
        """Its owner knows more than it holds, or not any more. Whoever opens it next can ask the disk."""
        with suppress(OSError):
            self.disk.mark_behind(behind)

    # Room

    def look(self) -> None:
        """How much is free. A disk that cannot tell keeps its last answer."""
        with suppress(OSError):
            self.reserved_bytes = self.disk.reserved_bytes()
            self.free_bytes = self.disk.free_bytes()

    def hold(self, size: int) -> None:
        """Holds room back on the disk, for a snapshot when there is no other: a share of it at most. A disk
        that has not got it holds none."""
        self.look()
        size = min(size, (self.free_bytes + self.reserved_bytes) // HELD_SHARE)
        if size > 0 and size != self.reserved_bytes:
            with suppress(OSError):
                self.disk.reserve(size)
            self.look()

    def release(self) -> None:
        with suppress(OSError):
            self.disk.release()
        self.look()

    # Reading

    def replay(
        self, from_number: int | None = None, kinds: Collection[int] | None = None
    ) -> Iterator[Record]:
        """The durable records from a number on (the first that is left, if none is given), in order. A number
        that was pruned, or that was never reached, is an error and not an empty answer."""
        segments = list(self._segments)
        durable = self.durable_number
        start = segments[0].first if from_number is None else from_number
        if start < segments[0].first:
            raise Unavailable(
                f"the journal {self.disk.name} begins at number {segments[0].first}: "
                f"what lies between {start} and it was pruned"
            )
        if start > durable + 1:
            raise Unavailable(
                f"the journal {self.disk.name} ends at number {durable}: {start} was never durable here. "
                "Is it another journal than the one that was read before?"
            )
        return self._replay(segments, start, kinds)

    def _replay(self, segments: list[Segment], start: int, kinds: Collection[int] | None) -> Iterator[Record]:
        following = [segment.first for segment in segments[1:]]
        for segment, next_first in zip(segments, [*following, None], strict=True):
            if next_first is not None and next_first <= start:
                continue
            name = segment_name(segment.first)
            file = f"{self.disk.name}/{name}"
            try:
                data = self.disk.read(name, segment.size)
            except OSError as error:
                raise Unavailable(f"cannot read {file}: {error.strerror or error}") from error
            header = read_header(file, name, data, self._salt)
            scan = Scan(data, header)
            for record in scan:
                if record.number >= start and (kinds is None or record.kind in kinds):
                    yield record
            if scan.broken or scan.offset != segment.size:
                raise Corrupt(file, scan.offset, scan.broken or "the file ends too early")
            if next_first is not None and scan.number != next_first:
                text = f"it ends with number {scan.number - 1}, and the next file begins with {next_first}"
                raise Corrupt(file, scan.offset, text)

    def close(self) -> None:
        """Commits what waits, and marks the end: damage of what is there now can never pass for a torn
        end."""
        if self._file is None:
            return
        try:
            if self.state is State.OPEN:
                self.commit()
                self._seal()
        finally:
            self.state = State.CLOSED
            self._file.close()
            self._file = None
            self.disk.unlock()

    def _seal(self) -> None:
        if self._sealed:
            return
        assert self._file is not None
        # All records are durable without it; a torn mark is cut by the next opening.
        with suppress(OSError):
            self._file.write(encode_mark(self._next_number, self._salt))
            self._file.sync()
