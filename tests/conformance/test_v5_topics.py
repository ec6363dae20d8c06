"""MQTT 5.0, 4.7: topic names, topic filters and which match which."""

import pytest

from conformance.conftest import Place
from conformance.wire import RETAIN_NEVER, R, Type, publish, subscribe

MALFORMED_OR_PROTOCOL = (R.MALFORMED_PACKET, R.PROTOCOL_ERROR)

MATCHES = [
    ("sport/tennis/player1/#", "sport/tennis/player1"),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
    ("sport/#", "sport"),
    ("sport/tennis/+", "sport/tennis/player1"),
    ("sport/+", "sport/"),
    ("+/+", "/finance"),
    ("/+", "/finance"),
    ("+/tennis/#", "sport/tennis"),
    ("+/tennis/#", "sport/tennis/a/b"),
    ("sport/+/player1", "sport/tennis/player1"),
    ("a//b", "a//b"),
    ("a/+/b", "a//b"),
    ("a/b/", "a/b/"),
    ("/", "/"),
    ("+/+/+", "//"),
    ("Accounts payable", "Accounts payable"),
    ("a/$x", "a/$x"),
    ("a/+", "a/$x"),
    ("a/#", "a/$x/y"),
    ("é/+", "é/日本"),
]

MISSES = [
    ("sport/tennis/+", "sport/tennis/player1/ranking"),
    ("sport/+", "sport"),
    ("+", "/finance"),
    ("/finance", "finance"),
    ("finance", "/finance"),
    ("ACCOUNTS", "Accounts"),
    ("a/b", "a/b/"),
    ("a/b/", "a/b"),
    ("a", "a/b"),
    ("a/+/c", "a/b/d"),
    ("a/b/#", "a/bc"),
    ("é", "e\u0301"),
]

BAD_FILTERS = ["sport/tennis#", "sport/tennis/#/ranking", "#/a", "##", "a/#b", "a/##"]
BAD_PLUS = ["sport+", "+a", "a/b+/c", "a/++", "+#"]


def expect_filter_refused(place: Place, name: str) -> None:
    """SUBACK with 0x8F, or DISCONNECT: the text leaves the choice to the server."""
    client = place.connect("c")
    client.send(subscribe(1, name))
    if not client.says_why:
        return client.expect_disconnect(R.TOPIC_FILTER_INVALID, *MALFORMED_OR_PROTOCOL)
    found = client.expect_any()
    if found.type is Type.SUBACK:
        assert list(found.reasons) == [R.TOPIC_FILTER_INVALID]
        return client.expect_quiet()
    assert found.type is Type.DISCONNECT
    assert found.reason in (R.TOPIC_FILTER_INVALID, *MALFORMED_OR_PROTOCOL)
    return client.expect_closed()


@pytest.mark.parametrize("name", BAD_FILTERS)
def test_mqtt_4_7_1_1_multi_level_wildcard_is_last_and_alone(place: Place, name: str) -> None:
    """# stands alone or after a separator, and ends the filter."""
    expect_filter_refused(place, name)


@pytest.mark.parametrize("name", BAD_PLUS)
def test_mqtt_4_7_1_2_single_level_wildcard_fills_its_level(place: Place, name: str) -> None:
    """+ is a whole level."""
    expect_filter_refused(place, name)


@pytest.mark.parametrize(("pattern", "name"), MATCHES)
def test_mqtt_4_7_1_filter_matches(place: Place, pattern: str, name: str) -> None:
    """The examples of the text, and edges like them, that match; under a level of this test's own."""
    client = place.connect("c")
    client.subscribe(f"{place.prefix}/{pattern}")
    client.publish(f"{place.prefix}/{name}", b"x")
    assert client.receive().topic == f"{place.prefix}/{name}"


@pytest.mark.parametrize(("pattern", "name"), MISSES)
def test_mqtt_4_7_3_4_filter_does_not_match(place: Place, pattern: str, name: str) -> None:
    """No normalisation: case, separators and composed characters count; a level is all or nothing."""
    client = place.connect("c")
    client.subscribe(f"{place.prefix}/{pattern}", f"{place.prefix}:end")
    client.publish(f"{place.prefix}/{name}", b"no")
    client.publish(f"{place.prefix}:end", b"end")
    assert client.receive().payload == b"end"
    client.expect_nothing(0.02)


def test_mqtt_4_7_1_filter_that_is_only_a_wildcard(place: Place) -> None:
    """# alone matches every topic that does not begin with $; + alone those of one level."""
    everything, level = place.connect("all"), place.connect("level")
    everything.subscribe(("#", RETAIN_NEVER))
    level.subscribe(("+", RETAIN_NEVER))
    publisher = place.connect("pub")
    publisher.publish(place.topic("deep/down"), b"1")
    publisher.publish(place.prefix, b"2")
    assert everything.receive_payloads(2) == [b"1", b"2"]
    assert level.receive().payload == b"2"


@pytest.mark.parametrize("pattern", ["#", "+/{}/x", "+/#"])
def test_mqtt_4_7_2_1_leading_wildcard_does_not_match_dollar(place: Place, pattern: str) -> None:
    """A filter that begins with a wildcard does not match topics that begin with $."""
    client = place.connect("c")
    client.subscribe((pattern.format(place.prefix), RETAIN_NEVER), place.topic("end"))
    publisher = place.connect("pub")
    publisher.publish(f"$private/{place.prefix}/x", b"no", qos=1)
    publisher.publish(place.topic("end"), b"end")
    payloads = {client.receive().payload}
    assert payloads == {b"end"}


def test_mqtt_4_7_2_1_sys_topics_only_by_name(place: Place) -> None:
    """# brings no $SYS topic; $SYS/# does."""
    client = place.connect("c")
    client.subscribe(("#", RETAIN_NEVER))
    client.expect_quiet()
    other = place.connect("other")
    other.subscribe("$SYS/#")
    assert other.receive(seconds_max=5).topic.startswith("$SYS/")


def test_mqtt_4_7_3_1_empty_filter(place: Place) -> None:
    """A topic filter has at least one character."""
    expect_filter_refused(place, "")


def test_mqtt_4_7_3_1_shortest_topics(place: Place) -> None:
    """One character is enough, a separator included."""
    client = place.connect("c")
    client.subscribe("/", "~")
    client.publish("/", b"1")
    client.publish("~", b"2")
    assert client.receive_payloads(2) == [b"1", b"2"]


def test_mqtt_4_7_3_3_long_topic(place: Place) -> None:
    """A long topic name works, or is refused in the open: with a reason, not by silence."""
    client = place.connect("c")
    client.subscribe(place.topic("#"))
    name = place.topic("n" * 8000)
    client.send(publish(name, b"x", qos=1, pid=9))
    answer = client.expect(Type.PUBACK)
    if answer.reason < 0x80:
        assert client.receive().topic == name
    else:
        assert answer.reason in (R.TOPIC_NAME_INVALID, R.QUOTA_EXCEEDED, R.IMPLEMENTATION_SPECIFIC)
