"""Every mutant there is, whichever file defines it."""

from holdfast.sim import hostile_mutants, stall_mutants, state_mutants  # noqa: F401
from holdfast.sim.mutants import MUTANTS, mutation

__all__ = ["MUTANTS", "mutation"]
