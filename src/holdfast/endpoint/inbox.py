"""Messages that arrived and wait for their user.

Laws:
- each message of a publisher and topic is given out once, in order, with the gap before it
- a message is acknowledged when it is taken; its duplicate is acknowledged no earlier
- a retained copy is history: it is always given out, and says nothing about order
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from holdfast.endpoint.messages import Message
from holdfast.endpoint.order import DUPLICATE, Order
from holdfast.endpoint.protocol import Protocol
from holdfast.mqtt.conventions import find_stamp
from holdfast.mqtt.packets import Publish


class Arrived(NamedTuple):
    """`message` is None for a duplicate, which is only acknowledged."""

    message: Message | None
    protocol: Protocol | None
    packet_id: int


class Inbox:
    def __init__(self, queue_max: int, streams_max: int) -> None:
        self.order = Order(streams_max)
        self._queue_max = queue_max
        self._arrived: deque[Arrived] = deque()

    def __len__(self) -> int:
        return len(self._arrived)

    @property
    def full(self) -> bool:
        return len(self._arrived) >= self._queue_max

    @property
    def drained(self) -> bool:
        return len(self._arrived) <= self._queue_max // 2

    def arrived(self, packet: Publish, protocol: Protocol, wall_ns: int) -> None:
        stamp = find_stamp(packet.properties.user)
        missed = 0
        if stamp is not None and not packet.retain:
            missed = self.order.seen(stamp.publisher, packet.topic, stamp.sequence)
        owner = protocol if packet.qos else None
        if missed == DUPLICATE:
            if owner is not None:
                self._arrived.append(Arrived(None, owner, packet.packet_id))
            return
        message = Message(
            packet.topic,
            packet.payload,
            packet.qos,
            packet.retain,
            packet.dup,
            packet.properties,
            wall_ns,
            stamp,
            missed,
        )
        self._arrived.append(Arrived(message, owner, packet.packet_id))

    def take(self) -> Message | None:
        while self._arrived:
            message, protocol, packet_id = self._arrived.popleft()
            if protocol is not None:
                protocol.acknowledge(packet_id)
            if message is not None:
                return message
        return None

    def take_all(self) -> list[Message]:
        return list(iter(self.take, None))
