"""The state of a broker's clients as numbered increments (FTRTES, section 3.2).

Laws:
- an increment says what is now, not what changed: applying one twice is applying it once
- publications go on above every number that an increment names: a subscription would not see them otherwise
- increments are numbered without gaps; (epoch, life, number) names a state: the view in which its history
  began, and the process that opened that view. One that starts anew without memory may open it once more
- what a replica lacks is healed by increments while the log still has them, else by a snapshot
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import msgspec

from holdfast.broker.broker import Broker
from holdfast.broker.clients import key_of
from holdfast.broker.rules import Grant
from holdfast.broker.session import Session
from holdfast.broker.subscribing import AS_PUBLISHED, NO_LOCAL
from holdfast.broker.subscriptions import Subscription
from holdfast.broker.weights import text_weight, will_weight
from holdfast.contract.requirement import Requirement
from holdfast.mqtt.packets import Will
from holdfast.mqtt.topics import split_shared
from holdfast.pieces import pieces_of

SYSTEM_TOPICS = b"$SYS/"
_encode = msgspec.msgpack.Encoder().encode
NO_LOSS = -1
INCREMENT = 400  # the objects of an increment, in bytes
LIFE_BYTES = 7


class SessionNow(msgspec.Struct, tag="s", array_like=True, frozen=True):
    serial: int
    client_id: str
    expiry_s: int
    will: Will | None
    user: str = ""
    grant: Grant | None = None


class SessionGone(msgspec.Struct, tag="e", array_like=True, frozen=True):
    key: str


class SubscriptionNow(msgspec.Struct, tag="+", array_like=True, frozen=True):
    key: str
    wanted: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int
    deadline_ns: int  # that it asks for; 0: none
    loss: int  # and how many may be lost in a row; NO_LOSS: as many as the contract lets
    since: int
    owed: int = 0


class SubscriptionGone(msgspec.Struct, tag="-", array_like=True, frozen=True):
    key: str
    wanted: str


class RetainedNow(msgspec.Struct, tag="r", array_like=True, frozen=True):
    """`message` as Core.retained_message gives it; None: nothing is retained, which was so behind publication
    `upto`. `user`: whose quota it is."""

    topic: bytes
    message: tuple[int, int, int, int, int, bytes, bytes] | None
    user: str = ""
    upto: int = 0


class HeirGone(msgspec.Struct, tag="h", array_like=True, frozen=True):
    """Changes nothing, but who has it has more than the heir that left, and goes before it."""

    name: str


Increment: TypeAlias = SessionNow | SessionGone | SubscriptionNow | SubscriptionGone | RetainedNow | HeirGone


class Renamed(msgspec.Struct, frozen=True):
    """The history goes on from here under the name of a new epoch."""

    epoch: int
    life: int = 0


class Jumped(msgspec.Struct, frozen=True):
    """The state is another from here on: what another broker had at that number."""

    epoch: int
    number: int
    life: int = 0


def session_now(session: Session) -> SessionNow:
    state = session.state
    return SessionNow(
        session.serial, session.client_id, state.expiry_s, state.last_will, state.user, state.grant
    )


def subscription_now(subscription: Subscription, wanted: str) -> SubscriptionNow:
    loss = subscription.requirement.loss_tolerance
    return SubscriptionNow(
        key=subscription.session.key,
        wanted=wanted,
        qos=subscription.qos,
        no_local=bool(subscription.flags & NO_LOCAL),
        retain_as_published=bool(subscription.flags & AS_PUBLISHED),
        retain_handling=subscription.retain_handling,
        identifier=subscription.identifier,
        deadline_ns=subscription.requirement.deadline_ns or 0,
        loss=NO_LOSS if loss is None else loss,
        since=subscription.group_since,
        owed=subscription.owed if subscription.qos else 0,
    )


def retained_now(broker: Broker, topic: bytes) -> RetainedNow:
    message, user = broker.core.retained_message(topic), broker.access.retainer(topic)
    return RetainedNow(topic, message, user, broker.core.number if message is None else 0)


def encoded_parts(
    increments: Iterable[Increment], *, size_max: int, count_max: int | None = None
) -> Iterator[list[msgspec.Raw]]:
    """The increments, encoded, in parts of a bounded size; a part is read when it is asked for."""
    for piece in pieces_of(map(_encode, increments), len, size_max=size_max, count_max=count_max):
        yield [msgspec.Raw(each) for each in piece]


def everything(broker: Broker) -> Iterator[Increment]:
    """All there is, read while it changes: what changes meanwhile is told as increments of its own."""
    for key in list(broker.clients.sessions):
        session = broker.clients.sessions.get(key)
        if session is None:
            continue
        yield session_now(session)
        for wanted in list(session.subscriptions):
            subscription = session.subscriptions.get(wanted)
            if subscription is not None:
                yield subscription_now(subscription, wanted)
    for topic in broker.retained_names.all():
        if not topic.startswith(SYSTEM_TOPICS):
            yield retained_now(broker, topic)


def state_size(broker: Broker) -> int:
    """About how many increments `everything` is."""
    core = broker.core
    return len(broker.clients.sessions) + core.tree.count + core.retained_count


def apply(broker: Broker, increment: Increment, now_ns: int) -> None:
    """Makes the broker's clients as the increment says; one about an unknown session means nothing."""
    match increment:
        case SessionNow():
            key = key_of(increment.user, increment.client_id)
            session = broker.clients.sessions.get(key)
            broker.goodbyes.forget(key)
            if session is not None and session.serial != increment.serial:
                broker.clients.end(session, now_ns)
                session = None
            if session is None:
                session = broker.clients.make_session(increment.client_id, increment.serial, increment.user)
            session.state.expiry_s = increment.expiry_s
            broker.holdings.keep_will(session, increment.will)
            session.state.grant = increment.grant
            broker.clients.began(session, None)
        case SessionGone():
            session = broker.clients.sessions.get(increment.key)
            if session is not None:
                broker.clients.end(session, now_ns)
        case SubscriptionNow():
            session = broker.clients.sessions.get(increment.key)
            if session is not None:
                subscription = _subscription(session, increment)
                broker.subscribing.enter(subscription, increment.wanted)
                broker.subscribing.replays.told(subscription, increment.wanted)
                broker.core.number_from(increment.since)
        case SubscriptionGone():
            session = broker.clients.sessions.get(increment.key)
            if session is not None:
                broker.subscribing.drop(session, increment.wanted)
        case RetainedNow():
            broker.core.set_retained(increment.topic, increment.message)
            if increment.message is not None:
                size = len(increment.message[5]) + len(increment.message[6])
                broker.access.retained(increment.topic, increment.user, size)
                broker.core.number_from(increment.message[0])


