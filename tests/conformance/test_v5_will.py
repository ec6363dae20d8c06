"""MQTT 5.0, wills: when they are published, when not, and what they carry (3.1.2.5, 3.1.3.2, 3.14.4)."""

import time

import pytest

from conformance.conftest import Place
from conformance.peer import Peer
from conformance.wire import P, R, Will, disconnect, packet

SOON_S = 0.5

MOSQUITTO_DEVIATES = {
    "test_mqtt_3_1_2_8_will_is_published_on_other_disconnects[128]": "keeps the will for 0x04 only",
    "test_mqtt_3_1_2_8_will_delay_without_a_session_is_none": "waits for the delay",
    "test_mqtt_3_1_4_3_takeover_with_clean_start_ends_the_session": "waits for the delay",
}


def watch(place: Place, options: int = 2) -> Peer:
    """A subscriber of the topic to which the wills of this test go."""
    watcher = place.connect("watcher")
    watcher.subscribe((place.topic("will"), options))
    return watcher


def will_of(place: Place, **options: object) -> Will:
    return Will(place.topic("will"), **options)  # type: ignore[arg-type]


def test_mqtt_3_1_2_7_will_is_published_when_the_link_breaks(place: Place) -> None:
    """A connection that ends without DISCONNECT publishes its will."""
    watcher = watch(place)
    place.connect("c", will=will_of(place, payload=b"gone")).drop()
    message = watcher.receive()
    assert (message.topic, message.payload) == (place.topic("will"), b"gone")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_1_2_12_will_has_its_qos(place: Place, qos: int) -> None:
    """The will is published with the QoS that CONNECT asked for."""
    watcher = watch(place)
    place.connect("c", will=will_of(place, qos=qos)).drop()
    assert watcher.receive().qos == qos


def test_mqtt_3_1_2_8_will_is_published_on_a_protocol_error(place: Place) -> None:
    """A client that is disconnected for an error leaves its will."""
    watcher = watch(place)
    place.expect_violation(packet(0x36), R.MALFORMED_PACKET, will=will_of(place))
    assert watcher.receive().payload == b"gone"


def test_mqtt_3_1_2_8_will_is_published_on_keep_alive_timeout(place: Place) -> None:
    """A client that falls silent leaves its will."""
    watcher = watch(place)
    silent = place.connect("c", keep_alive=1, will=will_of(place))
    assert watcher.receive(seconds_max=9).payload == b"gone"
    silent.expect_disconnect(R.KEEP_ALIVE_TIMEOUT)


def test_mqtt_3_1_2_10_will_removed_on_normal_disconnect(place: Place) -> None:
    """DISCONNECT with 0x00 deletes the will, and closing after it does not bring it back."""
    watcher = watch(place)
    client = place.connect("c", will=will_of(place))
    client.send(disconnect())
    client.expect_closed()
    watcher.expect_quiet()


def test_mqtt_3_14_4_3_will_discarded_on_explicit_success(place: Place) -> None:
    """The same with the reason code spelled out."""
    watcher = watch(place)
    client = place.connect("c", will=will_of(place))
    client.send(disconnect(R.SUCCESS, props=[]))
    client.expect_closed()
    watcher.expect_quiet()


@pytest.mark.parametrize("reason", [R.DISCONNECT_WITH_WILL, R.UNSPECIFIED])
def test_mqtt_3_1_2_8_will_is_published_on_other_disconnects(place: Place, reason: R) -> None:
    """Only 0x00 deletes the will: 0x04 asks for it, and an error leaves it."""
    watcher = watch(place)
    client = place.connect("c", will=will_of(place))
    client.send(disconnect(reason))
    assert watcher.receive().payload == b"gone"


def test_mqtt_3_1_2_10_will_is_published_once(place: Place) -> None:
    """A will that was published is gone from the session."""
    watcher = watch(place)
    kept = [(P.SESSION_EXPIRY, 60)]
    place.connect("c", props=kept, will=will_of(place)).drop()
    assert watcher.receive().payload == b"gone"
    place.connect("c", clean=False, props=kept).drop()
    watcher.expect_quiet()


def test_mqtt_3_1_2_14_will_not_retained(place: Place) -> None:
    """Without will retain, later subscribers do not get the will."""
    watcher = watch(place)
    place.connect("c", will=will_of(place)).drop()
    assert not watcher.receive().retain
    late = place.connect("late")
    late.subscribe(place.topic("will"))
    late.expect_quiet()


def test_mqtt_3_1_2_15_will_retained(place: Place) -> None:
    """With will retain, later subscribers get the will as a retained message."""
    watcher = watch(place)
    place.connect("c", will=will_of(place, retain=True)).drop()
    watcher.receive()
    late = place.connect("late")
    late.subscribe(place.topic("will"))
    message = late.receive()
    assert (message.payload, message.retain) == (b"gone", True)


def test_mqtt_section_3_1_3_4_will_payload_may_be_empty(place: Place) -> None:
    """A will of no bytes is a message of no bytes."""
    watcher = watch(place)
    place.connect("c", will=will_of(place, payload=b"")).drop()
    assert watcher.receive().payload == b""


