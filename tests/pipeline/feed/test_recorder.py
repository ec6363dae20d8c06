"""A real recorder, real brokers and real publishers: what was acknowledged is in the journal, once."""

import asyncio
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Outgoing, connect
from holdfast.client import Client
from holdfast.mqtt.packets import Properties
from holdfast.pipeline.declared import Feed
from holdfast.pipeline.feed.journal import FeedReader
from holdfast.pipeline.feed.recording import Recording
from holdfast.pipeline.layout import Layout
from support.brokers import MOSQUITTO, StartBroker
from support.groups import GroupProcesses
from support.recorders import RecorderProcess

CONTRACTS = """
[limits]
queue_messages_max = 900000
queue_bytes_max = 200000000

[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { edge = "1ms" }

[[contract]]
name = "kept"
topics = ["kept/+"]
period = "100ms"
deadline = "100ms"
loss_tolerance = 0
retention = 2
"""
AWAIT_S_MAX = 60.0
POLL_S = 0.01
BATCH = 200
UNRECORDED_MAX = 30_000
TOPICS = 20


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + AWAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        await asyncio.sleep(POLL_S)


def options(tmp_path: Path, brokers: str, *topics: str) -> tuple[str, ...]:
    named = [text for topic in topics or ("kept/#",) for text in ("-t", topic)]
    return ("--feed", "x", *named, "--brokers", brokers, "--data", str(tmp_path / "data"))


@pytest.fixture
def feed(tmp_path: Path) -> FeedReader:
    return FeedReader(Layout(tmp_path / "data").feed("x"))


def rows(feed: FeedReader) -> list[dict[str, object]]:
    batches = list(feed.read(feed.first, feed.head))
    return pa.Table.from_batches(batches).to_pylist() if batches else []


class Publisher:
    """Publishes numbered messages over some topics until it is told to end; brokers hold a bounded number of
    messages for a recorder that is gone, and it stays below that."""

    def __init__(self, client: Client, feed: FeedReader, *, stamp: bool = True) -> None:
        self.client = client
        self.feed = feed
        self.sent = 0
        self.ended = False
        self._stamp = stamp

    async def run(self) -> None:
        while not self.ended:
            numbers = range(self.sent, self.sent + BATCH)
            messages = [
                Outgoing(f"kept/{number % TOPICS}", b"%d" % number, 1, False, None) for number in numbers
            ]
            await self.client.publish_many(messages, stamp=self._stamp)
            self.sent += BATCH
            await until(lambda: self.ended or self.sent - self.feed.head < UNRECORDED_MAX, "progress")


def check_exactly_once(found: list[dict[str, object]], sent: int) -> None:
    assert Counter(row["payload"] for row in found) == Counter(b"%d" % number for number in range(sent))
    newest: dict[object, int] = {}
    for row in found:
        sequence = row["sequence"]
        assert isinstance(sequence, int)
        assert newest.get(row["topic"], 0) == sequence - 1, "in order, without a gap"
        newest[row["topic"]] = sequence


def test_every_message_is_recorded_once_though_recorder_and_broker_are_killed(
    tmp_path: Path, feed: FeedReader
) -> None:
    rng = random.Random(7)
    contracts = tmp_path / "contracts.toml"
    contracts.write_text(CONTRACTS)

    async def main(group: GroupProcesses, recorder: RecorderProcess, addresses: str) -> int:
        async with await connect(addresses, outage_s_max=60) as client:
            publisher = Publisher(client, feed)
            publishing = asyncio.create_task(publisher.run())
            for kill in range(6):
                target = feed.head + rng.randrange(1000, 9000)
                await until(lambda target=target: feed.head >= target or publishing.done(), "progress")
                if kill == 3:
                    group.kill(await asyncio.to_thread(group.primary))
                else:
                    recorder.kill()
                    recorder.start(ready=False)
            publisher.ended = True
            await publishing
            await until(lambda: feed.head >= publisher.sent, "everything recorded")
            return publisher.sent

    with GroupProcesses(tmp_path, contracts) as group:
        group.await_protected()
        addresses = ",".join(f"127.0.0.1:{port}" for port in group.ports.values())
        with RecorderProcess(*options(tmp_path, addresses), log=tmp_path / "log") as recorder:
            sent = asyncio.run(main(group, recorder, addresses))
            recorder.await_ready()
            assert recorder.terminate() == 0
    check_exactly_once(rows(feed), sent)


