"""The processor and the memory that a promise needs: a broker asks for them itself, and says what it got.

Laws:
- nothing is asked for that could stop a broker: a real-time class is not, since the kernel stops what uses it
  for too long, and memory is locked only as far as it is there at the start
- what whoever started it gave it, a real-time class too, it keeps; one that gets nothing runs all the same
"""

from __future__ import annotations

import ctypes
import os
import threading

from msgspec import Struct

from holdfast.runtime.ahead import NICENESS, SLICE_NS, go_ahead, slice_shortly
from holdfast.units import format_duration

MCL_CURRENT, MCL_ONFAULT = 1, 4


class Priority(Struct, frozen=True):
    """In words, for people."""

    processor: str
    memory: str


def take_priority() -> Priority:
    """For this process and its threads."""
    return Priority(_take_processor(), _lock_memory())


def _take_processor(thread: int = 0) -> str:
    if os.sched_getscheduler(thread) != os.SCHED_OTHER:
        return "as whoever started it says"
    alone = os.getsid(0) == os.getpid()  # else what the session gets, others get too
    if go_ahead(thread, session=alone):
        return f"niceness {NICENESS}, slices of {format_duration(SLICE_NS)}"
    if slice_shortly(thread):
        return f"slices of {format_duration(SLICE_NS)}; a lower niceness is not allowed"
    return "as any other process: the kernel does not allow more"


def _lock_memory() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(MCL_CURRENT | MCL_ONFAULT) == 0:
        return "locked as far as it was there at the start"
    return f"not locked: {os.strerror(ctypes.get_errno())}"


def processor_to_get() -> str:
    """What a broker would get here, tried with a thread that ends at once."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_take_processor(threading.get_native_id())))
    thread.start()
    thread.join()
    return found[0]
