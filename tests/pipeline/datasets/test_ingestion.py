"""Records of a feed become rows: each once, in the kind of dataset that was declared, at every version."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import ConfigError, Unavailable
from holdfast.pipeline.datasets import tending
from holdfast.pipeline.datasets.manifest import ManifestDamaged
from holdfast.pipeline.feed.journal import FeedReader
from holdfast.units import H, S

from .recorded import NOW_NS, PIPELINE, Recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def recorded(tmp_path: Path, spark: SparkSession) -> Iterator[Recorded]:
    made = Recorded(tmp_path / "data", spark)
    yield made
    made.close()


def fix(user: object, n: object, **more: object) -> dict[str, object]:
    return {"user": user, "lat": 1.5, "n": n, **more}


def state(rows: list[dict[str, Any]]) -> dict[str, int]:
    found = {row["user"]: row["n"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def test_a_row_has_what_was_declared_and_where_it_comes_from(recorded: Recorded) -> None:
    recorded.put([fix("ann", 1, other="passed over"), {"user": "bob"}])
    assert recorded.ingestion.step() == 2
    ann, bob = recorded.rows("track")
    at = {"_topic": "positions/a", "_offset": 0}
    assert {key: value for key, value in ann.items() if key not in ("_created", "_arrived")} == {
        **fix("ann", 1),
        **at,
    }
    assert ann["_arrived"].timestamp() == NOW_NS / S
    assert ann["_created"].timestamp() == (NOW_NS - 1_000_000) / S
    assert (bob["lat"], bob["n"], bob["_offset"]) == (None, None, 1)
    assert recorded.datasets.schema("track").names == [
        "user",
        "lat",
        "n",
        "_topic",
        "_created",
        "_arrived",
        "_offset",
    ]
    assert recorded.ingestion.step() == 0
    assert recorded.manifest.version == 1


def test_what_does_not_fit_goes_to_the_quarantine_and_the_rest_goes_on(recorded: Recorded) -> None:
    payloads = [
        b"{",
        fix("ann", 1),
        fix(None, 2),
        {"lat": 1.0},
        fix("bob", "3"),
        b"",
        fix("ann", 4),
        b"x" * 70_000,
    ]
    recorded.put(payloads)
    assert recorded.ingestion.step() == len(payloads)
    assert [row["n"] for row in recorded.rows("track")] == [1, 4]
    assert state(recorded.rows("position")) == {"ann": 4}
    found = recorded.rows("quarantine")
    track = [row for row in found if row["dataset"] == "track"]
    assert [row["_offset"] for row in track] == [0, 2, 3, 4, 5, 7]
    assert [row["reason"] for row in track][1:4] == [
        "user is missing or null, and is required",
        "user is missing or null, and is required",
        "n: expected a whole number, found text",
    ]
    assert track[-1]["reason"].endswith("(the payload had 70000 bytes, and is kept in part)")
    assert track[0]["payload"] == b"{"
    position = [row["reason"] for row in found if row["dataset"] == "position"]
    assert position[1] == "user is missing or null, and is a key"
    assert len(position) == 6


def test_large_steps_go_through_spark_and_give_the_same(tmp_path: Path, spark: SparkSession) -> None:
    """100,000 records, one in a hundred malformed, a few users who come again and again."""
    recorded = Recorded(tmp_path / "data", spark)
    rng = random.Random(7)
    expected: dict[str, int] = {}
    good = bad = 0
    for start in range(0, 100_000, 2000):
        payloads: list[object] = []
        for n in range(start, start + 2000):
            if rng.random() < 0.01:
                payloads.append(b'{"user": "ann", "n": ')
                bad += 1
            else:
                user = f"u{rng.randrange(500)}"
                payloads.append(fix(user, n))
                expected[user] = n
                good += 1
        recorded.put(payloads)
    assert recorded.ingestion.step() == 100_000
    assert len(recorded.manifest.files("track")) > 1
    counted = (
        recorded.datasets.frame("track", 1).selectExpr("count(*) c", "count(distinct _offset) d").first()
    )
    assert counted is not None
    assert (counted.c, counted.d) == (good, good)
    assert state(recorded.rows("position")) == expected
    assert recorded.datasets.frame("quarantine", 1).count() == 2 * bad
    assert recorded.on_disk("position") == {each.name for each in recorded.manifest.files("position")}
    recorded.close()


def test_keyed_is_the_last_row_of_each_key_by_offset_whatever_the_clocks_say(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a dict, through steps, folds into the base, expired clocks, and at every version that was."""
    monkeypatch.setattr(tending, "COVER_ROWS_MIN", 5)
    rng = random.Random(3)
    expected: dict[str, int] = {}
    states: dict[int, dict[str, int]] = {0: {}}
    came: dict[int, dict[str, int]] = {}
    for number in range(12):
        recorded.now_ns = NOW_NS + rng.randrange(-5, 5) * S
        users = [rng.choice("abcdefghij") for _ in range(rng.randrange(1, 6))]
        recorded.put([fix(user, number * 10 + place) for place, user in enumerate(users)])
        recorded.ingestion.step()
        expected = expected | {user: number * 10 + place for place, user in enumerate(users)}
        came[recorded.manifest.version] = {user: number * 10 + place for place, user in enumerate(users)}
        states[recorded.manifest.version] = expected
        if number % 3 == 2:
            recorded.ingestion.tend()
            states[recorded.manifest.version] = expected
    assert any(each.base for each in recorded.manifest.files("position"))
    for version, expected in states.items():
        assert state(recorded.rows("position", version)) == expected
    upto = recorded.manifest.version
    for after in states:
        fresh: dict[str, int] = {}
        for version, users_then in sorted(came.items()):
            fresh |= users_then if version > after else {}
        assert state(recorded.new("position", after)) == fresh
        assert (recorded.datasets.rows_new("position", after, upto) == 0) == (not fresh)


