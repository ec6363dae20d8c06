"""What sessions, their wills and their subscriptions take of memory, and whose they are.

Laws:
- what all take together is what sessions and wills weigh, and what the tree of filters says that it does
- a session that holds as much as is still free is refused more, so it has half of the room at most. While
  there is ample room nobody is asked
- what was granted is never asked about again: a backup and a journal charge what they are told
- a session that ends gives back all that it took, as its subscriptions leave the tree
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.broker.subscriptions import SubscriptionTree
from holdfast.broker.weights import PAIR, WIDE, WILL, will_weight
from holdfast.mqtt.packets import Connect, Will

if TYPE_CHECKING:
    from holdfast.broker.session import Session
    from holdfast.config import Limits

SESSION = 1200  # bytes, as measured with many


def session_weight(key: str) -> int:
    return SESSION + WIDE * len(key)


class Holdings:
    def __init__(self, limits: Limits, tree: SubscriptionTree) -> None:
        self._bytes_max = limits.sessions_bytes_max
        self._tree = tree
        self._taken = 0  # by sessions and wills
        largest = SESSION + WILL + WIDE * limits.connect_bytes_max + PAIR * limits.user_properties_max
        self._ample = self._bytes_max // 2 - largest

    @property
    def total(self) -> int:
        return self._taken + self._tree.weight

    def ample(self) -> bool:
        """Whether there is room for anything that one CONNECT or one filter may bring, whoever asks."""
        return self._taken + self._tree.weight <= self._ample

    def fits(self, session: Session) -> bool:
        """Whether what a session has just taken may stay."""
        return session.weight + self.total <= self._bytes_max

    def has_room(self, session: Session | None, key: str, packet: Connect) -> bool:
        """Whether a session may be made, or go on with another will."""
        more = will_weight(packet.will)
        if session is None:
            held, more = 0, more + session_weight(key)
        else:
            held, more = session.weight, more - will_weight(session.state.last_will)
        return more <= 0 or held + self.total + 2 * more <= self._bytes_max

    def begin(self, session: Session) -> None:
        session.weight = weight = session_weight(session.key)
        self._taken += weight

    def keep_will(self, session: Session, will: Will | None) -> None:
        """Instead of what the session had."""
        more = will_weight(will) - will_weight(session.state.last_will)
        session.state.last_will = will
        session.weight += more
        self._taken += more

    def end(self, session: Session) -> None:
        """Its subscriptions leave the tree one by one."""
        if session.state.last_will is not None:
            self.keep_will(session, None)
        self._taken -= session_weight(session.key)
