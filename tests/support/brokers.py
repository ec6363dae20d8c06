"""Brokers under test, as processes.

A broker is ready when it accepts a connection, never after a guessed delay; every wait has a deadline;
a broker is ended by its own pid, and what it wrote to stderr is kept for the report of a failure.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.address import LOOPBACK
from holdfast.runtime.ports import free_ports

START_S_MAX = 20.0
STOP_S_MAX = 10.0
POLL_S = 0.01
PORT_ATTEMPTS_MAX = 5
READY_PREFIX = f"listening on mqtt://{LOOPBACK}:"

HOLDFAST = "holdfast"
MOSQUITTO = "mosquitto"
MOSQUITTO_PATHS = ("/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto", "/usr/bin/mosquitto")

running: list["BrokerProcess"] = []


def broker_kind() -> str:
    """Which broker the suites run against: HOLDFAST_TEST_BROKER, Holdfast unless told otherwise."""
    kind = os.environ.get("HOLDFAST_TEST_BROKER", HOLDFAST)
    if kind not in (HOLDFAST, MOSQUITTO):
        raise ValueError(f"HOLDFAST_TEST_BROKER is {kind!r}; expected {HOLDFAST!r} or {MOSQUITTO!r}")
    return kind


def wait_until(condition: Callable[[], bool], what: str, seconds_max: float) -> None:
    """Return as soon as the condition holds; fail, saying what was awaited, when the time is up."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds_max} s")
        time.sleep(POLL_S)


def free_port() -> int:
    return free_ports(1)[0]


def accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


class BrokerProcess:
    """One broker on a loopback port, for the length of a `with` block.

    `holdfast_args` are appended to `holdfast broker --listen 127.0.0.1:0`, `mosquitto_conf` to Mosquitto's
    configuration: a test that needs an option says it in the words of each broker.
    """

    def __init__(self, *holdfast_args: str, mosquitto_conf: str = "", kind: str | None = None) -> None:
        self.kind = kind or broker_kind()
        self.port = 0
        self._holdfast_args = holdfast_args
        self._mosquitto_conf = mosquitto_conf
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="broker-")
        self._stdout = Path(self._directory.name, "stdout")
        self._stderr = Path(self._directory.name, "stderr")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker has not been started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace") if self._stdout.exists() else ""

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace") if self._stderr.exists() else ""

    def __enter__(self) -> Self:
        running.append(self)
        try:
            self._start_holdfast() if self.kind == HOLDFAST else self._start_mosquitto()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running.remove(self)
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S_MAX)
        self._directory.cleanup()

    def terminate(self) -> int:
        """Ask the broker to stop (SIGTERM) and return its exit status."""
        assert self._process is not None, "the broker has not been started"
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_S_MAX)

    def kill(self) -> None:
        """End the broker as a crash would (SIGKILL)."""
        assert self._process is not None, "the broker has not been started"
        self._process.kill()
        self._process.wait(STOP_S_MAX)

    def _start_holdfast(self) -> None:
        listen = ["--listen", f"{LOOPBACK}:0"]
        self._spawn([sys.executable, "-m", "holdfast.cli.main", "broker", *listen, *self._holdfast_args])
        self._await_ready(lambda: self._announced_port() is not None)
        self.port = self._announced_port() or 0

    def _announced_port(self) -> int | None:
        *lines, _unfinished = self.stdout.split("\n")
        ports = [line.removeprefix(READY_PREFIX) for line in lines if line.startswith(READY_PREFIX)]
        return int(ports[0]) if ports else None

    def _start_mosquitto(self) -> None:
        program = next((path for path in MOSQUITTO_PATHS if os.access(path, os.X_OK)), MOSQUITTO)
        for attempt in range(1, PORT_ATTEMPTS_MAX + 1):
            self.port = free_port()
            conf = Path(self._directory.name, "mosquitto.conf")
            listener = f"listener {self.port} {LOOPBACK}\nallow_anonymous true\nsys_interval 1\n"
            conf.write_text(listener + self._mosquitto_conf)
            self._spawn([program, "-c", str(conf)])
            try:
                self._await_ready(lambda: accepts(self.port))
                return
            except ChildProcessError:
                if attempt == PORT_ATTEMPTS_MAX:
                    raise

    def _spawn(self, command: list[str]) -> None:
        with self._stdout.open("wb") as stdout, self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)

    def _await_ready(self, ready: Callable[[], bool]) -> None:
        wait_until(lambda: not self.alive or ready(), f"{self.kind} listening", START_S_MAX)
        if not self.alive:
            assert self._process is not None
            raise ChildProcessError(
                f"{self.kind} ended with status {self._process.returncode} before it listened:\n{self.stderr}"
            )


StartBroker = Callable[..., BrokerProcess]
