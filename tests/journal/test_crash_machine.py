"""Any mix of appends, commits, full disks, prunes and crashes in the middle of any operation.

What was durable stays, under its number, and what survives besides is a prefix of what was accepted.
"""

import errno
from contextlib import suppress
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.journal.errors import NotAccepted, Refusal
from holdfast.journal.format import MARK_BYTES, segment_name
from holdfast.journal.journal import Bounds, Journal, State
from holdfast.journal.memory import MemoryDisk, nothing

BOUNDS = Bounds(segment_bytes=4096, bytes_max=40_000, waiting_bytes_max=20_000)
SIZES = [0, 1, 20, 500, 1200, 2000, BOUNDS.body_bytes_max - 1, BOUNDS.body_bytes_max]
BODIES = st.builds(lambda size, fill: bytes([fill]) * size, st.sampled_from(SIZES), st.integers(0, 255))


class PowerLoss(BaseException):
    """Ends an operation in its middle, past every handler of errors."""


class Machine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.disk = MemoryDisk(Random(seed))
        self.accepted: list[tuple[int, bytes]] = []
        self.durable = 0
        self.first = 1
        self.reason: Refusal | None = None
        self.reasons: set[Refusal | None] = {None}
        self.journal = Journal(self.disk, BOUNDS)

    def power_loss_after(self, operations: int) -> None:
        left = operations

        def before(operation: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerLoss

        self.disk.before = before

    def restart(self, operations: int | None = None) -> None:
        """Crashes and opens again; opening itself may crash, once."""
        self.disk.crash()
        if operations is not None:
            self.power_loss_after(operations)
            with suppress(PowerLoss):
                Journal(self.disk, BOUNDS).close()
            self.disk.before = nothing
            self.disk.crash()
        self.journal = Journal(self.disk, BOUNDS)
        survived = self.journal.durable_number
        assert self.durable <= survived <= len(self.accepted)
        del self.accepted[survived:]
        self.durable = survived

    @rule(kind=st.integers(1, 255), bodies=st.lists(BODIES, max_size=5))
    def append(self, kind: int, bodies: list[bytes]) -> None:
        try:
            numbers = self.journal.append_many(kind, bodies)
        except NotAccepted as error:
            failed = self.journal.state is State.FAILED
            self.reasons = {Refusal.FAILED} if failed else {Refusal.FULL, Refusal.BEHIND}
            self.reason = error.reason
            return
        assert numbers == range(len(self.accepted) + 1, len(self.accepted) + 1 + len(bodies))
        self.accepted += [(kind, body) for body in bodies]

    @rule(body=BODIES)
    def append_to_a_new_file(self, body: bytes) -> None:
        with suppress(NotAccepted):
            number = self.journal.append(1, body, new_file=True)
            self.accepted.append((1, body))
            assert number == len(self.accepted)

    @rule(size=st.integers(0, 9000), operations=st.none() | st.integers(0, 2))
    def hold_and_release(self, size: int, operations: int | None) -> None:
        if operations is not None:
            self.power_loss_after(operations)
        with suppress(PowerLoss):
            self.journal.hold(size)
            self.journal.release()
        self.disk.before = nothing
        if operations is not None:
            self.restart()

    @precondition(lambda self: self.journal.state is State.OPEN)
    @rule()
    def commit(self) -> None:
        assert self.journal.commit() == len(self.accepted)
        self.durable = len(self.accepted)

    @rule(operations=st.integers(0, 12), again=st.none() | st.integers(0, 8))
    def crash_in_commit(self, operations: int, again: int | None) -> None:
        self.power_loss_after(operations)
        try:
            self.journal.recover() if self.journal.state is State.FAILED else self.journal.commit()
            self.durable = len(self.accepted)
        except PowerLoss:
            self.durable = self.journal.durable_number
        self.disk.before = nothing
        self.restart(again)

    @rule(again=st.none() | st.integers(0, 8))
    def crash(self, again: int | None) -> None:
        self.restart(again)

    @rule(operations=st.integers(0, 3))
    def kill_in_commit(self, operations: int) -> None:
        """Only the process ends. What it had written is found, so it must be safe from then on."""
        self.power_loss_after(operations)
        with suppress(PowerLoss):
            self.journal.recover() if self.journal.state is State.FAILED else self.journal.commit()
        self.disk.before = nothing
        self.durable = self.journal.durable_number
        self.disk.kill()
        found = Journal(self.disk, BOUNDS).durable_number
        assert self.durable <= found
        self.durable = found
        self.restart()

    def commit_to_a_bad_disk(self, why: str) -> None:
        with suppress(NotAccepted):
            self.journal.commit()
        assert (self.journal.state is State.FAILED) == (why in self.journal.why)
        assert (self.journal.state is State.OPEN) == (self.journal.waiting_bytes == 0)

    @precondition(lambda self: self.journal.state is State.OPEN and self.journal.waiting_bytes > 0)
    @rule(room=st.integers(0, 9000))
    def full_disk(self, room: int) -> None:
        self.disk.room_bytes = self.disk.used_bytes + room
        self.commit_to_a_bad_disk("No space left on device")
        self.disk.room_bytes = None
        self.durable = self.journal.durable_number

    @precondition(lambda self: self.journal.state is State.OPEN and self.journal.waiting_bytes > 0)
    @rule(good=st.integers(0, 6))
    def broken_disk(self, good: int) -> None:
        """From some operation on, every one fails; the disk is mended afterwards."""
        left = good

        def before(operation: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.EIO, "Input/output error")

        self.disk.before = before
        self.commit_to_a_bad_disk("Input/output error")
        self.disk.before = nothing
        self.durable = self.journal.durable_number

    @precondition(lambda self: self.journal.state is State.FAILED)
    @rule()
    def recover(self) -> None:
        assert self.journal.recover() == self.journal.durable_number
        self.journal.commit()
        assert self.journal.state is State.OPEN
        self.durable = len(self.accepted)

    @precondition(lambda self: self.journal.state is State.FAILED)
    @rule(operations=st.none() | st.integers(0, 8))
    def recover_anew(self, operations: int | None) -> None:
        """What was not durable is forgotten: a crash before that may still find it."""
        if operations is not None:
            self.power_loss_after(operations)
        try:
            assert self.journal.recover(anew=True) == self.durable
            del self.accepted[self.durable :]
            assert self.journal.waiting_bytes == 0
        except PowerLoss:
            pass
        self.disk.before = nothing
        if operations is not None:
            self.restart()

    @rule()
    def close_and_open(self) -> None:
        failed = self.journal.state is State.FAILED
        self.journal.close()
        if not failed:
            self.durable = len(self.accepted)
        self.journal = Journal(self.disk, BOUNDS)
        survived = self.journal.durable_number
        if not failed:
            assert (survived, self.journal.cut) == (self.durable, None)
        # After a failure, what was written and could neither be synced nor cut may have survived.
        assert self.durable <= survived <= len(self.accepted)
        self.durable = survived
        del self.accepted[self.durable :]

    @rule(share=st.floats(0, 1.2), operations=st.none() | st.integers(0, 6))
    def prune(self, share: float, operations: int | None) -> None:
        before_number = int(share * len(self.accepted))
        if operations is not None:
            self.power_loss_after(operations)
        with suppress(PowerLoss):
            self.journal.prune(before_number)
        self.disk.before = nothing
        if operations is not None:
            self.restart()
        assert self.first <= self.journal.first_number <= max(before_number, self.first)
        self.first = self.journal.first_number

    @invariant()
    def replay_tells_what_is_durable(self) -> None:
        assert self.journal.durable_number == self.durable
        records = list(self.journal.replay())
        assert [(record.kind, record.body) for record in records] == self.accepted[
            self.first - 1 : self.durable
        ]
        assert [record.number for record in records] == list(range(self.first, self.durable + 1))

    @invariant()
    def refusals_have_the_reason_that_they_should(self) -> None:
        assert self.reason in self.reasons

    @invariant()
    def everything_keeps_its_bound(self) -> None:
        assert all(self.disk.size(name) <= BOUNDS.segment_bytes for name in self.disk.names())
        assert self.disk.used_bytes <= BOUNDS.bytes_max
        assert self.journal.waiting_bytes <= BOUNDS.waiting_bytes_max
        if self.journal.state is State.OPEN:
            assert self.disk.used_bytes == self.journal.used_bytes - self.journal.waiting_bytes
            assert segment_name(self.first) == self.disk.names()[0]
            assert self.journal.used_bytes >= MARK_BYTES


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None, database=None)
