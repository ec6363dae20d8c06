"""Every mutant is found, by a law that it breaks, within a bounded number of seeds.

`make test` begins at a seed that found it, `make sim` at seed 1. Whatever changes what a seed draws moves the
one that finds it, so both go on for a while, through the runs in which the mutant can show."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count, islice

import pytest

from holdfast.sim.drawing import draw
from holdfast.sim.every_mutant import MUTANTS
from holdfast.sim.sweep import run_seed, sweep

NEAR_MAX = 100
SEEDS_MAX = 400


def finds(name: str, seed: int) -> bool:
    """The mutant breaks a law in this run, which is clean without it."""
    laws = {violation.law for violation in run_seed((seed, name)).violations}
    return bool(laws & set(MUTANTS[name].laws)) and run_seed((seed, None)).violations == []


def near(name: str) -> Iterator[int]:
    """Seeds of runs in which the mutant can show."""
    among = MUTANTS[name].among
    return islice((seed for seed in count(MUTANTS[name].seed) if among(draw(seed))), NEAR_MAX)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_near_a_known_seed(name: str) -> None:
    assert any(finds(name, seed) for seed in near(name)), (
        f"{MUTANTS[name].what}: not found in {NEAR_MAX} runs"
    )


@pytest.mark.skipif("HOLDFAST_SIM_MUTANTS" not in os.environ, reason="takes minutes: make sim")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_search_finds_the_mutant(name: str) -> None:
    laws = set(MUTANTS[name].laws)
    seeds = list(islice((seed for seed in count(1) if MUTANTS[name].among(draw(seed))), SEEDS_MAX))
    for outcome in sweep(seeds, name):
        if laws & {violation.law for violation in outcome.violations}:
            return
    raise AssertionError(f"{name} was not found in {SEEDS_MAX} seeds")
