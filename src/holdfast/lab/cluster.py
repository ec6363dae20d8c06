"""Trials on the machines of a Spark cluster: one task for each trial, one trial on a machine at a time.

Laws:
- a task takes all cores of its executor, and a lock on its machine, so that no trial disturbs another
- a trial runs once: what fails is named and left to the caller, never repeated in silence
- a trial runs in a temporary folder of its machine; its files come back as a tar in pieces of the task's
  result, at most TRIAL_BYTES_MAX, and its folder appears among the results at once, with all of its files
- a trial that fails leaves failed.json in its folder: the error in a line, and where it came from
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import Unavailable
from holdfast.lab.model import Trial
from holdfast.lab.store import Failure, TrialFolder
from holdfast.pipeline import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RunTrial = Callable[[Trial, Path], None]
Done = Callable[[Trial], None]

MACHINES_MAX = 64
POLL_S = 0.5
PIECE_BYTES = 16 << 20
TRIAL_BYTES_MAX = 1 << 30
LOCK = Path(tempfile.gettempdir()) / "holdfast-lab.lock"
LOCK_S_MAX = 3600


def run_on_cluster(
    trials: list[Trial], results: Path, master: str, *, done: Done, run: RunTrial | None = None
) -> None:
    """Runs the trials and leaves their folders in the results; `done` is called after each, here.

    `run` is what runs a trial on a machine: `holdfast.lab.run.run_trial` unless a test says otherwise.
    """
    if not trials:
        return
    cores = executor_cores(master)
    session = spark.session(master, settings=_settings(cores))
    with ThreadPoolExecutor(min(len(trials), MACHINES_MAX)) as pool:
        waiting = {pool.submit(_one, session, trial, results, run): trial for trial in trials}
        try:
            for finished in as_completed(waiting):
                finished.result()
                done(waiting[finished])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            session.sparkContext.cancelAllJobs()
            raise


def executor_cores(master: str) -> int:
    """How many cores an executor has: what a local master says, elsewhere as many as this machine."""
    if found := re.fullmatch(r"local\[(\d+)(?:,\d+)?\]|local-cluster\[\d+,(\d+),\d+\]", master):
        return int(found[1] or found[2])
    return 1 if master == "local" else os.cpu_count() or 1


def _settings(cores: int) -> dict[str, str]:
    return {
        **spark.LARGE_JOBS,
        "spark.executor.cores": str(cores),
        "spark.task.cpus": str(cores),
        "spark.task.maxFailures": "1",
        "spark.speculation": "false",
        "spark.driver.maxResultSize": str(2 * TRIAL_BYTES_MAX),
    }


# -- here ----------------------------------------------------------------------------------------------------


def _one(session: SparkSession, trial: Trial, results: Path, run: RunTrial | None) -> None:
    """One trial: from the task's pieces to its folder."""
    folder = TrialFolder(results, trial.number).path
    folder.parent.mkdir(parents=True, exist_ok=True)
    arriving = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=results))
    try:
        try:
            task = session.sparkContext.parallelize([msgspec.json.encode(trial)], 1)
            pieces = task.flatMap(lambda encoded: run_and_pack(encoded, run)).collect()
            with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
                tar.extractall(arriving, filter="data")
        except Exception as error:
            # The machine or the connection to it was lost: nothing else raises here, whatever the trial did.
            (arriving / "failed.json").write_bytes(msgspec.json.encode(Failure.of(trial, error)))
        shutil.rmtree(folder, ignore_errors=True)
        arriving.chmod(0o755)
        arriving.rename(folder)
    finally:
        shutil.rmtree(arriving, ignore_errors=True)


# -- on the machine of an executor ---------------------------------------------------------------------------


def _run_trial() -> RunTrial:
    from holdfast.lab.run import run_trial

    return run_trial


def run_and_pack(encoded: bytes, run: RunTrial | None) -> Iterator[bytes]:
    """Runs the trial in a temporary folder and gives that folder, tarred, in pieces."""
    trial = msgspec.json.decode(encoded, type=Trial)
    with tempfile.TemporaryDirectory(prefix="holdfast-on-cluster-") as name:
        folder = Path(name) / "trial"
        folder.mkdir()
        try:
            with _machine():
                (run or _run_trial())(trial, folder)
            _check_size(folder)
        except Exception as error:
            shutil.rmtree(folder)
            folder.mkdir()
            (folder / "failed.json").write_bytes(msgspec.json.encode(Failure.of(trial, error)))
        packed = Path(name) / "trial.tar"
        with tarfile.open(packed, "w") as tar:
            tar.add(folder, arcname=".")
        with packed.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece


def _check_size(folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > TRIAL_BYTES_MAX:
        raise Unavailable(
            f"the trial recorded {size:,} bytes, more than the {TRIAL_BYTES_MAX:,} that can be sent back: "
            "shorten measure, lower the number of topics, or run it on this machine"
        )


@contextmanager
def _machine() -> Iterator[None]:
    """This machine for one trial, also among several executors or experiments on it."""
    with LOCK.open("a") as file:
        end_s = time.monotonic() + LOCK_S_MAX
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise Unavailable(
                        f"another trial has held this machine for {LOCK_S_MAX} s ({LOCK}): end it first"
                    ) from None
                time.sleep(POLL_S)
        yield
