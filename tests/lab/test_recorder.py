"""What the recorder gives out is what it was told, row by row, whatever the size of its blocks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint.bench import A, Bench, view
from holdfast.endpoint.inbox import Inbox
from holdfast.endpoint.messages import Message
from holdfast.lab.load import files
from holdfast.lab.load.files import Files, schema_of, table_of
from holdfast.lab.load.recorder import Block, Received, Sent
from holdfast.lab.store import RECEIVED, SENT
from holdfast.mqtt.codec import encode
from holdfast.mqtt.conventions import Stamp, format_stamp
from holdfast.mqtt.packets import Properties, Puback, Publish

NS = st.integers(0, 2**62)
BATCHES = st.lists(st.tuples(st.integers(0, 2**31 - 100), st.integers(0, 20), NS, NS), max_size=30)
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.integers(1, 9), st.integers(0, 2**59), NS, st.booleans()),
    max_size=60,
)
BLOCK_ROWS = st.integers(1, 9)


def rows_of(blocks: list[Block], columns: dict[str, str]) -> list[tuple[object, ...]]:
    tables = [table_of(block, schema_of(columns)) for block in blocks]
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


class Acks:
    def __init__(self) -> None:
        self.data = b""

    def acknowledge(self, packet_id: int) -> None:
        raise AssertionError("a sink's messages are acknowledged together")

    def acknowledge_taken(self, packets: bytes) -> None:
        self.data += packets


@given(BATCHES, BLOCK_ROWS)
def test_sent_rows_are_those_of_a_list(batches: list[tuple[int, int, int, int]], block_rows: int) -> None:
    sent = Sent(block_rows)
    model = []
    for first, count, sequence, created_ns in batches:
        sent.record(first, count, sequence, created_ns)
        model += [(first + place, sequence, created_ns) for place in range(count)]
    assert sent.columns.rows == len(model)
    blocks = sent.columns.take()
    assert rows_of(blocks, SENT) == model
    assert all(block.rows == block_rows for block in blocks[:-1])
    assert sent.columns.take() == []


@given(ARRIVALS, BLOCK_ROWS, st.integers(0, 60))
def test_poured_rows_are_those_of_a_list_and_duplicates_are_told(
    arrivals: list[tuple[int, int, int, int, bool]], block_rows: int, taken_early: int
) -> None:
    received, inbox, acks = Received(block_rows), Inbox(4, 1000), Acks()
    inbox.pour(received, None)
    model, newest, rows = [], {}, []
    for number, (topic, sequence, created_ns, arrived_ns, qos) in enumerate(arrivals, start=1):
        payload = topic.to_bytes(4, "big") + b"rest"
        stamp = Properties(user=[format_stamp(created_ns, sequence, "p.1")])
        data = encode(
            Publish(f"t/{topic}", payload, int(qos), packet_id=number if qos else 0, properties=stamp), 5
        )
        assert inbox.scan(data, 0, arrived_ns, acks, {}, set(), 10, 1 << 20) == len(data)
        duplicate = sequence <= newest.get(topic, 0)
        newest[topic] = max(sequence, newest.get(topic, 0))
        model.append((topic, sequence, created_ns, arrived_ns, duplicate))
        if number == taken_early:
            rows += rows_of(received.columns.take_full(), RECEIVED)
    assert rows + rows_of(received.columns.take(), RECEIVED) == model
    assert received.duplicates == sum(row[4] for row in model)
    asked = [number for number, row in enumerate(arrivals, start=1) if row[4]]
    assert acks.data == b"".join(encode(Puback(number), 5) for number in asked)
    assert len(inbox) == 0


def test_messages_that_were_taken_are_written_down_and_those_without_number_or_stamp_counted() -> None:
    received = Received()
    stamp = Stamp(11, 22, "p")
    received.record(
        [
            Message("a", b"\0\0\1\2rest", 0, False, False, None, 33, stamp),
            Message("a", b"\0\0\1", 0, False, False, None, 33, stamp),
            Message("a", b"\0\0\1\2", 0, False, False, None, 33, None),
        ]
    )
    assert rows_of(received.columns.take(), RECEIVED) == [(258, 22, 11, 33, False)]
    assert received.unknown == 2


def test_a_client_that_pours_still_queues_what_no_sink_may_have() -> None:
    bench = Bench(A)
    bench.admit(A, view(1, "a", "a"))
    received = Received()
    bench.endpoint.pour(received)
    stamp = Properties(user=[format_stamp(5, 1, "p.1")])
    bench.say(
        A,
        Publish("t", b"\0\0\0\7", 1, packet_id=3, properties=stamp),
        Publish("t", b"old", retain=True, properties=stamp),
        Publish("t", b"plain"),
    )
    assert [message.payload for message in bench.endpoint.take_messages()] == [b"old", b"plain"]
    assert bench.sent(A) == [Puback(3)]
    assert rows_of(received.columns.take(), RECEIVED) == [(7, 1, 5, bench.wall_ns, False)]


def test_files_hold_all_rows_whether_they_spill_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCKS_HELD_MAX", 2)
    sent = Sent(block_rows=4)
    out = Files(tmp_path / "sent", "p", SENT, sent.columns)
    for number in range(9):
        sent.record(10 * number, 3, number, number)
        asyncio.run(out.spill())
    out.finish()
    assert len(list((tmp_path / "sent").iterdir())) > 1
    found = sorted(tuple(row.values()) for row in pq.read_table(tmp_path / "sent").to_pylist())
    assert found == [(10 * number + place, number, number) for number in range(9) for place in range(3)]


def test_a_process_that_saw_nothing_leaves_a_file_with_the_columns(tmp_path: Path) -> None:
    Files(tmp_path, "s", RECEIVED, Received().columns).finish()
    table = pq.read_table(tmp_path / "s-0.parquet")
    assert table.num_rows == 0
    assert table.schema == schema_of(RECEIVED)
