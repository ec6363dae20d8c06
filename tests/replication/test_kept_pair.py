"""A pair whose members keep journals, in made-up time: all die, all come back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.bench import book, contract
from tests.replication.notebook import Notebook
from tests.replication.pair import MS, Client, Group

from holdfast.broker.replaying import SETTLED_EVERY_NS
from holdfast.config import Limits
from holdfast.contract.model import ContractBook
from holdfast.mqtt.packets import Disconnect, Puback, Publish, Subscribe, Subscription
from holdfast.replication.keeping import Health, Keeping, keep_member
from holdfast.replication.member import Member
from holdfast.replication.memory import Message
from holdfast.replication.roles import Role

JOIN_NS = 1_000 * MS


class KeptGroup(Group):
    """Every member has a notebook that outlives it. `unsynced` members write, and sync nothing."""

    def __init__(self, size: int = 2, **more: Any) -> None:
        self.notebooks: dict[str, Notebook] = {}
        self.keepings: dict[str, Keeping] = {}
        self.unsynced: set[str] = set()
        super().__init__(size, kept_contracts(), **more)

    def start(self, name: str, contract_book: ContractBook | None = None) -> Member:
        member = super().start(name, contract_book)
        member.core.board.now_ns, member.core.board.wall_ns = self.now_ns, self.wall_ns
        notebook = self.notebooks.setdefault(name, Notebook())
        self.keepings[name] = keep_member(member, notebook.read, name, self.now_ns, behind=notebook.behind)
        return member

    def turn(self) -> bool:
        more = super().turn()
        for name, member in self.members.items():
            if name in self.stalled:
                continue
            self.notebooks[name].write(self.keepings[name])
            if name not in self.unsynced:
                self.notebooks[name].sync(self.keepings[name])
            self.notebooks[name].behind = self.keepings[name].behind
            more |= self.keepings[name].waiting or member.core.board.waiting
        return more

    def crash(self, name: str) -> None:
        self.notebooks[name].crash()
        super().crash(name)

    def crash_all(self) -> None:
        for name in list(self.members):
            self.notebooks[name].crash()
        self.members.clear()
        self.wires.clear()
        self.owner.clear()
        self.clients.clear()


def kept_contracts() -> ContractBook:
    return book(
        contract("kept", "kept/+", "100ms", 0, durable="true"),
        contract("loose", "loose/+", "100ms", 3),
        limits=Limits(state_log_max=5),
    )


def payloads(client: Client) -> list[bytes]:
    return [message.payload for message in client.messages()]


def acks(client: Client) -> list[int]:
    return [packet.packet_id for packet in client.take() if isinstance(packet, Puback)]


def with_messages_undone(group: KeptGroup) -> None:
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("+/+", qos=1)
    subscriber.say(Disconnect())
    publisher.say(Publish(topic="loose/r", payload=b"retained", retain=True))
    publisher.publish("kept/1", b"one", qos=1, packet_id=1)
    publisher.publish("kept/1", b"two", qos=1, packet_id=2)
    group.pass_time(5 * MS)
    assert acks(publisher) == [1, 2]


def test_when_all_died_everything_is_there_in_a_higher_view() -> None:
    group = KeptGroup()
    with_messages_undone(group)
    view = group.primary.view.number
    group.crash_all()
    group.start("a")
    group.start("b")
    group.pass_time(50 * MS)
    assert group.primary.view.number > view
    assert group.primary.view.heirs
    again = group.client("s")
    group.run()
    assert payloads(again) == [b"one", b"two"]
    for member in group.members.values():
        retained = member.core.retained_message(b"loose/r")
        assert retained is not None
        assert retained[-1] == b"retained"
        assert "+/+" in member.broker.clients.sessions["s"].subscriptions


def test_either_member_alone_brings_everything_back() -> None:
    for survivor in ("a", "b"):
        group = KeptGroup()
        with_messages_undone(group)
        group.crash_all()
        group.start(survivor)
        group.pass_time(JOIN_NS + 50 * MS)
        assert group.primary.name == survivor
        assert payloads(group.client("s")) == [b"one", b"two"]


@pytest.mark.parametrize("deaths", [1, 2])
def test_when_all_of_three_died_who_had_the_messages_serves(deaths: int) -> None:
    """The first in the group file is the last heir, whose journal has none of them."""
    group = KeptGroup(3)
    group.crash("a")
    group.pass_time(100 * MS)
    group.start("a")
    group.pass_time(500 * MS)
    assert (group.primary.name, group.primary.view.heirs) == ("b", ("c", "a"))
    with_messages_undone(group)
    for _ in range(deaths):
        group.crash_all()
        for name in "abc":
            group.start(name)
        group.pass_time(500 * MS)
    assert deaths > 1 or group.primary.name in ("b", "c")
    assert payloads(group.client("s", group.primary.name)) == [b"one", b"two"]


def test_a_living_first_heir_serves_before_a_primary_that_starts_again() -> None:
    """What is not durable it alone has. It stands still while that starts."""
    group = KeptGroup()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("+/+", qos=1)
    subscriber.say(Disconnect())
    publisher.publish("loose/1", b"one", qos=1, packet_id=1)
    group.pass_time(50 * MS)
    assert acks(publisher) == [1]
    group.stalled.add("b")
    group.crash("a")
    group.start("a")
    group.pass_time(200 * MS)
    group.stalled.clear()
    group.pass_time(500 * MS)
    assert group.primary.name == "b"
    assert payloads(group.client("s", "b")) == [b"one"]


def test_a_durable_message_is_not_acknowledged_before_both_disks_have_it() -> None:
    for slow in ("a", "b"):
        group = KeptGroup()
        subscriber, publisher = group.client("s"), group.client("p")
        subscriber.subscribe("+/+", qos=1)
        subscriber.say(Disconnect())
        group.unsynced.add(slow)
        publisher.publish("kept/1", b"x", qos=1, packet_id=1)
        group.pass_time(20 * MS)
        assert acks(publisher) == []
        group.unsynced.clear()
        group.pass_time(1 * MS)
        assert acks(publisher) == [1]


def test_who_went_on_alone_is_preferred_to_who_left() -> None:
    group = KeptGroup()
    primary = group.primary.name
    other = "b" if primary == "a" else "a"
    group.crash(other)
    group.pass_time(5 * MS)
    with_messages_undone(group)
    group.crash_all()
    group.start("a")
    group.start("b")
    group.pass_time(50 * MS)
    assert group.primary.name == primary
    assert payloads(group.client("s")) == [b"one", b"two"]


def test_a_member_that_comes_back_lets_go_of_what_the_primary_dealt_with() -> None:
    group = KeptGroup()
    with_messages_undone(group)
    group.crash("a")
    group.pass_time(50 * MS)
    assert group.primary.name == "b"
    again = group.client("s")
    for message in again.messages():
        again.say(Puback(message.packet_id))
    group.start("a")
    group.pass_time(50 * MS)
    assert group.members["a"].role is Role.BACKUP
    assert group.keepings["a"].undone == {}
    assert group.keepings["b"].undone == {}
    group.crash("b")
    group.pass_time(50 * MS)
    assert payloads(group.client("s")) == []


def test_a_backup_with_a_full_disk_goes_on_protecting_and_says_so() -> None:
    group = KeptGroup()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("+/+", qos=1)
    subscriber.say(Disconnect())
    group.notebooks["b"].full = True
    publisher.publish("kept/1", b"one", qos=1, packet_id=1)
    publisher.publish("kept/1", b"two", qos=1, packet_id=2)
    group.pass_time(5 * MS)
    assert acks(publisher) == [1, 2]
    assert group.keepings["b"].health is Health.FAILED
    assert group.keepings["a"].health is Health.KEEPING
    assert [(name, event) for name, event, _ in group.events if "journal" in event] == [
        ("b", "journal failed")
    ]
    group.crash("a")
    group.pass_time(50 * MS)
    assert payloads(group.client("s")) == [b"one", b"two"]


def start_both(group: KeptGroup, *names: str) -> None:
    group.crash_all()
    for name in names:
        group.start(name)
    group.pass_time(50 * MS)


@pytest.mark.parametrize("failed", ["a", "b"])
@pytest.mark.parametrize("deaths", [1, 2])
def test_when_all_died_who_has_a_whole_journal_serves(failed: str, deaths: int) -> None:
    """Also when they died again before anything came of it."""
    group = KeptGroup()
    with_messages_undone(group)
    assert group.primary.name == "a"
    subscriber = group.client("s")
    group.pass_time(50 * MS)
    messages = subscriber.messages()
    assert len(messages) == 2
    group.notebooks[failed].full = True
    for message in messages:
        subscriber.say(Puback(message.packet_id))
    group.pass_time(50 * MS)
    assert group.notebooks[failed].behind
    assert not group.notebooks["b" if failed == "a" else "a"].behind
    group.notebooks[failed].full = False
    if deaths == 2:
        group.crash_all()
        group.start(failed)
        group.pass_time(5 * MS)  # it has its first snapshot, and waits for the other
        assert group.keepings[failed].snapshots == 1
    start_both(group, "a", "b")
    assert group.primary.name != failed
    assert payloads(group.client("s")) == []
    assert not any(notebook.behind for notebook in group.notebooks.values())
    start_both(group, "a", "b")
    assert payloads(group.client("s")) == []


@pytest.mark.parametrize("primary", ["a", "b"])
@pytest.mark.parametrize("deaths", [1, 2])
def test_when_all_died_and_every_journal_had_failed_the_primary_serves(primary: str, deaths: int) -> None:
    """It alone has what was acknowledged since the other one's failed."""
    group = KeptGroup()
    if primary == "b":
        group.crash("a")
        group.pass_time(50 * MS)
        group.start("a")
        group.pass_time(50 * MS)
    with_messages_undone(group)
    assert group.primary.name == primary
    group.notebooks["b" if primary == "a" else "a"].full = True
    publisher = group.client("p")
    publisher.publish("kept/1", b"three", qos=1, packet_id=5)
    group.pass_time(50 * MS)
    assert [packet.reason for packet in publisher.take() if isinstance(packet, Puback)] == [0]
    group.notebooks[primary].full = True
    publisher.publish("kept/1", b"refused", qos=1, packet_id=6)
    group.pass_time(50 * MS)
    assert all(notebook.behind for notebook in group.notebooks.values())
    for notebook in group.notebooks.values():
        notebook.full = False
    if deaths == 2:
        group.crash_all()
        for name in "ab":
            group.start(name)
        group.pass_time(1 * MS)
    start_both(group, "a", "b")
    assert group.primary.name == primary
    assert set(payloads(group.client("s"))) >= {b"one", b"two", b"three"}


