"""HEAD: how far a feed is durable, in a small file that any process may read.

Laws:
- it is written after the sync of what it shows: it may be behind the disk, never ahead
- it is overwritten in place, so that a full disk cannot stop it; its checksum tells a torn reading
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from holdfast.errors import Unavailable

NAME = "HEAD"
MAGIC = b"HF-HEAD1"
READINGS_MAX = 100
READING_S = 0.001

_HEAD = Struct("<8sQQQ")
_CRC = Struct("<I")


class Head(NamedTuple):
    """One past the last durable offset, and the segment and the byte in it where the durable part ends."""

    offset: int
    segment: int
    size: int


def write_head(directory: Path, head: Head) -> None:
    data = _HEAD.pack(MAGIC, *head)
    file = os.open(directory / NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        os.pwrite(file, data + _CRC.pack(crc32(data)), 0)
    finally:
        os.close(file)


def read_head(directory: Path) -> Head | None:
    """None if there is none yet."""
    for _ in range(READINGS_MAX):
        try:
            found = (directory / NAME).read_bytes()
        except FileNotFoundError:
            return None
        data, crc = found[: _HEAD.size], found[_HEAD.size :]
        if len(data) == _HEAD.size and crc == _CRC.pack(crc32(data)):
            magic, *fields = _HEAD.unpack(data)
            if magic == MAGIC:
                return Head._make(fields)
        time.sleep(READING_S)
    raise Unavailable(
        f"{directory / NAME} is damaged. Start `holdfast record` for this feed once: it writes it anew from "
        "the journal."
    )
