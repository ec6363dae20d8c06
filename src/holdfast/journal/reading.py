"""A segment as another process sees it: read while its owner appends, without a lock.

Laws:
- nothing from `end` on is looked at: the owner says how far a file is durable
- a body is given out only if its checksum is right
- a file that is gone is FileNotFoundError, when it is opened; one that is damaged is Corrupt
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from holdfast.journal.errors import Corrupt
from holdfast.journal.format import (
    HEADER_BYTES,
    RECORD_BYTES,
    Head,
    NotASegment,
    decode_head,
    decode_header,
    is_intact,
    segment_first,
)

BLOCK_BYTES = 64 * 1024


class Place(NamedTuple):
    """Where a record is: its head, where its body begins, and the first bytes of the body."""

    head: Head
    body_at: int
    lead: bytes

    @property
    def end(self) -> int:
        return self.body_at + self.head.length


class SegmentFile:
    """One segment, open for reading. `size` is what the file has now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(self._fd).st_size
            header = decode_header(os.pread(self._fd, HEADER_BYTES, 0), self.size)
            if header.first != segment_first(path.name):
                raise NotASegment(f"its name and its header ({header.first}) do not agree")
        except NotASegment as error:
            self.close()
            raise Corrupt(str(path), 0, str(error)) from error
        self._salt = header.salt
        self.first = header.first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def walk(self, at: int, number: int, end: int, lead_bytes: int) -> Iterator[Place]:
        """The records between two places, the first of which is to have this number; bodies are skipped."""
        block, block_at = b"", at
        while at < end:
            if at + RECORD_BYTES + lead_bytes > block_at + len(block):
                block, block_at = os.pread(self._fd, min(BLOCK_BYTES, end - at), at), at
            place = at - block_at
            if len(block) - place < RECORD_BYTES:
                raise Corrupt(str(self.path), at, "a record begins that is not whole")
            head = decode_head(block, place)
            behind = at + RECORD_BYTES + head.length
            if behind > end:
                text = f"a record of {head.length} bytes does not fit before byte {end}"
                raise Corrupt(str(self.path), at, text)
            if head.number != number:
                text = f"record {head.number} stands where {number} should"
                raise Corrupt(str(self.path), at, text)
            if not head.is_mark:
                lead = place + RECORD_BYTES
                yield Place(head, at + RECORD_BYTES, block[lead : lead + min(lead_bytes, head.length)])
                number += 1
            at = behind

    def body(self, head: Head, body_at: int) -> bytes:
        body = os.pread(self._fd, head.length, body_at)
        if len(body) != head.length or not is_intact(head, body, self._salt):
            text = "the checksum of a record is wrong"
            raise Corrupt(str(self.path), body_at - RECORD_BYTES, text)
        return body
