"""paho-mqtt, unchanged, in MQTT 3.1, 3.1.1 and 5 against the broker under test."""

from __future__ import annotations

import itertools
import time

import pytest
from paho.mqtt.client import MQTTv5, MQTTv31, MQTTv311
from paho.mqtt.packettypes import PacketTypes

from interop.paho_client import VERSIONS, WAIT_S_MAX, Client, properties
from support.brokers import MOSQUITTO, broker_kind, wait_until

QOS = (0, 1, 2)
EXPIRED_AFTER_S = 2.1  # of a message that lives for one second: brokers that count whole seconds round up
NAMES = {MQTTv31: "3.1", MQTTv311: "3.1.1", MQTTv5: "5"}.__getitem__
SIZES = (0, 1, 127, 128, 16_383, 16_384, 65_536, 2_097_152, 4 * 1024 * 1024)

every_version = pytest.mark.parametrize("version", VERSIONS, ids=NAMES)


@every_version
@pytest.mark.parametrize("subscribe_qos", QOS)
@pytest.mark.parametrize("publish_qos", QOS)
def test_every_qos_pair_arrives_at_the_lower_qos(broker, topic, version, publish_qos, subscribe_qos):
    with Client(broker, version=version) as client:
        assert client.subscribe(topic, qos=subscribe_qos) == [subscribe_qos]
        client.publish(topic, "21.5", qos=publish_qos)
        message = client.message()
    assert (message.topic, message.payload) == (topic, b"21.5")
    assert message.qos == min(publish_qos, subscribe_qos)
    assert not message.retain
    assert not message.dup


@pytest.mark.parametrize(("writer", "reader"), list(itertools.permutations(VERSIONS, 2)), ids=NAMES)
def test_versions_talk_to_each_other_at_every_qos(broker, topic, writer, reader):
    with Client(broker, version=reader) as subscriber, Client(broker, version=writer) as publisher:
        subscriber.subscribe(topic, qos=2)
        for qos in QOS:
            publisher.publish(topic, f"qos {qos}", qos=qos)
        received = [subscriber.message() for _ in QOS]
    assert [(message.payload, message.qos) for message in received] == [(b"qos %d" % qos, qos) for qos in QOS]


