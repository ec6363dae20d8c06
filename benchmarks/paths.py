"""The paths through a broker that `instructions` counts, in made-up time and without sockets.

    python paths.py [NAME]    prints the name of each path, and how much of it was done between two marks

It runs against any tree of Holdfast that has the benches of its tests (PYTHONPATH says which), so only what
all of them have is used. Packets are made before, and what the broker writes is hardly looked at, so that
little but the broker runs.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator

from tests.broker.bench import MS, WALL_NS, Bench, book, contract
from tests.replication.notebook import KeptBench, Notebook
from tests.replication.pair import Group
from tests.security.guarded import Guarded

from holdfast.broker.connection import Connection
from holdfast.contract.model import ContractBook
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import Connect, Disconnect, Packet, Publish, Pubrel, Subscribe, Subscription

BATCH, MANY = 50, 500  # messages in a write
MESSAGES = 10_000
WARM_UP = 20  # rounds
CLIENTS = 200
RETAINED = 20
CONNACK, SUBACK = 0x20, 0x90
COPIED_WITHIN = 12 * MS  # a copy waits a while for a dispatch that makes it superfluous
PUBLISH, PUBACK, PUBREC, PUBCOMP = 0x30, 0x40, 0x50, 0x70
PASSWORD = b"a password"
RULES = """
[[rule]]
everyone = true
publish = ["own/%u/#"]
subscribe = ["own/%u/#", "seen/#"]
[[rule]]
users = ["boss"]
publish = ["#"]
subscribe = ["#"]
"""


def mark() -> None:
    """Callgrind writes down what it counted when this function of the C library is entered: see MARK."""
    os.getloadavg()


def rounds(warm_up: int, measured: int) -> Iterator[int]:
    for number in range(warm_up + measured):
        if number == warm_up:
            gc.collect()
            mark()
        yield number
    mark()


class Raw:
    """A connection whose output is taken and not looked at."""

    def __init__(self, bench: Bench | Group, connection: Connection) -> None:
        self.bench, self.connection = bench, connection
        self.reads = True
        self.out = b""
        bench.clients[connection] = self  # type: ignore[assignment]

    def collect(self) -> None:
        self.out += self.connection.take_output()

    def feed(self, data: bytes) -> None:
        bench = self.bench
        self.connection.feed(data, bench.now_ns, WALL_NS + bench.now_ns)
        bench.run()

    def acknowledge(self, topic_bytes: int, messages: int, qos: int = 1) -> None:
        """PUBACK or PUBREC for all that came: messages of one size, with topics of one length."""
        out, self.out = self.out, b""
        size, rest = divmod(len(out), messages)
        assert not rest, "messages of several sizes"
        assert out[0] == PUBLISH | qos << 1, out[:80]
        first = PUBACK if qos == 1 else PUBREC
        acknowledgements = bytearray(bytes([first, 2, 0, 0]) * messages)
        at = 4 + topic_bytes
        acknowledgements[2::4], acknowledgements[3::4] = out[at::size], out[at + 1 :: size]
        self.feed(bytes(acknowledgements))


def raw(bench: Bench | Group, client_id: str, **options: object) -> Raw:
    """A client that was let in."""
    return Raw(bench, bench.client(client_id, keep_alive=0, **options).connection)


def subscriber(bench: Bench | Group, client_id: str, filter: str, qos: int) -> Raw:
    client = bench.client(client_id, keep_alive=0)
    assert client.subscribe(filter, qos).reasons == [qos]
    return Raw(bench, client.connection)


def fast() -> ContractBook:
    return book(contract("fast", "fast/+", "50ms", 0), contract("kept", "kept/+", "1s", 0, durable="true"))


def batch(prefix: str, qos: int, size: int) -> bytes:
    return b"".join(
        encode(Publish(f"{prefix}/{number:03}", b"x" * 16, qos, packet_id=number + 1 if qos else 0), 5)
        for number in range(size)
    )


def messages(bench: Bench | Group, prefix: str, qos: int, size: int = BATCH, fan_out: int = 1) -> int:
    """Writes of so many messages, each acknowledged by whoever is to; in a group, when its copy was made."""
    publisher = raw(bench, "publisher")
    subscribers = [subscriber(bench, f"subscriber-{n}", f"{prefix}/+", qos) for n in range(fan_out)]
    data = batch(prefix, qos, size)
    writes = max(MESSAGES // size // fan_out, 5)
    for _ in rounds(WARM_UP * BATCH // size, writes):
        bench.now_ns += MS
        publisher.feed(data)
        if isinstance(bench, Group):
            bench.pass_time(COPIED_WITHIN, COPIED_WITHIN // 2)
        for each in subscribers:
            assert len(each.out) > 16 * size
            if qos:
                each.acknowledge(len(prefix) + 4, size)
            each.out = b""
        assert len(publisher.out) >= 4 * size * (qos > 0)
        publisher.out = b""
    if isinstance(bench, Group):
        assert bench.primary.broker.core.copies >= writes * size
    return writes * size


def qos2() -> int:
    """Each message is released and completed, on both sides, before the next write."""
    bench = Bench(fast())
    publisher, reader = raw(bench, "publisher"), subscriber(bench, "subscriber", "fast/+", 2)
    data = batch("fast", 2, BATCH)
    releases = b"".join(encode(Pubrel(number + 1), 5) for number in range(BATCH))
    for _ in rounds(WARM_UP, MESSAGES // BATCH):
        bench.now_ns += MS
        publisher.feed(data)
        reader.acknowledge(len("fast/000"), BATCH, 2)
        completions, reader.out = bytearray(reader.out), b""
        assert len(completions) == 4 * BATCH
        completions[::4] = bytes([PUBCOMP]) * BATCH
        reader.feed(bytes(completions))
        publisher.feed(releases)
        assert len(publisher.out) == 8 * BATCH
        publisher.out = b""
    return MESSAGES


def qos0() -> int:
    return messages(Bench(fast()), "fast", 0)


def qos0_many() -> int:
    return messages(Bench(fast()), "fast", 0, MANY)


def qos1() -> int:
    return messages(Bench(fast()), "fast", 1)


def qos1_many() -> int:
    return messages(Bench(fast()), "fast", 1, MANY)


def qos0_journal() -> int:
    return messages(KeptBench(Notebook(), fast()), "fast", 0)


def qos1_journal() -> int:
    return messages(KeptBench(Notebook(), fast()), "fast", 1)


def durable() -> int:
    return messages(KeptBench(Notebook(), fast()), "kept", 1)


def pair() -> int:
    return messages(Group(), "safe", 1, MANY)


def pair_of_two() -> int:
    return messages(Group(), "safe", 1, MANY, fan_out=2)


def pair_away() -> int:
    """One session is away, and the others get what it does not."""
    group = Group()
    away = subscriber(group, "away", "safe/+", 1)
    away.feed(encode(Disconnect(), 5))
    return messages(group, "safe", 1, MANY, fan_out=50)


def newcomer(bench: Bench) -> Raw:
    connection = bench.broker.open(None, bench.now_ns)
    assert connection is not None
    return Raw(bench, connection)


def subscribe(number: int, filter: str) -> Packet:
    return Subscribe(number + 1, [Subscription(filter, 1)])


def connect() -> int:
    bench = Bench(fast())
    packets = [encode(Connect(f"client-{number}", keep_alive=60), 5) for number in range(WARM_UP + CLIENTS)]
    for number in rounds(WARM_UP, CLIENTS):
        client = newcomer(bench)
        client.feed(packets[number])
        assert client.out[0] == CONNACK
    return CLIENTS


def connect_and_subscribe(bench: Bench, filter: str, **options: object) -> int:
    packets = [
        (
            encode(Connect(f"client-{number}", keep_alive=60, **options), 5),
            encode(subscribe(number, f"{filter}/{number}"), 5),
        )
        for number in range(WARM_UP + CLIENTS)
    ]
    for number in rounds(WARM_UP, CLIENTS):
        client = newcomer(bench)
        for packet in packets[number]:
            client.feed(packet)
        assert client.out[-1] == 1, client.out
    return CLIENTS


def unguarded() -> int:
    return connect_and_subscribe(Bench(fast()), "fast")


def guarded() -> int:
    bench = Guarded(RULES, 'users = "users"', {"boss": "line", "alice": "line"})
    bench.knock(Connect("first", username="alice", password=PASSWORD))
    bench.answer("alice")
    return connect_and_subscribe(bench, "own/alice", username="alice", password=PASSWORD)


def come_and_go() -> int:
    bench = Bench(fast())
    words = [encode(each, 5) for each in (Connect("client"), subscribe(1, "fast/1"), Disconnect())]
    for _ in rounds(WARM_UP, CLIENTS):
        client = newcomer(bench)
        for word in words:
            client.feed(word)
        bench.clients.pop(client.connection, None)
    return CLIENTS


def subscribe_one() -> int:
    client = raw(Bench(fast()), "subscriber")
    packets = [encode(subscribe(n, f"some/where/{n}"), 5) for n in range(WARM_UP + 2 * CLIENTS)]
    for number in rounds(WARM_UP, 2 * CLIENTS):
        client.feed(packets[number])
        assert client.out[0] == SUBACK
        client.out = b""
    return 2 * CLIENTS


def subscribe_retained() -> int:
    bench = Bench(fast())
    publisher = raw(bench, "publisher")
    for number in range(RETAINED):
        publisher.feed(encode(Publish(f"kept/{number}", b"x" * 16, 0, retain=True), 5))
    client = raw(bench, "subscriber")
    packet = encode(Subscribe(1, [Subscription("kept/+", 0)]), 5)
    for _ in rounds(WARM_UP, CLIENTS):
        client.feed(packet)
        assert client.out.count(b"kept/") == RETAINED
        client.out = b""
    return CLIENTS


def new_topic() -> int:
    bench = Bench(fast())
    publisher, other = raw(bench, "publisher"), subscriber(bench, "subscriber", "fast/+", 0)
    batches = [
        b"".join(encode(Publish(f"fast/{first + n}", b"x" * 16, 0), 5) for n in range(BATCH))
        for first in range(0, (WARM_UP + CLIENTS) * BATCH, BATCH)
    ]
    for number in rounds(WARM_UP, CLIENTS):
        publisher.feed(batches[number])
        assert len(other.out) > BATCH
        other.out = b""
    return CLIENTS * BATCH


PATHS: dict[str, Callable[[], int]] = {
    "message, QoS 0, 50 a write": qos0,
    "message, QoS 0, 500 a write": qos0_many,
    "message, QoS 1, 50 a write": qos1,
    "message, QoS 1, 500 a write": qos1_many,
    "message, QoS 2, 50 a write": qos2,
    "message, QoS 0, journal": qos0_journal,
    "message, QoS 1, journal": qos1_journal,
    "message, QoS 1, durable": durable,
    "message, QoS 1, pair that copies": pair,
    "the same to 2 subscribers": pair_of_two,
    "the same to 50, and one is away": pair_away,
    "CONNECT": connect,
    "SUBSCRIBE": subscribe_one,
    "CONNECT, SUBSCRIBE": unguarded,
    "CONNECT, SUBSCRIBE, users and rules": guarded,
    "CONNECT, SUBSCRIBE, DISCONNECT": come_and_go,
    "SUBSCRIBE over 20 retained names": subscribe_retained,
    "first message on a new topic": new_topic,
}


if __name__ == "__main__":
    gc.disable()
    for name in sys.argv[1:] or PATHS:
        print(name, PATHS[name](), sep="\t")
