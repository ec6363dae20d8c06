"""MQTT 5.0, 3.1 CONNECT and 3.2 CONNACK: what is accepted, what is refused, and what the answer says."""

import pytest

from conformance.conftest import Place
from conformance.wire import P, R, Type, Will, auth, connect, packet, parse, publish, subscribe

MALFORMED_OR_PROTOCOL = (R.MALFORMED_PACKET, R.PROTOCOL_ERROR)

MOSQUITTO_DEVIATES = {
    "test_mqtt_section_3_1_2_11_protocol_errors[authentication-data-without-method]": "accepts it",
}


@pytest.mark.parametrize(
    "data",
    [publish("a"), subscribe(1, "a"), packet(0xC0), auth(0x18)],
    ids=["publish", "subscribe", "ping", "auth"],
)
def test_mqtt_3_1_0_1_first_packet_is_connect(place: Place, data: bytes) -> None:
    """Any other first packet ends the connection, and without DISCONNECT: there is no session yet."""
    peer = place.peer()
    peer.send(data)
    peer.expect_closed()


def test_mqtt_3_1_0_2_second_connect(place: Place) -> None:
    """A second CONNECT on the same connection is a protocol error."""
    place.expect_violation(connect(place.client_id("c")), R.PROTOCOL_ERROR)


def expect_unspoken(place: Place, data: bytes) -> None:
    """The server closes, after CONNACK with 0x84, its 3.1.1 form, or nothing: the text leaves the choice."""
    peer = place.peer()
    peer.send(data)
    answer = peer.rest()
    assert answer in (b"", b"\x20\x02\x00\x01") or parse(answer).reason == R.UNSUPPORTED_VERSION


@pytest.mark.parametrize("name", [b"MQTX", b"mqtt", b"", b"MQTT5"])
def test_mqtt_3_1_2_1_protocol_name(place: Place, name: bytes) -> None:
    """Another protocol name is not MQTT, and the connection is closed."""
    expect_unspoken(place, connect(place.client_id("c"), protocol=name))


@pytest.mark.parametrize("level", [6, 0x7F])
def test_mqtt_3_1_2_2_protocol_version(place: Place, level: int) -> None:
    """A version that the server does not speak is refused."""
    expect_unspoken(place, connect(place.client_id("c"), level=level))


def test_mqtt_3_1_2_3_reserved_connect_flag(place: Place) -> None:
    """The lowest bit of the connect flags is zero."""
    place.expect_refusal(connect(place.client_id("c"), flags=0x03), R.MALFORMED_PACKET)


def test_mqtt_3_1_2_9_will_fields_must_be_there(place: Place) -> None:
    """With the will flag set, a payload that ends after the client identifier is malformed."""
    place.expect_refusal(connect(place.client_id("c"), flags=0x06), *MALFORMED_OR_PROTOCOL)


@pytest.mark.parametrize("flags", [0x02 | 1 << 3, 0x02 | 2 << 3])
def test_mqtt_3_1_2_11_will_qos_without_will(place: Place, flags: int) -> None:
    """Without a will, its QoS is zero."""
    place.expect_refusal(connect(place.client_id("c"), flags=flags), *MALFORMED_OR_PROTOCOL)


def test_mqtt_3_1_2_12_will_qos_3(place: Place) -> None:
    """A will of QoS 3 is malformed."""
    place.expect_refusal(connect(place.client_id("c"), will=Will("w", qos=3)), R.MALFORMED_PACKET)


def test_mqtt_3_1_2_13_will_retain_without_will(place: Place) -> None:
    """Without a will, its retain flag is zero."""
    place.expect_refusal(connect(place.client_id("c"), flags=0x22), *MALFORMED_OR_PROTOCOL)


def test_mqtt_3_1_2_17_user_name_must_be_there(place: Place) -> None:
    """With the user name flag set, a payload without user name is malformed."""
    place.expect_refusal(connect(place.client_id("c"), flags=0x82), *MALFORMED_OR_PROTOCOL)


def test_mqtt_3_1_2_16_user_name_must_not_be_there(place: Place) -> None:
    """Without the user name flag, bytes of a user name after the client identifier are malformed."""
    data = connect(place.client_id("c"), flags=0x02, username="u")
    place.expect_refusal(data, *MALFORMED_OR_PROTOCOL)


def test_mqtt_3_1_2_19_password_must_be_there(place: Place) -> None:
    """With the password flag set, a payload without password is malformed."""
    data = connect(place.client_id("c"), flags=0xC2, username="u")
    place.expect_refusal(data, *MALFORMED_OR_PROTOCOL)