def test_mqtt_3_1_3_10_will_user_properties_keep_their_order(place: Place) -> None:
    """The user properties of a will are published as given, in order."""
    watcher = watch(place)
    pairs = [("b", "1"), ("a", "2"), ("b", "1"), ("", "é")]
    will = will_of(place, props=[(P.USER, pair) for pair in pairs])
    place.connect("c", will=will).drop()
    assert watcher.receive().all(P.USER) == pairs


def test_mqtt_section_3_1_3_2_will_properties_are_published(place: Place) -> None:
    """What a will says of its payload reaches the subscriber; the delay is the server's own business."""
    watcher = watch(place)
    props = [(P.PAYLOAD_FORMAT, 1), (P.CONTENT_TYPE, "text/plain"), (P.RESPONSE_TOPIC, "r/t")]
    props += [(P.CORRELATION_DATA, b"\0\1"), (P.MESSAGE_EXPIRY, 30)]
    place.connect("c", will=will_of(place, props=[*props, (P.WILL_DELAY, 0)])).drop()
    message = watcher.receive()
    for identifier, value in props[:-1]:
        assert message.prop(identifier) == value
    assert message.number(P.MESSAGE_EXPIRY, 0) in (29, 30)


def test_mqtt_3_1_3_9_will_delay_holds_the_will_back(place: Place) -> None:
    """The will comes after its delay, not before."""
    watcher = watch(place)
    props = [(P.SESSION_EXPIRY, 60)]
    place.connect("c", props=props, will=will_of(place, props=[(P.WILL_DELAY, 1)])).drop()
    watcher.expect_nothing(SOON_S)
    assert watcher.receive(seconds_max=4).payload == b"gone"


def test_mqtt_3_1_3_9_no_will_if_the_client_is_back_in_time(place: Place) -> None:
    """A client that resumes its session within the delay has not died."""
    watcher = watch(place)
    kept = [(P.SESSION_EXPIRY, 60)]
    place.connect("c", props=kept, will=will_of(place, props=[(P.WILL_DELAY, 1)])).drop()
    back = place.connect("c", clean=False, props=kept)
    watcher.expect_nothing(1.8)
    back.expect_quiet()


def test_mqtt_3_1_2_8_will_delay_ends_with_the_session(place: Place) -> None:
    """When the session ends before the delay does, the will is published then."""
    watcher = watch(place)
    will = will_of(place, props=[(P.WILL_DELAY, 60)])
    began = time.monotonic()
    place.connect("c", props=[(P.SESSION_EXPIRY, 1)], will=will).drop()
    assert watcher.receive(seconds_max=5).payload == b"gone"
    assert time.monotonic() - began > SOON_S


def test_mqtt_3_1_2_8_will_delay_without_a_session_is_none(place: Place) -> None:
    """A session that ends with its connection publishes its will at once, whatever the delay."""
    watcher = watch(place)
    place.connect("c", will=will_of(place, props=[(P.WILL_DELAY, 60)])).drop()
    assert watcher.receive().payload == b"gone"


def test_mqtt_3_1_4_3_will_of_the_connection_that_is_taken_over(place: Place) -> None:
    """A takeover closes the earlier connection, and its will, with no delay, is published."""
    watcher = watch(place)
    place.connect("c", will=will_of(place))
    place.connect("c")
    assert watcher.receive().payload == b"gone"


def test_mqtt_3_1_3_9_takeover_with_delay_keeps_the_will_back(place: Place) -> None:
    """A takeover that resumes the session within the will's delay does not publish it."""
    watcher = watch(place)
    kept = [(P.SESSION_EXPIRY, 60)]
    place.connect("c", props=kept, will=will_of(place, props=[(P.WILL_DELAY, 60)]))
    place.connect("c", clean=False, props=kept)
    watcher.expect_quiet()


def test_mqtt_3_1_4_3_takeover_with_clean_start_ends_the_session(place: Place) -> None:
    """A takeover with clean start ends the old session, so its will is published despite the delay."""
    watcher = watch(place)
    kept = [(P.SESSION_EXPIRY, 60)]
    place.connect("c", props=kept, will=will_of(place, props=[(P.WILL_DELAY, 60)]))
    place.connect("c", clean=True, props=kept)
    assert watcher.receive().payload == b"gone"


def test_mqtt_section_3_1_2_5_will_belongs_to_its_connection(place: Place) -> None:
    """A connection without a will has none, although the session's earlier connection had one."""
    watcher = watch(place)
    kept = [(P.SESSION_EXPIRY, 60)]
    first = place.connect("c", props=kept, will=will_of(place))
    first.send(disconnect())
    first.expect_closed()
    place.connect("c", clean=False, props=kept).drop()
    watcher.expect_quiet()


def test_mqtt_3_1_2_15_retained_will_without_payload_clears(place: Place) -> None:
    """A retained will is published like any message: with no payload it removes what was retained."""
    watcher = watch(place)
    place.connect("pub").publish(place.topic("will"), b"kept", qos=1, retain=True)
    watcher.receive()
    place.connect("c", will=will_of(place, payload=b"", retain=True)).drop()
    watcher.receive()
    late = place.connect("late")
    late.subscribe(place.topic("will"))
    late.expect_quiet()
