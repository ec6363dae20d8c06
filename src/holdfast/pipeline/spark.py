"""The one place that starts Spark.

Laws:
- one session in a process: the same settings get the running one, other settings get a new one
- a session leaves nothing behind: scratch files and logs live in a folder that goes when it stops, no
  warehouse or metastore is made, and nothing is said on the terminal
- with a local master everything stays on 127.0.0.1
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
LOCAL_ADDRESS = "127.0.0.1"
MEMORY_DEFAULT = "4g"
JVM_END_S_MAX = 20
LOG_CHARS_MAX = 2000
QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

JAVA_MISSING = (
    "Spark needs Java 17 or newer, and there is no java here. On Debian or Ubuntu: "
    "sudo apt-get install default-jre-headless (or set JAVA_HOME)"
)
PYSPARK_MISSING = "this needs PySpark, which is not installed here: pip install 'holdfast[pipeline]'"

SETTINGS = {
    "spark.app.name": "holdfast",
    "spark.ui.enabled": "false",
    # Nobody waits for a pause, and the threads of a concurrent collector would take cores from the work.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.log.level": "ERROR",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}


class _Running:
    """A session, the process of its JVM and the folder that both write to."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        self.settings = dict(settings)
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-spark-"))
        self.process: subprocess.Popen[bytes] | None = None
        conf = SparkConf(loadDefaults=False)
        for name, value in {**settings, **_places(self.folder)}.items():
            conf.set(name, value)
        try:
            with self.log.open("wb") as log:
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    conf, {"stdout": log, "stderr": log, "cwd": self.folder}
                )
            self.process = gateway.proc
            self.gateway = gateway
            context = SparkContext(gateway=gateway, conf=conf)
            # Python of the executors: PySpark asks the environment alone, and falls back on any python3.
            context.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
            self.spark: SparkSession = SparkSession(context)
        except (PySparkRuntimeError, OSError) as error:
            said = self.log.read_text(errors="replace")[-LOG_CHARS_MAX:].strip()
            self.end()
            raise Unavailable(
                f"Spark did not start with master {settings['spark.master']}: {said}"
            ) from error

    @property
    def log(self) -> Path:
        return self.folder / "spark.log"

    def end(self) -> None:
        if spark := getattr(self, "spark", None):
            spark.stop()
            self.gateway.shutdown()
            _forget_gateway()
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(JVM_END_S_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_running: _Running | None = None


def session(
    master: str = LOCAL, *, memory: str = MEMORY_DEFAULT, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process on that master; `memory` is the driver's, and with a local master all."""
    global _running
    need()
    wanted = {**SETTINGS, "spark.master": master, "spark.driver.memory": memory, **(settings or {})}
    if master.startswith("local"):
        wanted |= {"spark.driver.bindAddress": LOCAL_ADDRESS, "spark.driver.host": LOCAL_ADDRESS}
    if _running is not None and _running.settings != wanted:
        stop()
    if _running is None:
        _running = _Running(wanted)
    return _running.spark


def stop() -> None:
    """Ends the session of this process, if there is one."""
    global _running
    if _running is not None:
        _running.end()
        _running = None


@contextmanager
def in_words(doing: str) -> Iterator[None]:
    """What Spark raises becomes one line that says what was being done; its own log of it goes nowhere."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for name in QUERY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    except (PySparkException, Py4JError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise Unavailable(f"{doing} failed on Spark: {said[0]}") from error


def _places(folder: Path) -> dict[str, str]:
    return {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}


def _forget_gateway() -> None:
    """PySpark keeps the last gateway for the next context, which would talk to a JVM that has ended."""
    from pyspark import SparkContext

    SparkContext._gateway = None
    SparkContext._jvm = None


def need() -> None:
    """Says what is missing here to run Spark."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise Unavailable(JAVA_MISSING)
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise Unavailable(PYSPARK_MISSING) from error


atexit.register(stop)
