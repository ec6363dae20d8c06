"""MQTT 3.1.1, sections 3.1 and 3.2: who is let in, and with which answer."""

import time

import pytest

from conformance import wire
from conformance.wire import PINGREQ, V3, Type, Will
from support.brokers import MOSQUITTO, broker_kind

ACCEPTED, BAD_LEVEL, BAD_CLIENT_ID = 0, 1, 2
CLEAN, WILL, WILL_QOS_1, WILL_RETAIN, PASSWORD, USER = 0x02, 0x04, 0x08, 0x20, 0x40, 0x80

KEEP_ALIVE_S = 1
KEEP_ALIVE_LATE_S = 5.0 if broker_kind() == MOSQUITTO else 1.0  # Mosquitto looks every few seconds


@pytest.mark.parametrize(
    "first",
    [
        wire.publish("a", b"x", v=V3),
        wire.publish("a", b"x", v=V3, qos=1, pid=1),
        wire.subscribe(1, "a", v=V3),
        wire.unsubscribe(1, "a", v=V3),
        wire.ack(Type.PUBACK, 1),
        wire.ack(Type.PUBREL, 1),
        PINGREQ,
        wire.disconnect(),
    ],
    ids=["publish", "publish-qos-1", "subscribe", "unsubscribe", "puback", "pubrel", "pingreq", "disconnect"],
)
def test_mqtt_3_1_0_1_the_first_packet_is_connect(place, first):
    """Anything else before CONNECT ends the connection, and nothing is answered."""
    peer = place.peer(V3)
    peer.send(first)
    peer.expect_closed()


def test_mqtt_3_1_0_2_second_connect_closes(place):
    """A client that is already connected may not connect again on the same connection."""
    peer = place.connect("twice", V3)
    peer.send(wire.connect(place.client_id("twice"), v=V3))
    peer.expect_closed()


@pytest.mark.parametrize("name", [b"MQTX", b"mqtt", b"", b"MQT", b"MQTTX", b"HTTP"])
def test_mqtt_3_1_2_1_unknown_protocol_name_closes(place, name):
    """Another protocol's name is not processed as MQTT; a server may just close, or refuse first."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("name"), v=V3, protocol=name))
    assert peer.rest() in (b"", bytes([0x20, 2, 0, BAD_LEVEL]))


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_mqtt_3_1_2_2_unacceptable_level_is_refused_with_1(place, level):
    """MQTT at a level that was never given to it gets return code 1 before the close."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("level"), v=V3, level=level))
    peer.expect_refused(BAD_LEVEL)


def test_mqtt_3_1_2_3_reserved_connect_flag_closes(place):
    """Bit 0 of the connect flags is zero."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("reserved"), v=V3, flags=CLEAN | 0x01))
    peer.expect_closed()


def test_mqtt_3_1_2_9_will_flag_without_will_fields_closes(place):
    """With the will flag, will topic and will message follow the client identifier."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("nowill"), v=V3, flags=CLEAN | WILL))
    peer.expect_closed()


def test_mqtt_3_1_2_11_will_fields_without_will_flag_close(place):
    """Without the will flag, will topic and will message are bytes that belong to no field."""
    peer = place.peer(V3)
    will = Will(place.topic("will"))
    peer.send(wire.connect(place.client_id("noflag"), v=V3, will=will, flags=CLEAN))
    peer.expect_closed()


def test_mqtt_3_1_2_13_will_qos_without_will_flag_closes(place):
    """No will, so no QoS of it."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("qos"), v=V3, flags=CLEAN | WILL_QOS_1))
    peer.expect_closed()


def test_mqtt_3_1_2_14_will_qos_3_closes(place):
    """There is no QoS 3."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("qos3"), v=V3, will=Will(place.topic("will"), qos=3)))
    peer.expect_closed()


def test_mqtt_3_1_2_15_will_retain_without_will_flag_closes(place):
    """No will, so nothing to retain."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("retain"), v=V3, flags=CLEAN | WILL_RETAIN))
    peer.expect_closed()


def test_mqtt_3_1_2_18_user_name_without_its_flag_closes(place):
    """A user name that no flag announces is bytes past the end."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("user"), v=V3, username="someone", flags=CLEAN))
    peer.expect_closed()


