"""Clients that ask for too much, too often, or forever: what they take is bounded, and given back."""

import resource
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from badinput.siege import ERROR
from conformance import wire
from conformance.wire import V3, V5, Type
from support.brokers import LOOPBACK, MOSQUITTO, broker_kind

TIMEOUT_S = 0.3
PATIENCE_S_MAX = 5.0
FILTER_INVALID, TOPIC_INVALID, QUOTA_EXCEEDED, TAKEN_OVER = 0x8F, 0x90, 0x97, 0x8E
FAILURE = 0x80  # the only failure that a SUBACK of 3.1.1 knows
MIB = 1024 * 1024
FLOOD_BYTES = 96 * MIB

VERSIONS = pytest.mark.parametrize("v", [V3, V5], ids=["3.1.1", "5"])
timeouts_are_ours = pytest.mark.skipif(
    broker_kind() == MOSQUITTO, reason="Mosquitto has no limit to set on the time that a packet takes"
)
connections = pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])


# Slowly


@pytest.fixture
def impatient(besiege):
    return besiege(f'connect_timeout = "{TIMEOUT_S}s"', f'packet_timeout = "{TIMEOUT_S}s"')


@timeouts_are_ours
@VERSIONS
def test_a_connect_one_byte_at_a_time_is_not_waited_for(impatient, v):
    """Every byte is a sign of life, none of them a CONNECT."""
    attacker = impatient.attacker(v)
    patience_s = attacker.trickle(wire.connect("x" * 5000, v=v), every_s=0.05, seconds_max=PATIENCE_S_MAX)
    assert patience_s > TIMEOUT_S / 2


@timeouts_are_ours
@VERSIONS
def test_a_packet_one_byte_at_a_time_is_not_waited_for(impatient, v):
    """Nor from a client that was let in."""
    attacker = impatient.intruder(v)
    attacker.trickle(wire.publish("a", b"x" * 5000, v=v), every_s=0.05, seconds_max=PATIENCE_S_MAX)


@timeouts_are_ours
def test_silence_instead_of_connect_is_not_waited_for(impatient):
    """Many at once, and the canary beside them."""
    attackers = [impatient.attacker() for _ in range(200)]
    impatient.check()
    for attacker in attackers:
        attacker.fate()


@timeouts_are_ours
def test_half_a_packet_is_not_waited_for(impatient):
    """An MQTT 5 client hears why."""
    attacker = impatient.intruder()
    attacker.send(wire.publish("a", b"x" * 100)[:50])
    attacker.expect_expelled()


@timeouts_are_ours
def test_a_slow_but_finite_packet_is_welcome(impatient):
    """Two halves within the time are one packet."""
    client = impatient.intruder()
    whole = wire.publish(impatient.topic("slow"), b"x", qos=1, pid=1)
    client.send(whole[:5])
    client.expect_nothing(TIMEOUT_S / 3)
    client.send(whole[5:])
    client.expect(Type.PUBACK)


# Never reading


@pytest.mark.parametrize("qos", [0, 1])
def test_a_client_that_never_reads(siege, qos):
    """It gets what fits into its queue; memory stays bounded, and the canary does not wait behind it."""
    topic = siege.topic("flood")
    siege.intruder(name="sleeper", keep_alive=0).subscribe((topic, qos))
    siege.check()
    before = siege.resident_bytes
    with flooding(siege.broker.port, topic, qos):
        for _ in range(20):
            siege.check()
    siege.check()
    assert siege.resident_bytes - before < FLOOD_BYTES / 2


