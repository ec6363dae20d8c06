"""What one client makes a real broker do, others do not feel: a message to and fro beside each attack.

What counts is the processor time that the broker spends before it sends the message on, so that what else the
machine does changes nothing."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from conformance.peer import Peer
from conformance.wire import Type, publish, subscribe
from holdfast.address import LOOPBACK
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import Connect, Properties, Publish, Subscribe, Subscription, Unsubscribe
from holdfast.units import MS
from support.brokers import StartBroker

LATE_NS = 20 * MS  # a few turns take less; ten thousand filters at once take more


def equal_filters() -> Iterator[bytes]:
    yield encode(Subscribe(1, [Subscription("a")] * 200_000), 5)


def filters_and_properties() -> Iterator[bytes]:
    properties = Properties(user=[("", "")] * 6000)
    yield encode(Subscribe(1, [Subscription("a")] * 4000, properties), 5)


def deep_filters() -> Iterator[bytes]:
    rng = random.Random(1)
    for number in range(50):
        wanted = [Subscription("/".join(rng.choice("a+") for _ in range(100))) for _ in range(200)]
        yield encode(Subscribe(number + 1, wanted), 5)
    for number in range(31):
        yield encode(Publish("a/" * 98 + f"b/{number}"), 5)


def many_filters() -> Iterator[bytes]:
    wanted = [f"many/{number}" for number in range(10_000)]
    for _ in range(5):
        yield encode(Subscribe(1, [Subscription(each) for each in wanted]), 5)
        yield encode(Unsubscribe(2, wanted), 5)


def properties() -> Iterator[bytes]:
    yield encode(Connect(client_id="x", properties=Properties(user=[("", "")] * 3_000_000)), 5)


ATTACKS = (equal_filters, filters_and_properties, deep_filters, many_filters, properties)


class Attack(threading.Thread):
    """Sends, and reads until it is shown out or nothing more comes."""

    def __init__(self, port: int, packets: list[bytes]) -> None:
        super().__init__()
        self._port = port
        self._packets = packets

    def run(self) -> None:
        with socket.create_connection((LOOPBACK, self._port), timeout=20) as wire, suppress(OSError):
            for packet in self._packets:
                wire.sendall(packet)
            wire.settimeout(1)
            while wire.recv(65_536):
                pass


def spent_ns(pid: int) -> int:
    """The processor time of the broker's only thread that decides."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_message_is_not_held_up(start_broker: StartBroker, attack: Callable[[], Iterator[bytes]]) -> None:
    broker = start_broker()
    port = broker.port
    with Peer(port) as good:
        good.connect("good")
        good.send(subscribe(1, "good"))
        good.expect(Type.SUBACK)
        hello = [] if attack is properties else [encode(Connect(client_id="attacker"), 5)]
        attacker = Attack(port, [*hello, *attack()])
        attacker.start()
        worst, number = 0, 0
        while attacker.is_alive() or number < 20:
            number += 1
            before = spent_ns(broker.pid)
            good.send(publish("good", b"%d" % number))
            assert good.receive().payload == b"%d" % number
            worst = max(worst, spent_ns(broker.pid) - before)
            attacker.join(0.002)
    assert worst < LATE_NS
