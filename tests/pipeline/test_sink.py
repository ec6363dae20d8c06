"""Rows as messages: each reaches our subscribers once, whatever dies in the middle."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client import Client, connect
from holdfast.errors import ConfigError
from holdfast.mqtt.conventions import find_stamp
from holdfast.pipeline.sink import in_order, messages
from pipeline.feeds import TOPICS, payload_of, record, topic_of
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 12_000
RECEIVED_S_MAX = 200.0

ROW = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["a", "b/c"]),
        "payload": st.binary(max_size=3),
        "qos": st.sampled_from([None, 0, 1, 2]),
        "retain": st.sampled_from([None, False, True]),
        "sequence": st.one_of(st.none(), st.integers(0, 3)),
    }
)
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("qos", pa.int32()),
        ("retain", pa.bool_()),
        ("sequence", pa.int64()),
    ]
)


def published(rows: list[dict[str, object]], without: set[str]) -> list[tuple[object, ...]]:
    """What is published for a partition with these rows, in order."""
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    table = in_order([batch.select([name for name in SCHEMA.names if name not in without])])
    found = []
    for message in messages(table, "~test.0", 1 << 32, 1, 77):
        assert message.properties is not None
        stamp = find_stamp(message.properties.user)
        assert stamp is not None
        found.append((stamp.sequence, message.topic, message.payload, message.qos, message.retain))
    return found


@settings(deadline=None)
@given(
    st.lists(ROW, min_size=1, max_size=12),
    st.randoms(),
    st.sets(st.sampled_from(["qos", "retain", "sequence"])),
)
def test_a_row_has_the_same_number_in_whatever_order_rows_come(
    rows: list[dict[str, object]], chance: random.Random, without: set[str]
) -> None:
    shuffled = rows[:]
    chance.shuffle(shuffled)
    found = published(rows, without)
    assert published(shuffled, without) == found
    assert [number for number, *_ in found] == list(range(1 << 32, (1 << 32) + len(rows)))
    assert Counter((topic, payload) for _, topic, payload, *_ in found) == Counter(
        (row["topic"], row["payload"]) for row in rows
    )


def test_rows_are_published_by_their_sequence() -> None:
    rows = [{"topic": "t", "payload": b"%d" % (9 - number), "sequence": number} for number in (3, 1, 4, 0, 2)]
    assert [payload for _, _, payload, *_ in published(rows, set())] == [b"9", b"8", b"7", b"6", b"5"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"topic": None, "payload": b"x"}, "topic: is null in the row with"),
        ({"topic": "t", "payload": None}, "payload: is null in the row with"),
        ({"topic": "t", "payload": b"", "qos": 3}, "qos: is 3 for t; expected 0, 1 or 2"),
    ],
)
def test_a_row_that_is_no_message_is_named(row: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        published([row], set())


# -- at a subscriber -----------------------------------------------------------------------------------------


async def take(client: Client, count: int) -> list[tuple[str, bytes]]:
    found = []
    async with asyncio.timeout(RECEIVED_S_MAX):
        while len(found) < count:
            message = await anext(client)
            found.append((message.topic, message.payload))
    return found


async def rest(client: Client) -> list[tuple[str, bytes]]:
    """What else has come, up to a message that we publish now."""
    await client.publish("end/of/it", b"", qos=1)
    found = []
    async with asyncio.timeout(RECEIVED_S_MAX):
        while (message := await anext(client)).topic != "end/of/it":
            found.append((message.topic, message.payload))
    return found


def test_a_batch_is_published_with_its_columns(spark: SparkSession, broker: BrokerProcess) -> None:
    """Two writes of one name are two jobs: neither is taken for a repetition of the other."""
    address = f"127.0.0.1:{broker.port}"
    frame = spark.range(0, 500, 1, 3).selectExpr(
        "concat('batch/', id % 7) AS topic", "cast(id AS string) AS payload", "id AS sequence",
        "cast(id % 3 AS int) AS qos", "id = 499 AS retain",
    )  # fmt: skip

    async def main() -> None:
        async with await connect(address) as client:
            await client.subscribe("batch/#", "end/of/it", qos=2)
            for _ in range(2):
                write = frame.write.format("holdfast").options(brokers=address, name="twice").mode("append")
                # In this thread, which has the session: in another one Spark does not look for formats.
                write.save()
                found = await take(client, 500)
                assert Counter(found) == Counter((f"batch/{n % 7}", b"%d" % n) for n in range(500))
            assert await rest(client) == []
        async with await connect(address) as late:
            await late.subscribe("batch/#", "end/of/it")
            assert await rest(late) == [("batch/2", b"499")]
            await late.publish("batch/2", b"", retain=True)

    asyncio.run(main())


def test_without_a_broker_the_task_says_so(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 't' AS topic, 'x' AS payload")
    with pytest.raises(
        Exception, match=r"1 rows of ~spark\.\w+\.0 were not all published to 127.0.0.1:1: cannot"
    ):
        frame.write.format("holdfast").option("brokers", "127.0.0.1:1").mode("append").save()


# -- killed --------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from holdfast.pipeline import spark
data, brokers = sys.argv[1:]
session = spark.session("local[2]", memory="1g", folder=Path(data, "spark"))
print(spark._running.process.pid, flush=True)
rows = session.readStream.format("holdfast").options(
    data=data, feeds="plant", startingOffsets="earliest", maxRecordsPerTrigger="1500",
    recordsPerPartition="500").load()
query = (rows.selectExpr("concat('sent/', topic) AS topic", "payload", "offset AS sequence")
    .repartition(3, "topic")
    .writeStream.format("holdfast").options(brokers=brokers, name="killed")
    .option("checkpointLocation", str(Path(data, "checkpoint"))).trigger(availableNow=True).start())
query.awaitTermination()
"""


