"""The client's side of one MQTT 5 connection, without a socket: calls and bytes in, packets and bytes out.

Laws:
- no more QoS 1 and 2 messages are on their way than the server's receive maximum (`quota`)
- a received message is acknowledged exactly when its user says so (`acknowledge`), once
- a QoS 2 message is given out once, however often it is sent
- the answer to a QoS 2 message is its PUBREC, given out when the exchange is over
- bytes that are no packet for a client raise PeerError; nothing is read after that
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeAlias

from msgspec import Struct

from holdfast.endpoint.events import Ticket
from holdfast.endpoint.inbox import Inbox
from holdfast.endpoint.pending import Pending, acknowledge
from holdfast.endpoint.session import VERSION, Session
from holdfast.errors import PeerError, Refused
from holdfast.mqtt.codec import PACKET_BYTES_MAX, decode, encode, split
from holdfast.mqtt.conventions import VIEW_TOPIC
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
    Unsuback,
)
from holdfast.mqtt.reasons import Reason

RECEIVE_MAX_DEFAULT = 65_535
REFUSAL = 0x80
HEADER_BYTES_MAX = 5
PUBACK_SHORT = b"\x40\x02"

Answer: TypeAlias = Puback | Pubrec | Suback | Unsuback


class Done(Struct, frozen=True):
    """A request and its answer."""

    pending: Pending
    answer: Answer


# What a connection's user gets to see; the rest of an exchange is dealt with here.
Incoming: TypeAlias = Connack | Publish | Done | Pingresp | Disconnect


class State(Enum):
    NEW = auto()
    CONNECTING = auto()
    CONNECTED = auto()
    ENDED = auto()


# Which packet may come in which state.
EXPECTED: dict[State, tuple[type[Packet], ...]] = {
    State.NEW: (),
    State.CONNECTING: (Connack,),
    State.CONNECTED: (
        Publish, Puback, Pubrec, Pubrel, Pubcomp, Suback, Unsuback, Pingresp, Disconnect,
    ),
    State.ENDED: (),
}  # fmt: skip


def announced_bytes(header: bytes) -> int:
    """How long the packet is that begins so; 0 if its length is not all there yet."""
    length = 0
    for place, byte in enumerate(header[1:]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return place + 2 + length
    return 0


class Protocol:
    """Feed it with `feed`, ask it with `next`, and send what `output` gives."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.state = State.NEW
        self.granted = Properties()
        self.quota = 0
        self._receive_max = RECEIVE_MAX_DEFAULT
        self._packet_bytes_max = PACKET_BYTES_MAX
        self._input = b""
        self._read = 0
        # Pieces of a packet that is not complete, how many bytes they are, and how many it needs at least.
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._needed = 0
        self._out = bytearray()
        self._unacknowledged: dict[int, int] = {}
        # Of `session.unreleased`, those of this connection: others may come again as another message.
        self._recorded: set[int] = set()

    # -- asking --------------------------------------------------------------------------------------------

    def connect(self, packet: Connect) -> None:
        assert self.state is State.NEW
        self._receive_max = packet.properties.receive_max or RECEIVE_MAX_DEFAULT
        self._packet_bytes_max = packet.properties.max_packet_size or PACKET_BYTES_MAX
        self._put(packet)
        self.state = State.CONNECTING

    @property
    def takes_bytes_max(self) -> int:
        """The longest packet that the broker takes."""
        return self.granted.max_packet_size or PACKET_BYTES_MAX

    @property
    def takes_retained(self) -> bool:
        return self.granted.retain_available is not False

    @property
    def takes_every_qos(self) -> bool:
        return self.granted.max_qos is None

    def check(self, size: int, qos: int, retain: bool) -> None:
        """Refuses a publication that the broker would not take."""
        best = self.granted.max_qos
        if best is not None and qos > best:
            raise Refused(Reason.QOS_NOT_SUPPORTED, f"the broker takes QoS {best} at most, not {qos}")
        if retain and not self.takes_retained:
            raise Refused(Reason.RETAIN_NOT_SUPPORTED, "the broker keeps no retained messages")
        if size > self.takes_bytes_max:
            raise Refused(
                Reason.PACKET_TOO_LARGE,
                f"the packet has {size} bytes; the broker takes {self.takes_bytes_max} at most",
            )

    def send(self, pending: Pending) -> None:
        """Writes a request, or what follows in its exchange. A publication takes quota."""
        if pending.publication:
            assert self.quota > 0 or pending.awaits is Pubcomp, "the caller waits for quota"
            self.quota -= 1
        self._out += pending.to_write()
        pending.written = True

    def write(self, packets: bytes, asked: int = 0) -> None:
        """Whole packets; so many of them are publications that take quota, and are pending by now."""
        self._out += packets
        self.quota -= asked

    def acknowledge(self, packet_id: int) -> None:
        """The message with this identifier has reached its user."""
        if self.state is not State.CONNECTED:
            return
        if self._unacknowledged.pop(packet_id) == 1:
            self._out += PUBACK_SHORT + packet_id.to_bytes(2, "big")
            return
        self._put(Pubrec(packet_id))
        self.session.unreleased.add(packet_id)
        self._recorded.add(packet_id)

    def acknowledge_taken(self, packets: bytes) -> None:
        """These PUBACKs are of messages that reached their user while they were read."""
        if self.state is State.CONNECTED:
            self._out += packets

    def ping(self) -> None:
        self._put(Pingreq())

    def disconnect(self, reason: int, properties: Properties | None = None) -> None:
        if self.state in (State.CONNECTING, State.CONNECTED):
            self._put(Disconnect(reason, properties or Properties()))
        self.state = State.ENDED

    @property
    def waiting_bytes(self) -> int:
        return len(self._out)

    def output(self) -> bytes:
        """Everything there is to send, once."""
        data = bytes(self._out)
        self._out.clear()
        return data

    # -- answers and messages ------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        if self._read < len(self._input):
            self._pieces.append(self._input[self._read :])
            self._pieces_bytes += len(self._input) - self._read
        self._read, self._input = 0, data
        if self._pieces:
            self._pieces.append(data)
            self._pieces_bytes += len(data)
            self._input = b""
            if self._pieces_bytes >= self._needed:
                self._input = b"".join(self._pieces)
                self._pieces.clear()
                self._pieces_bytes = 0

    def scan(self, inbox: Inbox, wall_ns: int) -> None:
        """Gives ordinary messages at the front straight to the inbox; `next` sees what is behind them."""
        if self.state is not State.CONNECTING and self._read < len(self._input):
            self._read = inbox.scan(
                self._input,
                self._read,
                wall_ns,
                self,
                self._unacknowledged,
                self.session.unreleased,
                self._receive_max - len(self._recorded),
                self._packet_bytes_max,
            )

    def take_acknowledgements(self, answered: list[Ticket]) -> None:
        """Ends publications of QoS 1 whose ordinary PUBACKs lie at the front; lists what is answered so."""
        if self.state is State.CONNECTED and self._read < len(self._input):
            self._read, over = acknowledge(self._input, self._read, self.session.pending, answered)
            self.quota += over

    def next(self) -> Incoming | None:
        """The next packet for the user; None until more bytes come."""
        while self.state is not State.ENDED:
            found = split(self._input, self._read, self._packet_bytes_max)
            if found is None:
                self._needed = announced_bytes(self._input[self._read : self._read + HEADER_BYTES_MAX])
                break
            first_byte, start, end = found
            packet = decode(first_byte, self._input[start:end], VERSION)
            self._read = end
            if not isinstance(packet, EXPECTED[self.state]):
                raise PeerError(
                    Reason.PROTOCOL_ERROR,
                    f"the broker sent {type(packet).__name__.upper()} where none may come",
                )
            result = self._handle(packet)
            if result is not None:
                return result
        return None

    def scan_after_goodbye(self, inbox: Inbox, wall_ns: int) -> None:
        """Gives all messages to the inbox; nothing is answered any more, and nothing else matters."""
        self.scan(inbox, wall_ns)
        while (found := split(self._input, self._read, self._packet_bytes_max)) is not None:
            first_byte, start, self._read = found
            packet = decode(first_byte, self._input[start : self._read], VERSION)
            if isinstance(packet, Publish) and packet.topic != VIEW_TOPIC:
                inbox.arrived(packet, self, wall_ns)
            self.scan(inbox, wall_ns)
        self._needed = announced_bytes(self._input[self._read : self._read + HEADER_BYTES_MAX])

    def _handle(self, packet: Packet) -> Incoming | None:
        match packet:
            case Publish():
                return self._arrived(packet)
            case Puback() | Pubcomp() | Suback() | Unsuback():
                return self._answered(packet)
            case Pubrec():
                return self._received(packet)
            case Pubrel():
                self._released(packet.packet_id)
                return None
            case Connack():
                self._connected(packet)
                return packet
            case Disconnect():
                self.state = State.ENDED
                return packet
            case Pingresp():
                return packet
        raise AssertionError("EXPECTED lets nothing else through")

    def _connected(self, packet: Connack) -> None:
        if packet.reason >= REFUSAL:
            self.state = State.ENDED
            return
        self.state = State.CONNECTED
        self.granted = packet.properties
        self.quota = packet.properties.receive_max or RECEIVE_MAX_DEFAULT

    def _arrived(self, packet: Publish) -> Publish | None:
        if packet.properties.topic_alias is not None:
            raise PeerError(Reason.TOPIC_ALIAS_INVALID, "the broker used a topic alias; none was offered")
        if packet.qos == 0:
            return packet
        packet_id = packet.packet_id
        if packet_id in self._unacknowledged:
            return None
        if packet_id in self._recorded or (packet_id in self.session.unreleased and packet.dup):
            self._recorded.add(packet_id)
            self._put(Pubrec(packet_id))
            return None
        if len(self._unacknowledged) + len(self._recorded) >= self._receive_max:
            raise PeerError(
                Reason.RECEIVE_MAX_EXCEEDED,
                f"the broker sent more than {self._receive_max} messages without acknowledgement",
            )
        self.session.unreleased.discard(packet_id)
        self._unacknowledged[packet_id] = packet.qos
        return packet

    def _released(self, packet_id: int) -> None:
        known = packet_id in self.session.unreleased
        self.session.unreleased.discard(packet_id)
        self._recorded.discard(packet_id)
        self._put(Pubcomp(packet_id, Reason.SUCCESS if known else Reason.PACKET_ID_NOT_FOUND))

    def _answered(self, packet: Puback | Pubcomp | Suback | Unsuback) -> Done | None:
        """An answer that nobody waits for is of an earlier connection of the session."""
        pending = self.session.pending.get(packet.packet_id)
        if pending is None or pending.awaits is not type(packet):
            return None
        self._over(pending)
        if isinstance(packet, Pubcomp):
            assert pending.recorded is not None
            return Done(pending, pending.recorded)
        return Done(pending, packet)

    def _received(self, packet: Pubrec) -> Done | None:
        """Half of a QoS 2 exchange; a refusal ends it."""
        pending = self.session.pending.get(packet.packet_id)
        if pending is None or pending.awaits not in (Pubrec, Pubcomp):
            self._put(Pubrel(packet.packet_id, Reason.PACKET_ID_NOT_FOUND))
            return None
        if packet.reason >= REFUSAL:
            self._over(pending)
            return Done(pending, packet)
        pending.awaits = Pubcomp
        pending.recorded = pending.recorded or packet
        self._put(Pubrel(packet.packet_id))
        return None

    def _over(self, pending: Pending) -> None:
        del self.session.pending[pending.packet_id]
        self.quota += pending.publication

    def _put(self, packet: Packet) -> None:
        self._out += encode(packet, VERSION)