def test_a_clean_end_leaves_nothing_out_and_what_came_meanwhile_follows(
    tmp_path: Path, feed: FeedReader, start_broker: StartBroker
) -> None:
    broker = start_broker(kind="holdfast")

    async def publish(first: int) -> None:
        async with await connect(f"127.0.0.1:{broker.port}", client_id="p") as client:
            for number in range(first, first + 300):
                await client.publish(f"kept/{number % 3}", b"%d" % number, qos=1)

    with RecorderProcess(*options(tmp_path, f"127.0.0.1:{broker.port}"), log=tmp_path / "log") as recorder:
        asyncio.run(publish(0))
        assert recorder.terminate() == 0
        assert feed.head <= 300
        asyncio.run(publish(300))
        recorder.start()
        asyncio.run(until(lambda: feed.head == 600, "the rest"))
        assert recorder.terminate() == 0
    assert [row["payload"] for row in rows(feed)] == [b"%d" % number for number in range(600)]


def test_a_group_that_waits_for_the_disk_at_the_end_is_stored_before_it_is_acknowledged(
    tmp_path: Path, feed: FeedReader, start_broker: StartBroker
) -> None:
    broker = start_broker(kind="holdfast")
    declared = Feed(name="x", topics=("kept/#",))

    async def record(disk: threading.Event, *, taken: int, publish: int) -> None:
        recording = Recording(declared, feed.directory, f"127.0.0.1:{broker.port}", awaited=False)
        running = asyncio.create_task(recording.run())
        await until(lambda: (feed.directory / "topics.json").exists(), "the subscription")
        recording._thread.submit(disk.wait, AWAIT_S_MAX)
        async with await connect(f"127.0.0.1:{broker.port}") as client:
            for number in range(publish):
                await client.publish("kept/1", b"%d" % number, qos=1)
        if publish:
            await until(lambda: recording._committing is not None, "a commit that waits")
        else:
            await until(lambda: feed.head == taken, "the rest")
        running.cancel()
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.1, disk.set)
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(record(threading.Event(), taken=0, publish=10))
    free = threading.Event()
    free.set()
    asyncio.run(record(free, taken=10, publish=0))
    assert [row["payload"] for row in rows(feed)] == [b"%d" % number for number in range(10)]


def test_messages_of_every_form_are_recorded_and_retained_ones_once(
    tmp_path: Path, feed: FeedReader, start_broker: StartBroker
) -> None:
    broker = start_broker(kind="holdfast")

    typed = Properties(content_type="text/plain")

    async def publish() -> None:
        async with await connect(f"127.0.0.1:{broker.port}", client_id="p") as client:
            await client.publish("kept/plain", b"plain", qos=1, stamp=False)
            await client.publish("kept/typed", b"typed", qos=1, properties=typed)
            await client.publish("kept/typed", b"unstamped", stamp=False, properties=typed)
            await client.publish("kept/two", b"two", qos=2)
            await client.publish("kept/zero", b"zero")
            await client.publish("kept/empty", b"", qos=1)
            await client.publish("kept/ünï", bytes(range(256)), qos=1)
            await client.publish("kept/later", b"retained later", qos=1, retain=True)

    async def retain() -> None:
        async with await connect(f"127.0.0.1:{broker.port}") as client:
            await client.publish("kept/before", b"retained", qos=1, retain=True)
            await client.publish("kept/before2", b"retained 2", qos=1, retain=True, stamp=False)

    asyncio.run(retain())
    with RecorderProcess(*options(tmp_path, f"127.0.0.1:{broker.port}"), log=tmp_path / "log") as recorder:
        asyncio.run(publish())
        asyncio.run(until(lambda: feed.head == 10, "all of them"))
        for end in (recorder.kill, recorder.terminate):
            end()
            recorder.start()
        asyncio.run(publish())
        asyncio.run(until(lambda: feed.head == 18, "all of them again, and no retained copy"))
        recorder.terminate()
    found = rows(feed)
    payloads = Counter(row["payload"] for row in found)
    assert payloads.pop(b"retained") == payloads.pop(b"retained 2") == 1
    assert set(payloads.values()) == {2}
    assert bytes(range(256)) in payloads
    stamped = {row["payload"]: row["publisher"] is not None for row in found}
    assert not stamped[b"plain"]
    assert not stamped[b"unstamped"]
    assert stamped[b"typed"]
    assert {row["sequence"] is None for row in found if row["publisher"] is None} == {True}


