"""MQTT 5.0, 4.8.2: shared subscriptions."""

from itertools import chain

import pytest

from conformance.conftest import Place
from conformance.peer import Peer
from conformance.wire import NO_LOCAL, P, R, Type, ack, disconnect, packet, subscribe

KEPT = [(P.SESSION_EXPIRY, 60)]
REFUSALS = (R.TOPIC_FILTER_INVALID, R.MALFORMED_PACKET, R.PROTOCOL_ERROR)

MOSQUITTO_DEVIATES = {
    "test_mqtt_4_8_2_1_share_needs_a_name_and_a_filter[$share/]": "grants it",
    "test_mqtt_4_8_2_1_share_needs_a_name_and_a_filter[$share/g]": "grants it",
    "test_mqtt_4_8_2_1_share_needs_a_name_and_a_filter[$share//a]": "grants it",
    "test_mqtt_4_8_2_1_share_needs_a_name_and_a_filter[$share/g/]": "grants it",
    "test_mqtt_4_8_2_2_share_name_has_no_wildcards[$share/+/a]": "grants it",
    "test_mqtt_3_8_3_4_no_local_on_a_shared_subscription": "grants it",
    "test_mqtt_section_3_8_4_no_retained_messages_for_shared_subscriptions": "sends them",
}


def share(place: Place, name: str = "g", topic: str = "a") -> str:
    return f"$share/{name}{place.prefix}/{place.topic(topic)}"


def drain(peer: Peer) -> list[bytes]:
    """Every message that this peer was sent until the server answers a ping and then is silent."""
    peer.send(packet(0xC0))
    peer.expect(Type.PINGRESP)
    payloads = []
    while True:
        try:
            payloads.append(peer.receive(seconds_max=0.15).payload)
        except TimeoutError:
            return payloads


def test_mqtt_section_4_8_2_one_member_gets_each_message(place: Place) -> None:
    """Each message goes to exactly one member of the group."""
    members = [place.connect(name) for name in ("a", "b", "c")]
    for member in members:
        member.subscribe((share(place), 1))
    publisher = place.connect("pub")
    payloads = [b"%d" % number for number in range(12)]
    for payload in payloads:
        publisher.publish(place.topic("a"), payload, qos=1)
    got = [drain(member) for member in members]
    assert sorted(chain.from_iterable(got)) == sorted(payloads)


def test_mqtt_section_4_8_2_groups_and_plain_subscriptions_are_apart(place: Place) -> None:
    """Each group gets its copy, and so does each plain subscription."""
    first, second, plain = place.connect("a"), place.connect("b"), place.connect("c")
    first.subscribe(share(place, "one"))
    second.subscribe(share(place, "two"))
    plain.subscribe(place.topic("a"))
    place.connect("pub").publish(place.topic("a"), b"x")
    for subscriber in (first, second, plain):
        assert subscriber.receive().payload == b"x"
        subscriber.expect_nothing(0.02)


def test_mqtt_section_4_8_2_wildcards_in_a_shared_filter(place: Place) -> None:
    """The filter after the share name is a filter like any other."""
    client = place.connect("c")
    client.subscribe(share(place, topic="+/#"))
    client.publish(place.topic("x/y"), b"1")
    assert client.receive().topic == place.topic("x/y")


BAD_SHARES = ["$share/", "$share/g", "$share//a", "$share/g/", "$share/g/a/#/b"]


def expect_share_refused(place: Place, name: str) -> None:
    client = place.connect("c")
    client.send(subscribe(1, name))
    if not client.says_why:
        return client.expect_disconnect(*REFUSALS)
    found = client.expect_any()
    assert found.type in (Type.SUBACK, Type.DISCONNECT)
    assert found.reason in REFUSALS
    return None


@pytest.mark.parametrize("name", BAD_SHARES)
def test_mqtt_4_8_2_1_share_needs_a_name_and_a_filter(place: Place, name: str) -> None:
    """After $share/ comes a name of at least one character, a separator and a filter."""
    expect_share_refused(place, name)


@pytest.mark.parametrize("name", ["$share/g+/a", "$share/#/a", "$share/+/a", "$share/a#b/c"])
def test_mqtt_4_8_2_2_share_name_has_no_wildcards(place: Place, name: str) -> None:
    """The share name has neither + nor #."""
    expect_share_refused(place, name)


def test_mqtt_4_8_2_3_granted_qos_is_respected(place: Place) -> None:
    """Each member gets messages at no more than the QoS granted to it."""
    members = {granted: place.connect(f"m{granted}") for granted in (0, 1)}
    for granted, member in members.items():
        assert member.subscribe((share(place), granted)).reasons == [granted]
    publisher = place.connect("pub")
    for _ in range(8):
        publisher.publish(place.topic("a"), b"x", qos=2)
    total = 0
    for granted, member in members.items():
        member.send(packet(0xC0))
        member.expect(Type.PINGRESP)
        while True:
            try:
                assert member.receive(seconds_max=0.15).qos == granted
            except TimeoutError:
                break
            total += 1
    assert total == 8


