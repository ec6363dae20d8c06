"""A WebSocket gives the same bytes however the stream was cut, and refuses what breaks RFC 6455."""

from __future__ import annotations

import base64
import hashlib
import random
import struct
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.upgrade import GUID, answer_upgrade, may_connect
from holdfast.runtime.websocket import REQUEST_BYTES_MAX, WebSocket
from support.websockets import BINARY, CLOSE, CONTINUATION, KEY, PING, PONG, TEXT, frame, request


def fresh() -> WebSocket:
    return WebSocket(partial(answer_upgrade, origins=(), secure=False))


def opened() -> WebSocket:
    websocket = fresh()
    assert websocket.feed(request()) == b""
    assert websocket.open
    websocket.take_replies()
    return websocket


def some_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


payloads = st.binary(max_size=300) | st.sampled_from([126, 65535, 65536, 70_000]).map(some_bytes)
keys = st.binary(min_size=4, max_size=4)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[bytes, bytes, int]:
    """Frames as a client may send them: what they say, and how many Pings are among them."""
    stream, said, pings = b"", b"", 0
    for _ in range(draw(st.integers(1, 5))):
        parts = draw(st.lists(payloads, min_size=1, max_size=3))
        for place, part in enumerate(parts):
            if draw(st.booleans()):
                stream += frame(PING, draw(st.binary(max_size=125)), key=draw(keys))
                pings += 1
            opcode = BINARY if place == 0 else CONTINUATION
            stream += frame(opcode, part, final=place == len(parts) - 1, key=draw(keys))
            said += part
    return stream, said, pings


