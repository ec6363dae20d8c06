"""MQTT 3.1.1, sections 3.1.2.4, 4.1 and 4.4: what a session remembers, and what is sent again."""

import pytest

from conformance import wire
from conformance.wire import V3, Type


@pytest.fixture
def topic(place):
    return place.topic("topic")


@pytest.fixture
def publisher(place):
    return place.connect("publisher", V3)


def connect_kept(place):
    """The client of these tests, with the session that it keeps."""
    return place.connect("keeper", V3, clean=False)


@pytest.fixture
def keeper(place, topic):
    """Connected and subscribed at QoS 2, in a session that outlives the connection."""
    peer = connect_kept(place)
    peer.subscribe((topic, 2))
    return peer


def leave(peer):
    """DISCONNECT, until the server has taken note of it."""
    peer.send(wire.disconnect())
    peer.expect_closed()


def test_mqtt_3_1_2_4_subscriptions_are_still_there(place, topic, keeper, publisher):
    """A kept session receives without subscribing again."""
    leave(keeper)
    back = connect_kept(place)
    assert back.connack.session_present
    publisher.publish(topic, b"live", qos=1)
    assert back.receive().payload == b"live"


@pytest.mark.parametrize("end", ["disconnect", "drop"])
def test_mqtt_3_1_2_5_messages_for_an_absent_client_are_stored(place, topic, keeper, publisher, end):
    """QoS 1 and 2, in order, whether the client said goodbye or not."""
    leave(keeper) if end == "disconnect" else keeper.drop()
    for n in range(6):
        publisher.publish(topic, b"%d" % n, qos=1 + n % 2)
    back = connect_kept(place)
    messages = [back.receive(auto_ack=False) for _ in range(6)]
    assert [message.payload for message in messages] == [b"%d" % n for n in range(6)]
    assert [message.qos for message in messages] == [1, 2, 1, 2, 1, 2]
    assert not any(message.dup for message in messages)


def test_mqtt_3_1_2_5_qos_0_needs_no_storing_but_does_not_disturb(place, topic, keeper, publisher):
    """A server may store QoS 0 as well; either way what comes after it arrives."""
    leave(keeper)
    publisher.publish(topic, b"maybe")
    publisher.publish(topic, b"surely", qos=1)
    payload = (back := connect_kept(place)).receive().payload
    assert (payload if payload == b"surely" else back.receive().payload) == b"surely"


def test_mqtt_3_1_2_6_clean_session_forgets_subscriptions_and_messages(place, topic, keeper, publisher):
    """Asking for a clean session throws away what was stored, also for later."""
    leave(keeper)
    publisher.publish(topic, b"forgotten", qos=1)
    clean = place.connect("keeper", V3, clean=True)
    clean.expect_quiet()
    leave(clean)
    assert not connect_kept(place).connack.session_present


def test_mqtt_3_1_2_6_a_clean_session_ends_with_its_connection(place, topic, publisher):
    """Nothing of it is used again."""
    clean = place.connect("keeper", V3, clean=True)
    clean.subscribe((topic, 1))
    leave(clean)
    publisher.publish(topic, b"lost", qos=1)
    back = connect_kept(place)
    assert not back.connack.session_present
    back.expect_quiet()


def test_mqtt_3_1_3_2_sessions_are_told_apart_by_client_id(place, topic, keeper, publisher):
    """Case counts, and another identifier is another session."""
    leave(keeper)
    assert not place.connect("KEEPER", V3, clean=False).connack.session_present
    assert connect_kept(place).connack.session_present


def test_mqtt_4_1_0_2_a_session_lasts_as_long_as_its_connection(topic, keeper, publisher):
    """Its subscriptions survive whatever else the client does on the connection."""
    for _ in range(3):
        keeper.expect_quiet()
        publisher.publish(topic, b"still", qos=1)
        assert keeper.receive().payload == b"still"


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_4_4_0_1_unacknowledged_publish_is_sent_again_with_dup_and_its_identifier(
    place, topic, keeper, publisher, qos
):
    """Same identifier, same content, DUP set, in the order of the first sending (also 3.3.1-1, 4.6.0-1)."""
    for n in range(5):
        publisher.publish(topic, b"%d" % n, qos=qos)
    first = [keeper.receive(auto_ack=False) for _ in range(5)]
    keeper.drop()
    back = connect_kept(place)
    again = [back.receive(auto_ack=False) for _ in range(5)]
    assert [(m.pid, m.payload, m.qos) for m in again] == [(m.pid, m.payload, m.qos) for m in first]
    assert all(message.dup for message in again)


