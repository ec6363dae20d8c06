"""MQTT 5.0, chapters 1 and 2: data representation, fixed header, packet identifiers, properties."""

from collections.abc import Callable

import pytest

from conformance.conftest import Place
from conformance.wire import (
    P,
    R,
    Type,
    Will,
    ack,
    binary,
    connect,
    packet,
    publish,
    subscribe,
    u16,
    unsubscribe,
)

MALFORMED_OR_PROTOCOL = (R.MALFORMED_PACKET, R.PROTOCOL_ERROR)

ILL_FORMED = {
    "overlong": b"a\xc0\xafb",
    "surrogate": b"a\xed\xa0\x80b",
    "truncated": b"a\xe2\x82",
    "stray-continuation": b"\x80",
    "beyond-unicode": b"\xf4\x90\x80\x80",
    "latin-1": b"caf\xe9",
}

MOSQUITTO_DEVIATES = {
    "test_mqtt_2_1_3_1_reserved_flags": "does not look at them",
    "test_mqtt_section_2_1_2_packets_that_only_a_server_sends[suback]": "ignores it",
    "test_mqtt_section_2_1_2_packets_that_only_a_server_sends[unsuback]": "ignores it",
    "test_mqtt_section_2_1_2_packets_that_only_a_server_sends[pingresp]": "ignores it",
}


# 1.5.4 UTF-8 encoded strings


@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED.keys())
def test_mqtt_1_5_4_1_ill_formed_utf8_in_topic_name(place: Place, text: bytes) -> None:
    """A string that is not well-formed UTF-8, surrogates included, makes the packet malformed."""
    place.expect_violation(publish(text), R.MALFORMED_PACKET)


@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED.keys())
def test_mqtt_1_5_4_1_ill_formed_utf8_in_topic_filter(place: Place, text: bytes) -> None:
    """Well-formed UTF-8 is required of topic filters as well."""
    place.expect_violation(subscribe(1, text), R.MALFORMED_PACKET)


@pytest.mark.parametrize("identifier", [P.CONTENT_TYPE, P.RESPONSE_TOPIC])
def test_mqtt_1_5_4_1_ill_formed_utf8_in_string_property(place: Place, identifier: P) -> None:
    """Well-formed UTF-8 is required of string properties."""
    place.expect_violation(
        publish(place.topic("a"), props=[(identifier, ILL_FORMED["surrogate"])]), R.MALFORMED_PACKET
    )


def test_mqtt_1_5_4_1_ill_formed_utf8_in_client_id(place: Place) -> None:
    """A CONNECT with an ill-formed client identifier is refused."""
    place.expect_refusal(connect(b"\xff\xfe"), R.MALFORMED_PACKET, R.CLIENT_ID_NOT_VALID)


@pytest.mark.parametrize("build", [publish, lambda text: subscribe(1, text)], ids=["publish", "subscribe"])
def test_mqtt_1_5_4_2_null_character(place: Place, build: Callable[[bytes], bytes]) -> None:
    """U+0000 may not appear in a string."""
    place.expect_violation(build(b"a\0b"), R.MALFORMED_PACKET)


def test_mqtt_1_5_4_2_null_character_in_client_id(place: Place) -> None:
    """U+0000 may not appear in a client identifier either."""
    place.expect_refusal(connect(b"a\0b"), R.MALFORMED_PACKET, R.CLIENT_ID_NOT_VALID)


def test_mqtt_1_5_4_3_byte_order_mark_is_kept(place: Place) -> None:
    """The bytes EF BB BF are the character U+FEFF wherever they stand: neither dropped nor skipped."""
    client = place.connect("c")
    with_mark, without = place.topic("\ufeffa"), place.topic("a")
    client.subscribe(with_mark)
    client.publish(without, b"no")
    client.publish(with_mark, b"yes")
    message = client.receive()
    assert (message.topic, message.payload) == (with_mark, b"yes")


def test_mqtt_1_5_7_1_both_strings_of_a_user_property(place: Place) -> None:
    """Name and value of a user property are held to the rules for strings."""
    for pair in (binary(b"\xff") + binary(b"v"), binary(b"n") + binary(b"\xff")):
        raw = bytes([P.USER]) + pair
        place.expect_violation(publish(place.topic("a"), props=raw), R.MALFORMED_PACKET)


def test_mqtt_section_1_5_6_binary_data_may_hold_any_bytes(place: Place) -> None:
    """Binary data is not text: nulls and bytes that are not UTF-8 pass unchanged."""
    client = place.connect("c")
    client.subscribe(place.topic("a"))
    client.publish(place.topic("a"), b"\0\xff", props=[(P.CORRELATION_DATA, b"\0\xff\xfe")])
    message = client.receive()
    assert (message.payload, message.prop(P.CORRELATION_DATA)) == (b"\0\xff", b"\0\xff\xfe")


