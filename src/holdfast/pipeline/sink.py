"""Rows of Spark as messages: each is published once, as far as our subscribers and recorders see.

Laws:
- a row has the same publisher and number whenever Spark publishes it again: `~NAME.JOB.PARTITION`, and its
  batch and place in the partition; who has seen the number knows the message for a repetition
- JOB is the query of a stream, which its checkpoint keeps, or one write of a batch: no two share numbers
- after a shuffle the rows of a partition have no order, so places are found by sorting: by `sequence`, if
  there is such a column, then by what the message is; only rows that are equal may change places
- a task is done when the brokers have acknowledged all its messages, and fails when none answers for long
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.client import connect
from holdfast.endpoint import Outgoing
from holdfast.errors import ConfigError, Problem, Refused, Unavailable
from holdfast.mqtt.conventions import format_stamp
from holdfast.mqtt.packets import Properties
from holdfast.pipeline.format import COLUMNS, Publishing

ROWS_BITS = 32
BATCHES_MAX = 2**31
PARTITION_BYTES_MAX = 2**30
TOKEN_BYTES = 4
QUERY_CHARS = 8
BROKERS_S_MAX = 30.0
MESSAGES_AT_ONCE = 1000

# As MicroBatchExecution and StreamExecution of Spark name them.
BATCH_PROPERTY = "streaming.sql.batchId"
QUERY_PROPERTY = "sql.streaming.queryId"


@dataclass
class Published(WriterCommitMessage):
    messages: int


class Publisher(DataSourceArrowWriter):
    """`df.write`: each write is a publisher of its own."""

    def __init__(self, publishing: Publishing) -> None:
        self.publishing = publishing
        self.job = secrets.token_hex(TOKEN_BYTES)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return _publish(self.publishing, self.job, 0, iterator)


class StreamPublisher(DataSourceStreamArrowWriter):
    """`df.writeStream`: a batch that is done again after a crash has the same numbers again."""

    def __init__(self, publishing: Publishing) -> None:
        self.publishing = publishing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        task = TaskContext.get()
        query = task and task.getLocalProperty(QUERY_PROPERTY)
        batch = task and task.getLocalProperty(BATCH_PROPERTY)
        if not query or not batch:
            raise Unavailable(
                "Spark does not tell which batch of which query this is, and without that a repetition "
                "cannot be told: use PySpark 4.2 or newer"
            )
        return _publish(self.publishing, query.replace("-", "")[:QUERY_CHARS], int(batch), iterator)


def _publish(publishing: Publishing, job: str, batch: int, iterator: Iterator[pa.RecordBatch]) -> Published:
    task = TaskContext.get()
    assert task is not None, "rows are published by tasks"
    assert 0 <= batch < BATCHES_MAX
    rows = in_order(_gather(iterator))
    if rows.num_rows:
        publisher = f"~{publishing.name}.{job}.{task.partitionId()}"
        asyncio.run(_send(publishing, publisher, batch << ROWS_BITS, rows))
    return Published(rows.num_rows)


def _gather(iterator: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    gathered = []
    size = 0
    for batch in iterator:
        size += batch.nbytes
        if size > PARTITION_BYTES_MAX:
            raise Unavailable(
                f"a partition has more than {PARTITION_BYTES_MAX:,} bytes to publish: repartition the rows "
                "into more, or take fewer in a trigger"
            )
        gathered.append(batch)
    return gathered


def in_order(batches: list[pa.RecordBatch]) -> pa.Table:
    """The rows in the one order that follows from what they are."""
    if not batches:
        return pa.table({})
    table = pa.Table.from_batches(batches).combine_chunks()
    if "retain" in table.column_names:
        place = table.column_names.index("retain")
        table = table.set_column(place, "retain", table.column(place).cast(pa.int8()))
    keys = dict.fromkeys(("sequence", *COLUMNS))
    present = [(name, "ascending") for name in keys if name in table.column_names]
    return table.take(pc.sort_indices(table, sort_keys=present))


def messages(rows: pa.Table, publisher: str, first: int, qos: int, created_ns: int) -> Iterator[Outgoing]:
    """The rows with their stamps; ConfigError says what is no message, and in which row."""
    named = {name: rows.column(name) for name in rows.column_names}
    for name in ("topic", "payload"):
        if named[name].null_count:
            at = pc.index(pc.is_null(named[name]), True).as_py()
            other = {key: str(column[at].as_py())[:80] for key, column in named.items() if key != name}
            raise ConfigError("rows to publish", [Problem(name, f"is null in the row with {other}")])
    topics = named["topic"].to_pylist()
    payloads = named["payload"].cast(pa.binary()).to_pylist()
    size = len(topics)
    levels = named["qos"].to_pylist() if "qos" in named else [None] * size
    retains = named["retain"].to_pylist() if "retain" in named else [None] * size
    for place, (topic, payload, level, retain) in enumerate(
        zip(topics, payloads, levels, retains, strict=True)
    ):
        if level not in (None, 0, 1, 2):
            raise ConfigError(
                "rows to publish", [Problem("qos", f"is {level} for {topic}; expected 0, 1 or 2")]
            )
        yield Outgoing(
            topic,
            payload,
            qos if level is None else level,
            bool(retain),
            Properties(user=[format_stamp(created_ns, first + place, publisher)]),
        )


async def _send(publishing: Publishing, publisher: str, first: int, rows: pa.Table) -> None:
    try:
        client = await connect(
            publishing.brokers,
            username=publishing.login.username,
            password=publishing.login.password(),
            tls=publishing.login.context(),
            outage_s_max=BROKERS_S_MAX,
            answer_s_max=BROKERS_S_MAX,
        )
        async with client:
            made = messages(rows, publisher, first, publishing.qos, time.time_ns())
            waiting: list[Outgoing] = []
            for message in made:
                waiting.append(message)
                if len(waiting) == MESSAGES_AT_ONCE:
                    await client.publish_many(waiting, stamp=False)
                    waiting = []
            await client.publish_many(waiting, stamp=False)
    except (Unavailable, Refused) as error:
        raise Unavailable(
            f"{rows.num_rows} rows of {publisher} were not all published to {publishing.brokers}: {error} "
            "Publishing them again is safe: what arrived before is recognised."
        ) from error
