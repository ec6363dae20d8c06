"""One message that becomes many."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.wire import P, Type, connect, publish, subscribe, unsubscribe
from hostile.attacker import Field
from hostile.attacks import attack
from hostile.attacks.sessions import come


@attack("messages with 60 KB of user properties, for 200 subscribers that take little")
def properties_to_many(field: Field) -> Iterator[None]:
    packets = [connect(f"p{number}") + subscribe(1, ("many/x", 1)) for number in range(200)]
    message = publish("many/x", b"", props=[(P.USER, ("k", "v" * 250))] * 240)
    yield
    for _ in come(field, packets, 2):
        yield
    yield from field.flood([field.client() for _ in range(2)], message * 10)


@attack("20 clients publish as fast as they can to 100 that neither read nor acknowledge")
def to_many_who_do_not_read(field: Field) -> Iterator[None]:
    packets = [connect(f"n{number}") + subscribe(1, ("unread/#", 1)) for number in range(100)]
    yield
    for _ in come(field, packets, 2):
        yield
    yield from field.flood([field.client() for _ in range(20)], publish("unread/x", bytes(100)) * 1000)


@attack("5,000 shared groups on one topic for each of ten sessions, and messages to it")
def groups_on_one_topic(field: Field) -> Iterator[None]:
    requests = [
        subscribe(1, *[f"$share/g{number}-{each}/groups/x" for each in range(start, start + 500)])
        for number in range(10)
        for start in range(0, 5000, 500)
    ]
    message = publish("groups/x", b"x", qos=1, pid=1)
    yield
    streams = [field.client() for _ in range(10)]
    for number, request in enumerate(requests):
        streams[number // 10].send(request)
        streams[number // 10].expect(Type.SUBACK)
        yield
    writer = field.client()
    while True:
        writer.send(message)
        writer.expect(Type.PUBACK)
        for stream in streams:
            field.drain(stream)
        yield


@attack("the routes of a topic with 50,000 shared groups, looked up for each message")
def routes_again_and_again(field: Field) -> Iterator[None]:
    steps = groups_on_one_topic(field)
    change = unsubscribe(2, "groups/+") + subscribe(3, "groups/+")
    yield
    next(steps)
    for _ in range(100):
        next(steps)
        yield
    changer = field.client()
    while True:
        changer.send(change)
        changer.expect(Type.SUBACK)
        field.drain(changer)
        next(steps)
        yield


@attack("one shared group of 3,000 sessions, all but one of them away")
def group_of_the_absent(field: Field) -> Iterator[None]:
    packets = [
        connect(f"g{number}", clean=False, props=[(P.SESSION_EXPIRY, 600)])
        + subscribe(1, ("$share/g/absent/x", 1))
        for number in range(3000)
    ]
    data = b"".join(publish("absent/x", b"x" * 100, qos=1, pid=number + 1) for number in range(500))
    yield
    for streams in come(field, packets, 2):
        for stream in streams:
            field.reset(stream)
        yield
    yield from field.flood([field.client() for _ in range(4)], data)


@attack("300 clients that read all of $SYS, and ask for it again and again")
def readers_of_sys(field: Field) -> Iterator[None]:
    packets = [connect(f"s{number}") + subscribe(1, "$SYS/#") for number in range(300)]
    again = subscribe(2, "$SYS/#")
    yield
    came = []
    for streams in come(field, packets, 2):
        came += streams
        yield
    yield from field.flood(came, again * 20)
