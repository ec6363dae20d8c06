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

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.broker.channels import is_channel
from holdfast.broker.clients import NO_ROOM, REASON_CHARS_MAX, who_of
from holdfast.broker.connection import Connection
from holdfast.broker.reading import Reading
from holdfast.broker.replaying import Replays
from holdfast.broker.requirements import depth_of, requirement_of
from holdfast.broker.rules import NEVER
from holdfast.broker.session import Session
from holdfast.broker.subscriptions import Ended, Subscription
from holdfast.broker.work import (
    BYTES,
    CLEARED,
    CONTRACTS,
    DROP,
    FILTER,
    FILTER_BYTES,
    GRANT,
    PACKET,
    RIGHT,
    Pieces,
)
from holdfast.contract.admission import admit_requirement
from holdfast.contract.requirement import NOTHING, Requirement
from holdfast.errors import PeerError
from holdfast.mqtt.codec import begin_filters, encode, next_filters
from holdfast.mqtt.packets import Properties, Suback, Unsuback
from holdfast.mqtt.packets import Subscription as Wanted
from holdfast.mqtt.reasons import Reason
from holdfast.mqtt.topics import split_shared

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

RETAIN_ALWAYS, RETAIN_IF_NEW = 0, 1
NO_LOCAL, AS_PUBLISHED = 1, 2  # RouteFlag in broker/message.pxd
FAILURE_BEFORE_MQTT_5 = 0x80
ENDED_MAX = 64  # subscriptions that were given up and still get what is older
OPEN = 2**64 - 1  # until the next slice
FILTERS_AT_ONCE = 16  # are read of a packet before they are made
CLEARED_AT_ONCE = 96  # messages that waited for a session that ended

# What is done at once, in units; the rest goes on in turns.
GRANTED_AT_ONCE = 256
REPLAYED_AT_ONCE = 256
RECHECKED_AT_ONCE = 16  # units, before the rest goes on in turns


@dataclass(slots=True)
class Refused:
    wanted: str
    error: PeerError


class Made(Struct, eq=False):
    """A subscription that is in force and not granted yet; `before` is what its client had instead."""

    wanted: str
    subscription: Subscription
    before: Subscription | None
    number: int  # the last publication that it does not see
    replays: bool  # it gets retained messages up to there


class Asked(Struct, eq=False):
    """A SUBSCRIBE that awaits its SUBACK. What it asks besides filters is read once."""

    connection: Connection
    packet_id: int
    properties: Properties
    made: list[Made | Refused] = []
    requirement: Requirement = NOTHING
    unfit: PeerError | None = None  # why what it asks means nothing

    def read(self) -> None:
        try:
            self.requirement = requirement_of(self.properties)
        except PeerError as error:
            self.unfit = error


@dataclass(slots=True)
class Left:
    """An UNSUBSCRIBE that awaits its UNSUBACK: it goes out behind what these still get."""

    connection: Connection
    packet_id: int
    reasons: list[int] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)


def many_steps(most: int, whose: str) -> str:
    return (
        f"for one topic the broker looks at up to {most} places because of filters {whose},"
        " and this one would make it more; use fewer levels with +, or end with #"
    )


def wants_retained(subscription: Subscription, fresh: bool) -> bool:
    handling = subscription.retain_handling
    return subscription.group is None and (handling == RETAIN_ALWAYS or (handling == RETAIN_IF_NEW and fresh))


