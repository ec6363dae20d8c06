"""What others must know of a broker's clients so that they can go on elsewhere.

Laws:
- whatever changes sessions or subscriptions is recorded in the order in which it happens
- a subscription is recorded when it is in force and before it is granted; if it is not, that is recorded too
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.broker.session import Session
from holdfast.broker.subscriptions import Subscription

Granted = Callable[[str], None]  # with why not; empty: granted


class Recorder:
    """The recorder of a broker that stands alone: nobody needs to know anything.

    `asked_at_once`: whether `confirm` may be called while packets are read. A member looks around first.
    `recording`: false while another broker serves, whose state is repeated here."""

    asked_at_once = True
    recording = True

    def session(self, session: Session) -> None:
        """The session began, or how long it lasts or its will changed."""

    def ended(self, session: Session) -> None:
        """Nothing of the session is left."""

    def subscribed(self, subscription: Subscription, wanted: str) -> None:
        """A subscription is in force; `wanted` is its filter as the client wrote it."""

    def unsubscribed(self, session: Session, wanted: str) -> None:
        """A subscription is gone."""

    def confirm(self, depth: int, granted: Granted) -> bool:
        """Calls `granted` when so many brokers know what was recorded; says whether that is later.

        A depth of 0 is whatever is usual."""
        granted("" if depth < 2 else f"depth {depth} needs a group of {depth} brokers; this one stands alone")
        return False
