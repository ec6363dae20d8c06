"""A disk in memory that fails as real ones do, from one seed.

`crash` keeps what was synced; of the rest it keeps any part: a prefix, sectors in any order, or nothing.
`room_bytes` makes it full in mid-write; a reserve takes part of it. `before(operation, name)` runs ahead of
every operation: it may raise an OSError, or wait, which is a slow disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random

from holdfast.errors import Unavailable

SECTOR_BYTES = 512
PLENTY_BYTES = 2**40  # free on a disk without a bound
Before = Callable[[str, str], None]


def nothing(operation: str, name: str) -> None:
    pass


class _Content:
    """Bytes as a process sees them, and as they are after a crash if nothing more is synced."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.synced = b""


class MemoryFile:
    def __init__(self, disk: MemoryDisk, name: str, content: _Content) -> None:
        self._disk = disk
        self._name = name
        self._content = content
        self._age = disk.age

    def _begin(self, operation: str) -> None:
        self._disk.before(operation, self._name)
        if self._age != self._disk.age:
            raise OSError(errno.EBADF, "the process that had this file open has crashed")
        self._disk.count(operation)

    def write(self, data: bytes) -> None:
        self._begin("write")
        room = self._disk.room_bytes
        taken = len(data) if room is None else max(0, min(len(data), self._disk.free_bytes()))
        self._content.seen += data[:taken]
        if taken < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        self._begin("sync")
        self._content.synced = bytes(self._content.seen)

    def cut(self, size: int) -> None:
        self._begin("cut")
        del self._content.seen[size:]

    def close(self) -> None:
        pass


class MemoryDisk:
    def __init__(self, rng: Random, *, name: str = "memory", room_bytes: int | None = None) -> None:
        self.name = name
        self.room_bytes = room_bytes
        self.before: Before = nothing
        self.counts: dict[str, int] = {}
        self.age = 0
        self._rng = rng
        self._seen: dict[str, _Content] = {}
        self._synced: dict[str, _Content] = {}
        self._locked = False
        self._reserved = 0
        self._behind = False

    @property
    def used_bytes(self) -> int:
        return sum(len(content.seen) for content in self._seen.values())

    def count(self, operation: str) -> None:
        self.counts[operation] = self.counts.get(operation, 0) + 1

    def kill(self) -> None:
        """The process ends, the host goes on: no byte is lost. Open files are dead, the lock is free."""
        self.age += 1
        self._locked = False

    def crash(self) -> None:
        """The host loses power, and the process ends with it."""
        self.kill()
        kept = dict(self._synced)
        for name in sorted(self._seen.keys() ^ self._synced.keys()):
            # A name that was made or removed since the names were synced: either may be found.
            if self._rng.random() < 0.5:
                if name in self._seen:
                    kept[name] = self._seen[name]
                else:
                    del kept[name]
        for content in kept.values():
            content.synced = self._survivor(content)
            content.seen = bytearray(content.synced)
        self._synced = kept
        self._seen = dict(kept)

    def _survivor(self, content: _Content) -> bytes:
        synced, seen = content.synced, bytes(content.seen)
        if not seen.startswith(synced):
            return self._rng.choice([synced, seen])
        rest = seen[len(synced) :]
        kept = bytearray(rest[: self._rng.randint(0, len(rest))])
        if self._rng.random() < 0.5:
            # Sectors reach the disk in any order: some of those in between are still zeros.
            for start in range(0, len(kept), SECTOR_BYTES):
                if self._rng.random() < 0.3:
                    end = min(start + SECTOR_BYTES, len(kept))
                    kept[start:end] = bytes(end - start)
        return synced + bytes(kept)

    def damage(self, name: str, offset: int, data: bytes) -> None:
        """Overwrites bytes that were safe, as a failing medium does."""
        content = self._seen[name]
        content.seen[offset : offset + len(data)] = data
        content.synced = bytes(content.seen)

    def lock(self) -> None:
        if self._locked:
            raise Unavailable(f"the journal {self.name} is in use: give each broker its own directory")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def names(self) -> list[str]:
        self.before("names", "")
        return sorted(self._seen)

    def size(self, name: str) -> int:
        return len(self._content(name).seen)

    def read(self, name: str, bytes_max: int) -> bytes:
        self.before("read", name)
        return bytes(self._content(name).seen[:bytes_max])

    def create(self, name: str) -> MemoryFile:
        self.before("create", name)
        if name in self._seen:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._seen[name] = _Content()
        return MemoryFile(self, name, self._seen[name])

    def append_to(self, name: str) -> MemoryFile:
        self.before("append_to", name)
        return MemoryFile(self, name, self._content(name))

    def remove(self, name: str) -> None:
        self.before("remove", name)
        self._content(name)
        del self._seen[name]

    def sync_names(self) -> None:
        self.before("sync_names", "")
        self.count("sync_names")
        self._synced = dict(self._seen)

    def salt(self) -> int:
        return self._rng.getrandbits(32)

    def free_bytes(self) -> int:
        return PLENTY_BYTES if self.room_bytes is None else self.room_bytes - self.used_bytes - self._reserved

    def reserved_bytes(self) -> int:
        return self._reserved

    def reserve(self, size: int) -> None:
        self.release()
        self.before("reserve", "")
        if size > self.free_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._reserved = size

    def release(self) -> None:
        self.before("release", "")
        self._reserved = 0

    def is_behind(self) -> bool:
        return self._behind

    def mark_behind(self, behind: bool) -> None:
        self.before("mark_behind", "")
        self._behind = behind

    def _content(self, name: str) -> _Content:
        if name not in self._seen:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._seen[name]
