"""The scenario `failover`: the primary is killed again and again, and one steady topic tells what that does.

FTRTES, Figures 5 and 6: `fault.at` is how long after a message of the topic the primary is killed, 50 ms for
a crash between two messages and 0 for one during a message.

Laws:
- the group is whole before each crash, and one broker fails at a time
- each crash is judged by the messages around it alone
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.lab.brokers import HoldfastBrokers
from holdfast.lab.faults import sleep_until
from holdfast.lab.group import Group
from holdfast.lab.load.jobs import topic_name
from holdfast.lab.model import Trial
from holdfast.lab.steady import Failover, Steady, judge, watching
from holdfast.lab.store import Outcome
from holdfast.lab.subscribe import put
from holdfast.mqtt.conventions import ViewNote
from holdfast.units import S

BEGIN_S = 1.5
QUIET_PERIODS = 6
"""Between a crash and the next: all messages that one crash is judged by."""


def failover(trial: Trial, folder: Path) -> Outcome:
    plan, category = trial.plan, trial.plan.categories[0]
    assert category.period_ns is not None
    notes: list[str] = []
    scratch = tempfile.TemporaryDirectory(prefix="holdfast-trial-")
    brokers = HoldfastBrokers(plan, Path(scratch.name))
    try:
        brokers.start()
        brokers.await_ready()
        steady_ns = time.monotonic_ns() + int(BEGIN_S * S)
        steady = Steady(
            list(brokers.addresses),
            topic_name(category, 0),
            category.contract(),
            steady_ns,
            plan.load.subscribe_qos,
        )
        with watching(steady) as watched:
            put(plan, watched.pid, "subscribers", notes)
            begin_ns = time.time_ns() + plan.warm_up_ns
            sleep_until(max(begin_ns, time.time_ns() + steady_ns - time.monotonic_ns()))
            times = crash_again(brokers.group, steady_ns, category.period_ns, trial, notes)
            seen = watched.finish()
    finally:
        brokers.close()
        scratch.cleanup()
    found = [judge(seen, at_ns, category.period_ns) for at_ns in times]
    return Outcome(begin_ns=begin_ns, end_ns=time.time_ns(), figures=figures_of(found), notes=notes)


def crash_again(group: Group, steady_ns: int, period_ns: int, trial: Trial, notes: list[str]) -> list[int]:
    """Kills the primary of a whole group until the measuring time is over; returns when, each time."""
    plan = trial.plan
    quiet_s = QUIET_PERIODS * period_ns / S
    end = time.monotonic() + plan.measure_ns / S
    times = []
    while time.monotonic() < end:
        note = whole(group, trial, notes)
        time.sleep(quiet_s)
        sleep_until_after_message(steady_ns, period_ns, plan.fault.at_ns)
        times.append(group.kill(note.teller))
        time.sleep(quiet_s)
        group.start(note.teller)
    whole(group, trial, notes)
    return times


def whole(group: Group, trial: Trial, notes: list[str]) -> ViewNote:
    """Waits until every member protects the primary; what was started again gets its place too."""
    note = group.await_protected(len(group.members) - 1)
    for member in group.members.values():
        role = "primary" if member.name == note.teller else "backup"
        put(trial.plan, member.pid, role, notes)
    return note


def sleep_until_after_message(steady_ns: int, period_ns: int, after_ns: int) -> None:
    """Until that long after the next message of the steady topic."""
    since_ns = (time.monotonic_ns() - steady_ns) % period_ns
    wait_ns = after_ns % period_ns - since_ns
    time.sleep((wait_ns if wait_ns > 0 else wait_ns + period_ns) / S)


def figures_of(found: Sequence[Failover]) -> dict[str, list[float]]:
    """One value for each crash."""
    names = ("first_latency_ms", "worst_latency_ms", "excess_ms", "moved_ms", "lost")
    return {name: [float(getattr(each, name)) for each in found] for name in names}
