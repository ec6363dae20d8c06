"""MQTT 5.0, 3.3 PUBLISH: flags, topic names, the properties that travel, expiry and topic aliases."""

import time

import pytest

from conformance.conftest import Place
from conformance.wire import P, Packet, R, Type, ack, packet, publish

KEPT = [(P.SESSION_EXPIRY, 60)]
PAST_EXPIRY_S = 1.3
MALFORMED_OR_PROTOCOL = (R.MALFORMED_PACKET, R.PROTOCOL_ERROR)

MOSQUITTO_DEVIATES = {
    "test_mqtt_3_3_1_2_dup_with_qos_0": "ignores DUP",
    "test_mqtt_3_3_2_14_wildcards_in_response_topic": "does not look at it",
    "test_mqtt_3_3_4_6_subscription_identifier_from_a_client": "accepts it",
    "test_mqtt_3_3_2_8_alias_zero": "calls it malformed",
}


# 3.3.1 Flags


def test_mqtt_3_3_1_2_dup_with_qos_0(place: Place) -> None:
    """DUP makes no sense at QoS 0."""
    place.expect_violation(publish(place.topic("a"), dup=True), *MALFORMED_OR_PROTOCOL)


def test_mqtt_3_3_1_3_dup_does_not_propagate(place: Place) -> None:
    """DUP of an incoming PUBLISH says nothing about the outgoing one."""
    subscriber, publisher = place.connect("sub"), place.connect("pub")
    subscriber.subscribe((place.topic("a"), 2))
    publisher.send(publish(place.topic("a"), b"1", qos=1, pid=1, dup=True))
    assert not subscriber.receive().dup
    publisher.expect(Type.PUBACK)
    publisher.send(publish(place.topic("a"), b"2", qos=2, pid=2, dup=True))
    publisher.expect(Type.PUBREC)
    publisher.send(ack(Type.PUBREL, 2))
    assert not subscriber.receive().dup


@pytest.mark.parametrize("flags", [0x36, 0x37, 0x3E])
def test_mqtt_3_3_1_4_qos_3(place: Place, flags: int) -> None:
    """Both QoS bits set is malformed."""
    data = packet(flags, publish("a", b"x", qos=1, pid=1)[2:])
    place.expect_violation(data, R.MALFORMED_PACKET)


# 3.3.2 Topic name


@pytest.mark.parametrize("name", ["#", "+", "a/#", "a/+/b", "a+", "a#"])
def test_mqtt_3_3_2_2_wildcards_in_topic_name(place: Place, name: str) -> None:
    """A topic name has no wildcard characters."""
    place.expect_violation(publish(name), R.TOPIC_NAME_INVALID, *MALFORMED_OR_PROTOCOL)


def test_mqtt_section_3_3_2_1_empty_topic_without_alias(place: Place) -> None:
    """A topic name of no characters stands for an alias; without one it is a protocol error."""
    place.expect_violation(publish(""), R.PROTOCOL_ERROR)


def test_mqtt_3_3_2_3_topic_name_is_the_published_one(place: Place) -> None:
    """Subscribers see the topic to which the message was published, not their filter."""
    client = place.connect("c")
    client.subscribe(place.topic("+/#"))
    client.publish(place.topic("x/y"), b"1")
    assert client.receive().topic == place.topic("x/y")


def test_mqtt_section_3_3_3_payload_may_be_empty(place: Place) -> None:
    """A message of no bytes is delivered."""
    client = place.connect("c")
    client.subscribe(place.topic("a"))
    client.publish(place.topic("a"))
    assert client.receive().payload == b""


@pytest.mark.parametrize("size", [127, 128, 16383, 16384, 100_000])
def test_mqtt_section_2_1_4_payload_sizes_around_length_bytes(place: Place, size: int) -> None:
    """Payloads on both sides of each length of the remaining length arrive whole."""
    client = place.connect("c")
    client.subscribe(place.topic("a"))
    payload = bytes(number % 251 for number in range(size))
    client.publish(place.topic("a"), payload)
    assert client.receive().payload == payload


# 3.3.2.3 Properties that travel

FORWARDED = {
    "3_3_2_4_payload_format_0": (P.PAYLOAD_FORMAT, 0),
    "3_3_2_4_payload_format_1": (P.PAYLOAD_FORMAT, 1),
    "3_3_2_15_response_topic": (P.RESPONSE_TOPIC, "reply/to/é"),
    "3_3_2_16_correlation_data": (P.CORRELATION_DATA, bytes(range(256))),
    "3_3_2_20_content_type": (P.CONTENT_TYPE, "application/json"),
}


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("pair", FORWARDED.values(), ids=FORWARDED.keys())
def test_mqtt_3_3_2_properties_are_forwarded(place: Place, pair: tuple[P, int], qos: int) -> None:
    """Each of these properties reaches every subscriber as it was published."""
    first, second, publisher = place.connect("a"), place.connect("b"), place.connect("pub")
    for subscriber in (first, second):
        subscriber.subscribe((place.topic("t"), qos))
    publisher.publish(place.topic("t"), b"x", qos=qos, props=[pair])
    for subscriber in (first, second):
        assert subscriber.receive().props == [pair]


