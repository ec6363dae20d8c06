"""What encode gives, decode accepts and gives back; what the wire cannot hold, encode refuses with words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packet_strategies import KINDS_AND_VERSIONS, PROPERTIES, STRATEGIES, any_packet

from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)


def decoded(data: bytes, version: int) -> Packet:
    frame = split(data)
    assert frame is not None
    first, start, end = frame
    assert end == len(data)
    return decode(first, data[start:end], version)


@pytest.mark.parametrize(
    ("kind", "version"), KINDS_AND_VERSIONS, ids=lambda each: getattr(each, "__name__", each)
)
@given(data=st.data())
def test_every_packet_comes_back(kind: type[Any], version: int, data: st.DataObject) -> None:
    packet = data.draw(STRATEGIES[kind](version))
    assert decoded(encode(packet, version), version) == packet


@given(any_packet())
def test_bytes_bytearray_and_memoryview_decode_alike(drawn: tuple[Packet, int]) -> None:
    packet, version = drawn
    data = encode(packet, version)
    frame = split(data)
    assert frame is not None
    first, start, end = frame
    whole = memoryview(bytearray(b"\xff" * 9 + data + b"\xff" * 9))
    assert decode(first, whole[9 + start : 9 + end], version) == packet
    assert decode(first, bytearray(data[start:end]), version) == packet


@pytest.mark.parametrize(
    ("packet", "version", "wire"),
    [
        (Publish("a", b"hi", 1, packet_id=10), 4, "32 07 00 01 61 00 0a 68 69"),
        (Publish("a", b"hi", 1, packet_id=10), 5, "32 08 00 01 61 00 0a 00 68 69"),
        (Publish("", b"", properties=Properties(topic_alias=3)), 5, "30 06 00 00 03 23 00 03"),
        (Puback(1), 5, "40 02 00 01"),
        (Puback(1, 0x10), 5, "40 03 00 01 10"),
        (Puback(1, 0, Properties(reason_string="x")), 5, "40 08 00 01 00 04 1f 00 01 78"),
        (Pubrel(1), 4, "62 02 00 01"),
        (Disconnect(), 5, "e0 00"),
        (Disconnect(4), 5, "e0 01 04"),
        (Auth(), 5, "f0 00"),
        (Connack(), 4, "20 02 00 00"),
        (Connack(), 5, "20 03 00 00 00"),
        (Connect("c", 4, True, 60), 4, "10 0d 00 04 4d 51 54 54 04 02 00 3c 00 01 63"),
        (Connect("c", 3, False, 0), 4, "10 0f 00 06 4d 51 49 73 64 70 03 00 00 00 00 01 63"),
        (Subscribe(2, [Subscription("a", 1)]), 4, "82 06 00 02 00 01 61 01"),
        (Subscribe(2, [Subscription("a", 2, True, True, 2)]), 5, "82 07 00 02 00 00 01 61 2e"),
        (Unsubscribe(2, ["a"]), 4, "a2 05 00 02 00 01 61"),
        (Unsuback(2, []), 4, "b0 02 00 02"),
    ],
)
def test_known_packets_are_these_bytes(packet: Packet, version: int, wire: str) -> None:
    assert encode(packet, version) == bytes.fromhex(wire)
    assert decoded(bytes.fromhex(wire), version) == packet


LONG_PROPERTIES = Properties(user=[("name", "x" * 9_000)] * 3)


@pytest.mark.parametrize("size", [0, 110, 120, 130, 16_000, 16_384, 2_097_150])
def test_lengths_of_every_width_come_back(size: int) -> None:
    assert decoded(encode(Publish("t", b"x" * size), 5), 5) == Publish("t", b"x" * size)
    pairs = Properties(user=[("", "x" * min(size, 60_000))])
    assert decoded(encode(Connack(properties=pairs), 5), 5) == Connack(properties=pairs)
    assert decoded(encode(Disconnect(0, LONG_PROPERTIES), 5), 5) == Disconnect(0, LONG_PROPERTIES)


def test_before_mqtt_5_properties_and_reasons_are_left_out() -> None:
    some = Properties(user=[("a", "b")])
    assert decoded(encode(Publish("t", b"x", properties=some), 4), 4) == Publish("t", b"x")
    assert decoded(encode(Puback(1, 0x10, some), 4), 4) == Puback(1)
    assert decoded(encode(Disconnect(0x8E, some), 4), 4) == Disconnect()
    assert decoded(encode(Unsuback(1, [0x11]), 4), 4) == Unsuback(1, [])
    assert decoded(encode(Suback(1, [2, 0x87, 0xA2]), 4), 4) == Suback(1, [2, 0x80, 0x80])
    assert decoded(encode(Connack(False, 0x86), 4), 4) == Connack(False, 4)


def test_a_default_is_never_shared() -> None:
    first, second = Publish("t"), Publish("t")
    first.properties.user.append(("a", "b"))
    first.properties.subscription_ids.append(1)
    assert second.properties == Properties()
    assert decoded(encode(second, 5), 5).properties == Properties()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("packet", "version", "words"),
    [
        (Publish("x" * 65_536), 5, "topic name has 65536 bytes"),
        (Publish("a/+"), 5, "no wildcard"),
        (Publish(""), 5, "at least one character"),
        (Publish("", properties=Properties(topic_alias=1)), 4, "at least one character"),
        (Publish("a\0b"), 5, "NUL"),
        (Publish("a\ud800"), 5, "surrogate"),
        (Publish("a", qos=3, packet_id=1), 5, "qos is 3"),
        (Publish("a", qos=1), 5, "packet id is 0"),
        (Publish("a", qos=1, packet_id=65_536), 5, "packet id is 65536"),
        (Publish("a", qos=1, packet_id=1 << 80), 5, "packet id is"),
        (Publish("a", packet_id=1), 5, "packet id of a Publish of qos 0"),
        (Publish("a", dup=True), 5, "dup"),
        (Puback(1, 0x92), 5, "0x92 is not a reason code"),
        (Puback(1, 256), 5, "reason is 256"),
        (Connect(version=6), 5, "version is 6"),
        (Connect(keep_alive=-1), 5, "keep alive is -1"),
        (Connect(version=4, password=b"x"), 4, "password comes without user name"),
        (Connect(password=b"x" * 65_536), 5, "password has 65536 bytes"),
        (Connect(will=Will("a/#")), 5, "no wildcard"),
        (Connect(will=Will("a", qos=3)), 5, "qos of the will is 3"),
        (Connect(properties=Properties(auth_data=b"x")), 5, "auth_data comes without auth_method"),
        (Connect(properties=Properties(receive_max=0)), 5, "receive_max is 0"),
        (Connack(True, 0x87), 5, "session is present"),
        (Connack(False, 0x8B), 5, "0x8B is not a reason code"),
        (Subscribe(1, []), 5, "at least one"),
        (Subscribe(1, [Subscription("a#")]), 5, "whole level"),
        (Subscribe(1, [Subscription("a", 3)]), 5, "qos of a subscription is 3"),
        (Subscribe(1, [Subscription("a", 0, False, False, 3)]), 5, "retain handling is 3"),
        (Subscribe(1, [Subscription("$share/g/a", 0, True)]), 5, "no local"),
        (Subscribe(1, [Subscription("a", 0, True)]), 4, "no option but qos"),
        (Subscribe(1, [Subscription("a")], Properties(subscription_ids=[1, 2])), 5, "expected one"),
        (Unsubscribe(1, []), 5, "at least one"),
        (Suback(1, []), 5, "no reason"),
        (Unsuback(1, []), 5, "no reason"),
        (Auth(0x18), 5, "no auth_method"),
        (Auth(), 4, "expected 5"),
    ],
)
def test_what_the_wire_cannot_hold_is_refused(packet: Packet, version: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encode(packet, version)


@pytest.mark.parametrize("version", [-1, 0, 2, 6])
def test_versions_that_do_not_exist_are_refused(version: int) -> None:
    with pytest.raises(ValueError, match="expected 3, 4 or 5"):
        encode(Publish("a"), version)
    with pytest.raises(ValueError, match="expected 3, 4 or 5"):
        decode(0xC0, b"", version)


def test_a_value_of_the_wrong_type_is_a_type_error() -> None:
    for packet in (Publish(b"a"), Publish("a", "text"), Publish("a", qos="1"), Connect(username=3), "packet"):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            encode(packet, 5)  # type: ignore[arg-type]


# One packet of each type that has properties, made with the properties it is given.
CARRIERS: dict[int, Any] = {
    0: lambda p: Connect(will=Will("t", properties=p)),
    1: lambda p: Connect(properties=p),
    2: lambda p: Connack(properties=p),
    3: lambda p: Publish("t", properties=p),
    4: lambda p: Puback(1, 0, p),
    5: lambda p: Pubrec(1, 0, p),
    6: lambda p: Pubrel(1, 0, p),
    7: lambda p: Pubcomp(1, 0, p),
    8: lambda p: Subscribe(1, [Subscription("a")], p),
    9: lambda p: Suback(1, [0], p),
    10: lambda p: Unsubscribe(1, ["a"], p),
    11: lambda p: Unsuback(1, [0], p),
    14: lambda p: Disconnect(0, p),
    15: lambda p: Auth(0, p),
}


ONE_OF_EACH = Properties(
    1, 2, "text", "topic", b"data", [5], 6, "id", 7, "method", b"auth", True, 8, False, "info", "server",
    "why", 9, 10, 11, 1, True, [("name", "value")], 12, False, True, False,
)  # fmt: skip


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("packet_type", CARRIERS)
def test_a_property_stands_only_where_the_specification_says(name: str, packet_type: int) -> None:
    where = PROPERTIES[name][2]
    properties = Properties(**{name: getattr(ONE_OF_EACH, name)})
    if packet_type == 15 or (name == "auth_data" and packet_type in where):
        properties.auth_method = "method"
    packet = CARRIERS[packet_type](properties)
    if packet_type in where:
        assert decoded(encode(packet, 5), 5) == packet
    else:
        with pytest.raises(ValueError, match=f"{name} is not a property of"):
            encode(packet, 5)
