"""Deliberate faults in how long a silent member is waited for; see mutants.py."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from holdfast.contract.model import Contract
from holdfast.endpoint.endpoint import Endpoint
from holdfast.replication import member, silence
from holdfast.replication.candidacy import Candidacy
from holdfast.replication.peers import Peers
from holdfast.replication.silence import Silence
from holdfast.sim.clients import ClientProcess
from holdfast.sim.mutants import LOSSES, mutant
from holdfast.sim.options import Options
from holdfast.units import MS

SOON_NS = 30 * MS


def _stalls(options: Options) -> bool:
    return any(fault.kind == "stall" for fault in options.faults)


def _nods(options: Options) -> bool:
    return options.nod_ns > 0


def _publishers_stall(options: Options) -> bool:
    return any(fault.client_for_ns for fault in options.faults)


@mutant("never-waits", 115, "three heartbeats are death, whatever is at stake", Silence, "look", "Patience")
def _never_waits(look: Any) -> object:
    return lambda self, now_ns, told=(): False


@mutant("calm-is-short", 115, "who never saw a standstill waits for none", silence, "CALM_NS", "Patience")
def _calm_is_short(calm_ns: Any) -> object:
    return SOON_NS


@mutant("learns-nothing", 350, "a standstill is not expected again", silence, "MARGIN", "Patience")
def _learns_nothing(margin: Any) -> object:
    return 1e-9


@mutant(
    "beats-by-the-clock",
    271,
    "what was written puts a beat off by another",
    Peers,
    "beat",
    "Patience",
    among=_stalls,
)
def _beats_by_the_clock(beat: Any) -> object:
    def late(self: Peers, beat_for: Any, now_ns: int, *, everybody: bool = True) -> None:
        beat(self, beat_for, now_ns, everybody=everybody)
        self._beat_at_ns = now_ns + self.group.heartbeat_ns

    return late


@mutant("waits-for-ever", 50, "contracts do not bound the silence", silence, "bound_of", "Failover", *LOSSES)
def _waits_for_ever(bound: Any) -> object:
    def boundless(*arguments: Any, **more: Any) -> object:
        found = bound(*arguments, **more)
        return structs.replace(found, silence_ns=4 * found.silence_ns, x_ns=4 * found.x_ns)

    return boundless


@mutant(
    "sleeps-in-secret",
    465,
    "nobody is told how long a member stood still",
    member,
    "wake",
    "Patience",
    *LOSSES,
    among=_stalls,
)
def _sleeps_in_secret(wake: Any) -> object:
    return lambda self, now_ns, slept_ns: self.peers.forgive(slept_ns, now_ns)


@mutant(
    "publishes-deaf",
    207,
    "a client publishes before it hears",
    ClientProcess,
    "hear_first",
    *LOSSES,
    among=_publishers_stall,
)
def _publishes_deaf(hear_first: Any) -> object:
    return lambda self: None


@mutant(
    "keeps-no-bursts",
    2628,
    "a ring knows N, and no time",
    Endpoint,
    "declare",
    *LOSSES,
    among=_publishers_stall,
)
def _keeps_no_bursts(declare: Any) -> object:
    def by_number(self: Endpoint, topic_filter: str, contract: Contract) -> None:
        declare(self, topic_filter, structs.replace(contract, period_ns=None))

    return by_number


@mutant(
    "waits-anew-for-ever",
    1,
    "whoever slept while it joined waits anew, each time",
    Candidacy,
    "woke",
    "Serves",
    among=_nods,
)
def _waits_anew_for_ever(woke: Any) -> object:
    def anew(self: Candidacy, slept_ns: int, now_ns: int) -> None:
        self.since_ns = now_ns

    return anew