class Driver:
    """A process with a stream from the feed to the broker."""

    def __init__(self, data: Path, brokers: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(data), brokers],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.jvm = int(self.process.stdout.readline() or "0")

    def end(self) -> str:
        _, said = self.process.communicate(timeout=RECEIVED_S_MAX)
        return said


def under_way(checkpoint: Path) -> bool:
    """Whether a batch was begun and not ended: the next start runs it again."""
    begun, ended = (
        {path.name for path in (checkpoint / log).iterdir() if path.name.isdigit()}
        for log in ("offsets", "commits")
    )
    return begun > ended


@pytest.mark.skipif("HOLDFAST_CLUSTER" not in os.environ, reason="takes minutes: make cluster")
@pytest.mark.timeout(600)
def test_every_record_arrives_once_when_driver_and_jvm_are_killed(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """The JVM dies first, then the driver, then a third start goes to the end. Rows are shuffled before
    they are published, so that they come in another order each time."""
    record(tmp_path, "plant", [400] * (RECORDS // 400))
    address = f"127.0.0.1:{broker.port}"

    async def main() -> tuple[list[tuple[str, bytes]], int]:
        cut_short = 0
        async with await connect(address) as client:
            await client.subscribe("sent/#", "end/of/it", qos=1)
            driver = await asyncio.to_thread(Driver, tmp_path, address)
            found = await take(client, 2000)
            os.kill(driver.jvm, signal.SIGKILL)
            await asyncio.to_thread(driver.end)
            cut_short += under_way(tmp_path / "checkpoint")
            driver = await asyncio.to_thread(Driver, tmp_path, address)
            found += await take(client, 3000)
            driver.process.kill()
            await asyncio.to_thread(driver.end)
            with suppress(ProcessLookupError):
                os.kill(driver.jvm, signal.SIGKILL)
            cut_short += under_way(tmp_path / "checkpoint")
            driver = await asyncio.to_thread(Driver, tmp_path, address)
            found += await take(client, RECORDS - len(found))
            said = await asyncio.to_thread(driver.end)
            assert driver.process.returncode == 0, said
            found += await rest(client)
            return found, cut_short

    found, cut_short = asyncio.run(main())
    expected = Counter((f"sent/{topic_of(number)}", payload_of(number)) for number in range(RECORDS))
    assert Counter(found) == expected
    for topic in range(TOPICS):
        own = [payload for name, payload in found if name == f"sent/plant/{topic}"]
        assert own == [payload_of(number) for number in range(topic, RECORDS, TOPICS)]
    assert cut_short > 0, "no batch was cut short: the test proves nothing"
