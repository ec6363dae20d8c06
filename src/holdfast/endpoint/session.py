"""What outlives a connection: packet identifiers, and the exchanges that are not over.

Laws:
- an identifier is in use from its request to its last answer, whatever connections that takes
- at most PENDING_MAX exchanges are not over
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.endpoint.events import Ticket
from holdfast.endpoint.pending import Pending
from holdfast.errors import Refused
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import Packet
from holdfast.mqtt.reasons import Reason

VERSION = 5
PACKET_IDS = 65_535
PENDING_MAX = PACKET_IDS - 1


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