# 2.1 Fixed header


def test_mqtt_section_1_5_5_remaining_length_of_five_bytes(place: Place) -> None:
    """A variable byte integer has at most four bytes."""
    place.expect_violation(b"\x30\xff\xff\xff\xff\x01", R.MALFORMED_PACKET, R.PACKET_TOO_LARGE)


RESERVED_FLAGS = {
    "puback": packet(0x41, u16(1)),
    "pubrec": packet(0x51, u16(1)),
    "pubcomp": packet(0x71, u16(1)),
    "pingreq": packet(0xC1),
}


@pytest.mark.parametrize("data", RESERVED_FLAGS.values(), ids=RESERVED_FLAGS.keys())
def test_mqtt_2_1_3_1_reserved_flags(place: Place, data: bytes) -> None:
    """Reserved bits of the fixed header have the values listed; anything else is malformed."""
    place.expect_violation(data, R.MALFORMED_PACKET)


def test_mqtt_2_1_3_1_reserved_flags_of_connect(place: Place) -> None:
    """The flags in CONNECT's fixed header are zero."""
    place.expect_refusal(b"\x11" + connect(place.client_id("c"))[1:], R.MALFORMED_PACKET)


def test_mqtt_section_2_1_2_packet_type_zero_is_forbidden(place: Place) -> None:
    """Packet type 0 is reserved."""
    place.expect_violation(packet(0x00), *MALFORMED_OR_PROTOCOL)


FROM_SERVER_ONLY = {
    "connack": packet(0x20, b"\0\0\0"),
    "suback": packet(0x90, b"\0\1\0\0"),
    "unsuback": packet(0xB0, b"\0\1\0\0"),
    "pingresp": packet(0xD0),
}


@pytest.mark.parametrize("data", FROM_SERVER_ONLY.values(), ids=FROM_SERVER_ONLY.keys())
def test_mqtt_section_2_1_2_packets_that_only_a_server_sends(place: Place, data: bytes) -> None:
    """Packets of the direction server to client, coming from a client, are an error."""
    place.expect_violation(data, *MALFORMED_OR_PROTOCOL)


TRUNCATED = {
    "publish-topic-past-end": packet(0x30, b"\0\x09abc"),
    "publish-without-packet-id": packet(0x32, binary("a")),
    "publish-without-properties": packet(0x30, binary("a")),
    "puback-of-one-byte": packet(0x40, b"\1"),
    "subscribe-without-options": packet(0x82, b"\0\1\0" + binary("a")),
    "subscribe-filter-past-end": packet(0x82, b"\0\1\0" + b"\0\x09a\0"),
    "unsubscribe-filter-past-end": packet(0xA2, b"\0\1\0" + b"\0\x09a"),
    "property-length-past-end": packet(0x30, binary("a") + b"\x7f"),
    "property-cut-short": packet(0x30, binary("a") + b"\x02" + b"\x02\0"),
}


@pytest.mark.parametrize("data", TRUNCATED.values(), ids=TRUNCATED.keys())
def test_mqtt_section_4_13_1_fields_that_do_not_fit_the_packet(place: Place, data: bytes) -> None:
    """A field that runs past the end of its packet, or is missing, makes the packet malformed."""
    place.expect_violation(data, R.MALFORMED_PACKET)


# 2.2.1 Packet identifiers

WITHOUT_IDENTIFIER = {
    "publish-1": publish("a", qos=1, pid=0),
    "publish-2": publish("a", qos=2, pid=0),
    "subscribe": subscribe(0, "a"),
    "unsubscribe": unsubscribe(0, "a"),
}


@pytest.mark.parametrize("data", WITHOUT_IDENTIFIER.values(), ids=WITHOUT_IDENTIFIER.keys())
def test_mqtt_2_2_1_3_packet_identifier_zero(place: Place, data: bytes) -> None:
    """A packet that needs a packet identifier has one that is not zero."""
    place.expect_violation(data, *MALFORMED_OR_PROTOCOL)


def test_mqtt_2_2_1_4_server_assigns_unused_identifiers(place: Place) -> None:
    """While messages are unacknowledged, the server gives each a packet identifier of its own, never zero."""
    subscriber, publisher = place.connect("sub"), place.connect("pub")
    subscriber.subscribe((place.topic("a"), 2))
    for number in range(10):
        publisher.publish(place.topic("a"), qos=1 + number % 2)
    taken = [subscriber.receive(auto_ack=False).pid for _ in range(10)]
    assert len(set(taken)) == 10


