"""Runs a command that ends when its parent ends, however the parent ends.

`python -m holdfast.runtime.tether PARENT_PID COMMAND...` becomes COMMAND. The kernel kills it when the parent
is gone (PR_SET_PDEATHSIG, which outlives exec); a parent that was gone before is noticed by its pid.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tethered(command: list[str]) -> list[str]:
    """The command line that runs `command` tethered to this process."""
    return [sys.executable, "-m", "holdfast.runtime.tether", str(os.getpid()), *command]


def main(parent: int, command: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
