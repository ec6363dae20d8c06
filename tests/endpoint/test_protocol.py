"""The client's side of a connection without a socket: what it sends for what it gets."""

import pytest

from holdfast.endpoint.protocol import Done, Protocol, State
from holdfast.endpoint.session import Session
from holdfast.errors import PeerError, Refused
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
)
from holdfast.mqtt.reasons import Reason

NONE = Properties()


def sent(protocol: Protocol) -> list[Packet]:
    data, packets, start = protocol.output(), [], 0
    while found := split(data, start):
        first_byte, body, start = found
        packets.append(decode(first_byte, data[body:start], 5))
    assert start == len(data)
    return packets


def give(protocol: Protocol, *packets: Packet) -> list[Packet]:
    """Feeds packets and returns what their user gets; of answered requests, the answer."""
    protocol.feed(b"".join(encode(packet, 5) for packet in packets))
    got = iter(protocol.next, None)
    return [each.answer if isinstance(each, Done) else each for each in got]


def connected(granted: Properties = NONE, receive_max: int | None = None) -> Protocol:
    protocol = Protocol(Session())
    protocol.connect(Connect("me", properties=Properties(receive_max=receive_max)))
    assert give(protocol, Connack(properties=granted)) == [Connack(properties=granted)]
    protocol.output()
    return protocol


def publish(
    protocol: Protocol, qos: int, topic: str = "a", payload: bytes = b"x", retain: bool = False
) -> int:
    pending = protocol.session.ask(
        Puback if qos == 1 else Pubrec,
        lambda packet_id: Publish(topic, payload, qos, retain, packet_id=packet_id),
        None,
    )
    protocol.send(pending)
    return pending.packet_id


def test_connect_waits_for_connack() -> None:
    protocol = Protocol(Session())
    protocol.connect(Connect("me"))
    assert sent(protocol) == [Connect("me")]
    assert protocol.state is State.CONNECTING
    give(protocol, Connack())
    assert protocol.state is State.CONNECTED


def test_a_refusal_ends_the_connection() -> None:
    protocol = Protocol(Session())
    protocol.connect(Connect("me"))
    refusal = Connack(reason=Reason.NOT_AUTHORIZED)
    assert give(protocol, refusal) == [refusal]
    assert protocol.state is State.ENDED


def test_qos_1_takes_and_gives_quota() -> None:
    protocol = connected(Properties(receive_max=2))
    first, second = publish(protocol, 1), publish(protocol, 1)
    assert protocol.quota == 0
    assert give(protocol, Puback(second)) == [Puback(second)]
    assert protocol.quota == 1
    assert give(protocol, Puback(first)) == [Puback(first)]
    assert protocol.quota == 2


def test_qos_2_is_released_and_answered_once() -> None:
    protocol = connected(Properties(receive_max=1))
    packet_id = publish(protocol, 2)
    protocol.output()
    answer = Pubrec(packet_id, Reason.NO_MATCHING_SUBSCRIBERS)
    assert give(protocol, answer) == []
    assert sent(protocol) == [Pubrel(packet_id)]
    assert protocol.quota == 0
    assert give(protocol, Pubcomp(packet_id)) == [answer]
    assert protocol.quota == 1


def test_qos_2_refused_at_pubrec_is_over() -> None:
    protocol = connected(Properties(receive_max=1))
    packet_id = publish(protocol, 2)
    protocol.output()
    refusal = Pubrec(packet_id, Reason.QUOTA_EXCEEDED)
    assert give(protocol, refusal) == [refusal]
    assert sent(protocol) == []
    assert protocol.quota == 1


def test_answers_of_an_earlier_connection_are_let_go() -> None:
    protocol = connected()
    assert give(protocol, Puback(7), Pubcomp(7), Suback(7, [0]), Unsuback(7, [0])) == []
    assert give(protocol, Pubrec(7), Pubrel(8)) == []
    assert sent(protocol) == [Pubrel(7, Reason.PACKET_ID_NOT_FOUND), Pubcomp(8, Reason.PACKET_ID_NOT_FOUND)]
    assert protocol.quota == 65_535


