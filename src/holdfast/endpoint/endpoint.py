"""One client of a group, or of any single MQTT broker, without a socket and without a clock.

The driver performs what `take_dials`, `take_output` and `take_hangups` say, in this order of importance: what
is to be written is written before its connection is hung up. It tells what happened; after a hangup it tells
no `lost`. Behind this face: `group` decides where to write, `outbox` what, `inbox` gives out what arrives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from holdfast.contract.model import Contract
from holdfast.endpoint.backoff import Rng
from holdfast.endpoint.channel import Channel
from holdfast.endpoint.config import STREAMS_MAX, TOPICS_MAX, Address, EndpointConfig
from holdfast.endpoint.events import Answered, Event, Ticket, TurnedAway
from holdfast.endpoint.failover import State
from holdfast.endpoint.group import Group
from holdfast.endpoint.inbox import Inbox
from holdfast.endpoint.messages import Message
from holdfast.endpoint.order import Order
from holdfast.endpoint.outbox import Outbox
from holdfast.endpoint.outgoing import Outgoing
from holdfast.endpoint.protocol import Done, Incoming
from holdfast.endpoint.retention import Batch, Retention
from holdfast.endpoint.session import Session
from holdfast.endpoint.sink import Sink
from holdfast.endpoint.subscribing import Subscriptions
from holdfast.errors import PeerError, Unavailable
from holdfast.mqtt.conventions import VIEW_TOPIC, ViewNote, find_view, parse_view, publisher_name
from holdfast.mqtt.packets import Connack, Disconnect, Pingresp, Properties, Publish, Subscription
from holdfast.mqtt.reasons import Reason

UNANSWERED = " without an answer; if TLS is spoken there, write mqtts:// before its host"


class Endpoint:
    def __init__(self, config: EndpointConfig, *, token: str, rng: Rng, now_ns: int) -> None:
        self.config = config
        self.client_id = config.client_id or f"holdfast-{token}"
        self.publisher = publisher_name(self.client_id, token)
        self._outbox = Outbox(Session(), Retention(self.publisher, TOPICS_MAX), config.waiting_max)
        self._inbox = Inbox(config.queue_max, STREAMS_MAX)
        self._subscriptions = Subscriptions(self._outbox)
        self._group = Group(
            config, self.client_id, self._outbox, self._subscriptions, self._finish_reading, rng, now_ns
        )
        # Whether packets of the target wait behind a full queue of messages.
        self._stalled = False

    # -- what the driver asks ------------------------------------------------------------------------------

    def take_dials(self) -> list[Address]:
        taken, self._group.dials = self._group.dials, []
        return taken

    def take_output(self) -> list[tuple[Address, bytes]]:
        group = self._group
        taken, group.finals = group.finals, []
        for channel in group.channels.values():
            if channel.protocol.waiting_bytes and channel.connected:
                taken.append((channel.address, channel.protocol.output()))
        return taken

    def take_hangups(self) -> list[Address]:
        taken, self._group.hangups = self._group.hangups, []
        return taken

    def take_events(self) -> list[Event]:
        taken, self._group.events = self._group.events, []
        taken += map(Answered, self._outbox.answered)
        self._outbox.answered = []
        return taken

    @property
    def next_ns(self) -> int | None:
        """When `turn` is due though nothing happens."""
        return self._group.next_ns

    @property
    def state(self) -> State:
        return self._group.state

    @property
    def view(self) -> ViewNote | None:
        """The newest view we know; None at a broker that knows no groups."""
        return self._group.view

    @property
    def home(self) -> Address | None:
        """Where we are served; None while nobody does."""
        return self.target if self._group.state is State.SERVED else None

    @property
    def target(self) -> Address | None:
        """Where we write."""
        target = self._group.target
        return None if target is None else target.address

    @property
    def full(self) -> bool:
        """So many messages wait for their user that nothing more of `target` should be read."""
        return self._inbox.full

    @property
    def drained(self) -> bool:
        """So few messages wait for their user that more may be read."""
        return self._inbox.drained

    # -- what the driver tells -----------------------------------------------------------------------------

    def opened(self, address: Address, now_ns: int) -> None:
        self._group.now_ns = now_ns
        self._group.opened(address)

    def failed(self, address: Address, now_ns: int) -> None:
        self._group.now_ns = now_ns
        self._group.failed(address)

    def received(self, address: Address, data: bytes, now_ns: int, wall_ns: int) -> None:
        self._group.now_ns = now_ns
        channel = self._group.connection(address)
        if channel is not None:
            channel.read_ns = wall_ns
            channel.protocol.feed(data)
            self._work(channel)
        elif (left := self._group.left(address)) is not None:
            left.protocol.feed(data)
            with contextlib.suppress(PeerError):
                left.protocol.scan_after_goodbye(self._inbox, wall_ns)

    def lost(self, address: Address, now_ns: int, why: str = "") -> None:
        group = self._group
        group.now_ns = now_ns
        if group.left(address) is not None:
            group.over(address)
            return
        channel = group.connection(address)
        if channel is not None:
            self._finish_reading(channel)
        if channel is not None and channel.connected:
            words = f": {why}" if why else "" if channel.up else UNANSWERED
            group.gone(channel, Unavailable(f"the broker at {channel} closed the connection{words}"))

    def turn(self, now_ns: int, wall_ns: int) -> None:
        self._group.now_ns = now_ns
        self._group.turn(unread=self._stalled)

    # -- what the user asks --------------------------------------------------------------------------------

    def declare(self, topic_filter: str, contract: Contract) -> None:
        retention, period_ns = contract.retention, contract.period_ns or 0
        self._outbox.retention.declare(topic_filter, retention, period_ns, contract.loss_tolerance)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        stamp: bool = True,
        now_ns: int,
        wall_ns: int,
    ) -> Ticket | None:
        message = Outgoing(topic, payload, qos, retain, properties)
        return self.publish_many([message], stamp=stamp, now_ns=now_ns, wall_ns=wall_ns)

    def publish_many(
        self, messages: list[Outgoing], *, stamp: bool = True, now_ns: int, wall_ns: int
    ) -> Ticket | None:
        """The ticket answers for all of them; None if all have QoS 0."""
        self._check_open()
        return self._outbox.publish_many(messages, wall_ns if stamp else None)

    def prepare(self, messages: list[Outgoing]) -> Batch:
        """Plain messages of QoS 0 that will be published together again and again."""
        return self._outbox.retention.prepare(messages)

    def publish_batch(self, batch: Batch, *, wall_ns: int) -> None:
        self._check_open()
        self._outbox.publish_batch(batch, wall_ns)

    def pour(self, sink: Sink, order: Order | None = None) -> None:
        """From now on what a sink may have goes there instead of waiting to be taken."""
        self._inbox.pour(sink, order)

    @property
    def poured(self) -> int:
        """How many messages the sink was given."""
        return self._inbox.poured

    def release(self, count: int) -> None:
        """The first so many messages of a sink that holds are acknowledged."""
        self._inbox.release(count)
        if self._stalled:
            self._read_on()

    def subscribe(
        self,
        subscriptions: str | Subscription | Sequence[str | Subscription],
        *,
        qos: int = 1,
        deadline_ns: int | None = None,
        loss_tolerance: int | str | None = None,
        depth: int | None = None,
        properties: Properties | None = None,
        now_ns: int,
    ) -> Ticket:
        self._check_open()
        return self._subscriptions.subscribe(
            subscriptions, qos, properties, deadline_ns, loss_tolerance, depth
        )

    def unsubscribe(self, filters: str | Sequence[str], *, now_ns: int) -> Ticket:
        self._check_open()
        return self._subscriptions.unsubscribe([filters] if isinstance(filters, str) else filters)

    def take_message(self) -> Message | None:
        message = self._inbox.take()
        if self._stalled:
            self._read_on()
        return message

    def take_messages(self) -> list[Message]:
        """In order per publisher and topic, each once; they are acknowledged by being taken."""
        messages = self._inbox.take_all()
        if self._stalled:
            self._read_on()
        return messages

    @property
    def waiting(self) -> int:
        """Messages that have arrived and are not taken yet."""
        return len(self._inbox)

    @property
    def room(self) -> int:
        """How many more QoS 1 and 2 messages may be published now."""
        return self._outbox.room

    @property
    def sequences(self) -> dict[str, int]:
        return self._outbox.retention.sequences()

    @property
    def unsent(self) -> int:
        """QoS 0 messages that nobody was there to take and no ring could keep."""
        return self._outbox.retention.unsent

    @property
    def duplicates(self) -> int:
        return self._inbox.order.duplicates

    @property
    def granted(self) -> Properties:
        """What the broker that we write to said of itself in CONNACK."""
        target = self._group.target
        return target.protocol.granted if target is not None else Properties()

    def close(self, now_ns: int, reason: int = Reason.NORMAL_DISCONNECTION) -> None:
        """Says goodbye to everybody."""
        self._group.now_ns = now_ns
        ends = self.config.ends_session and self.config.session_expiry_s
        for channel in self._group.channels.values():
            if channel.connected:
                channel.protocol.disconnect(reason, Properties(session_expiry=0 if ends else None))
        self._group.end(None)

    def _check_open(self) -> None:
        if self._group.state is State.ENDED:
            raise self._group.error or Unavailable("the connection was closed by its user")

    def _finish_reading(self, channel: Channel) -> None:
        """A connection ends: what was read of it is given out, though the queue is full."""
        if self._stalled and channel is self._group.target:
            self._stalled = False
            self._work(channel, to_the_end=True)

    def _read_on(self) -> None:
        target = self._group.target
        if self._inbox.drained:
            self._stalled = False
            if target is not None:
                self._work(target)

    # -- what brokers say ----------------------------------------------------------------------------------

    def _work(self, channel: Channel, *, to_the_end: bool = False) -> None:
        """Handles what was read; what follows a full queue of messages waits, unless it must be now."""
        protocol = channel.protocol
        try:
            while channel.connected:
                protocol.scan(self._inbox, channel.read_ns)
                if self._inbox.full and channel is self._group.target and not to_the_end:
                    self._stalled = True
                    break
                protocol.take_acknowledgements(self._outbox.answered)
                packet = protocol.next()
                if packet is None:
                    break
                self._handle(channel, packet)
        except PeerError as error:
            protocol.disconnect(error.reason)
            self._group.hang_up(channel)
            self._group.gone(
                channel, Unavailable(f"the broker at {channel} broke the protocol: {error.text}")
            )
        self._outbox.advance()

    def _handle(self, channel: Channel, packet: Incoming) -> None:
        match packet:
            case Publish():
                self._message(channel, packet)
            case Done():
                self._outbox.done(packet)
                refusal = self._subscriptions.done(packet)
                if refusal is not None:
                    self._group.events.append(TurnedAway(channel.address, refusal.reason, str(refusal)))
                self._group.hear(channel, find_view(packet.answer.properties.user))
            case Connack():
                self._group.connack(channel, packet)
            case Disconnect():
                self._group.disconnected(channel, packet)
            case Pingresp():
                channel.answered_ping()

    def _message(self, channel: Channel, packet: Publish) -> None:
        if packet.topic == VIEW_TOPIC and channel.grouped:
            self._group.hear(channel, parse_view(packet.payload.decode(errors="replace")))
            if not self._subscriptions.cover(VIEW_TOPIC):
                return
        self._inbox.arrived(packet, channel.protocol, channel.read_ns)
