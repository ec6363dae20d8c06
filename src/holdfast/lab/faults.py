"""What goes wrong in a trial, at its time, and how it ends.

Laws:
- nothing happens before its time, or before the brokers protect each other: one of them fails at a time
- the CPU of a process that is killed is read right before
- a stop or a cut is over when the trial is, whatever its plan says
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.lab.model import Fault
from holdfast.lab.system import System


def sleep_until(at_ns: int) -> None:
    """Until that time of CLOCK_REALTIME."""
    while (left_ns := at_ns - time.time_ns()) > 0:
        time.sleep(left_ns / 1e9)


def inject(
    fault: Fault, system: System, begin_ns: int, end_ns: int, before: Callable[[], None]
) -> int | None:
    """Lets the fault happen and returns when it did; `before` is called right before it."""
    if fault.kind == "none":
        return None
    sleep_until(begin_ns + fault.at_ns)
    system.await_ready()
    before()
    if fault.kind == "kill":
        at_ns = system.kill(fault.target)
        if fault.for_ns is not None:
            sleep_until(min(end_ns, at_ns + fault.for_ns))
            system.start_again(fault.target)
        return at_ns
    at_ns = system.stop(fault.target) if fault.kind == "stop" else system.cut()
    sleep_until(end_ns if fault.for_ns is None else min(end_ns, at_ns + fault.for_ns))
    if fault.kind == "stop":
        system.go_on(fault.target)
    else:
        system.heal()
    return at_ns
