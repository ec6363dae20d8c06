"""Plain paho-mqtt clients through crashes: QoS 1, persistent sessions, nothing of ours.

They know both addresses and try one after the other. What was acknowledged to the publisher must reach the
subscriber, under every kind of contract and under none; what comes twice is counted.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import cycle
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from holdfast.lab.group import Group, running_group

from .contracts import FRAME
from .measure import spread
from .report import Outcome, Table, Verdict
from .stage import Run

TOPICS = {
    "replicated": "plant/cat2/paho",
    "not replicated": "plant/cat3/paho",
    "best effort": "plant/cat4/paho",
    "no contract": "elsewhere/paho",
}
PER_S = 2000
CRASHES = 10
CRASHES_QUICK = 2
BETWEEN_S = 1.0
RETRY_S = 0.05
SETTLE_S_MAX = 20.0
SESSION_EXPIRY_S = 3600
BODY = struct.Struct("!q")


class Plain:
    """A paho client that goes to the next address whenever it is let go."""

    def __init__(self, name: str, addresses: list[str]) -> None:
        self.connected = threading.Event()
        self.refused = 0
        self._addresses = cycle(addresses)
        self._properties = Properties(PacketTypes.CONNECT)
        self._properties.SessionExpiryInterval = SESSION_EXPIRY_S
        self.client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
        self.client.reconnect_delay_set(RETRY_S, RETRY_S)
        self.client.on_connect = self._connected
        self.client.on_disconnect = self._disconnected
        self.client.on_connect_fail = lambda *_: self._go_on()

    def start(self) -> None:
        self._go_on()
        self.client.loop_start()
        if not self.connected.wait(SETTLE_S_MAX):
            raise TimeoutError("paho could not connect")

    def stop(self) -> None:
        self.client.on_disconnect = None
        self.client.disconnect()
        self.client.loop_stop()

    def _go_on(self) -> None:
        host, _, port = next(self._addresses).rpartition(":")
        self.client.connect_async(host, int(port), clean_start=False, properties=self._properties)

    def _connected(self, _client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self.refused += 1
        else:
            self.connected.set()

    def _disconnected(self, *_: Any) -> None:
        self.connected.clear()
        self._go_on()


@dataclass
class Ledger:
    """What was published, what was acknowledged, and what came, by topic and number."""

    published: int = 0
    acknowledged: set[tuple[str, int]] = field(default_factory=set)
    came: Counter[tuple[str, int]] = field(default_factory=Counter)
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def lost(self) -> set[tuple[str, int]]:
        return self.acknowledged - self.came.keys()

    @property
    def twice(self) -> int:
        return sum(count - 1 for count in self.came.values())


class Publisher:
    """Publishes to every topic in turn at a steady rate."""

    def __init__(self, addresses: list[str], ledger: Ledger) -> None:
        self.plain = Plain("paho-publisher", addresses)
        self.plain.client.max_queued_messages_set(0)
        self.plain.client.on_publish = self._acknowledged
        self.ledger = ledger
        self._waiting: dict[int, tuple[str, int]] = {}
        self._early: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def start(self) -> None:
        self.plain.start()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _publish(self) -> None:
        number, due = 0, time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            for topic in TOPICS.values():
                sent = self.plain.client.publish(topic, BODY.pack(number), qos=1)
                with self.ledger.lock:
                    self.ledger.published += 1
                    if sent.mid in self._early:
                        self._early.discard(sent.mid)
                        self.ledger.acknowledged.add((topic, number))
                    else:
                        self._waiting[sent.mid] = (topic, number)
            number += 1
            due += len(TOPICS) / PER_S

    def _acknowledged(self, _client: Client, _data: Any, mid: int, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            return
        with self.ledger.lock:
            key = self._waiting.pop(mid, None)
            if key is None:
                self._early.add(mid)
            else:
                self.ledger.acknowledged.add(key)

    @property
    def unacknowledged(self) -> int:
        with self.ledger.lock:
            return len(self._waiting)


@dataclass(frozen=True)
class Crash:
    """How long the publisher was without a broker."""

    outage_ms: float


def crash_again(group: Group, publisher: Publisher, crashes: int) -> list[Crash]:
    rng, done = random.Random(3), []
    for _ in range(crashes):
        note = group.await_protected()
        time.sleep(BETWEEN_S + rng.random() / 2)
        acknowledged = len(publisher.ledger.acknowledged)
        at_ns = group.kill(note.teller)
        give_up = time.monotonic() + SETTLE_S_MAX
        while len(publisher.ledger.acknowledged) < acknowledged + PER_S // 4 and time.monotonic() < give_up:
            time.sleep(0.001)
        done.append(Crash((time.monotonic_ns() - at_ns) / 1e6))
        group.start(note.teller)
    group.await_protected()
    return done


def trial(crashes: int) -> tuple[Ledger, list[Crash]]:
    ledger = Ledger()
    with running_group(2, FRAME) as group:
        subscriber = Plain("paho-subscriber", group.addresses)

        def take(_client: Client, _data: Any, message: MQTTMessage) -> None:
            ledger.came[message.topic, BODY.unpack(message.payload)[0]] += 1

        subscriber.client.on_message = take
        publisher = Publisher(group.addresses, ledger)
        try:
            subscriber.start()
            subscriber.client.subscribe([(topic, 1) for topic in TOPICS.values()])
            publisher.start()
            done = crash_again(group, publisher, crashes)
            publisher.stop()
            give_up = time.monotonic() + SETTLE_S_MAX
            while (publisher.unacknowledged or ledger.lost) and time.monotonic() < give_up:
                time.sleep(0.02)
            ledger.refused = publisher.plain.refused + subscriber.refused
        finally:
            publisher.plain.stop()
            subscriber.stop()
    return ledger, done


def paho(run: Run) -> Outcome:
    ledger, crashes = trial(CRASHES_QUICK if run.quick else CRASHES)
    lost = ledger.lost
    rows = []
    for kind, topic in TOPICS.items():
        acknowledged = [key for key in ledger.acknowledged if key[0] == topic]
        rows.append(
            (
                kind,
                f"{len(acknowledged):,}",
                str(sum(key[0] == topic for key in lost)),
                str(sum(count - 1 for key, count in ledger.came.items() if key[0] == topic)),
            )
        )
    outage = spread(each.outage_ms for each in crashes)
    notes = (
        f"{len(crashes)} crashes, {PER_S} messages/s; {ledger.published:,} published; until 100 more were "
        f"acknowledged: {outage.show('{:.0f}')} ms after SIGKILL; {ledger.refused} refused by a standby",
    )
    table = Table("paho: QoS 1 through crashes", ("", "acknowledged", "lost", "came twice"), rows, notes)
    verdict = Verdict(
        f"plain paho clients, QoS 1, SIGKILL under load, {len(crashes)} crashes",
        "nothing acknowledged is lost",
        f"{len(lost)} of {len(ledger.acknowledged):,} acknowledged lost; {ledger.twice} came twice",
        not lost and bool(ledger.acknowledged),
    )
    return Outcome([table], [verdict], {"crashes": [asdict(each) for each in crashes]})
