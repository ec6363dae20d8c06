"""What others said, taken in turns.

Laws:
- a turn hears so many words of each member, and the greetings of a few strangers; who is not heard waits
- a fault of another ends its connection, after what it said before. An heir that lets go of its primary for
  that, or for want of room, is one until it hears that it lives: those may have been its last bytes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.replication.peer import Peer
from holdfast.replication.roles import Happening, Role

if TYPE_CHECKING:
    from holdfast.replication.member import Member

WORDS_PER_TURN = 64
STRANGERS_PER_TURN = 4
GREETING_WORDS = 3  # a challenge, a proof, a hello


def listen(member: Member, now_ns: int) -> bool:
    """Says whether there may be more."""
    more = False
    for peer in member.peers.all():
        more |= hear(member, peer, WORDS_PER_TURN, now_ns)
    strangers = member.peers.speaking(STRANGERS_PER_TURN)
    for stranger in strangers:
        more |= hear(member, stranger, GREETING_WORDS, now_ns)
    return more or len(strangers) == STRANGERS_PER_TURN


def hear(member: Member, peer: Peer, words: int, now_ns: int) -> bool:
    """At most so many words of one; says whether there are more."""
    for _ in range(words):
        if not peer.control or peer.closing:
            break
        word = member.peers.word(peer, now_ns)
        if word is not None:
            member.heard(peer, word, now_ns)
    let_go = False
    if peer.fault is not None and not peer.closing:
        let_go = member.role is Role.BACKUP
        member.peers.refuse(peer, peer.fault)
    if peer.closing:
        if member.follows(peer) and not peer.state.said_bye and not let_go:
            member.happen(Happening.DROPPED, now_ns)  # it lives, but not for us
        member.peer_ended(peer, now_ns)
    return bool(peer.control)
