"""docs/failover.md: QoS 2 from end to end while all brokers are killed, again and again.

Both clients are plain ones that keep their session. The publisher has many messages under way, and sends
again, with DUP, what was not answered; the subscriber knows a repetition by its identifier alone.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from conformance import wire
from conformance.peer import Peer
from conformance.wire import P, Type
from support.brokers import START_S_MAX, StartBroker, wait_until

from .conftest import StartPlant
from .plant import TAKEN
from .test_restarts import kept

WINDOW = 100
KILLS = 6
EACH_TIME = 400  # messages that are answered between two kills, at least
EXPIRY = [(P.SESSION_EXPIRY, 3600)]
SETTLE_S_MAX = 30.0


class PlainClient(threading.Thread):
    """A session across the lives of a broker; `port` says where one may be."""

    def __init__(self, name: str, port: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self.client_id, self.port = name, port
        self.over = False
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self.over:
            try:
                with Peer(self.port()) as peer:
                    peer.connect(self.client_id, clean=False, props=EXPIRY)
                    self.come(peer)
                    while not self.over:
                        self.serve(peer)
            except (OSError, AssertionError):
                time.sleep(0.01)  # nobody is there, or nobody any more

    def come(self, peer: Peer) -> None:
        """It is connected."""

    def serve(self, peer: Peer) -> None:
        """Something may have come."""


class Subscriber(PlainClient):
    def __init__(self, port: Callable[[], int], topic: str) -> None:
        super().__init__("subscriber", port)
        self.topic = topic
        self.got: Counter[bytes] = Counter()
        self.subscribed = threading.Event()
        self._held: dict[int, bytes] = {}

    def come(self, peer: Peer) -> None:
        if not self.subscribed.is_set():
            peer.subscribe((self.topic, 2))
            self.subscribed.set()

    def serve(self, peer: Peer) -> None:
        try:
            packet = peer.expect_any(0.2)
        except TimeoutError:
            return
        if packet.type is Type.PUBREL and packet.pid is not None:
            self._held.pop(packet.pid, None)
            peer.send(wire.ack(Type.PUBCOMP, packet.pid))
        elif packet.type is Type.PUBLISH and packet.pid is not None:
            if packet.pid not in self._held:
                self.got[packet.payload] += 1
                self._held[packet.pid] = packet.payload
            elif self._held[packet.pid] != packet.payload:
                self.wrong.append(f"{packet.payload!r} came as a repetition of {self._held[packet.pid]!r}")
            peer.send(wire.ack(Type.PUBREC, packet.pid))


class Publisher(PlainClient):
    def __init__(self, port: Callable[[], int], topic: str) -> None:
        super().__init__("publisher", port)
        self.topic = topic
        self.sent = 0
        self.taken: set[bytes] = set()
        self.goes_on = True
        self._under_way: dict[int, bytes] = {}
        self._released: set[int] = set()

    @property
    def idle(self) -> bool:
        return not self._under_way

    def come(self, peer: Peer) -> None:
        for pid, payload in self._under_way.items():
            if pid in self._released:
                peer.send(wire.ack(Type.PUBREL, pid))
            else:
                peer.send(wire.publish(self.topic, payload, qos=2, pid=pid, dup=True))

    def serve(self, peer: Peer) -> None:
        free = iter(range(1, WINDOW + 1))
        while self.goes_on and len(self._under_way) < WINDOW:
            pid = next(each for each in free if each not in self._under_way)
            self._under_way[pid] = b"%d" % self.sent
            self.sent += 1
            peer.send(wire.publish(self.topic, self._under_way[pid], qos=2, pid=pid))
        try:
            packet = peer.expect_any(0.2)
        except TimeoutError:
            return
        if packet.type is Type.PUBREC and packet.pid is not None:
            if packet.reason not in TAKEN:
                self.wrong.append(f"PUBREC {packet.reason:#x}")
            self.taken.add(self._under_way[packet.pid])
            self._released.add(packet.pid)
            peer.send(wire.ack(Type.PUBREL, packet.pid))
        elif packet.type is Type.PUBCOMP and packet.pid is not None:
            self._under_way.pop(packet.pid, None)
            self._released.discard(packet.pid)


class Trial:
    """One publisher, one subscriber, and whoever serves."""

    def __init__(self, topic: str) -> None:
        self.port = 0
        self.publisher = Publisher(lambda: self.port, topic)
        self.subscriber = Subscriber(lambda: self.port, topic)

    def begin(self, port: int) -> None:
        self.port = port
        self.subscriber.start()
        assert self.subscriber.subscribed.wait(START_S_MAX)
        self.publisher.start()

    def go_on(self, port: int) -> None:
        """Until enough was answered that the next kill meets many messages on every part of their way."""
        self.port = port
        enough = len(self.publisher.taken) + EACH_TIME
        wait_until(lambda: len(self.publisher.taken) >= enough, "answers", SETTLE_S_MAX)

    def judge(self) -> None:
        publisher, subscriber = self.publisher, self.subscriber
        publisher.goes_on = False
        try:
            wait_until(lambda: publisher.idle, "the last answer", SETTLE_S_MAX)
            wait_until(lambda: publisher.taken <= set(subscriber.got), "what was taken", SETTLE_S_MAX)
            time.sleep(0.5)  # whatever else may come
        finally:
            publisher.over = subscriber.over = True
            for each in (publisher, subscriber):
                each.join(START_S_MAX)
        assert publisher.wrong == subscriber.wrong == []
        expected = Counter(b"%d" % number for number in range(publisher.sent))
        more, fewer = subscriber.got - expected, expected - subscriber.got
        print(f"{publisher.sent} messages, {len(more)} more than once, {len(fewer)} never")
        assert not more, f"{len(more)} of {publisher.sent} came more than once"
        assert not fewer, f"{len(fewer)} of {publisher.sent} never came"
        assert len(publisher.taken) == publisher.sent


def test_a_broker_alone_that_is_killed_doubles_nothing(start_broker: StartBroker, tmp_path: Path) -> None:
    """failover.md: "With a journal a durable message of QoS 2 comes to a subscriber of QoS 2 once, also when
    all brokers died, or the only one:"
    """
    trial = Trial("kept/1")
    broker = kept(start_broker, tmp_path)
    trial.begin(broker.port)
    for _ in range(KILLS):
        trial.go_on(broker.port)
        broker.kill()
        broker = kept(start_broker, tmp_path)
    trial.go_on(broker.port)
    trial.judge()


def test_a_pair_that_is_killed_doubles_nothing(start: StartPlant) -> None:
    """failover.md: "With a journal a durable message of QoS 2 comes to a subscriber of QoS 2 once, also when
    all brokers died, or the only one:"

    Both die at once; one comes back first, now this one, now the other.
    """
    plant = start(keep=True)
    trial = Trial("kept/1")
    trial.begin(plant.ports[plant.primary()])
    for kill in range(4):
        trial.go_on(plant.ports[plant.primary()])
        plant.kill("a", "b")
        plant.start("ab"[kill % 2])
        trial.port = plant.ports[plant.primary()]
        plant.start("ba"[kill % 2])
        plant.await_protected()
    trial.go_on(plant.ports[plant.primary()])
    trial.judge()
