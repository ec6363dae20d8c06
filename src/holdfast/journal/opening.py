"""What lies in a directory, judged before a journal uses it.

Files that are not the journal's, or of another version, are the operator's to sort out: a ConfigError names
all of them. A crash explains a torn end of the last group and an unfinished last file; anything else is
Corrupt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.errors import ConfigError, Problem
from holdfast.journal.disk import Disk
from holdfast.journal.errors import Corrupt
from holdfast.journal.format import (
    FIRST_NUMBER,
    HEADER_BYTES,
    MARK_BYTES,
    Header,
    NotASegment,
    Scan,
    decode_header,
    later_mark,
    segment_first,
    segment_name,
)

PROBLEMS_MAX = 10
# What file systems keep at the root of a volume.
TOLERATED = {"lost+found"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A file by its first number, and how much of it is durable."""

    first: int
    size: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The torn end that was cut away: where, and how much."""

    file: str
    offset: int
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Found:
    """The segments in order. A crash may have left one more file, whose header is not whole: its number is
    then the proof of how far the segment before it was durable."""

    segments: list[Segment]
    salt: int | None
    torn_name: str = ""
    torn_first: int | None = None


@dataclass(frozen=True, slots=True)
class Tail:
    segment: Segment
    next_number: int
    sealed: bool
    cut: Cut | None


def read_header(file: str, name: str, data: bytes, salt: int) -> Header:
    """The header of a segment that is known to be one; Corrupt if it is not what it was."""
    try:
        header = decode_header(data, len(data))
    except NotASegment as error:
        raise Corrupt(file, 0, str(error)) from error
    if header != Header(segment_first(name) or 0, salt):
        raise Corrupt(file, 0, "its header belongs to another file or another journal")
    return header


def foreign_names(names: Iterable[str]) -> tuple[str, ...]:
    """What others put into a journal's directory."""
    return tuple(name for name in names if name not in TOLERATED and segment_first(name) is None)


def find_segments(disk: Disk) -> Found:
    names = disk.names()
    firsts = {name: first for name in names if (first := segment_first(name)) is not None}
    problems = [
        Problem(name, "not a file of a journal: give the journal a directory of its own")
        for name in foreign_names(names)
    ]
    segments: list[Segment] = []
    salt: int | None = None
    torn_name, torn_first = "", None
    last = max(firsts, default="")
    for name, first in sorted(firsts.items()):
        size = disk.size(name)
        try:
            header = decode_header(disk.read(name, HEADER_BYTES), size)
        except NotASegment as error:
            if error.torn and name == last and (segments or first == FIRST_NUMBER):
                torn_name, torn_first = name, first
            else:
                problems.append(Problem(name, str(error)))
            continue
        if header.first != first:
            problems.append(
                Problem(name, f"its name says {first} and its header {header.first}: rename it back")
            )
        elif salt is not None and header.salt != salt:
            problems.append(Problem(name, "it belongs to another journal: move it to where it came from"))
        salt = header.salt if salt is None else salt
        segments.append(Segment(first, size))
    if problems:
        more = len(problems) - PROBLEMS_MAX
        extra = [Problem("", f"and {more} more files like these")] if more > 0 else []
        raise ConfigError(disk.name, problems[:PROBLEMS_MAX] + extra)
    return Found(segments, salt, torn_name, torn_first)


def find_tail(disk: Disk, segment: Segment, salt: int, durable_to: int | None) -> Tail:
    """Where the last segment ends. `durable_to` is the first number of a file that was begun after it, if
    any."""
    name = segment_name(segment.first)
    file = f"{disk.name}/{name}"
    data = disk.read(name, segment.size)
    scan = Scan(data, Header(segment.first, salt)).to_end()
    if durable_to is not None and scan.number != durable_to:
        text = scan.broken or f"it ends with number {scan.number - 1}"
        raise Corrupt(file, scan.offset, f"{text}, and the next file begins with {durable_to}")
    if scan.broken:
        proof = later_mark(data, scan.offset, scan.number, salt)
        if proof is not None:
            raise Corrupt(file, scan.offset, f"{scan.broken}, and good records follow from byte {proof} on")
    # One mark after the last record is enough; more would pile up with every crash.
    end = min(scan.offset, scan.marks_at + MARK_BYTES)
    cut = Cut(file, scan.offset, len(data) - scan.offset, scan.broken) if scan.broken else None
    return Tail(Segment(segment.first, end), scan.number, end > scan.marks_at or end == HEADER_BYTES, cut)
