"""Messages in, notifications out, with real Spark, while the JVM and the driver are killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import connect
from support.brokers import LOOPBACK, BrokerProcess, wait_until

PIPELINE = """\
brokers = "{brokers}"
data = "{data}"
trigger = "200ms"
spark = {{ master = "local[2]", memory = "1g" }}
[[feed]]
name = "readings"
topics = ["readings/+"]
[[dataset]]
name = "readings"
feed = "readings"
schema = {{ user = "string", number = "bigint" }}
[[channel]]
name = "mine"
period = "500ms"
parameters = {{ user = "string" }}
new = ["readings"]
query = "SELECT s.subscription, r.number FROM new_readings r JOIN subscriptions s ON r.user = s.user"
"""
START_S_MAX = 180.0
WAIT_S_MAX = 90.0


@contextmanager
def command(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def jvm_of(pid: int) -> int:
    """The Java below that process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(") ")
            except OSError:
                continue
            if name.endswith("(java") and int(rest.split()[1]) == pid:
                return int(entry.name)
    raise AssertionError(f"no Java below {pid}")


class Story:
    """Publishes numbers for two users, and knows which of them came back as notifications."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sent = 0
        self.came: dict[str, list[int]] = {"alice": [], "bob": []}

    async def publish(self, count: int) -> None:
        async with await connect(self.address) as client:
            for _ in range(count):
                self.sent += 1
                for user in self.came:
                    payload = json.dumps({"user": user, "number": self.sent}).encode()
                    await client.publish(f"readings/{user}", payload, qos=1)

    async def receive(self) -> None:
        async with await connect(self.address) as client:
            await client.subscribe(*(f"$channel/mine/{user}" for user in self.came), qos=1)
            async for message in client:
                user = message.topic.rpartition("/")[2]
                self.came[user] += [row["number"] for row in json.loads(message.payload)["rows"]]

    async def all_came(self) -> None:
        give_up = time.monotonic() + WAIT_S_MAX
        expected = list(range(1, self.sent + 1))
        while any(len(numbers) < self.sent for numbers in self.came.values()):
            assert time.monotonic() < give_up, self.came
            await asyncio.sleep(0.05)
        assert all(sorted(numbers) == expected for numbers in self.came.values()), self.came


def said(log: Path, words: str, times: int = 1) -> None:
    wait_until(lambda: log.read_text().count(words) >= times, words, START_S_MAX)


@pytest.mark.timeout(400)
def test_notifications_come_once_whoever_is_killed(
    tmp_path: Path, start_broker: Callable[..., BrokerProcess]
) -> None:
    broker = start_broker()
    address = f"{LOOPBACK}:{broker.port}"
    file, data, log = tmp_path / "pipeline.toml", tmp_path / "data", tmp_path / "log"
    file.write_text(PIPELINE.format(brokers=address, data=data))

    async def story() -> None:
        tale = Story(address)
        receiving = asyncio.create_task(tale.receive())
        with command(log, "pipeline", str(file)) as process:
            await asyncio.to_thread(said, log, 'event="session started"')
            await tale.publish(20)
            await tale.all_came()
            os.kill(jvm_of(process.pid), signal.SIGKILL)
            await tale.publish(20)
            await asyncio.to_thread(said, log, 'event="session started"', 2)
            await tale.all_came()
            await tale.publish(20)
            process.kill()
        await tale.publish(20)
        with command(log, "pipeline", str(file)) as process:
            await tale.all_came()
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, START_S_MAX) == 0
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)

    with command(tmp_path / "record.log", "record", str(file)):
        said(tmp_path / "record.log", "event=recording")
        try:
            asyncio.run(story())
        except BaseException:
            print(log.read_text()[-6000:], (tmp_path / "record.log").read_text()[-2000:])
            raise
    assert not list((data / "spark").glob("holdfast-spark-*")), "nothing is left but the data"


def test_what_is_wrong_with_a_pipeline_is_said_by_check(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    text = PIPELINE.format(brokers="127.0.0.1:1", data=tmp_path / "data")
    file.write_text(text)
    with command(tmp_path / "good", "pipeline", str(file), "--check") as process:
        assert process.wait(START_S_MAX) == 0, (tmp_path / "good").read_text()
    file.write_text(text.replace("r.number", "r.nummer"))
    with command(tmp_path / "bad", "pipeline", str(file), "--check") as process:
        assert process.wait(START_S_MAX) == 2
    assert "nummer" in (tmp_path / "bad").read_text()
    assert not (tmp_path / "data").exists()