def test_mqtt_4_4_0_1_acknowledged_publish_is_not_sent_again(place, topic, keeper, publisher):
    """Of two in flight, only the one without PUBACK comes back."""
    for payload in (b"done", b"open"):
        publisher.publish(topic, payload, qos=1)
    done = keeper.receive(auto_ack=False)
    keeper.receive(auto_ack=False)
    keeper.send(wire.ack(Type.PUBACK, done.pid))
    leave(keeper)
    back = connect_kept(place)
    message = back.receive()
    assert (message.payload, message.dup) == (b"open", True)
    back.expect_quiet()


def test_mqtt_4_4_0_1_unacknowledged_pubrel_is_sent_again(place, topic, keeper, publisher):
    """After PUBREC the message itself is never sent again, its PUBREL is (also 4.3.3-1)."""
    publisher.publish(topic, b"x", qos=2)
    message = keeper.receive(auto_ack=False)
    keeper.send(wire.ack(Type.PUBREC, message.pid))
    keeper.expect(Type.PUBREL)
    keeper.drop()
    back = connect_kept(place)
    assert back.expect(Type.PUBREL).pid == message.pid
    back.send(wire.ack(Type.PUBCOMP, message.pid))
    back.expect_quiet()


def test_mqtt_4_4_0_1_finished_exchanges_leave_nothing(place, topic, keeper, publisher):
    """After PUBACK and PUBCOMP a reconnection is quiet."""
    for qos in (1, 2):
        publisher.publish(topic, b"x", qos=qos)
        keeper.receive()
    leave(keeper)
    connect_kept(place).expect_quiet()


def test_mqtt_4_4_0_1_redelivery_comes_before_what_was_stored_later(place, topic, keeper, publisher):
    """In flight when the link broke, then queued while away: the order of publication stays."""
    publisher.publish(topic, b"in flight", qos=1)
    keeper.receive(auto_ack=False)
    keeper.drop()
    publisher.publish(topic, b"queued", qos=1)
    assert connect_kept(place).receive_payloads(2) == [b"in flight", b"queued"]


def test_mqtt_4_3_3_2_a_publisher_that_reconnects_does_not_duplicate_at_qos_2(place, topic, keeper):
    """The server remembers the identifier it answered with PUBREC across a lost connection."""
    writer = place.connect("writer", V3, clean=False)
    writer.send(wire.publish(topic, b"once", v=V3, qos=2, pid=11))
    writer.expect(Type.PUBREC)
    writer.drop()
    back = place.connect("writer", V3, clean=False)
    back.send(wire.publish(topic, b"once", v=V3, qos=2, pid=11, dup=True))
    assert back.expect(Type.PUBREC).pid == 11
    back.send(wire.ack(Type.PUBREL, 11))
    assert back.expect(Type.PUBCOMP).pid == 11
    assert keeper.receive().payload == b"once"
    keeper.expect_quiet()


def test_mqtt_4_3_3_2_pubrel_may_come_on_a_new_connection(place, topic, keeper):
    """A handshake that was cut in the middle is finished after the reconnection."""
    writer = place.connect("writer", V3, clean=False)
    writer.send(wire.publish(topic, b"whole", v=V3, qos=2, pid=12))
    writer.expect(Type.PUBREC)
    writer.drop()
    back = place.connect("writer", V3, clean=False)
    back.send(wire.ack(Type.PUBREL, 12))
    assert back.expect(Type.PUBCOMP).pid == 12
    assert keeper.receive().payload == b"whole"


def test_mqtt_3_1_4_3_takeover_hands_the_session_over(place, topic, keeper, publisher):
    """The newer connection gets the stored session, and what the older had not acknowledged."""
    publisher.publish(topic, b"open", qos=1)
    keeper.receive(auto_ack=False)
    newer = connect_kept(place)
    keeper.expect_closed()
    assert newer.connack.session_present
    message = newer.receive()
    assert (message.payload, message.dup) == (b"open", True)
