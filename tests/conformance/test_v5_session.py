"""MQTT 5.0, sessions: clean start, expiry, what is kept, what is sent again (3.1.2, 4.1, 4.4)."""

import time

import pytest

from conformance.conftest import Place
from conformance.peer import Peer
from conformance.wire import NO_LOCAL, RETAIN_AS_PUBLISHED, P, R, Type, ack, disconnect, publish

KEPT = [(P.SESSION_EXPIRY, 60)]
PAST_EXPIRY_S = 1.6
WELL_PAST_EXPIRY_S = 2.6

MOSQUITTO_DEVIATES = {"test_mqtt_3_1_2_4_clean_start_forgets_qos_2_identifiers": "answers PUBREL with 0x00"}


def resume(place: Place, name: str = "c") -> Peer:
    """Connect to a session that must be there."""
    peer = place.connect(name, clean=False, props=KEPT)
    assert peer.connack is not None
    assert peer.connack.session_present
    return peer


def present(place: Place, **options: object) -> bool:
    peer = place.connect("c", clean=False, **options)
    assert peer.connack is not None
    return peer.connack.session_present


# Clean start and session present


def test_mqtt_3_1_2_4_clean_start_discards_the_session(place: Place) -> None:
    """Clean start throws away the subscriptions and messages of an earlier session."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 1))
    first.drop()
    publisher = place.connect("pub")
    publisher.publish(place.topic("a"), b"old", qos=1)
    second = place.connect("c", clean=True, props=KEPT)
    publisher.publish(place.topic("a"), b"new", qos=1)
    second.expect_quiet()


def test_mqtt_3_2_2_2_clean_start_has_no_session_present(place: Place) -> None:
    """With clean start, session present is 0 although a session existed."""
    place.connect("c", props=KEPT).drop()
    connack = place.connect("c", clean=True, props=KEPT).connack
    assert connack is not None
    assert not connack.session_present


def test_mqtt_3_1_2_5_session_is_resumed(place: Place) -> None:
    """Without clean start, subscriptions live on across the connection."""
    first = place.connect("c", props=KEPT)
    first.subscribe(place.topic("a"))
    first.send(disconnect())
    first.expect_closed()
    second = resume(place)
    place.connect("pub").publish(place.topic("a"), b"still here")
    assert second.receive().payload == b"still here"


def test_mqtt_3_1_2_6_new_session_without_clean_start(place: Place) -> None:
    """Without clean start and without a session, a new session is made, and is not called present."""
    assert not present(place, props=KEPT)


def test_mqtt_3_2_2_3_session_present(place: Place) -> None:
    """Session present says exactly whether the server had a session for this client identifier."""
    assert not present(place, props=KEPT)
    assert present(place, props=KEPT)


def test_mqtt_3_1_2_23_session_is_kept_when_expiry_is_not_zero(place: Place) -> None:
    """A session with an expiry interval outlives its connection, messages of QoS 1 and 2 included."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 2))
    first.drop()
    publisher = place.connect("pub")
    publisher.publish(place.topic("a"), b"one", qos=1)
    publisher.publish(place.topic("a"), b"two", qos=2)
    second = resume(place)
    assert sorted(second.receive_payloads(2)) == [b"one", b"two"]


def test_mqtt_4_5_0_1_messages_go_to_every_matching_session(place: Place) -> None:
    """A message that the server has accepted is added to all matching sessions, connected or not."""
    names = ["a", "b", "c"]
    for name in names:
        place.connect(name, props=KEPT).subscribe((place.topic("x"), 1))
    place.connect("a", clean=False, props=KEPT).drop()
    place.connect("pub").publish(place.topic("x"), b"all", qos=1)
    for name in names:
        assert resume(place, name).receive().payload == b"all"


@pytest.mark.parametrize("props", [[], [(P.SESSION_EXPIRY, 0)]], ids=["absent", "zero"])
def test_mqtt_section_3_1_2_11_2_session_ends_with_the_connection(
    place: Place, props: list[tuple[P, int]]
) -> None:
    """An expiry interval that is zero or absent ends the session with the connection."""
    first = place.connect("c", props=props)
    first.send(disconnect())
    first.expect_closed()
    assert not present(place, props=KEPT)


