"""A pair with an arbiter, in made-up time: one view stands, whoever is cut off from whom."""

from __future__ import annotations

from typing import Any

from tests.replication.pair import MS, Client, Group
from tests.replication.test_kept_pair import KeptGroup, payloads

from holdfast.mqtt.packets import Puback, Publish
from holdfast.replication.roles import Role

JOIN_NS = 1_000 * MS
APART = frozenset("ab")


class Arbiter:
    """What ZooKeeper keeps: one number, and whose it is."""

    def __init__(self) -> None:
        self.number, self.holder = 0, ""
        self.reached_by = set("abcd")

    def answer(self, group: Group, order: str = "abcd") -> bool:
        """Answers what was asked, in that order of members; says whether anybody asked."""
        asked = False
        for name in order:
            member = group.members.get(name)
            if member is None or name in group.stalled:
                continue
            claims, member.claims = member.claims, []
            for claim in claims:
                asked = True
                if name not in self.reached_by:
                    member.claimed(claim.number, None, group.now_ns, why="no answer")
                    continue
                mine = (self.number, self.holder) == (claim.number, name)
                won = mine or (self.number <= claim.after and self.number < claim.number)
                if won:
                    self.number, self.holder = claim.number, name
                member.claimed(claim.number, won, group.now_ns, standing=self.number, why=self.holder)
        return asked


class Arbitrated:
    """Mixed into a group: an arbiter answers at once, or when it is told to."""

    arbiter: Arbiter
    prompt: bool
    order: str

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arbiter = Arbiter()
        self.prompt = True
        self.order = "abcd"
        super().__init__(*arguments, zookeeper="z:1", **options)

    def turn(self) -> bool:
        more = super().turn()  # type: ignore[misc]
        if self.prompt:
            more |= self.arbiter.answer(self, self.order)  # type: ignore[arg-type]
        return bool(more)


class ArbitratedGroup(Arbitrated, Group):
    pass


class KeptArbitratedGroup(Arbitrated, KeptGroup):
    pass


def serving(group: Group) -> list[str]:
    return [name for name, member in group.members.items() if member.role is Role.PRIMARY]


def acks(client: Client) -> list[int]:
    return [packet.packet_id for packet in client.take() if isinstance(packet, Puback)]


def test_the_first_view_is_the_arbiters_too() -> None:
    group = ArbitratedGroup()
    assert group.arbiter.holder == group.primary.name == "a"
    assert group.primary.view.heirs == ("b",)


def test_when_the_primary_dies_its_heir_claims_the_next_view() -> None:
    group = ArbitratedGroup()
    group.crash("a")
    group.pass_time(5 * MS)
    assert serving(group) == ["b"]
    assert group.arbiter.number == group.primary.view.number


def test_when_the_link_is_cut_exactly_one_serves_and_the_other_waits_for_it() -> None:
    for winner in ("ab", "ba"):
        group = ArbitratedGroup()
        group.order = winner
        group.cut.add(APART)
        group.prompt = False
        group.pass_time(100 * MS)
        group.prompt = True
        group.pass_time(5 * JOIN_NS, 10 * MS)
        assert serving(group) == [winner[0]]
        group.cut.clear()
        group.pass_time(300 * MS)
        assert serving(group) == [winner[0]]
        assert group.members[winner[1]].role is Role.BACKUP


def test_a_primary_without_its_heir_promises_nothing_before_the_arbiter_spoke() -> None:
    group = ArbitratedGroup()
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("loose/+", qos=1)
    group.members["a"].lost(away.connection, group.now_ns)
    group.prompt = False
    group.crash("b")
    publisher.publish("loose/1", b"x", qos=1, packet_id=7)
    group.pass_time(50 * MS)
    assert serving(group) == ["a"]
    assert acks(publisher) == []
    group.prompt = True
    group.pass_time(1 * MS)
    assert acks(publisher) == [7]
    assert group.primary.view.number == group.arbiter.number


