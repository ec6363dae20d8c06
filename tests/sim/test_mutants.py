"""Every mutant is found, by a law that it breaks, within a bounded number of seeds.

`make test` looks near a seed that is known to find it; `make sim` looks for each from seed 1 on."""

from __future__ import annotations

import os

import pytest

from holdfast.sim.every_mutant import MUTANTS
from holdfast.sim.sweep import run_seed, sweep

NEAR_MAX = 20
SEEDS_MAX = 400


def finds(name: str, seed: int) -> bool:
    """The mutant breaks a law in this run, which is clean without it."""
    laws = {violation.law for violation in run_seed((seed, name)).violations}
    return bool(laws & set(MUTANTS[name].laws)) and run_seed((seed, None)).violations == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_near_a_known_seed(name: str) -> None:
    near = range(MUTANTS[name].seed, MUTANTS[name].seed + NEAR_MAX)
    assert any(finds(name, seed) for seed in near), f"{MUTANTS[name].what}: not found in {near}"


@pytest.mark.skipif("HOLDFAST_SIM_MUTANTS" not in os.environ, reason="takes minutes: make sim")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_search_finds_the_mutant(name: str) -> None:
    laws = set(MUTANTS[name].laws)
    for outcome in sweep(range(1, SEEDS_MAX + 1), name):
        if laws & {violation.law for violation in outcome.violations}:
            return
    raise AssertionError(f"{name} was not found in {SEEDS_MAX} seeds")