def test_compaction_changes_files_and_nothing_else(recorded: Recorded) -> None:
    for number in range(20):
        recorded.put([fix("ann", number), b"{"])
        recorded.ingestion.step()
    before, files = recorded.rows("track"), recorded.on_disk("track")
    version = recorded.manifest.version
    recorded.ingestion.tend()
    assert len(recorded.manifest.files("track")) == 1
    assert recorded.rows("track") == before
    assert [row["n"] for row in recorded.rows("track", version)] == list(range(20))
    # Nothing is new again, and what was new to those who are behind still is.
    assert recorded.new("track", version) == []
    assert recorded.datasets.rows_new("track", version, recorded.manifest.version) == 0
    assert [row["n"] for row in recorded.new("track", 15)] == list(range(15, 20))
    assert [row["n"] for row in recorded.new("track", 15, 17)] == [15, 16]
    assert len(recorded.new("quarantine", 19)) == 2
    # Who reads an older version does so undisturbed, until the grace time is over.
    reading = recorded.datasets.frame("track", 20)
    recorded.ingestion.tend()
    assert reading.count() == 20
    assert files <= recorded.on_disk("track")
    recorded.ingestion._tending.grace_ns = 0
    recorded.ingestion.tend()
    assert recorded.on_disk("track") == {each.name for each in recorded.manifest.files("track")}
    assert recorded.rows("track") == before
    assert [row["n"] for row in recorded.new("track", 15)] == list(range(15, 20))
    recorded.put([fix("ann", 20)])
    recorded.ingestion.step()
    assert [row["n"] for row in recorded.new("track", version)] == [20]


