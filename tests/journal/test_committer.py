"""The committer: the loop never waits for the disk, and everything that waits is one group."""

import asyncio
import errno
import threading
from collections.abc import Callable
from random import Random

from holdfast.journal import Bounds, Committer, Journal, NotAccepted, State
from holdfast.journal.memory import MemoryDisk, nothing

MESSAGE = 1
BOUNDS = Bounds(segment_bytes=4096, bytes_max=40_000, waiting_bytes_max=20_000)
WAIT_S_MAX = 20.0


class Stage:
    """A committer on the running loop, over a disk whose syncs wait while `gate` is closed."""

    def __init__(self) -> None:
        self.disk = MemoryDisk(Random(1))
        self.gate = threading.Event()
        self.syncing = threading.Event()
        self.journal = Journal(self.disk, BOUNDS)
        self.disk.counts.clear()
        self.disk.before = self.before
        self.told: list[int] = []
        self.failures: list[str] = []
        self.changed = asyncio.Event()
        self.loop_thread = threading.get_ident()
        self.committer = Committer(
            self.journal,
            call=asyncio.get_running_loop().call_soon_threadsafe,
            durable=self.durable,
            failed=self.failed,
        )

    def before(self, operation: str, name: str) -> None:
        assert operation == "read" or threading.get_ident() != self.loop_thread
        if operation == "sync":
            self.syncing.set()
            assert self.gate.wait(WAIT_S_MAX)

    def durable(self, number: int) -> None:
        assert threading.get_ident() == self.loop_thread
        self.told.append(number)
        self.changed.set()

    def failed(self, why: str) -> None:
        assert threading.get_ident() == self.loop_thread
        self.failures.append(why)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            while not condition():
                await self.changed.wait()
                self.changed.clear()

    async def sync_begun(self) -> None:
        assert await asyncio.to_thread(self.syncing.wait, WAIT_S_MAX)


def on_a_loop(scenario: Callable[[Stage], object]) -> None:
    async def run() -> None:
        stage = Stage()
        try:
            await scenario(stage)
        finally:
            stage.gate.set()
            stage.disk.before = nothing
            stage.committer.close()

    asyncio.run(run())


def test_what_comes_while_the_disk_is_slow_is_one_group():
    async def scenario(stage: Stage) -> None:
        stage.journal.append(MESSAGE, b"first")
        stage.committer.flush()
        await stage.sync_begun()
        for _ in range(100):
            stage.journal.append(MESSAGE, b"meanwhile")
            stage.committer.flush()
        assert stage.told == []
        stage.gate.set()
        await stage.until(lambda: stage.told[-1:] == [101])
        assert stage.told == [1, 101]
        assert stage.disk.counts == {"write": 2, "sync": 2}

    on_a_loop(scenario)


def test_a_failure_is_told_once_and_recover_goes_on():
    async def scenario(stage: Stage) -> None:
        stage.gate.set()
        stage.disk.room_bytes = stage.disk.used_bytes + 50
        stage.journal.append(MESSAGE, bytes(100))
        stage.committer.flush()
        await stage.until(lambda: bool(stage.failures))
        assert "No space left on device" in stage.failures[0]
        assert stage.journal.state is State.FAILED
        stage.committer.flush()
        stage.disk.room_bytes = None
        stage.committer.recover()
        await stage.until(lambda: stage.told == [1])
        assert len(stage.failures) == 1
        assert stage.journal.append(MESSAGE, b"more") == 2
        stage.committer.flush()
        await stage.until(lambda: stage.told == [1, 2])

    on_a_loop(scenario)


def test_records_accepted_while_the_failure_was_under_way_are_not_lost():
    async def scenario(stage: Stage) -> None:
        fails = True

        def before(operation: str, name: str) -> None:
            stage.before(operation, name)
            if operation == "sync" and fails:
                raise OSError(errno.EIO, "Input/output error")

        stage.disk.before = before
        stage.journal.append(MESSAGE, b"first")
        stage.committer.flush()
        await stage.sync_begun()
        stage.journal.append(MESSAGE, b"second")
        stage.committer.flush()
        stage.gate.set()
        await stage.until(lambda: bool(stage.failures))
        try:
            stage.journal.append(MESSAGE, b"refused")
        except NotAccepted as error:
            refused = str(error)
        assert "Input/output error" in refused
        fails = False
        stage.committer.recover()
        await stage.until(lambda: stage.told[-1:] == [2])
        assert [record.body for record in stage.journal.replay()] == [b"first", b"second"]

    on_a_loop(scenario)


def test_pruning_waits_its_turn():
    async def scenario(stage: Stage) -> None:
        stage.journal.append_many(MESSAGE, [bytes(3000)] * 4)
        stage.committer.flush()
        await stage.sync_begun()
        stage.committer.prune(4)
        stage.gate.set()
        await stage.until(lambda: stage.told == [4])
        stage.journal.append(MESSAGE, b"behind the pruning")
        stage.committer.flush()
        await stage.until(lambda: stage.told == [4, 5])
        assert stage.journal.first_number == 4

    on_a_loop(scenario)


def test_closing_commits_what_waits():
    async def scenario(stage: Stage) -> None:
        stage.gate.set()
        stage.disk.before = nothing
        stage.journal.append(MESSAGE, b"last words")
        stage.committer.close()
        stage.committer.close()
        assert stage.told == [1]
        assert [record.body for record in Journal(stage.disk, BOUNDS).replay()] == [b"last words"]

    on_a_loop(scenario)


def test_what_is_asked_for_when_something_became_durable_is_begun_once_and_one_after_the_other():
    """The thread has one job at a time: two would end the first one's wait while the second hangs."""

    async def scenario(stage: Stage) -> None:
        under_way = []
        start, finished = stage.committer._start, stage.committer._finished

        def starts(job: Callable[[], object]) -> None:
            under_way.append(1 + (under_way[-1] if under_way else 0))
            start(job)

        def finishes(why: str) -> None:
            under_way.append(under_way[-1] - 1)
            finished(why)

        def durable(number: int) -> None:
            stage.durable(number)
            if number == 1:
                stage.committer.prune(1)
                stage.committer.hold(1024)
                stage.journal.append(MESSAGE, b"second")

        stage.committer._start, stage.committer._finished = starts, finishes
        stage.committer._durable = durable
        stage.gate.set()
        stage.journal.append(MESSAGE, b"first")
        stage.committer.flush()
        await stage.until(lambda: stage.told == [1, 2])
        assert max(under_way) == 1
        assert stage.committer.begun == 4

    on_a_loop(scenario)