def test_who_served_last_serves_also_with_a_journal_that_failed() -> None:
    """It was alone, in a later view: nobody else has what it acknowledged before its journal failed."""
    group = KeptGroup()
    group.crash("a")
    group.pass_time(50 * MS)
    with_messages_undone(group)
    group.notebooks["b"].full = True
    group.client("p").publish("kept/1", b"refused", qos=1, packet_id=3)
    group.pass_time(5 * MS)
    assert group.notebooks["b"].behind
    group.notebooks["b"].full = False
    start_both(group, "a", "b")
    assert group.primary.name == "b"
    assert payloads(group.client("s"))[:2] == [b"one", b"two"]
    assert not group.notebooks["b"].behind


def test_a_journal_that_recovered_is_not_behind() -> None:
    group = KeptGroup()
    with_messages_undone(group)
    group.notebooks["a"].full = True
    group.client("q")
    group.pass_time(5 * MS)
    assert group.notebooks["a"].behind
    group.notebooks["a"].full = False
    group.keepings["a"].try_again()
    group.pass_time(5 * MS)
    assert not group.notebooks["a"].behind
    start_both(group, "a", "b")
    assert group.primary.name == "a"


def test_a_member_never_claims_a_view_that_it_may_have_opened_before() -> None:
    group = KeptGroup()
    group.unsynced.update("ab")
    group.crash("a")
    group.pass_time(50 * MS)
    opened = group.primary.view.number
    group.crash("b")
    group.unsynced.clear()
    group.start("b")
    group.pass_time(JOIN_NS + 50 * MS)
    assert group.primary.view.number > opened


