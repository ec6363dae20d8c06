"""The processor and the memory that a promise needs: a broker asks for them itself, and says what it got.

Laws:
- a broker asks for a low niceness, and for the lowest real-time class if its options say so. Without the
  right a short slice has to do
- only the loop is real-time: whatever else the process does gives way to it
- memory is locked as far as it is there at the start: what comes later must be able to go again
- what whoever started it gave it, it keeps; one that gets nothing runs all the same
"""

from __future__ import annotations

import ctypes
import os
import threading

from msgspec import Struct

from holdfast.runtime.ahead import NICENESS, SLICE_NS, go_ahead, slice_shortly
from holdfast.units import format_duration

MCL_CURRENT, MCL_ONFAULT = 1, 4
REALTIME = 1  # the lowest of its priorities


class Priority(Struct, frozen=True):
    """In words, for people."""

    processor: str
    memory: str


def take_priority(*, realtime: bool) -> Priority:
    """For the thread that calls; `lift_threads` is for the others."""
    return Priority(_take_processor(realtime=realtime), _lock_memory())


def _take_processor(thread: int = 0, *, realtime: bool) -> str:
    if os.sched_getscheduler(thread) != os.SCHED_OTHER:
        return "as whoever started it says"
    if realtime and _go_realtime(thread):
        return f"real-time, round robin, priority {REALTIME}"
    alone = os.getsid(0) == os.getpid()  # else what the session gets, others get too
    if go_ahead(thread, session=alone):
        return f"niceness {NICENESS}, slices of {format_duration(SLICE_NS)}"
    if slice_shortly(thread):
        return f"slices of {format_duration(SLICE_NS)}; more is not allowed"
    return "as any other process: the kernel does not allow more"


def _go_realtime(thread: int) -> bool:
    try:
        os.sched_setscheduler(thread, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(REALTIME))
    except OSError:
        return False
    return True


def lift_threads() -> None:
    """The other threads that are there by now, which share a lock with the loop, go before other programs."""
    for thread in map(int, os.listdir("/proc/self/task")):
        if thread != os.getpid() and os.sched_getscheduler(thread) == os.SCHED_OTHER:
            go_ahead(thread, session=False)


def _lock_memory() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(MCL_CURRENT | MCL_ONFAULT) == 0:
        return "locked as far as it was there at the start"
    return f"not locked: {os.strerror(ctypes.get_errno())}"


def processor_to_get() -> str:
    """What a broker would get here, tried with a thread that ends at once."""
    found: list[str] = []

    def attempt() -> None:
        found.append(_take_processor(threading.get_native_id(), realtime=False))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return found[0]
