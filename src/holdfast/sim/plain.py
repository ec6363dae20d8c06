"""An ordinary MQTT client that knows nothing of groups: one connection, a list of addresses, QoS 1 and 2.

It has the face of an Endpoint, so that the same driver runs it.

Laws:
- what is not acknowledged is sent again after every CONNACK, in order, with DUP; its session is kept
- it pings, and a broker that does not answer is lost to it
- refused or lost, it tries the server it was referred to, else the next address of its list, after a wait
- it may leave for a while: then it has no connection, and its session waits for it
"""

from __future__ import annotations

from random import Random

from msgspec import structs

from holdfast.contract.model import Contract
from holdfast.endpoint.events import Answered, Event, Ticket, TurnedAway
from holdfast.endpoint.messages import Message
from holdfast.endpoint.outgoing import Outgoing
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.conventions import DEPTH_PROPERTY
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
)
from holdfast.sim.network import Address
from holdfast.units import MS

VERSION = 5
SESSION_EXPIRY_S = 3600
WAIT_NS_MAX = 40 * MS
PING_NS = 150 * MS
IN_FLIGHT_MAX = 20
REFUSED = 0x80


class PlainClient:
    def __init__(
        self,
        client_id: str,
        addresses: list[Address],
        rng: Random,
        now_ns: int,
        *,
        met: bool = False,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        """One that has `met` the brokers comes back to its session."""
        self.client_id = client_id
        self.next_ns: int | None = now_ns
        self._addresses = addresses
        self._place = rng.randrange(len(addresses))
        self._rng = rng
        self._address: Address | None = None
        self._up = False
        self._dialing = False
        self._answered = False
        self._met = met
        self._bytes = b""
        self._output = b""
        self._wrote: Address | None = None  # where the output goes
        self._dials: list[Address] = []
        self._hangups: list[Address] = []
        self._events: list[Event] = []
        self._messages: list[Message] = []
        self._unreleased: set[int] = set()
        self._packet_id = 0
        # What waits for its last answer, by identifier: the packet to send, and whose it is.
        self._pending: dict[int, tuple[Packet, Ticket]] = {}
        self._waiting: list[tuple[Publish | Subscribe, Ticket]] = []
        self._window = self._in_flight_max = in_flight_max
        self._away = False
        self.admitted = 0  # times that it was let in
        self.forgotten = 0  # times that it was let in and its session was not there any more
        self._subscriptions: list[Subscription] = []
        self._asked: Ticket | None = None
        self._subscribed = False

    # The driver's side

    def take_dials(self) -> list[Address]:
        taken, self._dials = self._dials, []
        return taken

    def take_hangups(self) -> list[Address]:
        taken, self._hangups = self._hangups, []
        return taken

    def take_events(self) -> list[Event]:
        taken, self._events = self._events, []
        return taken

    def take_messages(self) -> list[Message]:
        taken, self._messages = self._messages, []
        return taken

    def take_output(self) -> list[tuple[Address, bytes]]:
        if not self._output or self._wrote is None:
            return []
        data, self._output = self._output, b""
        return [(self._wrote, data)]

    @property
    def address(self) -> Address | None:
        """Where it is served."""
        return self._address if self._up else None

    def leave(self, now_ns: int) -> None:
        """Goes, and leaves its session."""
        if self._address is not None:
            if self._up:
                self._send(Disconnect())
            self._hangups.append(self._address)
        self._again(now_ns)
        self._away = True
        self.next_ns = None

    def come_back(self, now_ns: int) -> None:
        self._away = False
        if self._address is None:
            self.next_ns = now_ns

    def turn(self, now_ns: int, wall_ns: int) -> None:
        if self._away or self.next_ns is None or self.next_ns > now_ns:
            return
        self.next_ns = None
        if self._address is None:
            self._address = self._addresses[self._place % len(self._addresses)]
            self._dials.append(self._address)
            self._dialing = True
        elif self._answered:
            self._answered = False
            if self._up:
                self._send(Pingreq())
            self.next_ns = now_ns + PING_NS
        else:
            self._hangups.append(self._address)
            self._again(now_ns)

    def opened(self, address: Address, now_ns: int) -> None:
        if self._away or address != self._address:
            self._hangups.append(address)
            return
        self._dialing = False
        self._bytes = self._output = b""
        self._answered = False
        self.next_ns = now_ns + PING_NS
        self._send(
            Connect(
                client_id=self.client_id,
                clean_start=not self._met,
                properties=Properties(session_expiry=SESSION_EXPIRY_S),
            )
        )

    def failed(self, address: Address, now_ns: int) -> None:
        if self._dialing and address == self._address:  # not of an earlier try
            self._again(now_ns)

    def lost(self, address: Address, now_ns: int) -> None:
        if address == self._address:
            self._again(now_ns)

    def received(self, address: Address, data: bytes, now_ns: int, wall_ns: int) -> None:
        if address != self._address:
            return
        self._bytes += data
        at = 0
        while self._address is not None and (found := split(self._bytes, at)) is not None:
            first, start, at = found
            self._handle(decode(first, self._bytes[start:at], VERSION), now_ns)
        self._bytes = self._bytes[at:]

    def _again(self, now_ns: int, reference: str | None = None) -> None:
        """Somewhere else, soon."""
        self._up = False
        self._address = None
        self._place += 1
        if reference is not None:
            host, _, port = reference.rpartition(":")
            if (host, int(port)) in self._addresses:
                self._place = self._addresses.index((host, int(port)))
        self.next_ns = None if self._away else now_ns + 1 + self._rng.randrange(WAIT_NS_MAX)

    # The user's side

    def declare(self, topic_filter: str, contract: Contract) -> None:
        """Contracts mean nothing to an ordinary client."""

    def publish_many(self, messages: list[Outgoing], *, now_ns: int, wall_ns: int) -> Ticket | None:
        ticket = None
        for message in messages:
            if message.qos == 0:
                self.publish_once(Publish(message.topic, message.payload))
                continue
            ticket = self.publish(Publish(message.topic, message.payload, message.qos))
        self._publish_waiting()
        return ticket

    def publish_once(self, packet: Publish) -> None:
        """With QoS 0, if there is a connection."""
        if self._up:
            self._send(packet)

    def publish(self, packet: Publish) -> Ticket:
        """With QoS 1 or 2, as soon as there is room."""
        return self._ask(packet, Ticket("publish"))

    def subscribe_to(self, filters: list[str], qos: int = 0, depth: int = 0) -> Ticket:
        """Besides what it always subscribes to."""
        user = [(DEPTH_PROPERTY, str(depth))] if depth else []
        wanted = [Subscription(filter=each, qos=qos) for each in filters]
        return self._ask(Subscribe(0, wanted, Properties(user=user)), Ticket("subscribe", len(filters)))

    def _ask(self, packet: Publish | Subscribe, ticket: Ticket) -> Ticket:
        self._waiting.append((packet, ticket))
        self._publish_waiting()
        return ticket

    @property
    def idle(self) -> bool:
        """Nothing is to be written, and nothing waits for an answer."""
        return not (self._output or self._pending or self._waiting)

    def take_back_output(self) -> bytes:
        """What would be written next, for somebody who delivers it in another way."""
        data, self._output = self._output, b""
        return data

    def subscribe(self, filters: list[str], *, qos: int, depth: int | None, now_ns: int) -> Ticket:
        self._subscriptions = [Subscription(filter=each, qos=qos) for each in filters]
        self._asked = Ticket("subscribe", len(filters))
        return self._asked

    # Packets

    def _handle(self, packet: Packet, now_ns: int) -> None:
        match packet:
            case Connack(reason=reason) if reason >= REFUSED:
                assert self._address is not None
                self._events.append(TurnedAway(self._address, reason, packet.properties.reason_string or ""))
                self._hangups.append(self._address)
                self._again(now_ns, packet.properties.server_reference)
            case Connack():
                self._in_flight_max = min(self._window, packet.properties.receive_max or self._window)
                self._admitted(packet.session_present)
            case Pingresp():
                self._answered = True
            case Disconnect():
                assert self._address is not None
                self._hangups.append(self._address)
                self._again(now_ns, packet.properties.server_reference)
            case Publish():
                self._arrived(packet)
            case Pubrel(packet_id=packet_id):
                self._unreleased.discard(packet_id)
                self._send(Pubcomp(packet_id))
            case Pubrec(packet_id=packet_id, reason=reason) if (
                packet_id in self._pending and reason >= REFUSED
            ):
                self._answered_with(packet_id, [reason])
            case Pubrec(packet_id=packet_id) if packet_id in self._pending:
                self._pending[packet_id] = (Pubrel(packet_id), self._pending[packet_id][1])
                self._send(Pubrel(packet_id))
            case Puback(packet_id=packet_id) | Pubcomp(packet_id=packet_id) if packet_id in self._pending:
                self._answered_with(packet_id, [packet.reason])
            case Suback(packet_id=packet_id, reasons=reasons) if packet_id in self._pending:
                self._answered_with(packet_id, reasons)
            case Suback(packet_id=0xFFFF, reasons=reasons) if self._asked is not None:
                self._subscribed = True
                self._asked.reasons = reasons
                self._events.append(Answered(self._asked))

    def _answered_with(self, packet_id: int, reasons: list[int]) -> None:
        ticket = self._pending.pop(packet_id)[1]
        ticket.reasons = reasons
        refused = (at for at, reason in enumerate(reasons) if reason >= REFUSED)
        ticket.refused_at = next(refused, None)
        self._events.append(Answered(ticket))
        self._publish_waiting()

    def _admitted(self, session_present: bool) -> None:
        self.admitted += 1
        self.forgotten += self._met and not session_present
        self._up = self._met = self._answered = True
        if not session_present:
            self._unreleased.clear()
        if self._subscriptions and not (self._subscribed and session_present):
            self._send(Subscribe(packet_id=0xFFFF, subscriptions=self._subscriptions))
        for packet_id, (packet, ticket) in self._pending.items():
            if isinstance(packet, Publish):
                packet = structs.replace(packet, dup=True)
                self._pending[packet_id] = (packet, ticket)
            self._send(packet)
        self._publish_waiting()

    def _publish_waiting(self) -> None:
        while self._up and self._waiting and len(self._pending) < self._in_flight_max:
            packet, ticket = self._waiting.pop(0)
            self._packet_id = self._packet_id % 60_000 + 1
            packet = structs.replace(packet, packet_id=self._packet_id)
            self._pending[self._packet_id] = (packet, ticket)
            self._send(packet)

    def _arrived(self, packet: Publish) -> None:
        if packet.qos == 2:
            self._send(Pubrec(packet.packet_id))
            if packet.packet_id in self._unreleased:
                return
            self._unreleased.add(packet.packet_id)
        elif packet.qos:
            self._send(Puback(packet.packet_id))
        self._messages.append(
            Message(
                packet.topic,
                packet.payload,
                packet.qos,
                packet.retain,
                packet.dup,
                packet.properties,
                0,
                None,
                0,
            )
        )

    def _send(self, packet: Packet) -> None:
        self._wrote = self._address
        self._output += encode(packet, VERSION)