@settings(deadline=None, max_examples=60)
@given(conversations(), st.data())
def test_any_cut_of_the_stream_gives_the_same_bytes(
    conversation: tuple[bytes, bytes, int], data: st.DataObject
) -> None:
    stream, said, pings = conversation
    whole = request() + stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    websocket = fresh()
    heard = b"".join(
        websocket.feed(whole[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)
    )
    assert heard == said
    assert websocket.fault is None
    replies = websocket.take_replies()
    assert replies.startswith(b"HTTP/1.1 101 ")
    assert replies.count(b"\r\n\r\n") >= 1
    at, pongs = replies.index(b"\r\n\r\n") + 4, 0
    while at < len(replies):
        assert replies[at] == 0x80 | PONG
        at += 2 + replies[at + 1]
        pongs += 1
    assert pongs == pings


def test_one_byte_at_a_time() -> None:
    websocket = fresh()
    stream = request() + frame(BINARY, b"one") + frame(PING, b"?") + frame(BINARY, b"two" * 100)
    assert b"".join(websocket.feed(bytes([each])) for each in stream) == b"one" + b"two" * 100


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_frames_or_a_fault(junk: bytes) -> None:
    websocket = opened()
    websocket.feed(junk)
    assert len(websocket.take_replies()) <= len(junk)


@pytest.mark.parametrize(
    ("bytes_", "code", "why"),
    [
        (frame(BINARY, b"x", key=None), 1002, "not masked"),
        (frame(TEXT, b"x"), 1003, "binary frames"),
        (frame(BINARY, b"x", bits=0x40), 1002, "reserved bit"),
        (frame(3, b"x"), 1002, "unknown opcode 3"),
        (frame(11, b"x"), 1002, "unknown opcode 11"),
        (frame(PING, b"x", final=False), 1002, "control frame"),
        (frame(PING, b"x" * 126), 1002, "control frame"),
        (frame(CONTINUATION, b"x"), 1002, "continuation"),
        (frame(BINARY, b"x", final=False) + frame(BINARY, b"x"), 1002, "continuation"),
        (frame(CLOSE, b"x"), 1002, "Close"),
        (frame(CLOSE, struct.pack("!H", 1005)), 1002, "Close"),
        (b"\x82\xfe\x00\x05" + b"\0\0\0\0", 1002, "more bytes than it needs"),
        (b"\x82\xff" + struct.pack("!Q", 65535) + b"\0\0\0\0", 1002, "more bytes than it needs"),
        (b"\x82\xff" + struct.pack("!Q", 1 << 31) + b"\0\0\0\0", 1009, "are the most"),
        (b"\x82\xff" + struct.pack("!Q", 1 << 63) + b"\0\0\0\0", 1009, "are the most"),
    ],
)
def test_what_breaks_the_protocol_is_a_fault(bytes_: bytes, code: int, why: str) -> None:
    websocket = opened()
    websocket.feed(bytes_)
    assert websocket.code == code
    assert why in (websocket.fault or "")
    assert websocket.feed(frame(BINARY, b"more")) == b"", "nothing after a fault is looked at"


def test_a_close_ends_it_with_what_was_said_before() -> None:
    websocket = opened()
    assert websocket.feed(frame(BINARY, b"last") + frame(CLOSE, struct.pack("!H", 1001)) + b"junk") == b"last"
    assert websocket.over
    assert websocket.code == 1001
    assert websocket.fault is None


def test_pings_of_a_peer_that_takes_no_pong_do_not_grow_without_bound() -> None:
    websocket = opened()
    for _ in range(10_000):
        websocket.feed(frame(PING, b"x" * 125))
    assert len(websocket.take_replies()) < 66_000


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_what_is_sent_is_one_binary_frame(size: int) -> None:
    payload = bytes(size)
    assert opened().frame(payload) == frame(BINARY, payload, key=None)


# -- the upgrade ---------------------------------------------------------------------------------------------


def test_the_answer_accepts_the_key_and_chooses_mqtt() -> None:
    websocket = fresh()
    websocket.feed(request())
    accept = base64.b64encode(hashlib.sha1(KEY.encode() + GUID).digest())
    answer = websocket.take_replies()
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"Sec-WebSocket-Accept: " + accept + b"\r\n" in answer
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in answer
    assert b"Extensions" not in answer


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request("POST /mqtt HTTP/1.1"), b"405"),
        (request("GET /mqtt HTTP/1.0"), b"400"),
        (b"\x10\x0c\x00\x04MQTT\x05\x02\r\n\r\n", b"400"),
        (request(Upgrade=None), b"426"),
        (request(Connection="close"), b"426"),
        (request(Sec_WebSocket_Version="8"), b"426"),
        (request(Sec_WebSocket_Key="c2hvcnQ="), b"400"),
        (request(Sec_WebSocket_Key="?"), b"400"),
        (request(Sec_WebSocket_Protocol="mqttv3.1"), b"400"),
        (request(Host=None), b"400"),
        (request(Origin="https://elsewhere.example"), b"403"),
        (b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", b"400"),
        (b"x" * (REQUEST_BYTES_MAX + 1), b"431"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * REQUEST_BYTES_MAX, b"431"),
    ],
)
def test_other_requests_are_refused(asked: bytes, status: bytes) -> None:
    websocket = fresh()
    assert websocket.feed(asked + frame(BINARY, b"not heard")) == b""
    assert not websocket.open
    assert websocket.fault
    assert websocket.take_replies().startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("origin", "host", "origins", "secure", "may"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:9001", (), False, True),
        ("http://localhost:8080", "localhost:9001", (), False, True),
        ("http://[::1]:8080", "[::1]:9001", (), False, True),
        ("http://plant.example", "plant.example:9001", (), False, False),  # a name that was made to lead here
        ("https://plant.example", "plant.example:9001", (), True, True),
        ("http://plant.example", "plant.example:9001", ("http://plant.example",), False, True),
        ("https://app.example", "plant.example", ("https://app.example",), True, True),
        ("https://app.example", "plant.example", (), True, False),
        ("https://app.example", "plant.example", ("*",), True, True),
        ("null", "127.0.0.1", (), False, False),
        ("http://[bad", "127.0.0.1", (), False, False),
    ],
)
def test_which_pages_may_connect(
    origin: str, host: str, origins: tuple[str, ...], secure: bool, may: bool
) -> None:
    assert may_connect(origin, host, origins, secure=secure) is may