def test_rows_expire_by_arrival(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = PIPELINE.replace('name = "track"', 'name = "track"\nretention = "1h"')
    pipeline = pipeline.replace('name = "position"', 'name = "position"\nretention = "1h"')
    recorded = Recorded(tmp_path / "data", spark, pipeline)
    for number in range(4):
        recorded.now_ns = NOW_NS + number * H // 2
        recorded.put([fix(f"u{number}", number)])
        recorded.ingestion.step()
    recorded.ingestion.tend()
    # At 1h 30min: what came at 0 and is older than the hour by more than a tenth of it.
    assert [row["n"] for row in recorded.rows("track")] == [1, 2, 3]
    assert state(recorded.rows("position")) == {"u1": 1, "u2": 2, "u3": 3}
    # A clock that went back makes nothing expire, and nothing come back.
    recorded.now_ns = NOW_NS - 10 * H
    recorded.ingestion.tend()
    assert len(recorded.rows("track")) == len(recorded.rows("position")) == 3
    recorded.now_ns = NOW_NS + 100 * H
    recorded.ingestion.tend()
    assert recorded.rows("track") == recorded.rows("position") == []
    recorded.put([fix("u0", 9)])
    recorded.ingestion.step()
    assert state(recorded.rows("position")) == {"u0": 9}
    recorded.close()


def test_a_schema_may_grow_and_never_turn(recorded: Recorded) -> None:
    recorded.put([fix("ann", 1), fix("bob", 2)])
    recorded.ingestion.step()
    recorded.manifest.close()
    grown = PIPELINE.replace('lat = "double",', 'lat = "double", speed = "float", way = "array<string>",')
    recorded.open(grown)
    recorded.put([fix("bob", 3, speed=2.5, way=["a", None])])
    recorded.ingestion.step()
    assert [(row["n"], row["speed"], row["way"]) for row in recorded.rows("track")] == [
        (1, None, None),
        (2, None, None),
        (3, 2.5, ["a", None]),
    ]
    assert [(row["n"], row["speed"]) for row in recorded.rows("position")] == [(1, None), (3, 2.5)]
    recorded.manifest.close()
    for turned, says in (
        (PIPELINE, "its files have a column speed"),
        (grown.replace('n = "bigint"', 'n = "string"'), "column n is string, and in its files bigint"),
        (grown.replace('key = ["user"]', 'key = ["user", "n"]'), 'its key is "user, n"'),
    ):
        with pytest.raises(
            ConfigError, match=f"{says}.*Declare it as before, or give the dataset another name"
        ):
            recorded.open(turned)
    recorded.open(grown)
    assert len(recorded.rows("track")) == 3


def test_a_dataset_that_is_declared_later_begins_with_what_the_feed_keeps(recorded: Recorded) -> None:
    recorded.put([fix("ann", number) for number in range(10)])
    recorded.ingestion.step()
    recorded.manifest.close()
    later = '\n[[dataset]]\nname = "bytes"\nfeed = "positions"\nformat = "raw"\n'
    recorded._options = {"records_max": 4}
    recorded.open(PIPELINE + later)
    recorded.put([b"\xff not JSON"])
    taken = [recorded.ingestion.step() for _ in range(4)]
    # The one that is behind catches up in steps of its own.
    assert taken == [4 + 1, 4, 3, 0]
    assert [row["_offset"] for row in recorded.rows("bytes")] == list(range(11))
    assert recorded.rows("bytes")[-1]["payload"] == b"\xff not JSON"
    assert len(recorded.rows("track")) == 10


class Pruned(FeedReader):
    """A feed whose beginning is gone, though a dataset has not read it."""

    first_left = 0

    @property
    def first(self) -> int:
        return self.first_left


def test_what_a_feed_lost_is_told_and_a_feed_that_fails_stops_no_other(
    tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = (
        PIPELINE
        + """
[[feed]]
name = "gone"
topics = ["gone/#"]
[[dataset]]
name = "lost"
feed = "gone"
format = "raw"
"""
    )
    recorded = Recorded(tmp_path / "data", spark, pipeline)
    recorded.put([fix("ann", number) for number in range(10)])
    recorded.ingestion.step()
    recorded.put([fix("ann", number) for number in range(10, 20)])
    pruned = Pruned(recorded.layout.feed("positions"))
    pruned.first_left = 15
    recorded.ingestion.feeds = {"gone": FeedReader(recorded.layout.feed("gone")), "positions": pruned}
    assert recorded.ingestion.step() == 5
    assert [row["n"] for row in recorded.rows("track")] == [*range(10), *range(15, 20)]
    told = recorded.rows("quarantine")
    assert {row["reason"] for row in told} == {"records 10 to 14 were deleted before the dataset read them"}
    assert {row["dataset"] for row in told} == {"track", "position"}
    # A journal that is not what it was: said at each step, while others go on.
    recorded.put([fix("ann", 20)])
    recorded.manifest.commit(offsets={"lost": 7})
    with pytest.raises(Unavailable, match=r"feed gone: .*read up to 7, and it ends with 0"):
        recorded.ingestion.step()
    assert recorded.rows("track")[-1]["n"] == 20
    recorded.put([fix("ann", 21)])
    for segment in (recorded.layout.feed("positions") / "journal").iterdir():
        segment.write_bytes(segment.read_bytes().replace(b'"n": 21', b'"n": 22'))
    with pytest.raises(Unavailable, match=r"feed positions: .*damaged"):
        recorded.ingestion.step()
    assert recorded.manifest.offset("track") == 21
    recorded.close()


def test_consumers_are_told_how_far_all_datasets_are(recorded: Recorded) -> None:
    recorded.put([fix("ann", 1), fix("ann", 2)])
    assert "datasets" not in recorded.writer.consumers.marks()
    recorded.ingestion.step()
    assert recorded.writer.consumers.marks()["datasets"] == 2


def test_a_disk_that_is_full_loses_nothing(recorded: Recorded) -> None:
    """A limit on the size of files fails writes as a full disk does, in Parquet and in SQLite."""
    recorded.put([fix(f"u{number}", number, other="x" * 50) for number in range(5000)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (1, 1000, 40_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            with pytest.raises(Unavailable, match=r"nothing (is|was) lost"):
                recorded.ingestion.step()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert recorded.manifest.version == 0
    assert recorded.ingestion.step() == 5000
    recorded.ingestion.tend()
    assert len(recorded.rows("track")) == 5000
    assert recorded.on_disk("track") == {each.name for each in recorded.manifest.files("track")}


def test_files_that_nobody_names_are_swept_and_those_under_way_are_not(recorded: Recorded) -> None:
    recorded.put([fix("ann", 1)])
    recorded.ingestion.step()
    folder = recorded.layout.dataset("track")
    (folder / "0123abcd-7-00.parquet").write_bytes(b"of a process that was killed")
    (folder / "mine.parquet").write_bytes(b"somebody else's")
    with recorded.ingestion._stage.work() as prefix:
        (folder / f"{prefix}-00.parquet").write_bytes(b"under way")
        recorded.ingestion.tend()
        left = recorded.on_disk("track") - {each.name for each in recorded.manifest.files("track")}
        assert left == {f"{prefix}-00.parquet", "mine.parquet"}
    recorded.ingestion.tend()
    (folder / "mine.parquet").unlink()
    assert recorded.on_disk("track") == {each.name for each in recorded.manifest.files("track")}
    recorded.manifest.close()
    recorded.layout.manifest.unlink()
    with pytest.raises(ManifestDamaged):
        recorded.open()
    assert recorded.on_disk("track")


def test_steps_and_tending_in_two_threads(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(tending, "COVER_ROWS_MIN", 3)
    monkeypatch.setattr(tending, "FILES_MIN", 3)
    recorded.ingestion._tending.grace_ns = 0
    stop, failed = threading.Event(), []

    def tend() -> None:
        while not stop.is_set():
            try:
                recorded.ingestion.tend()
            except Exception as error:
                failed.append(error)
                return

    thread = threading.Thread(target=tend)
    thread.start()
    try:
        for number in range(60):
            recorded.put([fix(f"u{(number * 7 + place) % 23}", number) for place in range(4)])
            recorded.ingestion.step()
    finally:
        stop.set()
        thread.join()
    assert not failed
    expected = {f"u{(number * 7 + place) % 23}": number for number in range(60) for place in range(4)}
    assert state(recorded.rows("position")) == expected
    assert [row["_offset"] for row in recorded.rows("track")] == list(range(240))


EXTERNAL = """
[[dataset]]
name = "{0}"
kind = "external"
file = "{1}"
schema = {{ id = "int", x = "double" }}
"""


def test_an_external_file_is_read_whole_and_again_when_it_changes(
    tmp_path: Path, spark: SparkSession
) -> None:
    files = ("shelter.csv", "a.json", "b.json")
    pipeline = PIPELINE + "".join(EXTERNAL.format(file.split(".")[0], file) for file in files)
    recorded = Recorded(tmp_path, spark, pipeline)
    shelter = tmp_path / "shelter.csv"

    def rows(name: str) -> list[tuple[int, float]]:
        return sorted((row.id, row.x) for row in recorded.datasets.frame(name, 0).collect())

    with pytest.raises(Unavailable, match=r"shelter\.csv, the file of dataset shelter, cannot be read"):
        rows("shelter")
    shelter.write_text("id,x\n1,1.5\n2,2.5\n")
    assert rows("shelter") == [(1, 1.5), (2, 2.5)]
    shelter.write_text("id,x\n3,1.5\n2,2.5\n4,1\n")
    assert rows("shelter") == [(2, 2.5), (3, 1.5), (4, 1.0)]
    shelter.write_text("id,x\n3,1.5\n2,many\n")
    with pytest.raises(Unavailable, match=r"reading .*shelter\.csv"):
        rows("shelter")
    shelter.write_text("x,id\n3,1\n")
    with pytest.raises(Unavailable, match=r"reading .*shelter\.csv"):
        rows("shelter")
    (tmp_path / "a.json").write_text('{"id": 1, "x": 1.5}\n{"id": 2, "x": 2.5, "y": 0}\n')
    (tmp_path / "b.json").write_text(' [{"id": 1, "x": 1.5},\n {"id": 2, "x": 2.5}]\n')
    assert rows("a") == rows("b") == [(1, 1.5), (2, 2.5)]
    recorded.close()


def test_reading_is_cheap_to_ask_for_again(recorded: Recorded) -> None:
    """The same files are the same DataFrame: a version that changed other datasets costs nothing here."""
    recorded.put([fix("ann", 1)])
    recorded.ingestion.step()
    first = recorded.datasets.frame("track", 1)
    assert recorded.datasets.frame("track", 1) is first
    recorded.manifest.commit()
    assert recorded.datasets.frame("track", 2) is first
    assert recorded.datasets.new("track", 0, 2) is recorded.datasets.new("track", 0, 1)
    begun = time.perf_counter()
    for _ in range(100):
        recorded.datasets.frame("track", 2)
    assert time.perf_counter() - begun < 1
