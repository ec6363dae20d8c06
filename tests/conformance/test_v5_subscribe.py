"""MQTT 5.0, 3.8-3.11: SUBSCRIBE, its options and identifiers, overlapping subscriptions, UNSUBSCRIBE."""

import pytest

from conformance.conftest import Place
from conformance.wire import NO_LOCAL, P, R, Type, ack, packet, publish, subscribe, u16, unsubscribe

MALFORMED_OR_PROTOCOL = (R.MALFORMED_PACKET, R.PROTOCOL_ERROR)

MOSQUITTO_DEVIATES = {
    "test_mqtt_section_3_8_3_1_maximum_qos_3": "calls it malformed",
    "test_mqtt_section_3_8_3_1_retain_handling_3": "calls it malformed",
    "test_mqtt_section_3_8_2_1_2_identifier_zero": "calls it malformed",
}


# SUBSCRIBE


@pytest.mark.parametrize("flags", [0x80, 0x81, 0x83, 0x8A])
def test_mqtt_3_8_1_1_subscribe_reserved_flags(place: Place, flags: int) -> None:
    """The flags of SUBSCRIBE are 0010; anything else is malformed."""
    place.expect_violation(bytes([flags]) + subscribe(1, "a")[1:], R.MALFORMED_PACKET)


def test_mqtt_3_8_3_2_subscribe_without_filters(place: Place) -> None:
    """SUBSCRIBE has at least one filter."""
    place.expect_violation(subscribe(1), *MALFORMED_OR_PROTOCOL)


@pytest.mark.parametrize("bits", [0x40, 0x80, 0xC0])
def test_mqtt_3_8_3_5_reserved_option_bits(place: Place, bits: int) -> None:
    """The two highest bits of the subscription options are zero."""
    place.expect_violation(subscribe(1, ("a", bits)), R.MALFORMED_PACKET)


def test_mqtt_section_3_8_3_1_maximum_qos_3(place: Place) -> None:
    """A maximum QoS of 3 is a protocol error."""
    place.expect_violation(subscribe(1, ("a", 0x03)), R.PROTOCOL_ERROR)


def test_mqtt_section_3_8_3_1_retain_handling_3(place: Place) -> None:
    """Retain handling 3 is a protocol error."""
    place.expect_violation(subscribe(1, ("a", 0x30)), R.PROTOCOL_ERROR)


