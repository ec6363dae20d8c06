"""Messages: many, large, retained, late, again."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.wire import P, Type, Will, ack, connect, publish, subscribe
from hostile.attacker import Field
from hostile.attacks import attack
from hostile.wires import PASSWORD

FOREVER = [(P.SESSION_EXPIRY, 0xFFFFFFFF)]


@attack("5,000 messages of a byte, then 600 of a megabyte, to one session that is offline")
def large_behind_small(field: Field) -> Iterator[None]:
    small = b"".join(publish("queue/x", b"1", qos=1, pid=number % 1000 + 1) for number in range(5000))
    large = publish("queue/x", bytes(2**20), qos=1, pid=1)
    yield
    sleeper = field.client("sleeper", clean=False, props=FOREVER)
    sleeper.send(subscribe(1, ("queue/x", 1)))
    sleeper.expect(Type.SUBACK)
    field.drop(sleeper)
    stream = field.client("filler")
    for start in range(0, len(small), len(small) // 50):
        stream.send(small[start : start + len(small) // 50])
        field.drain(stream)
        yield
    for _ in range(600):
        stream.send(large)
        field.drain(stream)
        yield


@attack("topics under aliases that change with every message")
def alias_storm(field: Field) -> Iterator[None]:
    data = b"".join(
        publish(f"alias/{number}", b"x", props=[(P.TOPIC_ALIAS, number % 64 + 1)])
        + publish("", b"y", props=[(P.TOPIC_ALIAS, number % 64 + 1)])
        for number in range(20_000)
    )
    yield
    streams = [field.client() for _ in range(4)]
    yield from field.flood(streams, data)


@attack("retained messages, new ones and replaced ones, as fast as they are taken", stays=True)
def retained_storm(field: Field) -> Iterator[None]:
    data = b"".join(publish(f"storm/{number % 5000}", bytes(200), retain=True) for number in range(20_000))
    yield
    listener = field.client()
    listener.send(subscribe(1, "storm/#"))
    listener.expect(Type.SUBACK)
    streams = [field.client() for _ in range(3)]
    yield from field.flood([listener, *streams], data)


@attack("200 clients with wills of 60 KB that vanish together, again and again")
def will_storm(field: Field) -> Iterator[None]:
    will = Will("wills/x", bytes(60_000), qos=1)
    hellos = [connect(f"will-{number}", will=will, keep_alive=0) for number in range(200)]
    yield
    heir = field.client()
    heir.send(subscribe(1, ("wills/#", 0)))
    heir.expect(Type.SUBACK)
    while True:
        streams = []
        for hello in hellos:
            streams.append(field.raw())
            streams[-1].send(hello)
        for stream in streams:
            field.let_in(stream)
        for stream in streams:
            field.reset(stream)
        field.drain(heir)
        yield


@attack("PUBRELs of messages that were never published")
def pubrel_flood(field: Field) -> Iterator[None]:
    data = b"".join(ack(Type.PUBREL, number) for number in range(1, 16_000))
    yield
    yield from field.flood([field.client() for _ in range(4)], data)


@attack("PUBRELs of messages that were never published, by who takes no answer")
def pubrel_flood_unread(field: Field) -> Iterator[None]:
    data = b"".join(ack(Type.PUBREL, number) for number in range(1, 16_000))
    yield
    yield from field.flood([field.client(small=True) for _ in range(4)], data, read=False)


@attack("one packet identifier for every QoS 2 message, never released")
def identifiers_reused(field: Field) -> Iterator[None]:
    data = b"".join(publish("reused", b"%d" % number, qos=2, pid=7) for number in range(5000))
    yield
    yield from field.flood([field.client() for _ in range(4)], data)


@attack("QoS 1 messages that all say they were sent before")
def dup_flood(field: Field) -> Iterator[None]:
    data = b"".join(publish("dup/x", b"x", qos=1, pid=number + 1, dup=True) for number in range(500))
    yield
    streams = [field.client() for _ in range(4)]
    while True:
        for stream in streams:
            stream.send(data)
        for stream in streams:
            for _ in range(500):
                stream.expect(Type.PUBACK)
        yield


@attack("16,000 PINGREQs in every write")
def ping_flood(field: Field) -> Iterator[None]:
    yield
    yield from field.flood([field.client() for _ in range(10)], b"\xc0\0" * 16_000)


@attack("messages to nobody, as fast as they are taken")
def message_flood(field: Field) -> Iterator[None]:
    data = b"".join(publish(f"flood/{number % 1000}", bytes(16)) for number in range(20_000))
    yield
    yield from field.flood([field.client() for _ in range(4)], data)


@attack("20 subscribers that read nothing of a flood of 10 KB messages")
def zero_windows(field: Field) -> Iterator[None]:
    data = publish("window/x", bytes(10_000)) * 100
    yield
    for _ in range(20):
        stream = field.client(small=True)
        stream.send(subscribe(1, ("window/#", 1)))
        stream.expect(Type.SUBACK)
    yield from field.flood([field.client()], data)


@attack("50 slow readers of 40 MB of retained messages", stays=True)
def slow_readers_of_retained(field: Field) -> Iterator[None]:
    batches = [publish(f"slow/{number}", bytes(100_000), retain=True) for number in range(400)]
    request = subscribe(1, ("slow/#", 1))
    yield
    writer = field.client()
    for batch in batches:
        writer.send(batch)
        yield
    while True:
        readers = [field.client(small=True) for _ in range(50)]
        for reader in readers:
            reader.send(request)
        for _ in range(50):
            for reader in readers:
                reader.socket.recv(2000)
            yield
        for reader in readers:
            field.reset(reader)


@attack("10,000 new topics in every write, for a subscriber to all of them")
def new_topics(field: Field) -> Iterator[None]:
    batches = [
        b"".join(publish(f"new/{turn}/{number}", b"x") for number in range(10_000)) for turn in range(30)
    ]
    yield
    listener = field.client(small=True, username="mallory", password=PASSWORD)
    listener.send(subscribe(1, "new/#"))
    listener.expect(Type.SUBACK)
    stream = field.client()
    for batch in batches:
        stream.send(batch)
        field.drain(listener)
        yield
