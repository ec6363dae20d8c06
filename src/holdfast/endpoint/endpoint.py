"""One client of a group, or of any single MQTT broker: what to dial, what to write, where.

Laws:
- every address has a connection, or one on its way: what is lost is dialled again
- publications go to the primary of the highest view known, or, between two primaries, to the first heir
- a connection that gets what may be lost, and is not the one in the end, is closed: nobody reads it later
- a broker that says nothing of views is used alone, and the other addresses only when it is lost

The driver performs what `take_dials`, `take_output` and `take_hangups` say, and tells what happened. After a
hangup it tells no `lost`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from holdfast.contract.model import Contract
from holdfast.endpoint.backoff import Backoff, Rng
from holdfast.endpoint.channel import Channel, Phase
from holdfast.endpoint.config import ADDRESSES_MAX, STREAMS_MAX, TOPICS_MAX, Address, EndpointConfig
from holdfast.endpoint.events import (
    Answered,
    Connected,
    Ended,
    Event,
    Lost,
    Redirected,
    Ticket,
    TurnedAway,
)
from holdfast.endpoint.failover import TABLE, Action, State
from holdfast.endpoint.failover import Event as Happening
from holdfast.endpoint.inbox import Inbox
from holdfast.endpoint.messages import Message
from holdfast.endpoint.outbox import Outbox
from holdfast.endpoint.outgoing import Outgoing
from holdfast.endpoint.protocol import REFUSAL, Done, Incoming
from holdfast.endpoint.retention import Retention
from holdfast.endpoint.session import Session
from holdfast.endpoint.subscribing import Subscriptions
from holdfast.endpoint.words import described, parse_reference
from holdfast.errors import HoldfastError, PeerError, Refused, Unavailable
from holdfast.mqtt.conventions import (
    VIEW_PROPERTY,
    VIEW_TOPIC,
    WARM_PROPERTY,
    ViewNote,
    find_view,
    parse_view,
    publisher_name,
)
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingresp,
    Properties,
    Publish,
    Subscription,
)
from holdfast.mqtt.reasons import Reason

ELSEWHERE = (Reason.USE_ANOTHER_SERVER, Reason.SERVER_MOVED)
# What a broker says that may take us again later; anything else is about us, and for good.
LATER = (
    *ELSEWHERE, Reason.SERVER_UNAVAILABLE, Reason.SERVER_BUSY, Reason.SERVER_SHUTTING_DOWN,
    Reason.KEEP_ALIVE_TIMEOUT, Reason.CONNECTION_RATE_EXCEEDED, Reason.MAXIMUM_CONNECT_TIME,
)  # fmt: skip


class Endpoint:
    def __init__(self, config: EndpointConfig, *, token: str, rng: Rng, now_ns: int) -> None:
        self.config = config
        self.client_id = config.client_id or f"holdfast-{token}"
        self.publisher = publisher_name(self.client_id, token)
        self.view: ViewNote | None = None
        self.state = State.SEEKING
        self.next_ns: int | None = now_ns
        self._rng = rng
        self._now_ns = now_ns
        self._session = Session()
        self._outbox = Outbox(self._session, Retention(self.publisher, TOPICS_MAX), config.waiting_max)
        self._inbox = Inbox(config.queue_max, STREAMS_MAX)
        self._subscriptions = Subscriptions(self._outbox)
        self._channels: dict[Address, Channel] = {}
        # Where we write, and the view in which it serves.
        self._target: Channel | None = None
        self._served_in = 0
        self._was_served = False
        self._last: tuple[Address, int] | None = None
        self._stalled = False
        self._lost_ns: int | None = None
        self._error: HoldfastError | None = None
        self._dials: list[Address] = []
        self._finals: list[tuple[Address, bytes]] = []
        self._hangups: list[Address] = []
        self._events: list[Event] = []
        for address in config.addresses:
            self._add(address, "")
        self._plan()

    # -- what the driver asks ------------------------------------------------------------------------------

    def take_dials(self) -> list[Address]:
        taken, self._dials = self._dials, []
        return taken

    def take_output(self) -> list[tuple[Address, bytes]]:
        taken, self._finals = self._finals, []
        for channel in self._channels.values():
            if channel.protocol.waiting_bytes and channel.connected:
                taken.append((channel.address, channel.protocol.output()))
        return taken

    def take_hangups(self) -> list[Address]:
        taken, self._hangups = self._hangups, []
        return taken

    def take_events(self) -> list[Event]:
        taken, self._events = self._events, []
        taken += map(Answered, self._outbox.answered)
        self._outbox.answered = []
        return taken

    @property
    def home(self) -> Address | None:
        """Where we are served; None while nobody does."""
        return self._target.address if self._target is not None and self.state is State.SERVED else None

    @property
    def target(self) -> Address | None:
        """Where we write."""
        return None if self._target is None else self._target.address

    @property
    def full(self) -> bool:
        """So many messages wait for their user that nothing more of `target` should be read."""
        return self._inbox.full

    # -- what the driver tells -----------------------------------------------------------------------------

    def opened(self, address: Address, now_ns: int) -> None:
        self._now_ns = now_ns
        channel = self._channels.get(address)
        if channel is None or channel.phase is not Phase.DIALLING:
            self._hangups.append(address)
            return
        channel.open(self._connect_packet(), now_ns, self.config.answer_ns_max)
        self._plan()

    def failed(self, address: Address, now_ns: int) -> None:
        self._now_ns = now_ns
        channel = self._channels.get(address)
        if channel is not None and channel.phase is Phase.DIALLING:
            channel.closed(now_ns)
            self._plan()

    def received(self, address: Address, data: bytes, now_ns: int, wall_ns: int) -> None:
        self._now_ns = now_ns
        channel = self._channels.get(address)
        if channel is None or not channel.connected:
            return
        channel.read_ns = wall_ns
        channel.protocol.feed(data)
        self._work(channel)

    def lost(self, address: Address, now_ns: int, why: str = "") -> None:
        self._now_ns = now_ns
        channel = self._channels.get(address)
        if channel is None or not channel.connected:
            return
        if self._stalled and channel is self._target:
            self._work(channel, all=True)
            if not channel.connected:
                return
        words = f": {why}" if why else ""
        self._gone(channel, Unavailable(f"the broker at {channel} closed the connection{words}"))

    def turn(self, now_ns: int, wall_ns: int) -> None:
        self._now_ns = now_ns
        for channel in list(self._channels.values()):
            if channel.due_ns is not None and channel.due_ns <= now_ns:
                self._due(channel)
        if self._patience_ns is not None and self._patience_ns <= now_ns:
            seconds = self.config.outage_ns_max / 1e9
            self._end(self._error or Unavailable(f"no broker of the group serves us since {seconds:g} s"))
        self._plan()

    def _due(self, channel: Channel) -> None:
        match channel.phase:
            case Phase.IDLE:
                self._dial(channel)
            case Phase.OPEN:
                self._hang_up(channel)
                self._gone(channel, Unavailable(f"the broker at {channel} does not answer CONNECT"))
            case Phase.UP if not channel.ping(
                self._now_ns, unread=channel is self._target and self._inbox.full
            ):
                silent = f"the broker at {channel} does not answer any more ({channel.silence_s:g} s)"
                self._hang_up(channel)
                self._gone(channel, Unavailable(silent))

    @property
    def _patience_ns(self) -> int | None:
        """Until when we do without a primary."""
        if self._lost_ns is None or self.state is State.ENDED:
            return None
        allowed = self.config.outage_ns_max
        if self.state is State.LEANING:
            allowed = max(allowed, self.config.answer_ns_max)
        return self._lost_ns + allowed

    def _plan(self) -> None:
        dues = [channel.due_ns for channel in self._channels.values() if channel.due_ns is not None]
        patience_ns = self._patience_ns
        if patience_ns is not None:
            dues.append(patience_ns)
        self.next_ns = min(dues, default=None) if self.state is not State.ENDED else None

    # -- what the user asks --------------------------------------------------------------------------------

    def declare(self, topic_filter: str, contract: Contract) -> None:
        self._outbox.retention.declare(topic_filter, contract.retention)

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
        self._read_on()
        return message

    def take_messages(self) -> list[Message]:
        """In order per publisher and topic, each once; they are acknowledged by being taken."""
        messages = self._inbox.take_all()
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
        return self._target.protocol.granted if self._target is not None else Properties()

    def close(self, now_ns: int, reason: int = Reason.NORMAL_DISCONNECTION) -> None:
        """Says goodbye to everybody."""
        self._now_ns = now_ns
        ends = self.config.ends_session and self.config.session_expiry_s
        for channel in self._channels.values():
            if channel.connected:
                channel.protocol.disconnect(reason, Properties(session_expiry=0 if ends else None))
        self._end(None)

    def _check_open(self) -> None:
        if self.state is State.ENDED:
            raise self._error or Unavailable("the connection was closed by its user")

    def _read_on(self) -> None:
        if self._stalled and self._inbox.drained:
            self._stalled = False
            if self._target is not None:
                self._work(self._target)

    # -- what brokers say ----------------------------------------------------------------------------------

    def _work(self, channel: Channel, *, all: bool = False) -> None:
        """Handles what was read; what follows a full queue of messages waits, unless it must be now."""
        protocol = channel.protocol
        try:
            while channel.connected:
                protocol.scan(self._inbox, channel.read_ns)
                if self._inbox.full and channel is self._target and not all:
                    self._stalled = True
                    break
                packet = protocol.next()
                if packet is None:
                    break
                self._handle(channel, packet)
        except PeerError as error:
            protocol.disconnect(error.reason)
            self._hang_up(channel)
            self._gone(channel, Unavailable(f"the broker at {channel} broke the protocol: {error.text}"))
        self._outbox.advance()

    def _handle(self, channel: Channel, packet: Incoming) -> None:
        match packet:
            case Publish():
                self._message(channel, packet)
            case Done():
                self._outbox.done(packet)
                refusal = self._subscriptions.done(packet)
                if refusal is not None:
                    self._events.append(TurnedAway(channel.address, refusal.reason, str(refusal)))
                self._hear(channel, find_view(packet.answer.properties.user))
            case Connack():
                self._connack(channel, packet)
            case Disconnect():
                self._disconnected(channel, packet)
            case Pingresp():
                channel.answered_ping()

    def _message(self, channel: Channel, packet: Publish) -> None:
        if packet.topic == VIEW_TOPIC and channel.grouped:
            self._hear(channel, parse_view(packet.payload.decode(errors="replace")))
            if not self._subscriptions.cover(VIEW_TOPIC):
                return
        self._inbox.arrived(packet, channel.protocol, channel.read_ns)

    def _connack(self, channel: Channel, packet: Connack) -> None:
        note = find_view(packet.properties.user)
        if packet.reason >= REFUSAL:
            self._refused(channel, packet, note)
            return
        channel.admitted(packet, self.config.keep_alive_s, self._now_ns)
        if note is not None:
            channel.grouped = True
            channel.served_at_once = note.from_primary
            self._introduced(channel, note)
            self._hear(channel, note)
        elif self.view is None and (self._target is None or self._target is channel):
            channel.served_at_once = True
            self._fire(Happening.PRIMARY_SPOKE, channel)
            self._park_others(channel)
        else:
            self._leave(channel, parked=True)
        self._plan()

    def _refused(self, channel: Channel, packet: Connack, note: ViewNote | None) -> None:
        words = described(packet.reason, packet.properties.reason_string)
        refusal = Refused(packet.reason, f"the broker refused to let us in: {words}")
        self._events.append(TurnedAway(channel.address, packet.reason, str(refusal)))
        self._hang_up(channel)
        channel.closed(self._now_ns)
        if packet.reason in LATER or packet.reason == Reason.QUOTA_EXCEEDED:
            self._follow(packet.properties.server_reference)
            self._hear(channel, note)
        else:
            channel.retire()
            if all(each.phase is Phase.RETIRED for each in self._channels.values()):
                self._end(refusal)
        self._plan()

    def _disconnected(self, channel: Channel, packet: Disconnect) -> None:
        words = described(packet.reason, packet.properties.reason_string)
        refusal = Refused(packet.reason, f"the broker at {channel} ended the connection: {words}")
        self._hang_up(channel)
        if channel is self._target and packet.reason not in LATER:
            self._end(refusal)
            return
        self._follow(packet.properties.server_reference)
        note = find_view(packet.properties.user)
        if note is not None and (self.view is None or note.number > self.view.number):
            self.view = note
        self._gone(channel, refusal)

    # -- views ---------------------------------------------------------------------------------------------

    def _introduced(self, channel: Channel, note: ViewNote) -> None:
        """A member said its name; a second connection to it would fight with the first."""
        for other in list(self._channels.values()):
            if other is not channel and other.name == note.teller:
                if other.connected or other.phase is Phase.DIALLING:
                    self._leave(other, parked=True)
                del self._channels[other.address]
        channel.name = note.teller

    def _hear(self, channel: Channel, note: ViewNote | None) -> None:
        if note is None or self.state is State.ENDED:
            return
        known = self.view.number if self.view is not None else 0
        if note.number > known or (note.number == known and note.from_primary):
            self.view = note
            self._adopt(note)
        if note.from_primary and channel.up:
            if note.number < known:
                self._leave(channel)
            else:
                self._served(channel, note)
            return
        target = self._target
        if target is not None and self.state is State.SERVED and target.grouped:
            if note.places and note.places[0].name == target.name:
                self._served_in = max(self._served_in, note.number)
            elif target is channel or note.number > self._served_in:
                self._leave(target)
                return
        if channel.up:
            self._fire(Happening.STANDBY_SPOKE, channel)

    def _served(self, channel: Channel, note: ViewNote) -> None:
        self._served_in = note.number
        self._fire(Happening.PRIMARY_SPOKE, channel)

    def _adopt(self, note: ViewNote) -> None:
        """Learns the addresses of members, unless one that we know may be theirs by another name."""
        for place in note.places:
            known = self._channels.get((place.host, place.port))
            if known is not None and not known.name:
                known.name = place.name
        if not all(channel.name for channel in self._channels.values()):
            return
        names = {channel.name for channel in self._channels.values()}
        for place in note.places:
            if place.name not in names:
                self._add((place.host, place.port), place.name)

    def _follow(self, reference: str | None) -> None:
        address = parse_reference(reference)
        if address is not None and address not in self._channels:
            self._add(address, "")

    def _add(self, address: Address, name: str) -> None:
        if address in self._channels or len(self._channels) >= ADDRESSES_MAX:
            return
        backoff = Backoff(self._rng, self.config.backoff_ns_min, self.config.backoff_ns_max)
        channel = self._channels[address] = Channel(address, self._session, backoff)
        channel.name = name
        self._dial(channel)

    def _dial(self, channel: Channel) -> None:
        channel.phase = Phase.DIALLING
        channel.due_ns = None
        self._dials.append(channel.address)

    # -- failover ------------------------------------------------------------------------------------------

    def _fire(self, happening: Happening, channel: Channel | None = None) -> None:
        action, after = TABLE[self.state, happening]
        before, self.state = self.state, after
        match action:
            case Action.SETTLE:
                assert channel is not None
                self._settle(channel, before)
            case Action.LEAN:
                heir = self._heir()
                assert heir is not None
                self._target = heir
                self._outbox.direct(heir.protocol)
            case Action.WAIT:
                self._target = None
                self._outbox.direct(None)
                if self.view is None:
                    for each in self._channels.values():
                        each.wake(self._now_ns)
            case Action.STAY | Action.END:
                pass

    def _settle(self, channel: Channel, before: State) -> None:
        old = self._target
        moved = channel is not old
        if moved:
            self._target = channel
            if old is not None and old.connected:
                self._leave(old)
            if channel.served_at_once and not channel.session_present:
                self._session.unreleased.clear()
            self._outbox.direct(channel.protocol)
        elif before is State.SERVED:
            return
        since_ns = self._now_ns if self._lost_ns is None else self._lost_ns
        self._lost_ns = None
        self._error = None
        now_at = (channel.address, self._served_in)
        if self._was_served:
            if now_at != self._last:
                self._events.append(Redirected(channel.address, self.view, self._now_ns - since_ns))
            self._subscriptions.renew()
        self._was_served = True
        self._last = now_at
        self._events.append(Connected(channel.address, self.view, channel.session_present))

    def _heir(self) -> Channel | None:
        """The first connected standby in the order of succession."""
        ready = {each.name: each for each in self._channels.values() if each.up and each.grouped}
        places = self.view.places if self.view is not None else ()
        named = (ready[place.name] for place in places if place.name in ready)
        return next(named, next(iter(ready.values()), None))

    def _gone(self, channel: Channel, error: HoldfastError) -> None:
        """A connection is over; what it was for goes on elsewhere."""
        channel.closed(self._now_ns)
        self._events.append(Lost(channel.address, str(error)))
        if channel is self._target:
            self._target_gone(error)
        self._plan()

    def _target_gone(self, error: HoldfastError) -> None:
        if self._lost_ns is None:
            self._lost_ns = self._now_ns
        self._target = None
        self._error = error
        if self._heir() is not None:
            self._fire(Happening.LOST_WITH_HEIR)
            return
        self._fire(Happening.LOST_ALONE)
        if self.config.outage_ns_max == 0:
            self._end(error)

    def _leave(self, channel: Channel, *, parked: bool = False) -> None:
        """Tells a member that we go, and the view that is why; it is dialled again unless it is parked."""
        user = [(VIEW_PROPERTY, str(self.view.number))] if self.view is not None else []
        channel.protocol.disconnect(Reason.NORMAL_DISCONNECTION, Properties(user=user))
        if channel.connected or channel.phase is Phase.DIALLING:
            self._hang_up(channel)
        channel.closed(self._now_ns, parked=parked)
        if channel is self._target:
            self._target_gone(Unavailable(f"the broker at {channel} is not the primary any more"))
        self._plan()

    def _park_others(self, channel: Channel) -> None:
        for other in self._channels.values():
            if other is not channel and other.phase is not Phase.RETIRED:
                self._leave(other, parked=True)

    def _hang_up(self, channel: Channel) -> None:
        data = channel.protocol.output()
        if data:
            self._finals.append((channel.address, data))
        self._hangups.append(channel.address)

    def _end(self, error: HoldfastError | None) -> None:
        """The first end counts."""
        if self.state is State.ENDED:
            return
        self._error = error
        for channel in self._channels.values():
            if channel.connected:
                self._hang_up(channel)
                channel.closed(self._now_ns, parked=True)
        self._target = None
        self._outbox.direct(None)
        self._dials.clear()
        self._fire(Happening.CLOSED)
        self._events.append(Ended(error))
        self._plan()

    def _connect_packet(self) -> Connect:
        config = self.config
        properties = copy.copy(config.properties)
        properties.receive_max = config.receive_max
        if properties.session_expiry is None and config.session_expiry_s:
            properties.session_expiry = config.session_expiry_s
        number = self.view.number if self.view is not None else 0
        properties.user = [*properties.user, (VIEW_PROPERTY, str(number)), (WARM_PROPERTY, "1")]
        return Connect(
            client_id=self.client_id,
            clean_start=config.clean_start and not self._was_served,
            keep_alive=config.keep_alive_s,
            username=config.username,
            password=config.password,
            will=config.will,
            properties=properties,
        )
