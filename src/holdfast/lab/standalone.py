"""A real Spark cluster on loopback, as processes: a master and some workers, from the wheel of PySpark.

Every process is ended by its own pid. Executors are processes of their worker, and end when it does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.address import LOOPBACK
from holdfast.errors import Unavailable
from holdfast.lab.group import POLL_S
from holdfast.runtime.ports import free_ports

START_S_MAX = 120.0
STOP_S_MAX = 20.0
WORKER_TIMEOUT_S = 5
REGISTERED = "Successfully registered with master"

# What a session on this cluster needs beside its address.
SETTINGS = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.executor.memory": "512m",
}


class SparkCluster:
    """A master and workers for the length of a `with` block; `url` is what a session takes as its master."""

    def __init__(self, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        (self.port,) = free_ports(1)
        self.url = f"spark://{LOOPBACK}:{self.port}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.master: subprocess.Popen[bytes] | None = None
        self._count, self._cores, self._memory = workers, cores, memory
        self._directory = tempfile.TemporaryDirectory(prefix="spark-cluster-", ignore_cleanup_errors=True)
        self._folder = Path(self._directory.name)

    def __enter__(self) -> Self:
        try:
            where = ["--host", LOOPBACK, "--webui-port", "0"]
            self.master = self._run("master", "master.Master", *where, "--port", str(self.port))
            self._await(lambda: self._up(self.master) and _accepts(self.port), "master")
            for _ in range(self._count):
                self.add_worker()
            for number in range(self._count):
                self._await(partial(self._registered, f"worker{number}"), f"worker{number}")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.workers, self.master):
            if process is not None:
                process.terminate()
        for process in (*self.workers, self.master):
            if process is not None:
                try:
                    process.wait(STOP_S_MAX)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._directory.cleanup()

    def _await(self, condition: Callable[[], bool], name: str) -> None:
        until_s = time.monotonic() + START_S_MAX
        while not condition():
            if time.monotonic() > until_s:
                raise Unavailable(f"the {name} of the Spark cluster did not start:\n{self.log(name)}")
            time.sleep(POLL_S)

    def _registered(self, name: str) -> bool:
        return REGISTERED in self.log(name)

    def add_worker(self) -> None:
        name = f"worker{len(self.workers)}"
        size = ["--cores", str(self._cores), "--memory", self._memory]
        where = ["--host", LOOPBACK, "--webui-port", "0", "--work-dir", str(self._folder / f"{name}-work")]
        self.workers.append(self._run(name, "worker.Worker", *size, *where, self.url))

    def kill_worker(self, number: int) -> None:
        """As a crash would: its executors notice, and the driver loses them."""
        self.workers[number].kill()
        self.workers[number].wait(STOP_S_MAX)

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _run(self, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        # The logs are read to know who is ready, whatever the terminal of Spark says otherwise.
        (self._folder / "log4j2.properties").write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.stderr.ref = console\n"
            "appender.console.type = Console\nappender.console.name = console\n"
            "appender.console.target = SYSTEM_ERR\nappender.console.layout.type = PatternLayout\n"
            "appender.console.layout.pattern = %m%n%ex\n"
        )
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self._folder),
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": f"-XX:+UseSerialGC -Dspark.worker.timeout={WORKER_TIMEOUT_S}",
            "SPARK_LOCAL_DIRS": str(self._folder / f"{name}-local"),
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self._folder
            )

    def _up(self, process: subprocess.Popen[bytes] | None) -> bool:
        assert process is not None
        if process.poll() is not None:
            raise Unavailable(f"a process of the Spark cluster ended:\n{self.log('master')}")
        return True


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True
