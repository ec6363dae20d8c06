"""A journal on a disk with little room: what was delivered makes room, also when nothing is left."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random

import pytest
from tests.broker.bench import Client
from tests.replication.notebook import KeptBench
from tests.replication.test_keeping import FOREVER, answers, contracts

from holdfast.journal import Bounds, Journal, NotAccepted, Record, State
from holdfast.journal.memory import MemoryDisk, nothing
from holdfast.mqtt.packets import Disconnect, Puback, Publish
from holdfast.mqtt.reasons import Reason
from holdfast.replication import keeping as pure
from holdfast.replication.keeping import Health, Keeping
from holdfast.replication.memory import Kind

ROOM = 400_000
BODY = 1000
RESERVE = 64_000
BOUNDS = Bounds(segment_bytes=2**20, bytes_max=2**23, waiting_bytes_max=2**20)


class PowerLoss(BaseException):
    """Ends an operation in its middle, past every handler of errors."""


class SmallDisk:
    """A journal on a disk in memory, in place of a Notebook; it does what a Keeper does, in one thread."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.journal = Journal(disk, BOUNDS)

    def read(self, start: int | None, kinds: Collection[int] | None) -> Iterator[Record]:
        return self.journal.replay(start, kinds)

    def write(self, keeping: Keeping, room: bool = True) -> None:
        for entry in keeping.take(room, self.journal.free_bytes):
            begins = entry.kind is Kind.SNAPSHOT_BEGIN
            if begins and keeping.health is Health.HEALING:
                self.journal.release()
            number = self.journal.append(entry.kind, entry.body, use_reserve=True, new_file=begins)
            keeping.accepted(entry, number)

    def sync(self, keeping: Keeping) -> None:
        if self.journal.state is State.FAILED:
            return
        before = self.journal.durable_number
        try:
            self.journal.commit()
        except NotAccepted as error:
            keeping.refused(str(error))
        if self.journal.durable_number > before:
            keeping.durable(self.journal.durable_number)
        if keeping.prune_before is not None:
            self.journal.prune(keeping.prune_before)
            keeping.prune_before = None
            self.journal.hold(keeping.reserve_bytes)

    def try_again(self, keeping: Keeping) -> None:
        self.journal.recover(anew=True)
        self.journal.look()
        keeping.try_again(self.journal.free_bytes + self.journal.reserved_bytes)


