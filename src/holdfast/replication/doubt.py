"""A member that slept, or heard nobody: another may serve by now, and nobody else was silent.

Laws:
- a primary that slept longer than `silence` hears no client before its heir has answered, or could have
- so does one without an arbiter that lost its heir when it heard nobody at all: perhaps it was cut off itself
- what a member did not hear while it slept is not held against the others
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.replication.peer import Peer
from holdfast.replication.roles import Role

if TYPE_CHECKING:
    from holdfast.replication.member import Member


class Doubt(Struct):
    """Whether a primary that slept still serves: its heir knows."""

    heir: str
    since_ns: int
    ended: list[Peer]  # connections to members that ended meanwhile


class Hearing(Struct):
    """When clients were last heard, and which heir was lost while nobody was."""

    received_bytes: int = 0
    at_ns: int = 0
    deaf_to: str | None = None


def look_back(member: Member, now_ns: int, slept_ns: int) -> None:
    """At the beginning of a turn: what happened since the last one?"""
    if slept_ns > member.group.silence_ns // 2:
        _wake(member, now_ns, slept_ns)
    hearing, received_bytes = member.hearing, member.broker.core.bytes_received
    if received_bytes != hearing.received_bytes:
        hearing.received_bytes, hearing.at_ns = received_bytes, now_ns
        heir, hearing.deaf_to = hearing.deaf_to, None
        if heir is not None and member.role is Role.PRIMARY and not member.view.heirs:
            _doubt(member, heir, now_ns)


def heard_nothing_of(member: Member, heir: Peer) -> None:
    """The heir is lost for its silence. Was there anybody else, of whom more was heard?"""
    if not member.group.zookeeper and member.hearing.at_ns <= heir.heard_ns + member.group.heartbeat_ns:
        member.hearing.deaf_to = heir.state.name


def _wake(member: Member, now_ns: int, slept_ns: int) -> None:
    member.peers.forgive(slept_ns, now_ns)
    if member.role is Role.JOINING:
        member.joining_since_ns = now_ns
    if member.role is Role.PRIMARY and member.view.heirs and slept_ns > member.group.silence_ns:
        _doubt(member, member.view.heirs[0], now_ns)


def _doubt(member: Member, heir: str, now_ns: int) -> None:
    member.doubt = Doubt(heir, now_ns, [])
    if member.peers.link_to(heir) is None:
        member.peers.dial_now(heir)


def ask_heir(member: Member, doubt: Doubt, now_ns: int) -> bool:
    """The doubt ends when the heir says that it did not take over meanwhile, or is silent; whether it did."""
    heir = member.peers.link_to(doubt.heir)
    answered = heir is not None and heir.state.heard_us_ns >= doubt.since_ns
    if member.role is Role.PRIMARY and not answered and now_ns < doubt.since_ns + member.group.silence_ns:
        return False
    member.doubt = None
    for peer in doubt.ended:
        member.serving.lost(peer, now_ns)
    return True