def test_mqtt_2_2_1_5_acknowledgements_carry_the_identifier(place: Place) -> None:
    """PUBACK, PUBREC and PUBCOMP have the packet identifier of the PUBLISH, be it the largest."""
    client = place.connect("c")
    client.send(publish(place.topic("a"), qos=1, pid=65535))
    assert client.expect(Type.PUBACK).pid == 65535
    client.send(publish(place.topic("a"), qos=2, pid=65534))
    assert client.expect(Type.PUBREC).pid == 65534
    client.send(ack(Type.PUBREL, 65534))
    assert client.expect(Type.PUBCOMP).pid == 65534


def test_mqtt_2_2_1_6_suback_and_unsuback_carry_the_identifier(place: Place) -> None:
    """SUBACK and UNSUBACK have the packet identifier of what they answer."""
    client = place.connect("c")
    client.send(subscribe(40000, place.topic("a")))
    assert client.expect(Type.SUBACK).pid == 40000
    client.send(unsubscribe(1, place.topic("a")))
    assert client.expect(Type.UNSUBACK).pid == 1


def test_mqtt_section_2_2_1_identifiers_of_client_and_server_are_apart(place: Place) -> None:
    """Client and server number their packets independently: both may use the same identifier at once."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 1))
    client.publish(place.topic("a"), b"1", qos=1)
    mine = client.receive(auto_ack=False)
    assert mine.pid is not None
    client.send(publish(place.topic("b"), b"2", qos=1, pid=mine.pid))
    assert client.expect(Type.PUBACK).pid == mine.pid
    client.send(ack(Type.PUBACK, mine.pid))
    client.expect_quiet()


# 2.2.2 Properties

MISPLACED = {
    "unknown": b"\x7f\0",
    "server-keep-alive": bytes([P.SERVER_KEEP_ALIVE, 0, 1]),
    "will-delay": bytes([P.WILL_DELAY, 0, 0, 0, 1]),
    "maximum-qos": bytes([P.MAX_QOS, 1]),
    "reason-string": bytes([P.REASON_STRING]) + binary("why"),
}


@pytest.mark.parametrize("props", MISPLACED.values(), ids=MISPLACED.keys())
def test_mqtt_section_2_2_2_2_property_not_for_publish(place: Place, props: bytes) -> None:
    """A property that is unknown, or does not belong in this packet type, makes the packet malformed."""
    place.expect_violation(publish(place.topic("a"), props=props), R.MALFORMED_PACKET)


@pytest.mark.parametrize("build", [subscribe, unsubscribe])
def test_mqtt_section_2_2_2_2_property_not_for_subscribe(place: Place, build: Callable[..., bytes]) -> None:
    """A topic alias belongs in neither SUBSCRIBE nor UNSUBSCRIBE."""
    place.expect_violation(build(1, "a", props=[(P.TOPIC_ALIAS, 1)]), R.MALFORMED_PACKET)


def test_mqtt_section_2_2_2_2_property_not_for_connect(place: Place) -> None:
    """A topic alias does not belong in CONNECT."""
    data = connect(place.client_id("c"), props=[(P.TOPIC_ALIAS, 1)])
    place.expect_refusal(data, R.MALFORMED_PACKET)


def test_mqtt_section_2_2_2_2_property_not_for_a_will(place: Place) -> None:
    """A topic alias does not belong among the properties of a will."""
    will = Will(place.topic("w"), props=[(P.TOPIC_ALIAS, 1)])
    place.expect_refusal(connect(place.client_id("c"), will=will), R.MALFORMED_PACKET)


TWICE = {
    "payload-format": [(P.PAYLOAD_FORMAT, 1)] * 2,
    "message-expiry": [(P.MESSAGE_EXPIRY, 10)] * 2,
    "content-type": [(P.CONTENT_TYPE, "a")] * 2,
    "response-topic": [(P.RESPONSE_TOPIC, "a")] * 2,
    "correlation-data": [(P.CORRELATION_DATA, b"a")] * 2,
    "topic-alias": [(P.TOPIC_ALIAS, 1)] * 2,
}


@pytest.mark.parametrize("props", TWICE.values(), ids=TWICE.keys())
def test_mqtt_section_3_3_2_3_property_twice_in_publish(place: Place, props: list[tuple[P, int]]) -> None:
    """Only user properties may be repeated by a publisher."""
    place.expect_violation(publish(place.topic("a"), props=props), R.PROTOCOL_ERROR)
