"""MQTT 3.1.1, sections 3.1.2.5 to 3.1.2.7 and 3.14: what is said for a client that left without a word."""

import pytest

from conformance import wire
from conformance.wire import V3, Will

QOS = (0, 1, 2)


@pytest.fixture
def watcher(place):
    """A subscriber to the topic of the will, and to a marker that ends a silence."""
    peer = place.connect("watcher", V3)
    peer.subscribe((place.topic("will"), 2), (place.topic("marker"), 2))
    return peer


def expect_no_will(place, watcher):
    """A message sent after the end of the connection arrives alone."""
    place.connect("marker", V3).publish(place.topic("marker"), b"marker", qos=1)
    assert watcher.receive().payload == b"marker"
    watcher.expect_quiet()


@pytest.mark.parametrize("qos", QOS)
def test_mqtt_3_1_2_8_will_is_published_when_the_connection_is_lost(place, watcher, qos):
    """At the QoS that the will asked for."""
    place.connect("victim", V3, will=Will(place.topic("will"), b"gone", qos=qos)).drop()
    message = watcher.receive()
    assert (message.payload, message.qos, message.retain) == (b"gone", qos, False)


def test_mqtt_3_1_2_8_will_is_published_when_keep_alive_runs_out(place, watcher):
    """Silence is a lost connection."""
    place.connect("victim", V3, keep_alive=1, will=Will(place.topic("will"), b"silent"))
    assert watcher.receive(seconds_max=7.0).payload == b"silent"


@pytest.mark.parametrize(
    "violation",
    [wire.packet(0x00), wire.packet(0xF0), wire.publish("a/#", v=V3), wire.subscribe(0, "a", v=V3)],
    ids=["type-0", "type-15", "wildcard-topic", "packet-id-0"],
)
def test_mqtt_3_1_2_8_will_is_published_when_the_server_closes_for_an_error(place, watcher, violation):
    """The server's own close after a protocol error is not a DISCONNECT by the client."""
    peer = place.connect("victim", V3, will=Will(place.topic("will"), b"expelled"))
    peer.send(violation)
    peer.expect_closed()
    assert watcher.receive().payload == b"expelled"


def test_mqtt_3_1_2_8_will_is_published_when_another_client_takes_over(place, watcher):
    """The older connection is closed without a DISCONNECT of its own, so its will is said."""
    place.connect("victim", V3, will=Will(place.topic("will"), b"replaced"))
    place.connect("victim", V3)
    assert watcher.receive().payload == b"replaced"


@pytest.mark.parametrize("payload", [b"", b"\x00\xff\xfe", b"x" * 65535], ids=["empty", "binary", "longest"])
def test_mqtt_3_1_2_8_will_payload_is_any_bytes(place, watcher, payload):
    """Nothing, bytes that are no text, and the longest that its length field can say."""
    place.connect("victim", V3, will=Will(place.topic("will"), payload)).drop()
    assert watcher.receive().payload == payload


def test_mqtt_3_1_2_10_will_is_said_once(place, watcher):
    """It is removed when published: a later connection of the same client has none."""
    place.connect("victim", V3, clean=False, will=Will(place.topic("will"), b"once")).drop()
    assert watcher.receive().payload == b"once"
    place.connect("victim", V3, clean=False).drop()
    expect_no_will(place, watcher)


def test_mqtt_3_1_2_12_no_will_flag_no_will(place, watcher):
    """A client that never had a will leaves silently."""
    place.connect("victim", V3).drop()
    expect_no_will(place, watcher)


def test_mqtt_3_1_2_16_will_without_retain_is_not_retained(place, watcher):
    """A later subscriber finds nothing."""
    place.connect("victim", V3, will=Will(place.topic("will"))).drop()
    watcher.receive()
    late = place.connect("late", V3)
    late.subscribe(place.topic("will"))
    late.expect_quiet()


def test_mqtt_3_1_2_17_will_with_retain_is_retained(place, watcher):
    """Live subscribers get it as a live message, later ones as a retained one."""
    place.connect("victim", V3, will=Will(place.topic("will"), b"kept", qos=1, retain=True)).drop()
    assert not watcher.receive().retain
    late = place.connect("late", V3)
    late.subscribe((place.topic("will"), 1))
    message = late.receive()
    assert (message.payload, message.retain) == (b"kept", True)
    watcher.publish(place.topic("will"), b"", retain=True)


def test_mqtt_3_14_4_3_disconnect_discards_the_will(place, watcher):
    """A client that says goodbye has nothing left to say."""
    peer = place.connect("leaver", V3, will=Will(place.topic("will")))
    peer.send(wire.disconnect())
    peer.expect_closed()
    expect_no_will(place, watcher)


def test_mqtt_3_14_4_2_nothing_after_disconnect_is_processed(place, watcher):
    """Section 3.14.4: DISCONNECT is the last packet; a PUBLISH behind it in the same write reaches nobody."""
    peer = place.connect("leaver", V3)
    peer.send(wire.disconnect(), wire.publish(place.topic("will"), b"too late", v=V3))
    peer.expect_closed()
    expect_no_will(place, watcher)
