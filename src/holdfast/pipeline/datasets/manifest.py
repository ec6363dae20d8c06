"""The manifest: which files are in which dataset, since which version, and how far each dataset has read.

Laws:
- a version is one SQLite transaction: files, offsets and the number change together or not at all
- a version is a consistent state of all datasets, and numbers only grow; no clock has a say in them
- a row belongs to the version that brought it, whichever file holds it later: a file that replaces others
  keeps the range of versions of its rows, and is new to nobody
- a file that was replaced or expired stays on disk, and in the manifest, until `forget`: who reads an older
  version finds it
- one process writes, under a lock; any number read, and wait for nobody
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from holdfast.errors import Unavailable

FORMAT = 1
WAIT_S_MAX = 30.0

TABLES = """
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL);
INSERT INTO state VALUES (1, 0);
CREATE TABLE datasets (name TEXT PRIMARY KEY, shape BLOB NOT NULL, offset INTEGER);
CREATE TABLE files (
    dataset TEXT NOT NULL, name TEXT NOT NULL, base INTEGER NOT NULL, rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL, first_version INTEGER NOT NULL, last_version INTEGER NOT NULL,
    oldest_ns INTEGER NOT NULL, newest_ns INTEGER NOT NULL, added INTEGER NOT NULL, removed INTEGER,
    PRIMARY KEY (dataset, name)
) WITHOUT ROWID;
CREATE INDEX live ON files (dataset, added) WHERE removed IS NULL;
CREATE INDEX dead ON files (dataset, removed) WHERE removed IS NOT NULL;
"""
FILE_COLUMNS = (
    "dataset, name, base, rows, bytes, first_version, last_version, oldest_ns, newest_ns, added, removed"
)
INSERT = f"INSERT INTO files ({FILE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class ManifestDamaged(Unavailable):
    """The manifest cannot be trusted. Nothing was changed, and nothing is made again in silence."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} is damaged or missing: {why}. Restore it from a copy. Or move it and the folder "
            f"{path.parent / 'datasets'} away: datasets then begin again with what the feeds still keep."
        )


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file that is safe on disk, and that no manifest names yet.

    Its rows came with versions from `first_version` to `last_version`, and arrived from `oldest_ns` to
    `newest_ns`. A keyed dataset has files of its `base`, and at most one that covers them.
    """

    dataset: str
    name: str
    rows: int
    bytes: int
    first_version: int
    last_version: int
    oldest_ns: int
    newest_ns: int
    base: bool = False


class File(Written, frozen=True, kw_only=True):
    """A file of a dataset: in it from version `added` on, and before `removed` if it is not any more."""

    added: int
    removed: int | None


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a dataset was declared as when its files were written."""

    kind: str
    feed: str
    format: str
    columns: dict[str, str]
    key: tuple[str, ...]


