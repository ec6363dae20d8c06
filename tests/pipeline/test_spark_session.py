"""The session of Spark leaves nothing behind and says nothing; its archive only ever saves time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.pipeline import archive, spark

PROGRAM = """
import sys
from pathlib import Path
from holdfast.pipeline import spark
folder = Path(sys.argv[1])
session = spark.session("local[1]", folder=folder)
assert spark.session("local[1]", folder=folder) is session
assert session.range(5).count() == 5
conf = session.sparkContext.getConf()
assert conf.get("spark.driver.host") == conf.get("spark.driver.bindAddress") == "127.0.0.1"
assert session.sparkContext.uiWebUrl is None
assert session.conf.get("spark.sql.shuffle.partitions") == "1"
print(spark._running.process.pid, *(path.name for path in folder.iterdir()), flush=True)
sys.stdin.readline()
"""


class Ran:
    """A process with a session, which waits in the middle until it is told to go on."""

    def __init__(self, tmp_path: Path) -> None:
        self.temporary, self.work, self.cache = (tmp_path / name for name in ("tmp", "work", "cache"))
        self.folder = self.work / "spark"
        self.folder.mkdir(parents=True)
        for path in (self.temporary, self.cache):
            path.mkdir()
        # An archive of another Java: the JVM sees that it does not fit.
        place = archive.place(self.cache / "holdfast")
        with archive.making(place) as options:
            Path(options.split('"')[1]).write_bytes(b"not an archive")
        places = {"TMPDIR": str(self.temporary), "XDG_CACHE_HOME": str(self.cache)}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, str(self.folder)],
            cwd=self.work, env=os.environ | places, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def middle(self) -> tuple[int, list[str]]:
        """The JVM, and what is in the session's folder."""
        assert self.process.stdout is not None
        pid, *names = self.process.stdout.readline().split() or ["0"]
        return int(pid), names

    def end(self) -> tuple[int, str, str]:
        printed, complained = self.process.communicate("\n", timeout=110)
        return self.process.returncode, printed, complained


def test_a_session_says_nothing_leaves_nothing_and_ends(tmp_path: Path) -> None:
    """The folder is swept of what a killed session left, and is nobody else's while the session lasts."""
    ran = Ran(tmp_path)
    left = ran.folder / "holdfast-spark-left"
    left.mkdir()
    (left / "shuffle").write_bytes(b"of a session that was killed")
    jvm, during = ran.middle()
    assert len(during) == 2
    assert "lock" in during
    assert left.name not in during
    with pytest.raises(Unavailable, match="another process runs Spark in"):
        spark.session("local[1]", folder=ran.folder)
    assert ran.end() == (0, "", "")
    assert [path.name for path in ran.folder.iterdir()] == ["lock"]
    assert [path for path in ran.temporary.iterdir() if path.name != "hsperfdata_root"] == []
    assert not Path(f"/proc/{jvm}").exists()


@pytest.mark.parametrize("damage", ["cut", "changed in the middle"])
def test_a_broken_archive_is_not_used(damage: str, tmp_path: Path) -> None:
    made = tmp_path / "spark.jsa"
    with archive.making(made) as options:
        Path(options.split('"')[1]).write_bytes(b"classes" * 1000)
    assert archive.whole(made)
    data = made.read_bytes()
    made.write_bytes(data[:-1] if damage == "cut" else data[:100] + b"x" + data[101:])
    assert not archive.whole(made)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spark.jsa", "spark.sum"]


def test_only_the_newest_archives_are_kept(tmp_path: Path) -> None:
    for number in range(archive.ARCHIVES_MAX + 2):
        with archive.making(tmp_path / f"spark-{number}.jsa") as options:
            Path(options.split('"')[1]).write_bytes(b"classes")
    kept = range(2, archive.ARCHIVES_MAX + 2)
    names = [f"spark-{number}.{kind}" for number in kept for kind in ("jsa", "sum")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_without_java_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(Unavailable, match="apt-get install default-jre-headless"):
        spark.session("local[1]")


def test_without_pyspark_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(Unavailable, match=r"holdfast\[pipeline\]"):
        spark.need()
