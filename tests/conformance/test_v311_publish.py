"""MQTT 3.1.1, section 3.3: messages as they are forwarded, and messages that are retained."""

import pytest

from conformance import wire
from conformance.wire import V3, Type

QOS = (0, 1, 2)

MOSQUITTO_DEVIATES = {
    "test_mqtt_3_3_5_1_overlapping_filters_deliver_at_the_highest_qos[2]": "takes one filter's QoS",
}


@pytest.fixture
def topic(place):
    """A topic of this test alone; what it retained is cleared at the end, for tests with wildcards."""
    name = place.topic("topic")
    yield name
    place.connect("cleaner", V3).publish(name, b"", qos=1, retain=True)


def late_subscriber(place, topic, qos=2):
    peer = place.connect("late", V3)
    peer.subscribe((topic, qos))
    return peer


def test_mqtt_3_3_1_2_qos_0_with_dup_is_not_forwarded_as_dup(place, topic):
    """DUP means nothing at QoS 0; a server may close on it, but must never pass it on (the parser checks)."""
    subscriber = late_subscriber(place, topic)
    peer = place.connect("pub", V3)
    peer.send(wire.publish(topic, b"x", v=V3, dup=True))
    place.connect("after", V3).publish(topic, b"marker", qos=1)
    received = [subscriber.receive()]
    if received[-1].payload != b"marker":
        received.append(subscriber.receive())
    assert not any(message.dup for message in received)


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_3_1_3_dup_of_a_publisher_is_not_propagated(place, topic, qos):
    """To the subscriber it is the first sending, whatever it was between publisher and server."""
    subscriber = late_subscriber(place, topic)
    peer = place.connect("pub", V3)
    peer.send(wire.publish(topic, b"again", v=V3, qos=qos, dup=True, pid=7))
    peer.expect(Type.PUBACK if qos == 1 else Type.PUBREC)
    if qos == 2:
        peer.send(wire.ack(Type.PUBREL, 7))
        peer.expect(Type.PUBCOMP)
    message = subscriber.receive()
    assert (message.payload, message.dup) == (b"again", False)


def test_mqtt_3_3_1_4_qos_3_closes(place, topic):
    """Both QoS bits set is no QoS."""
    peer = place.connect("pub", V3)
    peer.send(wire.publish(topic, b"x", v=V3, qos=3, pid=1))
    peer.expect_closed()


@pytest.mark.parametrize("qos", QOS)
def test_mqtt_3_3_1_5_retained_message_is_stored_with_its_qos(place, topic, qos):
    """A later subscriber gets the message at the QoS it was published with."""
    place.connect("pub", V3).publish(topic, b"kept", qos=qos, retain=True)
    place.connect("flush", V3).publish(topic + "/flush", qos=1)
    message = late_subscriber(place, topic).receive()
    assert (message.payload, message.qos, message.retain) == (b"kept", qos, True)


def test_mqtt_3_3_1_6_only_the_last_retained_message_is_sent(place, topic):
    """One per topic: the newest."""
    publisher = place.connect("pub", V3)
    for payload in (b"1", b"2", b"3"):
        publisher.publish(topic, payload, qos=1, retain=True)
    late = late_subscriber(place, topic)
    assert late.receive().payload == b"3"
    late.expect_quiet()


def test_mqtt_3_3_1_6_each_matching_topic_sends_its_retained_message(place):
    """A wildcard subscription gets one retained message from every topic that it matches, and no other."""
    names = [place.topic(name) for name in ("r/a", "r/b", "r/b/c", "s/a")]
    publisher = place.connect("pub", V3)
    for name in names:
        publisher.publish(name, name.encode(), qos=1, retain=True)
    late = late_subscriber(place, place.topic("r/#"))
    assert sorted(late.receive().topic for _ in range(3)) == names[:3]
    late.expect_quiet()
    for name in names:
        publisher.publish(name, b"", qos=1, retain=True)


def test_mqtt_3_3_1_7_retained_qos_0_replaces_what_was_retained(place, topic):
    """The old message is gone whatever the QoS of the new one."""
    publisher = place.connect("pub", V3)
    publisher.publish(topic, b"old", qos=1, retain=True)
    publisher.publish(topic, b"new", retain=True)
    publisher.expect_quiet()
    assert late_subscriber(place, topic).receive().payload == b"new"


def test_mqtt_3_3_1_8_retain_is_set_for_a_new_subscription(place, topic):
    """So that the subscriber can tell old news from new."""
    place.connect("pub", V3).publish(topic, b"old news", qos=1, retain=True)
    assert late_subscriber(place, topic).receive().retain


