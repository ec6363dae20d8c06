"""The bytes of a journal, without any I/O.

A segment is a header and records whose numbers follow each other without a gap. A group begins with a mark,
and is written only after the group before it was synced. So a bad record is the torn end of a crash if no
mark comes after it, and damage if one does. The salt keeps bytes inside a message from posing as a mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple
from zlib import crc32

VERSION = 1
MAGIC = b"HOLDFAST"
SUFFIX = ".journal"
NUMBER_DIGITS = 20
NUMBER_MAX = 2**64 - 1
KIND_MAX = 255
FIRST_NUMBER = 1

# Magic, version, salt, first number; then the CRC of these.
_HEADER = Struct("<8sIIQ")
# Length of the body, kind, number; then the CRC of these and the body, begun with the salt.
_HEAD = Struct("<IBQ")
_CRC = Struct("<I")
_RECORD = Struct("<IBQI")
_NAME = re.compile(rf"([0-9]{{{NUMBER_DIGITS}}}){re.escape(SUFFIX)}")

_KIND_MARK = 0
_MARK_BODY = b"\xf1group\xf1\x0a"

HEADER_BYTES = _HEADER.size + _CRC.size
RECORD_BYTES = _RECORD.size
MARK_BYTES = RECORD_BYTES + len(_MARK_BODY)


class Record(NamedTuple):
    number: int
    kind: int
    body: bytes


class Head(NamedTuple):
    """What stands before a body."""

    length: int
    kind: int
    number: int
    crc: int

    @property
    def is_mark(self) -> bool:
        return self.kind == _KIND_MARK


@dataclass(frozen=True, slots=True)
class Header:
    first: int
    salt: int


class NotASegment(ValueError):
    """The first bytes are not those of a segment; `torn` if a crash while it was made explains them."""

    def __init__(self, text: str, *, torn: bool = False) -> None:
        self.torn = torn
        super().__init__(text)


def segment_name(first: int) -> str:
    return f"{first:0{NUMBER_DIGITS}d}{SUFFIX}"


def segment_first(name: str) -> int | None:
    """The number that a segment's name promises; None if it is no name of a segment."""
    match = _NAME.fullmatch(name)
    if match is None or not FIRST_NUMBER <= int(match[1]) <= NUMBER_MAX:
        return None
    return int(match[1])


def encode_header(header: Header) -> bytes:
    head = _HEADER.pack(MAGIC, VERSION, header.salt, header.first)
    return head + _CRC.pack(crc32(head))


def decode_header(data: bytes, size: int) -> Header:
    """The header at the start of a file of `size` bytes; NotASegment says what is wrong with it."""
    head = data[: _HEADER.size]
    if len(head) == _HEADER.size:
        magic, version, salt, first = _HEADER.unpack(head)
        if magic == MAGIC and version != VERSION and version != 0:
            raise NotASegment(
                f"journal version {version}, and this Holdfast reads version {VERSION}: "
                "use the Holdfast that wrote it, or another directory"
            )
        if magic == MAGIC and data[_HEADER.size : HEADER_BYTES] == _CRC.pack(crc32(head)):
            return Header(first, salt)
    start = data[: len(MAGIC)]
    # The header is synced before anything follows it: only a file that ends with it can be torn.
    if size <= HEADER_BYTES and (MAGIC.startswith(start) or not any(data)):
        raise NotASegment("its header was not written to the end", torn=True)
    if start == MAGIC:
        raise NotASegment("its header is damaged: restore the file from a copy")
    raise NotASegment("it has the name of a journal file but not the content: move it away")


def encode_record(kind: int, number: int, body: bytes, salt: int) -> bytes:
    head = _HEAD.pack(len(body), kind, number)
    return head + _CRC.pack(crc32(body, crc32(head, salt))) + body


def decode_head(data: bytes, offset: int) -> Head:
    return Head._make(_RECORD.unpack_from(data, offset))


def is_intact(head: Head, body: bytes, salt: int) -> bool:
    return crc32(body, crc32(_HEAD.pack(head.length, head.kind, head.number), salt)) == head.crc


def encode_mark(number: int, salt: int) -> bytes:
    """What opens a group whose first record has this number: all before it is safe on disk."""
    return encode_record(_KIND_MARK, number, _MARK_BODY, salt)


class Scan:
    """Walks the records of one segment. After the walk: `offset` is where the good part ends, `number` the
    next number, `broken` what is wrong there ("" if nothing is), `marks_at` where the marks after the last
    record begin."""

    def __init__(self, data: bytes, header: Header) -> None:
        self.offset = self.marks_at = HEADER_BYTES
        self.number = header.first
        self.broken = ""
        self._data = data
        self._salt = header.salt

    def __iter__(self) -> Iterator[Record]:
        data, salt, offset, number = self._data, self._salt, self.offset, self.number
        size, head_bytes, record_bytes, unpack = len(data), _HEAD.size, RECORD_BYTES, _RECORD.unpack_from
        while offset < size:
            body_at = offset + record_bytes
            if body_at > size:
                self.broken = "a record begins that is not whole"
                return
            length, kind, found, crc = unpack(data, offset)
            end = body_at + length
            if end > size:
                self.broken = f"a record of {length} bytes does not fit into the file"
                return
            body = data[body_at:end]
            if crc32(body, crc32(data[offset : offset + head_bytes], salt)) != crc:
                self.broken = "the checksum of a record is wrong"
                return
            if found != number:
                self.broken = f"record {found} stands where {number} should"
                return
            self.offset = offset = end
            if kind != _KIND_MARK:
                self.marks_at = end
                self.number = number = number + 1
                yield Record(found, kind, body)

    def to_end(self) -> Scan:
        for _ in self:
            pass
        return self


def later_mark(data: bytes, offset: int, number: int, salt: int) -> int | None:
    """Where, from the offset on, a group begins with this number or a higher one: the proof that all
    before it was synced."""
    found = data.find(_MARK_BODY, offset)
    while found >= 0:
        start = found - RECORD_BYTES
        if start >= offset:
            marked: int = _HEAD.unpack_from(data, start)[2]
            if marked >= number and data[start : found + len(_MARK_BODY)] == encode_mark(marked, salt):
                return start
        found = data.find(_MARK_BODY, found + 1)
    return None
