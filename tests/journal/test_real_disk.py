"""The journal on real files: every torn length, every flipped bit, locks, a full file system, SIGKILL."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.errors import ConfigError, Unavailable
from holdfast.journal import Bounds, Corrupt, Journal, NotAccepted, Refusal, State
from holdfast.journal.format import HEADER_BYTES, segment_name
from support.brokers import wait_until
from support.disks import small_disk

MESSAGE = 1
SMALL = Bounds(segment_bytes=4096, bytes_max=2**20, waiting_bytes_max=2**19)
FIRST = segment_name(1)
GROUPS = [[b"one", b"two"], [b"three"], [b"", b"a longer one that is torn at each of its bytes", b"last"]]
WAIT_S_MAX = 20.0

WRITER = """
import sys
from holdfast.journal import Bounds, Journal
journal = Journal.open(sys.argv[1], Bounds(segment_bytes=65536, bytes_max=2**30, waiting_bytes_max=2**20))
while True:
    first = journal.next_number
    journal.append_many(1, [b"%d" % number * 50 for number in range(first, first + 20)])
    print(journal.commit(), flush=True)
"""


def write_groups(directory: Path, *, close: bool) -> list[int]:
    """The groups in one segment; returns where each ends. Without `close` it is left as a crash leaves it."""
    journal = Journal.open(directory, SMALL)
    ends = []
    for group in GROUPS:
        journal.append_many(MESSAGE, group)
        journal.commit()
        ends.append((directory / FIRST).stat().st_size)
    if close:
        journal.close()
    else:
        journal.disk.unlock()
    return ends


def bodies(directory: Path) -> list[bytes]:
    journal = Journal.open(directory, SMALL)
    try:
        return [record.body for record in journal.replay()]
    finally:
        journal.close()


def test_a_crash_at_any_byte_of_the_last_write_cuts_only_what_was_not_whole(tmp_path):
    source = tmp_path / "source"
    ends = write_groups(source, close=False)
    whole = (source / FIRST).read_bytes()
    written = [body for group in GROUPS for body in group]
    safe = len(GROUPS[0]) + len(GROUPS[1])
    for length in range(ends[1], ends[2] + 1):
        directory = tmp_path / str(length)
        directory.mkdir()
        (directory / FIRST).write_bytes(whole[:length])
        journal = Journal.open(directory, SMALL)
        kept = [record.body for record in journal.replay()]
        assert kept == written[: len(kept)]
        assert safe <= len(kept) < len(written) or length == ends[2]
        assert journal.append(MESSAGE, b"after") == len(kept) + 1
        journal.close()
        assert bodies(directory) == [*kept, b"after"]
        shutil.rmtree(directory)


def test_a_crash_while_a_file_is_made_leaves_nothing_behind(tmp_path):
    write_groups(tmp_path, close=True)
    written = [body for group in GROUPS for body in group]
    header = (tmp_path / FIRST).read_bytes()[:HEADER_BYTES]
    for begun in [header[:length] for length in range(HEADER_BYTES)] + [bytes(HEADER_BYTES)]:
        (tmp_path / segment_name(len(written) + 1)).write_bytes(begun)
        assert bodies(tmp_path) == written
        assert not (tmp_path / segment_name(len(written) + 1)).exists()


@pytest.mark.parametrize("closed", [True, False])
def test_a_flipped_bit_is_never_passed_on(tmp_path, closed):
    """In a group that is followed by another, or anywhere after a clean end, it is an error that names it.
    In the last group before a crash it cannot be told from a torn write: all before it stays."""
    source = tmp_path / "source"
    ends = write_groups(source, close=closed)
    whole = (source / FIRST).read_bytes()
    written = [body for group in GROUPS for body in group]
    safe = len(GROUPS[0]) + len(GROUPS[1])
    directory = tmp_path / "damaged"
    directory.mkdir()
    for place in range(ends[2]):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        (directory / FIRST).write_bytes(damaged)
        if place < HEADER_BYTES:
            with pytest.raises(ConfigError, match=FIRST):
                bodies(directory)
        elif closed or place < ends[1]:
            with pytest.raises(Corrupt, match="Restore the file from a copy") as caught:
                bodies(directory)
            assert caught.value.file == str(directory / FIRST)
            assert HEADER_BYTES <= caught.value.offset <= place
            assert (directory / FIRST).read_bytes() == damaged
        else:
            kept = bodies(directory)
            assert safe <= len(kept) < len(written)
            assert kept == written[: len(kept)]


def test_damage_in_an_older_segment_is_told_by_replay(tmp_path):
    journal = Journal.open(tmp_path, SMALL)
    for _ in range(4):
        journal.append(MESSAGE, bytes(3000))
    journal.close()
    second = tmp_path / segment_name(2)
    data = bytearray(second.read_bytes())
    data[-100] ^= 1
    second.write_bytes(data)
    journal = Journal.open(tmp_path, SMALL)
    assert [record.number for record in journal.replay(3)] == [3, 4]
    with pytest.raises(Corrupt, match=f"{segment_name(2)} is damaged at byte"):
        list(journal.replay())
    second.unlink()
    with pytest.raises(Unavailable, match=f"cannot read .*{segment_name(2)}"):
        list(journal.replay())
    journal.close()
    with pytest.raises(Corrupt, match="ends with number 1, and the next file begins with 3"):
        bodies(tmp_path)


def test_two_never_share_a_directory(tmp_path):
    journal = Journal.open(tmp_path, SMALL)
    with pytest.raises(Unavailable, match=f"in use by process {os.getpid()}: two processes never share"):
        Journal.open(tmp_path, SMALL)
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    other = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False)
    assert other.returncode == 1
    assert f"in use by process {os.getpid()}" in other.stderr
    journal.append(MESSAGE, b"mine")
    journal.close()
    assert bodies(tmp_path) == [b"mine"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    with small_disk(tmp_path, 256) as mounted:
        yield mounted


def test_a_file_system_that_is_full(tiny_disk):
    directory = tiny_disk / "journal"
    journal = Journal.open(directory, SMALL)
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(200 * 1024))
    offered = 0
    while journal.state is State.OPEN:
        journal.append_many(MESSAGE, [b"%d" % number * 100 for number in range(offered + 1, offered + 11)])
        offered += 10
        try:
            journal.commit()
        except NotAccepted as error:
            reason, why = error.reason, str(error)
    assert reason is Refusal.FAILED
    assert "No space left on device" in why
    safe = journal.durable_number
    assert 0 < safe < offered
    assert [record.number for record in journal.replay()] == list(range(1, safe + 1))
    with pytest.raises(NotAccepted, match="No space left on device"):
        journal.recover()
    ballast.unlink()
    assert journal.recover() == offered
    journal.close()
    assert bodies(directory) == [b"%d" % number * 100 for number in range(1, offered + 1)]


def test_what_others_put_beside_a_journal_outlives_a_full_file_system(tiny_disk):
    """Files and directories: they are named, left alone, and no reason not to go on."""
    directory = tiny_disk / "journal"
    journal = Journal.open(directory, SMALL)
    assert journal.foreign == ()
    (directory / "notes.txt").write_text("precious")
    (directory / "sub").mkdir()
    (directory / "sub" / "in").write_text("precious")
    (directory / "lost+found").mkdir()
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(200 * 1024))
    while journal.state is State.OPEN:
        journal.append_many(MESSAGE, [bytes(1000)] * 10)
        with suppress(NotAccepted):
            journal.commit()
    with pytest.raises(NotAccepted, match="No space left on device"):
        journal.recover()
    ballast.unlink()
    journal.recover()
    assert journal.foreign == ("notes.txt", "sub")
    assert (directory / "notes.txt").read_text() == (directory / "sub" / "in").read_text() == "precious"
    journal.append(MESSAGE, b"goes on")
    journal.close()
    with pytest.raises(ConfigError, match=r"notes\.txt: not a file of a journal"):
        Journal.open(directory, SMALL)


def test_a_crash_on_a_full_file_system_keeps_what_was_durable(tiny_disk):
    directory = tiny_disk / "journal"
    journal = Journal.open(directory, SMALL)
    journal.append(MESSAGE, b"safe")
    journal.commit()
    (tiny_disk / "ballast").write_bytes(bytes(235 * 1024))
    journal.append_many(MESSAGE, [bytes(3000)] * 20)
    with pytest.raises(NotAccepted):
        journal.commit()
    safe = journal.durable_number
    journal.disk.unlock()
    kept = bodies(directory)
    assert kept[0] == b"safe"
    assert len(kept) == safe


def test_a_process_killed_in_mid_write_loses_nothing_that_it_called_durable(tmp_path):
    for round_number in range(5):
        told = tmp_path / f"told{round_number}"
        with told.open("wb") as output:
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITER, str(tmp_path / "journal")], stdout=output
            )
        try:
            wait_until(lambda told=told: told.read_bytes().count(b"\n") > 20, "20 commits", WAIT_S_MAX)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait(WAIT_S_MAX)
        *lines, _unfinished = told.read_bytes().split(b"\n")
        journal = Journal.open(tmp_path / "journal", Bounds(65536, 2**30, 2**20))
        assert journal.durable_number >= int(lines[-1])
        numbers = [record.number for record in journal.replay() if record.body == b"%d" % record.number * 50]
        assert numbers == list(range(1, journal.durable_number + 1))
        journal.close()


@pytest.mark.parametrize("value", ["missing/parent", "file"])
def test_a_directory_that_cannot_be_used(tmp_path, value):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(Unavailable, match=f"cannot use {tmp_path / value} for a journal: "):
        Journal.open(tmp_path / value)