def test_a_state_that_was_taken_over_as_a_snapshot_is_in_the_journal_too() -> None:
    group = KeptGroup()
    group.crash("b")
    group.notebooks["b"] = Notebook()
    with_messages_undone(group)
    for number in range(10):
        group.client(f"c{number}")
    group.start("b")
    group.pass_time(50 * MS)
    assert group.members["b"].role is Role.BACKUP
    group.crash_all()
    group.start("b")
    group.pass_time(JOIN_NS + 50 * MS)
    assert len(group.primary.broker.clients.sessions) == 12
    assert payloads(group.client("s")) == [b"one", b"two"]


def test_a_primary_that_steps_down_leaves_its_messages_to_the_other() -> None:
    group = KeptGroup()
    with_messages_undone(group)
    assert len(group.keepings["a"].undone) == 2
    group.stalled.add("a")
    group.pass_time(100 * MS)
    assert group.members["b"].role is Role.PRIMARY
    group.stalled.clear()
    group.pass_time(100 * MS)
    assert group.members["a"].role is Role.BACKUP
    assert sorted(Message(*each).payload for each in group.keepings["a"].undone.values()) == [b"one", b"two"]
    again = group.client("s")
    for message in again.messages():
        again.say(Puback(message.packet_id))
    group.pass_time(2 * MS)
    assert group.keepings["a"].undone == group.keepings["b"].undone == {}


