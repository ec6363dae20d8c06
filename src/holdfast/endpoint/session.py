"""What outlives a connection: packet identifiers, and the exchanges that are not over.

Laws:
- an identifier is in use from its request to its last answer, whatever connections that takes
- a QoS 2 message is over with PUBCOMP, or with a PUBREC that refuses
- at most PENDING_MAX exchanges are not over
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.endpoint.events import Ticket
from holdfast.endpoint.retention import Record
from holdfast.errors import Refused
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import Packet, Puback, Pubcomp, Pubrec, Pubrel
from holdfast.mqtt.reasons import Reason

VERSION = 5
PACKET_IDS = 65_535
PENDING_MAX = PACKET_IDS - 1
DUP = 0x08


class Pending:
    """A request on its way, and the type of answer it `awaits`. `order` and `record` are of publications."""

    __slots__ = ("awaits", "order", "packet", "packet_id", "place", "record", "recorded", "ticket", "written")

    def __init__(self, packet_id: int, awaits: type[Packet], packet: bytes, ticket: Ticket | None) -> None:
        self.packet_id = packet_id
        self.awaits = awaits
        self.packet = packet
        self.ticket = ticket
        self.place = 0
        self.order = 0
        self.record: Record | None = None
        self.written = False
        # The answer that its asker gets when the exchange is over.
        self.recorded: Pubrec | None = None

    @property
    def publication(self) -> bool:
        return self.awaits is Puback or self.awaits is Pubrec or self.awaits is Pubcomp

    def to_write(self) -> bytes:
        """Its bytes for a connection that has not seen it."""
        if self.awaits is Pubcomp:
            return encode(Pubrel(self.packet_id), VERSION)
        if self.written and self.publication:
            return bytes([self.packet[0] | DUP]) + self.packet[1:]
        return self.packet


class Session:
    def __init__(self) -> None:
        self.pending: dict[int, Pending] = {}
        # Messages of QoS 2 that we have said we have, and of which the broker has not said that it knows.
        self.unreleased: set[int] = set()
        self._packet_id = 0

    def claim(self) -> int:
        """An identifier that is not in use; it is in use once something is `pending` under it."""
        if len(self.pending) >= PENDING_MAX:
            raise Refused(Reason.QUOTA_EXCEEDED, f"{PENDING_MAX} requests wait for their answers already")
        packet_id = self._packet_id % PACKET_IDS + 1
        while packet_id in self.pending:
            packet_id = packet_id % PACKET_IDS + 1
        self._packet_id = packet_id
        return packet_id

    def ask(self, awaits: type[Packet], make: Callable[[int], Packet], ticket: Ticket | None) -> Pending:
        packet_id = self.claim()
        pending = Pending(packet_id, awaits, encode(make(packet_id), VERSION), ticket)
        self.pending[packet_id] = pending
        return pending
