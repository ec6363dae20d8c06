"""A member that slept: another may serve by now, and nobody else was silent.

Laws:
- a primary that its heir may take for gone hears no client before that heir has answered, or could have: so
  it is when from one word to it to the next, or to now, it took so long, asleep or not
- what a member did not hear while it slept is not held against the others
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.replication.peer import Peer
from holdfast.replication.peers import Peers
from holdfast.replication.roles import Role

if TYPE_CHECKING:
    from holdfast.replication.member import Member


class Doubt(Struct):
    """Whether a primary that slept still serves: its heir knows."""

    heir: str
    since_ns: int
    ended: list[Peer]  # connections to members that ended meanwhile, or in the doubt before this one

    def lost(self, peers: Peers, peer: Peer) -> None:
        self.ended.append(peer)
        if peer.state.name == self.heir:
            peers.dial_now(self.heir)


def slept_ns(member: Member, now_ns: int) -> int:
    """How long ago this broker should have looked up; what it was not to do is no sleep."""
    return now_ns - max(member.turned_ns, member.expected_ns)


def wake(member: Member, now_ns: int, slept_ns: int) -> None:
    member.peers.forgive(slept_ns, now_ns)
    member.silence.own.note(slept_ns, now_ns)
    if slept_ns > member.silence.least_ns and member.role in (Role.PRIMARY, Role.BACKUP):
        member.silence.own.add(slept_ns, now_ns)
    if member.role is Role.JOINING:
        member.candidacy.woke(slept_ns, now_ns)


def is_unheard(member: Member, now_ns: int) -> bool:
    """Whether an heir may have heard nothing of this primary for so long that it takes it for gone."""
    backup = member.core.board.backup
    if not isinstance(backup, Peer) or member.doubt is not None:
        return False
    return max(backup.unsaid_ns, now_ns - backup.wrote_ns) > member.silence.least_ns


def suspect(member: Member, now_ns: int, slept_ns: int = 0) -> None:
    if member.role is not Role.PRIMARY or not member.view.heirs:
        return
    if slept_ns <= member.silence.least_ns and not is_unheard(member, now_ns):
        return
    backup = member.core.board.backup
    if isinstance(backup, Peer):
        backup.unsaid_ns, backup.wrote_ns = 0, now_ns  # with the word that is said now
    ended = [] if member.doubt is None else member.doubt.ended
    member.doubt = Doubt(member.view.heirs[0], now_ns, ended)
    if member.peers.link_to(member.doubt.heir) is None:
        member.peers.dial_now(member.doubt.heir)
    member.beat(now_ns)  # which asks for an answer


def ask_heir(member: Member, doubt: Doubt, now_ns: int) -> None:
    """The doubt ends when the heir says that it did not take over meanwhile, or is silent."""
    heir = member.peers.link_to(doubt.heir)
    answered = heir is not None and heir.state.heard_us_ns >= doubt.since_ns
    if member.role is Role.PRIMARY and not answered and now_ns < doubt.since_ns + member.silence.ns:
        return
    member.doubt = None
    if member.role is Role.PRIMARY:
        for peer in doubt.ended:
            member.serving.lost(peer, now_ns)
