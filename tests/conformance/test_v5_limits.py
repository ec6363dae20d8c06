"""MQTT 5.0, what a server imposes: options set to small values, announced in CONNACK and then enforced."""

from collections.abc import Iterator

import pytest

from conformance.conftest import Place
from conformance.wire import P, R, Type, connect, publish
from support.brokers import HOLDFAST, BrokerProcess

LIMITS = """
[limits]
connect_timeout = "300ms"
keep_alive_max_s = 2
session_expiry_max = "2s"
receive_max = 3
topic_alias_max = 0
packet_bytes_max = 500
"""

MOSQUITTO = """
max_inflight_messages 3
max_topic_alias 0
max_packet_size 500
"""

MOSQUITTO_DEVIATES = {
    "test_mqtt_3_3_4_7_small_receive_maximum": "answers PUBREC with 0x97",
    "test_mqtt_3_2_2_15_small_packet_size": "does not count the fixed header",
}


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    limits = tmp_path_factory.mktemp("limits") / "limits.toml"
    limits.write_text(LIMITS)
    with BrokerProcess("--contracts", str(limits), mosquitto_conf=MOSQUITTO) as process:
        yield process


@pytest.fixture
def strict(strict_broker: BrokerProcess) -> Iterator[Place]:
    """A place on a broker with small limits."""
    place = Place(strict_broker)
    yield place
    place.leave()


def test_mqtt_3_2_2_21_server_keep_alive(strict: Place) -> None:
    """A server that wants a shorter keep alive says so in CONNACK, and holds the client to it."""
    if strict.broker.kind != HOLDFAST:
        pytest.skip("Mosquitto allows no limit below ten seconds")
    client = strict.connect("c", keep_alive=600)
    assert client.connack is not None
    assert client.connack.prop(P.SERVER_KEEP_ALIVE) == 2
    client.expect_disconnect(R.KEEP_ALIVE_TIMEOUT, seconds_max=5)


def test_mqtt_section_3_2_2_3_2_session_expiry_is_announced(strict: Place) -> None:
    """A server that does not use the expiry interval asked for says in CONNACK which one it uses."""
    if strict.broker.kind != HOLDFAST:
        pytest.skip("Mosquitto has no such limit")
    connack = strict.connect("c", props=[(P.SESSION_EXPIRY, 600)]).connack
    assert connack is not None
    assert connack.prop(P.SESSION_EXPIRY) == 2


def test_mqtt_3_3_4_7_small_receive_maximum(strict: Place) -> None:
    """The receive maximum in CONNACK is the one enforced."""
    client = strict.connect("c")
    assert client.connack is not None
    assert client.connack.prop(P.RECEIVE_MAX) == 3
    for pid in (1, 2, 3):
        client.send(publish("a", qos=2, pid=pid))
        client.expect(Type.PUBREC)
    client.send(publish("a", qos=2, pid=4))
    client.expect_disconnect(R.RECEIVE_MAX_EXCEEDED)


def test_mqtt_3_2_2_18_no_topic_aliases(strict: Place) -> None:
    """A server that takes no aliases announces none, or zero, and refuses any with 0x94."""
    client = strict.connect("c")
    assert client.connack is not None
    assert client.connack.number(P.TOPIC_ALIAS_MAX, 0) == 0
    client.send(publish("a", props=[(P.TOPIC_ALIAS, 1)]))
    client.expect_disconnect(R.TOPIC_ALIAS_INVALID)


def test_mqtt_3_2_2_15_small_packet_size(strict: Place) -> None:
    """A packet of exactly the announced size is served; one byte more is refused with 0x95."""
    client = strict.connect("c")
    assert client.connack is not None
    assert client.connack.prop(P.MAX_PACKET_SIZE) == 500
    room = 500 - len(publish("a")) - 1
    data = publish("a", b"x" * room)
    assert len(data) == 500
    client.send(data)
    client.expect_quiet()
    client.send(publish("a", b"x" * (room + 1)))
    client.expect_disconnect(R.PACKET_TOO_LARGE)


def test_mqtt_3_1_4_1_connect_larger_than_the_server_takes(strict: Place) -> None:
    """CONNECT is held to the packet size too, and refused with 0x95 or just closed."""
    peer = strict.peer()
    peer.says_why = False
    peer.send(connect("c" * 600))
    peer.expect_refused(R.PACKET_TOO_LARGE, R.MALFORMED_PACKET)


def test_mqtt_section_3_1_4_connect_must_come_in_time(strict: Place) -> None:
    """A connection on which CONNECT does not come, or does not end, is closed after a while."""
    if strict.broker.kind != HOLDFAST:
        pytest.skip("Mosquitto cannot be told how long")
    silent, slow, prompt = strict.peer(), strict.peer(), strict.connect("c")
    slow.send(connect("slow")[:9])
    for peer in (silent, slow):
        peer.expect_closed()
    prompt.expect_quiet()
