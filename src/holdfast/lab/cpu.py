"""Which cores a process has, how far ahead of other work it goes, and what it used.

Laws:
- what is set is set for every thread of a process, and threads that it starts later inherit it
- seconds are the kernel's own count (/proc), user and system together, thread by thread, to the nanosecond
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from holdfast.lab.model import Priority
from holdfast.lab.store import CpuSample
from holdfast.runtime.ahead import go_ahead

REALTIME_PRIORITY = 10


def place(pid: int, cores: Sequence[int], priority: Priority) -> str:
    """Puts a process where it belongs; returns what was not permitted, empty if all was."""
    problem = ""
    for thread in _threads(pid):
        if cores:
            try:
                os.sched_setaffinity(thread, cores)
            except OSError as error:
                problem = f"cores {list(cores)} could not be given: {error.strerror}"
        if priority == "ahead" and not go_ahead(thread):
            problem = "nothing may go ahead of other work here: the priority is as usual"
        if priority == "realtime":
            try:
                os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(REALTIME_PRIORITY))
            except OSError as error:
                problem = f"real-time priority is not permitted: {error.strerror}"
    return problem


def _threads(pid: int) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


class Used(Struct, frozen=True):
    """What a process had used at a time."""

    at_ns: int
    seconds: dict[str, float]


def used(pid: int) -> Used:
    """By thread name; threads of one name are added up."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for thread in _threads(pid):
        about = Path(f"/proc/{pid}/task/{thread}")
        try:
            name, ran_ns = (
                (about / "comm").read_text().rstrip("\n"),
                (about / "schedstat").read_text().split()[0],
            )
        except OSError:
            continue  # It ended while we looked.
        seconds[name] += int(ran_ns) / 1e9
    return Used(time.monotonic_ns(), dict(seconds))


def sample(role: str, process: str, before: Used, after: Used) -> CpuSample:
    spent = {name: total - before.seconds.get(name, 0.0) for name, total in after.seconds.items()}
    return CpuSample(role=role, process=process, seconds=spent, wall_s=(after.at_ns - before.at_ns) / 1e9)
