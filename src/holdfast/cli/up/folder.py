"""A folder that goes with this process, however it ends: what is written there leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

# Its input ends when this process does. Whoever still writes there is about to end too.
SWEEP = (
    'cat >/dev/null; for wait in 0 0.2 0.5 1 2 4 8; do sleep $wait; rm -rf "$1"; [ -e "$1" ] || exit 0; done'
)


@contextlib.asynccontextmanager
async def swept_folder(prefix: str) -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    sweeper = await asyncio.create_subprocess_exec(
        "sh", "-c", SWEEP, "sweep", str(folder), stdin=PIPE, start_new_session=True
    )
    assert sweeper.stdin is not None
    try:
        yield folder
    finally:
        sweeper.stdin.close()
        await sweeper.wait()
