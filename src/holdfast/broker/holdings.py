"""What sessions, their wills and their subscriptions take of memory, and whose they are.

Laws:
- what all take together is what sessions, wills and identifiers in use weigh, and the tree of filters
- who pays is a user, or the address of who gave no name. Who holds as much as is still free is refused
  more, so it has half of the room at most, and of that each of its sessions has half. A session for which
  nobody pays has half of the room itself. While there is ample room nobody is asked
- of all this large sessions leave an eighth: who asks for little is let in, however much they hold
- what was granted is never asked about again: a backup and a journal charge what they are told
- a session that ends gives back all that it took, as its subscriptions leave the tree
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.broker.room import Room
from holdfast.broker.session import Payer, Session
from holdfast.broker.weights import PAIR, WIDE, WILL, will_weight
from holdfast.mqtt.packets import Connect, Will

if TYPE_CHECKING:
    from holdfast.config import Limits

NOBODY = -1  # pays
SESSION = 1200  # bytes, as measured with many
PAYERS = 64  # so many may be known who pay for nothing any more, or as many as pay


def session_weight(key: str) -> int:
    return SESSION + WIDE * len(key)


class Holdings:
    def __init__(self, limits: Limits, room: Room) -> None:
        self._room = room
        self._payers: dict[str, Payer] = {}
        self._payers_max = PAYERS
        largest = SESSION + WILL + WIDE * limits.connect_bytes_max + PAIR * limits.user_properties_max
        room.bytes_max = limits.sessions_bytes_max
        room.ample = room.bytes_max // 4 - largest

    @property
    def total(self) -> int:
        return self._room.taken

    def ample(self) -> bool:
        """Whether there is room for anything that one CONNECT or one filter may bring, whoever asks."""
        return self._room.taken <= self._room.ample

    def paid(self) -> dict[str, int]:
        """What each pays for."""
        return {payer.name: payer.weight for payer in self._payers.values() if payer.weight}

    def fits(self, session: Session) -> bool:
        """Whether what a session has just taken may stay."""
        payer = session.payer
        return self._room.leaves(session.weight, NOBODY if payer is None else payer.weight, 0)

    def has_room(self, session: Session | None, key: str, packet: Connect, payer: str) -> bool:
        """Whether a session may be made, or go on with another will, for who pays under that name."""
        more = will_weight(packet.will)
        if session is None:
            held, more = 0, more + session_weight(key)
        else:
            held, more = session.weight, more - will_weight(session.state.last_will)
        known = self._payers.get(payer)
        paid = NOBODY if not payer else 0 if known is None else known.weight
        return more <= 0 or self._room.leaves(held, paid, more)

    def charge(self, session: Session, name: str) -> None:
        """Who pays for a session from now on; empty: nobody."""
        before = session.payer
        if name == ("" if before is None else before.name):
            return
        if before is not None:
            before.weight -= session.weight
        session.payer = self._payer(name) if name else None
        if session.payer is not None:
            session.payer.weight += session.weight

    def _payer(self, name: str) -> Payer:
        known = self._payers.get(name)
        if known is None:
            if len(self._payers) >= self._payers_max:
                self._payers = {each.name: each for each in self._payers.values() if each.weight}
                self._payers_max = max(PAYERS, 2 * len(self._payers))
            known = self._payers[name] = Payer(name)
        return known

    def begin(self, session: Session) -> None:
        session.weigh(session_weight(session.key))

    def keep_will(self, session: Session, will: Will | None) -> None:
        """Instead of what the session had."""
        more = will_weight(will) - will_weight(session.state.last_will)
        session.state.last_will = will
        session.weigh(more)

    def end(self, session: Session) -> None:
        """Its subscriptions leave the tree one by one."""
        if session.state.last_will is not None:
            self.keep_will(session, None)
        session.weigh(-session_weight(session.key))