def test_mqtt_3_3_2_18_user_properties_keep_their_order(place: Place) -> None:
    """User properties are forwarded, all of them, in order, repeats and empty ones included."""
    client = place.connect("c")
    client.subscribe(place.topic("a"))
    pairs = [("z", "1"), ("a", "2"), ("z", "1"), ("", ""), ("ключ", "値"), ("a", "0")]
    client.publish(place.topic("a"), props=[(P.USER, pair) for pair in pairs])
    assert client.receive().all(P.USER) == pairs


def test_mqtt_3_3_2_17_properties_are_retained_with_the_message(place: Place) -> None:
    """A retained message keeps its properties."""
    publisher = place.connect("pub")
    props = [(P.CONTENT_TYPE, "t"), (P.RESPONSE_TOPIC, "r"), (P.CORRELATION_DATA, b"c"), (P.USER, ("a", "b"))]
    publisher.publish(place.topic("a"), b"x", qos=1, retain=True, props=props)
    subscriber = place.connect("sub")
    subscriber.subscribe(place.topic("a"))
    message = subscriber.receive()
    assert [(key, message.prop(key)) for key, _ in props] == props


def test_mqtt_section_3_3_2_3_properties_are_kept_for_an_absent_client(place: Place) -> None:
    """A message that waits in a session keeps its properties."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 1))
    first.drop()
    props = [(P.PAYLOAD_FORMAT, 1), (P.CONTENT_TYPE, "t"), (P.USER, ("a", "b")), (P.USER, ("a", "c"))]
    place.connect("pub").publish(place.topic("a"), b"x", qos=1, props=props)
    message = place.connect("c", clean=False, props=KEPT).receive()
    assert sorted(message.props) == sorted(props)


def test_mqtt_section_3_3_2_3_no_properties_are_invented(place: Place) -> None:
    """A message without properties is delivered without properties."""
    client = place.connect("c")
    client.subscribe(place.topic("a"))
    client.publish(place.topic("a"), b"x")
    assert client.receive().props == []


@pytest.mark.parametrize("topic", ["r/#", "r/+"])
def test_mqtt_3_3_2_14_wildcards_in_response_topic(place: Place, topic: str) -> None:
    """A response topic is a topic name, so it has no wildcards."""
    data = publish(place.topic("a"), props=[(P.RESPONSE_TOPIC, topic)])
    place.expect_violation(data, R.TOPIC_NAME_INVALID, *MALFORMED_OR_PROTOCOL)


def test_mqtt_3_3_4_6_subscription_identifier_from_a_client(place: Place) -> None:
    """Only the server puts subscription identifiers into PUBLISH."""
    data = publish(place.topic("a"), props=[(P.SUBSCRIPTION_ID, 1)])
    place.expect_violation(data, *MALFORMED_OR_PROTOCOL)


# 3.3.2.3.3 Message expiry


def test_mqtt_3_3_2_6_expiry_is_forwarded(place: Place) -> None:
    """A message that did not wait is delivered with the interval that it came with."""
    client = place.connect("c")
    client.subscribe(place.topic("a"))
    client.publish(place.topic("a"), props=[(P.MESSAGE_EXPIRY, 100)])
    assert client.receive().number(P.MESSAGE_EXPIRY, 0) in (99, 100)


def test_mqtt_3_3_2_6_expiry_counts_the_time_waited(place: Place) -> None:
    """A message that waited, in a session or retained, is delivered with what is left of its interval."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 1))
    first.drop()
    expiry = [(P.MESSAGE_EXPIRY, 100)]
    place.connect("pub").publish(place.topic("a"), b"x", qos=1, retain=True, props=expiry)
    time.sleep(PAST_EXPIRY_S)
    waited = place.connect("c", clean=False, props=KEPT).receive()
    late = place.connect("late")
    late.subscribe(place.topic("a"))
    for message in (waited, late.receive()):
        assert message.number(P.MESSAGE_EXPIRY, 0) in (98, 99)


