"""MQTT 3.1.1, sections 2.3.1, 3.4 to 3.7, 4.3 and 4.6: handshakes, packet identifiers and order."""

import pytest

from conformance import wire
from conformance.wire import V3, Type

QOS = (0, 1, 2)
IN_FLIGHT = 20

MOSQUITTO_DEVIATES = {
    "test_mqtt_4_3_3_2_qos_2_repeated_before_pubrel_is_delivered_once": "closes at the second repetition",
}


@pytest.fixture
def topic(place):
    return place.topic("topic")


@pytest.fixture
def publisher(place):
    return place.connect("publisher", V3)


@pytest.fixture
def subscriber(place, topic):
    peer = place.connect("subscriber", V3)
    peer.subscribe((topic, 2))
    return peer


def exchange_qos_2(publisher, topic, payload, pid):
    """The whole handshake with an identifier of our choice."""
    publisher.send(wire.publish(topic, payload, v=V3, qos=2, pid=pid))
    assert publisher.expect(Type.PUBREC).pid == pid
    publisher.send(wire.ack(Type.PUBREL, pid))
    assert publisher.expect(Type.PUBCOMP).pid == pid


@pytest.mark.parametrize(
    "packet",
    [
        wire.subscribe(0, "a", v=V3),
        wire.unsubscribe(0, "a", v=V3),
        wire.publish("a", b"", v=V3, qos=1, pid=0),
        wire.publish("a", b"", v=V3, qos=2, pid=0),
    ],
    ids=["subscribe", "unsubscribe", "publish-qos-1", "publish-qos-2"],
)
def test_mqtt_2_3_1_1_packet_identifier_zero_closes(publisher, packet):
    """Zero names no packet."""
    publisher.send(packet)
    publisher.expect_closed()


def test_mqtt_2_3_1_4_server_uses_unused_identifiers(subscriber, publisher, topic):
    """While they are unacknowledged, every message has an identifier of its own."""
    for n in range(10):
        publisher.publish(topic, b"%d" % n, qos=1 + n % 2)
    pids = [subscriber.receive(auto_ack=False).pid for _ in range(10)]
    assert len(set(pids)) == 10


def test_mqtt_2_3_1_5_qos_0_has_no_identifier(subscriber, publisher, topic):
    """Its payload begins right behind the topic: seven bytes here, not nine."""
    publisher.publish(topic, b"payload")
    assert subscriber.receive().raw.endswith(wire.binary(topic) + b"payload")


@pytest.mark.parametrize("pid", [1, 0x0100, 0xFFFF])
def test_mqtt_2_3_1_6_answers_carry_the_identifier_of_the_publish(publisher, topic, pid):
    """PUBACK, PUBREC and PUBCOMP, at both ends of the range."""
    publisher.send(wire.publish(topic, v=V3, qos=1, pid=pid))
    assert publisher.expect(Type.PUBACK).raw == bytes([0x40, 2]) + wire.u16(pid)
    publisher.send(wire.publish(topic, v=V3, qos=2, pid=pid))
    assert publisher.expect(Type.PUBREC).raw == bytes([0x50, 2]) + wire.u16(pid)
    publisher.send(wire.ack(Type.PUBREL, pid))
    assert publisher.expect(Type.PUBCOMP).raw == bytes([0x70, 2]) + wire.u16(pid)


@pytest.mark.parametrize("first_byte", [0x60, 0x61, 0x63, 0x66, 0x6A])
def test_mqtt_3_6_1_1_pubrel_with_other_flags_closes(publisher, topic, first_byte):
    """Its flags are 0010 and nothing else."""
    publisher.send(wire.publish(topic, v=V3, qos=2, pid=1))
    publisher.expect(Type.PUBREC)
    publisher.send(wire.packet(first_byte, wire.u16(1)))
    publisher.expect_closed()


def test_mqtt_3_6_1_1_pubrel_from_the_server_has_its_flags(subscriber, publisher, topic):
    """The server's own PUBREL is 0x62."""
    publisher.publish(topic, b"x", qos=2)
    message = subscriber.receive(auto_ack=False)
    subscriber.send(wire.ack(Type.PUBREC, message.pid))
    assert subscriber.expect(Type.PUBREL).raw == bytes([0x62, 2]) + wire.u16(message.pid)


def test_mqtt_4_3_1_1_qos_0_is_sent_once_and_not_answered(subscriber, publisher, topic):
    """One PUBLISH out, with QoS and DUP zero, and no answer to the publisher."""
    publisher.publish(topic, b"x")
    message = subscriber.receive()
    assert (message.qos, message.dup) == (0, False)
    publisher.expect_quiet()
    subscriber.expect_quiet()


def test_mqtt_4_3_2_1_qos_1_first_sending_is_not_dup(subscriber, publisher, topic):
    """With an identifier, and done once PUBACK has come."""
    publisher.publish(topic, b"x", qos=1)
    message = subscriber.receive(auto_ack=False)
    assert (message.qos, message.dup) == (1, False)
    subscriber.send(wire.ack(Type.PUBACK, message.pid))
    subscriber.expect_quiet()


def test_mqtt_4_3_2_2_after_puback_the_same_identifier_is_a_new_message(subscriber, publisher, topic):
    """Even with DUP: at QoS 1 a message may come twice, it may not be lost."""
    for dup in (False, True):
        publisher.send(wire.publish(topic, b"x", v=V3, qos=1, pid=3, dup=dup))
        publisher.expect(Type.PUBACK)
    assert subscriber.receive_payloads(2) == [b"x", b"x"]


