"""Go before other work on a shared machine, without real-time priority, or behind it.

A saturated real-time process is stopped by the kernel for up to 50 ms in each second, which would be
taken for the broker's latency. A short slice and a low niceness let a process start soon after it is
woken, no more. Where the kernel shares the cores among sessions first (autogroup), niceness counts only
within one, so the session of the process gets it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from pathlib import Path

NICENESS = -10
NICENESS_BEHIND = 5
SLICE_NS = 100_000
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


def go_ahead(thread: int = 0, *, session: bool = True) -> bool:
    """For this process, or that thread, and those it starts; and for its session, unless others are in it.

    False where the kernel or the user's rights do not allow it."""
    if not _ask(thread, NICENESS):
        return False
    return not session or _rank_session(thread, NICENESS)


def slice_shortly(thread: int = 0) -> bool:
    """A short slice alone, which needs no rights."""
    return _ask(thread, max(0, os.getpriority(os.PRIO_PROCESS, thread)))


def _ask(thread: int, niceness: int) -> bool:
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return False
    attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, niceness, 0, SLICE_NS, 0, 0)
    return bool(ctypes.CDLL(None, use_errno=True).syscall(number, thread, attributes, 0) == 0)


def stand_back() -> bool:
    """For this process and those it starts: less than others get, but something always. Who runs is not
    interrupted for them."""
    with contextlib.suppress(PermissionError):  # whoever started it gave it less already
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS_BEHIND, os.getpriority(os.PRIO_PROCESS, 0)))
    return _rank_session(0, NICENESS_BEHIND)


def _rank_session(thread: int, niceness: int) -> bool:
    group = Path(f"/proc/{thread or 'self'}/autogroup")
    try:
        if group.exists():
            group.write_text(str(niceness))
    except OSError:
        return False
    return True
