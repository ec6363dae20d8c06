"""MQTT 5.0, 3.12-3.15 and 4.13: PING, keep alive, DISCONNECT, and errors told before the close."""

import time

import pytest

from conformance.conftest import Place, StartPlace
from conformance.wire import PINGREQ, P, R, Type, Will, ack, connect, disconnect, packet, publish

KEEP_ALIVE_S = 1
MALFORMED_OR_PROTOCOL = (R.MALFORMED_PACKET, R.PROTOCOL_ERROR)

MOSQUITTO_DEVIATES = {
    "test_mqtt_section_3_12_pingreq_has_no_body": "does not look at it",
    "test_mqtt_3_1_2_22_dripping_bytes_are_not_packets": "takes its time",
}


def test_mqtt_3_12_4_1_pingreq_is_answered(place: Place) -> None:
    """Each PINGREQ gets a PINGRESP, several in one write as well."""
    client = place.connect("c")
    client.send(PINGREQ * 3)
    for _ in range(3):
        client.expect(Type.PINGRESP)
    client.expect_nothing()


def test_mqtt_section_3_12_pingreq_has_no_body(place: Place) -> None:
    """A PINGREQ with bytes after its header is malformed."""
    place.expect_violation(packet(0xC0, b"\0"), R.MALFORMED_PACKET)


# Keep alive


def test_mqtt_3_1_2_22_silence_ends_the_connection(place: Place) -> None:
    """After one and a half keep alive periods of silence the client is told 0x8D and cut off, not before."""
    began = time.monotonic()
    client = place.connect("c", keep_alive=KEEP_ALIVE_S)
    assert client.connack is not None
    if client.connack.prop(P.SERVER_KEEP_ALIVE) is not None:
        pytest.skip("this server insists on a keep alive of its own")
    client.expect_disconnect(R.KEEP_ALIVE_TIMEOUT, seconds_max=9)
    assert time.monotonic() - began > KEEP_ALIVE_S


def test_mqtt_3_2_2_22_any_packet_keeps_the_connection(place: Place) -> None:
    """Any packet from the client counts as a sign of life, not only PINGREQ."""
    client = place.connect("c", keep_alive=KEEP_ALIVE_S)
    for _ in range(3):
        client.expect_nothing(0.8)
        client.publish(place.topic("a"))
    client.expect_quiet()


def test_mqtt_section_3_1_2_10_keep_alive_zero_is_off(place: Place) -> None:
    """Keep alive 0 turns the mechanism off, unless the server sets its own."""
    client = place.connect("c", keep_alive=0)
    client.expect_nothing(0.3)
    client.expect_quiet()


# DISCONNECT


def test_mqtt_3_14_4_2_server_closes_after_disconnect(place: Place) -> None:
    """After DISCONNECT from the client the server closes too, and sends nothing more."""
    client = place.connect("c")
    client.send(disconnect())
    client.expect_closed()


@pytest.mark.parametrize("data", [disconnect(R.SUCCESS), disconnect(R.SUCCESS, props=[(P.USER, ("a", "b"))])])
def test_mqtt_section_3_14_2_disconnect_in_every_length(place: Place, data: bytes) -> None:
    """DISCONNECT may spell out its reason code and properties."""
    client = place.connect("c")
    client.send(data)
    client.expect_closed()


def test_mqtt_3_14_1_1_disconnect_reserved_flags(place: Place) -> None:
    """The flags of DISCONNECT are zero."""
    place.expect_violation(packet(0xE1), R.MALFORMED_PACKET)


@pytest.mark.parametrize("reason", [0x01, 0x92, 0xFF])
def test_mqtt_3_14_2_1_codes_that_are_not_for_disconnect(place: Place, reason: int) -> None:
    """A reason code that is not in the table of DISCONNECT is an error."""
    place.expect_violation(disconnect(reason), *MALFORMED_OR_PROTOCOL)


@pytest.mark.parametrize("reason", [R.SERVER_SHUTTING_DOWN, R.SESSION_TAKEN_OVER])
def test_mqtt_3_14_2_1_codes_that_only_a_server_sends(place: Place, reason: R) -> None:
    """A client that ends with a code of servers is gone either way: told that it erred, or just closed."""
    client = place.connect("c")
    client.says_why = False
    client.send(disconnect(reason))
    client.expect_disconnect(*MALFORMED_OR_PROTOCOL)


def test_mqtt_section_3_14_2_2_2_session_expiry_twice(place: Place) -> None:
    """A property of DISCONNECT appears once."""
    data = disconnect(R.SUCCESS, props=[(P.SESSION_EXPIRY, 1)] * 2)
    place.expect_violation(data, R.PROTOCOL_ERROR, props=[(P.SESSION_EXPIRY, 60)])


def test_mqtt_3_14_2_2_server_sends_no_session_expiry(place: Place) -> None:
    """A server's DISCONNECT has no session expiry interval (the parser checks), whatever the session had."""
    client = place.connect("c", props=[(P.SESSION_EXPIRY, 60)])
    client.send(publish("#"))
    client.expect_disconnect(R.TOPIC_NAME_INVALID, *MALFORMED_OR_PROTOCOL)


