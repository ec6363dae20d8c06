"""The one place that starts Spark.

Laws:
- one session in a process: the same settings get the running one, other settings get a new one
- a session leaves nothing behind: scratch files and logs live in a folder that goes when it stops, no
  warehouse or metastore is made, and nothing is said on the terminal
- with a folder given, what a session that was killed left in it goes at the next start
- with a local master everything stays on 127.0.0.1; a cluster is there when `session` returns, or it raises

The executors of a cluster run the Python of this process by its path, with this package in it: install the
same virtual environment at the same path on every machine, or set PYSPARK_PYTHON.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from holdfast.errors import Unavailable
from holdfast.pipeline import archive

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    MapBatches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

Say = Callable[[str], None]

LOCAL = "local[*]"
LOCAL_ADDRESS = "127.0.0.1"
LOOPBACK = {"spark.driver.bindAddress": LOCAL_ADDRESS, "spark.driver.host": LOCAL_ADDRESS}
MEMORY_DEFAULT = "2g"
JVM_END_S_MAX = 20
ARCHIVE_S_MAX = 120
EXECUTORS_S_MAX = 120
POLL_S = 0.1
TEMPORARY_CHARS_MAX = 60  # the path of a socket has no room for more
EXERCISE_ROWS = 1000
LOG_CHARS_MAX = 2000
QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

JAVA_MISSING = (
    "Spark needs Java 17 or newer, and there is no java here. On Debian or Ubuntu: "
    "sudo apt-get install default-jre-headless (or set JAVA_HOME)"
)
PYSPARK_MISSING = "this needs PySpark, which is not installed here: pip install 'holdfast[pipeline]'"

NO_MASTER = "no Spark master answers at {}: start it, or say where it is (local[*] needs none)"
# As the driver of Spark logs it.
MASTER_GONE = "All masters are unresponsive"

# What tells jps and jstat of a JVM lies in /tmp, wherever temporary files are, and stays when it is killed.
UNSEEN = "-XX:-UsePerfData"
# For many small jobs: nothing is planned anew while it runs, and no thread of a collector takes a core.
SERIAL = f"-XX:+UseSerialGC {UNSEEN}"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
SETTINGS = {
    "spark.app.name": "holdfast",
    "spark.ui.enabled": "false",
    JAVA_OPTIONS: SERIAL,
    # Each small broadcast and aggregation takes a page of this size, which is 64 MiB by default: a few of
    # them a second fill the heap.
    "spark.buffer.pageSize": "1m",
    # A channel has a few pieces of compiled code: with room for a hundred in all, as is usual, some dozens of
    # channels would compile theirs again at each execution.
    "spark.sql.codegen.cache.maxEntries": "5000",
    "spark.log.level": "ERROR",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # What Spark remembers of jobs and queries that are over: nobody looks at the plans of thousands.
    "spark.ui.retainedJobs": "500",
    "spark.ui.retainedStages": "500",
    "spark.ui.retainedTasks": "2000",
    "spark.sql.ui.retainedExecutions": "20",
}
# For a few large jobs over data whose sizes nobody knows before.
LARGE_JOBS = {
    JAVA_OPTIONS: f"-XX:+UseParallelGC {UNSEEN}",
    "spark.driver.memory": "4g",
    "spark.sql.adaptive.enabled": "true",
}


class _Running:
    """A session, the process of its JVM and the folder that both write to."""

    def __init__(self, settings: Mapping[str, str], inside: Path | None) -> None:
        from py4j.protocol import Py4JError
        from pyspark import SparkConf, SparkContext
        from pyspark.errors import PySparkException
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        self.settings = dict(settings)
        self.inside = inside
        self.lock = None if inside is None else _sweep(inside)
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-spark-", dir=inside))
        self.process: subprocess.Popen[bytes] | None = None
        conf = SparkConf(loadDefaults=False)
        for name, value in {**settings, **_places(self.folder)}.items():
            conf.set(name, value)
        conf.set(JAVA_OPTIONS, f"{conf.get(JAVA_OPTIONS, '')} {_temporary()}")
        try:
            with self.log.open("wb") as log, _environment():
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    conf, {"stdout": log, "stderr": log, "cwd": self.folder}
                )
            self.process = gateway.proc
            self.gateway = gateway
            context = SparkContext(gateway=gateway, conf=conf)
            context.pythonExec = os.environ.get("PYSPARK_PYTHON", sys.executable)
            self.spark: SparkSession = SparkSession(context)
        except (PySparkException, Py4JError, OSError) as error:
            said = _complaint(self.log.read_text(errors="replace"))
            self.end()
            master = settings["spark.master"]
            if MASTER_GONE in said:
                raise Unavailable(NO_MASTER.format(master)) from error
            raise Unavailable(f"Spark did not start with master {master}: {said or error}") from error

    @property
    def log(self) -> Path:
        return self.folder / "spark.log"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self, s_max: float = JVM_END_S_MAX) -> None:
        """Bounded: a JVM that hangs is killed, and one that is dead is not asked."""
        if gateway := getattr(self, "gateway", None):
            if spark := getattr(self, "spark", None):
                self._stop(spark, s_max)
            gateway.shutdown()
            _forget()
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(s_max)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.lock is not None:
            self.lock.close()

    def _stop(self, spark: SparkSession, s_max: float) -> None:
        from py4j.protocol import Py4JError

        assert self.process is not None
        if self.alive:
            killing = threading.Timer(s_max, self.process.kill)
            killing.start()
            try:
                with warnings.catch_warnings(action="ignore"):
                    spark.stop()
            except (Py4JError, OSError):
                self.process.kill()
            finally:
                killing.cancel()


_running: _Running | None = None


def session(
    master: str = LOCAL,
    *,
    memory: str = MEMORY_DEFAULT,
    settings: Mapping[str, str] | None = None,
    folder: Path | None = None,
    say: Say | None = None,
) -> SparkSession:
    """The session of this process on that master; `memory` is the driver's, and with a local master all.

    What Spark writes goes into `folder`, which is nobody else's, or a temporary one. With `say` the first
    start on a machine makes what makes the later ones quicker, and says so to the person who waits.
    """
    global _running
    need()
    wanted = {**SETTINGS, "spark.master": master, "spark.driver.memory": memory}
    if cores := _cores(master):
        wanted |= {"spark.sql.shuffle.partitions": str(cores)}
    if master.startswith("local"):
        wanted |= LOOPBACK
    wanted |= settings or {}
    inside = None if folder is None else folder.absolute()
    if _running is not None and not (
        _running.alive and (_running.settings, _running.inside) == (wanted, inside)
    ):
        stop()
    if _running is None:
        if say is not None:
            prepare(say)
        running = _Running({**wanted, **_archived(wanted)}, inside)
        running.settings = wanted
        try:
            _await_executors(running.spark, master)
            if not (cores or "spark.sql.shuffle.partitions" in wanted):
                partitions = running.spark.sparkContext.defaultParallelism
                running.spark.conf.set("spark.sql.shuffle.partitions", partitions)
        except BaseException:
            running.end()
            raise
        _running = running
    return _running.spark


def prepare(say: Say) -> None:
    """Makes what makes later starts on this machine quicker, if it is not there yet."""
    place = archive.place()
    if archive.whole(place):
        return
    say("preparing Spark for this machine, once: about half a minute, and later starts take half as long")
    begin_s = time.monotonic()
    local = {"spark.master": "local[1]", "spark.driver.memory": MEMORY_DEFAULT, **LOOPBACK}
    try:
        with archive.making(place) as options:
            running = _Running({**SETTINGS, **local, JAVA_OPTIONS: f"{SERIAL} {options}"}, None)
            try:
                with in_words("a first exercise"):
                    _exercise(running.spark, running.folder)
            finally:
                running.end(ARCHIVE_S_MAX)
    except (OSError, Unavailable) as error:
        say(f"that did not work ({error}): starts stay slow, and nothing else changes")
        return
    done = "done" if archive.whole(place) else "this Java makes no class-data archives: starts stay slow"
    say(f"{done} ({time.monotonic() - begin_s:.0f} s)")


def alive() -> bool:
    """Whether there is a session, and its JVM runs; whether that does anything is not asked."""
    return _running is not None and _running.alive


def stop(*, kill: bool = False) -> None:
    """Ends the session of this process, if there is one; with `kill` without a word to its JVM."""
    global _running
    if _running is not None:
        if kill and _running.process is not None:
            _running.process.kill()
            _running.process.wait()
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


def map_in_arrow(frame: DataFrame, function: MapBatches, schema: str) -> DataFrame:
    """`DataFrame.mapInArrow`, which asks for pandas and makes no use of it."""
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    made = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = made(*(frame[name] for name in frame.columns))
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def need() -> None:
    """Says what is missing here to run Spark."""
    if archive.java() is None:
        raise Unavailable(JAVA_MISSING)
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise Unavailable(PYSPARK_MISSING) from error


# -- before it starts ----------------------------------------------------------------------------------------


def _cores(master: str) -> int | None:
    """How many cores a local master has; None for a cluster."""
    if not master.startswith("local"):
        return None
    found = re.match(r"local\[(\d+)", master)
    return int(found[1]) if found else 1 if master == "local" else os.cpu_count()


def _places(folder: Path) -> dict[str, str]:
    return {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}


def _temporary() -> str:
    """An option: temporary files of Java, sockets among them, stand where those of this process do."""
    folder = tempfile.gettempdir()
    return f'-Djava.io.tmpdir="{folder}"' if len(folder) <= TEMPORARY_CHARS_MAX else ""


@contextmanager
def _environment() -> Iterator[None]:
    """For what Spark runs in Python it asks the environment alone, and falls back on any python3. It starts a
    JVM to find out how to start the other, and that one has options of its own."""
    before = dict(os.environ)
    wanted = {"PYSPARK_PYTHON": sys.executable, "SPARK_LAUNCHER_OPTS": UNSEEN}
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        for name in wanted.keys() - before.keys():
            del os.environ[name]


def _sweep(folder: Path) -> IO[bytes]:
    """Takes the folder for this process, and removes what others that were killed left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise Unavailable(
            f"another process runs Spark in {folder}: stop it first, or give this one another folder"
        ) from None
    for left in folder.glob("holdfast-spark-*"):
        shutil.rmtree(left, ignore_errors=True)
    return lock