class Stage:
    """A broker on a small disk, a publisher, and a subscriber of QoS 1 that comes and goes."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.shelf = SmallDisk(disk)
        self.bench = KeptBench(self.shelf, contracts())  # type: ignore[arg-type]
        assert self.bench.keeping is not None
        self.keeping = self.bench.keeping
        self.publisher = self.bench.client("p")
        self.subscriber: Client | None = None
        self.sent = 0
        self.got: list[int] = []

    def come(self) -> None:
        """The subscriber is here, and acknowledges all that waited for it."""
        self.subscriber = self.bench.client("s", **FOREVER)
        self.confirm()
        self.subscriber.subscribe("kept/+", qos=1)

    def go(self) -> None:
        assert self.subscriber is not None
        self.subscriber.say(Disconnect())
        self.subscriber = None

    def confirm(self) -> None:
        while self.subscriber is not None and (messages := self.subscriber.messages()):
            self.got += [int(message.payload.split()[0]) for message in messages]
            self.subscriber.say(*[Puback(message.packet_id) for message in messages])

    def publish(self) -> int:
        """One durable message; what its publisher is told."""
        self.sent += 1
        body = b"%d " % self.sent + bytes(BODY)
        self.publisher.say(Publish(topic="kept/1", payload=body, qos=1, packet_id=self.sent % 60_000 + 1))
        self.confirm()
        return answers(self.publisher)[-1].reason

    def try_again(self) -> None:
        self.shelf.try_again(self.keeping)
        self.bench.run()

    @property
    def names(self) -> list[str]:
        return [event for event, _ in self.bench.events if event.startswith("journal")]


@pytest.fixture(autouse=True)
def reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pure, "RESERVE_BYTES_MIN", RESERVE)


def test_a_journal_of_delivered_messages_never_fills_its_disk() -> None:
    """Ten times the room is written, and everything arrives."""
    stage = Stage(MemoryDisk(Random(1), room_bytes=ROOM))
    stage.come()
    reasons = {stage.publish() for _ in range(10 * ROOM // BODY)}
    assert reasons == {Reason.SUCCESS}
    assert stage.got == list(range(1, stage.sent + 1))
    assert stage.names == []
    assert 10 < stage.keeping.snapshots < 50
    assert stage.shelf.journal.reserved_bytes == RESERVE


def test_a_disk_with_much_room_sees_no_snapshot_for_want_of_it() -> None:
    stage = Stage(MemoryDisk(Random(1), room_bytes=100 * ROOM))
    stage.come()
    for _ in range(800):
        stage.publish()
    assert stage.keeping.snapshots == 1


def test_a_disk_that_others_filled_is_recovered_by_the_reserve() -> None:
    disk = MemoryDisk(Random(1), room_bytes=ROOM)
    stage = Stage(disk)
    stage.come()
    for _ in range(100):
        assert stage.publish() == Reason.SUCCESS
    disk.room_bytes = disk.used_bytes + disk.reserved_bytes()
    assert stage.publish() == Reason.QUOTA_EXCEEDED
    stage.try_again()
    assert stage.names == ["journal failed", "journal recovered"]
    assert 0 < stage.shelf.journal.reserved_bytes < RESERVE
    assert {stage.publish() for _ in range(500)} == {Reason.SUCCESS}
    assert stage.got == list(range(1, stage.sent + 1))


def fill_with_undelivered(stage: Stage) -> int:
    stage.come()
    stage.go()
    accepted = 0
    while stage.publish() == Reason.SUCCESS:
        accepted += 1
    return accepted


def test_undelivered_messages_fill_the_disk_and_make_room_when_they_arrive() -> None:
    """No half snapshots are written meanwhile: each would take the room of the one that fits."""
    disk = MemoryDisk(Random(1), room_bytes=ROOM)
    stage = Stage(disk)
    accepted = fill_with_undelivered(stage)
    assert accepted * BODY > ROOM // 2
    writes = disk.counts["write"]
    for _ in range(5):
        stage.try_again()
        assert stage.keeping.health is Health.FAILED
    assert disk.counts["write"] == writes
    stage.come()
    assert len(stage.got) >= accepted
    stage.try_again()
    assert stage.names == ["journal failed", "journal recovered"]
    assert stage.publish() == Reason.SUCCESS


def test_a_full_disk_is_recovered_at_the_start_too() -> None:
    disk = MemoryDisk(Random(1), room_bytes=ROOM)
    stage = Stage(disk)
    stage.come()
    stage.publish()
    disk.room_bytes = disk.used_bytes + disk.reserved_bytes()
    disk.kill()
    again = Stage(disk)
    assert again.names == ["journal failed"]
    assert again.publish() == Reason.QUOTA_EXCEEDED
    again.try_again()
    assert again.names == ["journal failed", "journal recovered"]
    assert again.publish() == Reason.SUCCESS


@pytest.mark.parametrize("spare", [-1, 0])
def test_a_snapshot_is_begun_when_it_fits_to_the_byte(spare: int) -> None:
    stage = Stage(MemoryDisk(Random(1), room_bytes=ROOM))
    accepted = fill_with_undelivered(stage)
    keeping = stage.keeping
    stage.shelf.journal.recover(anew=True)
    weight = sum(len(entry.body) + pure.RECORD_BYTES for piece in keeping._contents() for entry in piece)
    assert weight > accepted * BODY
    stage.disk.room_bytes = None
    keeping.try_again(weight + weight // pure.SPARE_SHARE + spare)
    stage.bench.run()
    assert keeping.health is (Health.FAILED if spare else Health.KEEPING)


@pytest.mark.parametrize(("kept", "snapshots_max"), [(0, 12), (25_000, 14), ((ROOM - RESERVE) // 3, 40)])
def test_a_snapshot_for_want_of_room_gives_back_what_it_costs(kept: int, snapshots_max: int) -> None:
    """Each byte of a snapshot is paid for by others that go, and a third of the room may stay."""
    disk = MemoryDisk(Random(1), room_bytes=ROOM)
    stage = Stage(disk)
    stage.come()
    stage.publisher.say(Publish(topic="plain/r", payload=bytes(kept + 1), retain=True))
    for _ in range(1000):
        assert stage.publish() == Reason.SUCCESS
    assert stage.keeping.snapshots < snapshots_max


def test_nothing_acknowledged_is_lost_at_any_crash_point() -> None:
    """Power is lost ahead of the nth operation of the disk, through snapshots, prunes, reserves and a failure
    that is recovered."""
    events: set[str] = set()
    for point in range(1, 10_000):
        disk = MemoryDisk(Random(point), room_bytes=ROOM // 3)
        done, acknowledged = crash_at(disk, point, events)
        disk.before = nothing
        disk.crash()
        after = Stage(disk)
        after.come()
        for _ in range(4):
            if after.keeping.health is Health.FAILED:
                after.try_again()
        assert after.keeping.health is Health.KEEPING
        assert acknowledged <= set(after.got), point
        if done:
            break
    assert point > 100
    assert events == {"journal failed", "journal recovered"}


def crash_at(disk: MemoryDisk, point: int, events: set[str]) -> tuple[bool, set[int]]:
    """Whether all was done before that point, and what only the journal still has to deliver by then."""
    stage = Stage(disk)
    left = point
    acknowledged: set[int] = set()

    def before(operation: str, name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise PowerLoss

    stage.come()
    disk.before = before
    try:
        for _ in range(100):
            assert stage.publish() == Reason.SUCCESS
        stage.go()
        for step in range(20):
            if step == 10:
                disk.room_bytes = disk.used_bytes + disk.reserved_bytes()
            if stage.publish() == Reason.SUCCESS:
                acknowledged.add(stage.sent)
            else:
                stage.try_again()
    except PowerLoss:
        return False, acknowledged
    finally:
        events.update(stage.names)
    return True, acknowledged
