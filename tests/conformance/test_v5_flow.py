"""MQTT 5.0, limits that each side announces: receive maximum, packet size, problem information (4.9)."""

import pytest

from conformance.conftest import Place, StartPlace
from conformance.wire import P, R, Type, ack, connect, disconnect, packet, publish, subscribe, u16, varint

MOSQUITTO_DEVIATES = {
    "test_mqtt_3_3_4_7_client_exceeds_the_receive_maximum": "answers PUBREC with 0x97",
    "test_mqtt_3_1_2_25_too_large_message_is_skipped[1]": "the message keeps its place under way",
    "test_mqtt_3_1_2_25_too_large_message_is_skipped[2]": "the message keeps its place under way",
    "test_mqtt_3_1_2_24_limit_counts_the_whole_packet": "lets one byte too many through",
}


# Receive maximum of the client


def test_mqtt_3_3_4_9_receive_maximum_at_qos_1(place: Place) -> None:
    """No more messages of QoS 1 are under way than the client allows; each PUBACK lets one more through."""
    subscriber, publisher = place.connect("sub", props=[(P.RECEIVE_MAX, 2)]), place.connect("pub")
    subscriber.subscribe((place.topic("a"), 1))
    for number in range(5):
        publisher.publish(place.topic("a"), b"%d" % number, qos=1)
    under_way = [subscriber.receive(auto_ack=False) for _ in range(2)]
    subscriber.expect_quiet()
    for expected in (b"2", b"3", b"4"):
        pid = under_way.pop(0).pid
        assert pid is not None
        subscriber.send(ack(Type.PUBACK, pid))
        under_way.append(subscriber.receive(auto_ack=False))
        assert under_way[-1].payload == expected
    subscriber.expect_quiet()


def test_mqtt_3_3_4_9_receive_maximum_at_qos_2(place: Place) -> None:
    """At QoS 2 the place is free again with PUBCOMP, not with PUBREC."""
    subscriber, publisher = place.connect("sub", props=[(P.RECEIVE_MAX, 1)]), place.connect("pub")
    subscriber.subscribe((place.topic("a"), 2))
    for payload in (b"1", b"2"):
        publisher.publish(place.topic("a"), payload, qos=2)
    pid = subscriber.receive(auto_ack=False).pid
    assert pid is not None
    subscriber.send(ack(Type.PUBREC, pid))
    subscriber.expect(Type.PUBREL)
    subscriber.expect_quiet()
    subscriber.send(ack(Type.PUBCOMP, pid))
    assert subscriber.receive().payload == b"2"


@pytest.mark.parametrize(("qos", "kind"), [(1, Type.PUBACK), (2, Type.PUBREC)])
def test_mqtt_4_9_0_2_negative_acknowledgement_frees_the_place(place: Place, qos: int, kind: Type) -> None:
    """PUBACK or PUBREC of 0x80 or more ends the exchange and gives the quota back."""
    subscriber, publisher = place.connect("sub", props=[(P.RECEIVE_MAX, 1)]), place.connect("pub")
    subscriber.subscribe((place.topic("a"), 2))
    for payload in (b"1", b"2"):
        publisher.publish(place.topic("a"), payload, qos=qos)
    pid = subscriber.receive(auto_ack=False).pid
    assert pid is not None
    subscriber.send(ack(kind, pid, R.IMPLEMENTATION_SPECIFIC))
    assert subscriber.receive().payload == b"2"


def test_mqtt_4_9_0_3_other_packets_flow_when_the_quota_is_used_up(place: Place) -> None:
    """With the quota at zero the server still answers PINGREQ, SUBSCRIBE, UNSUBSCRIBE and PUBLISH."""
    client = place.connect("c", props=[(P.RECEIVE_MAX, 1)])
    client.subscribe((place.topic("a"), 1))
    client.publish(place.topic("a"), b"1", qos=1)
    client.receive(auto_ack=False)
    client.send(packet(0xC0))
    client.expect(Type.PINGRESP)
    client.subscribe(place.topic("b"))
    client.unsubscribe(place.topic("b"))
    client.publish(place.topic("c"), b"2", qos=1)
    client.publish(place.topic("c"), b"3", qos=2)


def test_mqtt_3_3_4_9_receive_maximum_on_resuming(place: Place) -> None:
    """The limit holds for what is sent again and for what waited; it is that of the new connection."""
    kept = (P.SESSION_EXPIRY, 60)
    first = place.connect("sub", props=[kept])
    first.subscribe((place.topic("a"), 1))
    first.drop()
    publisher = place.connect("pub")
    for payload in (b"1", b"2", b"3"):
        publisher.publish(place.topic("a"), payload, qos=1)
    second = place.connect("sub", clean=False, props=[kept, (P.RECEIVE_MAX, 2)])
    assert [second.receive(auto_ack=False).payload for _ in range(2)] == [b"1", b"2"]
    second.expect_quiet()


# Receive maximum of the server


def test_mqtt_3_3_4_7_client_exceeds_the_receive_maximum(place: Place) -> None:
    """A client with more QoS 2 messages under way than the server announced is told 0x93."""
    client = place.connect("c")
    assert client.connack is not None
    maximum = client.connack.number(P.RECEIVE_MAX, 65535)
    if maximum > 20000:
        pytest.skip("this server's receive maximum is out of reach")
    client.send(*(publish(place.topic("a"), qos=2, pid=pid) for pid in range(1, maximum + 1)))
    for _ in range(maximum):
        client.expect(Type.PUBREC)
    client.send(publish(place.topic("a"), qos=2, pid=maximum + 1))
    client.expect_disconnect(R.RECEIVE_MAX_EXCEEDED)