def test_mqtt_3_3_2_5_expired_message_is_not_delivered(place: Place) -> None:
    """A message whose interval passes before delivery begins is deleted, in sessions and where retained."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("+"), 1))
    first.drop()
    publisher = place.connect("pub")
    publisher.publish(place.topic("a"), b"stale", qos=1, retain=True, props=[(P.MESSAGE_EXPIRY, 1)])
    publisher.publish(place.topic("b"), b"fresh", qos=1)
    time.sleep(PAST_EXPIRY_S + 1)
    second = place.connect("c", clean=False, props=KEPT)
    assert second.receive().payload == b"fresh"
    second.expect_quiet()
    late = place.connect("late")
    late.subscribe(place.topic("a"))
    late.expect_quiet()


# 3.3.2.3.4 Topic aliases from the client


def alias_maximum(place: Place) -> int:
    connack = place.connect("asks").connack
    assert connack is not None
    maximum = connack.number(P.TOPIC_ALIAS_MAX, 0)
    if not maximum:
        pytest.skip("this server takes no topic aliases")
    return maximum


def test_mqtt_3_3_2_12_aliases_up_to_the_maximum(place: Place) -> None:
    """Every alias from 1 to the announced maximum works; an alias may be given another topic."""
    maximum = alias_maximum(place)
    client = place.connect("c")
    client.subscribe(place.topic("#"))
    for alias in (1, maximum):
        client.publish(place.topic(f"first{alias}"), b"set", props=[(P.TOPIC_ALIAS, alias)])
        client.publish("", b"used", props=[(P.TOPIC_ALIAS, alias)])
        client.publish(place.topic(f"second{alias}"), b"moved", props=[(P.TOPIC_ALIAS, alias)])
        client.publish("", b"used again", props=[(P.TOPIC_ALIAS, alias)])
        topics = [client.receive().topic for _ in range(4)]
        expected = [place.topic(f"{which}{alias}") for which in ("first", "first", "second", "second")]
        assert topics == expected


def test_mqtt_section_3_3_2_3_4_alias_is_not_forwarded(place: Place) -> None:
    """An alias belongs to one connection: the subscriber sees the topic."""
    alias_maximum(place)
    client = place.connect("c")
    client.subscribe(place.topic("a"))
    client.publish(place.topic("a"), props=[(P.TOPIC_ALIAS, 1)])
    message = client.receive()
    assert (message.topic, message.prop(P.TOPIC_ALIAS)) == (place.topic("a"), None)


def test_mqtt_3_3_2_8_alias_zero(place: Place) -> None:
    """Alias 0 is not allowed."""
    place.expect_violation(publish(place.topic("a"), props=[(P.TOPIC_ALIAS, 0)]), R.TOPIC_ALIAS_INVALID)


def test_mqtt_3_3_2_9_alias_above_the_maximum(place: Place) -> None:
    """An alias above the announced maximum is not allowed."""
    connack = place.connect("asks").connack
    assert connack is not None
    maximum = connack.number(P.TOPIC_ALIAS_MAX, 0)
    if maximum == 65535:
        pytest.skip("this server takes every topic alias")
    data = publish(place.topic("a"), props=[(P.TOPIC_ALIAS, maximum + 1)])
    place.expect_violation(data, R.TOPIC_ALIAS_INVALID)


def test_mqtt_section_3_3_2_3_4_alias_without_a_topic_yet(place: Place) -> None:
    """An alias that stands for nothing yet, with an empty topic, is a protocol error."""
    alias_maximum(place)
    place.expect_violation(publish("", props=[(P.TOPIC_ALIAS, 1)]), R.PROTOCOL_ERROR)


def test_mqtt_3_3_2_7_aliases_end_with_the_connection(place: Place) -> None:
    """A resumed session does not know the aliases of its earlier connection."""
    alias_maximum(place)
    first = place.connect("c", props=KEPT)
    first.publish(place.topic("a"), qos=1, props=[(P.TOPIC_ALIAS, 1)])
    first.drop()
    second = place.connect("c", clean=False, props=KEPT)
    second.send(publish("", props=[(P.TOPIC_ALIAS, 1)]))
    second.expect_disconnect(R.PROTOCOL_ERROR)


# 3.3.2.3.4 Topic aliases to the client


def resolve(message: Packet, known: dict[int, str]) -> str:
    """The topic of a message that may name it by an alias, as a client reads it."""
    alias = message.number(P.TOPIC_ALIAS, 0)
    if alias and message.topic:
        known[alias] = message.topic
    return message.topic or known[alias]


def test_mqtt_3_1_2_27_no_alias_unless_the_client_allows(place: Place) -> None:
    """A client that announced no Topic Alias Maximum, or zero, is sent no alias."""
    for props in ([], [(P.TOPIC_ALIAS_MAX, 0)]):
        client = place.connect("c", props=props)
        client.subscribe(place.topic("a"))
        for _ in range(3):
            client.publish(place.topic("a"))
            message = client.receive()
            assert (message.topic, message.prop(P.TOPIC_ALIAS)) == (place.topic("a"), None)


def test_mqtt_3_1_2_26_aliases_to_the_client_stay_in_its_limit(place: Place) -> None:
    """A server may use aliases up to the client's maximum; each stands for the topic last given with it."""
    client = place.connect("c", props=[(P.TOPIC_ALIAS_MAX, 2)])
    client.subscribe(place.topic("#"))
    topics = [place.topic(name) for name in ("a", "b", "a", "c", "d", "c", "b", "a", "d")]
    known: dict[int, str] = {}
    for topic in topics:
        client.publish(topic)
        message = client.receive()
        assert message.number(P.TOPIC_ALIAS, 0) <= 2
        assert resolve(message, known) == topic


