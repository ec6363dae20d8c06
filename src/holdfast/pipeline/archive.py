"""A class-data archive for the JVM of Spark: loading classes is half of a session's start, and this skips it.

Laws:
- an archive belongs to one Java, one Spark and one kind of machine; another of any of them makes another
- an archive is used only if it is as it was made, since a JVM may die or hang of another; the JVM itself
  sees whether it fits, and loads classes as ever if not
- at most ARCHIVES_MAX are kept, those that were made last
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

ARCHIVES_MAX = 8


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def java() -> Path | None:
    """The program that starts the JVM, as Spark looks for it."""
    if home := os.environ.get("JAVA_HOME"):
        found = Path(home) / "bin" / "java"
        return found if found.exists() else None
    program = shutil.which("java")
    return None if program is None else Path(program)


def place(folder: Path | None = None) -> Path:
    """Where the archive for this Java, this Spark and this machine is, or would be."""
    import pyspark

    program = java()
    assert program is not None, "Spark is not started without Java"
    program = program.resolve()
    release = program.parent.parent / "release"
    known = release.read_text() if release.exists() else ""
    version = re.search(r'^JAVA_VERSION="([\w.+-]+)"', known, re.MULTILINE)
    of = program.stat()
    # What a version does not tell: a patched Java, and another folder with the same Spark.
    rest = f"{program}:{of.st_size}:{of.st_mtime_ns}:{known}:{pyspark.__file__}"
    name = "-".join(
        (
            f"spark-{pyspark.__version__}",
            f"java-{version[1] if version else 'unknown'}",
            platform.machine(),
            hashlib.sha256(rest.encode()).hexdigest()[:8],
        )
    )
    return (folder or cache_folder()) / f"{name}.jsa"


def whole(archive: Path) -> bool:
    """Whether it is there, and as it was made."""
    try:
        return _sum_file(archive).read_text() == _sum(archive)
    except OSError:
        return False


def _sum_file(archive: Path) -> Path:
    return archive.with_suffix(".sum")


def _sum(archive: Path) -> str:
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def using(archive: Path) -> str:
    """Options of a JVM that loads classes from this archive, and says nothing if it cannot."""
    return f'-XX:SharedArchiveFile="{archive}" -Xshare:auto -Xlog:disable'


@contextlib.contextmanager
def making(archive: Path) -> Iterator[str]:
    """Options of a JVM that leaves an archive when it ends, which it must do before the block does."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    # Among temporary files: whoever is killed in this half minute leaves nothing in the cache.
    folder = Path(tempfile.mkdtemp(prefix="holdfast-making-"))
    try:
        made = folder / archive.name
        yield f'-XX:ArchiveClassesAtExit="{made}" -Xlog:disable'
        if made.exists():
            beside = archive.with_suffix(f".{os.getpid()}")
            shutil.copyfile(made, beside)
            # The sum first: an archive without its own is not used.
            _sum_file(archive).write_text(_sum(made))
            beside.rename(archive)
            _forget(archive.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _forget(folder: Path) -> None:
    with contextlib.suppress(OSError):
        newest_first = sorted(folder.glob("spark-*.jsa"), key=lambda path: -path.stat().st_mtime)
        for old in newest_first[ARCHIVES_MAX:]:
            old.unlink()
            _sum_file(old).unlink(missing_ok=True)