def test_mqtt_4_3_3_1_qos_2_flow_to_a_subscriber(subscriber, publisher, topic):
    """PUBLISH, then PUBREL for PUBREC, then silence after PUBCOMP."""
    publisher.publish(topic, b"x", qos=2)
    message = subscriber.receive(auto_ack=False)
    assert (message.qos, message.dup) == (2, False)
    subscriber.send(wire.ack(Type.PUBREC, message.pid))
    assert subscriber.expect(Type.PUBREL).pid == message.pid
    subscriber.send(wire.ack(Type.PUBCOMP, message.pid))
    subscriber.expect_quiet()


def test_mqtt_4_3_3_2_qos_2_repeated_before_pubrel_is_delivered_once(subscriber, publisher, topic):
    """Each repetition is answered with PUBREC; onward goes one."""
    for dup in (False, True, True):
        publisher.send(wire.publish(topic, b"once", v=V3, qos=2, pid=4, dup=dup))
        assert publisher.expect(Type.PUBREC).pid == 4
    publisher.send(wire.ack(Type.PUBREL, 4))
    publisher.expect(Type.PUBCOMP)
    assert subscriber.receive().payload == b"once"
    subscriber.expect_quiet()


def test_mqtt_4_3_3_2_qos_2_identifier_is_free_after_pubcomp(subscriber, publisher, topic):
    """The same identifier with other content is another message."""
    for payload in (b"first", b"second"):
        exchange_qos_2(publisher, topic, payload, pid=4)
        assert subscriber.receive().payload == payload


def test_mqtt_4_3_3_2_pubrel_is_always_answered_with_pubcomp(publisher, topic):
    """A PUBREL sent again, because its PUBCOMP was lost, is answered again."""
    publisher.publish(topic, b"x", qos=2)
    publisher.send(wire.ack(Type.PUBREL, 1))
    assert publisher.expect(Type.PUBCOMP).pid == 1


def test_mqtt_4_3_3_2_qos_1_and_qos_2_identifiers_of_a_publisher_are_one_space(subscriber, publisher, topic):
    """A QoS 1 message with the identifier of another, finished QoS 2 message is simply new."""
    exchange_qos_2(publisher, topic, b"two", pid=9)
    assert subscriber.receive().payload == b"two"
    publisher.send(wire.publish(topic, b"one", v=V3, qos=1, pid=9))
    publisher.expect(Type.PUBACK)
    assert subscriber.receive().payload == b"one"


@pytest.mark.parametrize("kind", [Type.PUBACK, Type.PUBCOMP])
def test_mqtt_4_3_acknowledgements_of_nothing_do_no_harm(publisher, kind):
    """Section 4.3: an acknowledgement sent twice names an unknown identifier, and that is all."""
    publisher.send(wire.ack(kind, 4242))
    publisher.expect_quiet()


@pytest.mark.parametrize("qos", QOS)
def test_mqtt_4_6_0_6_messages_of_one_publisher_arrive_in_order(subscriber, publisher, topic, qos):
    """Same topic, same QoS: in the order in which they came, sent in one write or not."""
    sent = [b"%03d" % n for n in range(IN_FLIGHT)]
    pids = [None if qos == 0 else n + 1 for n in range(IN_FLIGHT)]
    packets = [
        wire.publish(topic, body, v=V3, qos=qos, pid=pid) for body, pid in zip(sent, pids, strict=True)
    ]
    publisher.send(*packets)
    if qos == 2:
        for pid in pids:
            assert publisher.expect(Type.PUBREC).pid == pid
        publisher.send(*[wire.ack(Type.PUBREL, pid) for pid in pids])
    assert [subscriber.receive(auto_ack=False).payload for _ in sent] == sent


@pytest.mark.parametrize(("qos", "answer"), [(1, Type.PUBACK), (2, Type.PUBREC)])
def test_mqtt_4_6_0_2_and_3_answers_come_in_the_order_of_the_messages(publisher, topic, qos, answer):
    """The server acknowledges a burst in the order in which it came."""
    pids = [5, 3, 9, 1, 7]
    publisher.send(*[wire.publish(topic, v=V3, qos=qos, pid=pid) for pid in pids])
    assert [publisher.expect(answer).pid for _ in pids] == pids


def test_mqtt_4_6_0_4_pubrels_come_in_the_order_of_the_pubrecs(subscriber, publisher, topic):
    """The receiver chose the order; the server keeps it."""
    for n in range(5):
        publisher.publish(topic, b"%d" % n, qos=2)
    pids = [subscriber.receive(auto_ack=False).pid for _ in range(5)]
    for pid in reversed(pids):
        subscriber.send(wire.ack(Type.PUBREC, pid))
    assert [subscriber.expect(Type.PUBREL).pid for _ in range(5)] == pids[::-1]


def test_mqtt_4_5_0_1_every_matching_client_gets_the_message(place, publisher, topic):
    """Each at its own QoS."""
    readers = [place.connect(f"reader{qos}", V3) for qos in QOS]
    for qos, reader in enumerate(readers):
        reader.subscribe((topic, qos))
    publisher.publish(topic, b"to all", qos=2)
    for qos, reader in enumerate(readers):
        message = reader.receive()
        assert (message.payload, message.qos) == (b"to all", qos)
