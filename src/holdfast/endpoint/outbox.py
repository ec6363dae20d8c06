"""Everything that goes out: publications and requests, to the connection that is `directed` to.

Laws:
- within a topic messages are written in the order of publishing, whatever their QoS; a message waits for
  quota, and those of its topic behind it wait too; other topics overtake
- a new direction gets, in the order of publishing, the last N of every topic and all that is unacknowledged;
  what was acknowledged with QoS 2 is not among them: who took it has it safe, and nobody may get it twice
- without a direction QoS 0 is only kept in its ring; QoS 1 and 2 and requests wait, `waiting_max` at most;
  QoS 0 that would wait beyond it is counted as unsent
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from holdfast.endpoint.events import Ticket
from holdfast.endpoint.outgoing import Outgoing
from holdfast.endpoint.pending import Pending
from holdfast.endpoint.protocol import REFUSAL, Done, Protocol
from holdfast.endpoint.retention import Batch, Record, Retention
from holdfast.endpoint.session import VERSION, Session
from holdfast.errors import Refused
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Suback, Unsuback
from holdfast.mqtt.reasons import Reason

QOS_BITS = 0x06
QOS_2 = 0x04


class Waiting(NamedTuple):
    """A publication that is to be written: acknowledged (`pending`) or not (`packet`)."""

    order: int
    record: Record
    packet: bytes
    pending: Pending | None


class Outbox:
    def __init__(self, session: Session, retention: Retention, waiting_max: int) -> None:
        self.session = session
        self.retention = retention
        self.answered: list[Ticket] = []
        self._waiting_max = waiting_max
        self._to: Protocol | None = None
        self._unwritten: deque[Waiting] = deque()

    @property
    def room(self) -> int:
        """How many more QoS 1 and 2 messages may be published now."""
        return self._waiting_max - len(self.session.pending)

    # -- publishing ----------------------------------------------------------------------------------------

    def publish_many(self, messages: list[Outgoing], created_ns: int | None) -> Ticket | None:
        """Stamps them if `created_ns` is given. The ticket answers for all; None if none is acknowledged."""
        place = 0 if messages and messages[0].qos else self._publish_ordinary(messages, 0, created_ns, None)
        if place == len(messages):
            return None
        asked = sum(message.qos > 0 for message in messages)
        self._check_room(asked)
        ticket = Ticket(f"publish to {messages[place].topic}", len(messages)) if asked else None
        if ticket is not None:
            ticket.left = asked
        try:
            while place < len(messages):
                message = messages[place]
                if (ordinary := self._publish_ordinary(messages, place, created_ns, ticket)) > place:
                    place = ordinary
                    continue
                if message.qos:
                    assert ticket is not None
                    self._publish_asking(message, created_ns, ticket, place)
                else:
                    self._publish_plain(message, created_ns)
                place += 1
        finally:
            self.advance()
        return ticket

    def publish_batch(self, batch: Batch, created_ns: int) -> None:
        to = self._to
        if to is not None:
            data = self.retention.publish_batch(batch, created_ns, to.takes_bytes_max)
            if data is not None:
                to.write(data)
                return
        self.publish_many(batch.messages, created_ns)

    def _check_room(self, asked: int) -> None:
        if asked > self.room:
            raise Refused(
                Reason.QUOTA_EXCEEDED,
                f"{len(self.session.pending)} messages and requests wait for their answers, "
                f"{self._waiting_max} may: wait for some before {asked} more are asked",
            )

    def _publish_ordinary(
        self, messages: list[Outgoing], start: int, created_ns: int | None, ticket: Ticket | None
    ) -> int:
        """Writes what needs no thought from `start` on, and returns where it stopped."""
        to = self._to
        if to is None:
            return start
        data, place, asked = self.retention.publish(
            messages,
            start,
            created_ns or 0,
            created_ns is not None,
            to.takes_bytes_max,
            to.takes_retained,
            self.session,
            ticket,
            to.quota if ticket is not None and not self._unwritten and to.takes_every_qos else 0,
        )
        if data:
            to.write(data, asked)
        return place

    def _publish_plain(self, message: Outgoing, created_ns: int | None) -> None:
        record = self.retention.record(message.topic)
        packet = self.retention.encoded(
            record, message.payload, 0, message.retain, message.properties, 0, created_ns
        )
        to = self._to
        if to is not None:
            to.check(len(packet), 0, message.retain)
        order = self.retention.keep(record, packet, created_ns, written=to is not None)
        if to is None:
            return
        if not record.blocked:
            to.write(packet)
        elif len(self._unwritten) >= self._waiting_max:
            self.retention.unsent += 1
        else:
            record.blocked += 1
            self._unwritten.append(Waiting(order, record, packet, None))

    def _publish_asking(self, message: Outgoing, created_ns: int | None, ticket: Ticket, place: int) -> None:
        record = self.retention.record(message.topic)
        packet_id = self.session.claim()
        packet = self.retention.encoded(
            record, message.payload, message.qos, message.retain, message.properties, packet_id, created_ns
        )
        if self._to is not None:
            self._to.check(len(packet), message.qos, message.retain)
        pending = Pending(packet_id, Puback if message.qos == 1 else Pubrec, packet, ticket)
        pending.order = self.retention.keep(record, packet, created_ns, written=True)
        pending.record = record
        pending.place = place
        self.session.pending[packet_id] = pending
        if self._to is not None and self._to.quota > 0 and not self._unwritten:
            self._to.send(pending)
            return
        record.blocked += 1
        self._unwritten.append(Waiting(pending.order, record, packet, pending))

    # -- requests ------------------------------------------------------------------------------------------

    def ask(self, awaits: type[Packet], make: Callable[[int], Packet], ticket: Ticket | None) -> Pending:
        self._check_room(1)
        pending = self.session.ask(awaits, make, ticket)
        if self._to is not None:
            self._to.send(pending)
        return pending

    def done(self, done: Done) -> None:
        """An answer came."""
        answer = done.answer
        if isinstance(answer, Suback | Unsuback):
            self._settle(done.pending, answer.reasons, answer.properties.reason_string)
        else:
            self._settle(done.pending, [answer.reason], answer.properties.reason_string)

    def _settle(self, pending: Pending, reasons: list[int], words: str | None) -> None:
        ticket = pending.ticket
        if ticket is None:
            return
        ticket.reasons[pending.place : pending.place + len(reasons)] = reasons
        refused = next((place for place, reason in enumerate(reasons) if reason >= REFUSAL), None)
        if refused is not None and ticket.refused_at is None:
            ticket.refused_at = pending.place + refused
            ticket.words = words
        ticket.left -= 1
        if ticket.left == 0:
            ticket.done = True
            self.answered.append(ticket)

    # -- where it goes -------------------------------------------------------------------------------------

    def direct(self, to: Protocol | None) -> None:
        """From now on everything goes there, after all that may be lost."""
        self._to = to
        if to is None:
            return
        if not self._unwritten and not self.session.pending:
            # A publisher of many topics must not be late for the next ones because of these.
            plain = self.retention.kept_plain(to.takes_bytes_max)
            if plain is not None:
                to.write(plain)
                return
        for waiting in self._unwritten:
            waiting.record.blocked = 0
        again = {waiting.order: waiting for waiting in self._unwritten if waiting.pending is None}
        for kept in self.retention.kept():
            if kept.packet[0] & QOS_BITS != QOS_2:
                again[kept.order] = Waiting(kept.order, kept.record, kept.packet, None)
        for pending in list(self.session.pending.values()):
            if pending.awaits is Puback or pending.awaits is Pubrec:
                assert pending.record is not None
                again[pending.order] = Waiting(pending.order, pending.record, pending.packet, pending)
            else:
                to.send(pending)
        self._unwritten = deque(again[order] for order in sorted(again))
        for waiting in self._unwritten:
            waiting.record.blocked += 1
        self.advance()

    def advance(self) -> None:
        """Writes what waits, as far as the quota goes."""
        to = self._to
        while to is not None and self._unwritten:
            waiting = self._unwritten[0]
            pending = waiting.pending
            if pending is not None and to.quota <= 0:
                return
            self._unwritten.popleft()
            waiting.record.blocked -= 1
            if pending is None:
                self._write_plain(to, waiting.packet)
            elif pending.awaits is not Pubcomp and self.session.pending.get(pending.packet_id) is pending:
                self._write_asking(to, pending)

    def _write_plain(self, to: Protocol, packet: bytes) -> None:
        """An acknowledged message in a ring is written as QoS 0: whoever has it drops it."""
        if packet[0] & QOS_BITS:
            found = split(packet)
            assert found is not None
            first, start, end = found
            decoded = decode(first, packet[start:end], VERSION)
            assert isinstance(decoded, Publish)
            packet = encode(
                Publish(decoded.topic, decoded.payload, retain=decoded.retain, properties=decoded.properties),
                VERSION,
            )
        try:
            to.check(len(packet), 0, bool(packet[0] & 1))
        except Refused:
            self.retention.unsent += 1
            return
        to.write(packet)

    def _write_asking(self, to: Protocol, pending: Pending) -> None:
        first = pending.packet[0]
        try:
            to.check(len(pending.packet), first >> 1 & 3, bool(first & 1))
        except Refused as refusal:
            del self.session.pending[pending.packet_id]
            self._settle(pending, [refusal.reason], str(refusal))
            return
        to.send(pending)