def test_mqtt_3_3_1_9_retain_is_clear_for_an_established_subscription(place, topic):
    """Live is live, even though the publisher asked to retain it."""
    subscriber = late_subscriber(place, topic)
    place.connect("pub", V3).publish(topic, b"live", qos=1, retain=True)
    message = subscriber.receive()
    assert (message.payload, message.retain) == (b"live", False)


def test_mqtt_3_3_1_10_empty_retained_message_clears_and_is_forwarded(place, topic):
    """It is a message like any other to those who are there, and leaves nothing for those who come."""
    publisher = place.connect("pub", V3)
    publisher.publish(topic, b"old", qos=1, retain=True)
    present = place.connect("present", V3)
    present.subscribe(topic)
    present.receive()
    publisher.publish(topic, b"", qos=1, retain=True)
    assert present.receive().payload == b""
    late_subscriber(place, topic).expect_quiet()


def test_mqtt_3_3_1_11_empty_message_is_not_retained(place, topic):
    """Where nothing was retained, an empty retained message stores nothing."""
    place.connect("pub", V3).publish(topic, b"", qos=1, retain=True)
    late_subscriber(place, topic).expect_quiet()


def test_mqtt_3_3_1_12_message_without_retain_leaves_the_retained_one(place, topic):
    """Neither stored nor a replacement, not even when it is empty."""
    publisher = place.connect("pub", V3)
    publisher.publish(topic, b"kept", qos=1, retain=True)
    publisher.publish(topic, b"passing", qos=1)
    publisher.publish(topic, b"", qos=1)
    late = late_subscriber(place, topic)
    assert late.receive().payload == b"kept"
    late.expect_quiet()


def test_mqtt_3_1_2_7_retained_message_outlives_its_publishers_session(place, topic):
    """It belongs to the topic, not to the session."""
    publisher = place.connect("pub", V3, clean=True)
    publisher.publish(topic, b"kept", qos=1, retain=True)
    publisher.send(wire.disconnect())
    publisher.expect_closed()
    place.connect("pub", V3, clean=True)
    assert late_subscriber(place, topic).receive().payload == b"kept"


@pytest.mark.parametrize("wildcard", ["+", "#", "a/+", "a/#", "a+", "#a", "a/+/b", "+/"])
def test_mqtt_3_3_2_2_wildcards_in_a_topic_name_close(place, wildcard):
    """Wildcards are for filters."""
    peer = place.connect("pub", V3)
    peer.send(wire.publish(place.topic(wildcard), b"x", v=V3))
    peer.expect_closed()


def test_mqtt_3_3_2_3_forwarded_topic_is_the_published_one(place):
    """Not the filter that matched it."""
    subscriber = place.connect("sub", V3)
    subscriber.subscribe(place.topic("+/b/#"))
    place.connect("pub", V3).publish(place.topic("a/b/c"), b"x")
    assert subscriber.receive().topic == place.topic("a/b/c")


@pytest.mark.parametrize("qos", QOS)
def test_mqtt_3_3_4_1_publish_is_answered_as_its_qos_asks(place, topic, qos):
    """Nothing, PUBACK, or PUBREC then PUBCOMP (the peer checks the order and the identifiers)."""
    peer = place.connect("pub", V3)
    peer.publish(topic, b"x", qos=qos)
    peer.expect_quiet()


@pytest.mark.parametrize("published", QOS)
def test_mqtt_3_3_5_1_overlapping_filters_deliver_at_the_highest_qos(place, published):
    """One copy or one for each filter; one of them has the highest QoS that any filter was granted."""
    subscriber = place.connect("sub", V3)
    subscriber.subscribe((place.topic("a/+"), 0), (place.topic("a/#"), 2), (place.topic("a/b"), 1))
    place.connect("pub", V3).publish(place.topic("a/b"), b"x", qos=published)
    place.connect("end", V3).publish(place.topic("a/end"), b"end", qos=1)
    got = []
    while (message := subscriber.receive()).payload != b"end":
        got.append(message.qos)
    assert 1 <= len(got) <= 3
    assert max(got) == published


@pytest.mark.parametrize("payload", [b"", b"\x00", bytes(range(256)), b"\xff" * 70_000], ids=len)
def test_mqtt_3_3_3_payload_is_any_bytes(place, topic, payload):
    """Section 3.3.3: content and format are the application's; none at all is fine."""
    subscriber = late_subscriber(place, topic)
    place.connect("pub", V3).publish(topic, payload, qos=1)
    assert subscriber.receive().payload == payload