def _archived(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings to start from the archive of this machine, if there is one."""
    place = archive.place()
    return {JAVA_OPTIONS: f"{settings[JAVA_OPTIONS]} {archive.using(place)}"} if archive.whole(place) else {}


def _exercise(spark: SparkSession, folder: Path) -> None:
    """A little of what a pipeline does, so that the classes for it are in the archive."""
    from pyspark.sql import functions as F

    numbers = map_in_arrow(spark.range(EXERCISE_ROWS), lambda batches: batches, "id bigint")
    texts = numbers.select("id", F.to_json(F.struct("id")).alias("payload"))
    parsed = texts.select(F.from_json("payload", "id bigint").alias("row"), "id")
    path = str(folder / "exercise")
    parsed.select("row.id", F.col("id").cast("double").alias("x")).write.parquet(path)
    read = spark.read.schema("id bigint, x double").parquet(path)
    read.createOrReplaceTempView("holdfast_exercise")
    spark.sql(
        "SELECT a.id, count(*) AS n, max(b.x) AS x FROM holdfast_exercise a "
        "JOIN holdfast_exercise b ON a.id = b.id WHERE b.x >= 0 GROUP BY a.id ORDER BY a.id"
    ).toArrow()


# -- while it starts -----------------------------------------------------------------------------------------


def _await_executors(spark: SparkSession, master: str) -> None:
    """A cluster that is not there would let the first job wait for ever."""
    if master.startswith("local"):
        return
    context = spark.sparkContext._jsc.sc()
    end_s = time.monotonic() + EXECUTORS_S_MAX
    # The driver is in this list too.
    while context.isStopped() or context.getExecutorMemoryStatus().size() < 2:
        if context.isStopped():
            raise Unavailable(NO_MASTER.format(master))
        if time.monotonic() > end_s:
            raise Unavailable(
                f"no worker of the Spark cluster {master} gave an executor within {EXECUTORS_S_MAX} s: start "
                "one with as many cores and as much memory as this asks for, or end who has them"
            )
        time.sleep(POLL_S)


def _complaint(log: str) -> str:
    """What a log of Spark says of a failure, its first error before the rest."""
    tail = log[-LOG_CHARS_MAX:].strip()
    first = next((line for line in log.splitlines() if " ERROR " in line), "")
    return f"{first[:LOG_CHARS_MAX]}\n{tail}" if first else tail


def _forget() -> None:
    """What PySpark keeps of a session that did not end by itself, or never began: no other could start.

    The last gateway, too, would be taken for the next context, and lead to a JVM that has ended.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None
        context.stop()
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    SparkContext._gateway = None
    SparkContext._jvm = None


atexit.register(stop)
