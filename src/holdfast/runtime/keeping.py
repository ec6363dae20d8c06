"""Keeps a broker's journal: appends what the pure part decides, syncs in a thread, tells what is safe.

Laws:
- the event loop never waits for the disk, except when the process ends
- a journal that failed is tried again every RETRY_S, for as long as the broker runs
- room for a snapshot is held back on the disk, given up for the one that heals a failed journal, and held
  again when that has made room
- a disk that has not answered for `journal_wait_max` counts as failed; it is tried again when it has
- what others put into the directory is named once, and left alone
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from holdfast.broker.broker import Broker
from holdfast.config import Limits
from holdfast.errors import ConfigError, Problem, Unavailable
from holdfast.journal import Bounds, Committer, Journal, NotAccepted, Record, State
from holdfast.replication.keeping import Health, Keeping, keep_alone, keep_member
from holdfast.replication.member import Member
from holdfast.replication.memory import Kind
from holdfast.runtime.server import Server
from holdfast.units import format_duration

RETRY_S = 0.5
LOOKS = 4  # at a disk that does not answer, spread over `journal_wait_max`: a process that slept looks once
SNAPSHOT_WAITING_BYTES_MAX = 2**20  # a snapshot goes on when less than this waits for the disk
NAMES_TOLD_MAX = 10

Event = Callable[[str, dict[str, object]], None]


class Keeper:
    def __init__(
        self, keeping: Keeping, journal: Journal, server: Server, wait_max_ns: int, event: Event
    ) -> None:
        self.keeping = keeping
        self.journal = journal
        self.server = server
        self.committer = Committer(
            journal,
            call=server.loop.call_soon_threadsafe,
            durable=self._durable,
            failed=self._failed,
        )
        self._retry: asyncio.TimerHandle | None = None
        self._wait_max_ns = wait_max_ns
        self._seen = 0  # the job that was under way at the last look, and how often it was
        self._looks = 0
        self._marked = journal.disk.is_behind()
        self._event = event
        self._foreign_told: tuple[str, ...] = ()
        self._look_later()
        server.after_step.append(self._after_step)

    def _after_step(self) -> None:
        room = self.journal.waiting_bytes < SNAPSHOT_WAITING_BYTES_MAX
        for entry in self.keeping.take(room, self.journal.free_bytes):
            begins = entry.kind is Kind.SNAPSHOT_BEGIN
            if begins and self.keeping.health is Health.HEALING:
                self.committer.release()
            try:
                number = self.journal.append(
                    entry.kind,
                    entry.body,
                    use_reserve=self.keeping.health is Health.HEALING or entry.of_snapshot,
                    new_file=begins,
                )
            except NotAccepted as error:
                self._failed(str(error))
                break
            self.keeping.accepted(entry, number)
        if self.keeping.behind != self._marked:
            self._marked = self.keeping.behind
            self.committer.mark_behind(self._marked)
        if self.journal.foreign != self._foreign_told:
            self._tell_foreign(self.journal.foreign)
        self.committer.flush()
        if room and self.keeping.waiting:
            self.server.step_soon()

    def _tell_foreign(self, names: tuple[str, ...]) -> None:
        self._foreign_told = names
        if names:
            told = [*names[:NAMES_TOLD_MAX], *(["…"] if len(names) > NAMES_TOLD_MAX else [])]
            self._event("foreign files", {"directory": self.journal.disk.name, "names": ", ".join(told)})

    def _durable(self, number: int) -> None:
        self.keeping.durable(number)
        if self.keeping.prune_before is not None:
            self.committer.prune(self.keeping.prune_before)
            self.keeping.prune_before = None
            self.committer.hold(self.keeping.reserve_bytes)
        self.server.step_soon()

    def _failed(self, why: str) -> None:
        self.keeping.refused(why)
        self.server.step_soon()  # with what those are told who waited for it
        if self._retry is None:
            self._retry = self.server.loop.call_later(RETRY_S, self._try_again)

    def _look_later(self) -> None:
        self._looker = self.server.loop.call_later(self._wait_max_ns / LOOKS / 1e9, self._look)

    def _look(self) -> None:
        """Whether the disk still answers. Looks count, not time: who slept knows nothing of the disk."""
        self._look_later()
        if not self.committer.busy or self.committer.begun != self._seen:
            self._seen, self._looks = self.committer.begun, 0
            return
        self._looks += 1
        if self._looks == LOOKS:
            waited = format_duration(self._wait_max_ns)
            self._failed(f"the disk of journal {self.journal.disk.name} has not answered for {waited}")

    @property
    def _stalled(self) -> bool:
        return self.committer.busy and self.committer.begun == self._seen and self._looks >= LOOKS

    def _try_again(self) -> None:
        self._retry = None
        if self.keeping.health is not Health.FAILED:
            return
        self._retry = self.server.loop.call_later(RETRY_S, self._try_again)
        if self._stalled:
            return
        if self.journal.state is State.FAILED:
            self.committer.recover(anew=True)
            return
        self.keeping.try_again(self.journal.free_bytes + self.journal.reserved_bytes)
        self.committer.look()  # for the next time
        self.server.step_soon()

    def close(self) -> None:
        """All that happened is on disk when this returns, if the disk takes it."""
        if self._retry is not None:
            self._retry.cancel()
        self._looker.cancel()
        self._after_step()
        self.server.after_step.remove(self._after_step)
        self.committer.close(self._wait_max_ns / 1e9)


def keep(host: Broker | Member, directory: str, limits: Limits, server: Server) -> Keeper:
    """Opens the journal in a directory, makes the broker what it says, and keeps it from now on."""
    try:
        journal = Journal.open(Path(directory), bounds_for(limits))
    except Unavailable as error:
        raise ConfigError("--data", [Problem("", str(error))]) from error
    try:
        keeping = recall(host, journal, directory)
    except BaseException as error:
        journal.close()
        if isinstance(error, Unavailable):
            raise ConfigError("--data", [Problem("", str(error))]) from error
        raise
    broker = host.broker if isinstance(host, Member) else host
    return Keeper(keeping, journal, server, limits.journal_wait_max_ns, broker.event)


def recall(host: Broker | Member, journal: Journal, directory: str) -> Keeping:
    def read(start: int | None, kinds: Collection[int] | None) -> Iterator[Record]:
        return journal.replay(start, kinds)

    broker = host.broker if isinstance(host, Member) else host
    now_ns = time.monotonic_ns()
    broker.core.board.now_ns, broker.core.board.wall_ns = now_ns, time.time_ns()
    if journal.cut is not None:
        cut = journal.cut
        broker.event("journal cut", {"file": cut.file, "at": cut.offset, "bytes": cut.bytes, "why": cut.why})
    if isinstance(host, Member):
        return keep_member(host, read, directory, now_ns, behind=journal.disk.is_behind())
    return keep_alone(host, read, directory, now_ns)


def bounds_for(limits: Limits) -> Bounds:
    """The largest message fits into a file, and everything that limits allow fits twice."""
    least = Bounds()
    segment = max(least.segment_bytes, 2 * limits.packet_bytes_max)
    everything = limits.retained_bytes_max + limits.buffer_bytes_max
    return Bounds(
        segment_bytes=segment,
        bytes_max=max(least.bytes_max, 8 * segment, 4 * everything),
        waiting_bytes_max=max(least.waiting_bytes_max, 2 * segment),
    )
