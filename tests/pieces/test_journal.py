"""A journal in files of a bounded size, read in blocks: any records, any size, all come back in order."""

from __future__ import annotations

from array import array
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple
from tests.pieces.pairs import retained, session, state_of
from tests.pieces.sizes import any_size, sizes_around

from holdfast.broker.broker import Broker
from holdfast.contract.model import ContractBook
from holdfast.journal import Bounds, Journal
from holdfast.journal.format import HEADER_BYTES, RECORD_BYTES
from holdfast.journal.memory import MemoryDisk
from holdfast.journal.reading import BLOCK_BYTES, SegmentFile
from holdfast.replication.increments import StateLog, apply
from holdfast.replication.keeping import SNAPSHOT_PIECE, Health, keep_alone
from holdfast.replication.memory import (
    ANNOUNCED,
    FLIGHTS_PIECE,
    OPEN,
    Kind,
    Marks,
    Message,
    Recollection,
    state_entries,
    threes,
)

BOUNDS = Bounds(segment_bytes=4096, bytes_max=400_000, waiting_bytes_max=200_000)
LONGEST = BOUNDS.body_bytes_max


@given(
    lengths=st.lists(
        st.one_of(
            st.integers(0, 300), st.sampled_from([LONGEST - 1, LONGEST, LONGEST // 2, LONGEST // 2 + 1])
        ),
        max_size=60,
    ),
    commit_every=st.integers(1, 20),
    start=st.integers(1, 70),
)
@settings(max_examples=60, deadline=None)
def test_records_over_any_number_of_files_come_back_in_order(
    lengths: list[int], commit_every: int, start: int
) -> None:
    disk = MemoryDisk(Random(1))
    journal = Journal(disk, BOUNDS)
    bodies = [bytes([number % 251]) * length for number, length in enumerate(lengths)]
    for number, body in enumerate(bodies, 1):
        assert journal.append(1 + number % 2, body) == number
        if number % commit_every == 0:
            journal.commit()
    journal.commit()
    journal.close()
    for _ in range(2):
        each = Journal(disk, BOUNDS)
        assert [(record.number, record.body) for record in each.replay()] == list(enumerate(bodies, 1))
        if start <= len(bodies):
            assert [record.body for record in each.replay(start)] == bodies[start - 1 :]
        odd = [body for number, body in enumerate(bodies, 1) if number % 2]
        assert [record.body for record in each.replay(None, (2,))] == odd
        bodies.append(bytes(LONGEST))
        each.append(1 + len(bodies) % 2, bodies[-1])
        each.close()


@pytest.mark.parametrize(
    "length", [*sizes_around(BLOCK_BYTES), *range(BLOCK_BYTES - 4 * RECORD_BYTES - 40, BLOCK_BYTES, 7)]
)
@pytest.mark.parametrize("lead_bytes", [0, 16])
def test_records_of_any_length_are_found_by_blocks(tmp_path: Path, length: int, lead_bytes: int) -> None:
    journal = Journal.open(tmp_path)
    bodies = [bytes([number]) * size for number, size in enumerate([length, 20, length, 0, 30, length])]
    for body in bodies:
        journal.append(1, body)
    journal.commit()
    (segment,) = journal.segments
    with SegmentFile(next(path for path in tmp_path.iterdir() if path.stat().st_size > HEADER_BYTES)) as file:
        places = list(file.walk(HEADER_BYTES, 1, segment.size, lead_bytes))
        assert [file.body(place.head, place.body_at) for place in places] == bodies
        assert [place.lead for place in places] == [body[:lead_bytes] for body in bodies]
    journal.close()


@given(
    size=any_size(SNAPSHOT_PIECE), large=st.integers(0, 5), undone=st.sampled_from([0, 1, 99, 100, 101, 201])
)
@settings(max_examples=25, deadline=None)
def test_a_snapshot_in_pieces_makes_the_next_broker_the_same(size: int, large: int, undone: int) -> None:
    records: list[tuple[int, int, bytes]] = []

    def read(start: int | None, kinds: object) -> list[tuple[int, int, bytes]]:
        wanted = kinds if isinstance(kinds, tuple) else None
        return [each for each in records if each[0] >= (start or 0) and (wanted is None or each[1] in wanted)]

    first = Broker(ContractBook(), policy="edf", seed=1, now_ns=0, event=lambda *_: None)
    keeping = keep_alone(first, read, "d", 0)  # type: ignore[arg-type]
    for number in range(size):
        apply(first, session(number), 0)
    for number in range(large):
        apply(first, retained(number, bytes(70_000)), 0)
    messages = {each: Message(each, 0, 1, 0, 1, b"t", b"", b"%d" % each) for each in range(1, undone + 1)}
    keeping.undone.update({each: astuple(message) for each, message in messages.items()})
    while keeping.waiting:
        for entry in keeping.take():
            records.append((len(records) + 1, entry.kind, entry.body))
            keeping.accepted(entry, len(records))
    second = Broker(ContractBook(), policy="edf", seed=2, now_ns=0, event=lambda *_: None)
    recollection = Recollection(second, StateLog(0, 0), 0)
    recollection.replay(read)  # type: ignore[arg-type]
    assert recollection.undone == messages
    assert state_of(second) == state_of(first)
    assert len(state_of(second)) == size + large
    assert keeping.health is Health.KEEPING


@given(size=any_size(100), length=st.sampled_from([1, 30_000, 65_536]))
@settings(max_examples=25, deadline=None)
def test_increments_of_a_journal_are_numbered_without_gaps(size: int, length: int) -> None:
    told = [retained(number, bytes(length if number % 30 == 0 else 1)) for number in range(size)]
    records = [(number, entry.kind, entry.body) for number, entry in enumerate(state_entries(0, 0, told), 1)]
    broker = Broker(ContractBook(), policy="edf", seed=2, now_ns=0, event=lambda *_: None)
    recollection = Recollection(broker, StateLog(0, 0), 0)
    for _, kind, body in records:
        recollection._take(False, kind, body)
    assert recollection._number == size
    assert not recollection._lost
    assert len(state_of(broker)) == size


@given(sizes=st.lists(any_size(FLIGHTS_PIECE), max_size=4))
@settings(max_examples=25, deadline=None)
def test_exchanges_under_way_are_all_in_a_snapshot(sizes: list[int]) -> None:
    told = [
        each
        for serial, size in enumerate(sizes, 1)
        for packet_id in range(1, size + 1)
        for each in (100_000 * serial + packet_id, serial, packet_id)
    ]
    marks, recalled = Marks(), Marks()
    marks.add_flights(told)
    marks.add_flights(
        [each for serial, size in enumerate(sizes, 1) for each in (ANNOUNCED | size, serial, 1)]
    )
    for _, serial, packet_id in threes(told):
        marks.add_received((serial, packet_id | OPEN))
    for piece in marks.exchange_entries():
        for entry in piece:
            add = recalled.add_flights if entry.kind is Kind.FLIGHTS else recalled.add_received
            add(array("Q", entry.body))
    assert recalled.flights == marks.flights
    assert recalled.given == marks.given
    assert recalled.received == marks.received
    assert sum(map(len, recalled.flights.values())) == sum(sizes)
    assert sum(map(len, recalled.received.values())) == sum(sizes)
