"""A process that ingests is killed at random instants; every record is a row once, and keyed is what it was.

HOLDFAST_KILLS sets how often; a few of them meet steps that go through Spark.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.pipeline.datasets.manifest import Manifest

from .recorded import NOW_NS, PIPELINE, batch
from .recorded import Recorded as Whole
from .test_ingestion import fix, state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("HOLDFAST_KILLS", "12"))
KILLS_WITH_SPARK = max(1, KILLS // 10)
WAIT_S_MAX = 100
USERS = 40
RECORDS = 400


class Stepping:
    """The process that will be killed."""

    def __init__(self, data: Path, own_records_max: int) -> None:
        command = [sys.executable, "-m", "tests.pipeline.datasets.stepping", str(data), str(own_records_max)]
        # In a group of its own: Spark and its workers go with it.
        self.process = subprocess.Popen(
            command, cwd=Path(__file__).parents[3], stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def kill(self) -> None:
        assert self.process.poll() is None, self.process.communicate()[1]
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def await_version(manifest: Manifest, version: int, stepping: Stepping, pause_s: float = 0.001) -> None:
    until = time.monotonic() + WAIT_S_MAX
    while manifest.version < version:
        assert stepping.process.poll() is None, stepping.process.communicate()[1]
        assert time.monotonic() < until, "no step"
        time.sleep(pause_s)


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@pytest.mark.timeout(WAIT_S_MAX * (KILLS + 2))
def test_killed_at_any_instant_every_record_is_a_row_once(tmp_path: Path, spark: SparkSession) -> None:
    rng = random.Random(int(os.environ.get("HOLDFAST_SEED", "5")))
    recorded = Whole(tmp_path / "data", spark)
    expected: dict[str, int] = {}
    count = 0
    reader = Manifest(recorded.layout.manifest)
    recorded.manifest.close()
    for number in range(KILLS):
        stepping = Stepping(recorded.layout.data, 0 if number < KILLS_WITH_SPARK else 10_000)
        version = reader.version
        for _ in range(rng.randrange(1, 6)):
            users = [f"u{rng.randrange(USERS)}" for _ in range(RECORDS)]
            payloads = [fix(user, count + place) for place, user in enumerate(users)]
            expected |= {user: count + place for place, user in enumerate(users)}
            count += len(users)
            recorded.put(payloads)
            version += 1
            await_version(reader, version, stepping)
        recorded.writer.append(batch([b"{"] * 50, NOW_NS))
        recorded.writer.commit()
        count += 50
        # Every other time in the very instant in which a version shows, or else at any.
        if number % 2:
            await_version(reader, version + 1, stepping, pause_s=0)
        else:
            spin(rng.random() * 0.06)
        stepping.kill()
    reader.close()
    recorded.open(PIPELINE)
    while recorded.ingestion.step():
        pass
    recorded.ingestion.tend()
    assert [row["_offset"] for row in recorded.rows("track")] == [
        row["n"] for row in recorded.rows("track")
    ], "a row that is not of its record"
    bad = [row["_offset"] for row in recorded.rows("quarantine") if row["dataset"] == "track"]
    rows = [row["_offset"] for row in recorded.rows("track")]
    assert sorted(rows + bad) == list(range(count))
    assert len(bad) == 50 * KILLS
    assert state(recorded.rows("position")) == expected
    for name in ("track", "position", "quarantine"):
        live = {each.name for each in recorded.manifest.files(name)}
        assert live <= recorded.on_disk(name) <= recorded.manifest.named(name)
    recorded.close()
