"""A few of the attacks, as `make hostile` runs them all: others do not notice them.

Which ones, goes by the commit: over some commits all have their turn. What the
machine is to blame for is taken off, so that the verdict is the same on one that has other work.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hostile.attacks import Attack, all_attacks
from hostile.field import Where
from hostile.measure import Result, Sample, Seen, Times, measure_all, own_ns, waiting_times
from hostile.page import PAGE, UNKNOWN, line, rows, with_rows
from hostile.table import EXCUSED_SHARE_MAX, faults, is_judged, row

SHORT = Times(quiet_s=1.0, attack_s=2.0, rounds=1)
EACH_TIME = 4
ALWAYS = ("frames-of-a-byte", "half-requests", "ping-flood")


def chosen() -> list[Attack]:
    """The most telling, and some more by the number of the commit."""
    known = all_attacks()
    done = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    turn = int(done.stdout) if done.returncode == 0 else 0
    rest = [name for name in known if name not in ALWAYS]
    more = [rest[(turn * EACH_TIME + number) % len(rest)] for number in range(EACH_TIME)]
    return [known[name] for name in (*ALWAYS, *more)]


def test_others_do_not_notice_an_attack(tmp_path: Path) -> None:
    attacks = chosen()
    for attack, result in zip(attacks, measure_all(attacks, tmp_path, SHORT), strict=True):
        found = list(faults(result, attack))
        assert not found, row(result, attack)


def test_every_attack_says_what_it_does() -> None:
    known = all_attacks()
    assert len(known) >= 64
    assert set(known) >= set(ALWAYS)
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


@pytest.mark.parametrize(("excuses", "judged"), [(0, True), (3, True), (4, False)])
def test_where_the_machine_excuses_much_nothing_is_known(excuses: int, judged: bool) -> None:
    from msgspec.structs import replace

    late = replace(LATE, late=excuses)
    result = replace(WELL, attacked=late, excused=excuses)
    assert EXCUSED_SHARE_MAX * late.sent == 3
    assert is_judged(result) == judged
    assert row(result, next(iter(all_attacks().values()))).startswith("well" if judged else "busy")


# What the machine is to blame for. Times are in milliseconds here.

MS = 1_000_000


def samples(*told: tuple[int, int, int, int]) -> list[Sample]:
    """When, for how long the broker ran until then, and for how long it and another waited."""
    return [Sample(at * MS, ran * MS, (one * MS, other * MS)) for at, ran, one, other in told]


def own_ms(found: list[Sample], begin: int, end: int) -> float:
    return own_ns(found, waiting_times(found), begin * MS, end * MS) / MS


def every_5_ms(until: int, ran: int = 0) -> list[tuple[int, int, int, int]]:
    return [(at, at * ran, 0, 0) for at in range(0, until, 5)]


def test_a_wait_is_taken_off_once_whoever_waits_and_only_where_it_lies() -> None:
    calm = every_5_ms(100)
    both = samples(*calm, (100, 0, 60, 60), (105, 0, 60, 60))
    assert own_ms(both, 0, 100) == 40, "two that wait at once wait once"
    assert own_ms(both, 0, 50) == 40, "a wait that ended at 100 began at 40"
    assert own_ms(samples(*calm, (100, 0, 60, 0)), 0, 30) == 30, "a wait of another time excuses nothing"
    assert own_ms(samples(*calm, (100, 0, 500, 0)), 50, 100) == 0, (
        "and none is longer than the time there was"
    )


def test_what_the_broker_did_is_its_own_however_busy_the_machine_is() -> None:
    busy = [(at, ran, at, 0) for at, ran, _, _ in every_5_ms(105, ran=1)]
    assert own_ms(samples(*busy), 0, 100) == 100
    assert own_ms(samples(*[(at, 0, at, 0) for at, *_ in busy]), 0, 100) == 0


def test_who_takes_the_samples_and_gets_no_time_shows_that_there_was_none() -> None:
    assert own_ms(samples((0, 0, 0, 0), (5, 0, 0, 0), (95, 0, 0, 0), (100, 0, 0, 0)), 0, 100) == 15
    assert own_ms(samples(*every_5_ms(105)), 0, 100) == 100


# The table in docs/security.md.


def test_the_page_has_every_attack_and_what_it_does() -> None:
    known, told = all_attacks(), rows(PAGE.read_text())
    assert list(told) == list(known)
    for name, row_of in told.items():
        assert row_of.startswith(f"| `{name}` | {known[name].says} | ")


def test_a_run_writes_the_rows_of_what_it_ran_and_no_others() -> None:
    from msgspec.structs import replace

    text = PAGE.read_text()
    first, second = list(all_attacks())[:2]
    once = with_rows(text, [replace(WELL, attack=first)])
    assert rows(once)[first] == line(replace(WELL, attack=first))
    assert {name: each for name, each in rows(once).items() if name != first} == {
        name: each for name, each in rows(text).items() if name != first
    }
    assert with_rows(once, []) == once
    bare = with_rows(once.replace(rows(once)[second] + "\n", ""), [])
    assert UNKNOWN in rows(bare)[second]
