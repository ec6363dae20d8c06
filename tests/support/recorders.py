"""A recorder under test, as a process that is killed and started again."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from support.brokers import START_S_MAX, STOP_S_MAX, wait_until


class RecorderProcess:
    """`holdfast record` with these arguments, for the length of a `with` block."""

    def __init__(self, *arguments: str, log: Path, file_bytes_max: int | None = None) -> None:
        self._arguments = arguments
        self._log = log
        self._file_bytes_max = file_bytes_max
        self._process: subprocess.Popen[bytes] | None = None
        self._before = 0  # how often an earlier one was ready

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        if error is not None:
            print(f"stderr of the recorder:\n{self.log[-4000:]}")

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, ready: bool = True) -> None:
        """Ready when it has subscribed."""
        self._before = self.log.count("event=recording ")
        with self._log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.main", "record", *self._arguments],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                preexec_fn=self._limit if self._file_bytes_max is not None else None,
            )
        if ready:
            self.await_ready()

    def await_ready(self) -> None:
        self.await_log(lambda log: log.count("event=recording ") > self._before, "recording")

    def _limit(self) -> None:
        assert self._file_bytes_max is not None
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._file_bytes_max, resource.RLIM_INFINITY))

    def await_log(self, condition: Callable[[str], bool], what: str) -> None:
        wait_until(lambda: condition(self.log) or not self.alive, what, START_S_MAX)
        assert self.alive, self.log

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(STOP_S_MAX)
