"""MQTT 3.1.1, sections 3.8 to 3.11: SUBSCRIBE and UNSUBSCRIBE and their answers."""

import pytest

from conformance import wire
from conformance.wire import V3, Type

QOS = (0, 1, 2)


@pytest.fixture
def client(place):
    return place.connect("client", V3)


@pytest.fixture
def publisher(place):
    return place.connect("publisher", V3)


@pytest.mark.parametrize("first_byte", [0x80, 0x81, 0x83, 0x86, 0x8A, 0x8F])
def test_mqtt_3_8_1_1_subscribe_with_other_flags_closes(place, client, first_byte):
    """Its flags are 0010 and nothing else."""
    client.send(bytes([first_byte]) + wire.subscribe(1, place.topic("a"), v=V3)[1:])
    client.expect_closed()


def test_mqtt_3_8_3_3_subscribe_without_a_filter_closes(client):
    """An identifier alone asks for nothing."""
    client.send(wire.subscribe(1, v=V3))
    client.expect_closed()


@pytest.mark.parametrize("options", [0x03, 0x04, 0x08, 0x40, 0x80, 0xFF])
def test_mqtt_3_8_3_4_subscribe_with_reserved_bits_or_qos_3_closes(place, client, options):
    """In 3.1.1 six of the eight bits beside a filter are reserved, and 3 is no QoS."""
    client.send(wire.subscribe(1, (place.topic("a"), options), v=V3))
    client.expect_closed()


def test_mqtt_3_8_3_subscribe_that_ends_before_its_qos_closes(place, client):
    """Section 3.8.3: every filter is followed by a byte."""
    client.send(wire.packet(0x82, wire.u16(1) + wire.binary(place.topic("a"))))
    client.expect_closed()


@pytest.mark.parametrize("pid", [1, 2, 0x00FF, 0xFF00, 0xFFFF])
def test_mqtt_3_8_4_2_suback_has_the_identifier_of_its_subscribe(place, client, pid):
    """Byte order too."""
    client.send(wire.subscribe(pid, place.topic("a"), v=V3))
    assert client.expect(Type.SUBACK).pid == pid


def test_mqtt_3_8_4_1_suback_answers_subscribe(place, client):
    """Type, length, identifier, one return code."""
    client.send(wire.subscribe(9, (place.topic("a"), 1), v=V3))
    assert client.expect(Type.SUBACK).raw == bytes([0x90, 3, 0, 9, 1])


def test_mqtt_3_8_4_3_same_filter_replaces_the_subscription(place, client, publisher):
    """The newer QoS counts, and a message comes once."""
    topic = place.topic("a")
    client.subscribe((topic, 2))
    client.subscribe((topic, 0))
    publisher.publish(topic, b"x", qos=2)
    assert client.receive().qos == 0
    client.expect_quiet()


def test_mqtt_3_8_4_3_same_filter_sends_retained_messages_again(place, client, publisher):
    """Each SUBSCRIBE is a new subscription for what is retained."""
    topic = place.topic("a")
    publisher.publish(topic, b"kept", qos=1, retain=True)
    for _ in range(2):
        client.subscribe((topic, 1))
        message = client.receive()
        assert (message.payload, message.retain) == (b"kept", True)
    publisher.publish(topic, b"", qos=1, retain=True)


def test_mqtt_3_8_4_3_replacing_does_not_interrupt_the_flow(place, client, publisher):
    """A message in flight and one published after arrive once each."""
    topic = place.topic("a")
    client.subscribe((topic, 1))
    publisher.publish(topic, b"before", qos=1)
    before = client.receive(auto_ack=False)
    client.subscribe((topic, 1))
    publisher.publish(topic, b"after", qos=1)
    after = client.receive(auto_ack=False)
    assert [before.payload, after.payload] == [b"before", b"after"]
    client.send(wire.ack(Type.PUBACK, before.pid), wire.ack(Type.PUBACK, after.pid))
    client.expect_quiet()


def test_mqtt_3_8_4_4_several_filters_are_one_after_another(place, client, publisher):
    """As if each had come in a packet of its own, with one answer."""
    client.subscribe((place.topic("a"), 0), (place.topic("b"), 1), (place.topic("c"), 2))
    for name, qos in (("a", 0), ("b", 1), ("c", 2)):
        publisher.publish(place.topic(name), b"x", qos=2)
        message = client.receive()
        assert (message.topic, message.qos) == (place.topic(name), qos)


def test_mqtt_3_8_4_4_the_same_filter_twice_in_one_packet_counts_once(place, client, publisher):
    """The later of the two stands."""
    topic = place.topic("a")
    assert client.subscribe((topic, 2), (topic, 1)).reasons == [2, 1]
    publisher.publish(topic, b"x", qos=2)
    assert client.receive().qos == 1
    client.expect_quiet()


