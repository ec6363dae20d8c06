"""A broker without sockets, and clients that speak bytes to it in made-up time."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.broker.broker import Broker
from holdfast.broker.connection import Connection
from holdfast.config import Limits
from holdfast.contract.file import parse_contracts
from holdfast.contract.model import ContractBook
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Packet,
    Properties,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)

WALL_NS = 1_700_000_000_000_000_000
MS = 1_000_000

DEPLOYMENT = """
[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { edge = "1ms" }
"""


def contract(name: str, topics: str, deadline: str, loss: int | str, **more: object) -> str:
    text = (
        f'[[contract]]\nname = "{name}"\ntopics = ["{topics}"]\nperiod = "100ms"\ndeadline = "{deadline}"\n'
    )
    text += f"loss_tolerance = {loss if isinstance(loss, int) else chr(34) + loss + chr(34)}\nretention = 2\n"
    return text + "".join(f"{key} = {value}\n" for key, value in more.items())


def book(*contracts: str, limits: Limits | None = None) -> ContractBook:
    parsed = parse_contracts(DEPLOYMENT + "".join(contracts), source="test")
    if limits is None:
        return parsed
    return ContractBook(
        deployment=parsed.deployment, capacity=parsed.capacity, contracts=parsed.contracts, limits=limits
    )


@dataclass
class Client:
    """One connection and everything that the broker wrote to it."""

    bench: Bench
    connection: Connection
    version: int = 5
    got: list[Packet] = field(default_factory=list)
    reads: bool = True
    _bytes: bytes = b""

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        self.connection.feed(data, self.bench.now_ns, WALL_NS + self.bench.now_ns)

    def say(self, *packets: Packet) -> None:
        """Sends, and lets the broker do everything that follows."""
        self.send(*packets)
        self.bench.run()

    def publish(self, topic: str, payload: bytes = b"", **options: object) -> None:
        qos = options.get("qos", 0)
        self.send(Publish(topic=topic, payload=payload, **{"packet_id": 1 if qos else 0, **options}))

    def subscribe(
        self, filter: str, qos: int = 0, properties: Properties | None = None, **options: bool
    ) -> Suback:
        self.say(
            Subscribe(
                packet_id=1,
                subscriptions=[Subscription(filter=filter, qos=qos, **options)],
                properties=properties or Properties(),
            )
        )
        (answer,) = [packet for packet in self.take() if isinstance(packet, Suback)]
        return answer

    def stop_reading(self) -> None:
        self.reads = False
        self.connection.writable = False

    def read_again(self) -> None:
        self.reads = True
        self.connection.drained()
        self.bench.run()

    def collect(self) -> None:
        self._bytes += self.connection.take_output()
        at = 0
        while (found := split(self._bytes, at)) is not None:
            first, start, at = found
            self.got.append(decode(first, self._bytes[start:at], self.version))
        self._bytes = self._bytes[at:]

    def take(self) -> list[Packet]:
        taken, self.got = self.got, []
        return taken

    def messages(self) -> list[Publish]:
        return [packet for packet in self.take() if isinstance(packet, Publish)]


class Bench:
    def __init__(self, contracts: ContractBook | None = None, policy: str = "edf") -> None:
        self.now_ns = 1_000_000_000
        self.events: list[tuple[str, dict[str, object]]] = []
        self.broker = Broker(
            contracts or ContractBook(),
            policy=policy,
            seed=11,
            now_ns=self.now_ns,
            event=lambda event, details: self.events.append((event, details)),
        )
        self.clients: dict[Connection, Client] = {}
        self.run()

    def client(self, client_id: str, version: int = 5, **options: object) -> Client:
        connection = self.broker.open(None, self.now_ns)
        assert connection is not None
        client = Client(self, connection, version)
        self.clients[connection] = client
        client.say(Connect(client_id=client_id, version=version, **options))
        answer = client.got.pop(0)
        assert isinstance(answer, Connack)
        assert answer.reason == 0
        return client

    def turn(self) -> bool:
        """One turn of the broker, then everything ready is written."""
        more = self.broker.turn(self.now_ns, WALL_NS + self.now_ns)
        for link in self.broker.core.board.take_ready():
            client = self.clients[link]
            if client.reads or link.closing:
                client.collect()
                link.flushed()
        return more or self.broker.core.board.waiting

    def run(self) -> None:
        for _ in range(10_000):
            if not self.turn():
                return
        raise AssertionError("the broker never comes to rest")

    def pass_time(self, ns: int) -> None:
        self.now_ns += ns
        self.run()
