"""Retained messages on their way to new subscriptions.

Laws:
- a subscription gets those that were published up to the moment it was made, each once, as many at a time
  as its session takes without queueing much
- what is looked at counts, not what is found; sessions take turns, and one that does not take messages costs
  one look, however much waits for it
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.broker.core import Core
from holdfast.broker.retained import RetainedNames
from holdfast.broker.session import Session
from holdfast.broker.subscriptions import Subscription

QUEUED_DURING_REPLAY_MAX = 100
OFFER = 2  # units of a message that is sent, besides looking at its name
AT_ONCE = 128  # units for one session before the next one has its turn


@dataclass(slots=True)
class Replay:
    """Those of one subscription."""

    subscription: Subscription
    key: str  # among its session's subscriptions
    names: Iterator[bytes | None]
    until: int

    @property
    def wanted(self) -> bool:
        """Whether somebody is there to take them, and still subscribes."""
        session = self.subscription.session
        there = session.link is not None and not session.link.unheard
        return there and session.subscriptions.get(self.key) is self.subscription


class Replays:
    def __init__(self, core: Core, names: RetainedNames) -> None:
        self._core = core
        self._names = names
        self._waiting: dict[Session, deque[Replay]] = {}
        self.order: deque[Session] = deque()  # whose turn it is

    def add(self, subscription: Subscription, key: str, until: int) -> None:
        if self._names.surely_none(subscription.filter):
            return
        replay = Replay(subscription, key, self._names.walk(subscription.filter), until)
        session = subscription.session
        waiting = self._waiting.get(session)
        if waiting is not None:
            waiting.append(replay)
            return
        self._waiting[session] = deque((replay,))
        self.order.append(session)

    def turn(self, units: int) -> bool:
        """Goes on with some; says whether more could follow at once."""
        idle = 0
        while idle < len(self.order) and units > 0:
            session = self.order.popleft()
            replays = self._waiting[session]
            spent = self._some(session, replays, min(units, AT_ONCE))
            if replays:
                self.order.append(session)
            else:
                del self._waiting[session]
            idle = 0 if spent else idle + 1
            units -= max(spent, 1)
        return units <= 0 and idle < len(self.order)

    def _some(self, session: Session, replays: deque[Replay], units: int) -> int:
        """Returns what was spent: nothing when its client takes no more now."""
        spent = 0
        while replays and spent < units and session.queued < QUEUED_DURING_REPLAY_MAX:
            replay = replays[0]
            spent += 1
            if not replay.wanted:
                replays.popleft()
                continue
            for name in replay.names:
                spent += 1
                if name is not None:
                    spent += OFFER
                    self._core.offer_retained(name, replay.subscription, replay.until)
                if spent >= units or session.queued >= QUEUED_DURING_REPLAY_MAX:
                    break
            else:
                replays.popleft()
        if session.link is None:
            replays.clear()
        return spent
