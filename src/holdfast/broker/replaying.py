"""Retained messages on their way to new subscriptions.

Laws:
- a subscription gets those that were published up to the moment it was made, each once, as many at a time
  as its session takes without queueing much
- with QoS 1 or 2 it is owed them until its client has acknowledged them: at this broker it goes on where it
  was when its client comes back, and whoever goes on with the session begins again. What is owed is told with
  the subscription, and that nothing is owed any more a while later
- what is looked at counts, not what is found; sessions take turns, and one that does not take messages costs
  one look, however much waits for it. One that is away costs nothing
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.broker.retained import Walk
from holdfast.broker.session import Session
from holdfast.broker.subscriptions import Subscription
from holdfast.units import MS

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

QUEUED_DURING_REPLAY_MAX = 100
ELSEWHERE = -1  # in place of a coming: another broker began with it
OFFER = 2  # units of a message that is sent, besides looking at its name
AT_ONCE = 128  # units for one session before the next one has its turn
SETTLED_EVERY_NS = 100 * MS
LOOKS_AT_ONCE = 256  # at sessions that may have acknowledged everything
SETTLED_AT_ONCE = 64  # subscriptions of which it is told
SKIPPED_EVERY = 1000  # names that go while a walk waits for its client; then it lets go of them
GONE_MAX = 10_000  # names that go while a walk rests; a walk keeps those that follow its place


@dataclass(slots=True)
class Owed:
    """What the subscriptions of one session are owed, by their keys among its subscriptions."""

    waiting: OrderedDict[str, tuple[int, int]] = field(default_factory=OrderedDict)  # until, coming
    offered: dict[str, int] = field(default_factory=dict)  # all of it, and it may not be acknowledged; until
    names: Walk | None = None  # those of the first that waits, as far as it came
    gone: int = 0  # names that had gone when the walk began to rest, or let go of those last
    coming: int = 0  # of its client: who has QoS 0 is owed nothing after the next
    mark: int | None = None  # when this many deliveries are over, what was offered is
    listed: bool = False
    watched: bool = False

    def forget(self, key: str) -> None:
        self.offered.pop(key, None)
        if key in self.waiting:
            if next(iter(self.waiting)) == key:
                self.names = None
            del self.waiting[key]


class Replays:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._core = broker.core
        self._names = broker.retained_names
        self._owed: dict[Session, Owed] = {}
        self.order: deque[Session] = deque()  # whose turn it is
        self._watched: deque[Session] = deque()  # of whom it must be found out whether all is over

    def add(self, subscription: Subscription, key: str, until: int) -> None:
        """It was granted, and gets those up to that publication from the beginning."""
        session = subscription.session
        current: Subscription | None = session.subscriptions.get(key)
        if current is not None and current.owed == until:
            self._list(session, self._wait(session, key, until))

    def told(self, subscription: Subscription, key: str) -> None:
        """Another broker, or a journal, says what the subscription is owed."""
        if subscription.owed:
            owed = self._wait(subscription.session, key, subscription.owed)
            owed.waiting[key] = subscription.owed, ELSEWHERE
        else:
            self.forget(subscription.session, key)

    def forget(self, session: Session, key: str) -> None:
        """The subscription is gone, or is owed nothing."""
        owed = self._owed.get(session)
        if owed is not None:
            owed.forget(key)
            self._tidy(session, owed)

    def ended(self, session: Session) -> None:
        self._owed.pop(session, None)

    def attached(self, session: Session) -> None:
        """Its client came, or came back."""
        owed = self._owed.get(session)
        if owed is not None:
            owed.coming += 1
            self._list(session, owed)

    def _wait(self, session: Session, key: str, until: int) -> Owed:
        owed = self._owed.get(session)
        if owed is None:
            owed = self._owed[session] = Owed()
        owed.forget(key)
        owed.waiting[key] = until, owed.coming
        return owed

    def _list(self, session: Session, owed: Owed) -> None:
        if owed.waiting and not owed.listed:
            owed.listed = True
            self.order.append(session)

    def _tidy(self, session: Session, owed: Owed) -> None:
        if not (owed.waiting or owed.offered or owed.listed or owed.watched):
            self._owed.pop(session, None)

    def turn(self, units: int) -> bool:
        """Goes on with some; says whether more could follow at once."""
        idle = 0
        while idle < len(self.order) and units > 0:
            session = self.order.popleft()
            owed = self._owed.get(session)
            spent = 1
            if owed is not None:
                spent = self._some(session, owed, min(units, AT_ONCE))
                if owed.names is not None and self._names.gone - owed.gone > SKIPPED_EVERY:
                    owed.gone = self._names.gone
                    spent += owed.names.skip_gone()
                owed.listed = bool(owed.waiting) and is_there(session)
                if owed.listed:
                    self.order.append(session)
                else:
                    self._rest(session, owed)
            idle = 0 if spent else idle + 1
            units -= max(spent, 1)
        return units <= 0 and idle < len(self.order)

    def _some(self, session: Session, owed: Owed, units: int) -> int:
        """Returns what was spent: nothing when its client takes no more now."""
        spent = 0
        waiting = owed.waiting
        while waiting and spent < units and session.queued < QUEUED_DURING_REPLAY_MAX:
            spent += 1
            if not is_there(session):
                break
            key, (until, coming) = next(iter(waiting.items()))
            subscription: Subscription | None = session.subscriptions.get(key)
            if subscription is None or subscription.owed != until:
                owed.forget(key)
                continue
            if subscription.qos == 0 and coming != owed.coming:
                owed.forget(key)
                subscription.owed = 0
                continue
            if owed.names is None:
                owed.names = self._names.walk(subscription.filter)
                owed.gone = self._names.gone
            for name in owed.names:
                spent += 1
                if name is not None:
                    spent += OFFER
                    self._core.offer_retained(name, subscription, until, coming == ELSEWHERE)
                if spent >= units or session.queued >= QUEUED_DURING_REPLAY_MAX:
                    break
            else:
                self._offered(owed, key, subscription)
        return spent

    def _offered(self, owed: Owed, key: str, subscription: Subscription) -> None:
        owed.forget(key)
        if subscription.qos:
            owed.offered[key] = subscription.owed
            owed.mark = None
        else:
            subscription.owed = 0

    # What is over, or rests

    def _rest(self, session: Session, owed: Owed) -> None:
        """All was offered, or its client is not there."""
        self._tidy(session, owed)
        owed.gone = self._names.gone
        if (owed.offered or owed.names is not None) and not owed.watched:
            owed.watched = True
            if not self._watched:
                self._look_later(self._core.board.now_ns)
            self._watched.append(session)

    def _look_later(self, now_ns: int) -> None:
        self._broker.timers.at(now_ns + SETTLED_EVERY_NS, self._look)

    def _look(self, now_ns: int) -> None:
        """Finds out who has acknowledged all that was offered, and tells it."""
        for _ in range(min(len(self._watched), LOOKS_AT_ONCE)):
            session = self._watched.popleft()
            owed = self._owed.get(session)
            if owed is None:
                continue
            if not owed.listed and self._names.gone - owed.gone > GONE_MAX:
                owed.names = None
            self._settle(session, owed)
            if owed.offered or (owed.names is not None and not owed.listed):
                self._watched.append(session)
            else:
                owed.watched = False
                self._tidy(session, owed)
        if self._watched:
            self._look_later(now_ns)

    def _settle(self, session: Session, owed: Owed) -> None:
        recorder = self._broker.recorder
        if not recorder.recording:  # whoever serves tells when it is over
            while owed.offered:
                key, until = owed.offered.popitem()
                owed.waiting[key] = until, ELSEWHERE
            return
        if owed.mark is None and session.queued == 0:
            owed.mark = session.tail
        if owed.mark is None or session.head < owed.mark:
            return
        for _ in range(min(len(owed.offered), SETTLED_AT_ONCE)):
            key, until = owed.offered.popitem()
            subscription = session.subscriptions.get(key)
            if subscription is not None and subscription.owed == until:
                subscription.owed = 0
                recorder.subscribed(subscription, key)


def is_there(session: Session) -> bool:
    """Whether its client takes anything."""
    return session.link is not None and not session.link.unheard
