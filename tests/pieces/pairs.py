"""A pair whose state changes as a test says, and what must be true of it when it is quiet."""

from __future__ import annotations

from tests.replication.pair import MS, Group, contracts

from holdfast.broker.broker import Broker
from holdfast.config import Limits
from holdfast.replication.increments import (
    Increment,
    RetainedNow,
    SessionNow,
    SubscriptionNow,
    apply,
    everything,
)
from holdfast.replication.member import Member
from holdfast.replication.messages import Healing, Snapshot, State, Word


def state_of(broker: Broker) -> list[Increment]:
    return sorted(everything(broker), key=repr)


def change(member: Member, increment: Increment) -> None:
    """As if a client had done it there."""
    recording, member.recorder.recording = member.recorder.recording, False
    apply(member.broker, increment, member.turned_ns)
    member.recorder.recording = recording
    member.recorder.record(increment)


def session(number: int) -> SessionNow:
    return SessionNow(1000 + number, f"c{number}", 300, None)


def subscription(number: int, client: int | None = None) -> SubscriptionNow:
    client_id = f"c{number if client is None else client}"
    return SubscriptionNow(client_id, f"safe/{number}", 1, False, False, 0, 0, 100 * MS, 0, number)


def retained(number: int, payload: bytes = b"x") -> RetainedNow:
    return RetainedNow(b"safe/%d" % number, (number + 1, 0, 0, 0, 0, b"", payload))


def pair(**limits: int) -> Group:
    return Group(contract_book=contracts(Limits(**limits)))


def settle(group: Group) -> None:
    """The pair is whole again, quiet, and both have the same."""
    group.pass_time(100 * MS)
    assert sorted(each.role.value for each in group.members.values()) == ["backup", "primary"]
    ours, theirs = (group.members[name] for name in "ab")
    assert state_of(ours.broker) == state_of(theirs.broker)
    assert (ours.log.epoch, ours.log.number) == (theirs.log.epoch, theirs.log.number)


def words_to(group: Group, name: str) -> list[Word]:
    """Words that this member is told from now on."""
    words: list[Word] = []
    member = group.members[name]
    heard = member.following.heard

    def listen(peer: object, word: State | Snapshot | Healing, now_ns: int) -> None:
        words.append(word)
        heard(peer, word, now_ns)  # type: ignore[arg-type]

    member.following.heard = listen  # type: ignore[method-assign, assignment]
    return words
