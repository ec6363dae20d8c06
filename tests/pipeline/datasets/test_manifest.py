"""The manifest against a model of plain sets, and what it does when it cannot be trusted."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.errors import Unavailable
from holdfast.pipeline.datasets.manifest import Manifest, ManifestDamaged, Shape, Written

SHAPE = Shape(kind="log", feed="f", format="json", columns={"user": "string"}, key=())


def written(dataset: str, name: str, first: int, last: int | None = None) -> Written:
    return Written(
        dataset=dataset,
        name=name,
        rows=1,
        bytes=1,
        first_version=first,
        last_version=first if last is None else last,
        oldest_ns=0,
        newest_ns=0,
    )


class AgainstModel(RuleBasedStateMachine):
    """Every version that was, with its files and what was new in it, is remembered beside the manifest."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "manifest.sqlite"
        self.manifest = Manifest.writer(self.path)
        for name in ("a", "b"):
            self.manifest.declare(name, SHAPE)
        self.states: list[dict[str, set[str]]] = [{"a": set(), "b": set()}]
        self.came: dict[str, tuple[int, int]] = {}
        self.forgotten_before = 0
        self.offsets = {"a": 0, "b": 0}
        self.names = 0

    def teardown(self) -> None:
        self.manifest.close()
        self.folder.cleanup()

    def name(self) -> str:
        self.names += 1
        return f"{self.names}.parquet"

    @rule(into=st.sets(st.sampled_from(["a", "b"])))
    def take(self, into: set[str]) -> None:
        version = len(self.states)
        files = {each: self.name() for each in into}
        self.offsets |= {each: self.offsets[each] + 1 for each in into}
        added = [written(each, name, version) for each, name in files.items()]
        assert self.manifest.commit(added, offsets={each: self.offsets[each] for each in into}) == version
        self.came |= dict.fromkeys(files.values(), (version, version))
        self.states.append(
            {
                each: have | ({files[each]} if each in files else set())
                for each, have in self.states[-1].items()
            }
        )

    @precondition(lambda self: len(self.states[-1]["a"]) > 1)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        files = self.manifest.files("a")
        some = files[: data.draw(st.integers(2, len(files)))]
        first, last = min(each.first_version for each in some), max(each.last_version for each in some)
        name = self.name()
        self.manifest.commit([written("a", name, first, last)], some)
        self.came[name] = (first, last)
        left = self.states[-1]["a"] - {each.name for each in some}
        self.states.append({**self.states[-1], "a": left | {name}})

    @rule()
    def forget(self) -> None:
        self.manifest.forget(self.manifest.removed())
        self.forgotten_before = len(self.states) - 1

    @rule()
    def open_again(self) -> None:
        self.manifest.close()
        self.manifest = Manifest.writer(self.path)

    @invariant()
    def every_version_is_what_it_was(self) -> None:
        assert self.manifest.version == len(self.states) - 1
        for version in range(self.forgotten_before, len(self.states)):
            for dataset, names in self.states[version].items():
                assert {each.name for each in self.manifest.files(dataset, version)} == names
                for after in range(version + 1):
                    new = {each.name for each in self.manifest.added(dataset, after, version)}
                    assert new == {name for name in names if self.came[name][1] > after}
        for dataset, names in self.states[-1].items():
            assert {each.name for each in self.manifest.files(dataset)} == names
            assert (self.manifest.offset(dataset) or 0) == self.offsets[dataset]


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_one_writes_and_others_read_what_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "data" / "manifest.sqlite"
    with pytest.raises(Unavailable, match="nothing has been ingested"):
        Manifest(path)
    writer = Manifest.writer(path)
    writer.declare("a", SHAPE)
    with pytest.raises(Unavailable, match="another process writes"):
        Manifest.writer(path)
    reader = Manifest(path)
    assert (reader.version, reader.offset("a"), reader.shape("a"), reader.names()) == (0, None, SHAPE, ["a"])
    twice = [written("a", "0", 1), written("a", "0", 1)]
    with pytest.raises(Unavailable):
        writer.commit(twice, offsets={"a": 3})
    assert (reader.version, reader.offset("a"), reader.files("a")) == (0, None, [])
    with writer.writing() as version:
        assert reader.files("a") == []
        assert writer.commit([written("a", "1", version)], offsets={"a": 5}) == version == 1
    assert [each.name for each in reader.files("a")] == ["1"]
    assert reader.offset("a") == 5
    writer.close()
    assert Manifest(path).version == 1
    reader.close()
    Manifest.writer(path).close()


@pytest.mark.parametrize("damage", ["head", "middle", "format", "empty", "missing"])
def test_a_manifest_that_cannot_be_trusted_is_named_and_left_alone(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "manifest.sqlite"
    manifest = Manifest.writer(path)
    manifest.declare("a", SHAPE)
    for number in range(500):
        manifest.commit([written("a", f"{number}.parquet", number + 1)])
    manifest.close()
    data = tmp_path / "datasets" / "a" / "0.parquet"
    data.parent.mkdir(parents=True)
    data.write_bytes(b"rows")
    content = bytearray(path.read_bytes())
    if damage == "head":
        content[:16] = b"\0" * 16
    elif damage == "middle":
        content[8192:] = bytes(len(content) - 8192)
    elif damage == "format":
        sqlite3.connect(path).execute("PRAGMA user_version = 99").connection.close()
        content = bytearray(path.read_bytes())
    elif damage == "empty":
        content = bytearray()
    path.write_bytes(content)
    if damage == "missing":
        path.unlink()
    with pytest.raises(
        ManifestDamaged, match=r"manifest\.sqlite is damaged or missing.*Restore it from a copy"
    ):
        Manifest.writer(path)
    assert data.read_bytes() == b"rows"
    if damage != "missing":
        assert path.read_bytes() == content