@contextmanager
def flooding(port, topic, qos):
    """A publisher on its own thread: as fast as the broker lets it, until all is sent or the time is up."""
    burst = range(1, 9)
    packets = [wire.publish(topic, b"x" * 8000, v=V3, qos=qos, pid=pid if qos else None) for pid in burst]
    chunk = b"".join(packets)
    acks_bytes = len(burst) * len(wire.ack(Type.PUBACK, 1)) if qos else 0
    until = time.monotonic() + PATIENCE_S_MAX

    def flood(connection):
        for _ in range(FLOOD_BYTES // len(chunk)):
            if time.monotonic() > until:
                return
            connection.sendall(chunk)
            left = acks_bytes
            while left:
                left -= len(connection.recv(left)) or left

    with socket.create_connection((LOOPBACK, port), timeout=PATIENCE_S_MAX) as connection:
        connection.sendall(wire.connect("flood", v=V3, keep_alive=0))
        assert len(connection.recv(4)) == 4
        thread = threading.Thread(target=flood, args=(connection,))
        thread.start()
        yield
        thread.join()


def test_a_client_that_never_reads_its_pingresps(siege):
    """Answers, too, wait in bounded memory: the server stops reading from who does not read."""
    before = siege.resident_bytes
    sleeper = siege.intruder(keep_alive=0)
    sleeper.send_until_stuck(wire.PINGREQ * 30_000, chunks_max=400)
    siege.check()
    assert siege.resident_bytes - before < 48 * MIB


# Many


@connections
def test_connects_as_fast_as_possible(siege, count):
    """Each is answered, the canary works meanwhile, and every descriptor comes back."""
    count = min(count, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)
    visitors = [siege.attacker() for _ in range(count)]
    for n, visitor in enumerate(visitors):
        visitor.send(wire.connect(f"{siege.name}n{n}", v=V5))
    siege.check()
    for visitor in visitors:
        assert visitor.expect(Type.CONNACK, seconds_max=PATIENCE_S_MAX * 4).reason == 0


@connections
def test_connections_that_leave_at_once(siege, count):
    """Opened and closed, half of them in the middle of a CONNECT."""
    for n in range(count):
        visitor = siege.attacker()
        if n % 2:
            visitor.send(wire.connect("gone")[:9])
        visitor.drop()


@VERSIONS
def test_duplicate_client_ids_in_a_storm(siege, v):
    """Whoever connects last stays; everybody else is closed, and told so in MQTT 5."""
    rivals = [siege.attacker(v) for _ in range(300)]
    for rival in rivals:
        rival.send(wire.connect(siege.name + "rival", v=v))
    for rival in rivals:
        rival.expect(Type.CONNACK, seconds_max=PATIENCE_S_MAX)
    ends = [rival.until_pong() for rival in rivals]
    losers = [end for end in ends if not end or end[-1].type is not Type.PINGRESP]
    assert len(losers) == len(rivals) - 1
    if v == V5 and rivals[0].says_why:
        assert {end[0].reason for end in losers if end} == {TAKEN_OVER}
        assert all(losers)


def test_a_kept_session_survives_a_storm_of_takeovers(siege):
    """Its subscription is there for the last one, and a message waits once."""
    topic = siege.topic("kept")
    for _ in range(100):
        rival = siege.intruder(V3, "rival", clean=False)
        rival.subscribe((topic, 1))
    siege.intruder(V3, "writer").publish(topic, b"once", qos=1)
    assert rival.receive().payload == b"once"
    rival.expect_quiet()


# Wildcards


@pytest.mark.parametrize(
    "filter_", ["+/" * 32_767 + "+", "/" * 65_535, "a/" * 32_767 + "#"], ids=["plus", "empty", "deep"]
)
@VERSIONS
def test_a_filter_as_deep_as_can_be(siege, v, filter_):
    """32,768 levels or more: granted, or refused for this client alone."""
    attacker = siege.intruder(v)
    attacker.send(wire.subscribe(1, filter_, v=v))
    attacker.answer(Type.SUBACK, FILTER_INVALID, QUOTA_EXCEEDED, FAILURE)


@pytest.mark.parametrize("name", ["a/" * 32_767 + "a", "/" * 65_535], ids=["deep", "empty"])
@VERSIONS
def test_a_topic_as_deep_as_can_be(siege, v, name):
    """Published to, retained or not, while somebody listens to everything."""
    listener = siege.intruder(v, "listener")
    listener.subscribe("#")
    attacker = siege.intruder(v)
    attacker.send(wire.publish(name, b"x", v=v, qos=1, pid=1))
    answer = attacker.answer(Type.PUBACK, TOPIC_INVALID, QUOTA_EXCEEDED)
    if answer is not None and answer.reason == 0:
        assert listener.receive().topic == name


@VERSIONS
def test_thousands_of_filters_that_all_match(siege, v):
    """Every way to write a topic of twelve levels with some +: one message matches 4,096 filters."""
    levels = [siege.name, *"abcdefghijk"]
    filters = [
        "/".join("+" if mask >> at & 1 else name for at, name in enumerate(levels)) for mask in range(4096)
    ]
    attacker = siege.intruder(v)
    for at in range(0, len(filters), 256):
        attacker.subscribe(*filters[at : at + 256])
    writer = siege.intruder(v, "writer")
    for _ in range(5):
        writer.publish("/".join(levels), b"x", qos=1)
        siege.check()
    assert attacker.receive().payload == b"x"


@VERSIONS
def test_thousands_of_plus_filters_in_one_packet(siege, v):
    attacker = siege.intruder(v)
    filters = [f"{siege.name}/+/{n}/+/#" for n in range(5000)]
    reasons = attacker.subscribe(*filters).reasons
    granted = sum(reason < ERROR for reason in reasons)
    siege.check()
    siege.intruder(v, "writer").publish(f"{siege.name}/x/{granted - 1}/y/z", b"last", qos=1)
    assert attacker.receive().payload == b"last"


def test_wildcards_on_wildcards_do_not_explode(siege):
    """The classic: +/+/+/…/# against a long topic of one letter must not try every way to match."""
    attacker = siege.intruder()
    attacker.subscribe(*["/".join(["+"] * depth) + "/#" for depth in range(1, 100)])
    writer = siege.intruder(name="writer")
    began = time.monotonic()
    for _ in range(20):
        writer.publish("/".join("a" * 100), b"x", qos=1)
    siege.check()
    assert time.monotonic() - began < PATIENCE_S_MAX