def test_a_broker_that_is_not_ours_gives_everything_at_least_once(
    tmp_path: Path, feed: FeedReader, start_broker: StartBroker
) -> None:
    conf = "max_inflight_messages 0\nmax_queued_messages 0\n"
    broker = start_broker(kind=MOSQUITTO, mosquitto_conf=conf)

    async def main(recorder: RecorderProcess) -> int:
        async with await connect(f"127.0.0.1:{broker.port}") as client:
            publisher = Publisher(client, feed, stamp=False)
            publishing = asyncio.create_task(publisher.run())
            for _ in range(3):
                target = feed.head + 3000
                await until(lambda target=target: feed.head >= target or publishing.done(), "progress")
                recorder.kill()
                recorder.start(ready=False)
            publisher.ended = True
            await publishing
            wanted = {b"%d" % number for number in range(publisher.sent)}
            await until(lambda: feed.head >= publisher.sent, "as many records as messages")
            await until(lambda: {row["payload"] for row in rows(feed)} == wanted, "all of them")
            return publisher.sent

    with RecorderProcess(*options(tmp_path, f"127.0.0.1:{broker.port}"), log=tmp_path / "log") as recorder:
        sent = asyncio.run(main(recorder))
        recorder.await_ready()  # its last life may have come when all was recorded
        assert recorder.terminate() == 0
    assert {row["payload"] for row in rows(feed)} == {b"%d" % number for number in range(sent)}


def test_a_filter_that_was_taken_away_brings_nothing_more(
    tmp_path: Path, feed: FeedReader, start_broker: StartBroker
) -> None:
    broker = start_broker(kind="holdfast")
    address = f"127.0.0.1:{broker.port}"

    async def publish() -> None:
        async with await connect(address) as client:
            for topic in ("one", "two"):
                await client.publish(topic, topic.encode(), qos=1)

    with RecorderProcess(*options(tmp_path, address, "one", "two"), log=tmp_path / "log") as recorder:
        asyncio.run(publish())
        asyncio.run(until(lambda: feed.head == 2, "both"))
        recorder.terminate()
    with RecorderProcess(*options(tmp_path, address, "two"), log=tmp_path / "log") as recorder:
        asyncio.run(publish())
        asyncio.run(until(lambda: feed.head == 3, "the other"))
        recorder.terminate()
    assert [row["payload"] for row in rows(feed)] == [b"one", b"two", b"two"]


def test_a_recorder_that_was_stopped_too_long_goes_on_and_says_what_is_missing(
    tmp_path: Path, feed: FeedReader, start_broker: StartBroker
) -> None:
    """Stopped, it costs the publisher nothing: the broker gives up on its session, and is told so."""
    contracts = tmp_path / "contracts.toml"
    contracts.write_text(CONTRACTS.replace("900000", "1000"))
    broker = start_broker("--contracts", str(contracts), kind="holdfast")

    async def main(recorder: RecorderProcess) -> tuple[int, int]:
        async with await connect(f"127.0.0.1:{broker.port}") as client:
            os.kill(recorder.pid, signal.SIGSTOP)
            sent = 0
            while "overloaded" not in broker.stderr and sent < 400_000:
                numbers = range(sent, sent + 1000)
                await client.publish_many(
                    Outgoing(f"kept/{number % TOPICS}", b"%d" % number, 1, False, None) for number in numbers
                )
                sent += len(numbers)
            os.kill(recorder.pid, signal.SIGCONT)
            last = sent

            def recorded() -> bool:
                return any(int(each.as_py()) > sent for each in newest(feed))

            while not recorded():
                await client.publish("kept/0", b"%d" % (last := last + 1), qos=1)
            await until(lambda: "event=missing" in recorder.log, "the recorder says so")
            return sent, last

    with RecorderProcess(*options(tmp_path, f"127.0.0.1:{broker.port}"), log=tmp_path / "log") as recorder:
        sent, _ = asyncio.run(main(recorder))
        assert recorder.terminate() == 0
    found = Counter(row["payload"] for row in rows(feed))
    assert set(found.values()) == {1}
    assert sum(int(number) < sent for number in found) < sent, "this test must lose something"


