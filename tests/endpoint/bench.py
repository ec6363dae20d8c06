"""An endpoint without sockets, and brokers that a test plays: packets in, packets out, made-up time."""

from __future__ import annotations

import random
from collections.abc import Iterable

from holdfast.endpoint import Address, Endpoint, EndpointConfig, Event
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.conventions import VIEW_PROPERTY, VIEW_TOPIC, Place, ViewNote, format_view
from holdfast.mqtt.packets import Connack, Connect, Packet, Properties, Publish

A, B, C = ("a", 1883), ("b", 1883), ("c", 1883)
PLACES = {"a": Place("a", "a", 1883), "b": Place("b", "b", 1883), "c": Place("c", "c", 1883)}
WALL_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def view(number: int, teller: str, order: str) -> ViewNote:
    """`order` names the primary and then its heirs, a letter each."""
    return ViewNote(number, teller, tuple(PLACES[name] for name in order))


def told(note: ViewNote) -> Properties:
    return Properties(user=[(VIEW_PROPERTY, format_view(note))])


def packets_of(data: bytes) -> list[Packet]:
    packets, end = [], 0
    while found := split(data, end):
        first_byte, start, end = found
        packets.append(decode(first_byte, data[start:end], 5))
    assert end == len(data)
    return packets


class Bench:
    """Says what the endpoint does, address by address."""

    def __init__(self, *addresses: Address, **config: object) -> None:
        self.now_ns = 1_000_000_000
        self.endpoint = Endpoint(
            EndpointConfig(addresses=addresses or (A, B), **config),  # type: ignore[arg-type]
            token="t0",
            rng=random.Random(7),
            now_ns=self.now_ns,
        )
        self.events: list[Event] = []
        self.hung_up: list[Address] = []
        self.dialled: list[Address] = []
        self.unread: dict[Address, list[Packet]] = {}
        self.perform()

    @property
    def wall_ns(self) -> int:
        return WALL_NS + self.now_ns

    def perform(self) -> None:
        for address, data in self.endpoint.take_output():
            self.unread.setdefault(address, []).extend(packets_of(data))
        self.hung_up += self.endpoint.take_hangups()
        self.dialled += self.endpoint.take_dials()
        self.events += self.endpoint.take_events()

    def sent(self, address: Address) -> list[Packet]:
        """What was written to an address since it was asked last."""
        self.perform()
        return self.unread.pop(address, [])

    def took(self, kind: type[Event]) -> list[Event]:
        self.perform()
        found = [event for event in self.events if isinstance(event, kind)]
        self.events = [event for event in self.events if not isinstance(event, kind)]
        return found

    def open(self, address: Address) -> Connect:
        """The endpoint dials there and says CONNECT."""
        self.perform()
        self.dialled.remove(address)
        self.endpoint.opened(address, self.now_ns)
        (connect,) = self.sent(address)
        assert isinstance(connect, Connect)
        return connect

    def say(self, address: Address, *packets: Packet) -> None:
        data = b"".join(encode(packet, 5) for packet in packets)
        self.endpoint.received(address, data, self.now_ns, self.wall_ns)
        self.perform()

    def admit(self, address: Address, note: ViewNote | None, *, session_present: bool = False) -> Connect:
        connect = self.open(address)
        properties = Properties() if note is None else told(note)
        self.say(address, Connack(session_present=session_present, properties=properties))
        return connect

    def announce(self, address: Address, note: ViewNote) -> None:
        self.say(address, Publish(VIEW_TOPIC, format_view(note).encode()))

    def lose(self, address: Address) -> None:
        self.endpoint.lost(address, self.now_ns)
        self.perform()

    def pass_time(self, ns: int) -> None:
        """Time goes by, and every timer on the way fires."""
        end_ns = self.now_ns + ns
        while (next_ns := self.endpoint.next_ns) is not None and next_ns <= end_ns:
            self.now_ns = max(self.now_ns, next_ns)
            self.endpoint.turn(self.now_ns, self.wall_ns)
            self.perform()
        self.now_ns = end_ns

    def publish(self, topic: str, payload: bytes, qos: int = 0, **options: object) -> object:
        ticket = self.endpoint.publish(
            topic,
            payload,
            qos=qos,
            now_ns=self.now_ns,
            wall_ns=self.wall_ns,
            **options,  # type: ignore[arg-type]
        )
        self.perform()
        return ticket


def payloads(packets: Iterable[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def pair(**config: object) -> Bench:
    """Served by a, with b as its heir."""
    bench = Bench(A, B, **config)
    bench.admit(A, view(4, "a", "ab"))
    bench.admit(B, view(4, "b", "ab"))
    return bench
