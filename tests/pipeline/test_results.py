"""Results keep what was committed, through crashes at any line, and give it back as a plain dict would."""

import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.errors import Unavailable
from holdfast.pipeline import results as results_module
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.results import FOUND, Damaged, Execution, Results

CHANNELS = ("near", "hot")


def found(rows: dict[str, bytes]) -> pa.Table:
    keys = sorted(rows)
    return pa.table({"subscription": keys, "payload": [rows[key] for key in keys]}, schema=FOUND)


def execution(channel: str, number: int, *, at_ns: int = 0, rows: int = 0) -> Execution:
    return Execution(channel, number, number - 1, number, at_ns, at_ns, rows)


def files(layout: Layout) -> list[Path]:
    return list(layout.results("").glob("*/*"))


SUBSCRIPTIONS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ROWS = st.dictionaries(SUBSCRIPTIONS | st.sampled_from(["alice", "bob"]), st.binary(max_size=40), max_size=8)


class Model(RuleBasedStateMachine):
    """Against dicts: channel → number → (finished, rows)."""

    @initialize()
    def begin(self) -> None:
        self.layout = Layout(Path(os.environ["HOLDFAST_TEST_FOLDER"]) / "model")
        shutil.rmtree(self.layout.data, ignore_errors=True)
        self.results = Results(self.layout)
        self.epoch = self.results.epoch
        self.now_ns = 0
        self.number = dict.fromkeys(CHANNELS, 0)
        self.delivered = dict.fromkeys(CHANNELS, 0)
        self.kept: dict[str, dict[int, tuple[int, dict[str, bytes]]]] = {name: {} for name in CHANNELS}

    def teardown(self) -> None:
        self.results.close()

    @rule(channel=st.sampled_from(CHANNELS), rows=ROWS, passed_ns=st.integers(0, 5))
    def commit(self, channel: str, rows: dict[str, bytes], passed_ns: int) -> None:
        self.now_ns += passed_ns
        self.number[channel] += 1
        number = self.number[channel]
        assert self.results.commit(execution(channel, number, at_ns=self.now_ns), found(rows))
        self.kept[channel][number] = self.now_ns, rows

    @rule(channel=st.sampled_from(CHANNELS), rows=ROWS, back=st.integers(0, 3))
    def commit_again(self, channel: str, rows: dict[str, bytes], back: int) -> None:
        number = self.number[channel] - back
        if number > 0:
            assert not self.results.commit(execution(channel, number), found(rows))

    @rule(channel=st.sampled_from(CHANNELS), ahead=st.integers(2, 4))
    def commit_with_a_gap(self, channel: str, ahead: int) -> None:
        with pytest.raises(ValueError, match="cannot follow"):
            self.results.commit(execution(channel, self.number[channel] + ahead), found({"a": b""}))

    @rule(channel=st.sampled_from(CHANNELS), back=st.integers(0, 3))
    def deliver(self, channel: str, back: int) -> None:
        number = max(0, self.number[channel] - back)
        self.results.delivered(channel, number)
        self.delivered[channel] = max(self.delivered[channel], number)

    @rule(channel=st.sampled_from(CHANNELS), retention_ns=st.integers(0, 10), passed_ns=st.integers(0, 5))
    def expire(self, channel: str, retention_ns: int, passed_ns: int) -> None:
        self.now_ns += passed_ns
        self.results.expire(channel, retention_ns, self.now_ns)
        self.kept[channel] = {
            number: (at_ns, rows)
            for number, (at_ns, rows) in self.kept[channel].items()
            if at_ns >= self.now_ns - retention_ns or (rows and number > self.delivered[channel])
        }

    @precondition(lambda self: any(self.number.values()))
    @rule(litter=st.sampled_from([f"{1:012}-{0:08}.arrow", f"{1:012}-{0:08}.arrow.89abcdef.part"]))
    def crash(self, litter: str) -> None:
        """The process goes without a word, and has left something half done."""
        (self.layout.results("near")).mkdir(parents=True, exist_ok=True)
        (self.layout.results("near") / litter).write_bytes(b"half")
        abandoned, self.results = self.results, Results(self.layout)
        mine = self.layout.results("near") / "mine.arrow"
        mine.write_bytes(b"somebody else's")
        assert self.results.sweep() == [str(self.layout.results("near") / litter)]
        mine.unlink()
        abandoned.close()

    @invariant()
    def same_as_the_dicts(self) -> None:
        if not hasattr(self, "results"):
            return
        assert self.results.epoch == self.epoch
        for channel in CHANNELS:
            number, kept = self.number[channel], self.kept[channel]
            assert self.results.mark(channel) == (number, number)
            assert self.results.delivered_number(channel) == self.delivered[channel]
            listed = self.results.executions(channel, last=1000)
            assert [each.number for each in listed] == sorted(kept, reverse=True)
            waiting = self.results.undelivered(channel)
            assert {each.number: self.results.read(each).to_pylist() for each in waiting} == {
                each: found(rows).to_pylist()
                for each, (_, rows) in kept.items()
                if rows and each > self.delivered[channel]
            }
        with_rows = sum(bool(rows) for kept in self.kept.values() for _, rows in kept.values())
        assert len(files(self.layout)) == with_rows

    @rule(
        channel=st.sampled_from(CHANNELS),
        subscription=SUBSCRIPTIONS | st.sampled_from(["alice", "bob"]),
        back=st.integers(0, 5),
        last=st.none() | st.integers(1, 3),
    )
    def pull(self, channel: str, subscription: str, back: int, last: int | None) -> None:
        after = self.number[channel] - back
        expected = [
            (number, rows[subscription])
            for number, (_, rows) in sorted(self.kept[channel].items())
            if number > after and subscription in rows
        ]
        expected = expected if last is None else expected[-last:]
        assert self.results.pull(channel, subscription, after, last) == expected


