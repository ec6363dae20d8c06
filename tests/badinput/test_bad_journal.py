"""A directory that is not, or not quite, a journal: the operator is told which file it is."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, HoldfastError
from holdfast.journal import Bounds, Corrupt, Journal
from holdfast.journal.format import HEADER_BYTES, segment_name

BOUNDS = Bounds(segment_bytes=4096, bytes_max=2**20, waiting_bytes_max=2**19)
FIRST, SECOND = segment_name(1), segment_name(4)

fuzz = settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def write_journal(directory: Path) -> dict[str, bytes]:
    """Six records in two segments, closed; returns the files as they are then."""
    journal = Journal.open(directory, BOUNDS)
    journal.append_many(1, [bytes([number]) * 1300 for number in range(6)])
    journal.close()
    return content(directory)


def content(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and path.name != "lock"
    }


def restore(directory: Path, files: dict[str, bytes]) -> None:
    for path in directory.iterdir():
        path.unlink()
    for name, data in files.items():
        (directory / name).write_bytes(data)


def problems(directory: Path) -> dict[str, str]:
    before = content(directory)
    with pytest.raises(ConfigError) as caught:
        Journal.open(directory, BOUNDS)
    assert content(directory) == before
    assert caught.value.source == str(directory)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_foreign_files_are_all_named(tmp_path):
    files = write_journal(tmp_path)
    assert sorted(files) == [FIRST, SECOND]
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "1.journal").write_text("mine too")
    (tmp_path / "directory").mkdir()
    found = problems(tmp_path)
    assert set(found) == {"notes.txt", "1.journal", "directory"}
    assert all("give the journal a directory of its own" in text for text in found.values())


def test_a_directory_full_of_other_things_is_named_within_a_bound(tmp_path):
    for number in range(50):
        (tmp_path / f"{number}.jpg").write_bytes(b"jpeg")
    found = problems(tmp_path)
    assert len(found) == 11
    assert found[""] == "and 40 more files like these"


def test_the_root_of_a_volume_may_be_a_journal(tmp_path):
    (tmp_path / "lost+found").mkdir()
    write_journal(tmp_path)


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_another_version(tmp_path, name):
    data = bytearray(write_journal(tmp_path)[name])
    data[8] = 2
    (tmp_path / name).write_bytes(data)
    expected = "journal version 2, and this Holdfast reads version 1: use the Holdfast that wrote it"
    assert expected in problems(tmp_path)[name]


def test_a_file_that_only_has_the_name(tmp_path):
    write_journal(tmp_path)
    (tmp_path / segment_name(90)).write_text("It is all about journals, at some length.")
    assert "not the content: move it away" in problems(tmp_path)[segment_name(90)]


def test_files_of_two_journals_are_not_mixed(tmp_path):
    write_journal(tmp_path / "a")
    strange = write_journal(tmp_path / "b")[SECOND]
    (tmp_path / "a" / SECOND).write_bytes(strange)
    assert "belongs to another journal" in problems(tmp_path / "a")[SECOND]


def test_a_renamed_file(tmp_path):
    write_journal(tmp_path)
    (tmp_path / SECOND).rename(tmp_path / segment_name(5))
    assert "its name says 5 and its header 4" in problems(tmp_path)[segment_name(5)]


def test_a_segment_that_is_a_directory(tmp_path):
    (tmp_path / FIRST).mkdir()
    with pytest.raises(HoldfastError, match=f"Is a directory.*{FIRST}"):
        Journal.open(tmp_path, BOUNDS)


def test_a_segment_that_is_a_fifo(tmp_path):
    os.mkfifo(tmp_path / FIRST)
    with pytest.raises(HoldfastError, match=f"it is a FIFO.*{FIRST}"):
        Journal.open(tmp_path, BOUNDS)


def test_the_last_file_of_which_only_the_name_is_left(tmp_path):
    """Its number proves how far the file before it reached."""
    write_journal(tmp_path)
    (tmp_path / SECOND).write_bytes(b"")
    journal = Journal.open(tmp_path, BOUNDS)
    assert journal.durable_number == 3
    journal.close()
    first = (tmp_path / FIRST).read_bytes()
    (tmp_path / FIRST).write_bytes(first[: len(first) // 2])
    (tmp_path / SECOND).write_bytes(b"")
    with pytest.raises(Corrupt, match="and the next file begins with 4"):
        Journal.open(tmp_path, BOUNDS)


def test_a_late_file_alone_is_not_taken_for_a_new_journal(tmp_path):
    """Numbers would begin again, and mean something else."""
    (tmp_path / SECOND).write_bytes(b"")
    assert SECOND in problems(tmp_path)


@fuzz
@given(name=st.sampled_from([FIRST, SECOND, segment_name(7), "other"]), data=st.binary(max_size=300))
def test_any_bytes_in_a_file(tmp_path, name, data):
    """It opens with a prefix of what was there, or says in our own words why not."""
    directory = tmp_path / "journal"
    directory.mkdir(exist_ok=True)
    restore(directory, {})
    safe = write_journal(directory)[FIRST]
    (directory / name).write_bytes(data)
    assert_prefix_or_error(directory)
    assert content(directory)[FIRST].startswith(safe) or name == FIRST


@fuzz
@given(
    name=st.sampled_from([FIRST, SECOND]),
    place=st.integers(0, 4095),
    data=st.binary(min_size=1, max_size=40),
    end=st.integers(HEADER_BYTES, 4096),
)
def test_damage_anywhere(tmp_path, name, place, data, end):
    directory = tmp_path / "journal"
    directory.mkdir(exist_ok=True)
    restore(directory, {})
    damaged = bytearray(write_journal(directory)[name])
    damaged[place : place + len(data)] = data
    (directory / name).write_bytes(damaged[:end])
    assert_prefix_or_error(directory)


def assert_prefix_or_error(directory: Path) -> None:
    try:
        journal = Journal.open(directory, BOUNDS)
    except HoldfastError:
        return
    try:
        records = [(record.number, record.body) for record in journal.replay()]
    except Corrupt:
        return
    finally:
        journal.close()
    assert records == [(number + 1, bytes([number]) * 1300) for number in range(len(records))]
