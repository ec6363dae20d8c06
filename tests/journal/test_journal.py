"""What a journal promises, one law at a time, on a disk in memory."""

import errno
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Unavailable
from holdfast.journal import Bounds, Corrupt, Journal, NotAccepted, Record, Refusal, State
from holdfast.journal.format import (
    HEADER_BYTES,
    RECORD_BYTES,
    Header,
    Scan,
    encode_header,
    encode_mark,
    encode_record,
    later_mark,
    segment_first,
    segment_name,
)
from holdfast.journal.memory import MemoryDisk, nothing

MESSAGE, MARK, VIEW = 1, 2, 3
BOUNDS = Bounds(segment_bytes=4096, bytes_max=40_000, waiting_bytes_max=20_000)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk(Random(7))


def refusal(journal: Journal, body: bytes, **options: bool) -> NotAccepted:
    with pytest.raises(NotAccepted) as caught:
        journal.append(MESSAGE, body, **options)
    return caught.value


def fill(journal: Journal, segments: int) -> None:
    for _ in range(segments):
        journal.append(MESSAGE, bytes(BOUNDS.body_bytes_max))
    journal.commit()


# Records and names


@given(records=st.lists(st.tuples(st.integers(1, 255), st.binary(max_size=60))), first=st.integers(1, 2**63))
def test_records_read_back_as_they_were_written(records, first):
    header = Header(first, 99)
    parts = [encode_record(kind, first + index, body, 99) for index, (kind, body) in enumerate(records)]
    data = encode_header(header) + encode_mark(first, 99) + b"".join(parts)
    scan = Scan(data, header)
    assert list(scan) == [Record(first + index, kind, body) for index, (kind, body) in enumerate(records)]
    assert (scan.broken, scan.offset, scan.number) == ("", len(data), first + len(records))


def test_a_number_that_is_left_out_is_noticed():
    header = Header(1, 7)
    data = encode_header(header) + encode_record(1, 1, b"", 7) + encode_record(1, 3, b"", 7)
    scan = Scan(data, header).to_end()
    assert scan.broken == "record 3 stands where 2 should"
    assert scan.offset == HEADER_BYTES + RECORD_BYTES


@settings(max_examples=300)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_scanned_without_a_crash(data):
    scan = Scan(bytes(HEADER_BYTES) + data, Header(1, 5)).to_end()
    assert scan.offset <= HEADER_BYTES + len(data)
    assert bool(scan.broken) == (scan.offset < HEADER_BYTES + len(data))


def test_names_sort_as_their_numbers():
    numbers = [1, 9, 10, 2**40, 2**64 - 1]
    names = [segment_name(number) for number in numbers]
    assert sorted(names) == names
    assert [segment_first(name) for name in names] == numbers
    for foreign in ("1.journal", segment_name(0), segment_name(2**64), "x", names[0] + "~"):
        assert segment_first(foreign) is None


def test_a_message_cannot_pose_as_a_mark():
    """A client may publish bytes that look like a mark; without the salt they are not one."""
    posing = encode_mark(50, salt=1)
    assert later_mark(posing, 0, 1, salt=1) == 0
    assert later_mark(posing, 0, 1, salt=2) is None
    assert later_mark(posing, 0, 51, salt=1) is None


# Group commit


def test_many_appends_are_one_write_and_one_sync(disk):
    journal = Journal(disk, BOUNDS)
    disk.counts.clear()
    for index in range(100):
        assert journal.append(MESSAGE, b"x") == index + 1
    assert disk.counts == {}
    assert journal.durable_number == 0
    assert journal.commit() == 100
    assert disk.counts == {"write": 1, "sync": 1}
    assert journal.commit() == 100
    assert disk.counts == {"write": 1, "sync": 1}


def test_a_group_that_crosses_segments_is_synced_in_each(disk):
    journal = Journal(disk, BOUNDS)
    disk.counts.clear()
    fill(journal, 3)
    assert [segment_first(name) for name in disk.names()] == [1, 2, 3]
    # Two new files with their headers, three groups.
    assert disk.counts == {"write": 5, "sync": 5, "sync_names": 2}


# Replay and prune


def test_replay_chooses_by_number_and_kind(disk):
    journal = Journal(disk, BOUNDS)
    journal.append_many(MESSAGE, [b"a", b"b", b"c"])
    journal.append(VIEW, b"view 4")
    journal.commit()
    journal.append(MESSAGE, b"not yet durable")
    assert [record.body for record in journal.replay(2)] == [b"b", b"c", b"view 4"]
    assert list(journal.replay(kinds={VIEW})) == [Record(4, VIEW, b"view 4")]
    assert list(journal.replay(5)) == []


def test_a_number_that_is_not_there_is_an_error_and_not_an_empty_answer(disk):
    journal = Journal(disk, BOUNDS)
    fill(journal, 3)
    assert journal.prune(3) == 2
    with pytest.raises(Unavailable, match="begins at number 3: what lies between 2 and it was pruned"):
        journal.replay(2)
    with pytest.raises(Unavailable, match="ends at number 3: 5 was never durable here"):
        journal.replay(5)