def test_mqtt_3_3_2_7_redelivery_does_not_use_aliases_of_the_past(place: Place) -> None:
    """What is sent again on a new connection names its topic anew, whatever alias it had before."""
    props = [(P.SESSION_EXPIRY, 60), (P.TOPIC_ALIAS_MAX, 5)]
    first = place.connect("c", props=props)
    first.subscribe((place.topic("+"), 1))
    publisher = place.connect("pub")
    names = ["a", "a", "b", "a"]
    for name in names:
        publisher.publish(place.topic(name), name.encode(), qos=1)
        first.receive(auto_ack=False)
    first.drop()
    second = place.connect("c", clean=False, props=props)
    known: dict[int, str] = {}
    assert [resolve(second.receive(), known) for _ in names] == [place.topic(name) for name in names]


def test_mqtt_3_3_2_7_a_session_may_be_resumed_without_aliases(place: Place) -> None:
    """A client that allowed aliases before and does not now is sent whole topics."""
    kept = (P.SESSION_EXPIRY, 60)
    first = place.connect("c", props=[kept, (P.TOPIC_ALIAS_MAX, 5)])
    first.subscribe((place.topic("a"), 1))
    publisher = place.connect("pub")
    for _ in range(2):
        publisher.publish(place.topic("a"), b"x", qos=1)
        first.receive(auto_ack=False)
    first.drop()
    second = place.connect("c", clean=False, props=[kept])
    for _ in range(2):
        message = second.receive()
        assert (message.topic, message.prop(P.TOPIC_ALIAS)) == (place.topic("a"), None)


@pytest.mark.parametrize("qos", [0, 1])
def test_mqtt_3_1_2_25_an_alias_is_not_defined_by_a_packet_never_sent(place: Place, qos: int) -> None:
    """A message that is too large to send does not introduce an alias that later messages rely on."""
    client = place.connect("c", props=[(P.TOPIC_ALIAS_MAX, 5), (P.MAX_PACKET_SIZE, 100)])
    client.subscribe((place.topic("a"), qos))
    publisher = place.connect("pub")
    known: dict[int, str] = {}
    for payload in (b"L" * 200, b"1", b"L" * 200, b"2"):
        publisher.publish(place.topic("a"), payload, qos=qos)
    for expected in (b"1", b"2"):
        message = client.receive()
        assert (resolve(message, known), message.payload) == (place.topic("a"), expected)


def test_mqtt_section_3_3_2_3_8_many_user_properties(place: Place) -> None:
    """There is no small limit on user properties; their length then takes several bytes."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 1))
    pairs = [(f"name{number}", "v" * number) for number in range(200)]
    client.publish(place.topic("a"), b"x", qos=1, props=[(P.USER, pair) for pair in pairs])
    assert client.receive().all(P.USER) == pairs


def test_mqtt_section_3_3_2_3_properties_in_any_order(place: Place) -> None:
    """The order of different properties in a packet has no meaning."""
    client = place.connect("c")
    client.subscribe(place.topic("a"))
    props = [(P.USER, ("a", "1")), (P.CORRELATION_DATA, b"c"), (P.CONTENT_TYPE, "t")]
    props += [(P.USER, ("a", "2")), (P.PAYLOAD_FORMAT, 0), (P.RESPONSE_TOPIC, "r")]
    client.publish(place.topic("a"), props=props)
    message = client.receive()
    assert message.all(P.USER) == [("a", "1"), ("a", "2")]
    for identifier in (P.CORRELATION_DATA, P.CONTENT_TYPE, P.PAYLOAD_FORMAT, P.RESPONSE_TOPIC):
        assert message.prop(identifier) == dict(props)[identifier]
