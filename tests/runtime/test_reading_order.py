"""SUBSCRIBE on one connection and at once PUBLISH on another, on real sockets, counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.peer import Peer
from conformance.wire import V3, V5, Type, publish, subscribe, unsubscribe
from support.brokers import StartBroker
from support.groups import GroupProcesses

ROUNDS = 100
CONTRACTS = """
[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { edge = "1ms" }
"""


def count_received(port: int, version: int) -> int:
    """How many of the messages came that were sent right behind the SUBSCRIBE of another client."""
    received = 0
    with Peer(port, version) as subscriber, Peer(port, version) as publisher:
        subscriber.connect("s")
        publisher.connect("p")
        for number in range(ROUNDS):
            topic = f"round/{number}"
            subscriber.send(subscribe(number + 1, topic, v=version))
            publisher.send(publish(topic, b"%d" % number, v=version))
            subscriber.expect(Type.SUBACK)
            publisher.send(publish(topic, b"the end", v=version))
            while (payload := subscriber.receive().payload) != b"the end":
                received += payload == b"%d" % number
    return received


@pytest.mark.parametrize("version", [V3, V5])
def test_a_subscriber_gets_what_is_sent_right_behind_its_subscribe(
    start_broker: StartBroker, version: int
) -> None:
    assert count_received(start_broker().port, version) == ROUNDS


def test_a_subscriber_of_a_pair_gets_it_too(tmp_path: Path) -> None:
    contracts = tmp_path / "contracts.toml"
    contracts.write_text(CONTRACTS)
    with GroupProcesses(tmp_path, contracts, keep=False) as group:
        group.await_protected()
        assert count_received(group.ports[group.primary()], V5) == ROUNDS


def test_what_is_sent_right_before_an_unsubscribe_still_comes(start_broker: StartBroker) -> None:
    received = 0
    port = start_broker().port
    with Peer(port) as subscriber, Peer(port) as publisher:
        subscriber.connect("s")
        publisher.connect("p")
        for number in range(ROUNDS):
            subscriber.subscribe("a")
            publisher.send(publish("a", b"%d" % number))
            subscriber.send(unsubscribe(number + 1, "a"))
            subscriber.expect(Type.UNSUBACK)
            # Whatever comes, has come before this.
            subscriber.send(subscribe(1, "b"), publish("b", b"the end"), unsubscribe(2, "b"))
            subscriber.expect(Type.SUBACK)
            while (payload := subscriber.receive().payload) != b"the end":
                received += payload == b"%d" % number
            subscriber.expect(Type.UNSUBACK)
    assert received == ROUNDS
