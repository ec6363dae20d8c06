"""An ordinary MQTT client that knows nothing of groups: one connection, a list of addresses, QoS 1 and 2.

It has the face of an Endpoint, so that the same driver runs it.

Laws:
- what is not acknowledged is sent again after every CONNACK, in order, with DUP; its session is kept
- it pings, and a broker that does not answer is lost to it
- refused or lost, it tries the server it was referred to, else the next address of its list, after a wait
"""

from __future__ import annotations

from random import Random

from holdfast.contract.model import Contract
from holdfast.endpoint.events import Answered, Event, Ticket, TurnedAway
from holdfast.endpoint.messages import Message
from holdfast.endpoint.outgoing import Outgoing
from holdfast.mqtt.codec import decode, encode, split
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
    def __init__(self, client_id: str, addresses: list[Address], rng: Random, now_ns: int) -> None:
        self.client_id = client_id
        self.next_ns: int | None = now_ns
        self._addresses = addresses
        self._place = rng.randrange(len(addresses))
        self._rng = rng
        self._address: Address | None = None
        self._up = False
        self._answered = False
        self._met = False
        self._bytes = b""
        self._output = b""
        self._dials: list[Address] = []
        self._hangups: list[Address] = []
        self._events: list[Event] = []
        self._messages: list[Message] = []
        self._unreleased: set[int] = set()
        self._packet_id = 0
        # What waits for its last answer, by identifier: the packet to send, and whose it is.
        self._pending: dict[int, tuple[Packet, Ticket]] = {}
        self._waiting: list[tuple[Outgoing, Ticket]] = []
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
        if not self._output or self._address is None:
            return []
        data, self._output = self._output, b""
        return [(self._address, data)]

    def turn(self, now_ns: int, wall_ns: int) -> None:
        if self.next_ns is None or self.next_ns > now_ns:
            return
        self.next_ns = None
        if self._address is None:
            self._address = self._addresses[self._place % len(self._addresses)]
            self._dials.append(self._address)
        elif self._answered:
            self._answered = False
            if self._up:
                self._send(Pingreq())
            self.next_ns = now_ns + PING_NS
        else:
            self._hangups.append(self._address)
            self._again(now_ns)

    def opened(self, address: Address, now_ns: int) -> None:
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
        self.next_ns = now_ns + 1 + self._rng.randrange(WAIT_NS_MAX)

    # The user's side

    def declare(self, topic_filter: str, contract: Contract) -> None:
        """Contracts mean nothing to an ordinary client."""

    def publish_many(self, messages: list[Outgoing], *, now_ns: int, wall_ns: int) -> Ticket | None:
        ticket = None
        for message in messages:
            if message.qos == 0:
                if self._up:
                    self._send(Publish(message.topic, message.payload))
                continue
            ticket = Ticket("publish")
            self._waiting.append((message, ticket))
        self._publish_waiting()
        return ticket

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
            case Pubrec(packet_id=packet_id) if packet_id in self._pending:
                self._pending[packet_id] = (Pubrel(packet_id), self._pending[packet_id][1])
                self._send(Pubrel(packet_id))
            case Puback(packet_id=packet_id) | Pubcomp(packet_id=packet_id) if packet_id in self._pending:
                self._events.append(Answered(self._pending.pop(packet_id)[1]))
                self._publish_waiting()
            case Suback(packet_id=0xFFFF, reasons=reasons) if self._asked is not None:
                self._subscribed = True
                self._asked.reasons = reasons
                self._events.append(Answered(self._asked))

    def _admitted(self, session_present: bool) -> None:
        self._up = self._met = self._answered = True
        if not session_present:
            self._unreleased.clear()
        if self._subscriptions and not (self._subscribed and session_present):
            self._send(Subscribe(packet_id=0xFFFF, subscriptions=self._subscriptions))
        for packet_id, (packet, ticket) in self._pending.items():
            if isinstance(packet, Publish):
                packet = Publish(packet.topic, packet.payload, packet.qos, dup=True, packet_id=packet_id)
                self._pending[packet_id] = (packet, ticket)
            self._send(packet)
        self._publish_waiting()

    def _publish_waiting(self) -> None:
        while self._up and self._waiting and len(self._pending) < IN_FLIGHT_MAX:
            message, ticket = self._waiting.pop(0)
            self._packet_id = self._packet_id % 60_000 + 1
            packet = Publish(message.topic, message.payload, message.qos, packet_id=self._packet_id)
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
        self._output += encode(packet, VERSION)