def test_prune_removes_whole_segments_below_a_number_and_never_the_last(disk):
    journal = Journal(disk, BOUNDS)
    fill(journal, 3)
    assert [journal.prune(number) for number in (0, 1, 2, 2, 100)] == [0, 0, 1, 0, 1]
    journal.close()
    journal = Journal(disk, BOUNDS)
    assert (journal.first_number, journal.next_number) == (3, 4)
    assert [record.number for record in journal.replay()] == [3]


# Bounds


def test_a_full_journal_keeps_room_for_the_snapshot_that_lets_it_be_pruned(disk):
    journal = Journal(disk, BOUNDS)
    with suppress(NotAccepted):
        for _ in range(100):
            journal.append(MESSAGE, bytes(1000))
            journal.commit()
    error = refusal(journal, bytes(1000))
    assert error.reason is Refusal.FULL
    assert "Prune it after a snapshot" in str(error)
    snapshot = journal.append(VIEW, bytes(3000), use_reserve=True)
    journal.commit()
    assert disk.used_bytes <= BOUNDS.bytes_max
    journal.prune(snapshot)
    journal.append(MESSAGE, bytes(1000))


def test_a_slow_disk_is_a_bound_too(disk):
    journal = Journal(disk, BOUNDS)
    accepted = 0
    with suppress(NotAccepted):
        for _ in range(100):
            journal.append(MESSAGE, bytes(1000))
            accepted += 1
    error = refusal(journal, bytes(1000))
    assert error.reason is Refusal.BEHIND
    assert "and waiting_bytes_max is 20000" in str(error)
    assert journal.commit() == accepted
    journal.append(MESSAGE, bytes(1000))


def test_many_are_accepted_together_or_not_at_all(disk):
    journal = Journal(disk, BOUNDS)
    with pytest.raises(NotAccepted, match="split it, or raise segment_bytes") as caught:
        journal.append_many(MESSAGE, [b"short", bytes(BOUNDS.body_bytes_max + 1)])
    assert caught.value.reason is Refusal.TOO_LONG
    assert (journal.next_number, journal.waiting_bytes) == (1, 0)
    assert journal.append_many(MESSAGE, []) == range(1, 1)


def test_bounds_that_contradict_each_other_are_all_named():
    with pytest.raises(ConfigError) as caught:
        Bounds(segment_bytes=100, bytes_max=200, waiting_bytes_max=50)
    assert [problem.path for problem in caught.value.problems] == [
        "segment_bytes", "bytes_max", "waiting_bytes_max",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [0, -1, 256])
def test_a_kind_is_one_byte_and_not_zero(disk, kind):
    with pytest.raises(ValueError, match="is not between 1 and 255"):
        Journal(disk, BOUNDS).append(kind, b"")


def test_a_segment_filled_to_the_byte_can_still_be_closed(disk):
    journal = Journal(disk, BOUNDS)
    journal.append(MESSAGE, bytes(1000))
    journal.append(MESSAGE, bytes(BOUNDS.records_end_max - journal.used_bytes - RECORD_BYTES))
    journal.close()
    assert [disk.size(name) for name in disk.names()] == [BOUNDS.segment_bytes]


# Failure


def test_a_full_disk_refuses_keeps_and_recovers(disk):
    journal = Journal(disk, BOUNDS)
    journal.append(MESSAGE, b"safe")
    journal.commit()
    size = disk.used_bytes
    disk.room_bytes = size + 30
    journal.append(MESSAGE, b"kept in memory")
    with pytest.raises(NotAccepted, match=r"No space left on device.* up to number 1 is safe still"):
        journal.commit()
    assert journal.state is State.FAILED
    assert disk.used_bytes == size
    assert refusal(journal, b"more").reason is Refusal.FAILED
    assert [record.body for record in journal.replay()] == [b"safe"]
    with pytest.raises(NotAccepted, match="No space left"):
        journal.recover()
    disk.room_bytes = None
    assert journal.recover() == 2
    assert journal.append(MESSAGE, b"more") == 3
    journal.close()
    assert [record.body for record in Journal(disk, BOUNDS).replay()] == [b"safe", b"kept in memory", b"more"]


@pytest.mark.parametrize("fails_at", ["write", "sync"])
def test_what_could_not_be_cut_at_once_is_cut_before_the_next_write(disk, fails_at):
    """The group was written and not synced, and even the cut failed: it must not be there twice."""
    journal = Journal(disk, BOUNDS)
    broken = False

    def before(operation: str, name: str) -> None:
        nonlocal broken
        broken = broken or operation == fails_at
        if broken:
            raise OSError(errno.EIO, "Input/output error")

    journal.append(MESSAGE, b"once")
    disk.before = before
    with pytest.raises(NotAccepted, match="Input/output error"):
        journal.commit()
    with pytest.raises(NotAccepted, match="Input/output error"):
        journal.recover()
    disk.before = nothing
    assert journal.recover() == 1
    journal.close()
    assert [record.body for record in Journal(disk, BOUNDS).replay()] == [b"once"]


