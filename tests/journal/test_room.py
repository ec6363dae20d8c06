"""Room on the disk: files that begin with a record, a reserve, and a new beginning after a failure."""

import os
from pathlib import Path
from random import Random

import pytest

from holdfast.journal import Bounds, Journal, NotAccepted, State
from holdfast.journal.disk import RESERVE_NAME, RealDisk
from holdfast.journal.format import HEADER_BYTES, MARK_BYTES, RECORD_BYTES, segment_name
from holdfast.journal.memory import MemoryDisk

MESSAGE, SNAPSHOT = 1, 2
BOUNDS = Bounds(segment_bytes=4096, bytes_max=40_000, waiting_bytes_max=20_000)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk(Random(7))


def fail(journal: Journal, disk: MemoryDisk, *bodies: bytes, room: int = 10) -> None:
    disk.room_bytes = disk.used_bytes + disk.reserved_bytes() + room
    for body in bodies:
        journal.append(MESSAGE, body)
    with pytest.raises(NotAccepted, match="No space left"):
        journal.commit()


@pytest.mark.parametrize("committed", [False, True])
def test_all_that_lies_before_a_new_file_can_be_pruned(disk, committed):
    journal = Journal(disk, BOUNDS)
    for body in (b"old", b"older"):
        journal.append(MESSAGE, body)
    if committed:
        journal.commit()
    begin = journal.append(SNAPSHOT, b"begin", new_file=True)
    journal.append(SNAPSHOT, b"end")
    journal.commit()
    assert disk.names() == [segment_name(1), segment_name(begin)]
    assert journal.prune(begin) == 1
    assert [record.body for record in journal.replay()] == [b"begin", b"end"]
    assert journal.used_bytes == disk.used_bytes
    journal.close()
    assert [record.number for record in Journal(disk, BOUNDS).replay()] == [3, 4]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_file_without_a_record_is_new(disk, sealed):
    journal = Journal(disk, BOUNDS)
    if sealed:
        journal.append(MESSAGE, bytes(BOUNDS.body_bytes_max))
        journal.close()
        journal = Journal(disk, BOUNDS)
    first = journal.append(SNAPSHOT, b"begin", new_file=True)
    journal.append(SNAPSHOT, bytes(BOUNDS.body_bytes_max), new_file=True)
    journal.commit()
    assert disk.names() == [segment_name(each) for each in range(1, first + 2)]
    assert all(disk.size(name) <= BOUNDS.segment_bytes for name in disk.names())
    assert journal.used_bytes == disk.used_bytes


def test_a_new_beginning_forgets_what_was_not_safe_and_numbers_have_no_gap(disk):
    journal = Journal(disk, BOUNDS)
    journal.append(MESSAGE, b"safe")
    journal.commit()
    fail(journal, disk, bytes(1000), bytes(3500), bytes(3500))
    disk.room_bytes = disk.used_bytes + 300
    assert journal.recover(anew=True) == 1
    assert (journal.state, journal.waiting_bytes, journal.next_number) == (State.OPEN, 0, 2)
    assert journal.append(SNAPSHOT, b"instead", new_file=True) == 2
    assert journal.commit() == 2
    assert journal.used_bytes == disk.used_bytes
    journal.close()
    assert [record.body for record in Journal(disk, BOUNDS).replay()] == [b"safe", b"instead"]


def test_a_new_beginning_uses_the_file_that_the_failure_left_empty(disk):
    """The header of the next file was safe, its records were not."""
    journal = Journal(disk, BOUNDS)
    journal.append(MESSAGE, b"safe")
    journal.commit()
    fail(journal, disk, bytes(BOUNDS.body_bytes_max), room=200)
    assert disk.names() == [segment_name(1), segment_name(2)]
    disk.room_bytes = None
    journal.recover(anew=True)
    assert journal.append(SNAPSHOT, bytes(BOUNDS.body_bytes_max), new_file=True) == 2
    assert journal.commit() == 2
    assert disk.size(segment_name(2)) <= BOUNDS.segment_bytes
    assert journal.used_bytes == disk.used_bytes


