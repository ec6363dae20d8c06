"""A real ZooKeeper under test, as a process on a free port; ready when it serves, ended by its pid."""

import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.cli.up.arbiter import command, serves
from support.brokers import LOOPBACK, START_S_MAX, STOP_S_MAX, free_port, wait_until


class ZooKeeperProcess:
    """For the length of a `with` block. After `kill`, `start` uses the same port and data again."""

    def __init__(self) -> None:
        self.port = free_port()
        self._directory = tempfile.TemporaryDirectory(prefix="zookeeper-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "ZooKeeper has not been started"
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._directory.cleanup()

    def start(self) -> None:
        log = Path(self._directory.name, "log")
        data = Path(self._directory.name, "data")
        with log.open("ab") as output:
            self._process = process = subprocess.Popen(
                command(self.port, data), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        wait_until(lambda: process.poll() is not None or serves(self.port), "ZooKeeper serving", START_S_MAX)
        if process.poll() is not None:
            raise ChildProcessError(f"ZooKeeper ended with {process.returncode}:\n{log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S_MAX)
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