@pytest.mark.parametrize("count", [1, 2, 100])
def test_mqtt_3_8_4_5_suback_has_a_code_for_every_filter(place, client, count):
    """As many codes as filters (the peer counts them)."""
    filters = [(place.topic(f"f{n}"), n % 3) for n in range(count)]
    assert client.subscribe(*filters).reasons == [qos for _, qos in filters]


@pytest.mark.parametrize("published", QOS)
@pytest.mark.parametrize("granted", QOS)
def test_mqtt_3_8_4_6_delivery_is_at_the_lower_qos(place, client, publisher, published, granted):
    """Of what was published and what was granted."""
    topic = place.topic("a")
    client.subscribe((topic, granted))
    publisher.publish(topic, b"x", qos=published)
    assert client.receive().qos == min(published, granted)


def test_mqtt_3_9_3_1_codes_are_in_the_order_of_the_filters(place, client):
    """Descending, so that sorting would show."""
    filters = [(place.topic(name), qos) for name, qos in (("z", 2), ("m", 1), ("a", 0))]
    assert client.subscribe(*filters).reasons == [2, 1, 0]


@pytest.mark.parametrize("first_byte", [0xA0, 0xA1, 0xA3, 0xAF])
def test_mqtt_3_10_1_1_unsubscribe_with_other_flags_closes(place, client, first_byte):
    """Its flags are 0010 and nothing else."""
    client.send(bytes([first_byte]) + wire.unsubscribe(1, place.topic("a"), v=V3)[1:])
    client.expect_closed()


def test_mqtt_3_10_3_2_unsubscribe_without_a_filter_closes(client):
    """An identifier alone gives nothing up."""
    client.send(wire.unsubscribe(1, v=V3))
    client.expect_closed()


def test_mqtt_3_10_4_1_filters_are_compared_byte_for_byte(place, client, publisher):
    """Giving up a filter that covers another, or one that another covers, leaves the other."""
    client.subscribe((place.topic("a/+"), 1))
    client.unsubscribe(place.topic("a/#"), place.topic("a/b"), place.topic("A/+"), place.topic("a/+/"))
    publisher.publish(place.topic("a/b"), b"still", qos=1)
    assert client.receive().payload == b"still"


@pytest.mark.parametrize("filter_", ["a", "+", "#", "b/+/c", "b/#"])
def test_mqtt_3_10_4_2_unsubscribe_stops_new_messages(place, client, publisher, filter_):
    """After UNSUBACK nothing published later arrives."""
    client.subscribe((place.topic(filter_), 1))
    client.unsubscribe(place.topic(filter_))
    for name in ("a", "b/x/c"):
        publisher.publish(place.topic(name), b"unwanted", qos=1)
    client.expect_quiet()


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_10_4_3_unsubscribe_completes_what_was_begun(place, client, publisher, qos):
    """The handshake of a message that was already sent goes on to its end."""
    topic = place.topic("a")
    client.subscribe((topic, qos))
    publisher.publish(topic, b"begun", qos=qos)
    begun = client.receive(auto_ack=False)
    client.unsubscribe(topic)
    client.send(wire.ack(Type.PUBACK if qos == 1 else Type.PUBREC, begun.pid))
    if qos == 2:
        assert client.expect(Type.PUBREL).pid == begun.pid
        client.send(wire.ack(Type.PUBCOMP, begun.pid))
    client.expect_quiet()


def test_mqtt_3_10_4_4_unsuback_has_the_identifier_of_its_unsubscribe(place, client):
    """And nothing else: four bytes in 3.1.1."""
    client.send(wire.unsubscribe(0xABCD, place.topic("a"), v=V3))
    assert client.expect(Type.UNSUBACK).raw == bytes([0xB0, 2, 0xAB, 0xCD])


def test_mqtt_3_10_4_5_unsubscribe_from_nothing_is_answered(place, client):
    """A filter that was never subscribed to is no error."""
    client.unsubscribe(place.topic("never"))
    client.expect_quiet()


def test_mqtt_3_10_4_6_several_filters_are_given_up_with_one_answer(place, client, publisher):
    """Each of them, and only them."""
    client.subscribe(*[(place.topic(name), 1) for name in "abcd"])
    client.unsubscribe(place.topic("a"), place.topic("b"), place.topic("c"))
    for name in "abcd":
        publisher.publish(place.topic(name), name.encode(), qos=1)
    assert client.receive().payload == b"d"
    client.expect_quiet()


def test_mqtt_2_3_1_7_suback_and_unsuback_may_share_an_identifier_in_turn(place, client):
    """An identifier is free again once it has been answered."""
    for _ in range(3):
        client.send(wire.subscribe(5, place.topic("a"), v=V3))
        assert client.expect(Type.SUBACK).pid == 5
        client.send(wire.unsubscribe(5, place.topic("a"), v=V3))
        assert client.expect(Type.UNSUBACK).pid == 5