def test_mqtt_3_1_2_19_user_name_flag_without_user_name_closes(place):
    """The flag promises a field that is not there."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("user"), v=V3, flags=CLEAN | USER))
    peer.expect_closed()


def test_mqtt_3_1_2_20_password_without_its_flag_closes(place):
    """A password that no flag announces is bytes past the end."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("pw"), v=V3, username="u", password=b"p", flags=CLEAN | USER))
    peer.expect_closed()


def test_mqtt_3_1_2_21_password_flag_without_password_closes(place):
    """The flag promises a field that is not there."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("pw"), v=V3, username="u", flags=CLEAN | USER | PASSWORD))
    peer.expect_closed()


def test_mqtt_3_1_2_22_password_without_user_name_closes(place):
    """In 3.1.1 a password needs a user name (MQTT 5 lifts this)."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("pw"), v=V3, password=b"p"))
    peer.expect_closed()


def test_mqtt_3_1_2_24_silence_for_one_and_a_half_keep_alives_closes(place):
    """Not before one and a half periods of silence, and soon after."""
    peer = place.connect("silent", V3, keep_alive=KEEP_ALIVE_S)
    silent_since = time.monotonic()
    peer.expect_closed(seconds_max=1.5 * KEEP_ALIVE_S + KEEP_ALIVE_LATE_S)
    assert time.monotonic() - silent_since > KEEP_ALIVE_S


def test_mqtt_3_1_2_24_any_packet_counts_as_a_sign_of_life(place):
    """Messages at QoS 0, which are never answered, keep the connection as well as PINGREQ does."""
    peer = place.connect("chatty", V3, keep_alive=KEEP_ALIVE_S)
    until = time.monotonic() + 2 * KEEP_ALIVE_S
    while time.monotonic() < until:
        peer.publish(place.topic("chat"))
        peer.expect_nothing(KEEP_ALIVE_S / 2)
    peer.expect_quiet()


def test_mqtt_3_1_2_10_keep_alive_zero_turns_the_check_off(place):
    """Section 3.1.2.10: zero means that the server never closes for silence."""
    peer = place.connect("patient", V3, keep_alive=0)
    peer.expect_nothing(2 * KEEP_ALIVE_S)
    peer.expect_quiet()


def test_mqtt_3_1_3_1_all_fields_in_their_order_are_accepted(place):
    """Identifier, will topic, will message, user name, password: each is read from its own place."""
    watcher = place.connect("watcher", V3)
    watcher.subscribe(place.topic("will"))
    will = Will(place.topic("will"), b"last words")
    place.connect("full", V3, will=will, username="user", password=b"\x00\xff").drop()
    assert watcher.receive().payload == b"last words"


def test_mqtt_3_1_3_3_client_id_is_present(place):
    """A CONNECT that ends before the client identifier is not a CONNECT."""
    peer = place.peer(V3)
    whole = wire.connect("", v=V3)
    peer.send(wire.packet(0x10, whole[2:-2]))
    peer.expect_closed()


ALPHANUMERIC = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.mark.parametrize("client_id", ["a", ALPHANUMERIC[:23], ALPHANUMERIC[23:46], ALPHANUMERIC[39:]])
def test_mqtt_3_1_3_5_plain_client_ids_are_allowed(place, client_id):
    """One to 23 letters and digits always do."""
    place.peer(V3).connect(client_id)


def test_mqtt_3_1_3_5_longer_and_other_client_ids_are_allowed(place):
    """Beyond what the text demands, and what clients in the field send."""
    place.peer(V3).connect("plant/halle-3 größe:" + "x" * 200)


def test_mqtt_3_1_3_6_empty_client_ids_get_one_each(place):
    """Two clients without an identifier do not take over each other's session."""
    peers = [place.peer(V3), place.peer(V3)]
    for peer in peers:
        assert not peer.connect("").session_present
    for peer in peers:
        peer.expect_quiet()


def test_mqtt_3_1_3_8_empty_client_id_with_a_kept_session_is_refused_with_2(place):
    """A session that nobody can name cannot be kept."""
    peer = place.peer(V3)
    peer.send(wire.connect("", v=V3, clean=False))
    peer.expect_refused(BAD_CLIENT_ID)


def test_mqtt_3_1_4_1_connect_with_bytes_past_its_end_closes(place):
    """A CONNECT that is not as section 3.1 says is closed without CONNACK."""
    peer = place.peer(V3)
    peer.send(wire.packet(0x10, wire.connect(place.client_id("tail"), v=V3)[2:] + b"\x00"))
    peer.expect_closed()


