"""The other doors: TLS, WebSocket, HTTP, the links between members."""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from conformance.wire import connect
from hostile.attacker import Field
from hostile.attacks import attack
from hostile.field import Where
from hostile.wires import PASSWORD, Stream
from support.websockets import BINARY, PING, frame, request


def upgraded(field: Field) -> Stream:
    stream = field.raw(field.place.ws)
    hello = connect(f"ws-{id(stream)}", username="mallory", password=PASSWORD, keep_alive=0)
    stream.send(request() + frame(BINARY, hello))
    stream.socket.recv(4096)
    return stream


@attack("MQTT in WebSocket frames of one byte, on ten connections", Where.GUARDED)
def frames_of_a_byte(field: Field) -> Iterator[None]:
    packet = b"\x30\x07\0\x03h/w\0x"
    data = b"".join(frame(BINARY, bytes([byte])) for byte in packet) * 400
    yield
    yield from field.flood([upgraded(field) for _ in range(10)], data)


@attack("WebSocket Pings, and frames with nothing in them, on ten connections", Where.GUARDED)
def empty_frames(field: Field) -> Iterator[None]:
    data = (frame(BINARY, b"") * 50 + frame(PING, b"x")) * 100
    yield
    yield from field.flood([upgraded(field) for _ in range(10)], data)


@attack("1,500 WebSocket requests that are never finished", Where.GUARDED)
def half_upgrades(field: Field) -> Iterator[None]:
    half = request()[:-2]
    yield
    while True:
        streams = []
        for number in range(1500):
            streams.append(field.raw(field.place.ws))
            streams[-1].send(half)
            if number % 50 == 0:
                yield
        for stream in streams:
            field.drop(stream)


@attack("TLS greetings that end when the broker has signed", Where.GUARDED)
def half_handshakes(field: Field) -> Iterator[None]:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        hello = outgoing.read()
    yield
    while True:
        streams = [field.raw(field.place.mqtts) for _ in range(100)]
        for stream in streams:
            stream.send(hello)
        yield
        for stream in streams:
            field.drop(stream)


@attack("MQTT in TLS records of one byte, on ten connections", Where.GUARDED)
def records_of_a_byte(field: Field) -> Iterator[None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    packet = b"\x30\x07\0\x03h/w\0x"
    hello = connect("", username="mallory", password=PASSWORD, keep_alive=0)
    yield
    wrapped = []
    for _ in range(10):
        stream = field.raw(field.place.mqtts)
        stream.socket = context.wrap_socket(stream.socket)
        stream.send(hello)
        field.let_in(stream)
        wrapped.append(stream)
    while True:
        for stream in wrapped:
            for byte in packet * 20:
                stream.send(bytes([byte]))
        yield


@attack(
    "strangers at the ports between members: junk, greetings that never end, and lengths that promise much",
    Where.PAIR,
)
def strangers_between_members(field: Field) -> Iterator[None]:
    words = (b"", b"\0\0\0\x10", b"\xff\xff\xff\xff", bytes(5000), connect("s"), b"GET / HTTP/1.1\r\n\r\n")
    yield
    while True:
        for port in field.place.peers:
            for number in range(100):
                field.raw(port).send(words[number % len(words)])
        yield
        field.end()


@attack(
    "connections to the port for members that are closed at once, as fast as they can be made", Where.PAIR
)
def strangers_that_come_and_go(field: Field) -> Iterator[None]:
    yield
    while True:
        for _ in range(50):
            field.drop(field.raw(field.place.peers[0]))
        yield


@attack(
    "500 connections to the port for members that say nothing, each replaced when it is 500 old", Where.PAIR
)
def strangers_that_stay(field: Field) -> Iterator[None]:
    yield
    held: deque[Stream] = deque()
    while True:
        for _ in range(50):
            held.append(field.raw(field.place.peers[0]))
            if len(held) > 500:
                field.drop(held.popleft())
        yield


def said_by_each(field: Field, said: bytes) -> Iterator[None]:
    """On one connection after the other, of which a hundred are open."""
    held: deque[Stream] = deque()
    while True:
        for _ in range(50):
            held.append(field.raw(field.place.peers[0]))
            with suppress(OSError):
                held[-1].send(said)
            if len(held) > 100:
                field.drop(held.popleft())
        yield


@attack("junk at the port for members, on one connection after the other", Where.PAIR)
def strangers_with_junk(field: Field) -> Iterator[None]:
    yield
    yield from said_by_each(field, b"GET / HTTP/1.1\r\n\r\n" * 50)


@attack("half a greeting at the port for members, on one connection after the other", Where.PAIR)
def strangers_that_half_greet(field: Field) -> Iterator[None]:
    yield
    yield from said_by_each(field, b"\0\0\0\x80\1\x81\xa4type\xa5hello")


@attack(
    "the largest frame that a stranger may send to a member, on one connection after the other", Where.PAIR
)
def strangers_with_large_frames(field: Field) -> Iterator[None]:
    yield
    yield from said_by_each(field, b"\0\0\x10\0\1" + bytes(4095))


@attack(
    "frames that only members send, and bytes that finish none, without end, on 64 connections", Where.PAIR
)
def strangers_that_talk(field: Field) -> Iterator[None]:
    discards = b"\0\0\0\x09\3" + bytes(8)
    yield
    while True:
        streams = [field.raw(field.place.peers[0]) for _ in range(64)]
        for number, stream in enumerate(streams):
            with suppress(OSError):
                stream.send(discards * 2000 if number % 2 else b"\0\0\x0f\0\1")
        for _ in range(100):
            for stream in streams[::2]:
                with suppress(OSError):
                    stream.send(b"x")
            yield
        for stream in streams:
            field.drop(stream)


@attack("requests to the HTTP port that arrive a byte at a time")
def requests_by_the_byte(field: Field) -> Iterator[None]:
    asked = b"GET /status HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 1000
    yield
    while True:
        streams = [field.raw(field.place.http[0]) for _ in range(60)]
        for byte in asked[:50]:
            for stream in streams:
                stream.send(bytes([byte]))
            yield
        for stream in streams:
            field.drop(stream)


@attack("64 half requests to the HTTP port")
def half_requests(field: Field) -> Iterator[None]:
    yield
    while True:
        for _ in range(64):
            field.raw(field.place.http[0]).send(b"GET /health/live HTTP/1.1\r\n")
        time.sleep(1.0)
        field.end()
        yield


@attack("questions for /status and /metrics whose answers nobody takes")
def answers_unread(field: Field) -> Iterator[None]:
    yield
    while True:
        for path in (b"/status", b"/metrics") * 50:
            stream = field.raw(field.place.http[0], small=True)
            stream.send(b"GET " + path + b" HTTP/1.1\r\n\r\n")
        yield
        field.end()


@attack("connections to the HTTP port, as fast as they can be made")
def http_storm(field: Field) -> Iterator[None]:
    yield
    while True:
        for _ in range(50):
            field.drop(field.raw(field.place.http[0]))
        yield
