"""A few of the attacks, as `make hostile` runs them all: others do not notice them.

Which ones, goes by the commit: over some commits all that hold have their turn. A machine that runs tests
is busy, so what is asked is less than there: few good messages are late that the quiet phases and the
broker beside it do not excuse, and none is lost, and nobody is turned away.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hostile.attacks import Attack, all_attacks
from hostile.field import Where
from hostile.measure import Result, Seen, Times, measure_all
from hostile.table import LATE_SHARE_BUSY, faults, row
from support.groups import PATIENT

SHORT = Times(quiet_s=1.0, attack_s=2.0, rounds=1, silence=PATIENT)
EACH_TIME = 4
# What a broker does not withstand yet: `make hostile` shows it. Take a name out when it does.
FELT = {
    "equal-filters",
    "properties-for-each-filter",
    "unsubscribe-a-million",
    "connect-properties",
    "connects-of-strangers",
    "equal-filters-at-a-pair",
    "connect-properties-at-a-pair",
    "retained-that-never-match",
    "deep-wildcards",
    "filters-dropped",
    "denied-topics",
    "subscription-identifiers",
    "large-behind-small",
    "half-connects",
    "reset-while-checked",
    "wrong-passwords",
    "unknown-users",
    "foreign-identifiers",
}
ALWAYS = ("frames-of-a-byte", "half-requests", "ping-flood")


def chosen() -> list[Attack]:
    """The most telling, and some more by the number of the commit."""
    known = all_attacks()
    done = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    turn = int(done.stdout) if done.returncode == 0 else 0
    rest = [name for name in known if name not in FELT and name not in ALWAYS]
    more = [rest[(turn * EACH_TIME + number) % len(rest)] for number in range(EACH_TIME)]
    return [known[name] for name in (*ALWAYS, *more)]


def test_others_do_not_notice_an_attack(tmp_path: Path) -> None:
    attacks = chosen()
    for attack, result in zip(attacks, measure_all(attacks, tmp_path, SHORT), strict=True):
        found = list(faults(result, attack, late_share=LATE_SHARE_BUSY))
        assert not found, row(result, attack)


def test_every_attack_says_what_it_does_and_those_that_are_felt_are_known() -> None:
    known = all_attacks()
    assert len(known) >= 27
    assert set(known) >= FELT | set(ALWAYS)
    assert {each.where for each in known.values()} == set(Where)
    assert all(len(each.says) > 20 for each in known.values())


# The judge is judged: each fault of its own makes a row red.

CALM = Seen(sent=100, p50_ms=0.2, p99_ms=2.0, max_ms=3.0, late=0, lost=0)
WELL = Result(
    attack="x", quiet=CALM, attacked=CALM, excused=0, gone=[], refused=[], visits=10, visit_max_ms=50.0,
    probes=10, health=[], failovers=0, kept=110, before_mib=40.0, peak_mib=60.0, after_mib=45.0, cpu=0.5,
    cpu_quiet=0.01, turn_ms=1.0, steps=10, turned_away=0,
)  # fmt: skip
LATE = Seen(sent=100, p50_ms=0.2, p99_ms=80.0, max_ms=90.0, late=5, lost=0)
LOST = Seen(sent=100, p50_ms=0.2, p99_ms=2.0, max_ms=3.0, late=0, lost=1)


def judged(**changed: object) -> list[str]:
    from msgspec.structs import replace

    return list(faults(replace(WELL, **changed), next(iter(all_attacks().values()))))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"attacked": LATE}, "5 late"),
        ({"attacked": LATE, "excused": 4}, "1 late"),
        ({"attacked": LOST}, "1 lost"),
        ({"gone": ["DISCONNECT 97"]}, "sent away"),
        ({"refused": ["CONNACK 0x89"]}, "1 of 10 others"),
        ({"health": ["timed out"]}, "1 of 10 probes"),
        ({"failovers": 1}, "failover"),
        ({"kept": 109}, "1 of 110"),
        ({"peak_mib": 700.0}, "memory grew"),
        ({"after_mib": 300.0}, "did not come back"),
    ],
)
def test_what_others_notice_makes_a_row_red(changed: dict[str, object], words: str) -> None:
    (found,) = judged(**changed)
    assert words in found


def test_what_nobody_notices_does_not() -> None:
    assert judged() == []
    assert judged(attacked=LATE, excused=5) == []
    assert judged(attacked=LATE, quiet=LATE) == []
