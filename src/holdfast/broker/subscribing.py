"""SUBSCRIBE and UNSUBSCRIBE: filters, shared groups, requirements, retained messages.

Laws:
- a subscription is in force from where its SUBSCRIBE was read to where its UNSUBSCRIBE was: it sees all that
  is read in between. What several connections sent is read in no certain order between two slices of
  messages, so it sees what others sent then too
- every filter of a packet gets its own answer; what is refused, at once or later, leaves what was before
- a requirement that cannot be kept is refused with the words that say what could be
- SUBACK goes out before anything retained, and before any message unless it waits for a depth
- a filter is granted only if every topic that it matches may be subscribed to; a subscription that may not be
  any more ends, whether its session is connected or not
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.broker.channels import is_channel
from holdfast.broker.clients import REASON_CHARS_MAX, who_of
from holdfast.broker.connection import Connection
from holdfast.broker.rules import NEVER
from holdfast.broker.session import Session
from holdfast.broker.subscriptions import Ended, Subscription
from holdfast.contract.admission import admit_requirement
from holdfast.errors import PeerError
from holdfast.mqtt.codec import encode
from holdfast.mqtt.conventions import (
    DEADLINE_PROPERTY,
    DEPTH_PROPERTY,
    LAST_MAX,
    LAST_PROPERTY,
    LOSS_PROPERTY,
    LOSS_UNLIMITED,
)
from holdfast.mqtt.packets import Properties, Suback, Subscribe, Unsuback, Unsubscribe
from holdfast.mqtt.packets import Subscription as Wanted
from holdfast.mqtt.reasons import Reason
from holdfast.mqtt.topics import levels, split_shared
from holdfast.units import parse_duration

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

RETAIN_ALWAYS, RETAIN_IF_NEW = 0, 1
SYSTEM_TOPICS = "$SYS/"
NO_LOCAL, AS_PUBLISHED = 1, 2  # RouteFlag in broker/message.pxd
FAILURE_BEFORE_MQTT_5 = 0x80
DEPTHS = ("1", "2", "3", "4")
RETAINED_AT_ONCE = 100
QUEUED_DURING_REPLAY_MAX = 100
ENDED_MAX = 64  # subscriptions that were given up and still get what is older
OPEN = 2**64 - 1  # until the next slice


class Requirement(Struct, frozen=True):
    """What a subscriber asks of the topics it subscribes to; None: whatever their contracts say.

    `last` is how many of the last results of a channel it wants.
    """

    deadline_ns: int | None = None
    loss_tolerance: int | None = None
    last: int = 0


@dataclass(slots=True)
class Replay:
    """Retained messages on their way to a subscription: those published up to the moment it was made."""

    subscription: Subscription
    key: str  # among its session's subscriptions
    names: Iterator[bytes]
    until: int

    @property
    def wanted(self) -> bool:
        """Whether somebody is there to take them, and still subscribes."""
        subscription = self.subscription
        session = subscription.session
        return session.link is not None and session.subscriptions.get(self.key) is subscription


@dataclass(slots=True)
class Refused:
    wanted: str
    error: PeerError


@dataclass(slots=True, eq=False)
class Made:
    """A subscription that is in force and not granted yet; `before` is what its client had instead."""

    wanted: str
    subscription: Subscription
    before: Subscription | None


@dataclass(slots=True)
class Asked:
    """A SUBSCRIBE that awaits its SUBACK; `number` is the last publication that it does not see."""

    connection: Connection
    packet: Subscribe
    made: list[Made | Refused]
    number: int


@dataclass(slots=True)
class Left:
    """An UNSUBSCRIBE that awaits its UNSUBACK: it goes out behind what these still get."""

    connection: Connection
    packet_id: int
    reasons: list[int]
    ended: list[Ended]


def parse_last(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 4 and 1 <= int(value) <= LAST_MAX):
        raise ValueError(f"a number of last results is from 1 to {LAST_MAX}")
    return int(value)


def wants_retained(subscription: Subscription, fresh: bool) -> bool:
    handling = subscription.retain_handling
    return subscription.group is None and (handling == RETAIN_ALWAYS or (handling == RETAIN_IF_NEW and fresh))


class Subscribing:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._replays: deque[Replay] = deque()
        self._leaving: list[Left] = []
        self._replaced: dict[Subscription, Made] = {}  # by what went before it, while it is not granted

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        """Makes what can be granted, or knows why not; `answer` tells."""
        session = connection.session
        assert session is not None
        core = self.broker.core
        core.ask_left -= len(packet.subscriptions)
        number = max(core.number_sliced, connection.number_published)
        made = [self._make(session, wanted, packet, number + 1) for wanted in packet.subscriptions]
        connection.unanswered += 1
        core.unanswered.append(Asked(connection, packet, made, number))
        if self.broker.recorder.asked_at_once:
            self.answer(core.board.now_ns)

    def _make(self, session: Session, wanted: Wanted, packet: Subscribe, since: int) -> Made | Refused:
        try:
            subscription = self._prepare(session, wanted, packet, since)
        except PeerError as error:
            return Refused(wanted.filter, error)
        before = session.subscriptions.get(wanted.filter)
        made = Made(wanted.filter, subscription, before)
        if before is not None:
            self._replaced[before] = made
        self.enter(subscription, wanted.filter)
        self.broker.recorder.subscribed(subscription, wanted.filter)
        return made

    def answer(self, now_ns: int) -> None:
        """SUBACK and UNSUBACK for all that took effect, in order; a SUBACK may have to wait for a depth."""
        core = self.broker.core
        waiting, core.unanswered = core.unanswered, deque()
        for asked in waiting:
            connection = asked.connection
            try:
                if isinstance(asked, Left) and asked.ended:
                    self._leaving.append(asked)
                elif isinstance(asked, Left):
                    self._confirm_left(asked)
                else:
                    depth = self._depth(asked.packet)
                    self.broker.recorder.confirm(depth, partial(self._granted, asked))
            except Exception as error:
                self.broker.mistaken(connection, error, now_ns)
        if self._replays:
            self.replay(RETAINED_AT_ONCE)

    def _granted(self, asked: Asked, why_not: str) -> None:
        """SUBACK; what was made and is not granted after all is taken back."""
        connection, packet = asked.connection, asked.packet
        connection.answered()
        refusal = PeerError(Reason.QUOTA_EXCEEDED, why_not) if why_not else None
        reasons: list[int] = []
        texts: list[str] = []
        for made, wanted in zip(asked.made, packet.subscriptions, strict=True):
            error = made.error if isinstance(made, Refused) else refusal
            if isinstance(made, Made):
                self._settle(made, kept=error is None)
            if error is None:
                assert isinstance(made, Made)
                reasons.append(made.subscription.qos)
            else:
                reasons.append(error.reason if connection.version == 5 else FAILURE_BEFORE_MQTT_5)
                texts.append(f"{wanted.filter}: {error.text}")
                self.broker.count_refusal(error.reason, error.text, self._whose(connection, wanted.filter))
        if connection.closing:
            return
        properties = Properties(user=self.broker.view_for(connection))
        if texts and connection.state.problem_info:
            properties.reason_string = "; ".join(texts)[:REASON_CHARS_MAX]
        answer = Suback(packet_id=packet.packet_id, reasons=reasons, properties=properties)
        if not connection.send(encode(answer, connection.version)):
            connection.send(encode(Suback(packet_id=packet.packet_id, reasons=reasons), connection.version))
        if refusal is None:
            self._follow_up(asked)

    def _whose(self, connection: Connection, filter: str) -> dict[str, object]:
        return {**self.broker.access.known_of(connection, None), "filter": filter}

    def _follow_up(self, asked: Asked) -> None:
        """What a new subscription gets besides what is published from now on."""
        granted = [made for made in asked.made if isinstance(made, Made)]
        last = self._requirement(asked.packet.properties).last if granted else 0
        for made in granted:
            subscription = made.subscription
            if last:
                self.broker.channels.want(subscription, last)
            if wants_retained(subscription, made.before is None):
                names = self.broker.retained_names.matching(subscription.filter)
                self._replays.append(Replay(subscription, made.wanted, names, asked.number))

    def _settle(self, made: Made, kept: bool) -> None:
        """It is granted, or what was before it comes back, unless its client has asked for more since."""
        before = made.before
        if before is not None and self._replaced.get(before) is made:
            del self._replaced[before]
        if kept:
            return
        session = made.subscription.session
        later = self._replaced.pop(made.subscription, None)
        if later is not None:
            later.before = before
            if before is not None:
                self._replaced[before] = later
        if session.state.ended or session.subscriptions.get(made.wanted) is not made.subscription:
            return
        if before is None:
            self.drop(session, made.wanted)
        else:
            self.enter(before, made.wanted)
            self.broker.recorder.subscribed(before, made.wanted)

    def _prepare(self, session: Session, wanted: Wanted, packet: Subscribe, since: int) -> Subscription:
        """The subscription as it would be, once it is sure that it may be."""
        broker = self.broker
        group, filter = split_shared(wanted.filter)
        if levels(filter) > broker.limits.topic_levels_max:
            raise PeerError(
                Reason.TOPIC_FILTER_INVALID, f"a filter has up to {broker.limits.topic_levels_max} levels"
            )
        qos_max = broker.access.subscribing(who_of(session), filter.encode())
        if qos_max == NEVER:
            raise PeerError(Reason.NOT_AUTHORIZED, "no rule lets this user subscribe to all of that")
        if is_channel(filter):
            broker.channels.check(session, filter, group)
        if wanted.filter not in session.subscriptions:
            self._check_room(session)
        requirement = self._requirement(packet.properties)
        broker.channels.check_last(requirement.last, filter, group)
        self._admit(filter.encode(), requirement)
        identifiers = packet.properties.subscription_ids
        return Subscription(
            session,
            filter.encode(),
            group=group,
            qos=min(wanted.qos, qos_max),
            no_local=wanted.no_local,
            retain_as_published=wanted.retain_as_published,
            retain_handling=wanted.retain_handling,
            identifier=identifiers[0] if identifiers else 0,
            deadline_ns=requirement.deadline_ns or 0,
            loss=-1 if requirement.loss_tolerance is None else requirement.loss_tolerance,
            since=since,
        )

    def enter(self, subscription: Subscription, wanted: str) -> bool:
        session = subscription.session
        before = session.subscriptions.get(wanted)
        if before is not None:
            subscription.since = before.since
        session.subscriptions[wanted] = subscription
        if before is None:
            self.broker.access.subscribed(session, 1)
        self.broker.channels.entered(subscription, before is None)
        self.broker.core.tree.add(subscription)
        self.broker.core.topics.forget_routes(subscription.filter)
        return before is None

    def _check_room(self, session: Session) -> None:
        limits = self.broker.limits
        if len(session.subscriptions) >= limits.subscriptions_per_session_max:
            most = limits.subscriptions_per_session_max
            raise PeerError(Reason.QUOTA_EXCEEDED, f"a session has up to {most} subscriptions")
        if len(self.broker.core.tree) >= limits.subscriptions_max:
            most = limits.subscriptions_max
            raise PeerError(Reason.QUOTA_EXCEEDED, f"the broker keeps up to {most} subscriptions")
        self.broker.access.check_subscription(session)

    def _requirement(self, properties: Properties) -> Requirement:
        deadline_ns: int | None = None
        loss: int | None = None
        last = 0
        for name, value in properties.user:
            try:
                if name == DEPTH_PROPERTY and value not in DEPTHS:
                    raise ValueError(f"a depth is one of {', '.join(DEPTHS)}")
                if name == DEADLINE_PROPERTY:
                    deadline_ns = parse_duration(value)
                    if deadline_ns <= 0:
                        raise ValueError("a deadline is longer than 0")
                elif name == LOSS_PROPERTY and value != LOSS_UNLIMITED:
                    loss = int(value)
                    if not 0 <= loss < 2**31:
                        raise ValueError("a loss tolerance is a whole number of at least 0, or unlimited")
                elif name == LAST_PROPERTY:
                    last = parse_last(value)
            except ValueError as error:
                raise PeerError(
                    Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"{name} = {value!r}: {error}"
                ) from error
        return Requirement(deadline_ns, loss, last)

    def _depth(self, packet: Subscribe) -> int:
        """How many members of the group must know of it first; 0: as many as is usual. What a broker tells of
        itself is nobody else's matter."""
        for name, value in packet.properties.user:
            if name == DEPTH_PROPERTY:
                return int(value) if value in DEPTHS else 0
        return 1 if all(wanted.filter.startswith(SYSTEM_TOPICS) for wanted in packet.subscriptions) else 0

    def _admit(self, filter: bytes, requirement: Requirement) -> None:
        """Proves that what the subscriber asks can be kept for every contract its filter touches."""
        if requirement.deadline_ns is None and requirement.loss_tolerance is None:
            return
        index = self.broker.contracts
        for contract in index.touched_by(filter):
            admission = admit_requirement(
                contract,
                index.book.deployment,
                deadline_ns=requirement.deadline_ns,
                loss_tolerance=requirement.loss_tolerance,
            )
            if not admission.admitted:
                raise PeerError(
                    Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"contract {contract.name!r}: {admission.reason}"
                )

    def replay(self, most: int) -> bool:
        """Sends retained messages to new subscriptions, as many as their sessions take without queueing much;
        says whether more could follow at once."""
        for _ in range(len(self._replays)):
            replay = self._replays.popleft()
            session = replay.subscription.session
            while replay.wanted and session.queued < QUEUED_DURING_REPLAY_MAX and most > 0:
                name = next(replay.names, None)
                if name is None:
                    break
                most -= 1
                self.broker.core.offer_retained(name, replay.subscription, replay.until)
            else:
                if replay.wanted:
                    self._replays.append(replay)
        return most <= 0

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        session = connection.session
        assert session is not None
        core = self.broker.core
        core.ask_left -= len(packet.filters)
        before = len(core.ended)
        reasons = [
            int(Reason.SUCCESS if self._leave(session, filter) else Reason.NO_SUBSCRIPTION_EXISTED)
            for filter in packet.filters
        ]
        connection.unanswered += 1
        core.unanswered.append(Left(connection, packet.packet_id, reasons, core.ended[before:]))
        if self.broker.recorder.asked_at_once:
            self.answer(core.board.now_ns)

    def _confirm_left(self, left: Left) -> None:
        connection = left.connection
        connection.answered()
        if connection.closing:
            return
        properties = Properties(user=self.broker.view_for(connection))
        answer = Unsuback(packet_id=left.packet_id, reasons=left.reasons, properties=properties)
        connection.send(encode(answer, connection.version))

    def _leave(self, session: Session, wanted: str) -> bool:
        """Gives a subscription up; what was read before still comes, of a shared one to who is left."""
        core = self.broker.core
        subscription = session.subscriptions.get(wanted)
        if subscription is None:
            return False
        if subscription.group is None and len(core.ended) < ENDED_MAX:
            core.ended.append(Ended(subscription, subscription.since, OPEN, core.number))
        return self.drop(session, wanted)

    def close_ended(self) -> None:
        """A slice comes: what is read from now on is not for those that were given up before."""
        core = self.broker.core
        for ended in core.ended:
            ended.until = min(ended.until, core.number)

    def forget_ended(self) -> None:
        """Lets go of subscriptions that were given up, when nothing that is older waits any more."""
        core = self.broker.core
        oldest = core.oldest_waiting()
        if oldest is None:
            self._keep_ended([], core.ended)
            return
        gone = [ended for ended in core.ended if ended.until < oldest]
        if gone:
            self._keep_ended([ended for ended in core.ended if ended.until >= oldest], gone)

    def _keep_ended(self, kept: list[Ended], gone: list[Ended]) -> None:
        core = self.broker.core
        core.ended = kept
        for ended in gone:
            core.topics.forget_routes(ended.subscription.filter)
        leaving, self._leaving = self._leaving, []
        for left in leaving:
            left.ended = [ended for ended in left.ended if ended in kept]
            if left.ended:
                self._leaving.append(left)
            else:
                self._confirm_left(left)

    def drop(self, session: Session, wanted: str) -> bool:
        subscription: Subscription | None = session.subscriptions.pop(wanted, None)
        if subscription is None:
            return False
        self.broker.access.subscribed(session, -1)
        self.broker.recorder.unsubscribed(session, wanted)
        self.broker.channels.left(subscription)
        self.broker.core.tree.remove(session, subscription.filter, subscription.group)
        self.broker.core.topics.forget_routes(subscription.filter)
        return True

    def recheck(self, session: Session) -> None:
        """The rules, or where the session is kept, may have changed: what its user may not have ends."""
        access = self.broker.access
        if not access.ruled and session.state.grant is None:
            return
        who = who_of(session)
        for wanted, subscription in list(session.subscriptions.items()):
            qos_max = access.subscribing(who, subscription.filter)
            if qos_max == NEVER:
                self.drop(session, wanted)
                whose = {"user": who.user, "client": who.client_id, "filter": wanted}
                text = "a subscription is not allowed any more"
                self.broker.count_refusal(Reason.NOT_AUTHORIZED, text, whose)
            elif subscription.qos > qos_max:
                lowered = with_qos(subscription, qos_max)
                self.enter(lowered, wanted)
                self.broker.recorder.subscribed(lowered, wanted)

    def drop_all(self, session: Session) -> None:
        for wanted in list(session.subscriptions):
            self.drop(session, wanted)
        if self.broker.core.ended:
            all_ended = self.broker.core.ended
            self._keep_ended(
                [ended for ended in all_ended if ended.subscription.session is not session],
                [ended for ended in all_ended if ended.subscription.session is session],
            )


def with_qos(subscription: Subscription, qos: int) -> Subscription:
    """The same, with another QoS."""
    return Subscription(
        subscription.session,
        subscription.filter,
        group=subscription.group,
        qos=qos,
        no_local=bool(subscription.flags & NO_LOCAL),
        retain_as_published=bool(subscription.flags & AS_PUBLISHED),
        retain_handling=subscription.retain_handling,
        identifier=subscription.identifier,
        deadline_ns=subscription.deadline_ns,
        loss=subscription.loss,
        since=subscription.since,
    )