def test_mqtt_section_4_9_quota_comes_back_with_each_exchange(place: Place) -> None:
    """Completed exchanges do not count: many times the receive maximum can be sent one after another."""
    client = place.connect("c")
    for pid in range(1, 60):
        client.send(publish(place.topic("a"), qos=1 + pid % 2, pid=pid))
        if pid % 2:
            client.expect(Type.PUBREC)
            client.send(ack(Type.PUBREL, pid))
            client.expect(Type.PUBCOMP)
        else:
            client.expect(Type.PUBACK)
    client.expect_quiet()


# Maximum packet size


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_1_2_25_too_large_message_is_skipped(place: Place, qos: int) -> None:
    """A message too large for this client is dropped for it as if sent, and does not hold up the next."""
    props = [(P.MAX_PACKET_SIZE, 120), (P.RECEIVE_MAX, 1)]
    small, large, publisher = (
        place.connect("small", props=props),
        place.connect("large"),
        place.connect("pub"),
    )
    for subscriber in (small, large):
        subscriber.subscribe((place.topic("a"), qos))
    publisher.publish(place.topic("a"), b"L" * 200, qos=qos)
    publisher.publish(place.topic("a"), b"s", qos=qos)
    assert small.receive().payload == b"s"
    assert large.receive_payloads(2) == [b"L" * 200, b"s"]


def test_mqtt_3_1_2_24_limit_counts_the_whole_packet(place: Place) -> None:
    """A message that is exactly as large as the limit is delivered; one byte more is not."""
    limit = 100
    client = place.connect("c", props=[(P.MAX_PACKET_SIZE, limit)])
    client.subscribe(place.topic("a"))
    room = limit - len(publish(place.topic("a")))
    client.publish(place.topic("a"), b"x" * (room + 1))
    client.publish(place.topic("a"), b"x" * room)
    assert len(client.receive().raw) == limit
    client.expect_quiet()


def test_mqtt_3_2_2_19_reason_string_fits_the_packet_size(place: Place) -> None:
    """A refusal is not made larger than the client can take for the sake of its reason string."""
    limit = 12
    props = [(P.MAX_PACKET_SIZE, limit), (P.AUTH_METHOD, "unheard of")]
    peer = place.peer()
    peer.send(connect(place.client_id("c"), props=props))
    assert len(peer.rest()) <= limit


def test_mqtt_3_14_2_3_disconnect_fits_the_packet_size(place: Place) -> None:
    """DISCONNECT does not exceed the client's limit either."""
    limit = 60
    peer = place.connect("c", props=[(P.MAX_PACKET_SIZE, limit)])
    peer.send(publish("#"))
    assert len(peer.rest()) <= limit


def test_mqtt_3_2_2_15_client_exceeds_the_packet_size(start_place: StartPlace) -> None:
    """A packet larger than the server announced is refused with 0x95, from its header on."""
    place = start_place(mosquitto_conf="max_packet_size 2000\n")
    client = place.connect("c")
    assert client.connack is not None
    limit = client.connack.number(P.MAX_PACKET_SIZE, 0)
    if not limit:
        pytest.skip("this server announces no maximum packet size")
    head = u16(1) + b"a" + b"\0"
    client.send(b"\x30" + varint(limit) + head)
    client.expect_disconnect(R.PACKET_TOO_LARGE)


# Request problem information


def test_mqtt_3_1_2_29_no_reason_strings_when_not_wanted(place: Place) -> None:
    """With request problem information 0, only CONNACK, DISCONNECT and PUBLISH may carry such text."""
    client = place.connect("c", props=[(P.REQUEST_PROBLEM_INFO, 0)])
    answers = [client.unsubscribe(place.topic("never"))]
    client.send(ack(Type.PUBREL, 99))
    answers.append(client.expect(Type.PUBCOMP))
    client.send(ack(Type.PUBREC, 98))
    answers.append(client.expect(Type.PUBREL))
    client.send(subscribe(7, (place.topic("a"), 1)))
    answers.append(client.expect(Type.SUBACK))
    puback = client.publish(place.topic("nobody"), qos=1)
    assert puback is not None
    for answer in (*answers, puback):
        assert answer.props == []


def test_mqtt_3_1_2_29_published_user_properties_still_travel(place: Place) -> None:
    """Request problem information 0 does not touch the properties of messages."""
    client = place.connect("c", props=[(P.REQUEST_PROBLEM_INFO, 0)])
    client.subscribe(place.topic("a"))
    client.publish(place.topic("a"), props=[(P.USER, ("a", "b"))])
    assert client.receive().all(P.USER) == [("a", "b")]


def test_mqtt_3_14_4_1_nothing_after_disconnect_is_processed(place: Place) -> None:
    """A client sends nothing after DISCONNECT; what comes anyway has no effect."""
    subscriber, client = place.connect("sub"), place.connect("c")
    subscriber.subscribe(place.topic("a"))
    client.send(disconnect(), publish(place.topic("a"), b"late"))
    client.expect_closed()
    subscriber.expect_quiet()
