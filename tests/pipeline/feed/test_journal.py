"""A feed on disk: what was committed is read back exactly, by anyone, or an error says why not."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, Unavailable
from holdfast.journal import Corrupt, NotAccepted, Refusal
from holdfast.pipeline.feed.bodies import MARK
from holdfast.pipeline.feed.consumers import CONSUMERS_MAX
from holdfast.pipeline.feed.errors import Beyond, Gone
from holdfast.pipeline.feed.head import read_head
from holdfast.pipeline.feed.journal import FeedReader, FeedWriter
from holdfast.pipeline.feed.place import open_feed
from holdfast.pipeline.records import RECORD
from pipeline.feed.batches import batch, numbers_of

SMALL_BYTES = 2**20
H_NS = 3600 * 10**9


def written(directory: Path, *sizes: int, bytes_max: int = SMALL_BYTES, payload_bytes: int = 8) -> FeedWriter:
    writer = FeedWriter.open(directory, bytes_max=bytes_max)
    for size in sizes:
        writer.append(batch(range(writer.end, writer.end + size), payload_bytes=payload_bytes))
        writer.commit()
    return writer


def fill(writer: FeedWriter) -> None:
    for _ in range(1000):
        writer.append(batch(range(writer.end, writer.end + 100), payload_bytes=200))
        writer.commit()


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "journal").glob("*.journal"))


def test_what_was_committed_is_read_back_in_any_range(tmp_path: Path) -> None:
    writer = written(tmp_path, 3, 1, 500, 2)
    reader = FeedReader(tmp_path)
    assert (reader.first, reader.head) == (0, 506)
    for start, end in ((0, 506), (0, 1), (2, 5), (4, 504), (505, 506), (7, 7)):
        found = list(reader.read(start, end))
        assert numbers_of(found) == list(range(start, end))
        assert all(each.schema == RECORD for each in found)
        assert [each.as_py() for part in found for each in part.column("offset")] == list(range(start, end))
    assert pa.Table.from_batches(reader.read(3, 4)).to_pylist() == [
        {
            "offset": 3,
            "topic": "plant/a",
            "payload": b".......3",
            "publisher": "p.1",
            "sequence": 3,
            "created_ns": 30,
            "arrived_ns": 35,
        }
    ]
    writer.close()


def test_nothing_is_seen_before_it_is_committed(tmp_path: Path) -> None:
    writer = written(tmp_path, 3)
    reader = FeedReader(tmp_path)
    assert writer.append(batch(range(3, 5))) == (3, 5)
    assert (writer.head, writer.end, reader.head) == (3, 5, 3)
    with pytest.raises(Beyond, match="ends at offset 3: 5 was never reached"):
        list(reader.read(0, 5))
    assert writer.commit() == 5
    assert numbers_of(list(reader.read(2, 5))) == [2, 3, 4]
    writer.close()


def test_a_feed_that_nobody_recorded_is_empty(tmp_path: Path) -> None:
    reader = open_feed(tmp_path, "positions")
    assert (reader.first, reader.head, list(reader.read(0, 0))) == (0, 0, [])
    with pytest.raises(Beyond):
        list(reader.read(0, 1))
    with pytest.raises(Unavailable, match="no data folder"):
        open_feed(tmp_path / "nowhere", "positions")
    FeedWriter.open(tmp_path / "feeds" / "positions").close()
    assert (reader.first, reader.head) == (0, 0)


def test_offsets_go_on_after_reopening_and_head_is_repaired(tmp_path: Path) -> None:
    written(tmp_path, 3).close()
    (tmp_path / "HEAD").write_bytes(b"damaged")
    with pytest.raises(Unavailable, match="Start `holdfast record`"):
        _ = FeedReader(tmp_path).head
    writer = FeedWriter.open(tmp_path)
    assert writer.append(batch(range(3, 4))) == (3, 4)
    writer.commit()
    assert numbers_of(list(FeedReader(tmp_path).read(0, 4))) == [0, 1, 2, 3]
    writer.close()


def test_two_writers_never_share_a_feed(tmp_path: Path) -> None:
    writer = written(tmp_path, 1)
    with pytest.raises(Unavailable, match="in use by process"):
        FeedWriter.open(tmp_path)
    writer.close()


def test_ranges_are_cut_between_batches_and_never_too_long(tmp_path: Path) -> None:
    written(tmp_path, 10, 10, 3, 40).close()
    reader = FeedReader(tmp_path)
    assert reader.cut(0, 63, 25) == [(0, 23), (23, 48), (48, 63)]
    assert reader.cut(5, 22, 10) == [(5, 10), (10, 20), (20, 22)]
    assert reader.cut(0, 63, 1000) == [(0, 63)]
    assert reader.cut(4, 4, 10) == []


def test_a_batch_longer_than_a_segment_is_several(tmp_path: Path) -> None:
    writer = written(tmp_path, 3000, payload_bytes=200)
    assert len(segments(tmp_path)) > 1
    assert numbers_of(list(FeedReader(tmp_path).read(0, 3000))) == list(range(3000))
    with pytest.raises(NotAccepted, match="longer than") as refused:
        writer.append(batch(range(1), payload_bytes=SMALL_BYTES))
    assert refused.value.reason is Refusal.TOO_LONG
    assert writer.append(batch(range(3000, 3001))) == (3000, 3001)
    writer.close()


def test_only_the_columns_of_a_record_are_taken(tmp_path: Path) -> None:
    writer = written(tmp_path, 1)
    good = batch(range(1))
    with pytest.raises(ValueError, match=r"column arrived_ns: .* found nothing"):
        writer.append(good.drop_columns(["arrived_ns"]))
    with pytest.raises(ValueError, match=r"column topic: .* found string with 1 nulls"):
        writer.append(good.set_column(0, "topic", pa.array([None], pa.string())))
    assert writer.append(good.slice(0, 0)) == (1, 1)
    writer.close()


def test_a_damaged_segment_is_named_with_the_byte(tmp_path: Path) -> None:
    written(tmp_path, 50, 50, 50).close()
    (path,) = segments(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.index(b"......70")
    data[at] ^= 1
    path.write_bytes(data)
    reader = FeedReader(tmp_path)
    assert numbers_of(list(reader.read(0, 50))) == list(range(50))
    assert numbers_of(list(reader.read(100, 150))) == list(range(100, 150))
    with pytest.raises(Corrupt, match=r"checksum of a record is wrong.*Restore the file") as damage:
        list(reader.read(0, 150))
    assert damage.value.file == str(path)
    assert 0 < damage.value.offset < at
    path.unlink()
    with pytest.raises(Corrupt, match="is missing"):
        list(FeedReader(tmp_path).read(0, 1))


def test_segments_go_when_every_consumer_has_passed_them_and_they_are_old(tmp_path: Path) -> None:
    writer = written(tmp_path, *[100] * 30, payload_bytes=200)
    reader = FeedReader(tmp_path)
    before = len(segments(tmp_path))
    assert before > 4
    now_ns = time.time_ns()
    reader.commit("slow", 1000)
    reader.commit("quick", 3000)
    assert writer.prune(H_NS, now_ns) == 0, "they are not old"
    removed = writer.prune(0, now_ns + H_NS)
    assert removed > 0
    assert len(segments(tmp_path)) == before - removed
    assert 0 < reader.first <= 1000
    assert numbers_of(list(reader.read(1000, 3000))) == list(range(1000, 3000))
    with pytest.raises(Gone, match=f"begins at offset {reader.first}"):
        list(reader.read(0, 1000))
    reader.commit("slow", 10)
    reader.commit("slow", 3000)
    writer.prune(0, now_ns + H_NS)
    first = reader.first
    assert 1000 < first < 3000
    assert numbers_of(list(FeedReader(tmp_path).read(first, 3000))) == list(range(first, 3000))
    writer.close()
    reopened = FeedWriter.open(tmp_path, bytes_max=SMALL_BYTES)
    assert (reopened.head, reader.first) == (3000, first)
    reopened.close()


def test_a_full_feed_refuses_and_goes_on_when_it_was_pruned(tmp_path: Path) -> None:
    writer = written(tmp_path)
    reader = FeedReader(tmp_path)
    reader.commit("slow", 0)
    with pytest.raises(NotAccepted) as full:
        fill(writer)
    assert full.value.reason is Refusal.FULL
    head = reader.head
    assert (writer.head, writer.end) == (head, head)
    assert writer.prune(0, time.time_ns() + H_NS) == 0
    reader.commit("slow", head)
    assert writer.prune(0, time.time_ns() + H_NS) > 0
    assert writer.append(batch(range(head, head + 1))) == (head, head + 1)
    writer.close()
    assert numbers_of(list(reader.read(head, head + 1))) == [head]


def test_marks_are_recalled_with_what_followed_them(tmp_path: Path) -> None:
    writer = FeedWriter.open(tmp_path, bytes_max=SMALL_BYTES, marked=True)
    marks = [{"topic": f"t/{n}" + "x" * 100, "publisher": "p.1", "sequence": n} for n in range(2000)]
    writer.append(batch(range(5)))
    writer.append_marks([pa.RecordBatch.from_pylist(marks, schema=MARK)])
    writer.append(batch(range(5, 7)))
    writer.close()
    for _ in range(2):
        again = FeedWriter.open(tmp_path, bytes_max=SMALL_BYTES, marked=True)
        recalled = list(again.recall())
        found = [row for each in recalled if each.schema == MARK for row in each.to_pylist()]
        assert found == marks
        assert numbers_of([each for each in recalled if each.schema == RECORD]) == [5, 6]
        again.close()


def sequences(recalled: list[pa.RecordBatch]) -> set[int]:
    return {row["sequence"] for each in recalled if each.schema == MARK for row in each.to_pylist()}


def test_no_segment_goes_before_marks_say_what_it_held(tmp_path: Path) -> None:
    writer = FeedWriter.open(tmp_path, bytes_max=SMALL_BYTES, marked=True)
    for _ in range(20):
        writer.append(batch(range(writer.end, writer.end + 100), payload_bytes=200))
        writer.commit()
    assert writer.marks_due
    later_ns = time.time_ns() + H_NS
    assert writer.prune(0, later_ns) == 0
    mark = pa.RecordBatch.from_pylist([{"topic": "t", "publisher": "p", "sequence": 7}], schema=MARK)
    writer.append_marks([mark])
    assert not writer.marks_due
    writer.commit()
    assert writer.prune(0, later_ns) > 0
    writer.append(batch(range(2000, 2001)))
    writer.close()
    again = FeedWriter.open(tmp_path, bytes_max=SMALL_BYTES, marked=True)
    recalled = list(again.recall())
    assert sequences(recalled) == {7}
    assert numbers_of([each for each in recalled if each.schema == RECORD]) == [2000]
    again.close()


def test_marks_that_a_crash_left_half_written_never_count(tmp_path: Path) -> None:
    def marks(sequence: int) -> pa.RecordBatch:
        rows = [{"topic": "x" * 100, "publisher": "p", "sequence": sequence} for _ in range(3000)]
        return pa.RecordBatch.from_pylist(rows, schema=MARK)

    writer = FeedWriter.open(tmp_path, bytes_max=SMALL_BYTES, marked=True)
    writer.append_marks([marks(1)])
    writer.append(batch(range(5)))
    writer.commit()
    writer.append_marks([marks(2)])
    journal = writer._journal
    first, *_ = journal.take() or []
    opening, part, *_ = first.parts
    assert not first.rotates or len(segments(tmp_path)) == len(journal.segments)
    with segments(tmp_path)[-1].open("ab") as file:
        file.write(opening + part)
    assert journal._file is not None
    journal._file.close()
    journal._file = None
    journal.disk.unlock()
    for more in range(5, 8):
        again = FeedWriter.open(tmp_path, bytes_max=SMALL_BYTES, marked=True)
        recalled = list(again.recall())
        assert sequences(recalled) == {1}
        assert numbers_of([each for each in recalled if each.schema == RECORD]) == list(range(more))
        again.append(batch(range(more, more + 1)))
        again.close()


def test_marks_of_consumers_are_bounded_and_checked(tmp_path: Path) -> None:
    written(tmp_path, 5).close()
    reader = FeedReader(tmp_path)
    with pytest.raises(Beyond):
        reader.commit("ingestion", 6)
    with pytest.raises(ConfigError, match="expected letters"):
        reader.commit("../up", 1)
    for number in range(CONSUMERS_MAX):
        reader.commit(f"c{number}", 1)
    with pytest.raises(Unavailable, match="remove the files"):
        reader.commit("one-more", 1)
    reader.commit("c0", 2)
    assert (tmp_path / "consumers" / "c0").read_bytes() == b"2\n"
    (tmp_path / "consumers" / "c1").write_bytes(b"what?")
    writer = FeedWriter.open(tmp_path)
    assert writer.consumers.marks()["c1"] == 0
    writer.close()


def test_head_is_never_ahead_of_what_a_copy_of_the_files_holds(tmp_path: Path) -> None:
    """HEAD is copied first: whatever it shows must be in a copy of the segments that was made after it."""
    writer = written(tmp_path / "feed", 10)
    for _ in range(5):
        head = read_head(tmp_path / "feed")
        assert head is not None
        path = tmp_path / "feed" / "journal" / f"{head.segment:020d}.journal"
        assert os.path.getsize(path) >= head.size
        writer.append(batch(range(writer.end, writer.end + 10)))
        writer.commit()
    writer.close()
