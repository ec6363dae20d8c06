"""A log that nobody can write to or reads: the process goes on, and says later what it could not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.runtime import outlet
from holdfast.runtime.outlet import WAITING_MAX, Outlet

MOST = 40


class Pipe:
    """Standard error, as far as an outlet knows it."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        os.set_blocking(self.reads, False)

    def fileno(self) -> int:
        return self.writes

    def read(self) -> bytes:
        found = b""
        while True:
            try:
                piece = os.read(self.reads, 65536)
            except BlockingIOError:
                return found
            if not piece:
                return found
            found += piece

    def close(self) -> None:
        for fd in (self.reads, self.writes):
            with suppress(OSError):
                os.close(fd)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    pipe = Pipe()
    monkeypatch.setattr(outlet, "sys", SimpleNamespace(stderr=pipe))
    yield pipe
    pipe.close()


def told(lines: int, why: str) -> str:
    return f"left out {lines}: {why}"


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 70_000])
def test_a_reader_that_is_frozen_holds_nobody_up_and_gets_all_in_order(
    pipe: Pipe, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet, "WAITING_MAX", MOST)
    out = Outlet(told)
    lines = [f"{number} " + "x" * size for number in range(MOST + 45)]
    read = b""
    for line in lines:
        out.say(line)
    for _ in range(len(lines) * (size // 4096 + 2)):
        read += pipe.read()
        out.drain()
    read += pipe.read()
    got = read.decode().splitlines()
    kept = [line for line in got if not line.startswith("left out")]
    in_order = kept == lines[: len(kept)]
    assert in_order
    assert len(kept) >= MOST
    if len(kept) < len(lines):
        assert got[-1] == told(len(lines) - len(kept), "nobody reads")


def test_it_is_written_when_it_can_be_though_nothing_more_is_said(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet, "RETRY_S", 0.01)

    async def scenario() -> None:
        out = Outlet(told)
        for number in range(100):
            out.say(f"{number} " + "x" * 2000)
        read = b""
        async with asyncio.timeout(10):
            while not read.endswith(b"the last" + b"\n"):
                read += pipe.read()
                if read.count(b"\n") == 100:
                    out.say("the last")
                await asyncio.sleep(0.001)
        assert read.count(b"\n") == 101

    asyncio.run(scenario())


def test_a_reader_that_is_gone_is_no_fault(pipe: Pipe) -> None:
    os.close(pipe.reads)
    out = Outlet(told)
    for _ in range(WAITING_MAX + 1):
        out.say("x")


def test_threads_that_speak_at_once_are_all_heard(pipe: Pipe) -> None:
    out = Outlet(told)
    begin = threading.Barrier(5)
    faults: list[BaseException] = []

    def speak(who: int) -> None:
        begin.wait()
        try:
            for number in range(100):
                out.say(f"{who}/{number}")
        except BaseException as error:
            faults.append(error)

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=speak, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    begin.wait()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(switch_s)
    assert faults == []
    heard = pipe.read().decode().split()
    assert sorted(heard) == sorted(f"{who}/{number}" for who in range(4) for number in range(100))


def test_a_full_disk_ends_nothing_and_is_told_of_when_there_is_room(tmp_path: Path) -> None:
    """/dev/full takes nothing, as a full disk does."""
    said = tmp_path / "said"
    program = f"""
import os
from holdfast.runtime import outlet
from holdfast.runtime.log import log_event
outlet.WAITING_MAX = 3
full = os.open("/dev/full", os.O_WRONLY)
kept = os.dup(2)
os.dup2(full, 2)
for number in range(10):
    log_event(f"event {{number}}", {{}})
os.dup2(os.open({str(said)!r}, os.O_WRONLY | os.O_CREAT), 2)
log_event("event 10", {{}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.partition(" ")[2] for line in said.read_text().splitlines()]
    assert lines == [
        *(f'event="event {number}"' for number in range(3)),
        'event="not logged" lines=8 why="No space left on device"',
    ]
