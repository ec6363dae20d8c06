"""A message that was under way when its broker ended is sent again as it was sent first."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.bench import Bench
from tests.broker.bench import Client as Alone
from tests.replication.notebook import KeptBench, Notebook
from tests.replication.pair import MS, Client, Group
from tests.replication.test_kept_pair import KeptGroup, kept_contracts
from tests.replication.test_marks import FOREVER

from holdfast.mqtt.packets import Properties, Publish, Pubrec, Subscribe, Subscription, Unsubscribe

MANY = 20  # sessions, so that who gets a message under which identifiers is looked up among many


class Plant:
    """Brokers that can end, and their clients."""

    def __init__(self, host: Group | KeptBench) -> None:
        self.host = host

    def come(self, name: str) -> Client | Alone:
        return self.host.client(name, **(FOREVER if isinstance(self.host, Bench) else {}))

    def subscribe(self, name: str, *filters: tuple[str, int], qos: int, **options: Any) -> Client | Alone:
        """Each filter in a packet of its own, with its identifier."""
        client = self.come(name)
        for filter, identifier in filters:
            properties = Properties(subscription_ids=[identifier] if identifier else [])
            client.say(Subscribe(1, [Subscription(filter, qos, **options)], properties))
        return client

    def fail(self) -> None:
        """Whoever serves crashes, and another goes on, or the same from its journal."""
        if isinstance(self.host, Group):
            self.host.crash(self.host.primary.name)
            self.host.pass_time(200 * MS)
        else:
            self.host.notebook.crash()
            self.host = KeptBench(self.host.notebook, kept_contracts())


@pytest.fixture(params=["heir", "journal", "heir with a journal"])
def plant(request: pytest.FixtureRequest) -> Plant:
    if request.param == "journal":
        return Plant(KeptBench(Notebook(), kept_contracts()))
    return Plant(KeptGroup() if "journal" in request.param else Group(contract_book=kept_contracts()))


def seen(client: Client | Alone) -> list[tuple[object, ...]]:
    return [
        (each.topic, each.payload, each.qos, each.retain, tuple(sorted(each.properties.subscription_ids)))
        for each in client.take()
        if isinstance(each, Publish) and not each.topic.startswith("$SYS")
    ]


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_identifiers_and_the_retain_flag_come_again(plant: Plant, qos: int, as_published: bool) -> None:
    filters = ("kept/#", 5), ("kept/+", 6), ("kept/1", 0)
    clients = [
        plant.subscribe(f"s{each}", *filters[: 1 + each % 3], qos=qos, retain_as_published=as_published)
        for each in range(MANY)
    ]
    publisher = plant.come("p")
    for number, retain in enumerate((True, False, True)):
        publisher.say(Publish(f"kept/{number}", b"%d" % number, qos=2, packet_id=number + 1, retain=retain))
    before = [seen(client) for client in clients]
    assert {each[3:] for each in before[1]} == {(False, (5, 6)), (as_published, (5, 6))}
    plant.fail()
    for each, expected in enumerate(before):
        assert seen(plant.come(f"s{each}")) == expected


def test_a_member_of_a_shared_group_gets_its_own_identifier_again(plant: Plant) -> None:
    shared = [
        plant.subscribe(f"s{each}", ("$share/g/kept/#", 10 + each), qos=2, retain_as_published=True)
        for each in range(3)
    ]
    publisher = plant.come("p")
    for number in range(6):
        publisher.say(Publish(f"kept/{number}", b"x", qos=2, packet_id=number + 1, retain=True))
    before = [seen(client) for client in shared]
    assert [len(each) for each in before] == [2, 2, 2]
    plant.fail()
    assert [seen(plant.come(f"s{each}")) for each in range(3)] == before


def test_what_a_new_subscription_got_as_retained_comes_again_as_retained(plant: Plant) -> None:
    """Its message is still known, because somebody else does not take it."""
    slow = plant.subscribe("slow", ("kept/#", 3), qos=2)
    publisher = plant.come("p")
    publisher.say(Publish("kept/1", b"x", qos=2, packet_id=1, retain=True))
    new = plant.subscribe("new", ("kept/#", 4), qos=2)
    before = [seen(slow), seen(new)]
    assert before == [[("kept/1", b"x", 2, False, (3,))], [("kept/1", b"x", 2, True, (4,))]]
    plant.fail()
    assert [seen(plant.come("slow")), seen(plant.come("new"))] == before


def test_what_its_subscriber_gave_up_meanwhile_comes_again_without_identifiers(plant: Plant) -> None:
    """Its identifiers went with the subscription."""
    client = plant.subscribe("s", ("kept/#", 7), qos=2)
    plant.come("p").say(Publish("kept/1", b"x", qos=2, packet_id=1))
    (message,) = [each for each in client.take() if isinstance(each, Publish)]
    client.say(Unsubscribe(2, ["kept/#"]))
    plant.fail()
    again = plant.come("s")
    assert seen(again) == [("kept/1", b"x", 2, False, ())]
    again.say(Pubrec(message.packet_id))