def test_mqtt_4_1_0_2_session_is_discarded_after_its_expiry(place: Place) -> None:
    """Once the expiry interval has passed since the close, the session is gone."""
    place.connect("c", props=[(P.SESSION_EXPIRY, 1)]).drop()
    time.sleep(WELL_PAST_EXPIRY_S)
    assert not present(place)


def test_mqtt_4_1_0_1_session_is_kept_while_connected(place: Place) -> None:
    """The expiry interval does not run while the connection is open."""
    client = place.connect("c", props=[(P.SESSION_EXPIRY, 1)])
    client.subscribe(place.topic("a"))
    time.sleep(PAST_EXPIRY_S)
    client.publish(place.topic("a"), b"alive")
    assert client.receive().payload == b"alive"
    client.drop()
    assert present(place)


def test_mqtt_section_3_1_2_11_2_largest_expiry_never_expires(place: Place) -> None:
    """The interval 0xFFFFFFFF is valid, and means that the session does not expire."""
    place.connect("c", props=[(P.SESSION_EXPIRY, 0xFFFFFFFF)]).drop()
    assert present(place)


def test_mqtt_section_3_1_2_11_2_latest_connect_sets_the_expiry(place: Place) -> None:
    """Resuming with another interval replaces the earlier one: here, the session ends with the connection."""
    place.connect("c", props=KEPT).drop()
    second = place.connect("c", clean=False)
    second.send(disconnect())
    second.expect_closed()
    assert not present(place)


def test_mqtt_section_3_14_2_2_2_disconnect_changes_the_expiry(place: Place) -> None:
    """DISCONNECT may set a new interval; zero ends the session at once."""
    first = place.connect("c", props=KEPT)
    first.send(disconnect(R.SUCCESS, props=[(P.SESSION_EXPIRY, 0)]))
    first.expect_closed()
    assert not present(place)


def test_mqtt_section_3_14_2_2_2_disconnect_lengthens_the_expiry(place: Place) -> None:
    """DISCONNECT may set a longer interval for a session that already had one."""
    first = place.connect("c", props=[(P.SESSION_EXPIRY, 1)])
    first.send(disconnect(R.SUCCESS, props=[(P.SESSION_EXPIRY, 60)]))
    first.expect_closed()
    time.sleep(PAST_EXPIRY_S)
    assert present(place)


def test_mqtt_section_3_14_2_2_2_expiry_cannot_be_raised_from_zero(place: Place) -> None:
    """A session that was opened to end with its connection cannot be made to last by DISCONNECT."""
    place.expect_violation(disconnect(R.SUCCESS, props=[(P.SESSION_EXPIRY, 60)]), R.PROTOCOL_ERROR)


def test_mqtt_3_1_4_3_takeover_keeps_the_session(place: Place) -> None:
    """A takeover without clean start carries the session over to the new connection."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 1))
    second = resume(place)
    first.expect_disconnect(R.SESSION_TAKEN_OVER)
    place.connect("pub").publish(place.topic("a"), b"here", qos=1)
    assert second.receive().payload == b"here"


def test_mqtt_3_1_3_2_sessions_belong_to_client_ids(place: Place) -> None:
    """State is held by client identifier: case matters, and another identifier has another session."""
    place.connect("Client", props=KEPT).drop()
    other = place.connect("client", clean=False, props=KEPT)
    assert other.connack is not None
    assert not other.connack.session_present


# What is sent again


def test_mqtt_4_4_0_1_unacknowledged_publishes_are_resent(place: Place) -> None:
    """On resuming, unacknowledged messages come again with their packet identifiers, in order, marked DUP."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 2))
    publisher = place.connect("pub")
    for payload in (b"1", b"2", b"3"):
        publisher.publish(place.topic("a"), payload, qos=1)
    before = [first.receive(auto_ack=False) for _ in range(3)]
    first.drop()
    second = resume(place)
    after = [second.receive() for _ in range(3)]
    assert [(m.pid, m.payload) for m in after] == [(m.pid, m.payload) for m in before]
    assert [m.dup for m in before + after] == [False] * 3 + [True] * 3


