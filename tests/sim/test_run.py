"""Whole groups in virtual time: the laws hold, a run repeats exactly, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from zlib import crc32

import pytest

from holdfast.sim.bounds import BOUNDS, smaller
from holdfast.sim.drawing import MESSAGES_MIN, draw
from holdfast.sim.fault_plans import KINDS
from holdfast.sim.run import simulate
from holdfast.sim.sweep import run_seed, sweep

PRINT_DIGEST = """
from tests.sim.test_run import digest
print(digest(5))
"""


def digest(seed: int) -> int:
    """Everything that anybody got, and when."""
    outcome, ledger = simulate(draw(seed))
    return crc32(repr((outcome, ledger.taken, ledger.wired, ledger.member_views, ledger.views)).encode())


SEEDS_OF_NOTE = (
    2200004646,  # a will that finds no room to be retained
    6557,  # two failures with nothing delivered between them
    5606,  # the same, and a subscriber that comes and goes
    910004572,  # a member that starts when everything is over
    910009730,  # a primary that was secluded vouches for members whose words were held up
    910010716,  # the same, at its second claim
    910011004,  # a subscriber reads what a dead primary had sent it, and another crash follows
    910018825,  # a primary falls while its heir still looks for the one before
    910027451,  # a primary is cut off as it adds an heir
    910062316,  # a client gives up its connection while its SUBSCRIBE waits for a depth
    910072875,  # clients stay with a primary that stands still, and its heir falls
    1500000146,  # two publishers of a topic with QoS 2 have rings, and the primary is isolated
    1500011220,  # a client leaves while a message is on its way to it
    2100005418,  # what was sent again comes to a subscriber that was away
    2100005510,  # two members begin to serve within a millisecond, and one gives way
    2200001423,  # a subscriber answers while a new heir is told of its session
    1600001324,  # a member greets before it serves, over a connection that replaces another
    2300003798,  # what its publisher sends again waits for a subscriber that was away
    2500038845,  # a session begins while a link flaps
    2500039594,  # … and while hostile clients keep an heir busy
    2600023110,  # a dial fails late, when its client is connected by another
    2500008533,  # far members: a member vouches with what another said before it served
    3100002894,  # a primary is cut off from everybody, its heirs fall silent in turn, and a SUBSCRIBE waits
    3100018859,  # a primary stands still for less than three heartbeats and longer than the silence, twice
    1600001953,  # a publisher writes ahead at a standby, and alone keeps more than its bound
    158884176988,  # a publisher without a ring stood still, and publishes at once into a primary that does
    158884180908,  # what a primary finds in its sockets when it wakes has no order
    158884184065,  # the last N of a publisher are more than is read at once
    158884184287,  # members know of the next view before the one that comes first
    158884194074,  # a session that is away holds as much as those of hostile clients
    679673545829,  # a primary dies when only a copy said what is retained
    7073129750,  # what an heir said before a cut names a view that was never opened
    662537627053,  # a DISCONNECT waits behind a CONNECT when the connection ends
    815268406811,  # an heir that took over says so over a connection that replaces the one before
    815268409312,  # standstills of less than three heartbeats, and a longer one
    815268409620,  # a primary that waits longer from now on stands still before it says so
    815268413240,  # a connection is reset while its primary is about to open another view
    7805350608,  # a publisher stands still itself while its primary dies
    910855472755,  # a primary was idle, then stood still: its heir heard nothing for longer than it slept
    277959381999,  # an heir has no room for the last copy of a primary that is dead by then
    277959384436,  # sessions lapse in the moment in which the run ends
    7805354848,  # an heir has a copy of what was sent while a QoS 0 subscriber was away
)


@pytest.mark.parametrize("seed", [*range(1, 13), *SEEDS_OF_NOTE])
def test_every_law_holds(seed: int) -> None:
    outcome, _ = simulate(draw(seed))
    assert outcome.violations == []
    assert outcome.messages >= MESSAGES_MIN
    assert outcome.faults >= 1


def test_one_seed_is_one_run_whatever_ran_before_and_in_any_process() -> None:
    first = digest(5)
    simulate(draw(6))
    assert digest(5) == first
    for salt in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST],
            env={"PYTHONHASHSEED": salt, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(told.stdout) == first


def test_options_are_a_function_of_the_seed_and_cover_every_fault() -> None:
    assert draw(9) == draw(9)
    drawn = {(fault.kind, fault.where) for seed in range(600) for fault in draw(seed).faults}
    assert {(kind, where) for kind, where, _ in KINDS} <= drawn
    assert {draw(seed).members for seed in range(40)} == {2, 3, 4}


def test_some_members_are_far_from_each_other_and_their_link_flaps() -> None:
    drawn = [options for options in map(draw, range(1_200)) if options.far]
    assert 1_200 // 120 < len(drawn) < 1_200 // 30
    assert sum(options.answer_ns_max > 0 for options in drawn) > len(drawn) // 2
    for options in drawn:
        assert options.faults[0].kind == "flap"
        assert options.silence_ns > 3 * options.ways["peer"].longest_ns
    outcome, ledger = simulate(draw(1789))
    assert [kind for _, kind, _ in ledger.faults] == ["flap"]
    assert outcome.violations == []


def test_every_bound_that_may_be_smaller_is_there_and_comes_back() -> None:
    usual = {name: getattr(module, name) for name, (module, _) in BOUNDS.items()}
    with smaller(dict.fromkeys(BOUNDS, 1)):
        assert {getattr(module, name) for name, (module, _) in BOUNDS.items()} == {1}
    assert {name: getattr(module, name) for name, (module, _) in BOUNDS.items()} == usual


def test_every_contract_drawn_is_admitted_and_there_are_enough_messages() -> None:
    from holdfast.contract.admission import admit

    for seed in range(60):
        options = draw(seed)
        assert all(admit(topic.contract, options.deployment).admitted for topic in options.topics)
        assert any(topic.contract.loss_tolerance == 0 for topic in options.topics)
        planned = sum(
            len(topic.publishers) * options.publish_ns // topic.contract.period_ns for topic in options.topics
        )
        assert planned >= MESSAGES_MIN


def test_a_sweep_gives_every_seed_once_and_survives_a_seed_that_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = list(sweep(range(1, 5), workers=2))
    assert sorted(outcome.seed for outcome in outcomes) == [1, 2, 3, 4]
    monkeypatch.setattr("holdfast.sim.sweep.simulate", lambda *a, **k: 1 / 0)
    broken = run_seed((1, None))
    assert broken.violations[0].law == "No mistake"
    assert "ZeroDivisionError" in broken.violations[0].text
