"""SIGKILL of the primary under the published mix, again and again, and an account of every message.

Publishers and subscribers live through all the crashes; the killed broker comes back each time under
traffic and becomes the next one's protection. A crash is kept if no topic lost more in a row than its L.
"""

from __future__ import annotations

import bisect
import random
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.contract.file import load_contracts
from holdfast.lab.group import Group, Settings, running_group
from holdfast.runtime.ahead import go_ahead

from .contracts import FRAME
from .measure import Aside, alone, aside, spread
from .mix import Account, Published, Received, proxies_of, publish_mix, receive_mix, settle_account
from .report import Outcome, Table, Verdict
from .stage import Run

CRASHES = 50
CRASHES_QUICK = 5
PUBLISHER_PROCESSES = 2
WARM_UP_S = 2.0
BETWEEN_S = 1.0
AFTER_S = 1.0
SEED = 7


@dataclass(frozen=True)
class Crash:
    """One SIGKILL: when, how long until the last publisher wrote elsewhere, and what was dispatched again."""

    at_ns: int
    redirect_ns: int
    subscriber_redirect_ns: int
    protected_ns: int
    again: int


@dataclass
class Trial:
    """All crashes of one run, and the account of its messages."""

    crashes: list[Crash]
    account: Account
    received: Received
    unsent: int

    def kept(self) -> int:
        """Crashes after which no topic had lost more in a row than it tolerates."""
        times = [crash.at_ns for crash in self.crashes]
        soon_ns = int(BETWEEN_S * 1e9)  # the first that is lost may have been made before the crash
        spoilt = {max(0, bisect.bisect(times, run.made_ns + soon_ns) - 1) for run in self.account.broken}
        return len(self.crashes) - len(spoilt)


def crash_again(group: Group, crashes: int, rng: random.Random) -> list[tuple[int, int, int]]:
    """Kills the primary at random moments, so many times; when, until protected again, and re-dispatched."""
    done = []
    for _ in range(crashes):
        note = group.await_protected()
        time.sleep(BETWEEN_S + rng.random() / 2)
        at_ns = group.kill(note.teller)
        heir = note.places[1].name
        time.sleep(AFTER_S)
        group.start(note.teller)
        group.await_protected()
        done.append((at_ns, time.monotonic_ns() - at_ns, group.takeover(heir).get("again", 0)))
    return done


def trial(
    qos: int, crashes: int, settings: Settings, *, share: float = 1.0, warm_up_s: float = WARM_UP_S
) -> Trial:
    book = load_contracts(FRAME)
    proxies = proxies_of(book.contracts, share)
    with running_group(2, FRAME, settings) as group, ExitStack() as stack:
        subscriber = stack.enter_context(aside(receive_mix, group.addresses, list(book.contracts), qos))
        subscriber.await_ready()
        publishers: list[Aside] = []
        for number in range(PUBLISHER_PROCESSES):
            mine = proxies[number::PUBLISHER_PROCESSES]
            publishers.append(stack.enter_context(aside(publish_mix, group.addresses, mine, number)))
        for each in publishers:
            each.await_ready()
        time.sleep(warm_up_s)
        done = crash_again(group, crashes, random.Random(SEED))
        time.sleep(BETWEEN_S)
        published: list[Published] = [each.finish() for each in publishers]
        time.sleep(BETWEEN_S)
        received: Received = subscriber.finish()
    account = settle_account(proxies, published, received)
    redirects = [times for each in published for times in each.redirects_ns.values()]
    theirs = list(received.redirects_ns.values())
    return Trial(
        [
            Crash(at_ns, _last_after(redirects, at_ns), _last_after(theirs, at_ns), protected_ns, again)
            for at_ns, protected_ns, again in done
        ],
        account,
        received,
        sum(each.unsent for each in published),
    )