def test_mqtt_3_3_1_1_dup_on_redelivery_of_qos_2(place: Place) -> None:
    """A QoS 2 message without PUBREC is sent again with DUP and the same packet identifier."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 2))
    place.connect("pub").publish(place.topic("a"), b"x", qos=2)
    before = first.receive(auto_ack=False)
    first.drop()
    after = resume(place).receive()
    assert (after.pid, after.dup, after.qos) == (before.pid, True, 2)


def test_mqtt_4_3_3_5_pubrel_is_resent(place: Place) -> None:
    """After PUBREC and without PUBCOMP, what is sent again on resuming is PUBREL, not the message."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 2))
    place.connect("pub").publish(place.topic("a"), b"x", qos=2)
    pid = first.receive(auto_ack=False).pid
    assert pid is not None
    first.send(ack(Type.PUBREC, pid))
    first.expect(Type.PUBREL)
    first.drop()
    second = resume(place)
    assert second.expect(Type.PUBREL).pid == pid
    second.send(ack(Type.PUBCOMP, pid))
    second.expect_quiet()


def test_mqtt_4_4_0_1_resending_keeps_the_order_of_publishes(place: Place) -> None:
    """Acknowledged messages are not sent again, the others are, and new ones follow them."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 1))
    publisher = place.connect("pub")
    for payload in (b"1", b"2", b"3"):
        publisher.publish(place.topic("a"), payload, qos=1)
    pids = [first.receive(auto_ack=False).pid for _ in range(3)]
    assert pids[1] is not None
    first.send(ack(Type.PUBACK, pids[1]))
    first.expect_quiet()
    first.drop()
    publisher.publish(place.topic("a"), b"4", qos=1)
    assert resume(place).receive_payloads(3) == [b"1", b"3", b"4"]


def test_mqtt_4_4_0_1_nothing_is_resent_while_connected(place: Place) -> None:
    """Waiting for an acknowledgement is no reason to send again on the same connection."""
    client = place.connect("c")
    client.subscribe((place.topic("a"), 2))
    publisher = place.connect("pub")
    publisher.publish(place.topic("a"), b"1", qos=1)
    publisher.publish(place.topic("a"), b"2", qos=2)
    for _ in range(2):
        client.receive(auto_ack=False)
    client.expect_nothing(0.5)
    client.expect_quiet()


@pytest.mark.parametrize(("qos", "kind"), [(1, Type.PUBACK), (2, Type.PUBREC)])
def test_mqtt_4_4_0_2_a_refused_message_is_not_resent(place: Place, qos: int, kind: Type) -> None:
    """A negative PUBACK or PUBREC ends the matter: no PUBREL, and nothing on resuming."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 2))
    place.connect("pub").publish(place.topic("a"), b"x", qos=qos)
    pid = first.receive(auto_ack=False).pid
    assert pid is not None
    first.send(ack(kind, pid, R.UNSPECIFIED))
    first.expect_quiet()
    first.drop()
    resume(place).expect_quiet()


def test_mqtt_4_3_3_10_duplicates_are_known_across_connections(place: Place) -> None:
    """Packet identifiers of QoS 2 messages are session state: a message sent again is delivered once."""
    subscriber = place.connect("sub")
    subscriber.subscribe((place.topic("a"), 2))
    first = place.connect("c", props=KEPT)
    first.send(publish(place.topic("a"), b"once", qos=2, pid=7))
    first.expect(Type.PUBREC)
    first.drop()
    second = resume(place)
    second.send(publish(place.topic("a"), b"once", qos=2, pid=7, dup=True))
    assert second.expect(Type.PUBREC).pid == 7
    second.send(ack(Type.PUBREL, 7))
    assert second.expect(Type.PUBCOMP).pid == 7
    assert subscriber.receive().payload == b"once"
    subscriber.expect_quiet()


def test_mqtt_4_3_3_11_pubrel_after_resuming(place: Place) -> None:
    """A client that had PUBREC before the break goes on with PUBREL after it, and is answered 0x00."""
    first = place.connect("c", props=KEPT)
    first.send(publish(place.topic("a"), b"x", qos=2, pid=9))
    first.expect(Type.PUBREC)
    first.drop()
    second = resume(place)
    second.send(ack(Type.PUBREL, 9))
    pubcomp = second.expect(Type.PUBCOMP)
    assert (pubcomp.pid, pubcomp.reason) == (9, R.SUCCESS)


