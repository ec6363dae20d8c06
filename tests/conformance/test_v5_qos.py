"""MQTT 5.0, delivery: QoS 1 and 2 in every order, duplicates, order of messages (3.4-3.7, 4.3, 4.6)."""

import pytest

from conformance.conftest import Place
from conformance.wire import P, R, Type, ack, packet, publish, u16

MALFORMED_OR_PROTOCOL = (R.MALFORMED_PACKET, R.PROTOCOL_ERROR)

MOSQUITTO_DEVIATES = {
    "test_mqtt_4_3_3_10_repeated_publish_is_delivered_once": "the second repetition ends the connection",
    "test_mqtt_3_7_2_1_pubrel_of_an_unknown_identifier": "answers with 0x00",
    "test_mqtt_3_4_2_1_reason_code_that_is_not_for_this_packet": "does not look at it",
}


# Messages from a client


@pytest.mark.parametrize(("qos", "answer"), [(1, Type.PUBACK), (2, Type.PUBREC)])
def test_mqtt_3_3_4_1_publish_is_answered_by_its_qos(place: Place, qos: int, answer: Type) -> None:
    """QoS 1 is answered by PUBACK, QoS 2 by PUBREC, and QoS 0 by nothing."""
    client = place.connect("c")
    client.send(publish(place.topic("a")), publish(place.topic("a"), qos=qos, pid=3))
    assert client.expect(answer).pid == 3


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_4_2_1_no_matching_subscribers(place: Place, qos: int) -> None:
    """Success is 0x00, and may be 0x10 where nobody subscribes."""
    answer = place.connect("c").publish(place.topic("nobody"), qos=qos)
    assert answer is not None
    assert answer.reason in (R.SUCCESS, R.NO_MATCHING_SUBSCRIBERS)


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_4_2_1_success_with_a_subscriber(place: Place, qos: int) -> None:
    """Where somebody subscribes, success is 0x00."""
    place.connect("sub").subscribe(place.topic("a"))
    answer = place.connect("c").publish(place.topic("a"), qos=qos)
    assert answer is not None
    assert answer.reason == R.SUCCESS


def test_mqtt_4_3_2_5_identifier_is_free_after_puback(place: Place) -> None:
    """After PUBACK the same packet identifier is a new message, DUP or not."""
    subscriber, client = place.connect("sub"), place.connect("c")
    subscriber.subscribe((place.topic("a"), 1))
    for payload, dup in ((b"1", False), (b"2", False), (b"3", True)):
        client.send(publish(place.topic("a"), payload, qos=1, pid=5, dup=dup))
        client.expect(Type.PUBACK)
    assert subscriber.receive_payloads(3) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("dup", [True, False])
def test_mqtt_4_3_3_10_repeated_publish_is_delivered_once(place: Place, dup: bool) -> None:
    """Until PUBREL, PUBLISH with the same packet identifier gets PUBREC again and no second delivery."""
    subscriber, client = place.connect("sub"), place.connect("c")
    subscriber.subscribe((place.topic("a"), 2))
    client.send(publish(place.topic("a"), b"once", qos=2, pid=5))
    client.expect(Type.PUBREC)
    for _ in range(2):
        client.send(publish(place.topic("a"), b"once", qos=2, pid=5, dup=dup))
        assert client.expect(Type.PUBREC).pid == 5
    client.send(ack(Type.PUBREL, 5))
    client.expect(Type.PUBCOMP)
    assert subscriber.receive().payload == b"once"
    subscriber.expect_quiet()


def test_mqtt_4_3_3_12_identifier_is_free_after_pubcomp(place: Place) -> None:
    """After PUBCOMP the same packet identifier is a new message."""
    subscriber, client = place.connect("sub"), place.connect("c")
    subscriber.subscribe((place.topic("a"), 2))
    for payload in (b"1", b"2"):
        client.send(publish(place.topic("a"), payload, qos=2, pid=5))
        client.expect(Type.PUBREC)
        client.send(ack(Type.PUBREL, 5))
        client.expect(Type.PUBCOMP)
    assert subscriber.receive_payloads(2) == [b"1", b"2"]


def test_mqtt_4_3_3_11_pubrel_in_another_order(place: Place) -> None:
    """Several QoS 2 messages may be under way; each PUBREL is answered by the PUBCOMP of its identifier."""
    subscriber, client = place.connect("sub"), place.connect("c")
    subscriber.subscribe((place.topic("a"), 0))
    client.send(*(publish(place.topic("a"), b"%d" % pid, qos=2, pid=pid) for pid in (1, 2, 3)))
    assert [client.expect(Type.PUBREC).pid for _ in range(3)] == [1, 2, 3]
    for pid in (2, 3, 1):
        client.send(ack(Type.PUBREL, pid))
        assert client.expect(Type.PUBCOMP).pid == pid
    assert sorted(subscriber.receive_payloads(3)) == [b"1", b"2", b"3"]
    subscriber.expect_quiet()


