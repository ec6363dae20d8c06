"""What a broker asks of the machine, and what it says that it got."""

import json
import os
import subprocess
import sys

import pytest

from holdfast.runtime.ahead import NICENESS
from holdfast.runtime.priority import Priority, processor_to_get

ASK = (
    "import json, os; from holdfast.runtime.priority import take_priority; {before}; p = take_priority(); "
    "print(json.dumps([p.processor, p.memory, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)]))"
)
NOBODY = "os.setgid(65534); os.setuid(65534)"
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give rights, and give them up")


def ask(before: str = "pass") -> tuple[Priority, int, int]:
    command = [sys.executable, "-c", ASK.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    processor, memory, niceness, scheduler = json.loads(done.stdout)
    return Priority(processor, memory), niceness, scheduler


@ROOT
def test_a_broker_that_may_goes_before_other_work() -> None:
    got, niceness, scheduler = ask()
    assert got.processor == f"niceness {NICENESS}, slices of 0.1ms"
    assert (niceness, scheduler) == (NICENESS, os.SCHED_OTHER)
    assert got.memory.startswith(("locked", "not locked: "))


@ROOT
def test_one_that_may_not_gets_a_short_slice_and_says_so() -> None:
    got, niceness, _ = ask(NOBODY)
    assert got.processor == "slices of 0.1ms; a lower niceness is not allowed"
    assert niceness >= 0


@ROOT
def test_one_that_was_given_a_real_time_class_keeps_it() -> None:
    try:
        got, _, scheduler = ask("os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))")
    except subprocess.CalledProcessError:
        pytest.skip("no real-time class is to be had here")
    assert (got.processor, scheduler) == ("as whoever started it says", os.SCHED_RR)


def test_trying_it_changes_nothing() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
    assert processor_to_get()
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)) == before
