"""A folder that goes with this process, however it ends, and takes along whatever was started meanwhile.

Laws:
- what is started in the block has its temporary files in the folder, and a mark by which it is found
- when the block or this process ends, processes with the mark are killed, and then the folder is removed
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from holdfast.cli.up import sweep

MARK = "HOLDFAST_UP"


@contextlib.asynccontextmanager
async def swept_folder(prefix: str) -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    # Its input ends when this process does. Isolated and without site, it starts within milliseconds.
    sweeper = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(sweep.__file__), str(folder), f"{MARK}={folder}",
        stdin=PIPE, start_new_session=True,
    )  # fmt: skip
    assert sweeper.stdin is not None
    inside = folder / "tmp"
    inside.mkdir()
    try:
        with _environment({MARK: str(folder), "TMPDIR": str(inside)}):
            yield folder
    finally:
        sweeper.stdin.close()
        await sweeper.wait()


@contextlib.contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """What is started from now on has this in its environment; this process had not, when it was started."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
