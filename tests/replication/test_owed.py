"""A subscription is owed the retained messages that it found, whoever serves, until its client has them."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.broker.bench import Bench
from tests.broker.bench import Client as Alone
from tests.replication.notebook import KeptBench, Notebook
from tests.replication.pair import MS, Client, Group
from tests.replication.test_kept_pair import KeptGroup, kept_contracts
from tests.replication.test_marks import FOREVER

from holdfast.broker import replaying
from holdfast.broker.replaying import QUEUED_DURING_REPLAY_MAX, SETTLED_EVERY_NS
from holdfast.broker.session import Session
from holdfast.mqtt.packets import (
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
)

WINDOW = 10
MANY = 3 * (WINDOW + QUEUED_DURING_REPLAY_MAX)
FAULTS = ["cut", "heir", "journal", "planned"]


class Plant:
    """A broker or a group, `MANY` retained messages, and a client that subscribes to them."""

    def __init__(self, fault: str, qos: int, retained: int = MANY) -> None:
        self.fault, self.qos = fault, qos
        self.host: Group | KeptBench
        if fault in ("heir", "planned"):
            self.host = KeptGroup()
        else:
            self.host = KeptBench(Notebook(), kept_contracts())
        self.got: Counter[str] = Counter()
        self.client: Client | Alone | None = None
        self.under_way: set[int] = set()
        self.retained = [f"r/{number % 7}/{number}" for number in range(retained)]
        publisher = self.host.client("p")
        for topic in self.retained:
            publisher.publish(topic, b"x", retain=True, qos=2, packet_id=1)
            publisher.send(Pubrel(1))
        self.host.run()

    def come(self) -> None:
        options = FOREVER if isinstance(self.host, Bench) else {}
        self.client = self.host.client("s", **options)
        self.session.window = WINDOW

    @property
    def session(self) -> Session:
        broker = self.host.broker if isinstance(self.host, Bench) else self.host.primary.broker
        (session,) = [each for each in broker.clients.sessions.values() if each.client_id == "s"]
        return session

    def subscribe(self, filter: str = "r/#", **options: int) -> None:
        """The answer comes, and nothing else is read."""
        assert self.client is not None
        self.client.send(Subscribe(1, [Subscription(filter, self.qos, **options)]))
        for _ in range(20):
            self.host.turn()
            if any(isinstance(each, Suback) for each in self.client.got):
                return
        raise AssertionError("no SUBACK")

    def take(self, most: int = 10**6) -> None:
        """So many messages are taken and acknowledged."""
        assert self.client is not None
        self.host.run()
        while most > 0 and (packets := self.client.take()):
            for packet in packets[:most]:
                self.client.send(*self._answers(packet))
            self.client.got[:0] = packets[most:]
            most -= len(packets)
            self.host.run()

    def _answers(self, packet: Packet) -> list[Packet]:
        if isinstance(packet, Pubrel):
            self.under_way.discard(packet.packet_id)
            return [Pubcomp(packet.packet_id)]
        if not isinstance(packet, Publish) or packet.topic.startswith("$SYS"):
            return []
        if packet.qos == 2 and packet.packet_id in self.under_way:
            return [Pubrec(packet.packet_id)]
        assert packet.retain
        self.got[packet.topic] += 1
        if packet.qos == 2:
            self.under_way.add(packet.packet_id)
            return [Pubrec(packet.packet_id)]
        return [Puback(packet.packet_id)] if packet.qos else []

    def fail(self) -> None:
        """What was sent and not read is lost, and the client comes back."""
        assert self.client is not None
        host = self.host
        if isinstance(host, KeptBench) and self.fault == "cut":
            host.broker.lost(self.client.connection, host.now_ns)
            host.run()
        elif isinstance(host, KeptBench):
            host.notebook.crash()
            self.host = KeptBench(host.notebook, kept_contracts())
        elif self.fault == "planned":
            name = host.primary.name
            host.primary.drain(host.now_ns)
            host.pass_time(200 * MS)
            del host.members[name]
        else:
            host.crash(host.primary.name)
            host.pass_time(200 * MS)
        self.come()

    def settle(self) -> None:
        """Long enough that it is told what is over."""
        if isinstance(self.host, Group):
            self.host.pass_time(4 * SETTLED_EVERY_NS, 10 * MS)
        else:
            self.host.pass_time(4 * SETTLED_EVERY_NS)

    @property
    def owing(self) -> int:
        return sum(each.owed > 0 for each in self.session.subscriptions.values())


@pytest.mark.parametrize("taken", [0, 1, WINDOW, WINDOW + 1, QUEUED_DURING_REPLAY_MAX + WINDOW + 1, MANY - 1])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_not_taken_comes_whoever_serves(fault: str, qos: int, taken: int) -> None:
    plant = Plant(fault, qos)
    plant.come()
    plant.subscribe()
    if taken:
        plant.take(taken)
    plant.fail()
    plant.take()
    assert set(plant.got) == set(plant.retained)
    if fault == "cut":
        assert sum(plant.got.values()) <= MANY + (0 if qos == 2 else WINDOW)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_acknowledged_is_not_owed_any_more(fault: str, qos: int) -> None:
    plant = Plant(fault, qos)
    plant.come()
    plant.subscribe()
    assert plant.owing == 1
    plant.take()
    plant.settle()
    assert plant.owing == 0
    plant.fail()
    plant.take()
    assert plant.got == Counter(plant.retained)


@pytest.mark.parametrize("fault", FAULTS)
def test_with_qos_0_nothing_is_owed_to_who_left(fault: str) -> None:
    plant = Plant(fault, 0, 3 * QUEUED_DURING_REPLAY_MAX)
    plant.come()
    assert isinstance(plant.client, Client | Alone)
    plant.client.connection.writable = False
    plant.client.send(Subscribe(1, [Subscription("r/#", 0)]))
    plant.host.run()
    plant.fail()
    plant.take()
    assert plant.got == Counter()
    assert plant.owing == 0


@pytest.mark.parametrize("handling", [0, 1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_who_subscribes_again_meanwhile_gets_all_of_them_too(fault: str, handling: int) -> None:
    """As clients do that come back: whatever they say then about retained messages, these are still owed."""
    plant = Plant(fault, 1)
    plant.come()
    plant.subscribe()
    plant.take(WINDOW + 1)
    plant.fail()
    plant.subscribe(retain_handling=handling)
    plant.fail() if fault in ("cut", "journal") else None
    plant.take()
    assert set(plant.got) == set(plant.retained)
    plant.settle()
    assert plant.owing == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_who_gives_its_subscription_up_is_owed_nothing(fault: str) -> None:
    plant = Plant(fault, 1)
    plant.come()
    plant.subscribe()
    plant.take(1)
    assert plant.client is not None
    plant.client.say(Unsubscribe(2, ["r/#"]))
    plant.fail()
    plant.take()
    assert len(plant.got) <= 2 * WINDOW + QUEUED_DURING_REPLAY_MAX, "those that were on their way"


def test_of_many_subscriptions_each_gets_its_own() -> None:
    plant = Plant("heir", 1)
    plant.come()
    for number in range(7):
        plant.subscribe(f"r/{number}/+")
    plant.take(MANY // 2)
    plant.fail()
    plant.take()
    assert set(plant.got) == set(plant.retained)
    plant.settle()
    assert plant.owing == 0


def test_nothing_is_kept_of_what_is_over() -> None:
    plant = Plant("cut", 1)
    assert isinstance(plant.host, KeptBench)
    replays = plant.host.broker.subscribing.replays
    plant.come()
    plant.subscribe()
    plant.fail()
    assert len(replays._owed) == 1
    plant.take()
    plant.settle()
    assert not replays._owed
    assert not replays._watched
    assert not replays.order
    plant.subscribe("r/+/1")
    plant.host.broker.clients.end(plant.session, plant.host.now_ns)
    plant.host.run()
    plant.settle()
    assert not replays._owed
    assert not replays._watched


@pytest.mark.parametrize("more", [0, 1])
def test_a_walk_that_rests_keeps_no_more_names_that_go(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """It keeps its place while few go, and begins again after that."""
    monkeypatch.setattr(replaying, "GONE_MAX", 20)
    plant = Plant("cut", 2)
    assert isinstance(plant.host, KeptBench)
    plant.come()
    plant.subscribe()
    plant.take(WINDOW)
    assert plant.client is not None
    plant.host.broker.lost(plant.client.connection, plant.host.now_ns)
    plant.host.run()
    writer = plant.host.client("w")
    for number in range(20 + more):
        writer.publish(f"other/{number}", b"x", retain=True)
        writer.publish(f"other/{number}", b"", retain=True)
    plant.settle()
    plant.come()
    plant.take()
    assert set(plant.got) == set(plant.retained)
    assert (sum(plant.got.values()) > MANY) == bool(more)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("retained", [1, WINDOW, WINDOW + 1])
def test_what_was_sent_is_owed_until_it_is_acknowledged(fault: str, qos: int, retained: int) -> None:
    """However long that takes."""
    plant = Plant(fault, qos, retained)
    plant.come()
    plant.subscribe()
    plant.settle()
    assert plant.owing == 1
    plant.fail()
    plant.take()
    assert set(plant.got) == set(plant.retained)
