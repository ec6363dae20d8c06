"""Packets that are few, and much work."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from conformance.wire import (
    P,
    Type,
    binary,
    connect,
    packet,
    properties,
    publish,
    subscribe,
    u16,
    unsubscribe,
)
from hostile.attacker import Field
from hostile.attacks import attack
from hostile.field import Where
from hostile.wires import PASSWORD, Stream

EMPTY_PROPERTY = b"\x26\0\0\0\0"
AUTH = (0xF0).to_bytes(1, "big") + b"\x02\x18\0"


@cache
def equal(count: int, name: str = "a") -> bytes:
    return packet(0x82, u16(1) + b"\0" + (binary(name) + b"\0") * count)


def answered(stream: Stream, request: bytes, kind: Type) -> None:
    stream.send(request)
    stream.expect(kind)


@attack("one SUBSCRIBE with 200,000 equal filters")
def equal_filters(field: Field) -> Iterator[None]:
    request = equal(200_000)
    yield
    while True:
        stream = field.client()
        answered(stream, request, Type.SUBACK)
        field.drop(stream)
        yield


@attack("one SUBSCRIBE with 2,600 filters and 6,000 user properties, 61 KB", Where.GUARDED)
def properties_for_each_filter(field: Field) -> Iterator[None]:
    props = b"\x26" + binary("a") + binary("b")
    filters = b"".join(binary(f"h/{number % 10}") + b"\0" for number in range(2600))
    request = packet(0x82, u16(1) + properties(props * 6000) + filters)
    assert len(request) < 65_536
    stream = None
    yield
    while True:
        stream = stream or field.client()
        answered(stream, request, Type.SUBACK)
        yield


@attack("one UNSUBSCRIBE with a million filters")
def unsubscribe_a_million(field: Field) -> Iterator[None]:
    request = packet(0xA2, u16(1) + b"\0" + binary("a") * 1_000_000)
    yield
    while True:
        stream = field.client()
        answered(stream, request, Type.UNSUBACK)
        field.drop(stream)
        yield


@attack("CONNECT with three million properties, 15 MB")
def connect_properties(field: Field) -> Iterator[None]:
    request = connect("c", props=EMPTY_PROPERTY * 3_000_000)
    yield
    while True:
        stream = field.raw()
        answered(stream, request, Type.CONNACK)
        field.drop(stream)
        yield


@attack("64 CONNECTs of 260 KB at once, before any password is checked", Where.GUARDED)
def connects_of_strangers(field: Field) -> Iterator[None]:
    request = connect("c", props=EMPTY_PROPERTY * 52_000, username="nobody", password=b"x")
    yield
    while True:
        streams = [field.raw() for _ in range(64)]
        for stream in streams:
            stream.send(request[:-1])
        for stream in streams:
            stream.send(request[-1:])
        for stream in streams:
            stream.expect(Type.CONNACK)
            field.drop(stream)
        yield


@attack("the SUBSCRIBE of 200,000 equal filters, at the primary of a pair", Where.PAIR)
def equal_filters_at_a_pair(field: Field) -> Iterator[None]:
    return equal_filters(field)


@attack("CONNECT with three million properties, at the primary of a pair", Where.PAIR)
def connect_properties_at_a_pair(field: Field) -> Iterator[None]:
    return connect_properties(field)


@attack("100,000 retained names, then 20 filters r/+/k that match none", stays=True)
def retained_that_never_match(field: Field) -> Iterator[None]:
    names = [publish(f"r/{number}/x", b"1", retain=True) for number in range(100_000)]
    batches = [b"".join(names[start : start + 1000]) for start in range(0, len(names), 1000)]
    request = subscribe(1, *["r/+/k"] * 20)
    yield
    stream = field.client()
    for batch in batches:
        stream.send(batch)
        yield
    while True:
        answered(stream, request, Type.SUBACK)
        yield


@attack("10,000 filters of 100 levels of a and +, then new topics that match many ways")
def deep_wildcards(field: Field) -> Iterator[None]:
    filters = []
    for number in range(10_000):
        chosen = (number * 2_654_435_761) & 0xFFFFFFFF
        filters.append(
            "/".join("+" if chosen >> (level % 32) & 1 else "a" for level in range(99)) + f"/{number}"
        )
    requests = [subscribe(1, *filters[start : start + 250]) for start in range(0, 10_000, 250)]
    yield
    stream = field.client()
    for request in requests:
        answered(stream, request, Type.SUBACK)
        yield
    for number in range(10_000):
        levels = ["a"] * 99
        levels[number % 99] = "b"
        stream.send(publish("/".join(levels) + f"/{number}", b"", qos=1, pid=1))
        stream.expect(Type.PUBACK)
        yield


@attack("100,000 filters, dropped at once with their sessions")
def filters_dropped(field: Field) -> Iterator[None]:
    requests = [
        subscribe(1, *[f"d/{number}/{each}/+" for each in range(start, start + 1000)])
        for number in range(10)
        for start in range(0, 10_000, 1000)
    ]
    yield
    while True:
        streams = [field.client() for _ in range(10)]
        for number, request in enumerate(requests):
            answered(streams[number // 10], request, Type.SUBACK)
            yield
        for stream in streams:
            field.drop(stream)
        yield


@attack("a million topics that the rules deny", Where.GUARDED)
def denied_topics(field: Field) -> Iterator[None]:
    many = [publish(f"denied/{number}", b"x") for number in range(1_000_000)]
    batches = [b"".join(many[start : start + 1000]) for start in range(0, len(many), 1000)]
    yield
    stream = field.client()
    for batch in batches:
        stream.send(batch)
        yield


@attack("many groups of shared subscriptions, joined and left without end")
def shared_churn(field: Field) -> Iterator[None]:
    names = [f"$share/g{number % 50}/churn/{number}/+" for number in range(400)]
    join, leave = subscribe(1, *names), unsubscribe(2, *names)
    yield
    streams = [field.client() for _ in range(8)]
    yield from field.flood(streams, join + leave)


@attack("5,000 overlapping filters, each with its own identifier, and messages for all of them")
def subscription_identifiers(field: Field) -> Iterator[None]:
    requests = []
    for number in range(1, 1001):
        name = "/".join("+" if number >> bit & 1 else "i" for bit in range(10))
        requests.append(subscribe(1, name, props=[(P.SUBSCRIPTION_ID, number)]))
    message = publish("/".join("i" * 10), b"x" * 10)
    yield
    streams = [field.client() for _ in range(5)]
    for stream in streams:
        for request in requests:
            answered(stream, request, Type.SUBACK)
        yield
    yield from field.flood(streams, message * 20)


@attack("AUTH packets that nobody asked for, on one connection after the other")
def auth_packets(field: Field) -> Iterator[None]:
    hello = connect("auth", username="mallory", password=PASSWORD) + AUTH * 100
    yield
    while True:
        for stream in [field.raw() for _ in range(20)]:
            stream.send(hello)
            field.drop(stream)
        yield
