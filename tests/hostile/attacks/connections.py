"""Connections: half ones, stolen ones, many, and those that only guess."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from conformance.wire import P, Type, connect
from hostile.attacker import Field
from hostile.attacks import attack
from hostile.field import Where
from hostile.others import USERS
from hostile.wires import PASSWORD

FOREVER = [(P.SESSION_EXPIRY, 0xFFFFFFFF)]
HALF_BYTES = 262_000


@attack("1,050 half CONNECTs of 262 KB by nobody, and smaller ones where these do not fit any more")
def half_connects(field: Field) -> Iterator[None]:
    half = connect("h", props=b"\x26\0\0\0\0" * 60_000)[:HALF_BYTES]
    yield
    for size, count in ((HALF_BYTES, 1050), (16_000, 50), (4000, 50)):
        for _ in range(count):
            with suppress(ConnectionError):
                field.raw().send(half[:size])
            yield


@attack("a wrong password, then a reset while it is checked, 20 times a second", Where.GUARDED)
def reset_while_checked(field: Field) -> Iterator[None]:
    yield
    while True:
        stream = field.raw()
        stream.send(connect("r", username="good", password=b"wrong"))
        time.sleep(0.005)
        field.reset(stream)
        time.sleep(0.045)
        yield


@attack("wrong passwords for another user, from the address of everybody", Where.GUARDED)
def wrong_passwords(field: Field) -> Iterator[None]:
    yield
    while True:
        streams = [field.raw() for _ in range(20)]
        for number, stream in enumerate(streams):
            stream.send(connect(f"w{number}", username="mallory", password=b"wrong"))
        time.sleep(0.2)
        for stream in streams:
            field.drop(stream)
        yield


@attack("sessions without end under the client identifiers of others", Where.GUARDED)
def foreign_identifiers(field: Field) -> Iterator[None]:
    yield
    for number in range(USERS):
        stream = field.client(f"u{number}-1", clean=False, props=FOREVER)
        field.drop(stream)
        yield


@attack("one client identifier, taken over by one connection after the other")
def takeover_storm(field: Field) -> Iterator[None]:
    hello = connect("taken", clean=False, props=FOREVER)
    yield
    while True:
        streams = [field.raw() for _ in range(50)]
        for stream in streams:
            stream.send(hello)
        field.let_in(streams[-1])
        for stream in streams:
            field.drop(stream)
        yield


@attack("clients that connect and leave, as fast as they can")
def connect_storm(field: Field) -> Iterator[None]:
    hellos = [connect(f"storm-{number}") for number in range(50)]
    yield
    while True:
        for hello in hellos:
            stream = field.raw()
            stream.send(hello)
            field.drop(stream)
        yield


@attack("3,000 clients with the longest keep-alive, that say nothing and never leave")
def huge_keep_alives(field: Field) -> Iterator[None]:
    hellos = [connect(f"idle-{number}", keep_alive=65_535) for number in range(3000)]
    yield
    for start in range(0, len(hellos), 50):
        streams = [field.raw() for _ in range(50)]
        for stream, hello in zip(streams, hellos[start : start + 50], strict=True):
            stream.send(hello)
        for stream in streams:
            field.let_in(stream)
        yield


@attack("50 connections that send one byte in every segment")
def tiny_segments(field: Field) -> Iterator[None]:
    packet = b"\x30\x0a\0\x06tiny/x\0x"
    yield
    streams = [field.client() for _ in range(50)]
    while True:
        for byte in packet:
            for stream in streams:
                stream.socket.send(bytes([byte]))
        yield


@attack("logins of users that do not exist, on 50 connections at once", Where.GUARDED)
def unknown_users(field: Field) -> Iterator[None]:
    hellos = [connect(f"n{number}", username=f"nobody-{number}", password=PASSWORD) for number in range(50)]
    yield
    while True:
        streams = [field.raw() for _ in hellos]
        for stream, hello in zip(streams, hellos, strict=True):
            stream.send(hello)
        streams[0].expect(Type.CONNACK)
        for stream in streams:
            field.drop(stream)
        yield