def test_mqtt_3_1_4_2_same_client_id_closes_the_older_connection(place):
    """The newer connection wins; 3.1.1 has no packet to tell the older one why."""
    older = place.connect("same", V3)
    newer = place.connect("same", V3)
    older.expect_closed()
    newer.expect_quiet()


def test_mqtt_3_1_4_4_a_good_connect_is_acknowledged_with_0(place):
    """Exactly four bytes: type, length, no session, accepted."""
    assert place.connect("good", V3).connack.raw == bytes([0x20, 2, 0, ACCEPTED])


def test_mqtt_3_1_4_packets_may_follow_connect_before_connack(place):
    """Section 3.1.4: a client need not wait for CONNACK; what it sends at once is done after the CONNECT."""
    peer = place.peer(V3)
    topic = place.topic("eager")
    peer.send(
        wire.connect(place.client_id("eager"), v=V3),
        wire.subscribe(1, topic, v=V3),
        wire.publish(topic, b"at once", v=V3),
    )
    peer.expect(Type.CONNACK)
    peer.expect(Type.SUBACK)
    assert peer.receive().payload == b"at once"


def test_mqtt_3_1_4_5_nothing_after_a_refused_connect_is_processed(place):
    """The PUBLISH behind a CONNECT that is refused reaches nobody."""
    topic = place.topic("behind")
    watcher = place.connect("watcher", V3)
    watcher.subscribe(topic)
    peer = place.peer(V3)
    peer.send(wire.connect("", v=V3, clean=False), wire.publish(topic, b"smuggled", v=V3))
    peer.expect_refused(BAD_CLIENT_ID)
    watcher.expect_quiet()


def test_mqtt_3_2_0_1_connack_comes_before_queued_messages(place):
    """Even when messages wait in the session, CONNACK is the first packet from the server."""
    topic = place.topic("queued")
    subscriber = place.connect("sub", V3, clean=False)
    subscriber.subscribe((topic, 1))
    subscriber.drop()
    place.connect("pub", V3).publish(topic, b"waiting", qos=1)
    back = place.connect("sub", V3, clean=False)
    assert back.receive().payload == b"waiting"


def test_mqtt_3_2_2_1_clean_session_has_no_session_present(place):
    """Even where a session was kept, asking for a clean one reports none."""
    place.connect("c", V3, clean=False).send(wire.disconnect())
    assert not place.connect("c", V3, clean=True).connack.session_present


def test_mqtt_3_2_2_2_kept_session_is_reported_present(place):
    """The second visit of a client that keeps its session."""
    place.connect("c", V3, clean=False).send(wire.disconnect())
    assert place.connect("c", V3, clean=False).connack.session_present


def test_mqtt_3_2_2_3_first_visit_reports_no_session(place):
    """Nothing is stored for an identifier that was never seen."""
    assert not place.connect("c", V3, clean=False).connack.session_present


def test_mqtt_3_2_2_4_refusal_reports_no_session(place):
    """A refused CONNECT never says session present, even where one is stored (the parser checks)."""
    place.connect("c", V3, clean=False).send(wire.disconnect())
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("c"), v=V3, clean=False, level=2))
    peer.expect_refused(BAD_LEVEL)


def test_mqtt_3_2_2_5_refusal_closes(place):
    """CONNACK with a code other than zero is the last packet of the connection."""
    peer = place.peer(V3)
    peer.send(wire.connect("", v=V3, clean=False), PINGREQ)
    peer.expect_refused(BAD_CLIENT_ID)


def test_mqtt_3_1_is_spoken_too(place):
    """The protocol before 3.1.1 names itself MQIsdp at level 3; devices in the field still do."""
    topic = place.topic("old")
    peer = place.peer(V3)
    peer.connect(place.client_id("old"), protocol=b"MQIsdp", level=3)
    assert peer.subscribe((topic, 2)).reasons == [2]
    for qos in (0, 1, 2):
        place.connect(f"pub{qos}", V3).publish(topic, b"%d" % qos, qos=qos)
        message = peer.receive()
        assert (message.payload, message.qos) == (b"%d" % qos, qos)


@pytest.mark.parametrize("level", [4, 5])
def test_mqtt_3_1_name_with_another_level_is_refused(place, level):
    """MQIsdp goes with level 3 only."""
    peer = place.peer(V3)
    peer.send(wire.connect(place.client_id("old"), v=V3, protocol=b"MQIsdp", level=level))
    peer.expect_refused(BAD_LEVEL)
