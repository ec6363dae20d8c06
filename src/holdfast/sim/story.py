"""The story of one message: the same run once more, with everything listened to that concerns it.

Law: nothing is told that was not seen on a wire, at a process or in the fault plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from holdfast.mqtt.codec import decode, split
from holdfast.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from holdfast.sim.evidence import Violation
from holdfast.sim.ledger import MAGIC, PAYLOAD, Identity, Ledger
from holdfast.sim.network import End
from holdfast.sim.options import PEER_PORT, Options
from holdfast.sim.run import simulate
from holdfast.sim.world import START_NS

ANSWERS = (Puback, Pubrec, Pubrel, Pubcomp)


class Listener:
    """Hears everything, keeps what concerns one message or everybody."""

    def __init__(self, message: Identity | None) -> None:
        self.message = message
        self.lines: list[tuple[int, str]] = []
        self._mark = b"" if message is None else PAYLOAD.pack(MAGIC, *message, 0)[:12]
        self._rest: dict[tuple[End, str], bytes] = {}
        self._ids: set[tuple[End, int]] = set()
        self._now_ns = 0

    def __call__(self, now_ns: int, who: str, what: str, details: Any) -> None:
        self._now_ns = now_ns
        if what in ("wrote", "heard"):
            if self.message is not None:
                self._bytes(who, what, *details)
        else:
            self._say(f"{who}: {what}" + ("" if details is None else f" {details}"))

    def _say(self, text: str) -> None:
        self.lines.append((self._now_ns, text))

    def _bytes(self, who: str, what: str, end: End, data: bytes) -> None:
        peer = end.peer.process.name
        way = f"to {peer}" if what == "wrote" else f"from {peer}"
        if end.address[1] == PEER_PORT:
            if self._mark in data:
                self._say(f"{who} {what} a copy {way}")
            return
        key = (end, what)
        data = self._rest.get(key, b"") + data
        at = 0
        while (found := split(data, at)) is not None:
            first, start, at = found
            self._packet(who, what, way, end, first, data[start:at])
        self._rest[key] = data[at:]

    def _packet(self, who: str, what: str, way: str, end: End, first: int, body: bytes) -> None:
        kind = first >> 4
        if kind == 3:
            if self._mark not in body:
                return
            packet = decode(first, body, 5)
            assert isinstance(packet, Publish)
            if packet.qos:
                self._ids |= {(end, packet.packet_id), (end.peer, packet.packet_id)}
            self._say(f"{who} {what} it {way} qos {packet.qos}{' again' if packet.dup else ''}")
        elif 4 <= kind <= 7:
            answer = decode(first, body, 5)
            assert isinstance(answer, ANSWERS)
            if (end, answer.packet_id) in self._ids:
                self._say(f"{who} {what} {type(answer).__name__.upper()} {way}")


def tell(options: Options, violation: Violation, mutation: AbstractContextManager[object]) -> Iterator[str]:
    """What happened to the message of a violation, or, without one, to everybody's view of the group."""
    listener = Listener(violation.message)
    _, ledger = simulate(options, tap=listener, mutation=mutation)
    lines = listener.lines + [(at_ns, f"fault: {kind} {who}") for at_ns, kind, who in ledger.faults]
    lines += list(_learned(violation, ledger))
    yield f"the story of {violation.message or 'the group'}: {violation.law}"
    for at_ns, text in sorted(lines, key=lambda line: line[0]):
        yield f"{(at_ns - START_NS) / 1e6:12.4f} ms  {text}"


def _learned(violation: Violation, ledger: Ledger) -> Iterator[tuple[int, str]]:
    for view in ledger.member_views:
        yield view.at_ns, f"{view.who} is in view {view.number}, primary {view.primary or 'unknown'}"
    message = violation.message
    if message is None:
        return
    created_ns = ledger.created[(message.publisher, message.topic)][message.number]
    yield created_ns, f"publisher-{message.publisher} created it"
    if message in ledger.acknowledged:
        yield ledger.acknowledged[message], "its publisher knows that it is safe"
    mark = PAYLOAD.pack(MAGIC, *message, 0)[:12]
    for subscriber, taken in enumerate(ledger.taken):
        for at_ns, payloads in taken:
            if any(payload.startswith(mark) for payload in payloads):
                yield at_ns, f"the user of subscriber-{subscriber} got it"