def test_a_new_beginning_knows_how_full_the_last_file_is(disk):
    journal = Journal(disk, BOUNDS)
    journal.append(MESSAGE, bytes(3500))
    journal.commit()
    fail(journal, disk, bytes(1000))
    disk.room_bytes = None
    journal.recover(anew=True)
    journal.append(MESSAGE, bytes(1000))
    journal.commit()
    assert disk.names() == [segment_name(1), segment_name(2)]
    assert all(disk.size(name) <= BOUNDS.segment_bytes for name in disk.names())


def test_an_empty_file_with_the_mark_of_a_clean_end_is_filled_to_the_byte_and_no_further(disk):
    journal = Journal(disk, BOUNDS)
    journal.append(MESSAGE, b"safe")
    journal.commit()
    fail(journal, disk, bytes(BOUNDS.body_bytes_max), room=200)
    disk.room_bytes = None
    journal.recover(anew=True)
    journal.close()
    assert disk.size(segment_name(2)) == HEADER_BYTES + MARK_BYTES
    journal = Journal(disk, BOUNDS)
    journal.append(SNAPSHOT, bytes(1000), new_file=True)
    rest = BOUNDS.records_end_max - HEADER_BYTES - MARK_BYTES - 1000 - 2 * RECORD_BYTES
    journal.append(MESSAGE, bytes(rest))
    journal.close()
    assert all(disk.size(name) <= BOUNDS.segment_bytes for name in disk.names())


@pytest.mark.parametrize(("free", "held"), [(0, 0), (3, 0), (4, 1), (399, 99), (400, 100), (404, 100)])
def test_a_reserve_is_a_share_of_what_is_free_at_most(disk, free, held):
    journal = Journal(disk, BOUNDS)
    disk.room_bytes = disk.used_bytes + free
    for _ in range(2):  # what is held counts as free for the next
        journal.hold(100)
        assert (journal.reserved_bytes, journal.free_bytes) == (held, free - held)
    journal.release()
    assert (journal.reserved_bytes, journal.free_bytes) == (0, free)


def test_a_reserve_is_room_for_nobody_else_until_it_is_given_up(disk):
    journal = Journal(disk, BOUNDS)
    disk.room_bytes = disk.used_bytes + 2000
    journal.hold(500)
    fail(journal, disk, b"x" * 1600, room=1500)
    journal.recover(anew=True)
    journal.release()
    journal.append(SNAPSHOT, b"x" * 1600)
    assert journal.commit() == 1


def test_a_file_holds_the_reserve_of_a_real_disk_and_is_no_file_of_the_journal(tmp_path: Path):
    journal = Journal.open(tmp_path, BOUNDS)
    journal.hold(100_000)
    reserve = tmp_path / RESERVE_NAME
    assert reserve.stat().st_blocks * 512 >= 100_000
    assert journal.reserved_bytes == 100_000
    journal.hold(50_000)
    assert reserve.stat().st_size == 50_000
    journal.append(MESSAGE, b"one")
    journal.close()
    journal = Journal.open(tmp_path, BOUNDS)
    assert journal.reserved_bytes == 50_000
    assert [record.body for record in journal.replay()] == [b"one"]
    journal.release()
    assert not reserve.exists()
    journal.release()
    journal.close()


def test_a_real_disk_that_has_not_got_the_room_holds_none(tmp_path: Path):
    disk = RealDisk(tmp_path)
    found = os.statvfs(tmp_path)
    with pytest.raises(OSError):
        disk.reserve(found.f_blocks * found.f_frsize + 2**30)
    assert disk.reserved_bytes() == 0
    assert not (tmp_path / RESERVE_NAME).exists()


def test_a_journal_that_is_behind_says_so_to_whoever_opens_it_next(tmp_path: Path):
    journal = Journal.open(tmp_path, BOUNDS)
    assert not journal.disk.is_behind()
    for _ in range(2):
        journal.mark_behind(True)
    journal.append(MESSAGE, b"one")
    journal.close()
    journal = Journal.open(tmp_path, BOUNDS)
    assert journal.disk.is_behind()
    assert [record.body for record in journal.replay()] == [b"one"]
    for _ in range(2):
        journal.mark_behind(False)
    assert not journal.disk.is_behind()
    journal.close()