def test_mqtt_3_8_3_3_no_local(place: Place) -> None:
    """With no local, a client does not get what it published itself, but gets what others publish."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 1 | NO_LOCAL))
    client.publish(place.topic("a"), b"mine", qos=1)
    place.connect("other").publish(place.topic("a"), b"theirs", qos=1)
    assert client.receive().payload == b"theirs"
    client.expect_quiet()


def test_mqtt_3_8_3_3_local_by_default(place: Place) -> None:
    """Without no local, a client gets its own messages."""
    client = place.connect("c")
    client.subscribe(place.topic("a"))
    client.publish(place.topic("a"), b"mine")
    assert client.receive().payload == b"mine"


def test_mqtt_3_8_4_5_several_filters_one_suback(place: Place) -> None:
    """Several filters in one SUBSCRIBE are as many subscriptions, answered by one SUBACK in their order."""
    client = place.connect("c")
    filters = [(place.topic("a"), 2), (place.topic("b"), 0), (place.topic("c"), 1)]
    assert client.subscribe(*filters).reasons == [2, 0, 1]
    for name in ("a", "b", "c"):
        client.publish(place.topic(name), name.encode())
    assert sorted(client.receive_payloads(3)) == [b"a", b"b", b"c"]


def test_mqtt_3_9_3_1_order_of_suback_codes(place: Place) -> None:
    """Where one filter of several is refused, its code stands in its place and the others hold."""
    client = place.connect("c")
    pid = client.next_pid()
    filters = [(place.topic("a"), 1), (place.topic("x#y"), 1), (place.topic("b"), 2)]
    client.send(subscribe(pid, *filters))
    found = client.expect_any()
    if found.type is Type.DISCONNECT:
        assert found.reason in (R.TOPIC_FILTER_INVALID, *MALFORMED_OR_PROTOCOL)
        return
    assert (found.type, list(found.reasons)) == (Type.SUBACK, [1, R.TOPIC_FILTER_INVALID, 2])
    client.publish(place.topic("b"), b"held")
    assert client.receive().payload == b"held"


def test_mqtt_section_3_8_4_messages_may_precede_suback_but_not_go_missing(place: Place) -> None:
    """What is published after SUBACK is delivered, every time."""
    publisher = place.connect("pub")
    for number in range(5):
        subscriber = place.connect(f"sub{number}")
        subscriber.subscribe(place.topic("a"))
        publisher.publish(place.topic("a"), b"%d" % number)
        assert subscriber.receive().payload == b"%d" % number


def test_mqtt_3_8_4_3_identical_filter_replaces_the_subscription(place: Place) -> None:
    """Subscribing again to the same filter replaces its options, and does not double the messages."""
    subscriber, publisher = place.connect("sub"), place.connect("pub")
    subscriber.subscribe((place.topic("a"), 0), props=[(P.SUBSCRIPTION_ID, 1)])
    subscriber.subscribe((place.topic("a"), 2), props=[(P.SUBSCRIPTION_ID, 2)])
    publisher.publish(place.topic("a"), b"x", qos=2)
    message = subscriber.receive()
    assert (message.qos, message.all(P.SUBSCRIPTION_ID)) == (2, [2])
    subscriber.subscribe((place.topic("a"), 1))
    publisher.publish(place.topic("a"), b"y", qos=2)
    message = subscriber.receive()
    assert (message.qos, message.all(P.SUBSCRIPTION_ID)) == (1, [])
    subscriber.expect_quiet()


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_mqtt_3_8_4_8_qos_is_the_smaller(place: Place, published: int, granted: int) -> None:
    """A message is delivered at the smaller of its own QoS and the one granted."""
    subscriber, publisher = place.connect("sub"), place.connect("pub")
    assert subscriber.subscribe((place.topic("a"), granted)).reasons == [granted]
    publisher.publish(place.topic("a"), b"x", qos=published)
    assert subscriber.receive().qos == min(published, granted)


# Subscription identifiers


@pytest.mark.parametrize("identifier", [1, 127, 128, 16384, 268_435_455])
def test_mqtt_3_3_4_3_identifier_is_echoed(place: Place, identifier: int) -> None:
    """A message carries the identifier of the subscription that it results from, up to the largest."""
    client = place.connect("c")
    client.subscribe(place.topic("a"), props=[(P.SUBSCRIPTION_ID, identifier)])
    client.publish(place.topic("a"))
    assert client.receive().all(P.SUBSCRIPTION_ID) == [identifier]


def test_mqtt_3_3_4_4_overlapping_subscriptions(place: Place) -> None:
    """Of overlapping subscriptions all identifiers arrive, on one copy or several, at the highest QoS."""
    client = place.connect("c")
    client.subscribe((place.topic("a/b"), 1), props=[(P.SUBSCRIPTION_ID, 10)])
    client.subscribe((place.topic("a/#"), 2), props=[(P.SUBSCRIPTION_ID, 20)])
    client.subscribe((place.topic("+/b"), 0), props=[(P.SUBSCRIPTION_ID, 30)])
    place.connect("pub").publish(place.topic("a/b"), b"x", qos=2)
    messages = [client.receive()]
    while sum(len(message.all(P.SUBSCRIPTION_ID)) for message in messages) < 3:
        messages.append(client.receive())
    identifiers = [identifier for message in messages for identifier in message.all(P.SUBSCRIPTION_ID)]
    assert sorted(identifiers) == [10, 20, 30]
    assert max(message.qos for message in messages) == 2
    client.expect_quiet()


def test_mqtt_3_3_4_2_overlap_without_identifiers(place: Place) -> None:
    """Overlapping subscriptions without identifiers: one copy at the highest QoS, or one for each."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 0), (place.topic("+"), 1))
    place.connect("pub").publish(place.topic("a"), b"x", qos=1)
    levels = {client.receive().qos}
    if 1 not in levels:
        levels.add(client.receive().qos)
    assert 1 in levels