def newest(feed: FeedReader) -> pa.Array:
    head = feed.head
    batches = list(feed.read(max(0, head - 1), head))
    return batches[-1].column("payload") if batches else pa.array([])


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_loses_nothing_and_it_goes_on_when_there_is_room(
    tiny_disk: Path, tmp_path: Path, start_broker: StartBroker
) -> None:
    contracts = tmp_path / "contracts.toml"
    contracts.write_text(CONTRACTS)
    broker = start_broker("--contracts", str(contracts), kind="holdfast")
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(2_500_000))
    feed = FeedReader(Layout(tiny_disk / "data").feed("x"))

    async def main(recorder: RecorderProcess) -> int:
        async with await connect(f"127.0.0.1:{broker.port}") as client:
            publisher = Publisher(client, feed)
            publishing = asyncio.create_task(publisher.run())
            await until(lambda: "No space left" in recorder.log, "a full disk, in the log")
            publisher.ended = True
            await publishing
            assert feed.head < publisher.sent
            ballast.unlink()
            await until(lambda: feed.head == publisher.sent, "all of it")
            return publisher.sent

    arguments = options(tiny_disk, f"127.0.0.1:{broker.port}")
    with RecorderProcess(*arguments, log=tmp_path / "log") as recorder:
        sent = asyncio.run(main(recorder))
        assert "recording again" in recorder.log
        assert recorder.terminate() == 0
    check_exactly_once(rows(feed), sent)


def test_a_feed_that_is_full_takes_nothing_more_until_its_consumer_has_passed(
    tmp_path: Path, feed: FeedReader, start_broker: StartBroker
) -> None:
    contracts = tmp_path / "contracts.toml"
    contracts.write_text(CONTRACTS)
    broker = start_broker("--contracts", str(contracts), kind="holdfast")
    pipeline = tmp_path / "pipeline.toml"
    pipeline.write_text(
        f'brokers = "127.0.0.1:{broker.port}"\ndata = "{tmp_path / "data"}"\n'
        f'[[feed]]\nname = "x"\ntopics = ["kept/#"]\nbytes_max = 1048576\nretention = "0s"\n'
    )

    async def main(recorder: RecorderProcess) -> tuple[int, list[dict[str, object]]]:
        async with await connect(f"127.0.0.1:{broker.port}") as client:
            feed.commit("slow", 0)
            publisher = Publisher(client, feed)
            publishing = asyncio.create_task(publisher.run())
            await until(lambda: "consumer slow still needs all from offset 0" in recorder.log, "full")
            await until(lambda: publisher.sent - feed.head > 25_000, "more than fits at once")
            publisher.ended = True
            await publishing
            found = rows(feed)
            assert len(found) < publisher.sent
            while len(found) < publisher.sent:
                feed.commit("slow", len(found))
                await until(lambda: feed.head > len(found), "more")  # noqa: B023
                batches = list(feed.read(len(found), feed.head))
                found += pa.Table.from_batches(batches).to_pylist()
            return publisher.sent, found

    with RecorderProcess(str(pipeline), log=tmp_path / "log") as recorder:
        sent, found = asyncio.run(main(recorder))
        assert recorder.terminate() == 0
    check_exactly_once(found, sent)
    assert feed.first > 0


def test_a_second_recorder_of_a_feed_is_refused_and_a_damaged_feed_says_where(
    tmp_path: Path, feed: FeedReader, start_broker: StartBroker
) -> None:
    broker = start_broker(kind="holdfast")
    arguments = options(tmp_path, f"127.0.0.1:{broker.port}")
    with RecorderProcess(*arguments, log=tmp_path / "log"):
        second = RecorderProcess(*arguments, log=tmp_path / "log2")
        second.start(ready=False)
        assert second.wait() == 1
        assert "in use by process" in second.log
    (path,) = (feed.directory / "journal").glob("*.journal")
    data = path.read_bytes()
    path.write_bytes(b"X" + data[1:])
    third = RecorderProcess(*arguments, log=tmp_path / "log3")
    third.start(ready=False)
    assert third.wait() != 0
    assert path.name in third.log
