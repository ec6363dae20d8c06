"""Every way to break a packet that the specifications name, and the reason code each is answered with."""

from __future__ import annotations

import pytest
from packet_strategies import PROPERTIES

from holdfast.errors import PeerError
from holdfast.mqtt.codec import decode

MALFORMED, PROTOCOL, VERSION, FILTER, NAME, ALIAS = 0x81, 0x82, 0x84, 0x8F, 0x90, 0x94


def s(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return len(data).to_bytes(2, "big") + data


def props(*parts: bytes) -> bytes:
    section = b"".join(parts)
    assert len(section) < 128
    return bytes([len(section)]) + section


def connect(
    flags: int = 2,
    rest: bytes = s("id"),
    *,
    name: str | bytes = "MQTT",
    level: int = 5,
    properties: bytes = b"\0",
) -> bytes:
    return s(name) + bytes([level, flags]) + b"\0\x3c" + (properties if level == 5 else b"") + rest


ID = b"\0\x01"
WILL = s("id") + b"\0" + s("t") + s("payload")

CONNECT_TABLE = [
    ("empty", b"", MALFORMED),
    ("protocol name cut", b"\0\x04MQ", MALFORMED),
    ("unknown protocol name", connect(name="MQTX"), VERSION),
    ("protocol name in lower case", connect(name="mqtt"), VERSION),
    ("protocol name not UTF-8", connect(name=b"\xff"), MALFORMED),
    ("level 6", connect(level=6), VERSION),
    ("MQTT level 3", connect(level=3), VERSION),
    ("MQIsdp level 4", connect(name="MQIsdp", level=4), VERSION),
    ("bridge bit in the level", connect(level=0x84), VERSION),
    ("reserved flag", connect(3), MALFORMED),
    ("will qos without will", connect(0x0A), MALFORMED),
    ("will retain without will", connect(0x22), MALFORMED),
    ("will qos 3", connect(0x1E, WILL), MALFORMED),
    ("will absent", connect(0x06), MALFORMED),
    ("will topic with wildcard", connect(6, s("id") + b"\0" + s("a/#") + s("")), NAME),
    ("will topic empty", connect(6, s("id") + b"\0" + s("") + s("")), NAME),
    ("will topic not UTF-8", connect(6, s("id") + b"\0" + s(b"\xc0\x80") + s("")), MALFORMED),
    ("will payload cut", connect(6, s("id") + b"\0" + s("a") + b"\0\x05abc"), MALFORMED),
    (
        "will property of CONNECT in will",
        connect(6, s("id") + props(b"\x21\0\1") + s("a") + s("")),
        MALFORMED,
    ),
    ("will delay in CONNECT", connect(properties=props(b"\x18\0\0\0\1")), MALFORMED),
    ("user name absent", connect(0x82), MALFORMED),
    ("user name with NUL", connect(0x82, s("id") + s("a\0")), MALFORMED),
    ("user name with surrogate", connect(0x82, s("id") + s(b"\xed\xa0\x80")), MALFORMED),
    ("password absent", connect(0x42), MALFORMED),
    ("password without user name in 3.1.1", connect(0x42, s("id") + s("pw"), level=4), MALFORMED),
    (
        "password without user name in 3.1",
        connect(0x42, s("id") + s("pw"), name="MQIsdp", level=3),
        MALFORMED,
    ),
    ("client id absent", connect(2, b""), MALFORMED),
    ("client id overlong", connect(2, s(b"\xc0\xaf")), MALFORMED),
    ("trailing byte", connect(2, s("id") + b"x"), MALFORMED),
    ("receive_max 0", connect(properties=props(b"\x21\0\0")), PROTOCOL),
    ("max_packet_size 0", connect(properties=props(b"\x27\0\0\0\0")), PROTOCOL),
    ("request_problem_info 2", connect(properties=props(b"\x17\2")), PROTOCOL),
    ("request_response_info 2", connect(properties=props(b"\x19\2")), PROTOCOL),
    ("session_expiry twice", connect(properties=props(b"\x11\0\0\0\1", b"\x11\0\0\0\1")), PROTOCOL),
    ("auth_data without auth_method", connect(properties=props(b"\x16" + s("x"))), PROTOCOL),
    ("unknown property", connect(properties=props(b"\x7f\0")), MALFORMED),
    ("property identifier 0", connect(properties=props(b"\0")), MALFORMED),
    ("property identifier of two bytes", connect(properties=props(b"\x80\1")), MALFORMED),
    ("property identifier overlong", connect(properties=props(b"\xa1\0\0\1")), MALFORMED),
    ("property length overlong", connect(properties=b"\x80\0"), MALFORMED),
    ("property length of five bytes", connect(properties=b"\xff\xff\xff\xff\1"), MALFORMED),
    ("property length past the end", connect(properties=b"\x50"), MALFORMED),
    ("property value past its section", connect(properties=b"\2\x21\0"), MALFORMED),
    ("user property without value", connect(properties=props(b"\x26" + s("a"))), MALFORMED),
    ("user property not UTF-8", connect(properties=props(b"\x26" + s(b"\xff") + s("a"))), MALFORMED),
]


@pytest.mark.parametrize(
    ("body", "reason"), [row[1:] for row in CONNECT_TABLE], ids=[r[0] for r in CONNECT_TABLE]
)
def test_a_broken_connect_is_refused(body: bytes, reason: int) -> None:
    refused(0x10, body, 5, reason)


TABLE = [
    # PUBLISH
    ("PUBLISH empty", 0x30, b"", 5, MALFORMED),
    ("PUBLISH qos 3", 0x36, s("a") + ID + b"\0", 5, MALFORMED),
    ("PUBLISH dup with qos 0", 0x38, s("a") + b"\0", 5, MALFORMED),
    ("PUBLISH packet id 0", 0x32, s("a") + b"\0\0\0", 5, PROTOCOL),
    ("PUBLISH packet id cut", 0x32, s("a") + b"\1", 4, MALFORMED),
    ("PUBLISH plus in topic", 0x30, s("a/+") + b"\0", 5, NAME),
    ("PUBLISH hash in topic", 0x30, s("a/#"), 4, NAME),
    ("PUBLISH wildcard inside a level", 0x30, s("a+b") + b"\0", 5, NAME),
    ("PUBLISH empty topic without alias", 0x30, s("") + b"\0", 5, PROTOCOL),
    ("PUBLISH empty topic in 3.1.1", 0x30, s(""), 4, NAME),
    ("PUBLISH topic with NUL", 0x30, s("a\0b") + b"\0", 5, MALFORMED),
    ("PUBLISH topic past the end", 0x30, b"\0\x09abc", 5, MALFORMED),
    ("PUBLISH without property length", 0x30, s("a"), 5, MALFORMED),
    ("PUBLISH topic alias 0", 0x30, s("a") + props(b"\x23\0\0"), 5, ALIAS),
    ("PUBLISH topic alias twice", 0x30, s("a") + props(b"\x23\0\1", b"\x23\0\1"), 5, PROTOCOL),
    ("PUBLISH payload format 2", 0x30, s("a") + props(b"\x01\2"), 5, PROTOCOL),
    ("PUBLISH subscription id 0", 0x30, s("a") + props(b"\x0b\0"), 5, PROTOCOL),
    ("PUBLISH subscription id overlong", 0x30, s("a") + props(b"\x0b\x81\0"), 5, MALFORMED),
    ("PUBLISH response topic with wildcard", 0x30, s("a") + props(b"\x08" + s("b/+")), 5, PROTOCOL),
    ("PUBLISH response topic empty", 0x30, s("a") + props(b"\x08" + s("")), 5, PROTOCOL),
    ("PUBLISH with property of CONNECT", 0x30, s("a") + props(b"\x21\0\1"), 5, MALFORMED),
    # acknowledgements
    ("PUBACK one byte", 0x40, b"\0", 5, MALFORMED),
    ("PUBACK packet id 0", 0x40, b"\0\0", 5, PROTOCOL),
    ("PUBACK three bytes in 3.1.1", 0x40, ID + b"\0", 4, MALFORMED),
    ("PUBACK reason of PUBREL", 0x40, ID + b"\x92", 5, PROTOCOL),
    ("PUBACK trailing byte", 0x40, ID + b"\0\0x", 5, MALFORMED),
    ("PUBACK properties cut", 0x40, ID + b"\0\x05\x1f", 5, MALFORMED),
    ("PUBACK reason string twice", 0x40, ID + b"\0" + props(b"\x1f" + s("a"), b"\x1f" + s("a")), 5, PROTOCOL),
    ("PUBREC unknown reason", 0x50, ID + b"\x01", 5, PROTOCOL),
    ("PUBREL reason of PUBACK", 0x62, ID + b"\x10", 5, PROTOCOL),
    ("PUBCOMP unknown reason", 0x70, ID + b"\xff", 5, PROTOCOL),
    # SUBSCRIBE
    ("SUBSCRIBE without filter", 0x82, ID + b"\0", 5, PROTOCOL),
    ("SUBSCRIBE without filter in 3.1.1", 0x82, ID, 4, PROTOCOL),
    ("SUBSCRIBE packet id 0", 0x82, b"\0\0\0" + s("a") + b"\0", 5, PROTOCOL),
    ("SUBSCRIBE without options", 0x82, ID + b"\0" + s("a"), 5, MALFORMED),
    ("SUBSCRIBE reserved bit", 0x82, ID + b"\0" + s("a") + b"\x40", 5, MALFORMED),
    ("SUBSCRIBE option of MQTT 5 in 3.1.1", 0x82, ID + s("a") + b"\x04", 4, MALFORMED),
    ("SUBSCRIBE qos 3", 0x82, ID + b"\0" + s("a") + b"\3", 5, PROTOCOL),
    ("SUBSCRIBE qos 3 in 3.1.1", 0x82, ID + s("a") + b"\3", 4, MALFORMED),
    ("SUBSCRIBE retain handling 3", 0x82, ID + b"\0" + s("a") + b"\x30", 5, PROTOCOL),
    ("SUBSCRIBE no local and shared", 0x82, ID + b"\0" + s("$share/g/a") + b"\4", 5, PROTOCOL),
    ("SUBSCRIBE empty filter", 0x82, ID + b"\0" + s("") + b"\0", 5, FILTER),
    ("SUBSCRIBE hash not last", 0x82, ID + b"\0" + s("a/#/b") + b"\0", 5, FILTER),
    ("SUBSCRIBE hash in a level", 0x82, ID + s("a#") + b"\0", 4, FILTER),
    ("SUBSCRIBE plus in a level", 0x82, ID + b"\0" + s("a/b+") + b"\0", 5, FILTER),
    ("SUBSCRIBE shared without filter", 0x82, ID + b"\0" + s("$share/g") + b"\0", 5, FILTER),
    ("SUBSCRIBE filter with NUL", 0x82, ID + b"\0" + s("a\0") + b"\0", 5, MALFORMED),
    ("SUBSCRIBE subscription id 0", 0x82, ID + props(b"\x0b\0") + s("a") + b"\0", 5, PROTOCOL),
    ("SUBSCRIBE subscription id twice", 0x82, ID + props(b"\x0b\1\x0b\2") + s("a") + b"\0", 5, PROTOCOL),
    ("SUBSCRIBE second filter broken", 0x82, ID + b"\0" + s("a") + b"\0" + s("b"), 5, MALFORMED),
    ("UNSUBSCRIBE without filter", 0xA2, ID + b"\0", 5, PROTOCOL),
    ("UNSUBSCRIBE packet id 0", 0xA2, b"\0\0" + s("a"), 4, PROTOCOL),
    ("UNSUBSCRIBE broken filter", 0xA2, ID + b"\0" + s("#/a"), 5, FILTER),
    ("UNSUBSCRIBE filter cut", 0xA2, ID + b"\0" + b"\0\5a", 5, MALFORMED),
    # what a server sends
    ("CONNACK reserved flag", 0x20, b"\2\0\0", 5, MALFORMED),
    ("CONNACK session present and refused", 0x20, b"\1\x87\0", 5, PROTOCOL),
    ("CONNACK session present and refused in 3.1.1", 0x20, b"\1\5", 4, PROTOCOL),
    ("CONNACK unknown reason", 0x20, b"\0\x8b\0", 5, PROTOCOL),
    ("CONNACK unknown return code", 0x20, b"\0\6", 4, PROTOCOL),
    ("CONNACK trailing byte", 0x20, b"\0\0\0", 4, MALFORMED),
    ("CONNACK without property length", 0x20, b"\0\0", 5, MALFORMED),
    ("CONNACK max_qos 2", 0x20, b"\0\0" + props(b"\x24\2"), 5, PROTOCOL),
    ("CONNACK retain_available 2", 0x20, b"\0\0" + props(b"\x25\2"), 5, PROTOCOL),
    ("SUBACK without reason", 0x90, ID + b"\0", 5, PROTOCOL),
    ("SUBACK unknown reason", 0x90, ID + b"\0\x11", 5, PROTOCOL),
    ("SUBACK reason of MQTT 5 in 3.1.1", 0x90, ID + b"\x87", 4, PROTOCOL),
    ("UNSUBACK without reason", 0xB0, ID + b"\0", 5, PROTOCOL),
    ("UNSUBACK with reason in 3.1.1", 0xB0, ID + b"\0", 4, MALFORMED),
    # the rest
    ("PINGREQ with body", 0xC0, b"\0", 5, MALFORMED),
    ("PINGRESP with body", 0xD0, b"\0", 4, MALFORMED),
    ("DISCONNECT with body in 3.1.1", 0xE0, b"\0", 4, MALFORMED),
    ("DISCONNECT unknown reason", 0xE0, b"\x05", 5, PROTOCOL),
    ("DISCONNECT trailing byte", 0xE0, b"\0\0\0", 5, MALFORMED),
    ("AUTH in 3.1.1", 0xF0, b"", 4, MALFORMED),
    ("AUTH reason only", 0xF0, b"\x18", 5, MALFORMED),
    ("AUTH without method", 0xF0, b"\x18\0", 5, PROTOCOL),
    ("AUTH unknown reason", 0xF0, b"\x01" + props(b"\x15" + s("m")), 5, PROTOCOL),
    ("packet type 0", 0x00, b"", 5, MALFORMED),
]


@pytest.mark.parametrize(
    ("first", "body", "version", "reason"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_a_broken_packet_is_refused(first: int, body: bytes, version: int, reason: int) -> None:
    refused(first, body, version, reason)


GOOD_BODIES = {
    1: connect(), 2: b"\0\0\0", 4: ID, 5: ID, 6: ID, 7: ID, 8: ID + b"\0" + s("a") + b"\0", 9: ID + b"\0\0",
    10: ID + b"\0" + s("a"), 11: ID + b"\0\0", 12: b"", 13: b"", 14: b"", 15: b"",
}  # fmt: skip


@pytest.mark.parametrize("kind", GOOD_BODIES)
def test_reserved_flags_of_the_header_are_what_the_specification_says(kind: int) -> None:
    expected = 2 if kind in (6, 8, 10) else 0
    for flags in range(16):
        if flags == expected:
            decode(kind << 4 | flags, GOOD_BODIES[kind], 5)
        else:
            refused(kind << 4 | flags, GOOD_BODIES[kind], 5, MALFORMED)


def test_mqtt_3_1_may_mark_a_resent_request() -> None:
    assert decode(0x8A, ID + s("a") + b"\0", 3) == decode(0x82, ID + s("a") + b"\0", 3)
    refused(0x8A, ID + s("a") + b"\0", 4, MALFORMED)


# One value of each property on the wire, by identifier.
VALUES = {
    0x01: b"\1", 0x02: b"\0\0\0\1", 0x03: s("x"), 0x08: s("x"), 0x09: s("x"), 0x0B: b"\1", 0x11: b"\0\0\0\1",
    0x12: s("x"), 0x13: b"\0\1", 0x15: s("x"), 0x16: s("x"), 0x17: b"\1", 0x18: b"\0\0\0\1", 0x19: b"\1",
    0x1A: s("x"), 0x1C: s("x"), 0x1F: s("x"), 0x21: b"\0\1", 0x22: b"\0\1", 0x23: b"\0\1", 0x24: b"\1",
    0x25: b"\1", 0x26: s("x") + s("y"), 0x27: b"\0\0\0\1", 0x28: b"\1", 0x29: b"\1", 0x2A: b"\1",
}  # fmt: skip
ACK = ID + b"\0"
HEADS = {
    1: (0x10, s("MQTT") + b"\5\2\0\0", s("id")), 2: (0x20, b"\0\0", b""), 3: (0x30, s("t"), b""),
    4: (0x40, ACK, b""), 5: (0x50, ACK, b""), 6: (0x62, ACK, b""), 7: (0x70, ACK, b""),
    8: (0x82, ID, s("a") + b"\0"), 9: (0x90, ID, b"\0"), 10: (0xA2, ID, s("a")), 11: (0xB0, ID, b"\0"),
    14: (0xE0, b"\0", b""), 15: (0xF0, b"\0", b""),
    0: (0x10, s("MQTT") + b"\5\6\0\0\0" + s("id"), s("t") + s("")),
}  # fmt: skip


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("kind", HEADS)
def test_a_property_is_accepted_once_and_only_where_it_belongs(kind: int, name: str) -> None:
    id, _, where = PROPERTIES[name]
    first, head, tail = HEADS[kind]
    method = b"\x15" + s("m")
    needs_method = (kind == 15 or name == "auth_data") and name != "auth_method" and kind in (1, 2, 15)
    one = bytes([id]) + VALUES[id]

    def body(*parts: bytes) -> bytes:
        return head + props(*([method] if needs_method else []), *parts) + tail

    if kind not in where:
        refused(first, body(one), 5, MALFORMED)
        return
    decode(first, body(one), 5)
    if name == "user" or (name == "subscription_ids" and kind == 3):
        decode(first, body(one, one), 5)
    else:
        refused(first, body(one, one), 5, PROTOCOL)


def refused(first: int, body: bytes, version: int, reason: int) -> None:
    with pytest.raises(PeerError) as caught:
        decode(first, body, version)
    assert caught.value.reason == reason, caught.value
