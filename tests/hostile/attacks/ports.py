"""The other doors: TLS, WebSocket, HTTP, the links between members."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator

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