def test_mqtt_3_3_4_3_only_matching_identifiers(place: Place) -> None:
    """A subscription without identifier, or one that does not match, adds none."""
    client = place.connect("c")
    client.subscribe(place.topic("a"), props=[(P.SUBSCRIPTION_ID, 5)])
    client.subscribe(place.topic("b"))
    client.publish(place.topic("b"))
    assert client.receive().all(P.SUBSCRIPTION_ID) == []


def test_mqtt_section_3_8_2_1_2_identifier_zero(place: Place) -> None:
    """Subscription identifier 0 is a protocol error."""
    place.expect_violation(subscribe(1, "a", props=[(P.SUBSCRIPTION_ID, 0)]), R.PROTOCOL_ERROR)


def test_mqtt_section_3_8_2_1_2_identifier_twice(place: Place) -> None:
    """SUBSCRIBE has at most one subscription identifier."""
    place.expect_violation(subscribe(1, "a", props=[(P.SUBSCRIPTION_ID, 1)] * 2), R.PROTOCOL_ERROR)


def test_mqtt_section_3_8_2_1_2_identifier_is_session_state(place: Place) -> None:
    """A resumed subscription keeps its identifier."""
    kept = [(P.SESSION_EXPIRY, 60)]
    first = place.connect("c", props=kept)
    first.subscribe((place.topic("a"), 1), props=[(P.SUBSCRIPTION_ID, 9)])
    first.drop()
    place.connect("pub").publish(place.topic("a"), b"x", qos=1)
    message = place.connect("c", clean=False, props=kept).receive()
    assert message.all(P.SUBSCRIPTION_ID) == [9]


# UNSUBSCRIBE


@pytest.mark.parametrize("flags", [0xA0, 0xA1, 0xA3])
def test_mqtt_3_10_1_1_unsubscribe_reserved_flags(place: Place, flags: int) -> None:
    """The flags of UNSUBSCRIBE are 0010; anything else is malformed."""
    place.expect_violation(bytes([flags]) + unsubscribe(1, "a")[1:], R.MALFORMED_PACKET)


def test_mqtt_3_10_3_1_unsubscribe_ill_formed_utf8(place: Place) -> None:
    """The filters of UNSUBSCRIBE are UTF-8 strings."""
    place.expect_violation(unsubscribe(1, b"\xed\xa0\x80"), R.MALFORMED_PACKET)


def test_mqtt_3_10_3_2_unsubscribe_without_filters(place: Place) -> None:
    """UNSUBSCRIBE has at least one filter."""
    place.expect_violation(packet(0xA2, u16(1) + b"\0"), *MALFORMED_OR_PROTOCOL)


def test_mqtt_3_10_4_1_filters_are_compared_as_text(place: Place) -> None:
    """UNSUBSCRIBE deletes the subscription whose filter is the same text, not those that it would match."""
    client = place.connect("c")
    client.subscribe(place.topic("a/+"), place.topic("a/b"))
    assert client.unsubscribe(place.topic("a/#")).reasons == [R.NO_SUBSCRIPTION_EXISTED]
    assert client.unsubscribe(place.topic("a/+")).reasons == [R.SUCCESS]
    client.publish(place.topic("a/c"), b"no")
    client.publish(place.topic("a/b"), b"yes")
    assert client.receive().payload == b"yes"


def test_mqtt_3_10_4_2_no_messages_after_unsubscribe(place: Place) -> None:
    """After UNSUBACK, new messages are not delivered."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 1))
    client.unsubscribe(place.topic("a"))
    client.publish(place.topic("a"), b"x", qos=1)
    client.expect_quiet()


def test_mqtt_3_10_4_3_delivery_under_way_is_completed(place: Place) -> None:
    """A QoS 2 message that is being delivered is completed after its subscription is gone."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 2))
    client.publish(place.topic("a"), b"x", qos=2)
    pid = client.receive(auto_ack=False).pid
    assert pid is not None
    client.unsubscribe(place.topic("a"))
    client.send(ack(Type.PUBREC, pid))
    assert client.expect(Type.PUBREL).pid == pid
    client.send(ack(Type.PUBCOMP, pid))
    client.expect_quiet()