@every_version
@pytest.mark.parametrize("qos", QOS)
def test_a_thousand_messages_arrive_in_order(broker, topic, version, qos):
    sent = [f"{n:04}" for n in range(1000)]
    with Client(broker, version=version) as subscriber, Client(broker, version=version) as publisher:
        subscriber.subscribe(topic, qos=qos)
        for payload in sent:
            publisher.publish_later(topic, payload, qos=qos)
        assert subscriber.payloads(1000) == sent


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("qos", QOS)
def test_payloads_of_every_size_arrive_whole(broker, topic, size, qos):
    payload = (bytes(range(256)) * (size // 256 + 1))[:size]
    with Client(broker, version=MQTTv5) as client:
        client.subscribe(topic, qos=qos)
        client.publish(topic, payload, qos=qos)
        assert client.message().payload == payload


@pytest.mark.parametrize("qos", QOS)
def test_many_topics_each_reach_their_own_subscription(broker, topic, qos):
    names = [f"{topic}/line{n // 50}/cell{n % 50}" for n in range(1000)]
    with Client(broker) as subscriber, Client(broker) as publisher:
        subscriber.subscribe(*names[::2], qos=qos)
        for name in names:
            publisher.publish_later(name, name, qos=qos)
        assert sorted(subscriber.payloads(500)) == sorted(names[::2])
        assert subscriber.waiting == 0


@every_version
def test_retained_messages_are_kept_replaced_and_cleared(broker, topic, version):
    with Client(broker, version=version) as client:
        client.publish(topic, "old", qos=1, retain=True)
        client.publish(topic, "new", qos=1, retain=True)
        client.subscribe(topic, qos=1)
        kept = client.message()
        client.publish(topic, "", qos=1, retain=True)
        live = client.message()
        client.unsubscribe(topic)
        client.subscribe(topic, qos=1)
        client.publish(topic, "marker", qos=1)
        after = client.message()
    assert [(kept.payload, kept.retain), (live.payload, live.retain)] == [(b"new", True), (b"", False)]
    assert (after.payload, after.retain) == (b"marker", False)


@every_version
@pytest.mark.parametrize("qos", QOS)
def test_a_will_is_published_when_the_client_dies(broker, topic, version, qos):
    will = {"topic": topic, "payload": "gone", "qos": qos, "retain": True}
    with Client(broker, version=version) as watcher:
        watcher.subscribe(topic, qos=2)
        Client(broker, version=version, will=will).connect().crash()
        message = watcher.message()
        assert (message.payload, message.qos, message.retain) == (b"gone", qos, False)
        with Client(broker, version=version) as late:
            late.subscribe(topic, qos=2)
            assert late.message().retain
        watcher.publish(topic, "", qos=1, retain=True)


@every_version
def test_a_will_is_forgotten_at_disconnect(broker, topic, version):
    with Client(broker, version=version) as watcher:
        watcher.subscribe(topic, qos=1)
        with Client(broker, version=version, will={"topic": topic, "payload": "gone"}):
            pass
        watcher.publish(topic, "marker", qos=1)
        assert watcher.message().payload == b"marker"


@every_version
def test_a_client_that_comes_back_gets_its_session(broker, topic, client_id, version):
    """After a crash the session is there, with what came meanwhile."""
    options = {"version": version, "client_id": client_id, "clean": False, "session_expiry_s": 600}
    subscriber = Client(broker, **options).connect()
    assert not subscriber.session_present
    subscriber.subscribe(topic, qos=2)
    subscriber.crash()
    with Client(broker, version=version) as publisher:
        for qos in (1, 2):
            publisher.publish(topic, f"missed {qos}", qos=qos)
    with Client(broker, **options) as back:
        assert back.session_present or version == MQTTv31
        messages = [back.message() for _ in range(2)]
    assert [(message.payload, message.qos) for message in messages] == [(b"missed 1", 1), (b"missed 2", 2)]


@pytest.mark.xfail(broker_kind() == MOSQUITTO, reason="Mosquitto closes without saying why", strict=True)
def test_a_second_client_with_the_same_id_takes_over(broker, client_id):
    first = Client(broker, version=MQTTv5, client_id=client_id).connect()
    with Client(broker, version=MQTTv5, client_id=client_id):
        assert first.wait_disconnected().value == 0x8E
    first.disconnect()


def test_shared_subscribers_divide_the_messages(broker, topic):
    sent = [f"{n:03}" for n in range(100)]
    with (
        Client(broker, version=MQTTv5) as one,
        Client(broker, version=MQTTv5) as two,
        Client(broker, version=MQTTv5) as publisher,
    ):
        for member in (one, two):
            member.subscribe(f"$share/pool/{topic}", qos=1)
        for payload in sent:
            publisher.publish_later(topic, payload, qos=1)
        wait_until(lambda: one.waiting + two.waiting == len(sent), "all shares", WAIT_S_MAX)
        shares = [member.payloads(member.waiting) for member in (one, two)]
    assert sorted(shares[0] + shares[1]) == sent
    assert all(share == sorted(share) for share in shares), "a member's share is in order"
    assert all(shares), "both members work"


def test_user_properties_keep_their_order_and_repeats(broker, topic):
    pairs = [("unit", "celsius"), ("place", "hall 3"), ("unit", "kelvin")]
    with Client(broker, version=MQTTv5) as client:
        client.subscribe(topic, qos=1)
        client.publish(
            topic, "21.5", qos=1, UserProperty=pairs, ContentType="text/plain", PayloadFormatIndicator=1
        )
        received = client.message().properties
    assert received.UserProperty == pairs
    assert received.ContentType == "text/plain"
    assert received.PayloadFormatIndicator == 1


def test_an_expired_message_is_not_delivered(broker, topic, client_id):
    options = {"version": MQTTv5, "client_id": client_id, "clean": False, "session_expiry_s": 600}
    with Client(broker, **options) as subscriber:
        subscriber.subscribe(topic, qos=1)
    with Client(broker, version=MQTTv5) as publisher:
        publisher.publish(topic, "short", qos=1, MessageExpiryInterval=1)
        expired_at = time.monotonic() + EXPIRED_AFTER_S
        publisher.publish(topic, "long", qos=1, MessageExpiryInterval=600)
    time.sleep(max(0.0, expired_at - time.monotonic()))  # expiry is the passing of time
    with Client(broker, **options) as back:
        message = back.message()
    assert message.payload == b"long"
    assert 0 < message.properties.MessageExpiryInterval < 600


def test_request_and_response(broker, topic):
    answers = f"{topic}/answers"
    with Client(broker, version=MQTTv5) as asker, Client(broker, version=MQTTv5) as responder:
        responder.subscribe(topic, qos=1)
        asker.subscribe(answers, qos=1)
        asker.publish(topic, "6 x 7", qos=1, ResponseTopic=answers, CorrelationData=b"\x00\x2a")
        question = responder.message()
        correlation = question.properties.CorrelationData
        responder.publish(question.properties.ResponseTopic, "42", qos=1, CorrelationData=correlation)
        answer = asker.message()
    assert (answer.payload, answer.properties.CorrelationData) == (b"42", b"\x00\x2a")


def test_subscription_options_of_mqtt_5(broker, topic):
    """No Local drops a client's own messages, Retain As Published keeps the flag, identifiers return."""
    identifier = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=7)
    with Client(broker, version=MQTTv5) as client, Client(broker, version=MQTTv5) as other:
        client.subscribe(topic, qos=1, noLocal=True, retainAsPublished=True, properties=identifier)
        client.publish(topic, "mine", qos=1)
        other.publish(topic, "theirs", qos=1, retain=True)
        message = client.message()
        other.publish(topic, "", qos=1, retain=True)
    assert (message.payload, message.retain) == (b"theirs", True)
    assert message.properties.SubscriptionIdentifier == [7]


def test_wildcards_select_topics(broker, topic):
    with Client(broker) as client:
        client.subscribe(f"{topic}/+/temperature", qos=1)
        client.subscribe(f"{topic}/alarms/#", qos=1)
        names = ["hall/temperature", "hall/humidity", "hall/1/temperature", "alarms", "alarms/fire/hall"]
        for name in names:
            client.publish(f"{topic}/{name}", name, qos=1)
        assert client.payloads(3) == ["hall/temperature", "alarms", "alarms/fire/hall"]


def test_unsubscribe_stops_the_flow(broker, topic):
    with Client(broker) as client:
        client.subscribe(topic, f"{topic}/marker", qos=1)
        client.unsubscribe(topic)
        client.publish(topic, "unwanted", qos=1)
        client.publish(f"{topic}/marker", "marker", qos=1)
        assert client.message().payload == b"marker"


def test_an_assigned_client_id_is_told_to_an_mqtt_5_client(broker):
    with Client(broker, version=MQTTv5) as client:
        assert client.connack_properties.AssignedClientIdentifier


@every_version
def test_keep_alive_pings_hold_an_idle_connection(broker, topic, version):
    """paho pings by itself; after more than one and a half periods without a message it is connected."""
    with Client(broker, version=version, keep_alive_s=1) as client:
        client.subscribe(topic, qos=1)
        assert not client.disconnected_within(2.0)
        client.publish(topic, "still here", qos=1)
        assert client.message().payload == b"still here"
