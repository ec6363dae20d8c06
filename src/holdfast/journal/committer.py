"""Commits a journal without ever blocking the event loop.

One thread writes and syncs, one job at a time. Whatever is appended meanwhile goes into the next group, so
that the slower the disk, the larger the group. All results come back on the loop, in order, through `call`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from holdfast.errors import Unavailable
from holdfast.journal.journal import Journal, State

Job = Callable[[], object]
Call = Callable[[Callable[[], None]], object]


class Committer:
    """`call` runs a function on the loop, from any thread (`loop.call_soon_threadsafe`). `durable` is told
    the highest durable number each time it grows, `failed` why the journal failed. All methods belong to
    the loop."""

    def __init__(
        self,
        journal: Journal,
        *,
        call: Call,
        durable: Callable[[int], None],
        failed: Callable[[str], None],
    ) -> None:
        self.journal = journal
        self._call = call
        self._durable = durable
        self._failed = failed
        self._told_number = journal.durable_number
        self._wanted: deque[Job] = deque()
        self.begun = 0  # jobs that the thread was given so far
        self._busy = False
        self._closed = False
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether the disk still has to answer to the last job."""
        return self._busy

    def flush(self) -> None:
        """Sees to it that all that waits becomes durable; returns at once."""
        if not self._busy:
            self._next()

    def prune(self, before_number: int) -> None:
        self._want(lambda: self.journal.prune(before_number))

    def recover(self, *, anew: bool = False) -> None:
        """Tries again after a failure; `durable` or `failed` tells how it went."""
        self._want(lambda: self.journal.recover(anew=anew))

    def mark_behind(self, behind: bool) -> None:
        self._want(lambda: self.journal.mark_behind(behind))

    def look(self) -> None:
        self._want(self.journal.look)

    def hold(self, size: int) -> None:
        self._want(lambda: self.journal.hold(size))

    def release(self) -> None:
        """Before anything that waits is written."""
        self._want(self.journal.release)

    def close(self, wait_s: float | None = None) -> None:
        """Waits for the disk, commits what waits and closes the journal. For the end of a process: this
        blocks. A disk that does not answer for `wait_s` is left as it is."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        self._thread.join(wait_s)
        if self._thread.is_alive():
            return
        while self._wanted:
            self._run(self._wanted.popleft())
        if self.journal.state is State.OPEN:
            self._run(self.journal.commit)
        self._tell_durable()
        self.journal.close()

    def _want(self, job: Job) -> None:
        if self._closed:
            return
        self._wanted.append(job)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        """Hands the thread its next job: what was asked for first, then all that waits as one batch."""
        if self._closed:
            return
        if self._wanted:
            self._start(self._wanted.popleft())
        elif self.journal.state is State.OPEN and (batch := self.journal.take()) is not None:
            self._start(lambda: self.journal.store(batch))

    def _start(self, job: Job) -> None:
        self._busy = True
        self.begun += 1
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            why = self._perform(job)
            self._call(partial(self._finished, why))

    @staticmethod
    def _perform(job: Job) -> str:
        try:
            job()
        except Unavailable as error:
            return str(error)
        return ""

    def _run(self, job: Job) -> None:
        if why := self._perform(job):
            self._failed(why)

    def _finished(self, why: str) -> None:
        self._busy = False
        self._tell_durable()
        if why:
            self._failed(why)
        self.flush()  # unless one of them asked for something, which is under way then

    def _tell_durable(self) -> None:
        number = self.journal.durable_number
        if number > self._told_number:
            self._told_number = number
            self._durable(number)
