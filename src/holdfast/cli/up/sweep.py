"""Ends whatever is left of the example and removes its folder: `python sweep.py FOLDER MARK`.

Laws:
- it begins when its input ends
- of the example is every process that was started with the mark in its environment, wherever it stands by now
- no process is looked for by its name, and none without the mark is touched
- it imports nothing of Holdfast, so that it is there at once and needs little
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
# A process may start another while it is looked for; after so many looks in a row nobody is left to.
EMPTY_LOOKS = 3
LOOK_S = 0.02
SWEEP_S_MAX = 20.0


def marked(mark: bytes) -> list[int]:
    """The processes with the mark that are not over."""
    found = []
    for name in os.listdir(PROC):
        if name.isdecimal() and int(name) != os.getpid():
            with suppress(OSError):
                if mark in (PROC / name / "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


def sweep(folder: Path, mark: bytes) -> None:
    end_s = time.monotonic() + SWEEP_S_MAX
    empty = 0
    while empty < EMPTY_LOOKS and time.monotonic() < end_s:
        left = marked(mark)
        for process in left:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        empty = 0 if left else empty + 1
        if empty < EMPTY_LOOKS:
            time.sleep(LOOK_S)
    # Once more where something went away meanwhile.
    while folder.exists() and time.monotonic() < end_s:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    folder, mark = Path(sys.argv[1]), os.fsencode(sys.argv[2])
    while os.read(sys.stdin.fileno(), 1):
        pass
    sweep(folder, mark)


if __name__ == "__main__":
    main()
