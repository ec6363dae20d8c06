"""Seeds that follow from the commit: nobody has run them before."""

from __future__ import annotations

from holdfast.cli.sim import fresh_seeds
from holdfast.sim.sweep import sweep

COUNT = 60


def test_every_law_holds_for_seeds_that_nobody_has_run() -> None:
    bad = {
        outcome.seed: [f"{each.law}: {each.text[:300]}" for each in outcome.violations]
        for outcome in sweep(fresh_seeds(COUNT), workers=2)
        if outcome.violations
    }
    assert bad == {}, "holdfast sim --seed N --explain tells the story of each"
