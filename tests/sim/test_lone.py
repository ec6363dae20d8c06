"""Runs with one broker and nobody to take over: the laws hold without faults, and are broken by a crash."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.sim.lone import LoneMember

from holdfast.sim.drawing import MESSAGES_MIN, draw
from holdfast.sim.options import Fault, Options
from holdfast.sim.run import simulate
from holdfast.units import MS


def alone(seed: int, *faults: Fault) -> Options:
    drawn = draw(seed)
    subscribers = tuple(structs.replace(plan, depth=0, away=()) for plan in drawn.subscribers)
    options = structs.replace(
        drawn,
        members=1,
        faults=faults,
        subscribers=subscribers,
        starts_ns=(0,),
        opens_ns=0,
        answer_ns_max=0,
        crowd=None,
        instants=0,
    )
    everybody = 1 + options.publishers + len(options.subscribers)
    return structs.replace(options, skews_ns=options.skews_ns[:everybody])


@pytest.mark.parametrize("seed", range(6))
def test_without_faults_every_law_holds(seed: int) -> None:
    outcome, ledger = simulate(alone(seed), make=LoneMember)
    assert outcome.violations == []
    assert outcome.messages >= MESSAGES_MIN
    assert sum(len(payloads) for taken in ledger.taken for _, payloads in taken) >= MESSAGES_MIN


def test_a_crash_of_the_only_broker_is_noticed() -> None:
    laws = set()
    for seed in range(4):
        options = alone(
            seed,
            Fault(kind="kill", where="primary", at_ns=900 * MS, share=0.5),
            Fault(kind="restart", where="dead", at_ns=1_200 * MS),
        )
        outcome, _ = simulate(options, make=LoneMember)
        assert outcome.faults == 2
        laws |= {violation.law for violation in outcome.violations}
    assert {"Custody", "Failover"} <= laws


def test_a_run_is_a_function_of_its_seed() -> None:
    options = alone(3, Fault(kind="kill", where="primary", at_ns=900 * MS, share=0.7))
    first, one = simulate(options, make=LoneMember)
    second, two = simulate(options, make=LoneMember)
    assert first == second
    assert one.taken == two.taken
    assert one.wired == two.wired


def test_deadlines_in_the_order_of_arrival_are_missed() -> None:
    class InOrder(LoneMember):
        policy = "fcfs"

    busy = [seed for seed in range(60) if draw(seed).job_ns][:8]
    noticed = set()
    for seed in busy:
        assert simulate(alone(seed), make=LoneMember)[0].violations == []
        noticed |= {each.law for each in simulate(alone(seed), make=InOrder)[0].violations}
    assert noticed == {"Deadline"}
