"""MQTT 5.0, retained messages: kept, replaced, removed, sent as the subscription asks (3.3.1.3, 3.8.3.1)."""

import pytest

from conformance.conftest import Place
from conformance.wire import RETAIN_AS_PUBLISHED, RETAIN_NEVER, RETAIN_ON_NEW, P


def test_mqtt_3_3_1_5_retained_message_is_kept_and_replaced(place: Place) -> None:
    """A new subscriber gets the last message that was published with RETAIN, and only that."""
    publisher, subscriber = place.connect("pub"), place.connect("sub")
    publisher.publish(place.topic("a"), b"old", qos=1, retain=True)
    publisher.publish(place.topic("a"), b"new", qos=1, retain=True)
    subscriber.subscribe(place.topic("a"))
    message = subscriber.receive()
    assert (message.payload, message.retain) == (b"new", True)
    subscriber.expect_quiet()


def test_mqtt_3_3_1_6_empty_payload_removes_the_retained_message(place: Place) -> None:
    """RETAIN with no payload is delivered as usual, and removes what was retained."""
    publisher, subscriber = place.connect("pub"), place.connect("sub")
    publisher.publish(place.topic("a"), b"kept", qos=1, retain=True)
    subscriber.subscribe((place.topic("a"), RETAIN_NEVER))
    publisher.publish(place.topic("a"), b"", qos=1, retain=True)
    assert subscriber.receive().payload == b""
    late = place.connect("late")
    late.subscribe(place.topic("a"))
    late.expect_quiet()


def test_mqtt_3_3_1_7_empty_payload_is_not_retained(place: Place) -> None:
    """A message without payload is never stored as a retained message."""
    place.connect("pub").publish(place.topic("a"), b"", qos=1, retain=True)
    late = place.connect("late")
    late.subscribe(place.topic("a"))
    late.expect_quiet()


def test_mqtt_3_3_1_8_message_without_retain_leaves_the_retained_one(place: Place) -> None:
    """Messages without RETAIN, empty or not, neither replace nor remove what is retained."""
    publisher, subscriber = place.connect("pub"), place.connect("sub")
    publisher.publish(place.topic("a"), b"kept", qos=1, retain=True)
    publisher.publish(place.topic("a"), b"passing", qos=1)
    publisher.publish(place.topic("a"), b"", qos=1)
    subscriber.subscribe(place.topic("a"))
    assert subscriber.receive().payload == b"kept"


def test_mqtt_section_3_3_1_3_retained_at_qos_0(place: Place) -> None:
    """A message of QoS 0 may be retained; the server keeps it until it chooses otherwise."""
    publisher = place.connect("pub")
    publisher.publish(place.topic("a"), b"zero", retain=True)
    publisher.expect_quiet()
    late = place.connect("late")
    late.subscribe(place.topic("a"))
    assert late.receive().payload == b"zero"


def test_mqtt_3_3_1_9_retain_handling_0_sends_always(place: Place) -> None:
    """Retain handling 0: every SUBSCRIBE, also a repeated one, brings the matching retained messages."""
    publisher, subscriber = place.connect("pub"), place.connect("sub")
    for name in ("x", "y"):
        publisher.publish(place.topic(f"a/{name}"), name.encode(), qos=1, retain=True)
    for _ in range(2):
        subscriber.subscribe((place.topic("a/+"), 1))
        assert sorted(subscriber.receive_payloads(2)) == [b"x", b"y"]
    subscriber.expect_quiet()


def test_mqtt_3_3_1_10_retain_handling_1_sends_to_new_subscriptions(place: Place) -> None:
    """Retain handling 1: retained messages come with a new subscription, and not when it is repeated."""
    subscriber = place.connect("sub")
    place.connect("pub").publish(place.topic("a"), b"kept", qos=1, retain=True)
    subscriber.subscribe((place.topic("a"), RETAIN_ON_NEW))
    assert subscriber.receive().payload == b"kept"
    subscriber.subscribe((place.topic("a"), RETAIN_ON_NEW))
    subscriber.expect_quiet()
    subscriber.unsubscribe(place.topic("a"))
    subscriber.subscribe((place.topic("a"), RETAIN_ON_NEW))
    assert subscriber.receive().payload == b"kept"