def test_mqtt_4_3_3_11_repeated_pubrel(place: Place) -> None:
    """PUBREL sent twice gets PUBCOMP twice; the second may say that the identifier is not known."""
    client = place.connect("c")
    client.publish(place.topic("a"), qos=2)
    client.send(ack(Type.PUBREL, 1))
    answer = client.expect(Type.PUBCOMP)
    assert (answer.pid, answer.reason in (R.SUCCESS, R.PACKET_ID_NOT_FOUND)) == (1, True)


def test_mqtt_3_7_2_1_pubrel_of_an_unknown_identifier(place: Place) -> None:
    """PUBREL for an identifier that was never used is answered by PUBCOMP with 0x92."""
    client = place.connect("c")
    client.send(ack(Type.PUBREL, 4711))
    answer = client.expect(Type.PUBCOMP)
    assert (answer.pid, answer.reason) == (4711, R.PACKET_ID_NOT_FOUND)
    client.expect_quiet()


def test_mqtt_3_6_2_1_pubrec_of_an_unknown_identifier(place: Place) -> None:
    """PUBREC for an identifier that is not under way is answered by PUBREL, which may say 0x92."""
    client = place.connect("c")
    client.send(ack(Type.PUBREC, 4711))
    assert client.expect(Type.PUBREL).pid == 4711
    client.expect_quiet()


@pytest.mark.parametrize("kind", [Type.PUBACK, Type.PUBCOMP])
def test_mqtt_section_4_3_final_acks_of_an_unknown_identifier(place: Place, kind: Type) -> None:
    """PUBACK or PUBCOMP for an identifier that is not under way does no harm."""
    client = place.connect("c")
    client.send(ack(kind, 4711))
    client.expect_quiet()


def test_mqtt_section_4_3_3_publish_1_with_an_identifier_under_way_at_qos_2(place: Place) -> None:
    """An identifier that waits for PUBREL is in use; a server may take, refuse or punish QoS 1 on it."""
    client = place.connect("c")
    client.send(publish(place.topic("a"), qos=2, pid=5))
    client.expect(Type.PUBREC)
    client.send(publish(place.topic("a"), qos=1, pid=5))
    found = client.expect_any()
    if found.type is Type.PUBACK:
        assert found.reason in (R.PACKET_ID_IN_USE, R.SUCCESS, R.NO_MATCHING_SUBSCRIBERS)
    else:
        assert (found.type, found.reason in MALFORMED_OR_PROTOCOL) == (Type.DISCONNECT, True)


@pytest.mark.parametrize("flags", [0x60, 0x61, 0x63, 0x6A])
def test_mqtt_3_6_1_1_pubrel_reserved_flags(place: Place, flags: int) -> None:
    """The flags of PUBREL are 0010; anything else is malformed."""
    place.expect_violation(packet(flags, u16(1)), R.MALFORMED_PACKET)


def test_mqtt_section_3_4_2_acks_in_every_length(place: Place) -> None:
    """An acknowledgement may leave out its properties, and with them a reason code of success."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 2))
    forms: list[tuple[int | None, list[tuple[P, str]] | None]] = [(None, None), (0, None), (0, [])]
    forms.append((0, [(P.REASON_STRING, "fine")]))
    for reason, props in forms:
        client.publish(place.topic("a"), qos=2)
        pid = client.receive(auto_ack=False).pid
        assert pid is not None
        client.send(ack(Type.PUBREC, pid, reason, props))
        assert client.expect(Type.PUBREL).pid == pid
        client.send(ack(Type.PUBCOMP, pid, reason, props))
    client.expect_quiet()


@pytest.mark.parametrize("kind", [Type.PUBACK, Type.PUBREC, Type.PUBREL, Type.PUBCOMP])
def test_mqtt_section_3_4_2_2_reason_string_twice(place: Place, kind: Type) -> None:
    """A reason string appears once in an acknowledgement."""
    data = ack(kind, 1, 0, [(P.REASON_STRING, "a")] * 2)
    place.expect_violation(data, R.PROTOCOL_ERROR)


@pytest.mark.parametrize("kind", [Type.PUBACK, Type.PUBREC, Type.PUBREL, Type.PUBCOMP])
def test_mqtt_3_4_2_1_reason_code_that_is_not_for_this_packet(place: Place, kind: Type) -> None:
    """An acknowledgement with a reason code that is not in its table is malformed or a protocol error."""
    place.expect_violation(ack(kind, 1, 0x8D), *MALFORMED_OR_PROTOCOL)


# Messages to a client


def test_mqtt_4_3_1_1_qos_0_has_neither_identifier_nor_dup(place: Place) -> None:
    """QoS 0 is delivered once, without DUP (the parser checks) and without packet identifier."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 2))
    client.publish(place.topic("a"), b"x")
    message = client.receive()
    assert (message.qos, message.pid) == (0, None)


