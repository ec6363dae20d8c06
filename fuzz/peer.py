"""The client at the other end of one connection: checks every packet that the broker sends to it.

Laws that are checked:
- every byte is part of a packet that a server may send, in the version of the connection, not too large
- CONNACK is first and alone, nothing follows DISCONNECT
- an alias is announced before it is used, an identifier is not given twice, the receive maximum is kept
"""

from __future__ import annotations

from holdfast.broker.connection import Connection
from holdfast.errors import PeerError
from holdfast.mqtt.codec import decode, split
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
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
from holdfast.mqtt.topics import validate_topic

FROM_SERVER = (
    Connack, Publish, Puback, Pubrec, Pubrel, Pubcomp, Suback, Unsuback, Pingresp, Disconnect,
)  # fmt: skip
CONNACK_BYTES_MAX = 70_000  # whoever allows less may have been left without it
PUBACK, PUBREC, PUBREL, PUBCOMP = 4, 5, 6, 7


class Peer:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.version = 5  # what it speaks in, before the broker has accepted it
        self.unsent = b""
        self.cut: int | None = None
        self.honest = True  # sent nothing that this model does not understand
        self.wanted: Properties | None = None  # of its CONNECT
        self._buffer = b""
        self._connacked = False
        self._over = False
        self._aliases: dict[int, str] = {}
        self.in_flight: dict[int, int] = {}  # packet identifier: what the broker waits for
        self._released: set[int] = set()  # by PUBREL, some for messages of an earlier connection

    # What it sends

    def cut_off(self, data: bytes) -> bytes:
        """The part of what is to be sent that goes now; the rest goes with the next."""
        data, self.unsent = self.unsent + data, b""
        if self.cut is not None:
            data, self.unsent = data[: self.cut], data[self.cut :]
            self.cut = None
        return data

    def introduces(self, packet: bytes) -> None:
        """Its CONNECT; only the first can count."""
        frame = split(packet)
        assert frame is not None
        first, start, end = frame
        self.version = 5 if packet[start : start + 7] == b"\x00\x04MQTT\x05" else 4
        if self.wanted is None:
            try:
                connect = decode(first, packet[start:end], self.version)
            except PeerError:
                self.honest = False
                return
            assert isinstance(connect, Connect)
            self.wanted = connect.properties

    def acknowledged(self, kind: int, packet_id: int, failed: bool) -> None:
        """It says so of a message: from now on the broker may use the identifier again."""
        awaited = self.in_flight.get(packet_id)
        if awaited != kind:
            return
        if kind == PUBREC and not failed:
            self.in_flight[packet_id] = PUBCOMP
        else:
            del self.in_flight[packet_id]

    def answers(self) -> bytes:
        """What a faithful client would send now."""
        answered = b"".join(
            bytes((kind << 4, 2)) + packet_id.to_bytes(2, "big")
            for packet_id, kind in self.in_flight.items()
            if packet_id not in self._released
        )
        answered += b"".join(b"\x70\x02" + packet_id.to_bytes(2, "big") for packet_id in self._released)
        for packet_id, kind in list(self.in_flight.items()):
            self.acknowledged(kind, packet_id, failed=False)
        self._released.clear()
        return answered

    # What it receives

    def receive(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while (frame := split(self._buffer, at)) is not None:
            first, start, end = frame
            self._packet(self._decode(first, self._buffer[start:end]), end - at)
            at = end
        self._buffer = self._buffer[at:]

    def closed(self) -> None:
        assert not self._buffer, f"the broker closed inside a packet: {self._buffer!r}"

    def _decode(self, first: int, body: bytes) -> Packet:
        if self.connection.version:
            return decode(first, body, self.connection.version)
        try:  # a refusal, in the version that the broker thinks is understood
            return decode(first, body, 5)
        except PeerError:
            return decode(first, body, 4)

    def _packet(self, packet: Packet, size: int) -> None:
        assert isinstance(packet, FROM_SERVER), f"a server does not send {packet}"
        assert not self._over, f"{packet} after DISCONNECT"
        size_max = self.connection.packet_max
        if self.honest and self.wanted is not None and self.wanted.max_packet_size is not None:
            size_max = self.wanted.max_packet_size
        unread = isinstance(packet, Connack) and packet.reason == Reason.PACKET_TOO_LARGE
        assert size <= size_max or unread, f"{size} bytes; the client takes up to {size_max}"
        if isinstance(packet, Connack):
            assert not self._connacked, "a second CONNACK"
            self._connacked = True
            return
        assert self._connacked or size_max < CONNACK_BYTES_MAX, f"{packet} before CONNACK"
        if isinstance(packet, Publish):
            self._publish(packet)
        elif isinstance(packet, Pubrel):
            self._released.add(packet.packet_id)
        elif isinstance(packet, Disconnect):
            assert self.connection.version == 5, "DISCONNECT to a client before MQTT 5"
            self._over = True

    def _publish(self, packet: Publish) -> None:
        alias = packet.properties.topic_alias
        if alias is not None:
            alias_max = self.wanted.topic_alias_max if self.wanted is not None else None
            assert alias <= (alias_max or 0) or not self.honest, f"alias {alias}, of {alias_max}"
            if packet.topic:
                self._aliases[alias] = packet.topic
            assert alias in self._aliases, f"alias {alias} was not announced"
        else:
            validate_topic(packet.topic)
        if packet.qos and self.honest:
            assert packet.dup or packet.packet_id not in self.in_flight, (
                f"packet identifier {packet.packet_id} is still in use"
            )
            self.in_flight[packet.packet_id] = PUBACK if packet.qos == 1 else PUBREC
            window = (self.wanted and self.wanted.receive_max) or 65_535
            assert len(self.in_flight) <= window, f"{len(self.in_flight)} unacknowledged of {window}"
