"""SUBSCRIBE and UNSUBSCRIBE: filters, shared groups, requirements, retained messages.

Laws:
- every filter of a packet gets its own answer; what is refused changes nothing
- a requirement that cannot be kept is refused with the words that say what could be
- SUBACK goes out before any message of the subscription
- a filter is granted only if every topic that it matches may be subscribed to; a subscription that may not be
  any more ends, whether its session is connected or not
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.broker.channels import is_channel
from holdfast.broker.clients import REASON_CHARS_MAX
from holdfast.broker.connection import Connection
from holdfast.broker.session import Session
from holdfast.broker.subscriptions import Subscription
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
FAILURE_BEFORE_MQTT_5 = 0x80
DEPTHS = ("1", "2", "3", "4")
RETAINED_AT_ONCE = 100
QUEUED_DURING_REPLAY_MAX = 100


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

    def subscribe(self, connection: Connection, packet: Subscribe) -> bool:
        """Grants what can be granted, or tells why not; says whether that happens later."""
        session = connection.session
        assert session is not None
        prepared: list[tuple[Wanted, Subscription | PeerError]] = []
        for wanted in packet.subscriptions:
            try:
                subscription = self._prepare(session, wanted, packet)
            except PeerError as error:
                prepared.append((wanted, error))
            else:
                prepared.append((wanted, subscription))
                self.broker.recorder.subscribed(subscription, wanted.filter)
        waits = False

        def granted(why_not: str) -> None:
            self._answer(connection, packet, prepared, why_not)
            if waits and not connection.closing:
                connection.resume()

        waits = self.broker.recorder.confirm(self._depth(packet.properties), granted)
        return waits

    def _answer(
        self,
        connection: Connection,
        packet: Subscribe,
        prepared: list[tuple[Wanted, Subscription | PeerError]],
        why_not: str,
    ) -> None:
        """SUBACK; what was recorded and is not granted after all is taken back."""
        session = connection.session
        gone = connection.closing or session is None or session.state.ended
        refusal = PeerError(Reason.QUOTA_EXCEEDED, why_not) if why_not else None
        made: list[tuple[str, Subscription, bool]] = []
        reasons: list[int] = []
        texts: list[str] = []
        for wanted, subscription in prepared:
            error = subscription if isinstance(subscription, PeerError) else refusal
            if isinstance(subscription, Subscription) and (error is not None or gone):
                self._take_back(subscription, wanted.filter)
            elif isinstance(subscription, Subscription):
                made.append((wanted.filter, subscription, self._grant(subscription, wanted.filter)))
                reasons.append(wanted.qos)
            if error is not None:
                reasons.append(error.reason if connection.version == 5 else FAILURE_BEFORE_MQTT_5)
                texts.append(f"{wanted.filter}: {error.text}")
                self.broker.count_refusal(error.reason, error.text)
        if gone:
            return
        properties = Properties(user=self.broker.view_for(connection))
        if texts and connection.state.problem_info:
            properties.reason_string = "; ".join(texts)[:REASON_CHARS_MAX]
        answer = Suback(packet_id=packet.packet_id, reasons=reasons, properties=properties)
        if not connection.send(encode(answer, connection.version)):
            connection.send(encode(Suback(packet_id=packet.packet_id, reasons=reasons), connection.version))
        last = self._requirement(packet.properties).last if made else 0
        for key, subscription, fresh in made:
            if last:
                self.broker.channels.want(subscription, last)
            if wants_retained(subscription, fresh):
                names = self.broker.retained_names.matching(subscription.filter)
                self._replays.append(Replay(subscription, key, names, self.broker.core.number))
        self.replay(RETAINED_AT_ONCE)

    def _prepare(self, session: Session, wanted: Wanted, packet: Subscribe) -> Subscription:
        """The subscription as it would be, once it is sure that it may be."""
        broker = self.broker
        group, filter = split_shared(wanted.filter)
        if levels(filter) > broker.limits.topic_levels_max:
            raise PeerError(
                Reason.TOPIC_FILTER_INVALID, f"a filter has up to {broker.limits.topic_levels_max} levels"
            )
        if not broker.access.may_subscribe(session.state.user, session.client_id, filter.encode()):
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
            qos=wanted.qos,
            no_local=wanted.no_local,
            retain_as_published=wanted.retain_as_published,
            retain_handling=wanted.retain_handling,
            identifier=identifiers[0] if identifiers else 0,
            deadline_ns=requirement.deadline_ns or 0,
            loss=-1 if requirement.loss_tolerance is None else requirement.loss_tolerance,
            since=broker.core.number + 1,
        )

    def _grant(self, subscription: Subscription, wanted: str) -> bool:
        """From now on its topics reach the session; says whether it had no such subscription before."""
        subscription.since = self.broker.core.number + 1
        return self.enter(subscription, wanted)

    def enter(self, subscription: Subscription, wanted: str) -> bool:
        session = subscription.session
        before = session.subscriptions.get(wanted)
        if before is not None:
            subscription.since = before.since
        session.subscriptions[wanted] = subscription
        self.broker.channels.entered(subscription, before is None)
        self.broker.core.tree.add(subscription)
        self.broker.core.topics.forget_routes(subscription.filter)
        return before is None

    def _take_back(self, subscription: Subscription, wanted: str) -> None:
        session = subscription.session
        before = session.subscriptions.get(wanted)
        if session.state.ended:
            return
        if before is None:
            self.broker.recorder.unsubscribed(session, wanted)
        else:
            self.broker.recorder.subscribed(before, wanted)

    def _check_room(self, session: Session) -> None:
        limits = self.broker.limits
        if len(session.subscriptions) >= limits.subscriptions_per_session_max:
            most = limits.subscriptions_per_session_max
            raise PeerError(Reason.QUOTA_EXCEEDED, f"a session has up to {most} subscriptions")
        if len(self.broker.core.tree) >= limits.subscriptions_max:
            most = limits.subscriptions_max
            raise PeerError(Reason.QUOTA_EXCEEDED, f"the broker keeps up to {most} subscriptions")

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

    def _depth(self, properties: Properties) -> int:
        """How many members of the group must know of it first; 0: as many as is usual."""
        for name, value in properties.user:
            if name == DEPTH_PROPERTY:
                return int(value) if value in DEPTHS else 0
        return 0

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
        reasons = [
            Reason.SUCCESS if self.drop(session, filter) else Reason.NO_SUBSCRIPTION_EXISTED
            for filter in packet.filters
        ]
        properties = Properties(user=self.broker.view_for(connection))
        connection.send(
            encode(
                Unsuback(packet_id=packet.packet_id, reasons=list(reasons), properties=properties),
                connection.version,
            )
        )

    def drop(self, session: Session, wanted: str) -> bool:
        subscription: Subscription | None = session.subscriptions.pop(wanted, None)
        if subscription is None:
            return False
        self.broker.recorder.unsubscribed(session, wanted)
        self.broker.channels.left(subscription)
        self.broker.core.tree.remove(session, subscription.filter, subscription.group)
        self.broker.core.topics.forget_routes(subscription.filter)
        return True

    def recheck(self, session: Session) -> None:
        """The rules, or where the session is kept, may have changed: what its user may not have ends."""
        access = self.broker.access
        if not access.ruled:
            return
        for wanted, subscription in list(session.subscriptions.items()):
            if not access.may_subscribe(session.state.user, session.client_id, subscription.filter):
                self.drop(session, wanted)
                self.broker.count_refusal(Reason.NOT_AUTHORIZED, "a subscription is not allowed any more")

    def drop_all(self, session: Session) -> None:
        for wanted in list(session.subscriptions):
            self.drop(session, wanted)