def test_mqtt_4_3_2_2_qos_1_first_delivery_has_no_dup(place: Place) -> None:
    """The first delivery of a QoS 1 or 2 message has DUP 0 and a packet identifier."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 2))
    for qos in (1, 2):
        client.publish(place.topic("a"), b"x", qos=qos)
        message = client.receive()
        assert (message.qos, message.dup, message.pid != 0) == (qos, False, True)


def test_mqtt_4_3_3_4_pubrec_is_answered_by_pubrel(place: Place) -> None:
    """PUBREC below 0x80 gets PUBREL with the same identifier, also when PUBREC is repeated."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 2))
    client.publish(place.topic("a"), b"x", qos=2)
    pid = client.receive(auto_ack=False).pid
    assert pid is not None
    for reason in (None, R.NO_MATCHING_SUBSCRIBERS):
        client.send(ack(Type.PUBREC, pid, reason))
        assert client.expect(Type.PUBREL).pid == pid
    client.send(ack(Type.PUBCOMP, pid))
    client.expect_quiet()


def test_mqtt_4_3_3_4_acknowledgements_in_another_order(place: Place) -> None:
    """A subscriber may answer QoS 2 messages in any order; each exchange goes on by itself."""
    subscriber, publisher = place.connect("sub"), place.connect("pub")
    subscriber.subscribe((place.topic("a"), 2))
    for _ in range(3):
        publisher.publish(place.topic("a"), qos=2)
    pids = [subscriber.receive(auto_ack=False).pid for _ in range(3)]
    for pid in reversed(pids):
        assert pid is not None
        subscriber.send(ack(Type.PUBREC, pid))
        assert subscriber.expect(Type.PUBREL).pid == pid
    for pid in pids:
        assert pid is not None
        subscriber.send(ack(Type.PUBCOMP, pid))
    subscriber.expect_quiet()


def test_mqtt_4_3_3_7_expiry_does_not_stop_a_delivery_under_way(place: Place) -> None:
    """Once PUBLISH was sent, PUBREC is answered by PUBREL whatever the message's expiry."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 2))
    client.publish(place.topic("a"), b"x", qos=2, props=[(P.MESSAGE_EXPIRY, 1)])
    pid = client.receive(auto_ack=False).pid
    assert pid is not None
    client.expect_nothing(1.2)
    client.send(ack(Type.PUBREC, pid))
    assert client.expect(Type.PUBREL).pid == pid


# Order


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_4_6_0_5_messages_keep_their_order(place: Place, qos: int) -> None:
    """Messages of one client to one topic and QoS reach each subscriber in the order they were published."""
    count = 60
    subscriber, publisher = place.connect("sub"), place.connect("pub")
    subscriber.subscribe((place.topic("a"), qos))
    payloads = [b"%d" % number for number in range(count)]
    for payload in payloads:
        publisher.publish(place.topic("a"), payload, qos=qos)
    assert subscriber.receive_payloads(count) == payloads


def test_mqtt_4_6_0_6_order_across_wildcards(place: Place) -> None:
    """Every topic is ordered, also for a subscriber that sees many through a wildcard."""
    subscriber, publisher = place.connect("sub"), place.connect("pub")
    subscriber.subscribe((place.topic("+"), 1))
    for number in range(40):
        publisher.publish(place.topic(f"{number % 4}"), b"%d" % number, qos=1)
    by_topic: dict[str, list[int]] = {}
    for _ in range(40):
        message = subscriber.receive()
        by_topic.setdefault(message.topic, []).append(int(message.payload))
    assert all(numbers == sorted(numbers) for numbers in by_topic.values())


def test_mqtt_4_6_0_5_order_of_messages_that_waited(place: Place) -> None:
    """Messages that waited for an absent subscriber come in the order they were published."""
    kept = [(P.SESSION_EXPIRY, 60)]
    first = place.connect("sub", props=kept)
    first.subscribe((place.topic("a"), 1))
    first.drop()
    publisher = place.connect("pub")
    payloads = [b"%d" % number for number in range(30)]
    for payload in payloads:
        publisher.publish(place.topic("a"), payload, qos=1)
    second = place.connect("sub", clean=False, props=kept)
    assert second.receive_payloads(30) == payloads


def test_mqtt_4_3_3_13_expiry_does_not_stop_the_acknowledgements(place: Place) -> None:
    """A QoS 2 message that expires before PUBREL is still acknowledged to the end."""
    client = place.connect("c")
    client.send(publish(place.topic("a"), b"x", qos=2, pid=3, props=[(P.MESSAGE_EXPIRY, 1)]))
    client.expect(Type.PUBREC)
    client.expect_nothing(1.2)
    client.send(ack(Type.PUBREL, 3))
    answer = client.expect(Type.PUBCOMP)
    assert (answer.pid, answer.reason) == (3, R.SUCCESS)


def test_mqtt_4_6_0_5_order_with_a_narrow_window(place: Place) -> None:
    """Order holds also where a receive maximum of 1 makes messages wait in the server."""
    subscriber, publisher = place.connect("sub", props=[(P.RECEIVE_MAX, 1)]), place.connect("pub")
    subscriber.subscribe((place.topic("a"), 2))
    payloads = [b"%d" % number for number in range(15)]
    for payload in payloads:
        publisher.publish(place.topic("a"), payload, qos=2)
    assert subscriber.receive_payloads(15) == payloads
    subscriber.expect_quiet()
