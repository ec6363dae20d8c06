"""What sessions, their wills and their subscriptions take of memory, and whose they are.

Laws:
- what all take together is what they weigh, and the nodes of the tree of filters
- who pays is a user, or the address of who gave no name. Who holds as much as is still free is refused
  more, so it has half of the room at most, and of that each of its sessions has half. A session for which
  nobody pays has half of the room itself. While there is ample room nobody is asked
- what was granted is never asked about again: a backup and a journal charge what they are told
- a session that ends gives back all that it took, as its subscriptions leave the tree
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.broker.subscriptions import Subscription, SubscriptionTree
from holdfast.broker.weights import PAIR, WIDE, WILL, will_weight
from holdfast.mqtt.packets import Connect, Will

if TYPE_CHECKING:
    from holdfast.broker.clients import SessionState
    from holdfast.config import Limits

# In bytes, as measured with many of each.
SESSION = 1200
SUBSCRIPTION = 300
NODE = 400  # a level of a filter that no other filter has at that place
GROUP = 600  # of shared subscriptions, if it has no other member


def session_weight(key: str) -> int:
    return SESSION + WIDE * len(key)


def subscription_weight(subscription: Subscription) -> int:
    """Without the nodes of its levels, which others may share."""
    weight = SUBSCRIPTION + WIDE * len(subscription.filter)
    group = subscription.group
    return weight if group is None else weight + GROUP + WIDE * len(group)


class Payer(Struct, eq=False):
    """Who pays for sessions, as long as there are any."""

    name: str
    held: int = 0  # by all its sessions


class Holdings:
    def __init__(self, limits: Limits, tree: SubscriptionTree) -> None:
        self._bytes_max = limits.sessions_bytes_max
        self._tree = tree
        self.taken = 0  # besides nodes
        self.payers: dict[str, Payer] = {}
        largest = SESSION + WILL + WIDE * limits.connect_bytes_max + PAIR * limits.user_properties_max
        self._ample = self._bytes_max // 4 - largest

    @property
    def total(self) -> int:
        return self.taken + NODE * self._tree.nodes

    def ample(self) -> bool:
        """Whether there is room for anything that one CONNECT or one filter may bring, whoever asks."""
        return self.taken + NODE * self._tree.nodes <= self._ample

    def fits(self, state: SessionState) -> bool:
        """Whether what a session has just taken may stay."""
        return self._leaves_room(state.held, state.payer)

    def _leaves_room(self, held: int, payer: Payer | None, more: int = 0) -> bool:
        """Whether as much is still free as somebody has who holds that and takes more."""
        if payer is None:
            return held + self.total + 2 * more <= self._bytes_max
        return 2 * held + payer.held + self.total + 4 * more <= self._bytes_max

    def has_room(self, state: SessionState | None, key: str, packet: Connect, payer: str) -> bool:
        """Whether a session may be made, or go on with another will, for who pays under that name."""
        more = will_weight(packet.will)
        if state is None:
            more += session_weight(key)
        else:
            more -= will_weight(state.last_will)
        held = 0 if state is None else state.held
        pays = self.payers.get(payer, Payer(payer)) if payer else None
        return more <= 0 or self._leaves_room(held, pays, more)

    def charge(self, state: SessionState, payer: str) -> None:
        """Who pays for a session from now on; empty: nobody."""
        if (state.payer.name if state.payer else "") == payer:
            return
        held = state.held
        self._hold(state, -held)
        state.payer = self.payers.setdefault(payer, Payer(payer)) if payer else None
        self._hold(state, held)

    def _hold(self, state: SessionState, more: int) -> None:
        state.held += more
        payer = state.payer
        if payer is not None:
            payer.held += more
            if payer.held == 0:
                del self.payers[payer.name]

    def begin(self, key: str, state: SessionState) -> None:
        """A session is there that was not."""
        weight = session_weight(key)
        self.taken += weight
        self._hold(state, weight)

    def keep_will(self, state: SessionState, will: Will | None) -> None:
        """Instead of what the session had."""
        more = will_weight(will) - will_weight(state.last_will)
        state.last_will = will
        self.taken += more
        self._hold(state, more)

    def end(self, key: str, state: SessionState) -> None:
        """Its subscriptions leave one by one."""
        self.keep_will(state, None)
        weight = session_weight(key)
        self.taken -= weight
        self._hold(state, -weight)

    def enter(self, state: SessionState, subscription: Subscription) -> None:
        """A subscription is there that was not. Its session pays for all its levels, shared or not."""
        weight = SUBSCRIPTION + WIDE * len(subscription.filter)
        if subscription.group is not None:
            weight = subscription_weight(subscription)
        self.taken += weight
        self._hold(state, weight + NODE * (1 + subscription.filter.count(b"/")))

    def leave(self, state: SessionState, subscription: Subscription) -> None:
        """It is gone from its session, and from the tree."""
        weight = subscription_weight(subscription)
        self.taken -= weight
        self._hold(state, -weight - NODE * (1 + subscription.filter.count(b"/")))