def test_a_new_segment_that_failed_half_way_is_made_again(disk):
    journal = Journal(disk, BOUNDS)
    fill(journal, 1)
    disk.room_bytes = disk.used_bytes + 10
    journal.append(MESSAGE, bytes(BOUNDS.body_bytes_max))
    with pytest.raises(NotAccepted):
        journal.commit()
    assert disk.names() == [segment_name(1)]
    disk.room_bytes = None
    assert journal.recover() == 2
    assert disk.names() == [segment_name(1), segment_name(2)]


def test_only_what_the_journal_began_is_removed_after_a_failure(disk):
    """Others' files beside it are theirs, whatever their names, also when it forgets what was not safe."""
    journal = Journal(disk, BOUNDS)
    fill(journal, 1)
    others = ["junk", "notes.txt", segment_name(7)]
    for name in others:
        disk.create(name).write(b"precious")
    for number, anew in ((2, False), (3, True)):
        before = disk.names()
        disk.room_bytes = disk.used_bytes + 10
        assert journal.append(MESSAGE, bytes(BOUNDS.body_bytes_max)) == number
        with pytest.raises(NotAccepted):
            journal.commit()
        with pytest.raises(NotAccepted):
            journal.recover()
        assert disk.names() == before
        disk.room_bytes = None
        assert journal.recover(anew=anew) == 2
        assert journal.foreign == ("junk", "notes.txt")
    assert disk.names() == sorted([segment_name(1), segment_name(2), *others])
    assert [disk.read(name, 100) for name in others] == [b"precious"] * 3


def test_a_file_that_was_begun_and_could_not_be_removed_is_removed_later(disk):
    journal = Journal(disk, BOUNDS)
    fill(journal, 1)
    journal.append(MESSAGE, bytes(BOUNDS.body_bytes_max))

    def before(operation: str, name: str) -> None:
        if operation in ("write", "remove"):
            raise OSError(errno.EIO, "Input/output error")

    disk.before = before
    with pytest.raises(NotAccepted):
        journal.commit()
    assert disk.names() == [segment_name(1), segment_name(2)]
    with pytest.raises(NotAccepted):
        journal.recover()
    disk.before = nothing
    assert journal.recover() == 2
    assert [record.number for record in journal.replay()] == [1, 2]


def test_after_a_failed_sync_lost_bytes_are_noticed(disk):
    """A kernel may drop pages that it could not write: what was durable is looked at again."""
    journal = Journal(disk, BOUNDS)
    journal.append(MESSAGE, b"safe")
    journal.commit()
    journal.append(MESSAGE, b"next")
    disk.room_bytes = disk.used_bytes
    with pytest.raises(NotAccepted):
        journal.commit()
    disk.room_bytes = None
    disk.damage(segment_name(1), disk.size(segment_name(1)) - 1, b"!")
    with pytest.raises(Corrupt, match="checksum"):
        journal.recover()
    assert journal.state is State.FAILED


def test_pruning_makes_room_in_the_failed_state(disk):
    journal = Journal(disk, BOUNDS)
    fill(journal, 3)
    disk.room_bytes = disk.used_bytes + 100
    journal.append(MESSAGE, bytes(2000))
    with pytest.raises(NotAccepted):
        journal.commit()
    journal.prune(3)
    assert journal.recover() == 4


def test_a_closed_journal_says_so(disk):
    journal = Journal(disk, BOUNDS)
    journal.append(MESSAGE, b"committed by close")
    journal.close()
    journal.close()
    assert refusal(journal, b"late").reason is Refusal.CLOSED
    assert [record.body for record in Journal(disk, BOUNDS).replay()] == [b"committed by close"]


def test_what_is_found_after_a_kill_stays_after_a_power_loss(disk):
    """The process died between write and sync: the next one reads the record, so it must not vanish."""
    journal = Journal(disk, BOUNDS)
    journal.append(MESSAGE, b"read once, there for ever")

    def before(operation: str, name: str) -> None:
        if operation == "sync":
            raise KeyboardInterrupt

    disk.before = before
    with pytest.raises(KeyboardInterrupt):
        journal.commit()
    disk.before = nothing
    disk.kill()
    assert Journal(disk, BOUNDS).durable_number == 1
    disk.crash()
    assert Journal(disk, BOUNDS).durable_number == 1


def test_marks_do_not_pile_up(disk):
    Journal(disk, BOUNDS).close()
    sizes = set()
    for _ in range(5):
        journal = Journal(disk, BOUNDS)
        journal.append(MESSAGE, b"")
        disk.room_bytes = disk.used_bytes + 30
        with pytest.raises(NotAccepted):
            journal.commit()
        disk.room_bytes = None
        # Power is lost while a mark is on disk and its records are not.
        disk.append_to(segment_name(1)).write(encode_mark(1, journal._salt) * 2)
        disk.append_to(segment_name(1)).sync()
        disk.crash()
        Journal(disk, BOUNDS).close()
        sizes.add(disk.used_bytes)
    assert len(sizes) == 1