def _last_after(redirects: list[list[int]], at_ns: int) -> int:
    """How long after the crash the last of those clients had moved."""
    firsts = [next((each for each in times if each >= at_ns), at_ns) for times in redirects]
    return max(firsts) - at_ns


def crash(run: Run) -> Outcome:
    crashes = CRASHES_QUICK if run.quick else CRASHES
    settings = Settings(ahead=alone(go_ahead))
    trials = {f"QoS {qos} subscribers": trial(qos, crashes, settings) for qos in (1, 0)}
    return Outcome(
        [_table(trials), _by_category(trials)],
        [_verdict(name, each) for name, each in trials.items()],
        {name: _raw(each) for name, each in trials.items()},
    )


def _ms(values: list[int]) -> str:
    return spread(value / 1e6 for value in values).show("{:.1f}")


def _table(trials: dict[str, Trial]) -> Table:
    rows = []
    for name, each in trials.items():
        account = each.account
        rows.append(
            (
                name,
                f"{each.kept()} of {len(each.crashes)}",
                f"{account.topics - len({run.topic for run in account.broken}):,} of {account.topics:,}",
                f"{account.published:,}",
                f"{account.lost:,}",
                f"{account.repeated}",
                f"{each.received.duplicates:,}",
                _ms([crash.redirect_ns for crash in each.crashes]),
                f"{max(crash.redirect_ns for crash in each.crashes) / 1e6:.1f}",
                _ms([crash.protected_ns for crash in each.crashes]),
                spread(crash.again for crash in each.crashes).show("{:.0f}"),
            )
        )
    columns = (
        *("", "crashes kept", "topics within L", "published", "lost", "given twice", "held back"),
        *("x ms", "x max ms", "protected after ms", "dispatched again"),
    )
    notes = (
        "x: from SIGKILL until the last publisher wrote to the new primary",
        "held back: duplicates that the library recognised; given twice: those that it did not",
        "every process of it goes ahead of other work on this machine, where that is permitted",
        f"protected after: includes {AFTER_S:g} s before the killed broker is started again",
    )
    return Table("crash: SIGKILL under the published mix", columns, rows, notes)


def _by_category(trials: dict[str, Trial]) -> Table:
    rows = []
    for name, each in trials.items():
        for contract in load_contracts(FRAME).contracts:
            category, tolerated = contract.name, contract.loss_tolerance
            rows.append(
                (
                    f"{name}, category {category}",
                    "unlimited" if tolerated is None else str(tolerated),
                    str(each.account.longest(category)),
                    f"{sum(run.length for run in each.account.runs if run.category == category):,}",
                    f"{each.received.late.get(category, 0):,}",
                    f"{each.received.worst_ns.get(category, 0) / 1e6:.1f}",
                )
            )
    columns = ("", "L", "longest run lost", "lost", "after deadline", "latest ms")
    return Table("crash: by category", columns, rows)


def _verdict(name: str, each: Trial) -> Verdict:
    account = each.account
    lossless = sum(run.length for run in account.runs if run.tolerated == 0)
    within = account.topics - len({run.topic for run in account.broken})
    return Verdict(
        f"SIGKILL at the published mix, 1,525 topics, {len(each.crashes)} crashes, {name}",
        "loss tolerance kept for 100 % of topics, none of L = 0 lost",
        f"{within / account.topics:.2%} of topics, {lossless} of L = 0 lost, "
        f"{each.kept()} of {len(each.crashes)} crashes kept",
        not account.broken and lossless == 0 and account.repeated == 0,
    )


def _raw(each: Trial) -> dict[str, Any]:
    return {
        "crashes": [asdict(crash) for crash in each.crashes],
        "published": each.account.published,
        "delivered": each.account.delivered,
        "lost": each.account.lost,
        "repeated": each.account.repeated,
        "disordered": each.account.disordered,
        "unsent": each.unsent,
        "broken": [asdict(run) for run in each.account.broken],
        "late": each.received.late,
        "worst_ns": each.received.worst_ns,
    }