def test_mqtt_section_3_1_2_9_password_without_user_name(place: Place) -> None:
    """Unlike 3.1.1, version 5 allows a password alone: it may be judged, but it is not malformed."""
    peer = place.peer()
    peer.send(connect(place.client_id("c"), password=b"p"))
    assert peer.expect(Type.CONNACK).reason in (R.SUCCESS, R.BAD_CREDENTIALS, R.NOT_AUTHORIZED)


def test_mqtt_3_1_2_28_no_response_information_unless_asked(place: Place) -> None:
    """Without a request for it, or with a request of 0, there is no response information."""
    for props in ([], [(P.REQUEST_RESPONSE_INFO, 0)]):
        connack = place.connect("c", props=props).connack
        assert connack is not None
        assert connack.prop(P.RESPONSE_INFO) is None


REFUSED_PROPERTIES = {
    "receive-maximum-0": [(P.RECEIVE_MAX, 0)],
    "receive-maximum-twice": [(P.RECEIVE_MAX, 9)] * 2,
    "maximum-packet-size-0": [(P.MAX_PACKET_SIZE, 0)],
    "maximum-packet-size-twice": [(P.MAX_PACKET_SIZE, 999)] * 2,
    "session-expiry-twice": [(P.SESSION_EXPIRY, 1)] * 2,
    "topic-alias-maximum-twice": [(P.TOPIC_ALIAS_MAX, 1)] * 2,
    "request-response-2": [(P.REQUEST_RESPONSE_INFO, 2)],
    "request-response-twice": [(P.REQUEST_RESPONSE_INFO, 1)] * 2,
    "request-problem-2": [(P.REQUEST_PROBLEM_INFO, 2)],
    "request-problem-twice": [(P.REQUEST_PROBLEM_INFO, 1)] * 2,
    "authentication-method-twice": [(P.AUTH_METHOD, "x")] * 2,
    "authentication-data-without-method": [(P.AUTH_DATA, b"x")],
}


@pytest.mark.parametrize("props", REFUSED_PROPERTIES.values(), ids=REFUSED_PROPERTIES.keys())
def test_mqtt_section_3_1_2_11_protocol_errors(place: Place, props: list[tuple[P, int]]) -> None:
    """Zero or repeated where the text forbids it, or a flag that is neither 0 nor 1: protocol error."""
    place.expect_refusal(connect(place.client_id("c"), props=props), R.PROTOCOL_ERROR)


WILL_TWICE = {
    "will-delay": [(P.WILL_DELAY, 1)] * 2,
    "payload-format": [(P.PAYLOAD_FORMAT, 1)] * 2,
    "message-expiry": [(P.MESSAGE_EXPIRY, 1)] * 2,
    "content-type": [(P.CONTENT_TYPE, "a")] * 2,
}


@pytest.mark.parametrize("props", WILL_TWICE.values(), ids=WILL_TWICE.keys())
def test_mqtt_section_3_1_3_2_will_property_twice(place: Place, props: list[tuple[P, int]]) -> None:
    """A will's properties, user properties aside, appear once."""
    data = connect(place.client_id("c"), will=Will(place.topic("w"), props=props))
    place.expect_refusal(data, R.PROTOCOL_ERROR)


def test_mqtt_section_3_1_2_11_user_property_may_repeat(place: Place) -> None:
    """CONNECT may carry the same user property name more than once."""
    place.connect("c", props=[(P.USER, ("a", "1")), (P.USER, ("a", "1")), (P.USER, ("", ""))])


def test_mqtt_3_1_3_5_client_ids_that_must_be_allowed(place: Place) -> None:
    """Identifiers of 1 to 23 letters and digits are always accepted."""
    alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for client_id in ("z", alphabet[:23], alphabet[23:46], alphabet[-23:]):
        place.peer().connect(client_id)


def test_mqtt_3_1_3_6_empty_client_id_is_assigned_one(place: Place) -> None:
    """A client that gives no identifier gets a unique one, and is told which."""
    first, second = place.peer(), place.peer()
    names = [peer.connect("").prop(P.ASSIGNED_CLIENT_ID) for peer in (first, second)]
    assert all(names)
    assert names[0] != names[1]
    for peer in (first, second):
        peer.expect_quiet()


def test_mqtt_3_1_3_7_assigned_client_id_is_the_client_id(place: Place) -> None:
    """A session opened without an identifier can be resumed under the one that was assigned."""
    first = place.peer()
    name = first.connect("", props=[(P.SESSION_EXPIRY, 60)]).prop(P.ASSIGNED_CLIENT_ID)
    assert isinstance(name, str)
    first.drop()
    assert place.peer().connect(name, clean=False).session_present


