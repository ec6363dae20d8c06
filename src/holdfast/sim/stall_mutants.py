"""Deliberate faults in how long a silent member is waited for; see mutants.py."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from holdfast.replication import member, silence
from holdfast.replication.silence import Silence
from holdfast.sim.mutants import LOSSES, mutant
from holdfast.units import MS

SOON_NS = 30 * MS


@mutant("never-waits", 115, "three heartbeats are death, whatever is at stake", Silence, "look", "Patience")
def _never_waits(look: Any) -> object:
    return lambda self, now_ns, told=(): False


@mutant("calm-is-short", 115, "who never saw a standstill waits for none", silence, "CALM_NS", "Patience")
def _calm_is_short(calm_ns: Any) -> object:
    return SOON_NS


@mutant("learns-nothing", 350, "a standstill is not expected again", silence, "MARGIN", "Patience")
def _learns_nothing(margin: Any) -> object:
    return 0


@mutant("waits-for-ever", 50, "contracts do not bound the silence", silence, "bound_of", "Failover", *LOSSES)
def _waits_for_ever(bound: Any) -> object:
    def boundless(*arguments: Any, **more: Any) -> object:
        found = bound(*arguments, **more)
        return structs.replace(found, silence_ns=4 * found.silence_ns, x_ns=4 * found.x_ns)

    return boundless


@mutant(
    "wakes-and-serves", 350, "a primary that stood still goes on at once", member, "wake", "Patience", *LOSSES
)
def _wakes_and_serves(wake: Any) -> object:
    return lambda self, now_ns, slept_ns: self.peers.forgive(slept_ns, now_ns)