class Subscribing:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.replays = Replays(broker)
        self._leaving: list[Left] = []
        self._replaced: dict[Subscription, Made] = {}  # by what went before it, while it is not granted

    def subscribe(self, connection: Connection, first_byte: int, body: bytes) -> Pieces:
        """Makes what can be granted, or knows why not; `answer` tells."""
        session = connection.session
        assert session is not None
        broker, version = self.broker, connection.version
        core, limits, works = broker.core, broker.limits, broker.works
        packet_id, properties, at = begin_filters(
            first_byte, body, version, limits.packet_filters_max, limits.user_properties_max
        )
        works.spent += PACKET + len(body) // BYTES + len(properties.user)
        asked = Asked(connection, packet_id, properties)
        cost = FILTER
        if properties.user:
            asked.read()
            if asked.requirement.demands:
                cost += len(broker.contracts.contracts) // CONTRACTS
        while at < len(body) and not connection.closing and not session.state.ended:
            number, published = core.number_sliced, connection.number_published
            if number < published:
                number = published
            begun = at
            filters, at = next_filters(first_byte, body, version, at, FILTERS_AT_ONCE)
            for wanted in filters:
                asked.made.append(self._make(session, wanted, asked, number))
            works.spent += len(filters) * cost + (at - begun) // FILTER_BYTES
            if at < len(body):
                yield
        self._took_effect(asked, len(asked.made))

    def _make(self, session: Session, wanted: Wanted, asked: Asked, number: int) -> Made | Refused:
        if asked.unfit is not None:
            return Refused(wanted.filter, asked.unfit)
        try:
            subscription = self._prepare(session, wanted, asked, number + 1)
        except PeerError as error:
            return Refused(wanted.filter, error.with_traceback(None))
        before = session.subscriptions.get(wanted.filter)
        replays = self._owe(subscription, before, number)
        made = Made(wanted.filter, subscription, before, number, replays)
        if before is not None:
            self._replaced[before] = made
        self.enter(subscription, wanted.filter)
        if before is None and (why_not := self._too_much(session)):
            del session.subscriptions[wanted.filter]
            self.broker.access.subscribed(session, -1)
            self._remove(subscription)
            return Refused(wanted.filter, PeerError(Reason.QUOTA_EXCEEDED, why_not))
        self.broker.recorder.subscribed(subscription, wanted.filter)
        return made

    def _owe(self, subscription: Subscription, before: Subscription | None, number: int) -> bool:
        """What of retained messages the subscription is owed; whether more than was owed before."""
        if wants_retained(subscription, before is None):
            if not self.broker.retained_names.surely_none(subscription.filter):
                subscription.owed = number
        elif before is not None:
            subscription.owed = before.owed
            return False
        return subscription.owed > 0

    def _too_much(self, session: Session) -> str:
        """Why a subscription that is new cannot stay: what it takes, or how far a topic could have to go
        through the tree now that it grew."""
        holdings, tree = self.broker.holdings, self.broker.core.tree
        if not holdings.ample() and not holdings.fits(session):
            return NO_ROOM
        if not tree.grown:
            return ""
        limits = self.broker.limits
        if tree.steps > limits.match_steps_max:
            return many_steps(limits.match_steps_max, "of all clients")
        if session.steps > limits.match_steps_per_session_max:
            return many_steps(limits.match_steps_per_session_max, "of one client")
        return ""

    def answer(self, now_ns: int) -> None:
        """SUBACK and UNSUBACK for all that took effect, in order; a SUBACK may have to wait for a depth."""
        unanswered = self.broker.core.unanswered
        while unanswered:
            asked = unanswered.popleft()
            try:
                if isinstance(asked, Left) and asked.ended:
                    self._leaving.append(asked)
                elif isinstance(asked, Left):
                    self._confirm_left(asked)
                else:
                    depth = depth_of(asked.properties, asked.made)
                    self.broker.recorder.confirm(depth, partial(self._granted, asked))
            except Exception as error:
                self.broker.mistaken(asked.connection, error, now_ns)
        if self.replays.order:
            self.replays.turn(REPLAYED_AT_ONCE)

    def _granted(self, asked: Asked, why_not: str) -> None:
        """SUBACK; what was made and is not granted after all is taken back."""
        self.broker.works.begin(self._grant(asked, why_not), GRANTED_AT_ONCE, asked.connection)

    def _grant(self, asked: Asked, why_not: str) -> Pieces:
        connection, works = asked.connection, self.broker.works
        refusal = PeerError(Reason.QUOTA_EXCEEDED, why_not) if why_not else None
        reasons: list[int] = []
        refused = ""
        for made in asked.made:
            error = refusal
            if isinstance(made, Refused):
                error = made.error
            elif error is not None or made.before is not None:
                self._settle(made, kept=error is None)
            if error is None:
                reasons.append(made.subscription.qos)  # type: ignore[union-attr]
            else:
                reasons.append(error.reason if connection.version == 5 else FAILURE_BEFORE_MQTT_5)
                if len(refused) < REASON_CHARS_MAX:
                    refused += f"{'; ' if refused else ''}{made.wanted}: {error.text}"
                self.broker.count_refusal(error.reason, error.text, self._whose(connection, made.wanted))
            works.spent += GRANT
            if not len(reasons) % FILTERS_AT_ONCE:
                yield
        connection.answered(len(asked.made))
        if connection.closing:
            return
        properties = Properties(user=self.broker.view_for(connection))
        if refused and connection.state.problem_info:
            properties.reason_string = refused[:REASON_CHARS_MAX]
        answer = Suback(packet_id=asked.packet_id, reasons=reasons, properties=properties)
        if not connection.send(encode(answer, connection.version)):
            connection.send(encode(Suback(packet_id=asked.packet_id, reasons=reasons), connection.version))
        if refusal is not None:
            return
        # What a new subscription gets besides what is published from now on.
        for number, made in enumerate(asked.made):
            if isinstance(made, Made):
                self._follow_up(made, asked)
                works.spent += GRANT
            if number % FILTERS_AT_ONCE == FILTERS_AT_ONCE - 1:
                yield

    def _whose(self, connection: Connection, filter: str) -> dict[str, object]:
        return {**self.broker.access.known_of(connection, None), "filter": filter}

    def _follow_up(self, made: Made, asked: Asked) -> None:
        if asked.requirement.last:
            self.broker.channels.want(made.subscription, asked.requirement.last)
        if made.replays:
            self.replays.add(made.subscription, made.wanted, made.number)

    def _settle(self, made: Made, kept: bool) -> None:
        """It is granted, or what was before it comes back, unless its client has asked for more since. If
        another broker serves by now, that has it as it was told, and so have we."""
        before = made.before
        if before is not None and self._replaced.get(before) is made:
            del self._replaced[before]
        if kept or not self.broker.recorder.recording:
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
            if before.owed:
                self.replays.add(before, made.wanted, before.owed)

    def _prepare(self, session: Session, wanted: Wanted, asked: Asked, since: int) -> Subscription:
        """The subscription as it would be, once it is sure that it may be."""
        broker = self.broker
        group, filter = split_shared(wanted.filter) if wanted.filter[0] == "$" else (None, wanted.filter)
        text = filter.encode()
        limits = broker.limits
        if filter.count("/") >= limits.topic_levels_max:
            raise PeerError(
                Reason.TOPIC_FILTER_INVALID, f"a filter has up to {limits.topic_levels_max} levels"
            )
        bytes_max = limits.topic_bytes_max
        if len(text) > bytes_max or (group is not None and len(group.encode()) > bytes_max):
            raise PeerError(
                Reason.TOPIC_FILTER_INVALID, f"a filter, or the name of a group, has up to {bytes_max} bytes"
            )
        qos_max = broker.access.subscribing(session, text)
        if qos_max == NEVER:
            raise PeerError(Reason.NOT_AUTHORIZED, broker.access.why_not(session, text))
        if is_channel(filter):
            broker.channels.check(session, filter, group)
        if wanted.filter not in session.subscriptions:
            self._check_room(session)
        requirement = asked.requirement
        if requirement is not NOTHING:
            if requirement.last:
                broker.channels.check_last(filter, group)
            if requirement.demands:
                self._admit(text, requirement)
        identifiers = asked.properties.subscription_ids
        return Subscription(
            session,
            text,
            group=group,
            qos=wanted.qos if wanted.qos <= qos_max else qos_max,
            no_local=wanted.no_local,
            retain_as_published=wanted.retain_as_published,
            retain_handling=wanted.retain_handling,
            identifier=identifiers[0] if identifiers else 0,
            requirement=requirement,
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
        core = self.broker.core
        core.tree.add(subscription)
        core.topics.forget_routes(subscription.filter)
        requirement = subscription.requirement
        if requirement is not NOTHING and requirement.demands:
            self.broker.demanded(subscription)
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

    def _admit(self, filter: bytes, requirement: Requirement) -> None:
        """Proves that what the subscriber asks can be kept for every contract its filter touches."""
        index = self.broker.contracts
        for contract in index.touched_by(filter):
            admission = admit_requirement(contract, index.book.deployment, requirement)
            if not admission.admitted:
                raise PeerError(
                    Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"contract {contract.name!r}: {admission.reason}"
                )

    def unsubscribe(self, connection: Connection, first_byte: int, body: bytes) -> Pieces:
        session = connection.session
        assert session is not None
        core, limits, works = self.broker.core, self.broker.limits, self.broker.works
        packet_id, properties, at = begin_filters(
            first_byte, body, connection.version, limits.packet_filters_max, limits.user_properties_max
        )
        works.spent += PACKET + len(body) // BYTES + len(properties.user)
        left = Left(connection, packet_id)
        while at < len(body) and not connection.closing:
            begun = at
            filters, at = next_filters(first_byte, body, connection.version, at, FILTERS_AT_ONCE)
            left.reasons += [self._leave(session, filter, left) for filter in filters]
            works.spent += len(filters) * FILTER + (at - begun) // FILTER_BYTES
            if at < len(body):
                yield
        left.ended = [ended for ended in left.ended if ended in core.ended]
        self._took_effect(left, len(left.reasons))

    def _took_effect(self, asked: Asked | Left, filters: int) -> None:
        """It awaits its answer, and its connection goes on."""
        connection, core = asked.connection, self.broker.core
        connection.unanswered += filters
        core.unanswered.append(asked)
        if self.broker.recorder.asked_at_once:
            self.answer(core.board.now_ns)
        if not connection.closing:
            connection.resume()

    def _confirm_left(self, left: Left) -> None:
        connection = left.connection
        connection.answered(len(left.reasons))
        if connection.closing:
            return
        properties = Properties(user=self.broker.view_for(connection))
        answer = Unsuback(packet_id=left.packet_id, reasons=left.reasons, properties=properties)
        connection.send(encode(answer, connection.version))

    def _leave(self, session: Session, wanted: str, left: Left) -> int:
        """Gives a subscription up; what was read before still comes, of a shared one to who is left."""
        core = self.broker.core
        subscription = session.subscriptions.get(wanted)
        if subscription is None:
            return Reason.NO_SUBSCRIPTION_EXISTED
        if subscription.group is None and len(core.ended) < ENDED_MAX:
            ended = Ended(subscription, subscription.since, OPEN, core.number)
            core.ended.append(ended)
            left.ended.append(ended)
        self.drop(session, wanted)
        return Reason.SUCCESS

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

    def drop(self, session: Session, wanted: str) -> None:
        subscription: Subscription | None = session.subscriptions.pop(wanted, None)
        if subscription is not None:
            self.broker.access.subscribed(session, -1)
            self.broker.recorder.unsubscribed(session, wanted)
            if subscription.owed:
                self.replays.forget(session, wanted)
            self._remove(subscription)

    def _remove(self, subscription: Subscription) -> None:
        core, filter = self.broker.core, subscription.filter
        self.broker.channels.left(subscription)
        core.tree.remove(subscription.session, filter, subscription.group)
        core.topics.forget_routes(filter)

    def recheck(self, session: Session) -> None:
        """The rules, or where the session is kept, may have changed: what its user may not have ends, in
        pieces, and meanwhile each message is asked about."""
        self.doubt(session)
        self.broker.works.begin(self.rechecking(session), RECHECKED_AT_ONCE)

    def doubt(self, session: Session) -> None:
        """Nothing that its user may not have is sent from now on, whatever waits or is subscribed to."""
        access = self.broker.access
        if not access.ruled and session.state.grant is None:
            session.reading = None
            return
        who = who_of(session)
        session.reading = Reading(lambda topic: access.may_read(who, topic))

    def rechecking(self, session: Session) -> Pieces:
        """Its subscriptions, one after the other, unless its rights are in doubt again before the end."""
        reading, works = session.reading, self.broker.works
        if reading is None:
            return
        for wanted in list(session.subscriptions):
            subscription = session.subscriptions.get(wanted)
            if subscription is not None:
                self._recheck(subscription, wanted)
                works.spent += RIGHT
                yield
            if session.reading is not reading:
                return
        reading.settle(self.broker.core.number)

    def _recheck(self, subscription: Subscription, wanted: str) -> None:
        session = subscription.session
        qos_max = self.broker.access.subscribing(session, subscription.filter)
        if qos_max == NEVER:
            self.drop(session, wanted)
            self.broker.works.spent += DROP + len(subscription.filter) // FILTER_BYTES
            whose = {"user": session.state.user, "client": session.client_id, "filter": wanted}
            text = "a subscription is not allowed any more"
            self.broker.count_refusal(Reason.NOT_AUTHORIZED, text, whose)
        elif subscription.qos > qos_max:
            lowered = with_qos(subscription, qos_max)
            self.enter(lowered, wanted)
            self.broker.works.spent += FILTER
            self.broker.recorder.subscribed(lowered, wanted)

    def drop_all(self, session: Session) -> None:
        """The session ended: it has no subscription any more, and in a while nor has the tree one of it, nor
        is anything left that waited for it."""
        self.broker.access.subscribed(session, -len(session.subscriptions))
        dropped, session.subscriptions = session.subscriptions, {}
        self.replays.ended(session)
        self.broker.works.end(self._drop_all(session, dropped))
        if self.broker.core.ended:
            all_ended = self.broker.core.ended
            self._keep_ended(
                [ended for ended in all_ended if ended.subscription.session is not session],
                [ended for ended in all_ended if ended.subscription.session is session],
            )

    def _drop_all(self, session: Session, dropped: dict[str, Subscription]) -> Pieces:
        works = self.broker.works
        while dropped:
            subscription = dropped.popitem()[1]
            self._remove(subscription)
            works.spent += DROP + len(subscription.filter) // FILTER_BYTES
            yield
        while session.clear_some(CLEARED_AT_ONCE):
            works.spent += CLEARED_AT_ONCE // CLEARED
            yield
        session.clear()


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
        requirement=subscription.requirement,
        since=subscription.since,
        owed=subscription.owed,
    )