def test_mqtt_section_4_1_qos_0_may_be_dropped_but_not_duplicated(place: Place) -> None:
    """Messages of QoS 0 for an absent client may be kept or not; if kept, they come once and without DUP."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 1))
    first.drop()
    publisher = place.connect("pub")
    publisher.publish(place.topic("a"), b"zero")
    publisher.publish(place.topic("a"), b"last", qos=1)
    second = resume(place)
    payloads = [second.receive().payload]
    if payloads == [b"zero"]:
        payloads.append(second.receive().payload)
    assert payloads[-1] == b"last"
    second.expect_quiet()


def test_mqtt_4_4_0_1_resent_again_on_every_resumption(place: Place) -> None:
    """A message that stays unacknowledged comes again on each new connection, still under its identifier."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 1))
    place.connect("pub").publish(place.topic("a"), b"x", qos=1)
    pid = first.receive(auto_ack=False).pid
    first.drop()
    for _ in range(3):
        peer = resume(place)
        message = peer.receive(auto_ack=False)
        assert (message.pid, message.dup, message.payload) == (pid, True, b"x")
        peer.drop()


def test_mqtt_4_4_0_1_both_kinds_are_resent(place: Place) -> None:
    """After a break, PUBREL comes again for one message and PUBLISH for others, under their identifiers."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 2))
    publisher = place.connect("pub")
    for payload in (b"1", b"2", b"3"):
        publisher.publish(place.topic("a"), payload, qos=2)
    pids = [first.receive(auto_ack=False).pid for _ in range(3)]
    assert pids[1] is not None
    first.send(ack(Type.PUBREC, pids[1]))
    first.expect(Type.PUBREL)
    first.drop()
    second = resume(place)
    assert second.expect(Type.PUBREL).pid == pids[1]
    resent = [second.receive(auto_ack=False) for _ in range(2)]
    assert [(m.pid, m.payload, m.dup) for m in resent] == [(pids[0], b"1", True), (pids[2], b"3", True)]


def test_mqtt_3_1_2_4_clean_start_forgets_qos_2_identifiers(place: Place) -> None:
    """Clean start also discards which QoS 2 messages had arrived: the identifier is a new message."""
    subscriber = place.connect("sub")
    subscriber.subscribe((place.topic("a"), 0))
    for payload in (b"before", b"after"):
        client = place.connect("c", clean=True, props=KEPT)
        client.send(publish(place.topic("a"), payload, qos=2, pid=7))
        assert client.expect(Type.PUBREC).reason < 0x80
        client.send(ack(Type.PUBREL, 7))
        client.expect(Type.PUBCOMP)
        client.send(publish(place.topic("b"), qos=2, pid=8))
        client.expect(Type.PUBREC)
        client.drop()
    assert subscriber.receive_payloads(2) == [b"before", b"after"]
    last = place.connect("c", clean=True)
    last.send(ack(Type.PUBREL, 8))
    assert last.expect(Type.PUBCOMP).reason == R.PACKET_ID_NOT_FOUND


def test_mqtt_4_4_0_1_messages_under_way_survive_a_takeover(place: Place) -> None:
    """A takeover is a break too: what the old connection did not acknowledge comes to the new one."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 1))
    place.connect("pub").publish(place.topic("a"), b"x", qos=1)
    pid = first.receive(auto_ack=False).pid
    message = resume(place).receive()
    assert (message.pid, message.dup) == (pid, True)


def test_mqtt_section_4_1_options_are_session_state(place: Place) -> None:
    """A resumed subscription keeps all its options: here retain as published and no local."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 1 | NO_LOCAL | RETAIN_AS_PUBLISHED))
    first.drop()
    second = resume(place)
    second.publish(place.topic("a"), b"mine", qos=1)
    place.connect("pub").publish(place.topic("a"), b"theirs", qos=1, retain=True)
    message = second.receive()
    assert (message.payload, message.retain) == (b"theirs", True)
    second.expect_quiet()


def test_mqtt_3_1_2_25_packet_size_of_the_resuming_connection(place: Place) -> None:
    """What waited is measured by the limit of the connection that it is sent on."""
    first = place.connect("c", props=KEPT)
    first.subscribe((place.topic("a"), 1))
    first.drop()
    publisher = place.connect("pub")
    for payload in (b"L" * 200, b"s"):
        publisher.publish(place.topic("a"), payload, qos=1)
    second = place.connect("c", clean=False, props=[*KEPT, (P.MAX_PACKET_SIZE, 100)])
    assert second.receive().payload == b"s"
    second.expect_quiet()
