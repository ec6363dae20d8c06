"""A member stopped for 35 to 70 ms once a second (SIGSTOP, SIGCONT), and what a subscriber sees of it.

That is what a shared virtual machine does to its guests. How long a silent member is waited for follows from
the contracts: one with a deadline of 150 ms bears such stops, those of 50 ms do not.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.contract.file import load_contracts
from holdfast.contract.model import Contract
from holdfast.lab.cpu import place
from holdfast.lab.group import Group, Settings, running_group
from holdfast.lab.steady import Seen, Steady, watching
from holdfast.units import MS

from .contracts import FRAME
from .report import Outcome, Table, Verdict
from .stage import Run

PATIENT = """\
[[contract]]
name = "patient"
topics = ["plant/patient/+"]
period = "100ms"
deadline = "150ms"
loss_tolerance = 0
retention = 1
"""
SHORTEST_S, LONGEST_S = 0.035, 0.070
BEGIN_S = 1.5
QUIET_S = 0.5
STOPS, STOPS_QUICK = 300, 10
TAKEOVERS_MAX = 3
IN_TIME_MIN = 0.999


@dataclass(frozen=True)
class Found:
    """What so many stops did. `stood_still_ms` are those that a takeover told of."""

    who: str
    contract: str
    stops: int
    takeovers: int
    stood_still_ms: list[float]
    messages: int
    late: int
    lost: int
    latest_ms: float

    @property
    def in_time(self) -> float:
        return 1 - (self.late + self.lost) / max(1, self.messages)


def stop_again(group: Group, who: str, stops: int, rng: random.Random) -> None:
    """Stops the primary, or its heir, once in every second. Whoever does so is real-time, or else stops last
    longer than they should."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    for _ in range(stops):
        began = time.monotonic()
        note = group.await_protected()
        name = note.teller if who == "primary" else note.places[1].name
        time.sleep(rng.random() / 5)
        group.signal(name, signal.SIGSTOP)
        time.sleep(rng.uniform(SHORTEST_S, LONGEST_S))
        group.signal(name, signal.SIGCONT)
        time.sleep(max(0.0, began + 1.0 - time.monotonic()))


def stall(contracts: Path, name: str, who: str, stops: int, settings: Settings) -> Found:
    contract = next(each for each in load_contracts(contracts).contracts if each.name == name)
    with running_group(2, contracts, settings) as group:
        before = served(group)
        begin_ns = time.monotonic_ns() + int(BEGIN_S * 1e9)
        topic = contract.topics[0].replace("+", "steady")
        with watching(Steady(group.addresses, topic, contract, begin_ns)) as watched:
            place(watched.pid, (), "realtime")
            time.sleep(BEGIN_S + QUIET_S)
            stop_again(group, who, stops, random.Random(1))
            group.await_protected()
            time.sleep(QUIET_S)
            seen = watched.finish()
        takeovers = served(group) - before
        lines = [line for each in group.members.values() for line in each.said("primary was alive")]
    stood = [float(found[1]) for line in lines if (found := re.search(r"stood_still_ms=([\d.]+)", line))]
    return account(who, contract, stops, takeovers, stood, seen)


def served(group: Group) -> int:
    return sum(len(member.said("serving")) for member in group.members.values())


def account(
    who: str, contract: Contract, stops: int, takeovers: int, stood: list[float], seen: Seen
) -> Found:
    took = [seen.arrived[number] - made for number, made in seen.made.items() if number in seen.arrived]
    return Found(
        who,
        contract.name,
        stops,
        takeovers,
        stood,
        len(seen.made),
        sum(ns > contract.deadline_ns for ns in took),
        len(seen.made) - len(took),
        max(took) / MS,
    )


def stalls(run: Run) -> Outcome:
    stops = STOPS_QUICK if run.quick else STOPS
    settings = Settings(heartbeat="10ms", silence="", realtime=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-stalls-") as folder:
        patient = Path(folder) / "patient.toml"
        patient.write_text(PATIENT)
        found = [
            stall(patient, "patient", "primary", stops, settings),
            stall(FRAME, "0", "primary", stops, settings),
            stall(patient, "patient", "heir", stops, settings),
            stall(FRAME, "0", "heir", stops, settings),
        ]
    return Outcome([_table(found)], [*_verdicts(found)], {"stalls": [asdict(each) for each in found]})


def _table(found: list[Found]) -> Table:
    columns = ("stopped", "contract", "stops", "takeovers", "messages", "late", "lost", "latest ms")
    rows = [
        (
            *(each.who, each.contract, str(each.stops), str(each.takeovers), str(each.messages)),
            *(str(each.late), str(each.lost), f"{each.latest_ms:.1f}"),
        )
        for each in found
    ]
    notes = (
        "patient: T = 100, D = 150 ms, L = 0, N = 1; 0: the example's, T = 50, D = 50 ms, L = 0, N = 2",
        "stopped for 35 to 70 ms once a second; silence follows from the contracts",
    )
    return Table("stalls: what a subscriber sees of a member that stands still", columns, rows, notes)


def _verdicts(found: list[Found]) -> list[Verdict]:
    patient, tight, *heirs = found
    told = sorted(tight.stood_still_ms)
    spread = f"{told[0]:.0f} to {told[-1]:.0f} ms" if told else "none"
    return [
        Verdict(
            f"the primary stopped for 35 to 70 ms once a second, {patient.stops} times; D = 150 ms",
            f"at most {TAKEOVERS_MAX} takeovers, nothing late or lost",
            f"{patient.takeovers} takeovers, {patient.late} late, {patient.lost} lost of {patient.messages}, "
            f"the latest after {patient.latest_ms:.1f} ms",
            patient.takeovers <= TAKEOVERS_MAX and patient.in_time == 1,
        ),
        Verdict(
            f"the same, {tight.stops} times; D = 50 ms",
            f"{IN_TIME_MIN:.1%} in time, nothing lost, each takeover says how long it stood still",
            f"{tight.in_time:.2%} in time, {tight.lost} lost, {tight.takeovers} takeovers, of which "
            f"{len(told)} said {spread}",
            tight.in_time >= IN_TIME_MIN and not tight.lost and len(told) == tight.takeovers,
        ),
        Verdict(
            f"the heir stopped in the same way, {heirs[0].stops} times; D = 150 and 50 ms",
            "no takeover, nothing late or lost",
            f"{sum(each.takeovers for each in heirs)} takeovers, {sum(each.late for each in heirs)} late, "
            f"{sum(each.lost for each in heirs)} lost",
            all(not each.takeovers and each.in_time == 1 for each in heirs),
        ),
    ]