def test_mqtt_3_2_2_16_assigned_client_id_only_when_needed(place: Place) -> None:
    """A client that brought its own identifier is not assigned another."""
    connack = place.connect("c").connack
    assert connack is not None
    assert connack.prop(P.ASSIGNED_CLIENT_ID) is None


def test_mqtt_3_1_3_11_will_topic_ill_formed_utf8(place: Place) -> None:
    """The will topic is a UTF-8 string."""
    data = connect(place.client_id("c"), will=Will(b"\xed\xa0\x80"))
    place.expect_refusal(data, R.MALFORMED_PACKET, R.TOPIC_NAME_INVALID)


@pytest.mark.parametrize("topic", ["w/#", "w/+", ""])
def test_mqtt_3_1_3_11_will_topic_is_a_topic_name(place: Place, topic: str) -> None:
    """A will is published to a topic name, so wildcards and emptiness are refused."""
    data = connect(place.client_id("c"), will=Will(topic))
    place.expect_refusal(data, R.TOPIC_NAME_INVALID, *MALFORMED_OR_PROTOCOL)


def test_mqtt_3_1_3_12_user_name_ill_formed_utf8(place: Place) -> None:
    """The user name is a UTF-8 string."""
    place.expect_refusal(
        connect(place.client_id("c"), username=b"\xed\xa0\x80"), R.MALFORMED_PACKET, R.BAD_CREDENTIALS
    )


def test_mqtt_3_1_4_1_trailing_bytes_in_connect(place: Place) -> None:
    """CONNECT ends where its flags say that it ends."""
    whole = connect(place.client_id("c"))
    place.expect_refusal(packet(0x10, whole[2:] + b"junk"), *MALFORMED_OR_PROTOCOL)


def test_mqtt_3_1_4_3_existing_client_is_taken_over(place: Place) -> None:
    """When a client identifier connects again, the earlier connection is told 0x8E and closed."""
    first = place.connect("c")
    second = place.connect("c")
    first.expect_disconnect(R.SESSION_TAKEN_OVER)
    second.expect_quiet()


def test_mqtt_3_1_4_5_connect_is_answered_with_success(place: Place) -> None:
    """An accepted CONNECT is answered by CONNACK with code 0."""
    peer = place.peer()
    peer.send(connect(place.client_id("c")))
    assert peer.expect(Type.CONNACK).reason == R.SUCCESS


def test_mqtt_3_1_4_6_nothing_after_a_refused_connect_is_processed(place: Place) -> None:
    """What a client sends behind a CONNECT that is refused has no effect."""
    subscriber = place.connect("sub")
    subscriber.subscribe(place.topic("a"))
    refused = place.peer()
    bad = connect(place.client_id("c"), props=[(P.RECEIVE_MAX, 0)])
    refused.send(bad, publish(place.topic("a"), b"smuggled"))
    refused.expect_refused(R.PROTOCOL_ERROR)
    subscriber.expect_quiet()


def test_mqtt_section_3_1_4_packets_right_behind_connect(place: Place) -> None:
    """A client need not wait for CONNACK: packets in the same write are served in order after it."""
    peer = place.peer()
    topic = place.topic("a")
    peer.send(connect(place.client_id("c")), subscribe(1, topic), publish(topic, b"hi"), packet(0xC0))
    peer.expect(Type.CONNACK)
    peer.expect(Type.SUBACK)
    peer.expect(Type.PINGRESP)
    assert peer.receive().payload == b"hi"


def test_mqtt_section_3_1_4_connect_in_single_bytes(place: Place) -> None:
    """The stream has no boundaries: a CONNECT that arrives byte by byte is a CONNECT."""
    peer = place.peer()
    for byte in connect(place.client_id("c")):
        peer.send(bytes([byte]))
    assert peer.expect(Type.CONNACK).reason == R.SUCCESS


def test_mqtt_3_2_0_1_connack_is_the_first_packet(place: Place) -> None:
    """On resuming a session with messages waiting, CONNACK still comes first."""
    first = place.connect("c", props=[(P.SESSION_EXPIRY, 60)])
    first.subscribe((place.topic("a"), 1))
    first.drop()
    place.connect("pub").publish(place.topic("a"), b"waiting", qos=1)
    second = place.connect("c", clean=False, props=[(P.SESSION_EXPIRY, 60)])
    assert second.receive().payload == b"waiting"


