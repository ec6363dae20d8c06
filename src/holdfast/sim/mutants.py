"""Deliberate faults in the protocol, to prove that the checkers bite: each is found within a few seeds.

Law: a mutant is a change of behaviour from outside, by replacing a function for the length of one run; the
code that it breaks does not know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from struct import pack
from typing import Any, NamedTuple

from msgspec import structs

from holdfast.broker import broker
from holdfast.contract.model import Contract
from holdfast.endpoint import endpoint
from holdfast.endpoint.endpoint import Endpoint
from holdfast.endpoint.group import Group
from holdfast.replication import candidacy, contest, member, peers
from holdfast.replication.buffer import BackupBuffer
from holdfast.replication.member import Member
from holdfast.replication.peer import Peer
from holdfast.replication.peers import Peers
from holdfast.replication.recording import GroupRecorder
from holdfast.replication.roles import Role
from holdfast.replication.serving import Serving
from holdfast.sim.options import Options
from holdfast.sim.patching import Break, patched

DISCARD = 3  # the kind of a frame in broker/copies.pxd


def anywhere(options: Options) -> bool:
    return True


class Mutant(NamedTuple):
    """What is broken, a seed at or after which it is found soon, the laws that may notice it, how, and in
    which runs it can show at all."""

    seed: int
    what: str
    laws: tuple[str, ...]
    breaks: Callable[[], AbstractContextManager[object]]
    among: Callable[[Options], bool] = anywhere


MUTANTS: dict[str, Mutant] = {}
LOSSES = ("Custody", "Loss", "Acknowledged")


def mutation(name: str | None) -> AbstractContextManager[object]:
    """Breaks what the mutant of that name breaks, as long as it is entered."""
    return nullcontext() if name is None else MUTANTS[name].breaks()


def mutant(
    name: str,
    seed: int,
    what: str,
    owner: object,
    attribute: str,
    *laws: str,
    among: Callable[[Options], bool] = anywhere,
) -> Callable[[Break], Break]:
    """Registers a function that gets the true behaviour and gives the broken one."""

    def register(make: Break) -> Break:
        owners = owner if isinstance(owner, tuple) else (owner,)
        MUTANTS[name] = Mutant(seed, what, laws, lambda: patched(owners, attribute, make), among)
        return make

    return register


# The client


@mutant("client-gives-twice", 1, "the client forgets what it has given", endpoint, "STREAMS_MAX", "Once")
def _gives_twice(streams_max: Any) -> object:
    return 1


@mutant("client-keeps-one-less", 4, "a ring of N keeps N - 1", Endpoint, "declare", *LOSSES)
def _keeps_one_less(declare: Any) -> object:
    def less(self: Endpoint, topic_filter: str, contract: Contract) -> None:
        kept = max(0, contract.retention - 1)
        declare(self, topic_filter, structs.replace(contract, retention=kept))

    return less


@mutant("client-keeps-nothing", 1, "nothing is sent again", Endpoint, "declare", *LOSSES)
def _keeps_nothing(declare: Any) -> object:
    return lambda self, topic_filter, contract: None


@mutant("client-stays", 1, "a new primary is not believed", Group, "_served", "Failover", *LOSSES)
def _stays(served: Any) -> object:
    def stay(self: Group, channel: Any, note: Any) -> None:
        if self.target is None:
            served(self, channel, note)

    return stay


# The primary


@mutant("never-replicates", 4, "an heir gets no copies", Serving, "_add", *LOSSES)
def _never_replicates(add: Any) -> object:
    def without(self: Serving, name: str, now_ns: int, **more: bool) -> None:
        add(self, name, now_ns, **more)
        self.member.broker.core.set_backup(None)

    return without


@mutant("acknowledges-early", 4, "PUBACK at once; what waits to be copied is not", Member, "turn", *LOSSES)
def _acknowledges_early(turn: Any) -> object:
    def hasty(self: Member, now_ns: int, wall_ns: int) -> bool:
        more: bool = turn(self, now_ns, wall_ns)
        backup = self.broker.core.board.backup
        if self.role is Role.PRIMARY and backup is not None:
            self.broker.core.set_backup(None)
            self.broker.core.set_backup(backup)
        return more

    return hasty


@mutant("never-discards", 1, "the backup is not told what is dispatched", Member, "_start_core", "Pruning")
def _never_discards(start: Any) -> object:
    def uncoordinated(self: Member, *arguments: Any) -> None:
        start(self, *arguments)
        self.broker.core.board.coordinated = False

    return uncoordinated


@mutant("no-deadlines", 8, "messages go in the order of arrival", broker, "POLICIES", "Deadline")
def _no_deadlines(policies: Any) -> object:
    return {**policies, "edf": policies["fcfs"]}


@mutant(
    "subscriptions-stay", 1, "the backups do not learn of subscriptions", GroupRecorder, "subscribed", *LOSSES
)
def _subscriptions_stay(subscribed: Any) -> object:
    return lambda self, subscription, wanted: None


@mutant("never-steps-down", 1, "a stale primary goes on", member, "step", "Bounded", "One primary", *LOSSES)
def _never_steps_down(step: Any) -> object:
    return lambda role, happening: None if role is Role.PRIMARY else step(role, happening)


# The backup


class _PrunesEarly(Peer):
    def feed(self, data: bytes, now_ns: int, wall_ns: int) -> None:
        super().feed(data, now_ns, wall_ns)
        if self.buffer is not None and len(self.buffer):
            body = b"".join(pack(">Q", number) for number in self.buffer.numbers())
            super().feed(pack(">IB", 1 + len(body), DISCARD) + body, now_ns, wall_ns)


@mutant("prunes-early", 10, "a copy is discarded as soon as it comes", peers, "Peer", *LOSSES)
def _prunes_early(peer: Any) -> object:
    return _PrunesEarly


class _Forgets(BackupBuffer):
    def recover(self, sessions: Any) -> int:
        self.clear()
        return 0


@mutant("skips-recovery", 10, "the copies are not dispatched again", member, "BackupBuffer", *LOSSES)
def _skips_recovery(buffer: Any) -> object:
    return _Forgets


@mutant("ring-of-one", 4, "only the newest copy of a topic is kept", member, "BackupBuffer", *LOSSES)
def _ring_of_one(buffer: Any) -> object:
    return lambda core, **bounds: buffer(core, **{**bounds, "per_topic_max": 1})


@mutant(
    "deaf-to-silence", 3, "a silent primary is never missed", Peers, "silent", "Failover", "Bounded", *LOSSES
)
def _deaf_to_silence(silent: Any) -> object:
    return lambda self, now_ns: []


# Views


@mutant(
    "claims-known-number",
    1,
    "a member claims the number of the view before",
    (candidacy, contest),
    "next_number",
    "One primary",
    "Failover",
    "Bounded",
    *LOSSES,
)
def _claims_known_number(next_number: Any) -> object:
    return lambda above, index: max(1, above)


@mutant("follows-lower-views", 2, "a lower view is followed", Member, "told", "One primary", "Bounded")
def _follows_lower_views(told: Any) -> object:
    def gullible(self: Member, peer: Peer, role: Role, view: int, now_ns: int) -> None:
        if role is Role.PRIMARY:
            self.view_max = min(self.view_max, view)
        told(self, peer, role, view, now_ns)

    return gullible
