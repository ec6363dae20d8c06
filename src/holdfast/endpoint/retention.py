"""What a publisher keeps: for every topic its number, and its last N messages as they went out.

Laws:
- the numbers of a topic rise by one with every stamped message, and never start again
- a ring holds the last N stamped messages of its topic, N from the first declared filter that matches it
- a message that leaves its ring without having been written to any broker is counted in `unsent`
"""

from __future__ import annotations

from collections import deque

from holdfast.errors import PeerError, Refused
from holdfast.mqtt.codec import encode
from holdfast.mqtt.conventions import format_stamp
from holdfast.mqtt.packets import Properties, Publish
from holdfast.mqtt.reasons import Reason
from holdfast.mqtt.topics import matches, validate_topic


class Kept:
    """One message of a ring. `order` is its place among all that were published."""

    __slots__ = ("order", "packet", "record", "written")

    def __init__(self, order: int, packet: bytes, record: Record, written: bool) -> None:
        self.order = order
        self.packet = packet
        self.record = record
        self.written = written


class Record:
    """One topic. `blocked` is how many of its messages wait for quota."""

    __slots__ = ("blocked", "ring", "sequence", "topic")

    def __init__(self, topic: str, retention: int) -> None:
        self.topic = topic
        self.sequence = 0
        self.ring: deque[Kept] = deque(maxlen=retention)
        self.blocked = 0


class Retention:
    def __init__(self, publisher: str, topics_max: int) -> None:
        self.publisher = publisher
        self.order = 0
        self.unsent = 0
        self._topics_max = topics_max
        self._records: dict[str, Record] = {}
        self._declared: list[tuple[bytes, int]] = []

    def declare(self, topic_filter: str, retention: int) -> None:
        self._declared.append((topic_filter.encode(), retention))
        for record in self._records.values():
            kept = list(record.ring)
            record.ring = deque(kept, maxlen=self._retention_of(record.topic))
            dropped = kept[: len(kept) - len(record.ring)]
            self.unsent += sum(not each.written for each in dropped)

    def sequences(self) -> dict[str, int]:
        return {topic: record.sequence for topic, record in self._records.items() if record.sequence}

    def record(self, topic: str) -> Record:
        record = self._records.get(topic)
        if record is None:
            try:
                validate_topic(topic)
            except PeerError as error:
                raise ValueError(error.text) from None
            if len(self._records) >= self._topics_max:
                raise Refused(
                    Reason.QUOTA_EXCEEDED, f"this client has published to {self._topics_max} topics already"
                )
            record = self._records[topic] = Record(topic, self._retention_of(topic))
        return record

    def encoded(
        self,
        record: Record,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: Properties | None,
        packet_id: int,
        created_ns: int | None,
    ) -> bytes:
        """The next message of a topic as bytes, stamped if `created_ns` is given; nothing changes yet."""
        listed = properties or Properties()
        if created_ns is not None:
            stamp = format_stamp(created_ns, record.sequence + 1, self.publisher)
            listed = Properties(**{name: getattr(listed, name) for name in listed.__struct_fields__})
            listed.user = [*listed.user, stamp]
        return encode(Publish(record.topic, payload, qos, retain, False, packet_id, listed), 5)

    def keep(self, record: Record, packet: bytes, *, stamped: bool, written: bool) -> int:
        """Counts and keeps what `encoded` gave; returns its order. `written` if it goes out at once."""
        self.order += 1
        ring = record.ring
        if stamped:
            record.sequence += 1
            if ring.maxlen:
                if len(ring) == ring.maxlen:
                    self.unsent += not ring[0].written
                ring.append(Kept(self.order, packet, record, written))
                return self.order
        self.unsent += not written
        return self.order

    def kept(self) -> list[Kept]:
        """Everything in all rings, in the order of publishing."""
        entries = [entry for record in self._records.values() for entry in record.ring]
        entries.sort(key=lambda entry: entry.order)
        return entries

    def _retention_of(self, topic: str) -> int:
        name = topic.encode()
        return next((count for filter, count in self._declared if matches(filter, name)), 0)
