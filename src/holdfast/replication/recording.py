"""The recorder of a primary: what its clients do becomes increments, and SUBACK waits for a depth.

Laws:
- depth d is the primary and the d - 1 members that would take over next, in their order: others do not count
- a depth that a client asked for is met or refused; the usual depth asks for no more members than there are,
  also when one is lost while a grant waits for it: then for the one that is about to take its place
- while it is not known whether this broker still serves, nothing is granted
- replicas work in parallel: a grant waits for the slowest of those it needs, not for their sum
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from holdfast.broker.broker import Broker
from holdfast.broker.recorder import Granted, Recorder
from holdfast.broker.session import Session
from holdfast.broker.subscriptions import Subscription
from holdfast.replication.increments import (
    SYSTEM_TOPICS,
    Increment,
    SessionGone,
    StateLog,
    SubscriptionGone,
    retained_now,
    session_now,
    subscription_now,
)
from holdfast.units import format_duration


class StateRecorder(Recorder):
    """What clients do becomes increments of a log: enough for a broker alone with its journal."""

    def __init__(self, log: StateLog) -> None:
        self.log = log

    def record(self, increment: Increment) -> None:
        self.log.append(increment)

    def session(self, session: Session) -> None:
        self.record(session_now(session))

    def ended(self, session: Session) -> None:
        self.record(SessionGone(session.key))

    def subscribed(self, subscription: Subscription, wanted: str) -> None:
        self.record(subscription_now(subscription, wanted))

    def unsubscribed(self, session: Session, wanted: str) -> None:
        self.record(SubscriptionGone(session.key, wanted))


def record_retained(broker: Broker, recorder: StateRecorder) -> None:
    """Records the retained messages that changed since this was asked last, each once."""
    changed = broker.core.retained_log
    if changed:
        broker.core.retained_log = {}
        for topic in changed:
            if not topic.startswith(SYSTEM_TOPICS):
                recorder.record(retained_now(broker, topic))


class Wait(Struct):
    """A grant that waits until the next `replicas` heirs have the state up to `number`; `asked`: no fewer."""

    number: int
    replicas: int
    asked: bool
    due_ns: int
    granted: Granted


class Group(Protocol):
    """What a recorder asks of a primary."""

    def replicas(self) -> list[int]:
        """How far each heir has come, the next one first."""

    def coming(self) -> list[int]:
        """The same of the one that is about to be the next heir, and has the state."""

    def followers(self) -> int:
        """How many members are heirs, or are about to be."""

    @property
    def holding(self) -> bool:
        """Whether it is not known if this broker still serves."""


class GroupRecorder(StateRecorder):
    asked_at_once = False

    def __init__(self, log: StateLog, group: Group, *, depth: int, wait_ns: int) -> None:
        super().__init__(log)
        self.recording = False  # a backup repeats what the primary recorded
        self.unsent: list[Increment] = []
        self.now_ns = 0
        self._group = group
        self._depth = depth
        self._wait_ns = wait_ns
        self._waits: list[Wait] = []

    def record(self, increment: Increment) -> None:
        if self.recording:
            self.log.append(increment)
            self.unsent.append(increment)

    def confirm(self, depth: int, granted: Granted) -> bool:
        wait = Wait(
            number=self.log.number,
            replicas=(depth or self._depth) - 1,
            asked=depth > 0,
            due_ns=self.now_ns + self._wait_ns,
            granted=granted,
        )
        why_not = self._verdict(wait, self._group.replicas(), self.now_ns)
        if why_not is None:
            self._waits.append(wait)
            return True
        granted(why_not)
        return False

    def _verdict(self, wait: Wait, has: list[int], now_ns: int) -> str | None:
        """Empty: granted; else why not; None: not yet."""
        has = has if wait.asked else [*self._group.coming(), *has]
        needed = wait.replicas if wait.asked else min(wait.replicas, len(has))
        depth = wait.replicas + 1
        if len(has) >= needed and all(number >= wait.number for number in has[:needed]):
            return None if self._group.holding and wait.replicas else ""
        if self._group.followers() < needed:
            most = self._group.followers() + 1
            up = "1 member is" if most == 1 else f"{most} members are"
            return f"depth {depth} cannot be met: {up} up to date; ask for {most} at most"
        if wait.asked and wait.due_ns <= now_ns:
            waited = format_duration(self._wait_ns)
            return f"depth {depth} was not reached within {waited}; try again"
        return None

    # What the group hears and the time tells

    @property
    def next_ns(self) -> int | None:
        if not self._waits:
            return None
        return min((wait.due_ns for wait in self._waits if wait.due_ns > self.now_ns), default=None)

    def settle(self, now_ns: int) -> None:
        """Grants what the next heirs have by now, and refuses what can no longer be met."""
        if not self._waits:
            return
        has = self._group.replicas()
        waits, self._waits = self._waits, []
        for wait in waits:
            why_not = self._verdict(wait, has, now_ns)
            if why_not is None:
                self._waits.append(wait)
            else:
                wait.granted(why_not)

    def give_up(self, why: str) -> None:
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.granted(why)

    def take_unsent(self) -> list[Increment]:
        unsent, self.unsent = self.unsent, []
        return unsent
