"""On a real cluster the answers are those of one process, also when a worker dies in the middle."""

from __future__ import annotations

import os
from binascii import crc32
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.lab.standalone import SETTINGS, SparkCluster
from holdfast.pipeline import spark as starting
from pipeline.feeds import payload_of, record, topic_of
from support.brokers import free_port, wait_until

BATCH = 2000
RECORDS = 160_000
TASKS = RECORDS // BATCH
JOB_S_MAX = 300.0


@pytest.mark.skipif("HOLDFAST_CLUSTER" not in os.environ, reason="takes minutes: make cluster")
@pytest.mark.timeout(900)
def test_a_worker_that_dies_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    """Every task reads a range of the journal; those of the lost executor are done again by the other."""
    record(tmp_path, "plant", [BATCH] * TASKS)
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for number in range(RECORDS):
        sums = expected[topic_of(number)]
        sums[0] += 1
        sums[1] += crc32(payload_of(number))

    with SparkCluster() as cluster:
        session = starting.session(cluster.url, memory="1g", settings=SETTINGS)
        context = session.sparkContext
        tracker = context.statusTracker()
        rows = session.read.format("holdfast").options(
            data=str(tmp_path), feeds="plant", recordsPerPartition=str(BATCH)
        ).load()  # fmt: skip
        totals = (
            rows.selectExpr("topic", "crc32(payload) AS crc")
            .groupBy("topic")
            .agg({"*": "count", "crc": "sum"})
        )

        def done() -> int:
            infos = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
            return max((info.numCompletedTasks for info in infos if info is not None), default=0)

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(totals.collect)
            wait_until(lambda: done() >= 5 or found.done(), "some tasks", JOB_S_MAX)
            assert done() < TASKS, "the job was over before a worker could die"
            cluster.kill_worker(0)
            rows_found = found.result(JOB_S_MAX)
        starting.stop()
    assert {row["topic"]: [row["count(1)"], row["sum(crc)"]] for row in rows_found} == dict(expected)


@pytest.mark.skipif("HOLDFAST_CLUSTER" not in os.environ, reason="takes minutes: make cluster")
@pytest.mark.timeout(300)
def test_a_cluster_that_is_not_there_is_an_error() -> None:
    with pytest.raises(Unavailable, match=r"no Spark master answers at spark://127\.0\.0\.1:"):
        starting.session(f"spark://127.0.0.1:{free_port()}", memory="1g", settings=SETTINGS)
