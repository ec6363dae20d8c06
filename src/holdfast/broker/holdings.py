"""What sessions, their wills and their subscriptions take of memory, and whose they are.

Laws:
- what all take together is what they weigh, and the nodes of the tree of filters
- whoever holds as much as is still free is refused more, so one account has half of the room at most. A user
  is one account, with all its sessions; without a user each session is its own
- what was granted is never asked about again: a backup and a journal charge what they are told
- a session that ends gives back all that it took
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.broker.subscriptions import Subscription, SubscriptionTree
from holdfast.broker.weights import text_weight, will_weight
from holdfast.mqtt.packets import Connect, Will

if TYPE_CHECKING:
    from holdfast.broker.clients import SessionState

# In bytes, as measured with many of each.
SESSION = 1200
SUBSCRIPTION = 300
NODE = 400  # a level of a filter that no other filter has at that place
GROUP = 600  # of shared subscriptions, if it has no other member
COPIES = 3  # of the text of a filter: as text, as bytes, and its levels
COPIES_WIDE = 8  # of text that is not ASCII


def session_weight(client_id: str, user: str) -> int:
    return SESSION + 2 * text_weight(client_id) + text_weight(user)


def subscription_weight(subscription: Subscription) -> int:
    """Without the nodes of its levels, which others may share."""
    filter, group = subscription.filter, subscription.group
    weight = SUBSCRIPTION + (COPIES if filter.isascii() else COPIES_WIDE) * len(filter)
    return weight if group is None else weight + GROUP + COPIES * text_weight(group)


class Holdings:
    def __init__(self, bytes_max: int, tree: SubscriptionTree) -> None:
        self._bytes_max = bytes_max
        self._tree = tree
        self._taken = 0  # besides nodes
        self._users: dict[str, int] = {}

    @property
    def total(self) -> int:
        return self._taken + NODE * self._tree.nodes

    def fits(self, state: SessionState) -> bool:
        """Whether what a session has just taken may stay."""
        held = self._users[state.user] if state.user else state.held
        return held + self._taken + NODE * self._tree.nodes <= self._bytes_max

    def has_room(self, state: SessionState | None, user: str, packet: Connect) -> bool:
        """Whether a session may be made, or go on with another will."""
        more = will_weight(packet.will)
        if state is None:
            more += session_weight(packet.client_id, user)
        else:
            more -= will_weight(state.last_will)
        if more <= 0:
            return True
        held = self._users.get(user, 0) if user else 0 if state is None else state.held
        return held + self.total + 2 * more <= self._bytes_max

    def begin(self, state: SessionState, client_id: str) -> None:
        weight = session_weight(client_id, state.user)
        self._take(state, weight, weight)

    def keep_will(self, state: SessionState, will: Will | None) -> None:
        """Instead of what the session had."""
        if will is not state.last_will:
            more = will_weight(will) - will_weight(state.last_will)
            state.last_will = will
            self._take(state, more, more)

    def enter(self, state: SessionState, subscription: Subscription) -> None:
        """A subscription is there that was not."""
        weight = subscription_weight(subscription)
        self._take(state, weight, weight + NODE * (subscription.filter.count(b"/") + 1))

    def leave(self, state: SessionState, subscription: Subscription) -> None:
        weight = subscription_weight(subscription)
        self._take(state, -weight, -weight - NODE * (subscription.filter.count(b"/") + 1))

    def end(self, state: SessionState) -> None:
        self._take(state, -state.taken, -state.held)

    def _take(self, state: SessionState, taken: int, held: int) -> None:
        """`held` is what its account pays: all levels of its filters, also those that others share."""
        self._taken += taken
        state.taken += taken
        state.held += held
        if state.user:
            self._users[state.user] = now = self._users.get(state.user, 0) + held
            if not now:
                del self._users[state.user]
