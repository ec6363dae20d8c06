"""A standalone cluster that goes away altogether and comes back: told, waited for, and nothing is lost."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from pipeline.test_whole_pipeline import PIPELINE, START_S_MAX, Story, command, said
from support.brokers import LOOPBACK, BrokerProcess, free_port

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@contextmanager
def cluster(folder: Path, port: int) -> Iterator[str]:
    """A master and a worker; their executors go with the worker."""
    url = f"spark://{LOOPBACK}:{port}"
    where = ["--host", LOOPBACK, "--webui-port", "0"]
    commands = (
        ["org.apache.spark.deploy.master.Master", *where, "--port", str(port)],
        ["org.apache.spark.deploy.worker.Worker", *where, "--cores", "1", "--memory", "1g", url],
    )
    environment = {**os.environ, "SPARK_LOCAL_IP": LOOPBACK, "SPARK_WORKER_DIR": str(folder / "work")}
    with (folder / "cluster.log").open("ab") as log:
        processes = [
            subprocess.Popen([str(SPARK_CLASS), *each], env=environment, stdout=log, stderr=log)
            for each in commands
        ]
    try:
        yield url
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


@pytest.mark.skipif("HOLDFAST_CLUSTER" not in os.environ, reason="takes minutes: make cluster")
@pytest.mark.timeout(600)
def test_a_cluster_that_is_gone_is_waited_for(
    tmp_path: Path, start_broker: Callable[..., BrokerProcess]
) -> None:
    address, port = f"{LOOPBACK}:{start_broker().port}", free_port()
    file, log = tmp_path / "pipeline.toml", tmp_path / "log"
    text = PIPELINE.format(brokers=address, data=tmp_path / "data")
    file.write_text(text.replace('period = "500ms"', 'period = "1s"\ntime_limit = "10s"'))

    async def story(process: subprocess.Popen[bytes]) -> None:
        tale = Story(address)
        receiving = asyncio.create_task(tale.receive())
        with cluster(tmp_path, port):
            await asyncio.to_thread(said, log, 'event="session started"')
            await tale.publish(5)
            await tale.all_came()
        await tale.publish(5)
        await asyncio.to_thread(said, log, 'event="session lost"')
        await asyncio.to_thread(said, log, 'event="session not started"')
        with cluster(tmp_path, port):
            await asyncio.to_thread(said, log, 'event="session started"', 2)
            await tale.all_came()
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, START_S_MAX) == 0
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)

    with (
        command(tmp_path / "record.log", "record", str(file)),
        command(log, "pipeline", str(file), "--master", f"spark://{LOOPBACK}:{port}") as process,
    ):
        try:
            asyncio.run(story(process))
        except BaseException:
            print(log.read_text()[-6000:])
            raise
