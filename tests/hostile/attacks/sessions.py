"""Sessions: many that end in one instant, and those that keep what they were sent."""

from __future__ import annotations

import time
from collections.abc import Iterator

from conformance.wire import P, Type, Will, ack, connect, publish, subscribe
from hostile.attacker import Field
from hostile.attacks import attack
from hostile.field import Where
from hostile.wires import PASSWORD, Stream

FOREVER = [(P.SESSION_EXPIRY, 0xFFFFFFFF)]
AT_ONCE = 50


def come(field: Field, packets: list[bytes], answers: int = 1) -> Iterator[list[Stream]]:
    """A connection for each of them, some at a time."""
    for start in range(0, len(packets), AT_ONCE):
        some = packets[start : start + AT_ONCE]
        streams = [field.raw() for _ in some]
        for stream, packet in zip(streams, some, strict=True):
            stream.send(packet)
        for stream in streams:
            field.let_in(stream)
            for _ in range(answers - 1):
                stream.expect(Type.SUBACK)
        yield streams


@attack("1,500 sessions with 20 filters each, that expire in one instant")
def sessions_end_at_once(field: Field) -> Iterator[None]:
    packets = [
        connect(f"e{number}", props=[(P.SESSION_EXPIRY, 1)])
        + subscribe(1, *[f"end/{number}/{each}/+" for each in range(20)])
        for number in range(1500)
    ]
    yield
    while True:
        came: list[Stream] = []
        for streams in come(field, packets, 2):
            came += streams
            yield
        for stream in came:
            field.drop(stream)
        time.sleep(1.2)
        yield


@attack("1,500 clients with a keep-alive of a second and a will, that fall silent together")
def keep_alives_end_at_once(field: Field) -> Iterator[None]:
    will = Will("silent/x", bytes(1000), qos=1)
    packets = [connect(f"k{number}", keep_alive=1, will=will) for number in range(1500)]
    yield
    while True:
        for _ in come(field, packets):
            yield
        time.sleep(1.6)
        field.end()
        yield


@attack("1,500 sessions whose wills of 10 KB are due in one instant, for 50 subscribers")
def wills_due_at_once(field: Field) -> Iterator[None]:
    will = Will("due/x", bytes(10_000), qos=1, props=[(P.WILL_DELAY, 1)])
    packets = [connect(f"w{number}", will=will, props=[(P.SESSION_EXPIRY, 60)]) for number in range(1500)]
    listens = [connect(f"l{number}") + subscribe(1, ("due/x", 1)) for number in range(50)]
    yield
    for _ in come(field, listens, 2):
        yield
    while True:
        for streams in come(field, packets):
            for stream in streams:
                field.reset(stream)
            yield
        time.sleep(1.0)
        yield


@attack("a session with 10,000 messages that it never acknowledges, and comes back for, again and again")
def sent_again_and_again(field: Field) -> Iterator[None]:
    hello = connect("again", clean=False, props=[*FOREVER, (P.RECEIVE_MAX, 65_535)])
    data = b"".join(publish("again/x", bytes(1000), qos=1, pid=number % 1000 + 1) for number in range(10_000))
    yield
    stream = field.raw()
    stream.send(hello + subscribe(1, ("again/x", 1)))
    stream.expect(Type.SUBACK)
    field.drop(stream)
    writer = field.client()
    for start in range(0, len(data), 100_000):
        writer.send(data[start : start + 100_000])
        field.drain(writer)
        yield
    while True:
        for _ in range(20):
            stream = field.raw()
            stream.send(hello)
            stream.expect(Type.PUBLISH)
            field.reset(stream)
        yield


@attack("session after session with 1,000 QoS 2 messages that are never released", stays=True)
def identifiers_of_many_sessions(field: Field) -> Iterator[None]:
    data = b"".join(publish("many/x", qos=2, pid=number + 1) for number in range(1000))
    number = 0
    yield
    while True:
        stream = field.raw()
        stream.send(connect(f"many{number}", clean=False, props=FOREVER))
        field.let_in(stream)
        stream.send(data)
        for _ in range(1000):
            stream.expect(Type.PUBREC)
        field.reset(stream)
        number += 1
        yield


