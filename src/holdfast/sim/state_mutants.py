"""Deliberate faults in what is promised of clients' state, of service and of arbitration; see mutants.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from holdfast.broker.broker import Broker
from holdfast.broker.clients import WINDOW_DEFAULT, Clients
from holdfast.broker.connection import Connection
from holdfast.broker.session import Session
from holdfast.replication import member, transfers
from holdfast.replication.group import GroupConfig
from holdfast.replication.member import Member
from holdfast.replication.peer import Peer
from holdfast.replication.peers import Peers
from holdfast.replication.serving import Serving
from holdfast.sim.mutants import LOSSES, MUTANTS, Mutant, mutant
from holdfast.sim.options import Options
from holdfast.sim.patching import patched
from holdfast.units import S


@mutant(
    "drops-a-record",
    1,
    "a full piece of a snapshot lacks its last record",
    transfers,
    "word_parts",
    "State",
    *LOSSES,
)
def _drops_a_record(word_parts: Any) -> object:
    def parts(increments: Any) -> Iterator[Any]:
        for part in word_parts(increments):
            yield part[:-1] if len(part) == transfers.WORD_INCREMENTS_MAX else part

    return parts


@mutant(
    "goes-on-unarbitrated",
    279,
    "no answer of the arbiter is as good as one",
    GroupConfig,
    "goes_on_unarbitrated",
    "State",
    *LOSSES,
)
def _goes_on_unarbitrated(goes_on: Any) -> object:
    return property(lambda self: bool(self.zookeeper))


@mutant(
    "never-marks",
    71,
    "heirs do not learn who is done with a message",
    Member,
    "__init__",
    "Repeats",
    "Exactly once",
    "Order",
)
def _never_marks(init: Any) -> object:
    def unmarked(self: Member, book: Any, *arguments: Any, **more: Any) -> None:
        lazy = structs.replace(book, limits=structs.replace(book.limits, marks_lag_ns=3600 * S))
        init(self, lazy, *arguments, **more)

    return unmarked


def _falls_while_the_first_heir_is_slow(options: Options) -> bool:
    at_a_grant = any(fault.kind == "crash" and fault.aim == "suback" for fault in options.faults)
    return options.members > 2 and options.slows_ns > 0 and options.crowd is not None and at_a_grant


@mutant(
    "depth-counts-anybody",
    1275,
    "the fastest members count for a depth",
    Serving,
    "replicas",
    "State",
    *LOSSES,
    among=_falls_while_the_first_heir_is_slow,
)
def _depth_counts_anybody(replicas: Any) -> object:
    return lambda self: sorted(replicas(self), reverse=True)


@mutant(
    "takes-waiting-for-sleep",
    366,
    "time between two turns counts as sleep",
    member,
    "slept_ns",
    "Serves",
    "Bounded",
)
def _takes_waiting_for_sleep(slept_ns: Any) -> object:
    return lambda self, now_ns: now_ns - self.turned_ns


@mutant("subscribes-late", 1, "a subscription takes effect in the next turn", Broker, "ask", "In order")
def _subscribes_late(ask: Any) -> object:
    def later(self: Broker, connection: Connection) -> None:
        def begin(now_ns: int) -> None:
            if not connection.closing:
                ask(self, connection)

        self.timers.at(self.core.board.now_ns, begin)

    return later


@mutant(
    "counts-the-deaf",
    10,
    "an heir that is not heard counts",
    Peers,
    "greeted",
    "Failover",
    "Bounded",
    "Serves",
    *LOSSES,
)
def _counts_the_deaf(greeted: Any) -> object:
    return lambda self: [peer for peer in self.all() if peer.state.greeted and not peer.closing]


@mutant("retains-late", 20, "what is retained is told in the end only", Serving, "record_retained", "State")
def _retains_late(record_retained: Any) -> object:
    return lambda self: None


@mutant(
    "snapshot-without-retained",
    3,
    "retained messages are no part of a snapshot",
    transfers,
    "everything",
    "State",
)
def _without_retained(everything: Any) -> object:
    def some(broker: Broker) -> Iterator[Any]:
        return (each for each in everything(broker) if type(each).__name__ != "RetainedNow")

    return some


# A member with other contracts is refused, and who is refused counts as dead


def _refuses(compare: Any) -> object:
    def refuse(self: Peers, peer: Peer, theirs: str, ours: str) -> None:
        if theirs != ours:
            self.refuse(peer, "the contract files differ")

    return refuse


@contextmanager
def _refused_are_dead() -> Iterator[None]:
    with (
        patched((Peers,), "compare", _refuses),
        patched((Peers,), "sighted_since", lambda known: lambda *_: []),
    ):
        yield


MUTANTS["refused-are-dead"] = Mutant(
    28, "who refuses us for its contracts counts as dead", ("State", "Bounded", *LOSSES), _refused_are_dead
)


def _attach_and_tell_nothing(attach: Any) -> object:
    def hasty(self: Clients, session: Session, connection: Connection, window: int | None) -> None:
        session.attach(connection, window or WINDOW_DEFAULT)

    return hasty


@contextmanager
def _missed_is_not_told() -> Iterator[None]:
    with (
        patched((Member,), "__init__", _never_marks),
        patched((Clients,), "_attach", _attach_and_tell_nothing),
    ):
        yield


MUTANTS["missed-is-not-told"] = Mutant(
    122,
    "heirs do not learn what a client missed before it got newer messages",
    ("Order",),
    _missed_is_not_told,
)
