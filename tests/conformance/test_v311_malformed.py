"""MQTT 3.1.1, sections 1.5.3, 2.2, 3.12, 3.14 and 4.8: what is not MQTT ends its connection, and only that.

In 3.1.1 a server has no DISCONNECT to send: the close is the whole answer.
"""

import pytest

from conformance import wire
from conformance.wire import PINGREQ, V3, Type, Will

FLAGS = "test_mqtt_2_2_2_2_reserved_flags_close"
FROM_SERVERS = "test_mqtt_4_8_0_1_packets_that_no_client_sends_close"
LENGTHS = "test_mqtt_4_8_0_1_lengths_that_disagree_close"
MOSQUITTO_DEVIATES = {
    **dict.fromkeys(
        [f"{FLAGS}[{byte}-]" for byte in ("0x41", "0x52", "0x74", "0xc1", "0xcf")], "ignores them"
    ),
    **dict.fromkeys(
        [f"{FROM_SERVERS}[{kind}]" for kind in ("suback", "unsuback", "pingresp")], "ignores them"
    ),
    **dict.fromkeys([f"{LENGTHS}[{packet}]" for packet in ("4003000100", "c00100")], "ignores the tail"),
}

ILL_FORMED = {
    "lone-continuation": b"a\x80",
    "overlong-slash": b"a\xc0\xaf",
    "overlong-nul": b"a\xc0\x80",
    "surrogate": b"a\xed\xa0\x80",
    "truncated": b"a\xe2\x82",
    "above-10ffff": b"a\xf4\x90\x80\x80",
    "byte-ff": b"a\xff",
}
PLACES = {
    "publish": lambda text: wire.publish(text, b"x", v=V3),
    "publish-qos-1": lambda text: wire.publish(text, b"x", v=V3, qos=1, pid=1),
    "subscribe": lambda text: wire.subscribe(1, text, v=V3),
    "subscribe-second": lambda text: wire.subscribe(1, "fine", text, v=V3),
    "unsubscribe": lambda text: wire.unsubscribe(1, text, v=V3),
}
CONNECT_PLACES = {
    "client-id": lambda text: wire.connect(text, v=V3),
    "will-topic": lambda text: wire.connect("utf8", v=V3, will=Will(text)),
    "user-name": lambda text: wire.connect("utf8", v=V3, username=text),
}


@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED)
@pytest.mark.parametrize("build", PLACES.values(), ids=PLACES)
def test_mqtt_1_5_3_1_ill_formed_utf_8_closes(place, build, text):
    """In every string of every packet."""
    peer = place.connect("peer", V3)
    peer.send(build(text))
    peer.expect_closed()


@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED)
@pytest.mark.parametrize("build", CONNECT_PLACES.values(), ids=CONNECT_PLACES)
def test_mqtt_1_5_3_1_ill_formed_utf_8_in_connect_closes(place, build, text):
    """Without CONNACK (also 3.1.3-4, 3.1.3-10, 3.1.3-11, 3.1.4-1)."""
    peer = place.peer(V3)
    peer.send(build(text))
    peer.expect_closed()


@pytest.mark.parametrize("build", PLACES.values(), ids=PLACES)
def test_mqtt_1_5_3_2_nul_closes(place, build):
    """U+0000 is no character of a string (also 4.7.3-2)."""
    peer = place.connect("peer", V3)
    peer.send(build(b"a\x00b"))
    peer.expect_closed()


@pytest.mark.parametrize("build", CONNECT_PLACES.values(), ids=CONNECT_PLACES)
def test_mqtt_1_5_3_2_nul_in_connect_closes(place, build):
    """Nor in the strings of a CONNECT."""
    peer = place.peer(V3)
    peer.send(build(b"a\x00b"))
    peer.expect_closed()


@pytest.mark.parametrize(
    ("first_byte", "body"),
    [
        (0x41, wire.u16(1)),
        (0x52, wire.u16(1)),
        (0x60, wire.u16(1)),
        (0x74, wire.u16(1)),
        (0x80, wire.u16(1) + wire.binary("a") + b"\x00"),
        (0xA0, wire.u16(1) + wire.binary("a")),
        (0xC1, b""),
        (0xCF, b""),
        (0xE1, b""),
        (0xE8, b""),
    ],
    ids=lambda value: f"{value:#04x}" if isinstance(value, int) else "",
)
def test_mqtt_2_2_2_2_reserved_flags_close(place, first_byte, body):
    """Each type has its four flag bits, and no others (DISCONNECT: 3.14.1-1)."""
    peer = place.connect("peer", V3)
    peer.send(wire.packet(first_byte, body))
    peer.expect_closed()