def test_mqtt_3_2_2_6_refusal_has_no_session_present(place: Place) -> None:
    """A CONNACK that refuses says that no session is present, even if there is one (the parser checks)."""
    place.connect("c", props=[(P.SESSION_EXPIRY, 60)]).drop()
    data = connect(place.client_id("c"), clean=False, props=[(P.RECEIVE_MAX, 0)])
    place.expect_refusal(data, R.PROTOCOL_ERROR)


def test_mqtt_3_2_2_9_full_qos_is_not_announced(place: Place) -> None:
    """A server that supports QoS 2 does not send Maximum QoS; this one does support it."""
    connack = place.connect("c").connack
    assert connack is not None
    assert connack.prop(P.MAX_QOS) is None


def test_mqtt_section_3_2_2_3_announced_limits_are_legal(place: Place) -> None:
    """Receive Maximum and Maximum Packet Size, where announced, are not zero."""
    connack = place.connect("c").connack
    assert connack is not None
    assert connack.number(P.RECEIVE_MAX, 65535) > 0
    assert connack.number(P.MAX_PACKET_SIZE, 1) > 0
    assert connack.number(P.SUBSCRIPTION_ID_AVAILABLE, 1) == 1
    assert connack.number(P.SHARED_AVAILABLE, 1) == 1
    assert connack.number(P.WILDCARD_AVAILABLE, 1) == 1
    assert connack.number(P.RETAIN_AVAILABLE, 1) == 1


# 4.12 Enhanced authentication: none is offered


def test_mqtt_4_12_0_1_unknown_authentication_method(place: Place) -> None:
    """An authentication method that the server does not know is refused with 0x8C (or 0x87)."""
    props = [(P.AUTH_METHOD, "SCRAM-SHA-256"), (P.AUTH_DATA, b"n,,n=u,r=1")]
    data = connect(place.client_id("c"), props=props)
    place.expect_refusal(data, R.BAD_AUTHENTICATION_METHOD, R.NOT_AUTHORIZED)


def test_mqtt_4_12_0_6_no_authentication_method_in_connack(place: Place) -> None:
    """A client that named no method is not told one."""
    connack = place.connect("c").connack
    assert connack is not None
    assert connack.prop(P.AUTH_METHOD) is None


@pytest.mark.parametrize("reason", [R.CONTINUE_AUTHENTICATION, R.RE_AUTHENTICATE])
def test_mqtt_4_12_0_7_auth_when_none_was_negotiated(place: Place, reason: R) -> None:
    """AUTH on a connection that was opened without an authentication method is a protocol error."""
    place.expect_violation(auth(reason, props=[(P.AUTH_METHOD, "x")]), R.PROTOCOL_ERROR)


def test_mqtt_3_15_1_1_auth_reserved_flags(place: Place) -> None:
    """The flags of AUTH are zero."""
    place.expect_violation(b"\xf1" + auth(0x18, props=[(P.AUTH_METHOD, "x")])[1:], *MALFORMED_OR_PROTOCOL)


@pytest.mark.parametrize("client_id", ["x" * 500, "with space/and+wild#", "名前", "-_.~"])
def test_mqtt_3_1_3_8_unusual_client_ids(place: Place, client_id: str) -> None:
    """Longer and stranger identifiers may be accepted; if not, the refusal is 0x85."""
    peer = place.peer()
    peer.send(connect(place.prefix + client_id))
    assert peer.expect(Type.CONNACK).reason in (R.SUCCESS, R.CLIENT_ID_NOT_VALID)


def test_mqtt_3_1_2_17_empty_user_name_and_password(place: Place) -> None:
    """A user name and a password of no bytes are present, and not malformed."""
    peer = place.peer()
    peer.send(connect(place.client_id("c"), username="", password=b""))
    assert peer.expect(Type.CONNACK).reason in (R.SUCCESS, R.BAD_CREDENTIALS, R.NOT_AUTHORIZED)


def test_mqtt_3_1_3_1_every_field_of_the_payload_in_order(place: Place) -> None:
    """Client identifier, will, user name and password together are read in their order."""
    watcher = place.connect("watcher")
    watcher.subscribe(place.topic("will"))
    will = Will(place.topic("will"), b"w" * 65535, props=[(P.USER, ("a", "b"))])
    peer = place.peer()
    peer.send(connect(place.client_id("c"), will=will, username="u", password=b"\0\xff", keep_alive=0))
    assert peer.expect(Type.CONNACK).reason in (R.SUCCESS, R.BAD_CREDENTIALS, R.NOT_AUTHORIZED)
    peer.drop()
    assert watcher.receive().payload == b"w" * 65535