def test_a_primary_that_loses_its_claim_steps_down_and_promises_nothing() -> None:
    group = ArbitratedGroup()
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("loose/+", qos=1)
    group.members["a"].lost(away.connection, group.now_ns)
    group.order = "ba"
    group.prompt = False
    group.cut.add(APART)
    group.pass_time(40 * MS)
    publisher.publish("loose/1", b"x", qos=1, packet_id=7)
    group.pass_time(40 * MS)
    group.prompt = True
    group.pass_time(1 * MS)
    assert serving(group) == ["b"]
    assert acks(publisher) == []
    assert publisher.connection.closing


def test_a_stale_primary_acknowledges_nothing_while_it_steps_down() -> None:
    """What it had sent to a subscriber and not heard of is the new primary's to deliver."""
    group = Group()
    subscriber, publisher = group.client("s"), group.client("p")
    subscriber.subscribe("loose/+", qos=1)
    group.cut.add(APART)
    publisher.send(Publish(topic="loose/1", payload=b"x", qos=1, packet_id=7))
    group.turn()
    group.members["a"].heard_of(99, group.now_ns)
    group.run()
    assert group.members["a"].role is not Role.PRIMARY
    assert acks(publisher) == []


def test_without_an_answer_a_backup_waits_and_a_primary_goes_on() -> None:
    group = ArbitratedGroup()
    publisher = group.client("p")
    view = group.primary.view.number
    group.arbiter.reached_by.clear()
    group.cut.add(APART)
    group.pass_time(3 * JOIN_NS, 10 * MS)
    assert serving(group) == ["a"]
    assert group.primary.view.number == view
    publisher.say(Publish(topic="loose/1", payload=b"x", qos=1, packet_id=7))
    assert acks(publisher) == [7]
    told = {(name, event) for name, event, _ in group.events}
    assert {("a", "not arbitrated"), ("b", "claim lost")} <= told
    group.arbiter.reached_by = set("ab")
    group.order = "ab"
    group.pass_time(2 * JOIN_NS, 10 * MS)
    assert serving(group) == ["a"]
    assert group.arbiter.holder == "a"


def test_who_missed_a_view_does_not_serve_when_the_other_is_gone() -> None:
    """What `a` acknowledged alone would be lost; it comes back with its journal, and goes on."""
    group = KeptArbitratedGroup()
    group.cut.add(APART)
    group.pass_time(100 * MS)
    assert serving(group) == ["a"]
    away, publisher = group.client("s"), group.client("p")
    away.subscribe("kept/+", qos=1)
    group.members["a"].lost(away.connection, group.now_ns)
    publisher.say(Publish(topic="kept/1", payload=b"alone", qos=1, packet_id=7))
    assert acks(publisher) == [7]
    group.crash("a")
    group.cut.clear()
    group.pass_time(3 * JOIN_NS, 10 * MS)
    assert serving(group) == []
    group.start("a")
    group.pass_time(2 * JOIN_NS, 10 * MS)
    assert serving(group) == ["a"]
    assert payloads(group.client("s")) == [b"alone"]


def test_members_without_any_memory_serve_when_all_are_there() -> None:
    group = ArbitratedGroup()
    group.cut.add(APART)
    group.pass_time(100 * MS)
    for name in list(group.members):
        group.crash(name)
    group.cut.clear()
    group.start("b")
    group.pass_time(3 * JOIN_NS, 10 * MS)
    assert serving(group) == []
    group.start("a")
    group.pass_time(3 * JOIN_NS, 10 * MS)
    assert len(serving(group)) == 1
    assert group.primary.view.number == group.arbiter.number + 4  # with an heir


def test_the_end_of_an_old_connection_is_not_the_end_of_an_heir() -> None:
    group = Group()
    primary = group.primary
    view, new = primary.view, primary.peers.link_to("b")
    assert view.heirs == ("b",)
    old = primary.accept_peer(None, group.now_ns)
    old.state.name, old.state.index, old.state.follows, old.state.mute = "b", 1, True, True
    primary.lost(old, group.now_ns)
    group.run()
    assert primary.view == view
    assert primary.core.board.backup is new
