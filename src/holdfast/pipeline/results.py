"""What executions of channels found: one Arrow file for each that found something, and SQLite for the rest.

Laws:
- an execution appears with its file and its channel's mark in one transaction, or not at all; before that
  the file and its name are safe on disk
- the same number is the same execution: whoever commits it again is told so, and nothing changes
- a file says in its name what its bytes add up to; one that does not is never read
- a file that has such a name and no row was left by a crash, and is swept; a file is removed after its row
- within a file subscriptions rise, and each is there once: a pull is a binary search in mapped memory
- the number of a channel never goes back while this database lives, and another database is another `epoch`
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
import sqlite3
import threading
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import Unavailable
from holdfast.pipeline.layout import Layout

FOUND = pa.schema(
    [
        pa.field("subscription", pa.string(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
FORMAT = 1
EPOCH_BYTES = 4
BUSY_S_MAX = 10.0
# Offsets within a column have 32 bits.
FOUND_BYTES_MAX = 2**31 - 1
# Executions of a channel that are kept for pulls, whatever its retention: their places are held in memory.
EXECUTIONS_MAX = 100_000
FILES_MAPPED_MAX = 1024
SUFFIX = ".arrow"
PART_SUFFIX = ".part"
NAME = re.compile(rf"\d{{12,}}-[0-9a-f]{{8}}\{SUFFIX}(\.[0-9a-f]{{8}}\{PART_SUFFIX})?")

TABLES = f"""
CREATE TABLE channel (
    name TEXT PRIMARY KEY, number INTEGER NOT NULL, upto INTEGER NOT NULL, delivered INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE execution (
    channel TEXT NOT NULL, number INTEGER NOT NULL, after INTEGER NOT NULL, upto INTEGER NOT NULL,
    started_ns INTEGER NOT NULL, finished_ns INTEGER NOT NULL, rows INTEGER NOT NULL, file TEXT,
    PRIMARY KEY (channel, number)
) WITHOUT ROWID;
CREATE TABLE failure (
    channel TEXT PRIMARY KEY, at_ns INTEGER NOT NULL, in_a_row INTEGER NOT NULL, reason TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE epoch (name TEXT NOT NULL);
PRAGMA user_version = {FORMAT};
"""
COLUMNS = "channel, number, after, upto, started_ns, finished_ns, rows, file"


class Damaged(Unavailable):
    """A file or the database of the results cannot be read; says which, and what to do."""


class Execution(Struct, frozen=True):
    """One run of a channel's query over the dataset versions (after, upto]. `file` if it found something."""

    channel: str
    number: int
    after: int
    upto: int
    started_ns: int
    finished_ns: int
    rows: int
    file: str | None = None


class Failure(Struct, frozen=True):
    """The last execution of a channel that failed; `in_a_row` is 0 once another has worked."""

    at_ns: int
    in_a_row: int
    reason: str


class _Channel(Struct):
    """How far a channel is, and its executions that found something, oldest first."""

    number: int = 0
    upto: int = 0
    delivered: int = 0
    found: list[Execution] = []


class Mapped:
    """A file of results in memory, as the page cache has it."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as whole:
                sum_found = zlib.crc32(whole)
            if path.name.rpartition("-")[2] != f"{sum_found:08x}{SUFFIX}":
                raise ValueError("its bytes are not what was written")
            with pa.memory_map(str(path)) as source:
                self.table: pa.Table = pa.ipc.open_file(source).read_all()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise Damaged(
                f"cannot read the results in {path}: {error}. What this execution found is lost unless the "
                "file comes back from a copy; other executions are not touched"
            ) from error
        subscriptions, payloads = (column.chunk(0) for column in self.table.columns)
        self._keys_at, self._keys = _buffers(subscriptions)
        self._payloads_at, self._payloads = _buffers(payloads)
        self._places = range(len(subscriptions))

    def _key(self, place: int) -> bytes:
        at = self._keys_at
        return self._keys[at[place] : at[place + 1]].tobytes()

    def find(self, subscription: bytes) -> bytes | None:
        """The payload of this subscription, if the execution found something for it."""
        place = bisect_left(self._places, subscription, key=self._key)
        if place == len(self._places) or self._key(place) != subscription:
            return None
        at = self._payloads_at
        return self._payloads[at[place] : at[place + 1]].tobytes()


def _buffers(array: pa.Array) -> tuple[memoryview, memoryview]:
    """Where each value begins, and the bytes of all."""
    _, at, data = array.buffers()
    return memoryview(at).cast("i"), memoryview(b"" if data is None else data)


class Results:
    """All channels of one data folder. Any thread may call; one process at a time may commit."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._path = layout.executions
        self._lock = threading.RLock()
        self._channels: dict[str, _Channel] = {}
        self._mapped: OrderedDict[tuple[str, str], Mapped] = OrderedDict()
        self._listeners: list[Callable[[str], None]] = []
        self.epoch = ""
        with self._in_words("open"):
            layout.data.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                self._path, timeout=BUSY_S_MAX, isolation_level=None, check_same_thread=False
            )
        try:
            self._load()
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._mapped.clear()
            self._database.close()

    # -- what is known -------------------------------------------------------------------------------------

    @property
    def channels(self) -> list[str]:
        """Every channel that ever had an execution here."""
        return list(self._channels)

    def mark(self, channel: str) -> tuple[int, int]:
        """Number of the last execution, and the dataset version that it covers; (0, 0) at first."""
        known = self._channels.get(channel)
        return (known.number, known.upto) if known is not None else (0, 0)

    def delivered_number(self, channel: str) -> int:
        known = self._channels.get(channel)
        return known.delivered if known is not None else 0

    def executions(self, channel: str, last: int) -> list[Execution]:
        """The last so many executions, newest first, those too that found nothing."""
        with self._lock, self._in_words("read"):
            rows = self._database.execute(
                f"SELECT {COLUMNS} FROM execution WHERE channel = ? ORDER BY number DESC LIMIT ?",
                (channel, last),
            ).fetchall()
        return [Execution(*row) for row in rows]

    def failure(self, channel: str) -> Failure | None:
        with self._lock, self._in_words("read"):
            row = self._database.execute(
                "SELECT at_ns, in_a_row, reason FROM failure WHERE channel = ?", (channel,)
            ).fetchone()
        return Failure(*row) if row is not None else None

    def undelivered(self, channel: str) -> list[Execution]:
        """Executions that found something and whose notifications are not all at the brokers, in order."""
        known = self._channels.get(channel)
        if known is None:
            return []
        with self._lock:
            return known.found[bisect_left(known.found, known.delivered + 1, key=_number) :]

    def read(self, execution: Execution) -> pa.Table:
        """What it found: `subscription` and `payload`, in mapped memory."""
        if execution.file is None:
            return FOUND.empty_table()
        return self._map(execution.channel, execution.file).table

    def pull(
        self, channel: str, subscription: str, after: int, last: int | None = None
    ) -> list[tuple[int, bytes]]:
        """(number, payload) of executions above `after` that found something for it, oldest first.

        With `last` only the newest so many of them.
        """
        known = self._channels.get(channel)
        if known is None:
            return []
        key = subscription.encode()
        pulled: list[tuple[int, bytes]] = []
        for execution in reversed(known.found):
            if execution.number <= after or len(pulled) == last:
                break
            assert execution.file is not None
            try:
                payload = self._map(channel, execution.file).find(key)
            except Damaged:
                if execution in known.found:
                    raise
                break  # Expired meanwhile, and all before it.
            if payload is not None:
                pulled.append((execution.number, payload))
        pulled.reverse()
        return pulled

    def listen(self, tell: Callable[[str], None]) -> None:
        """From now on `tell(channel)` is called after each commit that found something, by its thread."""
        self._listeners.append(tell)

    # -- what changes --------------------------------------------------------------------------------------

    def commit(self, execution: Execution, found: pa.Table | None) -> bool:
        """Keeps an execution; False if this number was committed before, and nothing changed.

        `found` has the columns of FOUND, sorted by subscription.
        """
        _check(execution, found)
        if execution.number <= self.mark(execution.channel)[0]:
            return False
        if found is not None and found.num_rows:
            execution = replace(execution, file=self._write(execution, found))
        else:
            execution = replace(execution, file=None)
        try:
            new = self._insert(execution)
        except BaseException:
            self._remove(execution)
            raise
        if new and execution.file is not None:
            for tell in self._listeners:
                tell(execution.channel)
        return new

    def failed(self, channel: str, at_ns: int, reason: str) -> None:
        """Keeps why the last execution failed, until the next does; no mark moves."""
        with self._lock, self._transaction("write to") as database:
            database.execute(
                "INSERT INTO failure VALUES (?, ?, 1, ?) ON CONFLICT (channel) DO UPDATE SET "
                "at_ns = excluded.at_ns, in_a_row = in_a_row + 1, reason = excluded.reason",
                (channel, at_ns, reason),
            )

    def delivered(self, channel: str, number: int) -> None:
        """All notifications up to this execution are safe at the brokers."""
        with self._lock:
            known = self._channels.get(channel)
            if known is None or number <= known.delivered:
                return
            with self._transaction("write to") as database:
                database.execute("UPDATE channel SET delivered = ? WHERE name = ?", (number, channel))
            known.delivered = number

    def expire(self, channel: str, retention_ns: int, now_ns: int) -> None:
        """Deletes executions that are older than `retention_ns`, once delivered or if they found nothing."""
        with self._lock:
            known = self._channels.get(channel)
            if known is None:
                return
            over = known.found[-EXECUTIONS_MAX].number if len(known.found) >= EXECUTIONS_MAX else 0
            where = "channel = ? AND (finished_ns < ? OR number < ?) AND (file IS NULL OR number <= ?)"
            which = (channel, now_ns - retention_ns, over, known.delivered)
            with self._transaction("write to") as database:
                gone = [
                    Execution(*row)
                    for row in database.execute(f"SELECT {COLUMNS} FROM execution WHERE {where}", which)
                ]
                if gone:
                    database.execute(f"DELETE FROM execution WHERE {where}", which)
            numbers = {execution.number for execution in gone}
            known.found = [each for each in known.found if each.number not in numbers]
        for execution in gone:
            self._remove(execution)

    def sweep(self) -> list[str]:
        """Removes files that no execution has; for whoever owns the folder, before anything is committed."""
        with self._lock:
            named = {
                (channel, each.file) for channel, known in self._channels.items() for each in known.found
            }
            swept = []
            for path in sorted(self._layout.results("").glob("*/*")):
                ours = NAME.fullmatch(path.name) is not None
                if ours and (path.parent.name, path.name) not in named:
                    with self._in_words("sweep"):
                        path.unlink()
                    swept.append(str(path))
        return swept

    # -- files ---------------------------------------------------------------------------------------------

    def _write(self, execution: Execution, found: pa.Table) -> str:
        """The file of an execution, safe on disk under its name, which is returned."""
        encoded = pa.BufferOutputStream()
        whole = found.select(FOUND.names).cast(FOUND).combine_chunks()
        with pa.ipc.new_file(encoded, FOUND) as writer:
            writer.write_table(whole)
        content = encoded.getvalue()
        directory = self._layout.results(execution.channel)
        name = f"{execution.number:012d}-{zlib.crc32(content):08x}{SUFFIX}"
        part = directory / f"{name}.{secrets.token_hex(4)}{PART_SUFFIX}"
        with self._in_words("write to"):
            if not directory.is_dir():
                directory.mkdir(parents=True, exist_ok=True)
                _sync_names(directory.parent)
            try:
                with part.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                part.rename(directory / name)
                _sync_names(directory)
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise
        return name

    def _map(self, channel: str, file: str) -> Mapped:
        key = channel, file
        with self._lock:
            mapped = self._mapped.get(key)
            if mapped is not None:
                self._mapped.move_to_end(key)
                return mapped
        mapped = Mapped(self._layout.results(channel) / file)
        with self._lock:
            self._mapped[key] = mapped
            while len(self._mapped) > FILES_MAPPED_MAX:
                self._mapped.popitem(last=False)
        return mapped

    def _remove(self, execution: Execution) -> None:
        """The file of an execution that has no row; what cannot be removed now is swept later."""
        if execution.file is None:
            return
        with self._lock:
            known = self._channels.get(execution.channel)
            if known is not None and any(each.file == execution.file for each in known.found):
                return
            self._mapped.pop((execution.channel, execution.file), None)
            with suppress(OSError):
                (self._layout.results(execution.channel) / execution.file).unlink()

    # -- the database --------------------------------------------------------------------------------------

    def _load(self) -> None:
        with self._in_words("open"):
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
        with self._transaction("open") as database:
            form = database.execute("PRAGMA user_version").fetchone()[0]
            if form == 0:
                for statement in TABLES.split(";"):
                    database.execute(statement)
                database.execute("INSERT INTO epoch VALUES (?)", (secrets.token_hex(EPOCH_BYTES),))
            elif form != FORMAT:
                raise Damaged(
                    f"{self._path} has format {form}, this version of Holdfast reads {FORMAT}: "
                    "use the version that wrote it, or another data folder"
                )
            self.epoch = database.execute("SELECT name FROM epoch").fetchone()[0]
            for name, number, upto, delivered in database.execute(
                "SELECT name, number, upto, delivered FROM channel"
            ):
                self._channels[name] = _Channel(number, upto, delivered)
            for row in database.execute(
                f"SELECT {COLUMNS} FROM execution WHERE file IS NOT NULL ORDER BY channel, number"
            ):
                execution = Execution(*row)
                self._channels[execution.channel].found.append(execution)

    def _insert(self, execution: Execution) -> bool:
        with self._lock:
            known = self._channels.get(execution.channel) or _Channel()
            if execution.number <= known.number:
                self._remove(execution)
                return False
            if execution.number != known.number + 1:
                raise ValueError(
                    f"{execution.channel}: execution {execution.number} cannot follow {known.number}"
                )
            with self._transaction("write to") as database:
                values = (execution.channel, execution.number, execution.upto)
                database.execute(
                    "INSERT INTO channel VALUES (?, ?, ?, 0) "
                    "ON CONFLICT (name) DO UPDATE SET number = excluded.number, upto = excluded.upto",
                    values,
                )
                database.execute("UPDATE failure SET in_a_row = 0 WHERE channel = ?", (execution.channel,))
                row = tuple(getattr(execution, name) for name in COLUMNS.split(", "))
                database.execute(f"INSERT INTO execution VALUES ({', '.join('?' * len(row))})", row)
            known.number, known.upto = execution.number, execution.upto
            if execution.file is not None:
                known.found.append(execution)
            self._channels[execution.channel] = known
            return True

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._in_words(doing):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    @contextmanager
    def _in_words(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"cannot {doing} the results in {self._path}: {error}. Nothing was changed; "
                "it can be done again when there is room and the folder can be written"
            ) from error
        except sqlite3.DatabaseError as error:
            raise Damaged(
                f"cannot {doing} the results in {self._path}: {error}. Restore it from a copy, or move "
                f"it and {self._layout.results('')} away: channels then begin anew"
            ) from error
        except OSError as error:
            where = error.filename or self._layout.data
            raise Unavailable(f"cannot {doing} the results: {error.strerror or error} ({where})") from error


def _number(execution: Execution) -> int:
    return execution.number


def _check(execution: Execution, found: pa.Table | None) -> None:
    """What would break the laws of a file is a mistake of the caller, or more than a file can hold."""
    if execution.upto < execution.after:
        raise ValueError(f"{execution.channel}: an execution from {execution.after} to {execution.upto}")
    if found is None or found.num_rows == 0:
        return
    if found.nbytes > FOUND_BYTES_MAX:
        raise Unavailable(
            f"channel {execution.channel} found {found.nbytes} bytes in one execution, at most "
            f"{FOUND_BYTES_MAX} can be kept: let its query give less"
        )
    subscriptions: Any = found.column("subscription").combine_chunks()
    rising = pc.all(pc.less(subscriptions[:-1], subscriptions[1:]), min_count=0).as_py()
    if subscriptions.null_count or found.column("payload").null_count or not rising:
        raise ValueError(f"{execution.channel}: subscriptions must rise, each once")


def _sync_names(directory: Path) -> None:
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory_fd)
    finally:
        os.close(directory_fd)
