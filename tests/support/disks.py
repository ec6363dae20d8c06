"""Real file systems that are soon full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Path]:
    """A file system of so many KiB, for the length of a `with` block; without root the test is skipped."""
    mounted = folder / "tiny"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", str(mounted)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def fill(disk: Path) -> Path:
    """Takes all the room that is left; the file to remove for some."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast
