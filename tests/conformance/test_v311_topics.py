"""MQTT 3.1.1, section 4.7: topic names, topic filters, and which match."""

import pytest

from conformance import wire
from conformance.wire import V3

MATCHES = [
    ("sport/tennis", "sport/tennis"),
    ("sport/#", "sport"),
    ("sport/#", "sport/tennis"),
    ("sport/#", "sport/tennis/final/score"),
    ("#", "sport"),
    ("#", "/sport"),
    ("#", "/"),
    ("+", "sport"),
    ("sport/+", "sport/tennis"),
    ("sport/+", "sport/"),
    ("+/+", "/finance"),
    ("/+", "/finance"),
    ("+/tennis/#", "sport/tennis"),
    ("sport/+/final", "sport/tennis/final"),
    ("sport/+/final", "sport//final"),
    ("+/+/+", "//"),
    ("/", "/"),
    ("+/", "sport/"),
    ("/+/#", "//a"),
    ("a//b", "a//b"),
    ("a b/ç/日本/🛰", "a b/ç/日本/🛰"),
]
MISSES = [
    ("sport/tennis", "sport/Tennis"),
    ("sport/tennis", "Sport/tennis"),
    ("sport/tennis", "sport/tennis/"),
    ("sport/tennis/", "sport/tennis"),
    ("/sport", "sport"),
    ("sport", "/sport"),
    ("sport/#", "sports"),
    ("sport/+", "sport"),
    ("sport/+", "sport/tennis/final"),
    ("+", "/finance"),
    ("+", "a/b"),
    ("+/a", "a"),
    ("/+", "finance"),
    ("sport/+/final", "sport/final"),
    ("sport/+/#", "sport"),
    ("a//b", "a/b"),
    ("a/b", "a//b"),
]
FILTERS_INVALID = [
    "sport#",
    "#/sport",
    "sport/#/final",
    "##",
    "+#",
    "#+",
    "sport+",
    "+sport",
    "a/b+/c",
    "a/+b",
    "a/#b",
]


def arrives(place, filter_, name):
    """Whether a message to this topic name reaches a subscription to this filter, below the test's prefix."""
    subscriber, publisher = place.connect("sub", V3), place.connect("pub", V3)
    subscriber.subscribe((place.topic(filter_), 1), (place.prefix + "-end", 1))
    publisher.publish(place.topic(name), b"probe", qos=1)
    publisher.publish(place.prefix + "-end", b"end", qos=1)
    payload = subscriber.receive().payload
    if payload == b"probe":
        assert subscriber.receive().payload == b"end"
    return payload == b"probe"


@pytest.mark.parametrize(("filter_", "name"), MATCHES)
def test_mqtt_4_7_1_filter_matches(place, filter_, name):
    """Sections 4.7.1 to 4.7.3: # takes the parent and all below, + one level, empty levels count."""
    assert arrives(place, filter_, name)


@pytest.mark.parametrize(("filter_", "name"), MISSES)
def test_mqtt_4_7_1_filter_does_not_match(place, filter_, name):
    """Sections 4.7.1 to 4.7.3: case counts, and so does every separator."""
    assert not arrives(place, filter_, name)


@pytest.mark.parametrize("filter_", FILTERS_INVALID)
def test_mqtt_4_7_1_2_and_3_misplaced_wildcards_close(place, filter_):
    """# is the last level and + a whole level, or the filter is none."""
    peer = place.connect("sub", V3)
    peer.send(wire.subscribe(1, filter_, v=V3))
    peer.expect_closed()


@pytest.mark.parametrize("filter_", FILTERS_INVALID)
def test_mqtt_4_7_1_2_and_3_misplaced_wildcards_in_unsubscribe_close(place, filter_):
    """It is no filter there either."""
    peer = place.connect("sub", V3)
    peer.send(wire.unsubscribe(1, filter_, v=V3))
    peer.expect_closed()


@pytest.mark.parametrize("filter_", ["#", "+/{}", "+/#"])
def test_mqtt_4_7_2_1_leading_wildcard_does_not_match_dollar_topics(place, filter_):
    """Topics that begin with $ are not a client's unless it asks by name."""
    subscriber = place.connect("sub", V3)
    subscriber.subscribe((filter_.format(place.prefix), 1))
    publisher = place.connect("pub", V3)
    publisher.publish("$private/" + place.prefix, b"hidden")
    publisher.publish(f"seen/{place.prefix}", b"seen", qos=1)
    while (message := subscriber.receive()).topic != f"seen/{place.prefix}":
        assert not message.topic.startswith("$")


def test_mqtt_4_7_2_dollar_topics_match_by_name(place):
    """Section 4.7.2: $SYS and all below it is there for who asks for it."""
    subscriber = place.connect("sub", V3)
    subscriber.subscribe("$SYS/#")
    message = subscriber.receive(seconds_max=5.0)
    assert message.topic.startswith("$SYS/")


@pytest.mark.parametrize(
    "packet",
    [wire.publish("", b"x", v=V3), wire.subscribe(1, "", v=V3), wire.unsubscribe(1, "", v=V3)],
    ids=["publish", "subscribe", "unsubscribe"],
)
def test_mqtt_4_7_3_1_empty_topic_closes(place, packet):
    """Names and filters have at least one character."""
    peer = place.connect("peer", V3)
    peer.send(packet)
    peer.expect_closed()


@pytest.mark.parametrize("length", [23, 1024, 65535])
def test_mqtt_4_7_3_3_long_topics_are_topics(place, length):
    """Up to 65,535 bytes, in one level."""
    name = place.topic("x" * (length - len(place.topic(""))))
    subscriber = place.connect("sub", V3)
    assert subscriber.subscribe((name, 1)).reasons == [1]
    place.connect("pub", V3).publish(name, b"far", qos=1)
    assert subscriber.receive().topic == name


def test_mqtt_4_7_3_4_names_are_not_normalised(place):
    """The same character composed and decomposed are two topics."""
    composed, decomposed = "gr\u00f6\u00dfe", "gro\u0308\u00dfe"
    assert arrives(place, decomposed, decomposed)
    assert not arrives(place, composed, decomposed)


def test_mqtt_1_5_3_3_byte_order_mark_is_a_character(place):
    """U+FEFF is neither skipped nor stripped."""
    assert arrives(place, "\ufeffa", "\ufeffa")
    assert not arrives(place, "a", "\ufeffa")
