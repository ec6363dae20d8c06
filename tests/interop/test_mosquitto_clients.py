"""mosquitto_pub and mosquitto_sub, as Debian ships them, do all their work against the broker under test."""

from __future__ import annotations

import itertools
import queue
import time

import pytest

from interop.mosquitto_clients import (
    HEX_FORMAT,
    VERSIONS,
    WAIT_S_MAX,
    Subscriber,
    clear_retained,
    publish,
    publish_lines,
    request,
)
from support.brokers import MOSQUITTO

QOS = (0, 1, 2)
EXPIRED_AFTER_S = 2.1  # of a message that lives for one second: brokers that count whole seconds round up
CROSS_VERSION = list(itertools.permutations(VERSIONS, 2))
SIZES = (1, 127, 128, 16_383, 16_384, 2_097_152, 4 * 1024 * 1024)


@pytest.mark.parametrize("subscribe_qos", QOS)
@pytest.mark.parametrize("publish_qos", QOS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_qos_pair_arrives_at_the_lower_qos(broker, topic, version, publish_qos, subscribe_qos):
    with Subscriber(broker, topic, version=version, qos=subscribe_qos) as subscriber:
        publish(broker, topic, "21.5", version=version, qos=publish_qos)
        message = subscriber.message()
    assert message["payload"] == "21.5"
    assert message["topic"] == topic
    assert message["qos"] == min(publish_qos, subscribe_qos)
    assert message["retain"] == 0


@pytest.mark.parametrize(("publisher", "reader"), CROSS_VERSION)
def test_versions_talk_to_each_other_at_every_qos(broker, topic, publisher, reader):
    with Subscriber(broker, topic, version=reader, qos=2) as subscriber:
        for qos in QOS:
            publish(broker, topic, f"qos {qos}", version=publisher, qos=qos)
        received = [subscriber.message() for _ in QOS]
    assert [(message["payload"], message["qos"]) for message in received] == [
        (f"qos {qos}", qos) for qos in QOS
    ]


@pytest.mark.parametrize("qos", QOS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_thousand_messages_arrive_in_order(broker, topic, version, qos):
    if (broker.kind, version, qos) == (MOSQUITTO, "5", 2):
        pytest.skip("Mosquitto 2.0 now and then exceeds the receive maximum, and mosquitto_sub leaves")
    lines = [f"{n:04}" for n in range(1000)]
    with Subscriber(broker, topic, version=version, qos=qos) as subscriber:
        publish_lines(broker, topic, lines, version=version, qos=qos)
        assert subscriber.payloads(1000) == lines


@pytest.mark.parametrize("version", VERSIONS)
def test_a_retained_message_waits_for_later_subscribers_until_cleared(broker, topic, version):
    publish(broker, topic, "kept", "-r", version=version, qos=1)
    for _ in range(2):
        with Subscriber(broker, topic, version=version, qos=1) as late:
            message = late.message()
        assert (message["payload"], message["retain"]) == ("kept", 1)

    clear_retained(broker, topic)
    with Subscriber(broker, topic, version=version) as after:
        publish(broker, topic, "live", version=version)
        message = after.message()
    assert (message["payload"], message["retain"]) == ("live", 0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", QOS)
def test_a_will_is_published_when_the_client_is_killed(broker, topic, version, qos):
    will = ["--will-topic", topic, "--will-payload", "gone", "--will-qos", str(qos)]
    with Subscriber(broker, topic, version=version, qos=2) as watcher:
        with Subscriber(broker, f"{topic}/other", version=version, args=will) as victim:
            victim.kill()
        message = watcher.message()
    assert (message["payload"], message["qos"]) == ("gone", qos)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_will_is_forgotten_when_the_client_says_goodbye(broker, topic, version):
    will_and_one_message = ["--will-topic", topic, "--will-payload", "gone", "-C", "1"]
    with Subscriber(broker, topic, version=version, qos=1) as watcher:
        with Subscriber(broker, f"{topic}/other", version=version, args=will_and_one_message) as leaver:
            publish(broker, f"{topic}/other", "enough", version=version)
            leaver.wait()
        publish(broker, topic, "marker", version=version, qos=1)
        assert watcher.message()["payload"] == "marker"


def test_an_mqtt_5_client_may_ask_for_its_will_when_it_leaves(broker, topic):
    """Interrupted, mosquitto_sub sends DISCONNECT with reason 0x04: goodbye, and publish my will."""
    will = ["--will-topic", topic, "--will-payload", "gone"]
    with Subscriber(broker, topic, version="5", qos=1) as watcher:
        with Subscriber(broker, f"{topic}/other", version="5", args=will) as leaver:
            leaver.disconnect()
        assert watcher.message()["payload"] == "gone"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_persistent_session_gets_what_it_missed(broker, topic, client_id, version):
    session = ["-i", client_id, "-c"]
    with Subscriber(broker, topic, version=version, qos=1, args=session) as first:
        first.disconnect()
    for qos in (1, 2):
        publish(broker, topic, f"missed {qos}", version=version, qos=qos)
    with Subscriber(broker, topic, version=version, qos=1, args=session) as second:
        assert second.payloads(2) == ["missed 1", "missed 2"]


def test_a_clean_session_forgets_what_it_missed(broker, topic, client_id):
    with Subscriber(broker, topic, qos=1, args=["-i", client_id, "-c"]) as first:
        first.disconnect()
    publish(broker, topic, "missed", qos=1)
    with Subscriber(broker, topic, qos=1, args=["-i", client_id]) as second:
        publish(broker, topic, "live", qos=1)
        assert second.message()["payload"] == "live"


@pytest.mark.parametrize("version", ["311", "5"])
def test_shared_subscribers_divide_the_messages(broker, topic, version):
    """`$share` is MQTT 5's, but 3.1.1 clients in the field rely on it too; one member gets each message."""
    sent = [f"{n:02}" for n in range(40)]
    shared = f"$share/readers/{topic}"
    inbox: queue.Queue[str] = queue.Queue()
    with (
        Subscriber(broker, shared, version=version, qos=1, inbox=inbox) as one,
        Subscriber(broker, shared, version=version, qos=1, inbox=inbox) as two,
    ):
        publish_lines(broker, topic, sent, version=version, qos=1)
        assert sorted(one.payloads(len(sent))) == sent
        assert one.received + two.received == len(sent)
        assert min(one.received, two.received) > 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("qos", QOS)
def test_payloads_of_every_size_arrive_whole(broker, topic, size, qos):
    payload = bytes(n * 7 % 251 for n in range(min(size, 251))) * (size // 251 + 1)
    with Subscriber(broker, topic, qos=qos, args=HEX_FORMAT) as subscriber:
        publish(broker, topic, payload[:size], qos=qos)
        assert bytes.fromhex(subscriber.line()) == payload[:size]


def test_wildcards_select_topics(broker, topic):
    names = [topic, f"{topic}/hall", f"{topic}/hall/1", f"{topic}/yard/1", f"{topic}/yard/1/deep"]
    with (
        Subscriber(broker, f"{topic}/+/1", qos=1) as plus,
        Subscriber(broker, f"{topic}/#", qos=1) as hash_,
    ):
        for name in names:
            publish(broker, name, name, qos=1)
        assert hash_.payloads(5) == names
        assert plus.payloads(2) == [f"{topic}/hall/1", f"{topic}/yard/1"]


def test_one_subscriber_with_many_filters(broker, topic):
    filters = [f"{topic}/{n}" for n in range(200)]
    with Subscriber(broker, *filters, qos=1) as subscriber:
        for name in (filters[0], filters[99], filters[199]):
            publish(broker, name, name, qos=1)
        assert subscriber.payloads(3) == [filters[0], filters[99], filters[199]]


def test_properties_travel_from_publisher_to_subscriber(broker, topic):
    properties = {
        "user-property": ["unit", "celsius"],
        "content-type": ["text/plain"],
        "payload-format-indicator": ["1"],
    }
    args = [word for name, values in properties.items() for word in ("-D", "publish", name, *values)]
    with Subscriber(broker, topic, version="5", qos=1) as subscriber:
        publish(broker, topic, "21.5", *args, version="5", qos=1)
        message = subscriber.message()
    assert message["properties"] == {
        "user-properties": {"unit": "celsius"},
        "content-type": "text/plain",
        "payload-format-indicator": 1,
    }


def test_an_expired_message_is_not_delivered_and_a_live_one_shows_what_is_left(broker, topic, client_id):
    """The one that lives for a second must be gone; the next one proves that the queue was delivered."""
    session = ["-i", client_id, "-c"]
    with Subscriber(broker, topic, version="5", qos=1, args=session) as first:
        first.disconnect()
    publish(broker, topic, "short", "-D", "publish", "message-expiry-interval", "1", version="5", qos=1)
    expired_at = time.monotonic() + EXPIRED_AFTER_S
    publish(broker, topic, "long", "-D", "publish", "message-expiry-interval", "600", version="5", qos=1)
    time.sleep(max(0.0, expired_at - time.monotonic()))  # expiry is the passing of time
    with Subscriber(broker, topic, version="5", qos=1, args=session) as second:
        message = second.message()
    assert message["payload"] == "long"
    assert 0 < message["properties"]["message-expiry-interval"] <= 600


def test_request_and_response(broker, topic):
    with Subscriber(broker, topic, version="5", qos=1) as responder:
        asker = request(broker, topic, f"{topic}/answers", "6 x 7")
        asked = responder.message()
        assert asked["payload"] == "6 x 7"
        publish(broker, asked["properties"]["response-topic"], "42", version="5", qos=1)
        answer, _ = asker.communicate(timeout=WAIT_S_MAX)
    assert answer.strip() == "42"


def test_the_broker_describes_itself_under_sys(broker):
    with Subscriber(broker, "$SYS/#") as subscriber:
        assert subscriber.message()["topic"].startswith("$SYS/")


def test_a_username_and_password_are_accepted_where_nobody_asks_for_them(broker, topic):
    with Subscriber(broker, topic, args=["-u", "anyone", "-P", "anything"]) as subscriber:
        publish(broker, topic, "hello", "-u", "someone", "-P", "something")
        assert subscriber.message()["payload"] == "hello"
