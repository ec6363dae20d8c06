"""Channels at the broker: who subscribes to what, what is offered, and what those who serve them are told.

    Counts      how many sessions have each channel subscription
    Listener    a client that serves channels and wants to know: what it is still to be told
    Channels    the checks at SUBSCRIBE, the catalogs, and the requests for last results

Laws:
- equal subscriptions of many sessions are one: only the first and the last of them are told
- what was told and what is still to be told to a listener are together what the sessions have
- nothing here is copied to a backup: it counts the sessions that it has itself, and who serves hears from it
- a turn tells each listener one message, and only as fast as it takes them
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec import Struct, field

from holdfast.broker.connection import Connection
from holdfast.broker.session import Session
from holdfast.broker.subscriptions import Subscription
from holdfast.errors import PeerError
from holdfast.mqtt.channels import (
    NAME,
    PARAMETERS_MAX,
    SHOWN_CHARS_MAX,
    Told,
    channel_topic,
    format_told,
    parse_catalog,
    parse_subscription,
    shape,
)
from holdfast.mqtt.conventions import (
    CATALOG_TOPIC,
    CHANNEL_TOPICS,
    LAST_TOPICS,
    SUBSCRIPTIONS_TOPIC,
)
from holdfast.mqtt.reasons import Reason
from holdfast.units import S

if TYPE_CHECKING:
    from holdfast.broker.broker import Broker

BUCKETS = 1024
TOLD_AT_ONCE = 250  # subscriptions in a message: some tenths of a millisecond that others wait
TOLD_BYTES_MAX = 65_536  # of them, about
QUEUED_MAX = 4  # messages that wait for a listener before it is told more
WANTED_AT_ONCE = 100
WANTED_MAX = 10_000
WANTED_NS = 60 * S
CATALOGS_MAX = 64
NAMES_SHOWN_MAX = 5

CHANNELS = CHANNEL_TOPICS.encode()
WORDS = CHANNELS + b"$"
SUBSCRIPTIONS = SUBSCRIPTIONS_TOPIC.encode()


def is_channel(filter: str) -> bool:
    return filter.startswith(CHANNEL_TOPICS) or filter == CHANNEL_TOPICS[:-1]


def counts(filter: bytes) -> bool:
    """Whether that is a subscription to a channel."""
    return filter.startswith(CHANNELS) and not filter.startswith(WORDS)


class Counts:
    """Filters of channel subscriptions, in buckets, so that all are read piece by piece while they change."""

    def __init__(self) -> None:
        self._buckets: list[dict[bytes, int]] = [{} for _ in range(BUCKETS)]
        self.distinct = 0

    def _bucket(self, filter: bytes) -> dict[bytes, int]:
        return self._buckets[crc32(filter) % BUCKETS]

    def __contains__(self, filter: bytes) -> bool:
        return filter in self._bucket(filter)

    def enter(self, filter: bytes) -> bool:
        """Says whether it is the first."""
        bucket = self._bucket(filter)
        sessions = bucket[filter] = bucket.get(filter, 0) + 1
        self.distinct += sessions == 1
        return sessions == 1

    def leave(self, filter: bytes) -> bool:
        """Says whether it was the last."""
        bucket = self._bucket(filter)
        if bucket[filter] > 1:
            bucket[filter] -= 1
            return False
        del bucket[filter]
        self.distinct -= 1
        return True

    def all(self) -> Iterator[bytes]:
        """Every one that is there from the beginning to the end, and some that are not; none that is gone."""
        for bucket in self._buckets:
            for filter in list(bucket):
                if filter in bucket:
                    yield filter


class Listener:
    """One client that serves channels: the whole list first, changes as they come."""

    def __init__(self, counts: Counts, epoch: str) -> None:
        self.epoch = epoch
        self.number = 0
        self._rest: Iterator[bytes] | None = counts.all()
        self._changed: dict[bytes, bool] = {}
        self._wanted: list[str] | None = None  # from the first message on

    def changed(self, filter: bytes, there: bool) -> None:
        self._changed[filter] = there

    def want(self, token: str) -> None:
        if self._wanted is not None:
            self._wanted.append(token)

    @property
    def waits(self) -> bool:
        """Whether there is more to tell."""
        return self._rest is not None or bool(self._changed) or bool(self._wanted)

    def next(self, wants: dict[str, Want]) -> Told:
        """The next message: changes first, so that a part of the list is never older than they are."""
        added: list[str] = []
        removed: list[str] = []
        room = TOLD_BYTES_MAX
        while self._changed and len(added) + len(removed) < TOLD_AT_ONCE and room > 0:
            filter = next(iter(self._changed))
            (added if self._changed.pop(filter) else removed).append(key_of(filter))
            room -= len(filter)
        complete = False
        while self._rest is not None and len(added) + len(removed) < TOLD_AT_ONCE and room > 0:
            found = next(self._rest, None)
            if found is None:
                self._rest, complete = None, True
            else:
                added.append(key_of(found))
                room -= len(found)
        if self._wanted is None:
            self._wanted = [token for token, want in wants.items() if not want.answered]
        tokens, self._wanted = self._wanted[:WANTED_AT_ONCE], self._wanted[WANTED_AT_ONCE:]
        open_wants = [(token, wants[token]) for token in tokens if token in wants]
        self.number += 1
        return Told(
            epoch=self.epoch,
            number=self.number,
            begins=self.number == 1,
            complete=complete,
            added=tuple(added),
            removed=tuple(removed),
            wanted=tuple((token, key_of(want.filter), want.left) for token, want in open_wants),
        )


def key_of(filter: bytes) -> str:
    return filter[len(CHANNELS) :].decode()


class Want(Struct):
    """A subscription that awaits the last results of its channel."""

    session: Session
    filter: bytes
    left: int
    due_ns: int
    answered: bool = False


class Heard(Struct, array_like=True):
    """A word of a client that serves channels, as the compiled side hands it over."""

    session_key: str
    topic: bytes
    payload: bytes
    qos: int
    props: bytes = field(default=b"")
    expiry_at: int = 0
    expiry_s: int = 0


class Channels:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.counts = Counts()
        self.listeners: dict[Session, Listener] = {}
        self._catalogs: dict[str, dict[str, tuple[str, ...]]] = {}
        self.wants: dict[str, Want] = {}
        self._epochs = 0
        self._tokens = 0

    # Sessions and their subscriptions

    def attached(self, connection: Connection, session: Session) -> None:
        connection.serves = connection.state.serves
        if connection.serves and SUBSCRIPTIONS_TOPIC in session.subscriptions:
            self._listen(session)

    def detached(self, session: Session) -> None:
        self.listeners.pop(session, None)

    def ended(self, session: Session) -> None:
        self._catalogs.pop(session.key, None)

    def entered(self, subscription: Subscription, fresh: bool) -> None:
        """A session has the subscription, on whichever broker; `fresh` if it did not have it before."""
        filter = subscription.filter
        if counts(filter):
            if fresh and self.counts.enter(filter):
                self._changed(filter, True)
        elif filter == SUBSCRIPTIONS:
            link = subscription.session.link
            if link is not None and link.serves:
                self._listen(subscription.session)

    def left(self, subscription: Subscription) -> None:
        filter = subscription.filter
        if counts(filter):
            if self.counts.leave(filter):
                self._changed(filter, False)
        elif filter == SUBSCRIPTIONS:
            self.listeners.pop(subscription.session, None)

    def _changed(self, filter: bytes, there: bool) -> None:
        for listener in self.listeners.values():
            listener.changed(filter, there)

    def _listen(self, session: Session) -> None:
        """The client hears the whole list, from now on."""
        self._epochs += 1
        epoch = f"{self.broker.name}-{self._epochs}"
        self.listeners[session] = Listener(self.counts, epoch)

    # What may be subscribed to

    def check(self, session: Session, filter: str, group: str | None) -> None:
        """Raises why this filter of a channel cannot be granted, and what could be."""
        if filter == SUBSCRIPTIONS_TOPIC and group is None:
            if session.link is None or not session.link.serves:
                raise PeerError(Reason.NOT_AUTHORIZED, "only who serves channels hears of subscriptions")
            return
        try:
            self._check(filter)
        except ValueError as error:
            raise PeerError(Reason.TOPIC_FILTER_INVALID, str(error)) from None

    def _check(self, filter: str) -> None:
        name, slash, levels = filter.removeprefix(CHANNEL_TOPICS).partition("/")
        if NAME.fullmatch(name) is None or filter == CHANNEL_TOPICS[:-1]:
            shown = name[:SHOWN_CHARS_MAX]
            raise ValueError(f"{shown!r} is no name of a channel; {self._example()} would do")
        if slash and not levels:
            raise ValueError("a value is not empty; without values there is no '/' behind the name")
        if not self._catalogs:
            most = levels.count("/") + 1 if levels else 0
            if most > PARAMETERS_MAX:
                raise ValueError(f"a channel has up to {PARAMETERS_MAX} values")
            parse_subscription(levels, ["string"] * most)
            return
        types = self._parameters(name)
        if types is None:
            raise ValueError(f"there is no channel {name!r}; {self._offered()}")
        try:
            parse_subscription(levels, types)
        except ValueError as error:
            raise ValueError(f"channel {name!r}: {error}") from None

    def _parameters(self, name: str) -> tuple[str, ...] | None:
        return next((catalog[name] for catalog in self._catalogs.values() if name in catalog), None)

    def _names(self) -> list[str]:
        return sorted({name for catalog in self._catalogs.values() for name in catalog})

    def _offered(self) -> str:
        names = self._names()
        if not names:
            return "none is on offer now"
        more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
        return f"on offer: {', '.join(names[:NAMES_SHOWN_MAX])}{more}"

    def _example(self) -> str:
        name = next(iter(self._names()), None)
        if name is None:
            return channel_topic("near", "alice")
        types = self._parameters(name) or ()
        return channel_topic(name, shape(types) if types else "")

    # The last results

    def check_last(self, filter: str, group: str | None) -> None:
        if not is_channel(filter) or filter == SUBSCRIPTIONS_TOPIC or group is not None:
            raise PeerError(
                Reason.IMPLEMENTATION_SPECIFIC_ERROR,
                "last results are of a channel, for a subscription that is not shared",
            )
        if len(self.wants) >= WANTED_MAX:
            raise PeerError(Reason.QUOTA_EXCEEDED, f"{WANTED_MAX} await last results already; try again soon")

    def want(self, subscription: Subscription, last: int) -> None:
        """The subscription was granted, and wants the last results of its channel."""
        self._tokens += 1
        token = f"{self.broker.name}-{self._tokens}"
        due_ns = self.broker.core.board.now_ns + WANTED_NS
        self.wants[token] = Want(subscription.session, subscription.filter, last, due_ns)
        for listener in self.listeners.values():
            listener.want(token)

    def _give(self, heard: Heard) -> None:
        token = heard.topic[len(LAST_TOPICS) :].decode()
        want = self.wants.get(token)
        subscription = None if want is None else want.session.subscriptions.get(want.filter.decode())
        if want is None or subscription is None:
            self.wants.pop(token, None)
            return
        want.answered = True
        want.left -= 1
        if want.left == 0:
            del self.wants[token]
        self.broker.core.give(
            subscription,
            subscription.filter,
            heard.payload,
            qos=heard.qos,
            retain=True,
            props=heard.props,
            expiry_at=heard.expiry_at,
            expiry_s=heard.expiry_s,
        )

    # Turns

    @property
    def due_ns(self) -> int | None:
        """Now, when a listener could be told something."""
        if not self.listeners:
            return None
        ready = any(listener.waits and takes(session) for session, listener in self.listeners.items())
        return self.broker.core.board.now_ns if ready else None

    def turn(self, now_ns: int) -> bool:
        """Hears and tells; says whether more could be told at once."""
        if self.broker.core.heard:
            words, self.broker.core.heard = self.broker.core.heard, []
            for word in words:
                self._hear(Heard(*word))
        while self.wants and next(iter(self.wants.values())).due_ns <= now_ns:
            del self.wants[next(iter(self.wants))]
        more = False
        for session, listener in self.listeners.items():
            more |= self._tell(session, listener)
        return more

    def _tell(self, session: Session, listener: Listener) -> bool:
        subscription = session.subscriptions[SUBSCRIPTIONS_TOPIC]
        if listener.waits and takes(session):
            told = listener.next(self.wants)
            self.broker.core.give(subscription, SUBSCRIPTIONS, format_told(told))
        return listener.waits and takes(session)

    def _hear(self, heard: Heard) -> None:
        if heard.topic.startswith(LAST_TOPICS.encode()):
            self._give(heard)
            return
        session = self.broker.clients.sessions.get(heard.session_key)
        if session is None or heard.topic != CATALOG_TOPIC.encode():
            return
        try:
            if len(heard.payload) > self.broker.limits.control_bytes_max:
                raise ValueError(f"a catalog has up to {self.broker.limits.control_bytes_max} bytes")
            catalog = parse_catalog(heard.payload)
            if session.key not in self._catalogs and len(self._catalogs) >= CATALOGS_MAX:
                raise ValueError(f"up to {CATALOGS_MAX} clients offer channels")
        except ValueError as error:
            self.broker.event("catalog refused", {"client": session.client_id, "why": str(error)})
            return
        self._catalogs[session.key] = catalog
        if session in self.listeners:
            self._listen(session)


def takes(session: Session) -> bool:
    """Whether the client keeps up with what it is told."""
    return session.queued < QUEUED_MAX
