"""Any mix of appends, commits, marks, prunes, clean ends and crashes in the middle of a write.

What was durable is read back exactly, under its offsets; what survives besides is a prefix of what was
appended; HEAD is never ahead of the disk and never behind after opening.
"""

import shutil
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.journal import NotAccepted
from holdfast.journal.format import segment_name
from holdfast.pipeline.feed.bodies import MARK
from holdfast.pipeline.feed.journal import FeedReader, FeedWriter
from pipeline.feed.batches import batch, numbers_of

BYTES_MAX = 2**19
LATER_NS = 10**15


def marks_batch(number: int) -> pa.RecordBatch:
    rows = [{"topic": f"t/{each}" + "x" * 50, "publisher": "p", "sequence": number} for each in range(700)]
    return pa.RecordBatch.from_pylist(rows, schema=MARK)


class Machine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="feed-"))
        self.feed = self.directory / "feed"
        self.durable = 0
        self.ends = [0]
        self.needed = 0
        self.marked = -1
        self.writer = FeedWriter.open(self.feed, bytes_max=BYTES_MAX, marked=True)
        self.reader = FeedReader(self.feed)

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
            shutil.rmtree(self.directory)

    @rule(rows=st.integers(0, 60), payload_bytes=st.sampled_from([8, 100, 1500]))
    def append(self, rows: int, payload_bytes: int) -> None:
        first = self.writer.end
        try:
            given = self.writer.append(batch(range(first, first + rows), payload_bytes=payload_bytes))
        except NotAccepted:
            assert self.writer.end == first
            return
        assert given == (first, first + rows)
        self.ends.append(first + rows)

    @rule()
    def commit(self) -> None:
        assert self.writer.commit() == self.ends[-1]
        self.durable = self.ends[-1]

    @rule()
    def mark(self) -> None:
        try:
            self.writer.append_marks([marks_batch(self.writer.end)])
        except NotAccepted:
            return
        self.marked = self.writer.end

    @rule()
    def reopen(self) -> None:
        self.writer.close()
        self.durable = self.ends[-1]
        self._open()
        assert self.writer.head == self.durable

    @rule(written=st.floats(0, 1), head_is_old=st.booleans(), spoilt=st.booleans())
    def crash(self, written: float, head_is_old: bool, spoilt: bool) -> None:
        """The group that is being written is on disk in part, and HEAD perhaps as it was before the last."""
        head_before = (self.feed / "HEAD").read_bytes()
        journal = self.writer._journal
        if head_is_old:
            self.commit()
        else:
            for run in journal.take() or []:
                if run.rotates:
                    break
                data = b"".join(run.parts)
                torn = bytearray(data[: int(len(data) * written)])
                if spoilt and torn:
                    torn[len(torn) // 2 :] = bytes(len(torn) - len(torn) // 2)
                with (self.feed / "journal" / segment_name(journal.segments[-1].first)).open("ab") as file:
                    file.write(torn)
                if len(torn) < len(data) or spoilt:
                    break
        (self.feed / "HEAD").write_bytes(head_before)
        assert journal._file is not None
        journal._file.close()
        journal.disk.unlock()
        journal._file = None
        self._open()

    def _open(self) -> None:
        self.writer = FeedWriter.open(self.feed, bytes_max=BYTES_MAX, marked=True)
        assert self.durable <= self.writer.head <= self.ends[-1]
        # A batch that did not fit into one record may survive in part.
        self.durable = self.writer.head
        self.ends = [self.durable]
        recalled = list(self.writer.recall())
        told = {row["sequence"] for each in recalled if each.schema == MARK for row in each.to_pylist()}
        rows = [row for each in recalled if each.schema != MARK for row in numbers_of([each])]
        begun = max(told, default=0)
        assert len(told) <= 1, "of one time only"
        assert rows == list(range(begun, self.durable)), "all that followed the marks"

    @rule(share=st.floats(0, 1))
    def consume(self, share: float) -> None:
        self.needed = max(self.needed, int(self.durable * share))
        self.reader.commit("one", self.needed)

    @rule(marks_last=st.booleans())
    def fill_and_prune(self, marks_last: bool) -> None:
        """Several segments that nobody needs any more."""
        for _ in range(2):
            self.append(60, 1500)
        if marks_last:
            self.mark()
        self.commit()
        self.consume(1.0)
        self.prune()

    @rule()
    def prune(self) -> None:
        self.reader.commit("one", self.needed)
        self.writer.prune(0, time.time_ns() + LATER_NS)

    @invariant()
    def everything_durable_is_read_back(self) -> None:
        if not hasattr(self, "writer"):
            return
        first, head = self.reader.first, self.reader.head
        assert head == self.durable == self.writer.head
        assert first <= max(self.needed, 0)
        assert numbers_of(list(self.reader.read(first, head))) == list(range(first, head))

    @rule(low=st.floats(0, 1), high=st.floats(0, 1), records_max=st.integers(1, 50))
    def read(self, low: float, high: float, records_max: int) -> None:
        first, head = self.reader.first, self.reader.head
        start, end = sorted(first + int((head - first) * share) for share in (low, high))
        ranges = self.reader.cut(start, end, records_max)
        assert [low for low, _ in ranges] == [start, *(high for _, high in ranges)][: len(ranges)]
        assert (ranges[-1][1] if ranges else start) == end
        assert all(0 < high - low <= records_max for low, high in ranges)
        for low_offset, high_offset in ranges:
            found = numbers_of(list(FeedReader(self.feed).read(low_offset, high_offset)))
            assert found == list(range(low_offset, high_offset))


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