def test_mqtt_2_2_2_2_reserved_flags_of_connect_close(place):
    """0x11 is no CONNECT."""
    peer = place.peer(V3)
    peer.send(b"\x11" + wire.connect(place.client_id("flags"), v=V3)[1:])
    peer.expect_closed()


@pytest.mark.parametrize(
    "packet",
    [
        wire.packet(0x00),
        wire.packet(0xF0),
        wire.packet(0x20, b"\x00\x00"),
        wire.packet(0x90, wire.u16(1) + b"\x00"),
        wire.packet(0xB0, wire.u16(1)),
        wire.packet(0xD0),
    ],
    ids=["type-0", "type-15", "connack", "suback", "unsuback", "pingresp"],
)
def test_mqtt_4_8_0_1_packets_that_no_client_sends_close(place, packet):
    """Reserved types, and types that only a server sends."""
    peer = place.connect("peer", V3)
    peer.send(packet)
    peer.expect_closed()


@pytest.mark.parametrize(
    "packet",
    [
        wire.packet(0x30),
        wire.packet(0x30, b"\x00"),
        wire.packet(0x30, b"\x00\x05abc"),
        wire.packet(0x32, wire.binary("a")),
        wire.packet(0x32, wire.binary("a") + b"\x00"),
        wire.packet(0x40),
        wire.packet(0x40, b"\x01"),
        wire.packet(0x40, wire.u16(1) + b"\x00"),
        wire.packet(0x62, b"\x01"),
        wire.packet(0x82, b"\x01"),
        wire.packet(0x82, wire.u16(1) + b"\x00\x09a\x00"),
        wire.packet(0xA2, wire.u16(1) + b"\x00\x09a"),
        wire.packet(0xC0, b"\x00"),
        wire.packet(0xE0, b"\x00"),
    ],
    ids=lambda packet: packet.hex(),
)
def test_mqtt_4_8_0_1_lengths_that_disagree_close(place, packet):
    """Fields that end after the packet, or before it."""
    peer = place.connect("peer", V3)
    peer.send(packet)
    peer.expect_closed()


def test_mqtt_2_2_3_remaining_length_of_five_bytes_closes(place):
    """Section 2.2.3: four bytes at most."""
    peer = place.connect("peer", V3)
    peer.send(b"\x30\xff\xff\xff\xff\x01")
    peer.expect_closed()


@pytest.mark.parametrize("length", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_mqtt_2_2_3_remaining_lengths_of_one_to_four_bytes(place, length):
    """Section 2.2.3: on both sides of each step, in and out."""
    topic = place.topic("len")
    payload = b"x" * max(0, length - 2 - len(topic))
    subscriber = place.connect("sub", V3)
    subscriber.subscribe(topic)
    place.connect("pub", V3).publish(topic, payload)
    assert subscriber.receive().payload == payload


def test_mqtt_3_12_4_1_pingresp_answers_pingreq(place):
    """One for each, two bytes long."""
    peer = place.connect("peer", V3)
    peer.send(PINGREQ, PINGREQ, PINGREQ)
    assert [peer.expect(Type.PINGRESP).raw for _ in range(3)] == [b"\xd0\x00"] * 3


def test_mqtt_3_14_4_disconnect_closes(place):
    """Section 3.14.4: the server closes if the client does not."""
    peer = place.connect("peer", V3)
    peer.send(wire.disconnect())
    peer.expect_closed()


def test_mqtt_4_8_packets_arrive_however_tcp_cuts_them(place):
    """Section 4.2: a stream has no packet boundaries; one byte at a time is as good as all at once."""
    topic = place.topic("cut")
    peer = place.peer(V3)
    stream = wire.connect(place.client_id("cut"), v=V3)
    stream += wire.subscribe(1, topic, v=V3) + wire.publish(topic, b"whole", v=V3)
    for byte in stream:
        peer.send(bytes([byte]))
    peer.expect(Type.CONNACK)
    peer.expect(Type.SUBACK)
    assert peer.receive().payload == b"whole"


def test_mqtt_4_8_0_1_a_violation_is_not_another_clients_problem(place):
    """Beside the offender, everybody's connection and session go on."""
    bystander = place.connect("bystander", V3)
    bystander.subscribe(place.topic("a"))
    offender = place.connect("offender", V3)
    offender.send(wire.publish(place.topic("a"), b"before", v=V3), wire.packet(0xF0))
    offender.expect_closed()
    assert bystander.receive().payload == b"before"
    bystander.expect_quiet()
