"""A process of a load as its runner sees it: started, told, heard, and always ended.

Every wait has an end, and a process that dies is known by its last words.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from holdfast.errors import Unavailable
from holdfast.lab.load.jobs import Answer, Command, Job
from holdfast.runtime.tether import tethered

WORDS_CHARS_MAX = 4000
ANSWER_S_MAX = 60.0
PIPE_BYTES = 65_536


class LoadProcess:
    def __init__(self, job: Job, folder: Path) -> None:
        self.name = job.name
        self._words = folder / f"{job.name}.err"
        self._heard = b""
        with self._words.open("wb") as stderr:
            self._process = subprocess.Popen(
                tethered([sys.executable, "-m", "holdfast.lab.load"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        self._job = msgspec.json.encode(job)

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self) -> None:
        """Gives it its job; it says `ready` when it is connected."""
        self._write(self._job)

    def tell(self, do: str, *, quiet_s: float = 0.0, s_max: float = 0.0) -> None:
        self._write(msgspec.json.encode(Command(do, quiet_s, s_max)))

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._gone() from None

    def hear(self, expected: str, s_max: float = ANSWER_S_MAX) -> Answer:
        assert self._process.stdout is not None
        give_up = time.monotonic() + s_max
        while b"\n" not in self._heard:
            left = give_up - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise Unavailable(f"{self.name} did not say {expected!r} within {s_max:g} s")
            piece = os.read(self._process.stdout.fileno(), PIPE_BYTES)
            if not piece:
                raise self._gone()
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        answer = msgspec.json.decode(line, type=Answer)
        assert answer.said == expected, f"{self.name} said {answer.said}, not {expected}"
        return answer

    def _gone(self) -> Unavailable:
        words = self._words.read_text(errors="replace")[-WORDS_CHARS_MAX:]
        return Unavailable(f"{self.name} ended before its time; it said:\n{words}")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            # What it was not told is of no use any more.
            with contextlib.suppress(OSError):
                pipe.close()