def test_any_sequence_of_calls_and_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_FOLDER", str(tmp_path))
    machine: Any = Model
    machine.TestCase.settings = settings(
        max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine.TestCase().runTest()


def killed_at_line(line: int, act: Any) -> bool:
    """Whether a child that does this was killed when it came to the n-th line of results.py."""
    child = os.fork()
    if child == 0:
        left = line

        def count(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename != results_module.__file__:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return count

        sys.settrace(count)
        act()
        sys.settrace(None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """Where a sync costs nothing: a process that is killed loses nothing that it wrote."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


def test_killed_at_any_line_of_a_commit_and_of_an_expiry(in_memory: Path) -> None:
    """Either the whole execution is there or nothing of it, and the same commit then makes it so."""
    line = 1
    while True:
        layout = Layout(in_memory / str(line))
        before = Results(layout)
        before.commit(execution("near", 1), found({"alice": b"1"}))
        before.delivered("near", 1)
        before.close()

        def act(layout: Layout = layout) -> None:
            inner = Results(layout)
            inner.commit(execution("near", 2, at_ns=9), found({"alice": b"2"}))
            inner.expire("near", 5, 10)

        killed = killed_at_line(line, act)
        after = Results(layout)
        after.sweep()
        number = after.mark("near")[0]
        known = {each.number for each in after.executions("near", 10)}
        assert known in ({1}, {1, 2}, {2}), f"line {line}"
        assert number == max(known)
        assert len(files(layout)) == len(known), f"line {line}"
        assert after.commit(execution("near", 2, at_ns=9), found({"alice": b"2"})) is (number == 1)
        assert after.pull("near", "alice", 1) == [(2, b"2")]
        after.close()
        shutil.rmtree(layout.data)
        if not killed:
            break
        line += 1
    assert line > 100, "the child was killed at each line it came to"


def test_a_file_is_safe_before_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, then their name, then the directory, then the transaction."""
    steps: list[str] = []
    layout = Layout(tmp_path)
    results = Results(layout)
    results.commit(execution("near", 1), found({"a": b"1"}))
    fsync, rename = os.fsync, Path.rename

    def note_sync(fd: int) -> None:
        steps.append("sync " + ("names" if os.path.isdir(f"/proc/self/fd/{fd}") else "bytes"))
        fsync(fd)

    def note_rename(path: Path, target: Path) -> Path:
        steps.append("name")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    insert = results._insert
    monkeypatch.setattr(results, "_insert", lambda each: steps.append("row") or insert(each))
    results.commit(execution("near", 2), found({"a": b"2"}))
    assert steps == ["sync bytes", "name", "sync names", "row"]
    assert results._database.execute("PRAGMA synchronous").fetchone()[0] == 2
    results.close()


def test_a_damaged_file_or_database_is_named(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    results = Results(layout)
    for number in (1, 2, 3):
        results.commit(execution("near", number), found({"a": b"x" * 100}))
    paths = sorted(layout.results("near").iterdir())
    content = bytearray(paths[1].read_bytes())
    content[content.index(b"x" * 100)] ^= 1
    paths[1].write_bytes(content)
    paths[2].unlink()
    for number in (2, 3):
        with pytest.raises(Damaged, match=str(paths[number - 1])):
            results.read(results.undelivered("near")[number - 1])
    assert results.read(results.undelivered("near")[0]).num_rows == 1
    with pytest.raises(Damaged):
        results.pull("near", "a", 0)
    results.close()
    layout.executions.write_bytes(b"no database" * 1000)
    with pytest.raises(Damaged, match=r"results\.sqlite.*Restore it from a copy"):
        Results(layout)
    layout.executions.unlink()
    with sqlite3.connect(layout.executions) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(Damaged, match="format 99"):
        Results(layout)


def test_a_full_disk_changes_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    results = Results(layout)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(Unavailable, match="No space left"):
            results.commit(execution("near", 1), found({"a": b"1"}))
    results._database.execute("PRAGMA max_page_count = 1")

    def fill() -> None:
        for number in range(1, 10_000):
            results.commit(execution("near", number), found({"a": b"1"}))

    with pytest.raises(Unavailable, match="full"):
        fill()
    number = results.mark("near")[0]
    assert len(files(layout)) == number
    results._database.execute("PRAGMA max_page_count = 100000")
    assert results.commit(execution("near", number + 1), found({"a": b"1"}))
    results.close()


def test_what_would_break_the_order_of_a_file_is_refused(tmp_path: Path) -> None:
    results = Results(Layout(tmp_path))
    for keys in (["b", "a"], ["a", "a"], ["a", None]):
        table = pa.table({"subscription": pa.array(keys, pa.string()), "payload": [b"1", b"2"]})
        with pytest.raises(ValueError, match="must rise"):
            results.commit(execution("near", 1), table)
    results.close()


def test_threads_that_commit_the_same_execution_make_it_one(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    results = Results(layout)
    told: list[str] = []
    results.listen(told.append)
    answers: list[bool] = []
    for number in range(1, 21):
        gate = threading.Barrier(4)

        def commit(number: int = number, gate: threading.Barrier = gate) -> None:
            gate.wait()
            answers.append(results.commit(execution("near", number), found({"a": b"%d" % number})))

        threads = [threading.Thread(target=commit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers.count(True) == 20
    assert told == ["near"] * 20
    assert results.pull("near", "a", 0) == [(number, b"%d" % number) for number in range(1, 21)]
    assert len(files(layout)) == 20
    results.close()


def test_mapped_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_module, "FILES_MAPPED_MAX", 4)
    monkeypatch.setattr(results_module, "EXECUTIONS_MAX", 10)
    results = Results(Layout(tmp_path))
    for number in range(1, 21):
        results.commit(execution("near", number), found({"a": b"%d" % number}))
    assert len(results.pull("near", "a", 0)) == 20
    assert len(results._mapped) == 4
    results.delivered("near", 20)
    results.expire("near", 1000, 10)
    assert [number for number, _ in results.pull("near", "a", 0)] == list(range(11, 21))
    results.close()