def _subscription(session: Session, increment: SubscriptionNow) -> Subscription:
    group, filter = split_shared(increment.wanted)
    details: dict[str, Any] = {
        "group": group,
        "qos": increment.qos,
        "no_local": increment.no_local,
        "retain_as_published": increment.retain_as_published,
        "retain_handling": increment.retain_handling,
        "identifier": increment.identifier,
        "since": increment.since,
        "owed": increment.owed,
    }
    if increment.deadline_ns or increment.loss != NO_LOSS:
        loss = None if increment.loss == NO_LOSS else increment.loss
        details["requirement"] = Requirement(increment.deadline_ns or None, loss)
    return Subscription(session, filter.encode(), **details)


def wipe(broker: Broker, now_ns: int) -> None:
    """Nothing of any client is left, and nobody is told."""
    sessions = list(broker.clients.sessions.values())
    for session in sessions:
        session.over = True  # so that nobody hands anything on to it
    for session in sessions:
        session.state.will = None
        broker.clients.end(session, now_ns)
    for topic in broker.retained_names.all():
        broker.core.set_retained(topic, None)


class Lacks(NamedTuple):
    """The next increments of a history; with all of them a replica has a state of that epoch."""

    epoch: int
    increments: list[Increment]


class StateLog:
    """The increments so far, the newest kept: so many, and of so many bytes, at most."""

    def __init__(self, kept_max: int, kept_bytes_max: int) -> None:
        self.epoch = 0
        self.life = 0  # of the process that opened that view; 0: of none
        self.number = 0
        self.behind = False  # it comes from a journal that had failed: who was in the same view has more
        self.served = False  # by whoever served in the last view that this journal knew of
        self._before = (0, 0)  # the epoch before this one, and where it ended
        self._life_before = 0
        self._kept: deque[Increment] = deque()
        self._kept_max = kept_max
        self.kept_bytes = 0
        self._kept_bytes_max = kept_bytes_max
        self.tap: list[Increment | Renamed | Jumped] | None = None  # what happened since somebody looked

    def append(self, increment: Increment) -> int:
        self.number += 1
        self._kept.append(increment)
        self.kept_bytes += weight_of(increment)
        while len(self._kept) > self._kept_max or self.kept_bytes > self._kept_bytes_max:
            self.kept_bytes -= weight_of(self._kept.popleft())
        if self.tap is not None:
            self.tap.append(increment)
        return self.number

    def after(self, epoch: int, number: int, count_max: int) -> Lacks | None:
        """The first that a replica at (epoch, number) lacks, up to where its epoch ends; None when only a
        snapshot helps."""
        ended = self.number
        if epoch != self.epoch:
            before, ended = self._before
            if epoch != before or number > ended:
                return None
        lacks = self.number - number
        if not 0 <= lacks <= len(self._kept):
            return None
        at = len(self._kept) - lacks
        count = min(count_max, ended - number)
        whole = number + count == ended
        return Lacks(self.epoch if whole else epoch, list(islice(self._kept, at, at + count)))

    def life_in(self, epoch: int) -> int | None:
        """Whose epoch that is in this history; None: it is not known here."""
        if epoch == self.epoch:
            return self.life
        return self._life_before if epoch == self._before[0] else None

    def begin(self, epoch: int, life: int = 0) -> None:
        """A primary opens its view: its history goes on from here under a new name."""
        self._before, self._life_before = (self.epoch, self.number), self.life
        self.rename(epoch, life)

    def rename(self, epoch: int, life: int = 0) -> None:
        self.epoch, self.life = epoch, life
        if self.tap is not None:
            self.tap.append(Renamed(epoch, life))

    @property
    def weight(self) -> int:
        """Of two members with as much otherwise, who has the greater one has more. Of two journals that
        failed, that of the primary: without it nothing was acknowledged."""
        return self.served - 2 if self.behind else self.number

    def become(self, epoch: int, number: int, life: int = 0) -> None:
        """A snapshot was taken over."""
        self.epoch, self.number, self.life = epoch, number, life
        self._before, self._life_before = (epoch, number), life
        self._kept.clear()
        self.kept_bytes = 0
        if self.tap is not None:
            self.tap.append(Jumped(epoch, number, life))


def life_of(seed: int) -> int:
    """What names a process among others: it tells nobody the seed that the process drew."""
    return int.from_bytes(hashlib.sha256(b"%d" % seed).digest()[:LIFE_BYTES], "big")


def weight_of(increment: Increment) -> int:
    """The bytes that an increment takes, about."""
    match increment:
        case SubscriptionNow() | SubscriptionGone():
            return INCREMENT + text_weight(increment.key) + text_weight(increment.wanted)
        case SessionNow():
            text = text_weight(increment.client_id) + text_weight(increment.user)
            return INCREMENT + text + will_weight(increment.will)
        case SessionGone():
            return INCREMENT + text_weight(increment.key)
        case RetainedNow():
            message = increment.message
            size = 0 if message is None else len(message[5]) + len(message[6])
            return INCREMENT + len(increment.topic) + size
    return INCREMENT