def test_mqtt_3_14_0_1_no_disconnect_before_connack(place: Place) -> None:
    """A connection that was never accepted gets no DISCONNECT: a refusal is a CONNACK, or just the close."""
    for data in (packet(0xE0), b"\x10\x00", connect(place.client_id("c"), props=[(P.RECEIVE_MAX, 0)])):
        peer = place.peer()
        peer.send(data)
        answer = peer.rest()
        assert answer == b"" or answer[0] == 0x20


# 4.13 Errors


def test_mqtt_4_13_1_1_malformed_packet_is_told_and_closed(place: Place) -> None:
    """A malformed packet ends the connection with DISCONNECT 0x81; good packets before it were served."""
    subscriber, client = place.connect("sub"), place.connect("c")
    subscriber.subscribe(place.topic("a"))
    client.send(publish(place.topic("a"), b"good"), packet(0x36, b"\0\1a\0\1\0"))
    client.expect_disconnect(R.MALFORMED_PACKET)
    assert subscriber.receive().payload == b"good"


def test_mqtt_4_13_1_1_nothing_after_a_malformed_packet_is_processed(place: Place) -> None:
    """What follows a malformed packet in the same write is not processed."""
    subscriber, client = place.connect("sub"), place.connect("c")
    subscriber.subscribe(place.topic("a"))
    client.send(packet(0x36, b"\0\1a\0\1\0"), publish(place.topic("a"), b"bad"))
    client.expect_disconnect(R.MALFORMED_PACKET)
    subscriber.expect_quiet()


def test_mqtt_4_13_2_1_an_error_is_that_clients_alone(place: Place) -> None:
    """One client's errors leave the others undisturbed."""
    others = [place.connect(name) for name in ("a", "b")]
    for data in (packet(0x36), packet(0x00), b"\xff" * 64, packet(0x82, b"\0")):
        place.expect_violation(data, *MALFORMED_OR_PROTOCOL, R.PACKET_TOO_LARGE)
    for other in others:
        other.expect_quiet()


def test_mqtt_section_4_13_half_a_packet_then_silence(place: Place) -> None:
    """A packet that is never finished does no harm to the one who waits for nothing."""
    half, other = place.connect("half"), place.connect("other")
    half.send(publish(place.topic("a"), b"x" * 50)[:20])
    other.expect_quiet()
    half.drop()
    other.expect_quiet()


def test_mqtt_section_4_2_packets_split_and_joined(place: Place) -> None:
    """The stream has no packet boundaries: many packets in one write and one packet in many are the same."""
    client = place.connect("c")
    client.subscribe(place.topic("a"))
    stream = b"".join(publish(place.topic("a"), b"%d" % number) for number in range(20))
    for start in range(0, len(stream), 7):
        client.send(stream[start : start + 7])
    assert client.receive_payloads(20) == [b"%d" % number for number in range(20)]


def test_mqtt_3_1_2_22_only_packets_from_the_client_count(place: Place) -> None:
    """A client that is sent messages but sends nothing is silent all the same."""
    client, publisher = place.connect("c", keep_alive=KEEP_ALIVE_S), place.connect("pub")
    client.subscribe(place.topic("a"))
    for _ in range(20):
        publisher.publish(place.topic("a"))
        time.sleep(0.1)
    client.expect_disconnect(R.KEEP_ALIVE_TIMEOUT, seconds_max=9)


def test_mqtt_3_1_2_22_dripping_bytes_are_not_packets(place: Place) -> None:
    """A whole packet must arrive in time: bytes of one that never ends do not keep a connection open."""
    client = place.connect("c", keep_alive=KEEP_ALIVE_S)
    client.says_why = False
    for byte in publish(place.topic("a"), b"x" * 100)[:9]:
        client.send(bytes([byte]))
        time.sleep(0.25)
    client.expect_disconnect(R.KEEP_ALIVE_TIMEOUT, seconds_max=0.5)


def test_mqtt_section_3_14_4_connect_and_disconnect_in_one_write(place: Place) -> None:
    """A client may come and go in one write: CONNACK, then the close, and no will."""
    watcher, peer = place.connect("watcher"), place.peer()
    watcher.subscribe(place.topic("will"))
    peer.send(connect(place.client_id("c"), will=Will(place.topic("will"))), disconnect())
    peer.expect(Type.CONNACK)
    peer.expect_closed()
    watcher.expect_quiet()


def test_mqtt_section_4_13_acknowledgement_of_the_wrong_kind(place: Place) -> None:
    """PUBACK for a QoS 2 message, or PUBREC for QoS 1, may end this connection, but never hurts another."""
    other = place.connect("other")
    for qos, kind in ((1, Type.PUBREC), (2, Type.PUBACK), (1, Type.PUBCOMP), (2, Type.PUBCOMP)):
        client = place.connect("c")
        client.subscribe((place.topic("a"), qos))
        client.publish(place.topic("a"), b"x", qos=qos)
        pid = client.receive(auto_ack=False).pid
        assert pid is not None
        client.send(ack(kind, pid))
        client.drop()
    other.expect_quiet()


def test_mqtt_section_3_14_2_1_server_that_stops_says_so(start_place: StartPlace) -> None:
    """A server that is told to stop tells its clients 0x8B before it closes."""
    place = start_place()
    client = place.connect("c")
    place.stop()
    client.expect_disconnect(R.SERVER_SHUTTING_DOWN, seconds_max=5)