def test_mqtt_3_10_4_5_unsubscribe_without_a_subscription(place: Place) -> None:
    """UNSUBACK comes also where nothing was deleted, with code 0x11."""
    reasons = place.connect("c").unsubscribe(place.topic("never")).reasons
    assert reasons == [R.NO_SUBSCRIPTION_EXISTED]


def test_mqtt_3_11_3_1_order_of_unsuback_codes(place: Place) -> None:
    """Several filters in one UNSUBSCRIBE get one UNSUBACK with a code for each, in order."""
    client = place.connect("c")
    client.subscribe(place.topic("a"), place.topic("c"))
    reasons = client.unsubscribe(*(place.topic(name) for name in "abc")).reasons
    assert reasons == [R.SUCCESS, R.NO_SUBSCRIPTION_EXISTED, R.SUCCESS]


def test_mqtt_3_10_4_6_filters_are_processed_in_sequence(place: Place) -> None:
    """The same filter twice in one UNSUBSCRIBE is deleted the first time and absent the second."""
    client = place.connect("c")
    client.subscribe(place.topic("a"))
    reasons = client.unsubscribe(place.topic("a"), place.topic("a")).reasons
    assert reasons == [R.SUCCESS, R.NO_SUBSCRIPTION_EXISTED]


def test_mqtt_3_8_4_5_the_same_filter_twice_in_one_subscribe(place: Place) -> None:
    """Filters are processed in sequence: the second of two equal ones replaces the first."""
    client = place.connect("c")
    assert client.subscribe((place.topic("a"), 0), (place.topic("a"), 1)).reasons == [0, 1]
    client.publish(place.topic("a"), b"x", qos=1)
    assert client.receive().qos == 1
    client.expect_quiet()


def test_mqtt_3_8_4_4_no_message_is_lost_while_a_subscription_is_replaced(place: Place) -> None:
    """Messages published around a repeated SUBSCRIBE all arrive, and once."""
    subscriber, publisher = place.connect("sub"), place.connect("pub")
    subscriber.subscribe((place.topic("a"), 1))
    for number in range(60):
        publisher.send(publish(place.topic("a"), b"%d" % number, qos=1, pid=number + 1))
        if number % 10 == 0:
            subscriber.send(subscribe(1000 + number, (place.topic("a"), 1)))
    for number in range(0, 60, 10):
        assert subscriber.expect(Type.SUBACK).pid == 1000 + number
    assert subscriber.receive_payloads(60) == [b"%d" % number for number in range(60)]
    subscriber.expect_quiet()


def test_mqtt_3_8_4_6_many_filters_in_one_subscribe(place: Place) -> None:
    """A hundred filters get a hundred codes, in order."""
    client = place.connect("c")
    filters = [(place.topic(f"{number}"), number % 3) for number in range(100)]
    assert client.subscribe(*filters).reasons == [number % 3 for number in range(100)]


def test_mqtt_3_10_4_1_one_of_two_overlapping_subscriptions(place: Place) -> None:
    """Removing one of two overlapping subscriptions leaves the other."""
    client = place.connect("c")
    client.subscribe(place.topic("a"), place.topic("#"))
    client.unsubscribe(place.topic("a"))
    client.publish(place.topic("a"), b"x")
    assert client.receive().payload == b"x"
    client.expect_quiet()


def test_mqtt_section_3_8_2_1_3_user_properties_are_accepted(place: Place) -> None:
    """SUBSCRIBE and UNSUBSCRIBE may carry user properties that mean nothing to the server."""
    client = place.connect("c")
    props = [(P.USER, ("colour", "blue")), (P.USER, ("colour", "red"))]
    assert client.subscribe((place.topic("a"), 1), props=props).reasons == [1]
    client.send(unsubscribe(9, place.topic("a"), props=props))
    assert client.expect(Type.UNSUBACK).reasons == [R.SUCCESS]


def test_mqtt_3_8_3_3_no_local_of_an_overlapping_subscription(place: Place) -> None:
    """No local is a matter of each subscription: another that matches, without it, still delivers."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), NO_LOCAL), place.topic("#"))
    client.publish(place.topic("a"), b"mine")
    assert client.receive().payload == b"mine"
    client.expect_quiet()