def test_mqtt_4_8_2_4_qos_2_under_way_is_completed_with_the_same_client(place: Place) -> None:
    """A QoS 2 message that one member has begun to receive is completed with it when it is back."""
    first = place.connect("a", props=KEPT)
    first.subscribe((share(place), 2))
    place.connect("pub").publish(place.topic("a"), b"x", qos=2)
    pid = first.receive(auto_ack=False).pid
    other = place.connect("b")
    other.subscribe((share(place), 2))
    first.drop()
    back = place.connect("a", clean=False, props=KEPT)
    message = back.receive()
    assert (message.pid, message.payload, message.dup) == (pid, b"x", True)
    other.expect_quiet()


def test_mqtt_4_8_2_5_qos_2_under_way_goes_to_nobody_else(place: Place) -> None:
    """If the session of that member ends first, the message is not given to another member."""
    first = place.connect("a")
    first.subscribe((share(place), 2))
    place.connect("pub").publish(place.topic("a"), b"x", qos=2)
    pid = first.receive(auto_ack=False).pid
    assert pid is not None
    first.send(ack(Type.PUBREC, pid))
    first.expect(Type.PUBREL)
    other = place.connect("b")
    other.subscribe((share(place), 2))
    first.send(disconnect())
    first.expect_closed()
    other.expect_quiet()


@pytest.mark.parametrize(("qos", "kind"), [(1, Type.PUBACK), (2, Type.PUBREC)])
def test_mqtt_4_8_2_6_refused_message_goes_to_nobody_else(place: Place, qos: int, kind: Type) -> None:
    """A member's negative acknowledgement discards the message for the whole group."""
    first = place.connect("a")
    first.subscribe((share(place), 2))
    place.connect("pub").publish(place.topic("a"), b"x", qos=qos)
    pid = first.receive(auto_ack=False).pid
    assert pid is not None
    other = place.connect("b")
    other.subscribe((share(place), 2))
    first.send(ack(kind, pid, R.UNSPECIFIED))
    first.expect_quiet()
    other.expect_quiet()


def test_mqtt_3_8_3_4_no_local_on_a_shared_subscription(place: Place) -> None:
    """No local on a shared subscription is a protocol error."""
    place.expect_violation(subscribe(1, (share(place), NO_LOCAL)), R.PROTOCOL_ERROR)


def test_mqtt_section_3_8_4_no_retained_messages_for_shared_subscriptions(place: Place) -> None:
    """A shared subscription brings no retained messages."""
    place.connect("pub").publish(place.topic("a"), b"kept", qos=1, retain=True)
    client = place.connect("c")
    client.subscribe((share(place), 1))
    client.expect_quiet()


def test_mqtt_section_4_8_2_unsubscribing_leaves_the_group(place: Place) -> None:
    """A member that unsubscribes by the full filter leaves; the others get everything."""
    leaver, stayer = place.connect("a"), place.connect("b")
    for member in (leaver, stayer):
        member.subscribe(share(place))
    assert leaver.unsubscribe(share(place)).reasons == [R.SUCCESS]
    assert leaver.unsubscribe(share(place)).reasons == [R.NO_SUBSCRIPTION_EXISTED]
    publisher = place.connect("pub")
    for _ in range(4):
        publisher.publish(place.topic("a"), b"x")
    assert stayer.receive_payloads(4) == [b"x"] * 4
    leaver.expect_quiet()


def test_mqtt_section_4_8_2_a_member_that_is_gone_gets_nothing(place: Place) -> None:
    """When a member's session ends, the group goes on without it."""
    goner, stayer = place.connect("a"), place.connect("b")
    for member in (goner, stayer):
        member.subscribe(share(place))
    goner.send(disconnect())
    goner.expect_closed()
    publisher = place.connect("pub")
    for _ in range(4):
        publisher.publish(place.topic("a"), b"x")
    assert stayer.receive_payloads(4) == [b"x"] * 4


def test_mqtt_section_4_8_2_share_and_plain_of_one_client(place: Place) -> None:
    """Shared and plain subscriptions of one client are separate: it gets a copy for each."""
    client = place.connect("c")
    client.subscribe(place.topic("a"), props=[(P.SUBSCRIPTION_ID, 1)])
    client.subscribe(share(place), props=[(P.SUBSCRIPTION_ID, 2)])
    client.publish(place.topic("a"), b"x")
    messages = [client.receive()]
    while sum(len(message.all(P.SUBSCRIPTION_ID)) for message in messages) < 2:
        messages.append(client.receive())
    assert sorted(i for message in messages for i in message.all(P.SUBSCRIPTION_ID)) == [1, 2]


def test_mqtt_section_4_8_2_messages_wait_for_a_group_of_absent_members(place: Place) -> None:
    """A group whose only member is away, with a session, is served when it is back."""
    member = place.connect("a", props=KEPT)
    member.subscribe((share(place), 1))
    member.drop()
    place.connect("pub").publish(place.topic("a"), b"x", qos=1)
    assert place.connect("a", clean=False, props=KEPT).receive().payload == b"x"
