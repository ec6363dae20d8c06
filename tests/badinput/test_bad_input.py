"""Bytes that are not MQTT, or not quite: the sender is told and closed, the canary never notices."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from badinput.siege import mosquitto_deviates
from conformance import wire
from conformance.wire import PINGREQ, V3, V5, P, Type, Will

MALFORMED, PROTOCOL_ERROR, TOO_LARGE = 0x81, 0x82, 0x95
ALIAS_INVALID, FILTER_INVALID, TOPIC_INVALID = 0x94, 0x8F, 0x90
LONGEST = 65_535
PACKET_BYTES_MAX = 20_000
SLOW_S_MAX = 10.0

VERSIONS = pytest.mark.parametrize("v", [V3, V5], ids=["3.1.1", "5"])

# Examples share one siege: the broker must outlive them all, which is the point.
fuzz = settings(
    max_examples=100,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def valid_stream(v, name="stream"):
    """A whole visit: CONNECT, SUBSCRIBE, one message at each QoS, UNSUBSCRIBE, PINGREQ, DISCONNECT."""
    topic = f"{name}/topic"
    return [
        wire.connect(name, v=v, will=Will(topic, b"gone", qos=1), username="user", password=b"pass"),
        wire.subscribe(1, (topic, 2), v=v),
        wire.publish(topic, b"zero", v=v),
        wire.publish(topic, b"one", v=v, qos=1, pid=2),
        wire.publish(topic, b"two", v=v, qos=2, pid=3),
        wire.ack(Type.PUBREL, 3),
        wire.unsubscribe(4, topic, v=v),
        PINGREQ,
        wire.disconnect(),
    ]


# Any bytes


@fuzz
@given(data=st.binary(min_size=1, max_size=400))
def test_any_bytes_to_the_port(siege, data):
    attacker = siege.attacker()
    attacker.send(data)
    attacker.finish()
    attacker.rest()


@fuzz
@given(v=st.sampled_from([V3, V5]), first_byte=st.integers(0, 255), body=st.binary(max_size=200))
def test_any_packet_from_a_client(siege, v, first_byte, body):
    """With an honest length, it is either done or the reason for an orderly end."""
    attacker = siege.intruder(v)
    attacker.send(wire.packet(first_byte, body))
    answers = attacker.until_pong()
    goodbye = first_byte == 0xE0
    if not goodbye and (not answers or answers[-1].type is not Type.PINGRESP):
        assert v == V3 or not attacker.says_why or answers[-1].reason >= 0x80


@fuzz
@given(
    v=st.sampled_from([V3, V5]), damage=st.dictionaries(st.integers(0, 200), st.integers(0, 255), max_size=5)
)
def test_a_valid_visit_with_a_few_bytes_changed(siege, v, damage):
    stream = bytearray(b"".join(valid_stream(v, siege.name)))
    for at, byte in damage.items():
        stream[at % len(stream)] = byte
    attacker = siege.attacker(v)
    attacker.send(bytes(stream))
    attacker.finish()
    attacker.rest()


@pytest.mark.parametrize(
    "text",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\r\n" * 40],
    ids=["http", "tls", "returns"],
)
def test_another_protocol(siege, text):
    """A browser, a TLS client, somebody at a keyboard."""
    attacker = siege.attacker()
    attacker.send(text)
    attacker.finish()
    attacker.rest()


@VERSIONS
def test_half_packets_then_gone(siege, v):
    """A visit cut after every single byte."""
    stream = b"".join(valid_stream(v, siege.name))
    for cut in range(1, len(stream)):
        attacker = siege.attacker(v)
        attacker.send(stream[:cut])
        attacker.drop()
    siege.check()


# Lengths


@pytest.mark.parametrize("tail", [b"", b"\x00" * 100], ids=["alone", "with-a-body"])
@VERSIONS
def test_remaining_length_of_five_bytes(siege, v, tail):
    attacker = siege.intruder(v)
    attacker.send(b"\x30\x80\x80\x80\x80\x01" + tail)
    attacker.expect_expelled(MALFORMED, TOO_LARGE)


@VERSIONS
def test_remaining_length_of_five_bytes_in_connect(siege, v):
    attacker = siege.attacker(v)
    attacker.send(b"\x10\xff\xff\xff\xff\x7f")
    attacker.fate()


@VERSIONS
def test_a_packet_that_only_claims_to_be_huge_is_refused_at_its_header(besiege, v):
    """Nobody waits for 256 MiB that the limit forbids anyway."""
    siege = besiege(
        f"packet_bytes_max = {PACKET_BYTES_MAX}", mosquitto_conf=f"max_packet_size {PACKET_BYTES_MAX}"
    )
    attacker = siege.intruder(v)
    attacker.send(b"\x30\xff\xff\xff\x7f\x00\x01a")
    attacker.expect_expelled(TOO_LARGE)


@pytest.mark.parametrize(
    "over", [-1, 0, pytest.param(1, marks=mosquitto_deviates("does not count the fixed header"))]
)
@VERSIONS
def test_a_packet_at_the_size_limit(besiege, v, over):
    """The limit counts the whole packet, its fixed header too; one byte more is too large."""
    siege = besiege(
        f"packet_bytes_max = {PACKET_BYTES_MAX}", mosquitto_conf=f"max_packet_size {PACKET_BYTES_MAX}"
    )
    topic = siege.topic("limit")
    reader = siege.intruder(v, "reader")
    reader.subscribe(topic)
    writer = siege.intruder(v, "writer")
    overhead = len(wire.publish(topic, b"x" * PACKET_BYTES_MAX, v=v)) - PACKET_BYTES_MAX
    packet = wire.publish(topic, b"x" * (PACKET_BYTES_MAX + over - overhead), v=v)
    assert len(packet) == PACKET_BYTES_MAX + over
    writer.send(packet)
    if over <= 0:
        assert len(reader.receive().raw) == len(packet)
    else:
        writer.expect_expelled(TOO_LARGE)
        reader.expect_quiet()


@pytest.mark.parametrize("length", [126, 127, 128, 16_382, 16_383, 16_384, 2_097_150, 2_097_151, 2_097_152])
@VERSIONS
def test_a_packet_at_each_size_of_its_length_field(siege, v, length):
    """Where one, two and three bytes of remaining length end."""
    topic = siege.topic("length")
    reader = siege.intruder(v, "reader")
    reader.subscribe(topic)
    payload = b"x" * (length - len(wire.publish(topic, b"", v=v)) + 2)
    siege.intruder(v, "writer").publish(topic, payload)
    assert reader.receive().payload == payload


@pytest.mark.parametrize("qos", [0, 1])
@VERSIONS
def test_a_topic_of_65535_bytes_is_a_topic(siege, v, qos):
    name = siege.topic("x" * (LONGEST - len(siege.topic(""))))
    client = siege.intruder(v)
    assert client.subscribe((name, qos)).reasons == [qos]
    client.publish(name, b"far", qos=qos)
    assert client.receive().topic == name


@VERSIONS
def test_strings_longer_than_their_packet(siege, v):
    """Lengths inside the packet that point past its end."""
    properties = b"\x00" if v == V5 else b""
    for packet in (
        wire.packet(0x30, b"\xff\xff" + b"a" * 10),
        wire.packet(0x82, wire.u16(1) + properties + b"\xff\xff" + b"a" * 10),
        wire.packet(0xA2, wire.u16(1) + properties + b"\x00\x0b" + b"a" * 10),
    ):
        attacker = siege.intruder(v)
        attacker.send(packet)
        attacker.expect_expelled(MALFORMED)


# Text

BAD_TEXT = {"surrogate": b"a\xed\xa0\x80", "overlong": b"a\xc0\xaf", "cut": b"a\xe2\x82", "nul": b"a\x00b"}
BAD_PROPERTIES = {
    "user-name": (P.USER, (b"%s", b"value")),
    "user-value": (P.USER, (b"name", b"%s")),
    "content-type": (P.CONTENT_TYPE, b"%s"),
    "response-topic": (P.RESPONSE_TOPIC, b"%s"),
}


def bad_property(name, text):
    identifier, value = BAD_PROPERTIES[name]
    fill = (
        tuple(part.replace(b"%s", text) for part in value)
        if isinstance(value, tuple)
        else value.replace(b"%s", text)
    )
    return [(identifier, fill)]


TEXT_PLACES = {
    "publish-topic": lambda v, text: wire.publish(text, b"x", v=v),
    "subscribe-filter": lambda v, text: wire.subscribe(1, text, v=v),
    "shared-filter": lambda v, text: wire.subscribe(1, b"$share/group/" + text, v=v),
    "unsubscribe-filter": lambda v, text: wire.unsubscribe(1, text, v=v),
}
CONNECT_TEXT_PLACES = {
    "client-id": lambda v, text: wire.connect(text, v=v),
    "user-name": lambda v, text: wire.connect("text", v=v, username=text),
    "will-topic": lambda v, text: wire.connect("text", v=v, will=Will(text)),
}


@pytest.mark.parametrize("text", BAD_TEXT.values(), ids=BAD_TEXT)
@pytest.mark.parametrize("build", TEXT_PLACES.values(), ids=TEXT_PLACES)
@VERSIONS
def test_invalid_text_from_a_client(siege, v, build, text):
    attacker = siege.intruder(v)
    attacker.send(build(v, text))
    attacker.expect_expelled(MALFORMED, PROTOCOL_ERROR, FILTER_INVALID, TOPIC_INVALID)


@pytest.mark.parametrize("text", BAD_TEXT.values(), ids=BAD_TEXT)
@pytest.mark.parametrize("build", CONNECT_TEXT_PLACES.values(), ids=CONNECT_TEXT_PLACES)
@VERSIONS
def test_invalid_text_in_connect(siege, v, build, text):
    attacker = siege.attacker(v)
    attacker.send(build(v, text))
    attacker.expect_expelled()


@pytest.mark.parametrize("text", BAD_TEXT.values(), ids=BAD_TEXT)
@pytest.mark.parametrize("name", BAD_PROPERTIES)
def test_invalid_text_in_properties(siege, name, text):
    """In messages, and in wills."""
    props = bad_property(name, text)
    attacker = siege.intruder()
    attacker.send(wire.publish(siege.topic("props"), b"x", props=props))
    attacker.expect_expelled(MALFORMED, PROTOCOL_ERROR, TOPIC_INVALID)
    stranger = siege.attacker()
    stranger.send(wire.connect("props", will=Will(siege.topic("props"), props=props)))
    stranger.expect_expelled()


@pytest.mark.parametrize(
    "build",
    [
        lambda props: wire.subscribe(1, "a", props=props),
        lambda props: wire.unsubscribe(1, "a", props=props),
        lambda props: wire.ack(Type.PUBACK, 1, 0, props),
        lambda props: wire.disconnect(0, props),
    ],
    ids=["subscribe", "unsubscribe", "puback", "disconnect"],
)
def test_invalid_text_in_user_properties_of_other_packets(siege, build):
    attacker = siege.intruder()
    attacker.send(build([(P.USER, (b"name", b"\xff"))]))
    attacker.expect_expelled(MALFORMED, PROTOCOL_ERROR)


# Properties


@pytest.mark.parametrize(
    "props",
    [
        b"\x7f\x00",
        b"\x00",
        b"\x26\x00\x01a",
        pytest.param(b"\x01\x02", marks=mosquitto_deviates("lets it pass")),
        bytes([P.MESSAGE_EXPIRY]) + b"\x00\x00\x00",
        bytes([P.CONTENT_TYPE]) + b"\x00\x01a" + bytes([P.CONTENT_TYPE]) + b"\x00\x01a",
        bytes([P.SESSION_EXPIRY]) + b"\x00\x00\x00\x01",
        pytest.param(bytes([P.SUBSCRIPTION_ID]) + b"\x01", marks=mosquitto_deviates("lets it pass")),
        b"\x80\x80\x80\x80\x01",
    ],
    ids=[
        "unknown",
        "zero",
        "half-pair",
        "bad-value",
        "short",
        "twice",
        "out-of-place",
        "server-only",
        "five-bytes",
    ],
)
def test_bad_properties_of_a_message(siege, props):
    attacker = siege.intruder()
    attacker.send(wire.publish(siege.topic("props"), b"x", props=props))
    attacker.expect_expelled(MALFORMED, PROTOCOL_ERROR, 0x99)


def test_a_property_length_past_the_end(siege):
    attacker = siege.intruder()
    attacker.send(wire.packet(0x30, wire.binary(siege.topic("props")) + b"\xff\xff\xff\x7f"))
    attacker.expect_expelled(MALFORMED, PROTOCOL_ERROR)


def test_thousands_of_user_properties_travel(siege):
    """A megabyte of them is a message like any other."""
    topic = siege.topic("props")
    reader = siege.intruder(name="reader")
    reader.subscribe((topic, 1))
    pairs = [(P.USER, (f"name{n}", "v" * 40)) for n in range(20_000)]
    siege.intruder(name="writer").publish(topic, b"x", qos=1, props=pairs)
    assert reader.receive(SLOW_S_MAX).all(P.USER) == [value for _, value in pairs]


# Topic aliases


@pytest.mark.parametrize(
    ("topic", "alias", "sensible"),
    [
        pytest.param("a", 0, {ALIAS_INVALID, PROTOCOL_ERROR}, marks=mosquitto_deviates("says malformed")),
        ("a", 65_535, {ALIAS_INVALID}),
        ("", 1, {PROTOCOL_ERROR, ALIAS_INVALID}),
    ],
    ids=["zero", "above-the-maximum", "never-set"],
)
def test_an_alias_that_cannot_be(siege, topic, alias, sensible):
    attacker = siege.intruder()
    attacker.send(wire.publish(topic, b"x", props=[(P.TOPIC_ALIAS, alias)]))
    attacker.expect_expelled(*sensible)


def test_an_alias_set_again_and_again(siege):
    """The last topic counts, and ten thousand settings cost nothing that stays."""
    attacker = siege.intruder()
    if not attacker.connack.number(P.TOPIC_ALIAS_MAX, 0):
        pytest.skip("this broker offers no topic aliases")
    names = [siege.topic(f"alias/{n}") for n in range(10_000)]
    attacker.subscribe((names[-1], 1))
    attacker.send(*[wire.publish(name, b"", props=[(P.TOPIC_ALIAS, 1)]) for name in names])
    attacker.send(wire.publish("", b"by alias", qos=1, pid=9, props=[(P.TOPIC_ALIAS, 1)]))
    assert attacker.receive().payload == b""
    assert attacker.receive().payload == b"by alias"


def test_aliases_of_one_connection_mean_nothing_on_the_next(siege):
    first = siege.intruder()
    if not first.connack.number(P.TOPIC_ALIAS_MAX, 0):
        pytest.skip("this broker offers no topic aliases")
    first.publish(siege.topic("alias"), b"x", qos=1, props=[(P.TOPIC_ALIAS, 1)])
    first.send(wire.disconnect())
    second = siege.intruder()
    second.send(wire.publish("", b"x", props=[(P.TOPIC_ALIAS, 1)]))
    second.expect_expelled(PROTOCOL_ERROR, ALIAS_INVALID)