@attack("sessions with 10,000 messages each, that are given up with CONNECT")
def queues_given_up(field: Field) -> Iterator[None]:
    keeps = [
        connect(f"up{number}", clean=False, props=FOREVER) + subscribe(1, ("up/x", 1)) for number in range(10)
    ]
    gives_up = [connect(f"up{number}") for number in range(10)]
    data = b"".join(publish("up/x", b"x", qos=1, pid=number % 1000 + 1) for number in range(10_000))
    yield
    writer = field.client()
    while True:
        for streams in come(field, keeps, 2):
            for stream in streams:
                field.reset(stream)
        for start in range(0, len(data), 10_000):
            writer.send(data[start : start + 10_000])
            field.drain(writer)
            yield
        for streams in come(field, gives_up):
            for stream in streams:
                field.drop(stream)
        yield


@attack("100 subscribers with a window of one message, that never acknowledge it")
def windows_of_one(field: Field) -> Iterator[None]:
    packets = [
        connect(f"one{number}", props=[(P.RECEIVE_MAX, 1)]) + subscribe(1, ("one/x", 1))
        for number in range(100)
    ]
    data = b"".join(publish("one/x", bytes(500), qos=1, pid=number + 1) for number in range(1000))
    yield
    for _ in come(field, packets, 2):
        yield
    yield from field.flood([field.client() for _ in range(4)], data)


@attack(
    "QoS 2 identifiers held for ever, on both sides: 1,000 that are never released, 1,000 never completed"
)
def identifiers_held(field: Field) -> Iterator[None]:
    sends = b"".join(publish("held/x", b"x", qos=2, pid=number) for number in range(1, 1001))
    takes = b"".join(ack(Type.PUBREC, number) for number in range(1, 1001))
    yield
    while True:
        listeners = [field.client() for _ in range(10)]
        for listener in listeners:
            listener.send(subscribe(1, ("held/x", 2)))
            listener.expect(Type.SUBACK)
        writer = field.client()
        writer.send(sends)
        for listener in listeners:
            listener.expect(Type.PUBLISH)
            listener.send(takes)
        yield
        for stream in (*listeners, writer):
            field.drop(stream)


@attack("one session with 6,800 filters of 60 KB, made again and again")
def long_filters(field: Field) -> Iterator[None]:
    packets = [subscribe(1, f"long/{number}/{'f' * 60_000}") for number in range(6800)]
    yield
    while True:
        stream = field.client()
        for packet in packets:
            stream.send(packet)
            stream.expect(Type.SUBACK)
            yield
        field.drop(stream)


def much_kept(field: Field, packets: list[bytes]) -> Iterator[None]:
    """Each a session that is left behind; who is refused tries the next."""
    for packet in packets:
        stream = field.raw()
        stream.send(packet)
        if not stream.expect(Type.CONNACK)[1][1]:
            stream.expect(Type.SUBACK)
        field.drop(stream)
        yield


def large(number: int, who: dict[str, object]) -> bytes:
    """A session with a will of 60 KB and 25 filters of 2 KB."""
    filters = [f"h/{number}/{each}/{'f' * 2000}" for each in range(25)]
    will = Will(topic="h/will", payload=bytes(60_000))
    return connect(f"large{number}", props=FOREVER, will=will, **who) + subscribe(1, *filters)  # type: ignore[arg-type]


@attack("3,000 sessions with a will of 60 KB and 25 filters of 2 KB, that nobody comes back to", stays=True)
def large_sessions(field: Field) -> Iterator[None]:
    packets = [large(number, {}) for number in range(3000)]
    yield
    yield from much_kept(field, packets)


@attack("such sessions, of a user with a password", Where.GUARDED, stays=True)
def large_sessions_of_a_user(field: Field) -> Iterator[None]:
    who = {"username": "mallory", "password": PASSWORD}
    packets = [large(number, who) for number in range(3000)]
    yield
    yield from much_kept(field, packets)
