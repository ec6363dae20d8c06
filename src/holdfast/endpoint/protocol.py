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

from holdfast.endpoint.session import VERSION, Pending, Session
from holdfast.errors import PeerError, Refused
from holdfast.mqtt.codec import PACKET_BYTES_MAX, decode, encode, split
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


class Protocol:
    """Feed it with `feed`, ask it with `next`, and send what `output` gives."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.state = State.NEW
        self.granted = Properties()
        self.quota = 0
        self._receive_max = RECEIVE_MAX_DEFAULT
        self._packet_bytes_max = PACKET_BYTES_MAX
        self._input = bytearray()
        self._read = 0
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

    def check(self, size: int, qos: int, retain: bool) -> None:
        """Refuses a publication that the broker would not take."""
        best = self.granted.max_qos
        if best is not None and qos > best:
            raise Refused(Reason.QOS_NOT_SUPPORTED, f"the broker takes QoS {best} at most, not {qos}")
        if retain and self.granted.retain_available is False:
            raise Refused(Reason.RETAIN_NOT_SUPPORTED, "the broker keeps no retained messages")
        limit = self.granted.max_packet_size
        if limit is not None and size > limit:
            raise Refused(
                Reason.PACKET_TOO_LARGE, f"the packet has {size} bytes; the broker takes {limit} at most"
            )

    def send(self, pending: Pending) -> None:
        """Writes a request, or what follows in its exchange. A publication takes quota."""
        if pending.publication:
            assert self.quota > 0 or pending.awaits is Pubcomp, "the caller waits for quota"
            self.quota -= 1
        self._out += pending.to_write()
        pending.written = True

    def write(self, packets: bytes) -> None:
        """Whole packets that need no answer."""
        self._out += packets

    def acknowledge(self, packet_id: int) -> None:
        """The message with this identifier has reached its user."""
        if self.state is not State.CONNECTED:
            return
        qos = self._unacknowledged.pop(packet_id)
        self._put(Puback(packet_id) if qos == 1 else Pubrec(packet_id))
        if qos == 2:
            self.session.unreleased.add(packet_id)
            self._recorded.add(packet_id)

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
        self._input += data

    def next(self) -> Incoming | None:
        """The next packet for the user; None until more bytes come."""
        while self.state is not State.ENDED:
            found = split(self._input, self._read, self._packet_bytes_max)
            if found is None:
                break
            first_byte, start, end = found
            packet = decode(first_byte, bytes(self._input[start:end]), VERSION)
            self._read = end
            if not isinstance(packet, EXPECTED[self.state]):
                raise PeerError(
                    Reason.PROTOCOL_ERROR,
                    f"the broker sent {type(packet).__name__.upper()} where none may come",
                )
            result = self._handle(packet)
            if result is not None:
                return result
        if self._read:
            del self._input[: self._read]
            self._read = 0
        return None

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
