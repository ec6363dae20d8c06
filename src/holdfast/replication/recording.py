"""The recorder of a primary: what its clients do becomes increments, and SUBACK waits for a depth.

Laws:
- a depth that a client asked for is met or refused; the usual depth asks for no more members than there are
- replicas work in parallel: a grant waits for the slowest of those it needs, not for their sum
"""

from __future__ import annotations

from collections.abc import Callable

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
        self.record(SessionGone(session.client_id))

    def subscribed(self, subscription: Subscription, wanted: str) -> None:
        self.record(subscription_now(subscription, wanted))

    def unsubscribed(self, session: Session, wanted: str) -> None:
        self.record(SubscriptionGone(session.client_id, wanted))


def record_retained(broker: Broker, recorder: StateRecorder) -> None:
    """Records the retained messages that changed since this was asked last, each once."""
    changed = broker.core.retained_log
    if changed:
        broker.core.retained_log = {}
        for topic in changed:
            if not topic.startswith(SYSTEM_TOPICS):
                recorder.record(retained_now(broker, topic))


class Wait(Struct):
    """A grant that waits until `replicas` backups have the state up to `number`."""

    number: int
    replicas: int
    due_ns: int
    granted: Granted


class GroupRecorder(StateRecorder):
    """`replicas` gives how far each backup that is up to date has come."""

    def __init__(self, log: StateLog, *, depth: int, wait_ns: int, replicas: Callable[[], list[int]]) -> None:
        super().__init__(log)
        self.recording = False  # a backup repeats what the primary recorded
        self.unsent: list[Increment] = []
        self.now_ns = 0
        self._depth = depth
        self._wait_ns = wait_ns
        self._replicas = replicas
        self._waits: list[Wait] = []

    def record(self, increment: Increment) -> None:
        if self.recording:
            self.log.append(increment)
            self.unsent.append(increment)

    def confirm(self, depth: int, granted: Granted) -> bool:
        there = len(self._replicas())
        needed = (depth or min(self._depth, there + 1)) - 1
        if needed > there:
            most = there + 1
            granted(f"depth {depth} cannot be met: {most} members are up to date; ask for {most} at most")
            return False
        if needed == 0:
            granted("")
            return False
        self._waits.append(Wait(self.log.number, needed, self.now_ns + self._wait_ns, granted))
        return True

    # What the group hears and the time tells

    @property
    def next_ns(self) -> int | None:
        return min((wait.due_ns for wait in self._waits), default=None)

    def settle(self, now_ns: int) -> None:
        """Grants what enough replicas have by now, and refuses what can no longer be met."""
        if not self._waits:
            return
        has = self._replicas()
        waits, self._waits = self._waits, []
        for wait in waits:
            if sum(number >= wait.number for number in has) >= wait.replicas:
                wait.granted("")
            elif len(has) < wait.replicas:
                wait.granted(f"depth {wait.replicas + 1} cannot be met any more: a member was lost meanwhile")
            elif wait.due_ns <= now_ns:
                waited = format_duration(self._wait_ns)
                wait.granted(f"depth {wait.replicas + 1} was not reached within {waited}; try again")
            else:
                self._waits.append(wait)

    def give_up(self, why: str) -> None:
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.granted(why)

    def take_unsent(self) -> list[Increment]:
        unsent, self.unsent = self.unsent, []
        return unsent