class Manifest:
    """Open for reading with `Manifest(path)`, for writing with `Manifest.writer(path)`."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise Unavailable(f"{path} is not there: nothing has been ingested yet. Run `holdfast pipeline`.")
        self.path = path
        self._lock = threading.RLock()
        self._writing = threading.RLock()
        self._held: IO[bytes] | None = None
        self._base = self._connect()

    @classmethod
    def writer(cls, path: Path) -> Self:
        """Makes the manifest of an empty data folder; takes the lock that keeps other writers out."""
        path.parent.mkdir(parents=True, exist_ok=True)
        held = path.with_suffix(".lock").open("ab")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held.close()
            raise Unavailable(
                f"another process writes the datasets of {path.parent}: stop it first"
            ) from None
        try:
            if not path.exists():
                if any((path.parent / "datasets").glob("*/*.parquet")):
                    raise ManifestDamaged(path, "there are files of datasets, and no manifest of them")
                _create(path)
            opened = cls(path)
            opened._check()
        except BaseException:
            held.close()
            raise
        opened._held = held
        return opened

    def close(self) -> None:
        self._base.close()
        if self._held is not None:
            self._held.close()
            self._held = None

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return int(self._rows("SELECT version FROM state")[0][0])

    def files(self, dataset: str, version: int | None = None) -> list[File]:
        """The files of the dataset at that version, or at the newest, oldest rows first."""
        if version is None:
            return self._files("removed IS NULL", (dataset,))
        return self._files("added <= ? AND (removed IS NULL OR removed > ?)", (dataset, version, version))

    def added(self, dataset: str, after: int, upto: int) -> list[File]:
        """The files at version `upto` with rows of versions above `after`; they may have older ones too."""
        return self._files(
            "added <= ? AND (removed IS NULL OR removed > ?) AND last_version > ?",
            (dataset, upto, upto, after),
        )

    def removed(self) -> list[File]:
        """Files that no version from now on has, and that are still there for readers of older ones."""
        return self._as_files(self._rows(f"SELECT {FILE_COLUMNS} FROM files WHERE removed IS NOT NULL"))

    def named(self, dataset: str) -> set[str]:
        """Every file of the dataset that is named, removed ones too."""
        return {str(name) for (name,) in self._rows("SELECT name FROM files WHERE dataset = ?", (dataset,))}

    def offset(self, dataset: str) -> int | None:
        """The first offset of its feed that the dataset has not taken; None if it has taken nothing."""
        found = self._rows("SELECT offset FROM datasets WHERE name = ?", (dataset,))
        return found[0][0] if found else None

    def shape(self, dataset: str) -> Shape | None:
        found = self._rows("SELECT shape FROM datasets WHERE name = ?", (dataset,))
        return msgspec.json.decode(found[0][0], type=Shape) if found else None

    def names(self) -> list[str]:
        """Every dataset that was ever declared here."""
        return [str(name) for (name,) in self._rows("SELECT name FROM datasets ORDER BY name")]

    # -- writing ---------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[int]:
        """Gives the number that the next version will have, and lets no other thread make it meanwhile.

        Readers do not wait for it."""
        with self._writing:
            yield self.version + 1

    def declare(self, dataset: str, shape: Shape) -> None:
        with self._transaction() as base:
            base.execute(
                "INSERT INTO datasets VALUES (?, ?, NULL) "
                "ON CONFLICT (name) DO UPDATE SET shape = excluded.shape",
                (dataset, msgspec.json.encode(shape)),
            )

    def commit(
        self,
        added: Sequence[Written] = (),
        removed: Sequence[File] = (),
        offsets: Mapping[str, int] | None = None,
    ) -> int:
        """One more version: these files came and those went, and these datasets have read that far."""
        with self._transaction() as base:
            (version,) = base.execute("UPDATE state SET version = version + 1 RETURNING version").fetchone()
            assert all(each.last_version <= version for each in added), "rows of a version that is not yet"
            for each in removed:
                went = base.execute(
                    "UPDATE files SET removed = ? WHERE dataset = ? AND name = ? AND removed IS NULL",
                    (version, each.dataset, each.name),
                )
                assert went.rowcount == 1, f"{each.name} is removed twice"
            base.executemany(INSERT, [_values(each, version) for each in added])
            base.executemany(
                "UPDATE datasets SET offset = ? WHERE name = ?",
                [(offset, name) for name, offset in (offsets or {}).items()],
            )
        return int(version)

    def forget(self, files: Iterable[File]) -> None:
        """Files that were removed, and are now gone from disk too."""
        with self._transaction() as base:
            base.executemany(
                "DELETE FROM files WHERE dataset = ? AND name = ? AND removed IS NOT NULL",
                [(each.dataset, each.name) for each in files],
            )

    # -- SQLite ----------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        base = sqlite3.connect(self.path, WAIT_S_MAX, isolation_level=None, check_same_thread=False)
        try:
            base.execute("PRAGMA synchronous = FULL")
            (found,) = base.execute("PRAGMA user_version").fetchone()
        except sqlite3.DatabaseError as error:
            base.close()
            raise ManifestDamaged(self.path, str(error)) from None
        if found != FORMAT:
            base.close()
            raise ManifestDamaged(self.path, f"it is of format {found}, and this is for format {FORMAT}")
        return base

    def _check(self) -> None:
        ((said,), *_) = self._rows("PRAGMA quick_check(1)")
        if said != "ok":
            self._base.close()
            raise ManifestDamaged(self.path, " ".join(str(said).split()))

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._in_words():
            return self._base.execute(query, values).fetchall()

    def _files(self, where: str, values: tuple[object, ...]) -> list[File]:
        query = f"SELECT {FILE_COLUMNS} FROM files WHERE dataset = ? AND {where} ORDER BY first_version, name"
        return self._as_files(self._rows(query, values))

    @staticmethod
    def _as_files(rows: list[tuple[Any, ...]]) -> list[File]:
        return [
            File(
                dataset=dataset,
                name=name,
                base=bool(base),
                rows=count,
                bytes=size,
                first_version=first,
                last_version=last,
                oldest_ns=oldest,
                newest_ns=newest,
                added=added,
                removed=removed,
            )
            for dataset, name, base, count, size, first, last, oldest, newest, added, removed in rows
        ]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        assert self._held is not None, "a manifest that is open for reading"
        with self._writing, self._lock, self._in_words():
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("ROLLBACK")
                raise

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self.path} cannot be used: {error}; nothing was lost, try again") from error
        except sqlite3.DatabaseError as error:
            raise ManifestDamaged(self.path, str(error)) from error


def _create(path: Path) -> None:
    """In one transaction, under another name: a crash leaves no manifest, never half of one."""
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    base = sqlite3.connect(draft, isolation_level=None)
    base.execute("PRAGMA journal_mode = WAL")
    base.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {FORMAT}; COMMIT;")
    base.close()
    draft.rename(path)


def _values(file: Written, added: int) -> tuple[object, ...]:
    return (
        file.dataset,
        file.name,
        file.base,
        file.rows,
        file.bytes,
        file.first_version,
        file.last_version,
        file.oldest_ns,
        file.newest_ns,
        added,
        None,
    )