def test_a_message_is_acknowledged_when_its_user_says_so() -> None:
    protocol = connected()
    one, two = Publish("a", b"1", 1, packet_id=5), Publish("a", b"2", 2, packet_id=6)
    assert give(protocol, one, two) == [one, two]
    assert sent(protocol) == []
    protocol.acknowledge(5)
    protocol.acknowledge(6)
    assert sent(protocol) == [Puback(5), Pubrec(6)]


def test_a_qos_2_message_is_given_out_once() -> None:
    protocol = connected()
    message = Publish("a", b"x", 2, packet_id=6)
    again = Publish("a", b"x", 2, dup=True, packet_id=6)
    assert give(protocol, message, again) == [message]
    protocol.acknowledge(6)
    assert sent(protocol) == [Pubrec(6)]
    assert give(protocol, again) == []
    assert sent(protocol) == [Pubrec(6)]
    assert give(protocol, Pubrel(6)) == []
    assert sent(protocol) == [Pubcomp(6)]
    assert give(protocol, message) == [message]


def test_a_broker_that_ignores_our_receive_maximum_is_wrong() -> None:
    protocol = connected(receive_max=1)
    with pytest.raises(PeerError) as refusal:
        give(protocol, Publish("a", b"", 1, packet_id=1), Publish("a", b"", 1, packet_id=2))
    assert refusal.value.reason == Reason.RECEIVE_MAX_EXCEEDED


@pytest.mark.parametrize(
    "packet",
    [Connack(), Connect("x"), Subscribe(1, [Subscription("a")]), Pingreq()],
    ids=lambda packet: type(packet).__name__,
)
def test_what_only_a_client_sends_is_a_protocol_error(packet: Packet) -> None:
    protocol = connected()
    with pytest.raises(PeerError) as refusal:
        give(protocol, packet)
    assert refusal.value.reason == Reason.PROTOCOL_ERROR


def test_nothing_comes_before_connack() -> None:
    protocol = Protocol(Session())
    protocol.connect(Connect("me"))
    with pytest.raises(PeerError):
        give(protocol, Publish("a"))


def test_a_topic_alias_that_was_not_offered_is_wrong() -> None:
    with pytest.raises(PeerError) as refusal:
        give(connected(), Publish("a", properties=Properties(topic_alias=1)))
    assert refusal.value.reason == Reason.TOPIC_ALIAS_INVALID


def test_what_the_broker_does_not_take_is_refused() -> None:
    protocol = connected(Properties(max_qos=1, retain_available=False, max_packet_size=40))
    for size, qos, retain in ((10, 2, False), (10, 0, True), (41, 0, False), (41, 1, False)):
        with pytest.raises(Refused):
            protocol.check(size, qos, retain)
    protocol.check(40, 1, False)


def test_packet_identifiers_in_use_are_skipped() -> None:
    protocol = connected()
    held = publish(protocol, 1)
    for _ in range(65_534):
        give(protocol, Puback(publish(protocol, 1)))
    assert publish(protocol, 1) not in (0, held)


def test_packets_come_out_of_any_pieces() -> None:
    protocol = connected()
    data = encode(Publish("a", b"1"), 5) + encode(Publish("b", b"2"), 5)
    got: list[Packet] = []
    for byte in data:
        protocol.feed(bytes([byte]))
        got += iter(protocol.next, None)
    assert got == [Publish("a", b"1"), Publish("b", b"2")]


def test_after_disconnect_nothing_is_read() -> None:
    protocol = connected()
    goodbye = Disconnect(Reason.SERVER_SHUTTING_DOWN)
    assert give(protocol, goodbye, Publish("a")) == [goodbye]
    assert protocol.state is State.ENDED
