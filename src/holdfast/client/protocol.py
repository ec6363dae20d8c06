"""The client's side of one MQTT 5 connection, without a socket: calls and bytes in, packets and bytes out.

Laws:
- no more QoS 1 and 2 messages are on their way than the server's receive maximum (`quota`)
- a received message is acknowledged exactly when its user says so (`acknowledge`), once
- a QoS 2 message is given out once, however often it is sent
- the answer to a QoS 2 message is its PUBREC, given out when the exchange is over
- bytes that are no packet for a client raise PeerError; nothing is read after that
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TypeAlias

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
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from holdfast.mqtt.reasons import Reason

VERSION = 5
PACKET_IDS = 65_535
RECEIVE_MAX_DEFAULT = 65_535
REFUSAL = 0x80

# What a connection's user gets to see; the rest of an exchange is dealt with here.
Answer: TypeAlias = Puback | Pubrec | Suback | Unsuback
Incoming: TypeAlias = Connack | Publish | Answer | Pingresp | Disconnect


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

    def __init__(self) -> None:
        self.state = State.NEW
        self.granted = Properties()
        self.quota = 0
        self._receive_max = RECEIVE_MAX_DEFAULT
        self._packet_bytes_max = PACKET_BYTES_MAX
        self._input = bytearray()
        self._read = 0
        self._out = bytearray()
        self._packet_id = 0
        # By packet identifier, what must come next.
        self._awaited: dict[int, type[Packet]] = {}
        self._released_with: dict[int, Pubrec] = {}
        self._unacknowledged: dict[int, int] = {}
        self._unreleased: set[int] = set()

    # -- asking --------------------------------------------------------------------------------------------

    def connect(self, packet: Connect) -> None:
        assert self.state is State.NEW
        self._receive_max = packet.properties.receive_max or RECEIVE_MAX_DEFAULT
        self._packet_bytes_max = packet.properties.max_packet_size or PACKET_BYTES_MAX
        self._put(packet)
        self.state = State.CONNECTING

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool, properties: Properties) -> int:
        """Returns the packet identifier that the answer will carry, 0 for QoS 0. QoS above 0 takes quota."""
        self._check_publish(qos, retain)
        if qos == 0:
            self._put(Publish(topic, payload, 0, retain, False, 0, properties))
            return 0
        assert self.quota > 0, "the caller waits for quota"
        packet_id = self._ask(
            Puback if qos == 1 else Pubrec,
            lambda packet_id: Publish(topic, payload, qos, retain, False, packet_id, properties),
        )
        self.quota -= 1
        return packet_id

    def subscribe(self, subscriptions: Sequence[Subscription], properties: Properties) -> int:
        return self._ask(Suback, lambda packet_id: Subscribe(packet_id, list(subscriptions), properties))

    def unsubscribe(self, filters: Sequence[str], properties: Properties) -> int:
        return self._ask(Unsuback, lambda packet_id: Unsubscribe(packet_id, list(filters), properties))

    def acknowledge(self, packet_id: int) -> None:
        """The message with this identifier has reached its user."""
        if self.state is not State.CONNECTED:
            return
        qos = self._unacknowledged.pop(packet_id)
        self._put(Puback(packet_id) if qos == 1 else Pubrec(packet_id))
        if qos == 2:
            self._unreleased.add(packet_id)

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
        if packet.packet_id in self._unacknowledged:
            return None
        if packet.packet_id in self._unreleased:
            self._put(Pubrec(packet.packet_id))
            return None
        if len(self._unacknowledged) + len(self._unreleased) >= self._receive_max:
            raise PeerError(
                Reason.RECEIVE_MAX_EXCEEDED,
                f"the broker sent more than {self._receive_max} messages without acknowledgement",
            )
        self._unacknowledged[packet.packet_id] = packet.qos
        return packet

    def _released(self, packet_id: int) -> None:
        known = packet_id in self._unreleased
        self._unreleased.discard(packet_id)
        self._put(Pubcomp(packet_id, Reason.SUCCESS if known else Reason.PACKET_ID_NOT_FOUND))

    def _answered(self, packet: Puback | Pubcomp | Suback | Unsuback) -> Answer | None:
        """An answer that nobody waits for is of an earlier connection of the session."""
        if self._awaited.get(packet.packet_id) is not type(packet):
            return None
        self._done(packet.packet_id, gives_quota=isinstance(packet, Puback | Pubcomp))
        return self._released_with.pop(packet.packet_id) if isinstance(packet, Pubcomp) else packet

    def _received(self, packet: Pubrec) -> Pubrec | None:
        """Half of a QoS 2 exchange; a refusal ends it."""
        if self._awaited.get(packet.packet_id) is not Pubrec:
            self._put(Pubrel(packet.packet_id, Reason.PACKET_ID_NOT_FOUND))
            return None
        if packet.reason >= REFUSAL:
            self._done(packet.packet_id, gives_quota=True)
            return packet
        self._awaited[packet.packet_id] = Pubcomp
        self._released_with[packet.packet_id] = packet
        self._put(Pubrel(packet.packet_id))
        return None

    # -- inside --------------------------------------------------------------------------------------------

    def _check_publish(self, qos: int, retain: bool) -> None:
        best = self.granted.max_qos
        if best is not None and qos > best:
            raise Refused(Reason.QOS_NOT_SUPPORTED, f"the broker takes QoS {best} at most, not {qos}")
        if retain and self.granted.retain_available is False:
            raise Refused(Reason.RETAIN_NOT_SUPPORTED, "the broker keeps no retained messages")

    def _ask(self, awaits: type[Packet], make: Callable[[int], Packet]) -> int:
        """Sends a packet with an identifier of its own; what cannot be sent takes none."""
        if len(self._awaited) >= PACKET_IDS:
            raise Refused(Reason.QUOTA_EXCEEDED, f"{PACKET_IDS} requests wait for their answers already")
        packet_id = self._packet_id % PACKET_IDS + 1
        while packet_id in self._awaited:
            packet_id = packet_id % PACKET_IDS + 1
        self._put(make(packet_id))
        self._packet_id = packet_id
        self._awaited[packet_id] = awaits
        return packet_id

    def _done(self, packet_id: int, *, gives_quota: bool) -> None:
        del self._awaited[packet_id]
        self.quota += gives_quota

    def _put(self, packet: Packet) -> None:
        data = encode(packet, VERSION)
        limit = self.granted.max_packet_size
        if limit is not None and len(data) > limit:
            raise Refused(
                Reason.PACKET_TOO_LARGE,
                f"the packet has {len(data)} bytes; the broker takes {limit} at most",
            )
        self._out += data