def test_a_member_that_heard_no_beat_goes_on_above_the_numbers_of_subscriptions() -> None:
    group = KeptGroup()
    group.crash("a")
    group.pass_time(50 * MS)
    subscriber = group.client("s")
    group.client("p").say(Publish(topic="loose/r", payload=b"retained", retain=True))
    subscriber.subscribe("loose/+", qos=1)
    group.pass_time(2 * SETTLED_EVERY_NS)
    group.notebooks["a"] = Notebook()
    back = group.start("a")
    group.pass_time(50 * MS)
    assert back.role is Role.BACKUP
    back.published_max = 0
    group.crash("b")
    group.pass_time(50 * MS)
    again = group.client("s")
    group.client("p").publish("loose/1", b"seen", qos=1)
    group.run()
    assert payloads(again) == [b"seen"]
    new = group.client("n")
    new.say(Subscribe(1, [Subscription("loose/r")]))
    assert payloads(new) == [b"retained"]


def test_who_came_back_has_every_durable_message_in_its_journal_too() -> None:
    """The primary sends it the messages again that it had before, under the same numbers."""
    group = KeptGroup()
    away, publisher = group.client("s"), group.client("p")
    away.subscribe("kept/+", qos=1)
    group.primary.lost(away.connection, group.now_ns)
    for number in range(1, 21):
        publisher.say(Publish(topic="kept/1", payload=b"%d" % number, qos=1, packet_id=number))
    group.pass_time(50 * MS)
    assert len(group.keepings["b"].undone) == 20
    group.crash("b")
    group.pass_time(100 * MS)
    group.start("b")
    group.pass_time(500 * MS)
    assert group.primary.view.heirs == ("b",)
    assert len(group.keepings["b"].undone) == 20
    group.crash_all()
    group.start("b")
    group.pass_time(2_500 * MS, 10 * MS)
    assert payloads(group.client("s")) == [b"%d" % number for number in range(1, 21)]
