"""The members of a group as a client sees them: what to dial, whom to believe, where to write.

Laws:
- every address has a connection, or one on its way: what is lost is dialled again
- publications go to the primary of the highest view known, or, between two primaries, to the first heir
- a connection that gets what may be lost, and is not the one in the end, is closed: nobody reads it later
- a broker that says nothing of views is used alone, and the other addresses only when it is lost
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from holdfast.endpoint.backoff import Backoff, Rng
from holdfast.endpoint.channel import Channel, Phase
from holdfast.endpoint.config import ADDRESSES_MAX, Address, EndpointConfig
from holdfast.endpoint.events import Connected, Ended, Event, Lost, Redirected, TurnedAway
from holdfast.endpoint.failover import TABLE, Action, State
from holdfast.endpoint.failover import Event as Happening
from holdfast.endpoint.outbox import Outbox
from holdfast.endpoint.protocol import REFUSAL
from holdfast.endpoint.subscribing import Subscriptions
from holdfast.endpoint.words import described, parse_reference
from holdfast.errors import HoldfastError, Refused, Unavailable
from holdfast.mqtt.conventions import VIEW_PROPERTY, WARM_PROPERTY, ViewNote, find_view
from holdfast.mqtt.packets import Connack, Connect, Disconnect, Properties
from holdfast.mqtt.reasons import Reason

ELSEWHERE = (Reason.USE_ANOTHER_SERVER, Reason.SERVER_MOVED)
# What a broker says that may take us again later; anything else is about us, and for good.
LATER = (
    *ELSEWHERE, Reason.SERVER_UNAVAILABLE, Reason.SERVER_BUSY, Reason.SERVER_SHUTTING_DOWN,
    Reason.KEEP_ALIVE_TIMEOUT, Reason.CONNECTION_RATE_EXCEEDED, Reason.MAXIMUM_CONNECT_TIME,
)  # fmt: skip


class Group:
    def __init__(
        self,
        config: EndpointConfig,
        client_id: str,
        outbox: Outbox,
        subscriptions: Subscriptions,
        finish_reading: Callable[[Channel], None],
        rng: Rng,
        now_ns: int,
    ) -> None:
        self.now_ns = now_ns
        self.next_ns: int | None = None
        self.view: ViewNote | None = None
        self.state = State.SEEKING
        # Where we write.
        self.target: Channel | None = None
        self.error: HoldfastError | None = None
        self.dials: list[Address] = []
        self.hangups: list[Address] = []
        self.events: list[Event] = []
        self.finals: list[tuple[Address, bytes]] = []
        self.channels: dict[Address, Channel] = {}
        self._config = config
        self._client_id = client_id
        self._outbox = outbox
        self._subscriptions = subscriptions
        self._finish_reading = finish_reading
        self._rng = rng
        # The view in which `target` serves, and where and in which view we were served last.
        self._served_in = 0
        self._last: tuple[Address, int] | None = None
        self._lost_ns: int | None = None
        for address in config.addresses:
            self._add(address, "")

    # -- connections ---------------------------------------------------------------------------------------

    def opened(self, address: Address) -> None:
        channel = self.channels.get(address)
        if channel is None or channel.phase is not Phase.DIALLING:
            self.hangups.append(address)
            return
        channel.open(self._connect_packet(), self.now_ns, self._config.answer_ns_max)
        self._plan()

    def failed(self, address: Address) -> None:
        channel = self.channels.get(address)
        if channel is not None and channel.phase is Phase.DIALLING:
            channel.closed(self.now_ns)
            self._plan()

    def connection(self, address: Address) -> Channel | None:
        """The connection to an address, if there is one."""
        channel = self.channels.get(address)
        return channel if channel is not None and channel.connected else None

    def left(self, address: Address) -> Channel | None:
        """The connection to an address that we said goodbye to and still listen to."""
        channel = self.channels.get(address)
        return channel if channel is not None and channel.phase is Phase.LEAVING else None

    def over(self, address: Address) -> None:
        """A connection that we left is closed."""
        self.channels[address].closed(self.now_ns)
        self._plan()

    def turn(self, *, unread: bool) -> None:
        """Does what is due. `unread` says that bytes of the target may wait behind a full queue."""
        for channel in list(self.channels.values()):
            if channel.due_ns is not None and channel.due_ns <= self.now_ns:
                self._due(channel, unread)
        patience_ns = self._patience_ns
        if patience_ns is not None and patience_ns <= self.now_ns:
            self.end(self.error or Unavailable("no broker serves us any more"))
        self._plan()

    def _due(self, channel: Channel, unread: bool) -> None:
        match channel.phase:
            case Phase.IDLE:
                self._dial(channel)
            case Phase.LEAVING:
                self.hang_up(channel)
                channel.closed(self.now_ns)
            case Phase.OPEN:
                self.hang_up(channel)
                self.gone(channel, Unavailable(f"the broker at {channel} does not answer CONNECT"))
            case Phase.UP if not channel.ping(self.now_ns, unread=unread and channel is self.target):
                silent = f"the broker at {channel} does not answer any more ({channel.silence_s:g} s)"
                self.hang_up(channel)
                self.gone(channel, Unavailable(silent))

    @property
    def _patience_ns(self) -> int | None:
        """Until when we do without a primary."""
        if self._lost_ns is None or self.state is State.ENDED:
            return None
        allowed = self._config.outage_ns_max
        if self.state is State.LEANING:
            allowed = max(allowed, self._config.answer_ns_max)
        return self._lost_ns + allowed

    def _plan(self) -> None:
        dues = [channel.due_ns for channel in self.channels.values() if channel.due_ns is not None]
        patience_ns = self._patience_ns
        if patience_ns is not None:
            dues.append(patience_ns)
        self.next_ns = min(dues, default=None) if self.state is not State.ENDED else None

    # -- what brokers say ----------------------------------------------------------------------------------

    def connack(self, channel: Channel, packet: Connack) -> None:
        note = find_view(packet.properties.user)
        if packet.reason >= REFUSAL:
            self._refused(channel, packet, note)
            return
        channel.admitted(packet, self._config.keep_alive_s, self.now_ns)
        if note is not None:
            channel.grouped = True
            channel.served_at_once = note.from_primary
            self._introduced(channel, note)
            self.hear(channel, note)
        elif self.view is None and (self.target is None or self.target is channel):
            channel.served_at_once = True
            self._fire(Happening.PRIMARY_SPOKE, channel)
            self._park_others(channel)
        else:
            self._leave(channel, parked=True)
        self._plan()

    def _refused(self, channel: Channel, packet: Connack, note: ViewNote | None) -> None:
        words = described(packet.reason, packet.properties.reason_string)
        refusal = Refused(packet.reason, f"the broker refused to let us in: {words}")
        self.events.append(TurnedAway(channel.address, packet.reason, str(refusal)))
        self.hang_up(channel)
        channel.closed(self.now_ns)
        if packet.reason in LATER or packet.reason == Reason.QUOTA_EXCEEDED:
            self._follow(packet.properties.server_reference, note)
            self.hear(channel, note)
        else:
            channel.retire()
            if all(each.phase is Phase.RETIRED for each in self.channels.values()):
                self.end(refusal)
        self._plan()

    def disconnected(self, channel: Channel, packet: Disconnect) -> None:
        words = described(packet.reason, packet.properties.reason_string)
        refusal = Refused(packet.reason, f"the broker at {channel} ended the connection: {words}")
        self.hang_up(channel)
        if channel is self.target and packet.reason not in LATER:
            self.end(refusal)
            return
        note = find_view(packet.properties.user)
        self._follow(packet.properties.server_reference, note)
        if note is not None and (self.view is None or note.number > self.view.number):
            self.view = note
        self.gone(channel, refusal)

    # -- views ---------------------------------------------------------------------------------------------

    def _introduced(self, channel: Channel, note: ViewNote) -> None:
        """A member said its name; a second connection to it would fight with the first."""
        for other in list(self.channels.values()):
            if other is not channel and other.name == note.teller:
                self._leave(other, parked=True)
                del self.channels[other.address]
        channel.name = note.teller

    def hear(self, channel: Channel, note: ViewNote | None) -> None:
        if note is None or self.state is State.ENDED:
            return
        known = self.view.number if self.view is not None else 0
        if note.number > known or (note.number == known and note.from_primary):
            listed = set() if self.view is None else {place.name for place in self.view.places}
            self.view = note
            self._adopt(note)
            self._hurry({place.name for place in note.places} - listed)
            self._probe_primary(note)
        if note.from_primary and channel.up:
            if note.number < known and not self._serves(note.teller):
                self._leave(channel)
            else:
                self._served(channel, note)
            return
        target = self.target
        if target is not None and self.state is State.SERVED and target.grouped:
            if note.places and note.places[0].name == target.name:
                self._served_in = max(self._served_in, note.number)
            elif target is channel or note.number > self._served_in:
                self._finish_reading(target)
                if target.connected:
                    self._leave(target, linger=True)
                return
        if channel.up:
            self._fire(Happening.STANDBY_SPOKE, channel)

    def _served(self, channel: Channel, note: ViewNote) -> None:
        if self.target is not None and self.target is not channel:
            self._finish_reading(self.target)
        self._served_in = max(note.number, self.view.number if self.view is not None else 0)
        self._fire(Happening.PRIMARY_SPOKE, channel)

    def _serves(self, name: str) -> bool:
        """Whether that member is the primary of the newest view we know: older words of it may come later."""
        return self.view is not None and bool(self.view.places) and self.view.places[0].name == name

    def _adopt(self, note: ViewNote) -> None:
        """Learns the addresses of members, unless one that we know may be theirs by another name."""
        for place in note.places:
            known = self.channels.get((place.host, place.port))
            if known is not None and not known.name:
                known.name = place.name
        if not all(channel.name for channel in self.channels.values()):
            return
        names = {channel.name for channel in self.channels.values()}
        for place in note.places:
            if place.name not in names:
                self._add((place.host, place.port), place.name)

    def _probe_primary(self, note: ViewNote) -> None:
        """Another member says who serves: if our connection to that one is dead, better to learn it now."""
        for channel in self.channels.values():
            if note.places and not note.from_primary and channel.name == note.places[0].name:
                channel.probe(self.now_ns)
        self._plan()

    def _hurry(self, names: set[str]) -> None:
        """An heir that is back must be connected before it is needed, not when its backoff ends, nor when a
        CONNECT that its former life got is given up."""
        for channel in self.channels.values():
            if channel.name in names:
                if channel.unanswered(self.now_ns):
                    self.hang_up(channel)
                    self.gone(channel, Unavailable(f"the broker at {channel} does not answer CONNECT"))
                channel.hurry(self.now_ns)
        self._plan()

    def _follow(self, reference: str | None, note: ViewNote | None) -> None:
        """Dials where a broker sends us, unless that is a member whom we reach by another address."""
        address = parse_reference(reference)
        places = [place for each in (note, self.view) if each is not None for place in each.places]
        referred = {place.name for place in places if (place.host, place.port) == address}
        if address is not None and not any(each.name in referred for each in self.channels.values()):
            self._add(address, "")

    def _add(self, address: Address, name: str) -> None:
        if address in self.channels or len(self.channels) >= ADDRESSES_MAX:
            return
        backoff = Backoff(self._rng, self._config.backoff_ns_min, self._config.backoff_ns_max)
        channel = self.channels[address] = Channel(address, self._outbox.session, backoff)
        channel.name = name
        self._dial(channel)

    def _dial(self, channel: Channel) -> None:
        channel.phase = Phase.DIALLING
        channel.due_ns = None
        self.dials.append(channel.address)

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
                self._write_to(heir)
            case Action.WAIT:
                self.target = None
                self._outbox.direct(None)
                if self.view is None:
                    for each in self.channels.values():
                        each.wake(self.now_ns)
                else:
                    self._hurry({place.name for place in self.view.places[1:]})
            case Action.STAY | Action.END:
                pass

    def _settle(self, channel: Channel, before: State) -> None:
        old = self.target
        now_at = (channel.address, self._served_in)
        if channel is not old:
            self.target = channel
            if old is not None and old.connected:
                self._leave(old, linger=before is State.SERVED)
            if channel.served_at_once and not channel.session_present:
                self._outbox.session.unreleased.clear()
            self._write_to(channel)
        elif before is State.SERVED:
            self._last = now_at
            return
        since_ns = self.now_ns if self._lost_ns is None else self._lost_ns
        self._lost_ns = None
        self._outbox.retention.held = False
        self.error = None
        if self._last is not None:
            if now_at != self._last:
                self.events.append(Redirected(channel.address, self.view, self.now_ns - since_ns))
            self._subscriptions.renew()
        self._last = now_at
        self.events.append(Connected(channel.address, self.view, channel.session_present))

    def _write_to(self, channel: Channel) -> None:
        self.target = channel
        self._subscriptions.forget_renewals()
        self._outbox.direct(channel.protocol)

    def _heir(self) -> Channel | None:
        """The first connected standby in the order of succession."""
        ready = {each.name: each for each in self.channels.values() if each.up and each.grouped}
        places = self.view.places if self.view is not None else ()
        named = (ready[place.name] for place in places if place.name in ready)
        return next(named, next(iter(ready.values()), None))

    def gone(self, channel: Channel, error: HoldfastError) -> None:
        """A connection is over; what it was for goes on elsewhere."""
        channel.closed(self.now_ns)
        self.events.append(Lost(channel.address, str(error)))
        if channel is self.target:
            self._target_gone(error)
        self._plan()

    def _target_gone(self, error: HoldfastError) -> None:
        if self._lost_ns is None:
            self._lost_ns = self.now_ns
        self._outbox.retention.held = True
        self.target = None
        self.error = error
        if self._heir() is not None:
            self._fire(Happening.LOST_WITH_HEIR)
            return
        self._fire(Happening.LOST_ALONE)
        if self._config.outage_ns_max == 0:
            self.end(error)

    def _leave(self, channel: Channel, *, parked: bool = False, linger: bool = False) -> None:
        """Tells a member that we go, and the view that is why; it is dialled again unless it is parked.

        To a primary that served us we listen (`linger`) until it has closed: what it sent is nowhere else.
        """
        user = [(VIEW_PROPERTY, str(self.view.number))] if self.view is not None else []
        channel.protocol.disconnect(Reason.NORMAL_DISCONNECTION, Properties(user=user))
        if linger and channel.up:
            self.finals.append((channel.address, channel.protocol.output()))
            channel.leave(self.now_ns, self._config.linger_ns_max)
        else:
            if channel.phase not in (Phase.IDLE, Phase.RETIRED):
                self.hang_up(channel)
            channel.closed(self.now_ns, parked=parked)
        if channel is self.target:
            self._target_gone(Unavailable(f"the broker at {channel} is not the primary any more"))
        self._plan()

    def _park_others(self, channel: Channel) -> None:
        for other in self.channels.values():
            if other is not channel and other.phase is not Phase.RETIRED:
                self._leave(other, parked=True)

    def hang_up(self, channel: Channel) -> None:
        data = channel.protocol.output()
        if data:
            self.finals.append((channel.address, data))
        self.hangups.append(channel.address)

    def end(self, error: HoldfastError | None) -> None:
        """The first end counts."""
        if self.state is State.ENDED:
            return
        self.error = error
        for channel in self.channels.values():
            if channel.phase not in (Phase.IDLE, Phase.RETIRED):
                self.hang_up(channel)
            channel.closed(self.now_ns, parked=True)
        self.target = None
        self._outbox.direct(None)
        self.dials.clear()
        self._fire(Happening.CLOSED)
        self.events.append(Ended(error))
        self._plan()

    def _connect_packet(self) -> Connect:
        config = self._config
        properties = copy.copy(config.properties)
        properties.receive_max = config.receive_max
        if properties.session_expiry is None and config.session_expiry_s:
            properties.session_expiry = config.session_expiry_s
        number = self.view.number if self.view is not None else 0
        properties.user = [*properties.user, (VIEW_PROPERTY, str(number)), (WARM_PROPERTY, "1")]
        return Connect(
            client_id=self._client_id,
            clean_start=config.clean_start and self._last is None,
            keep_alive=config.keep_alive_s,
            username=config.username,
            password=config.password,
            will=config.will,
            properties=properties,
        )
