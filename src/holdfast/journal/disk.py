"""The few things that a journal asks of a disk, and the real one.

A directory is flat. Files only grow, are cut, or are removed. What was not synced may be gone after a crash,
in any part: bytes until `File.sync`, names until `Disk.sync_names`. Every failure is an OSError. A disk may
hold a reserve: room that nobody else can take, and that is no file of the journal. It may be marked as
behind what its owner knows, by an empty file.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from holdfast.errors import Unavailable
from holdfast.files import open_file

LOCK_NAME = "lock"
RESERVE_NAME = "reserve"
BEHIND_NAME = "behind"
NOT_SEGMENTS = {LOCK_NAME, RESERVE_NAME, BEHIND_NAME}
SALT_BITS = 32


class File(Protocol):
    """A file that is being appended to."""

    def write(self, data: bytes) -> None: ...
    def sync(self) -> None: ...
    def cut(self, size: int) -> None: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """One directory."""

    @property
    def name(self) -> str: ...
    def lock(self) -> None: ...
    def unlock(self) -> None: ...
    def names(self) -> list[str]: ...
    def size(self, name: str) -> int: ...
    def read(self, name: str, bytes_max: int) -> bytes: ...
    def create(self, name: str) -> File: ...
    def append_to(self, name: str) -> File: ...
    def remove(self, name: str) -> None: ...
    def sync_names(self) -> None: ...
    def salt(self) -> int: ...
    def free_bytes(self) -> int: ...
    def reserved_bytes(self) -> int: ...
    def reserve(self, size: int) -> None: ...
    def release(self) -> None: ...
    def is_behind(self) -> bool: ...
    def mark_behind(self, behind: bool) -> None: ...


class RealFile:
    def __init__(self, path: Path, flags: int) -> None:
        self._fd = os.open(path, flags | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def cut(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class RealDisk:
    """A directory of this machine; it is made if its parent is there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock_fd = -1
        directory.mkdir(exist_ok=True)

    @property
    def name(self) -> str:
        return str(self.directory)

    def lock(self) -> None:
        lock_fd = os.open(self.directory / LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock_fd, 20, 0).decode(errors="replace").strip()
            os.close(lock_fd)
            raise Unavailable(
                f"the journal {self.directory} is in use by process {owner or 'unknown'}: "
                "two processes never share a journal, give each its own directory"
            ) from None
        except OSError:
            os.close(lock_fd)
            raise
        self._lock_fd = lock_fd
        # The pid is only a help to people; the lock holds without it, also on a full disk.
        with suppress(OSError):
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.directory) if name not in NOT_SEGMENTS)

    def size(self, name: str) -> int:
        return (self.directory / name).stat().st_size

    def read(self, name: str, bytes_max: int) -> bytes:
        with open_file(self.directory / name) as file:
            parts = []
            while bytes_max > 0 and (part := file.read(bytes_max)):
                parts.append(part)
                bytes_max -= len(part)
        return b"".join(parts)

    def create(self, name: str) -> RealFile:
        return RealFile(self.directory / name, os.O_CREAT | os.O_EXCL)

    def append_to(self, name: str) -> RealFile:
        return RealFile(self.directory / name, 0)

    def remove(self, name: str) -> None:
        (self.directory / name).unlink()

    def sync_names(self) -> None:
        directory_fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory_fd)
        finally:
            os.close(directory_fd)

    def salt(self) -> int:
        return secrets.randbits(SALT_BITS)

    def free_bytes(self) -> int:
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize

    def reserved_bytes(self) -> int:
        try:
            return (self.directory / RESERVE_NAME).stat().st_size
        except FileNotFoundError:
            return 0

    def reserve(self, size: int) -> None:
        """Holds so much from now on, or nothing if the disk has not got it."""
        self.release()
        reserve_fd = os.open(self.directory / RESERVE_NAME, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(reserve_fd, 0, size)
        except OSError:
            self.release()
            raise
        finally:
            os.close(reserve_fd)

    def release(self) -> None:
        with suppress(FileNotFoundError):
            (self.directory / RESERVE_NAME).unlink()

    def is_behind(self) -> bool:
        return (self.directory / BEHIND_NAME).exists()

    def mark_behind(self, behind: bool) -> None:
        mark = self.directory / BEHIND_NAME
        if behind:
            mark.touch(0o640)
        else:
            mark.unlink(missing_ok=True)
        self.sync_names()