def test_mqtt_3_3_1_10_subscription_of_a_resumed_session_is_not_new(place: Place) -> None:
    """Retain handling 1 on a subscription that came with the session brings nothing."""
    kept = [(P.SESSION_EXPIRY, 60)]
    first = place.connect("sub", props=kept)
    first.subscribe(place.topic("a"))
    first.drop()
    place.connect("pub").publish(place.topic("a"), b"kept", retain=True)
    second = place.connect("sub", clean=False, props=kept)
    second.subscribe((place.topic("a"), RETAIN_ON_NEW))
    second.expect_quiet()


def test_mqtt_3_3_1_11_retain_handling_2_sends_none(place: Place) -> None:
    """Retain handling 2: no retained messages on SUBSCRIBE, but later ones as usual."""
    publisher, subscriber = place.connect("pub"), place.connect("sub")
    publisher.publish(place.topic("a"), b"kept", qos=1, retain=True)
    subscriber.subscribe((place.topic("a"), RETAIN_NEVER))
    subscriber.expect_quiet()
    publisher.publish(place.topic("a"), b"live", qos=1, retain=True)
    assert subscriber.receive().payload == b"live"


@pytest.mark.parametrize("retain", [False, True])
def test_mqtt_3_3_1_12_without_retain_as_published(place: Place, retain: bool) -> None:
    """Without retain as published, messages are forwarded with RETAIN 0 whatever they came with."""
    publisher, subscriber = place.connect("pub"), place.connect("sub")
    subscriber.subscribe((place.topic("a"), 1))
    publisher.publish(place.topic("a"), b"x", qos=1, retain=retain)
    assert not subscriber.receive().retain


@pytest.mark.parametrize("retain", [False, True])
def test_mqtt_3_3_1_13_with_retain_as_published(place: Place, retain: bool) -> None:
    """With retain as published, messages are forwarded with the RETAIN that they came with."""
    publisher, subscriber = place.connect("pub"), place.connect("sub")
    subscriber.subscribe((place.topic("a"), 1 | RETAIN_AS_PUBLISHED))
    publisher.publish(place.topic("a"), b"x", qos=1, retain=retain)
    assert subscriber.receive().retain == retain


def test_mqtt_section_3_3_1_3_retained_messages_are_marked(place: Place) -> None:
    """A message sent because it was retained has RETAIN 1 with and without retain as published."""
    place.connect("pub").publish(place.topic("a"), b"kept", qos=1, retain=True)
    for options in (0, RETAIN_AS_PUBLISHED):
        subscriber = place.connect(f"sub{options}")
        subscriber.subscribe((place.topic("a"), options))
        assert subscriber.receive().retain


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_mqtt_3_8_4_8_qos_of_a_retained_message(place: Place, published: int, granted: int) -> None:
    """A retained message comes at the smaller of the QoS it was published with and the QoS granted."""
    publisher, subscriber = place.connect("pub"), place.connect("sub")
    publisher.publish(place.topic("a"), b"kept", qos=published, retain=True)
    publisher.expect_quiet()
    subscriber.subscribe((place.topic("a"), granted))
    assert subscriber.receive().qos == min(published, granted)


def test_mqtt_3_3_4_3_retained_message_carries_the_subscription_identifier(place: Place) -> None:
    """A retained message is a result of the subscription, and carries its identifier."""
    place.connect("pub").publish(place.topic("a"), b"kept", qos=1, retain=True)
    subscriber = place.connect("sub")
    subscriber.subscribe(place.topic("a"), props=[(P.SUBSCRIPTION_ID, 77)])
    assert subscriber.receive().all(P.SUBSCRIPTION_ID) == [77]


def test_mqtt_section_4_1_retained_messages_outlive_sessions(place: Place) -> None:
    """Retained messages are no part of a session: the end of the publisher's session does not remove them."""
    publisher = place.connect("pub")
    publisher.publish(place.topic("a"), b"kept", qos=1, retain=True)
    publisher.drop()
    place.connect("pub", clean=True).drop()
    late = place.connect("late")
    late.subscribe(place.topic("a"))
    assert late.receive().payload == b"kept"
