"""What a broker asks of the machine, and what it says that it got."""

import json
import os
import subprocess
import sys

import pytest

from holdfast.runtime.ahead import NICENESS
from holdfast.runtime.priority import Priority, processor_to_get

ASK = (
    "import json, os, sys; from holdfast.runtime.priority import take_priority; {before}; "
    "p = take_priority(realtime={realtime}); "
    "print(json.dumps([p.processor, p.memory, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)]))"
)
NOBODY = "os.setgid(65534); os.setuid(65534)"
NO_REALTIME = "import resource; resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0)); " + NOBODY
PLAIN = "os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))"
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give rights, and give them up")


def ask(before: str = PLAIN, realtime: bool = True) -> tuple[Priority, int, int]:
    command = [sys.executable, "-c", ASK.format(before=before, realtime=realtime)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    processor, memory, niceness, scheduler = json.loads(done.stdout)
    return Priority(processor, memory), niceness, scheduler & ~os.SCHED_RESET_ON_FORK


@ROOT
def test_a_member_that_may_goes_before_all_else() -> None:
    got, _, scheduler = ask()
    assert (got.processor, scheduler) == ("real-time, round robin, priority 1", os.SCHED_RR)
    assert got.memory.startswith(("locked", "not locked: "))


@ROOT
def test_a_broker_alone_goes_before_other_work() -> None:
    got, niceness, scheduler = ask(realtime=False)
    assert got.processor == f"niceness {NICENESS}, slices of 0.1ms"
    assert (niceness, scheduler) == (NICENESS, os.SCHED_OTHER)


@ROOT
def test_one_that_may_not_gets_a_short_slice_and_says_so() -> None:
    got, niceness, _ = ask(NO_REALTIME)
    assert got.processor == "slices of 0.1ms; more is not allowed"
    assert niceness >= 0


@ROOT
def test_one_that_was_given_a_class_keeps_it() -> None:
    got, _, scheduler = ask("os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))")
    assert (got.processor, scheduler) == ("as whoever started it says", os.SCHED_BATCH)


@ROOT
def test_what_a_member_starts_is_not_real_time() -> None:
    before = f"{PLAIN}; import threading; seen = []"
    look = "threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))"
    ask_thread = ASK.replace("print(", f"t = {look}; t.start(); t.join(); print(")
    ask_thread = ask_thread.replace("os.sched_getscheduler(0)]))", "seen[0]]))")
    command = [sys.executable, "-c", ask_thread.format(before=before, realtime=True)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    assert json.loads(done.stdout)[3] == os.SCHED_OTHER


def test_trying_it_changes_nothing() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
    assert processor_to_get()
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)) == before
