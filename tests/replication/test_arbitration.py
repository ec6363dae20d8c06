"""A pair with an arbiter, in made-up time: one view stands, whoever is cut off from whom."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.replication.notebook import Notebook
from tests.replication.pair import MS, Client, Group
from tests.replication.test_kept_pair import KeptGroup, kept_contracts, payloads, with_messages_undone

from holdfast.mqtt.packets import Disconnect, Puback, Publish, Pubrec, Suback, Subscribe, Subscription
from holdfast.mqtt.reasons import Reason
from holdfast.replication import keeping
from holdfast.replication.candidacy import rank_of
from holdfast.replication.member import Member
from holdfast.replication.messages import Worth
from holdfast.replication.roles import Role
from holdfast.replication.views import Claim, Heard, Standing, is_won, why_lost

JOIN_NS = 1_000 * MS
APART = frozenset("ab")


class Arbiter:
    """What ZooKeeper keeps: the view that stands."""

    def __init__(self) -> None:
        self.standing: Standing | None = None
        self.reached_by = set("abcd")
        self.lives: dict[Member, str] = {}

    @property
    def number(self) -> int:
        return 0 if self.standing is None else self.standing.number

    @property
    def holder(self) -> str:
        return "" if self.standing is None else self.standing.holder

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
                life = self.lives.setdefault(member, str(len(self.lives)))
                won = is_won(self.standing, claim, name, life)
                if won:
                    self.standing = Standing(claim.number, name, claim.heirs, life)
                assert self.standing is not None
                why = why_lost(self.standing, claim, name)
                member.claimed(claim.number, won, group.now_ns, standing=self.standing, why=why)
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
    assert group.primary.view.number == group.arbiter.number


def test_the_end_of_an_old_connection_is_not_the_end_of_an_heir() -> None:
    group = Group()
    primary = group.primary
    view, new = primary.view, primary.peers.link_to("b")
    assert view.heirs == ("b",)
    old = primary.dialed("b", None, group.now_ns)
    old.state.name, old.state.index, old.state.follows, old.state.mute = "b", 1, True, True
    primary.lost(old, group.now_ns)
    group.run()
    assert primary.view == view
    assert primary.core.board.backup is new


def away_and_publisher(group: Group) -> Client:
    """Somebody is subscribed and away; the client that publishes to it."""
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("loose/+", qos=1)
    group.primary.lost(away.connection, group.now_ns)
    return publisher


@pytest.mark.parametrize("size", [2, 3])
def test_cut_off_from_heirs_and_arbiter_a_primary_promises_nothing_however_long_that_takes(size: int) -> None:
    group = ArbitratedGroup(size)
    publisher = away_and_publisher(group)
    group.arbiter.reached_by.discard("a")
    group.cut |= {frozenset(("a", other)) for other in "bc"[: size - 1]}
    for number in range(1, 21):
        publisher.publish("loose/1", b"x", qos=1, packet_id=number)
        publisher.publish("loose/2", b"x", qos=2, packet_id=100 + number)
        group.pass_time(500 * MS, 10 * MS)
    assert group.members["a"].role is Role.PRIMARY
    assert [each for each in publisher.take() if isinstance(each, Puback | Pubrec)] == []
    assert any(member.role is Role.PRIMARY for name, member in group.members.items() if name != "a")
    group.arbiter.reached_by.add("a")
    group.pass_time(1_100 * MS, 10 * MS)
    assert group.members["a"].role is not Role.PRIMARY
    assert [each for each in publisher.take() if isinstance(each, Puback | Pubrec)] == []


def test_what_waited_for_the_arbiter_is_acknowledged_when_it_answers() -> None:
    group = ArbitratedGroup()
    publisher = away_and_publisher(group)
    group.arbiter.reached_by.clear()
    group.crash("b")
    for number in range(1, 51):
        publisher.publish("loose/1", b"x", qos=1, packet_id=number)
        group.pass_time(100 * MS, 10 * MS)
    assert acks(publisher) == []
    group.arbiter.reached_by.update("ab")
    group.pass_time(1_100 * MS, 10 * MS)
    assert acks(publisher) == list(range(1, 51))


def test_a_primary_that_waits_for_the_arbiter_does_not_spin() -> None:
    group = ArbitratedGroup()
    publisher = away_and_publisher(group)
    group.arbiter.reached_by.clear()
    group.crash("b")
    publisher.publish("loose/1", b"x", qos=1, packet_id=1)
    group.pass_time(3_000 * MS, 10 * MS)
    member = group.members["a"]
    assert not member.turn(group.now_ns, group.wall_ns)
    assert member.next_ns is not None
    assert member.next_ns > group.now_ns


def test_a_group_may_choose_to_go_on_without_its_arbiter() -> None:
    group = ArbitratedGroup(unarbitrated="go-on")
    publisher = away_and_publisher(group)
    group.arbiter.reached_by.clear()
    group.cut.add(APART)
    publisher.publish("loose/1", b"x", qos=1, packet_id=7)
    group.pass_time(200 * MS, 10 * MS)
    assert acks(publisher) == [7]
    (told,) = {details["meanwhile"] for _, event, details in group.events if event == "not arbitrated"}
    assert told == "acknowledges what only this broker has"


def test_an_arbiter_that_gives_no_answer_is_told_of_once_and_so_is_one_that_does_again() -> None:
    group = ArbitratedGroup()

    def told() -> list[str]:
        return [event for _, event, _ in group.events if event in ("arbitrated", "not arbitrated")]

    group.arbiter.reached_by.clear()
    group.events.clear()
    group.crash("b")
    group.pass_time(5_000 * MS, 10 * MS)
    assert told() == ["not arbitrated"]
    group.arbiter.reached_by.update("ab")
    group.pass_time(3_000 * MS, 10 * MS)
    assert told() == ["not arbitrated", "arbitrated"]
    group.arbiter.reached_by.clear()
    group.start("b")
    group.pass_time(5_000 * MS, 10 * MS)
    assert told() == ["not arbitrated", "arbitrated", "not arbitrated"]
    group.arbiter.reached_by.update("ab")
    group.pass_time(3_000 * MS, 10 * MS)
    assert told() == ["not arbitrated", "arbitrated", "not arbitrated", "arbitrated"]
    assert group.primary.view.heirs == ("b",)


def test_the_arbiter_knows_every_view_and_its_heirs() -> None:
    group = ArbitratedGroup(3)
    standing = group.arbiter.standing
    assert standing is not None
    assert (standing.number, standing.heirs) == (group.primary.view.number, group.primary.view.heirs)
    group.crash(standing.heirs[0])
    group.pass_time(100 * MS)
    standing = group.arbiter.standing
    assert (standing.number, standing.heirs) == (group.primary.view.number, group.primary.view.heirs)
    assert len(standing.heirs) == 1


def test_without_the_arbiter_no_heir_is_added_and_the_primary_goes_on_alone() -> None:
    group = ArbitratedGroup()
    publisher = away_and_publisher(group)
    group.crash("b")
    group.pass_time(50 * MS)
    group.arbiter.reached_by.clear()
    group.start("b")
    group.pass_time(500 * MS, 10 * MS)
    assert group.primary.view.heirs == ()
    publisher.publish("loose/1", b"x", qos=1, packet_id=7)
    group.pass_time(50 * MS)
    assert acks(publisher) == [7]
    group.arbiter.reached_by.update("ab")
    group.pass_time(1_500 * MS, 10 * MS)
    assert group.primary.view.heirs == ("b",)


def test_the_survivor_of_a_lost_host_serves_when_it_starts_again_without_memory() -> None:
    group = ArbitratedGroup()
    group.crash("b")
    group.pass_time(100 * MS)
    before = group.primary.view.number
    group.crash("a")
    group.start("a")
    group.pass_time(1_200 * MS, 10 * MS)
    assert serving(group) == ["a"]
    assert group.primary.view.number > before


def test_a_primary_steps_down_before_who_was_given_the_next_view_and_started_again() -> None:
    """It hears of that view from its holder, which does not serve yet, before the arbiter says so."""
    group = KeptArbitratedGroup()
    group.client("c").subscribe("loose/1", qos=1)
    group.cut.add(APART)
    group.arbiter.reached_by = {"b"}
    group.pass_time(200 * MS)
    assert group.arbiter.holder == "b"
    group.client("d", "b").subscribe("loose/2", qos=1)
    group.pass_time(10 * MS)
    group.crash("b")
    group.start("b")
    group.held.clear()
    group.arbiter.reached_by = {"a", "b"}
    group.heal()
    group.pass_time(3 * JOIN_NS, 5 * MS)
    assert serving(group) == ["b"]
    assert group.primary.serving.protected_by == ("a",)
    assert set(group.members["a"].broker.clients.sessions) == {"c", "d"}


def test_who_had_no_time_to_write_the_state_of_its_view_waits_for_who_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was told all as a snapshot, and all die while that goes to its journal, which has an older state."""
    monkeypatch.setattr(keeping, "SNAPSHOT_PIECE", 1)
    group = KeptArbitratedGroup()
    client = group.client("c")
    client.subscribe("loose/1", qos=1)
    group.pass_time(10 * MS)
    group.crash("b")
    for number in range(100):
        client.subscribe(f"loose/{number}", qos=1)
    group.start("b")
    while group.members["a"].serving.protected_by != ("b",):
        group.turn()
        group.now_ns += MS
    group.turn()
    assert group.keepings["b"].waiting
    group.crash_all()
    group.start("b")
    group.pass_time(3 * JOIN_NS)
    assert serving(group) == []
    group.start("a")
    group.pass_time(3 * JOIN_NS)
    assert serving(group) == ["a"]
    for member in group.members.values():
        assert len(member.broker.clients.sessions["c"].subscriptions) == 100


def test_a_primary_that_starts_again_without_memory_leaves_it_to_the_heir_that_sleeps() -> None:
    group = ArbitratedGroup()
    publisher = away_and_publisher(group)
    publisher.say(Publish(topic="loose/1", payload=b"x", qos=1, packet_id=7))
    group.pass_time(5 * MS)
    assert acks(publisher) == [7]
    group.stalled.add("b")
    group.cut.add(APART)
    group.crash("a")
    group.start("a")
    group.pass_time(5_000 * MS, 10 * MS)
    assert serving(group) == []
    assert "b may have that: start who is missing" in group.members["a"].candidacy.refused
    group.stalled.clear()
    group.cut.clear()
    group.pass_time(2_500 * MS, 10 * MS)
    assert serving(group) == ["b"]
    assert [each.payload for each in group.client("away").messages()] == [b"x"]


def test_who_lost_its_claim_sends_its_clients_to_the_winner() -> None:
    group = ArbitratedGroup()
    client = group.client("c")
    group.order = "ba"
    group.prompt = False
    group.cut.add(APART)
    group.pass_time(80 * MS)
    group.prompt = True
    group.pass_time(1 * MS)
    (told,) = [packet for packet in client.take() if isinstance(packet, Disconnect)]
    assert told.reason == Reason.SERVER_MOVED
    assert told.properties.server_reference == group.config.member("b").mqtt


def test_while_it_is_not_known_who_serves_no_subscription_is_granted() -> None:
    group = ArbitratedGroup()
    client = group.client("c")
    group.arbiter.reached_by.clear()
    group.crash("b")
    client.say(Subscribe(1, [Subscription("loose/#", 1)]))
    group.pass_time(3_000 * MS, 10 * MS)
    assert not [each for each in client.take() if isinstance(each, Suback)]
    group.arbiter.reached_by.update("ab")
    group.pass_time(1_100 * MS, 10 * MS)
    (answer,) = [each for each in client.take() if isinstance(each, Suback)]
    assert answer.reasons == [1]


def test_an_heir_of_before_serves_though_a_view_was_given_that_it_never_heard_of() -> None:
    """The primary asks for a view with another heir, is given it, and dies before it hears so."""
    group = ArbitratedGroup(3)
    first, second = group.primary.view.heirs
    group.crash(second)
    group.pass_time(100 * MS)
    group.prompt = False
    group.start(second)
    for _ in range(100):
        group.pass_time(5 * MS)
        if claims := group.members["a"].claims:
            break
    (claim,) = claims
    assert claim.heirs == (first, second)
    group.arbiter.standing = Standing(claim.number, "a", claim.heirs, "0")
    group.crash("a")
    group.prompt = True
    group.pass_time(500 * MS, 10 * MS)
    assert serving(group) == [first]


def test_the_heir_that_has_the_messages_serves_before_a_primary_that_let_go_of_them() -> None:
    """The heir won a view and did not hear so, then followed the primary again; that lost its own claim."""
    group = ArbitratedGroup(3)
    away, publisher = group.client("away"), group.client("p")
    away.subscribe("plain/#", qos=1)
    group.members["a"].lost(away.connection, group.now_ns)
    publisher.publish("plain/1", b"x", qos=1, packet_id=7)
    group.pass_time(5 * MS)
    assert acks(publisher) == [7]
    first = group.members["a"].view.heirs[0]
    group.prompt = False
    group.cut.update(frozenset(("a", each)) for each in "bc")
    while not group.members[first].claims:
        group.pass_time(1 * MS)
    (claim,) = group.members[first].claims
    group.members[first].claims.clear()
    group.arbiter.standing = Standing(claim.number, first, (), "not told")
    group.heal()
    group.pass_time(10 * MS)
    group.prompt = True
    group.pass_time(3 * JOIN_NS, 10 * MS)
    assert serving(group) == [first]
    came = group.client("away")
    group.run()
    assert [each.payload for each in came.messages()] == [b"x"]


@pytest.mark.parametrize(("told", "won"), [(0, False), (7, False), (8, True), (9, True)])
def test_nobody_vouches_with_what_a_member_said_before_it_knew_of_the_view_that_stands(
    told: int, won: bool
) -> None:
    """It may have come to serve in that view since."""
    for standing in (Standing(8, "a"), Standing(8, "c", heirs=("a",))):
        present = (Heard("a", told), Heard("c", 8))
        assert is_won(standing, Claim(13, 0, present=present), "b", "1") is won


@pytest.mark.parametrize("lost", ["first", "second"])
def test_without_the_arbiter_an_heir_that_is_lost_stops_promises_though_another_is_connected(
    lost: str,
) -> None:
    group = ArbitratedGroup(3)
    publisher = away_and_publisher(group)
    group.pass_time(100 * MS)
    heirs = group.primary.view.heirs
    assert len(heirs) == 2
    group.arbiter.reached_by.clear()
    group.crash(heirs[0] if lost == "first" else heirs[1])
    publisher.publish("loose/1", b"x", qos=1, packet_id=7)
    group.pass_time(5_000 * MS, 5 * MS)
    assert group.primary.view.heirs == (heirs[1:] if lost == "first" else heirs[:1])
    assert acks(publisher) == []
    group.arbiter.reached_by |= set("abc")
    group.pass_time(2_000 * MS, 5 * MS)
    assert acks(publisher) == [7]


# All died, and not all are back


def all_died(size: int, **more: Any) -> tuple[KeptArbitratedGroup, str, tuple[str, ...]]:
    """With durable messages undone; gives the primary and the heirs of the view that stands."""
    group = KeptArbitratedGroup(size, **more)
    group.pass_time(500 * MS)
    with_messages_undone(group)
    primary, heirs = group.primary.name, group.primary.view.heirs
    assert len(heirs) == size - 1
    assert group.arbiter.standing is not None
    assert (group.arbiter.holder, group.arbiter.standing.heirs) == (primary, heirs)
    group.crash_all()
    return group, primary, heirs


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("alone_ms", [50, 1_000, 1_100, 2_500, 5_000])
@pytest.mark.parametrize("second", ["primary", "first heir", "all"])
def test_a_later_heir_that_starts_first_leaves_serving_to_who_has_the_messages(
    size: int, alone_ms: int, second: str
) -> None:
    group, primary, heirs = all_died(size)
    group.start(heirs[-1])
    group.pass_time(alone_ms * MS, 5 * MS)
    assert serving(group) == []
    then = {"primary": [primary], "first heir": [heirs[0]], "all": [primary, *heirs[:-1]]}[second]
    for name in then:
        group.start(name)
    group.pass_time(3 * JOIN_NS, 5 * MS)
    assert serving(group)[0] in (primary, heirs[0])
    assert payloads(group.client("s")) == [b"one", b"two"]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("which", ["primary", "first heir"])
def test_who_has_the_messages_of_the_view_that_stands_serves_alone(size: int, which: str) -> None:
    group, primary, heirs = all_died(size)
    alone = primary if which == "primary" else heirs[0]
    for _ in range(2):  # it dies again before anything came of it
        group.start(alone)
        group.pass_time(5 * MS)
        group.crash(alone)
    group.start(alone)
    group.pass_time(JOIN_NS + 50 * MS)
    assert serving(group) == [alone]
    assert payloads(group.client("s")) == [b"one", b"two"]


def test_members_that_start_together_and_do_not_hear_each_other_leave_serving_to_who_has_the_messages() -> (
    None
):
    group, primary, heirs = all_died(3)
    group.cut = {frozenset((heirs[1], other)) for other in (primary, heirs[0])}
    group.arbiter.reached_by = {heirs[1]}
    for name in "abc":
        group.start(name)
    group.pass_time(3 * JOIN_NS, 5 * MS)
    assert serving(group) == []
    group.arbiter.reached_by = set("abc")
    group.heal()
    group.pass_time(3 * JOIN_NS, 5 * MS)
    assert serving(group)[0] in (primary, heirs[0])
    assert payloads(group.client("s")) == [b"one", b"two"]


def test_a_later_heir_says_whom_it_waits_for_and_serves_when_they_come_with_nothing() -> None:
    group, primary, heirs = all_died(3)
    group.start(heirs[1])
    group.pass_time(2 * JOIN_NS, 5 * MS)
    names = " and ".join(sorted((primary, heirs[0])))
    told = f"this member lacks its durable messages, and {names} may have that: start who is missing, "
    told += "with an empty data directory if it lost its own"
    assert told in group.members[heirs[1]].candidacy.refused
    assert any(told in str(details["why"]) for _, event, details in group.events if event == "claim lost")
    for name in (primary, heirs[0]):
        assert serving(group) == []
        group.notebooks[name] = Notebook()
        group.start(name)
        group.pass_time(2 * JOIN_NS, 5 * MS)
    assert serving(group) == [heirs[1]]
    assert "s" in group.primary.broker.clients.sessions


def test_a_later_heir_whose_group_promises_to_keep_no_message_serves_alone() -> None:
    group, _, heirs = all_died(3)
    plain = msgspec.structs.replace(
        kept_contracts(),
        contracts=tuple(msgspec.structs.replace(each, durable=False) for each in kept_contracts().contracts),
    )
    group.start(heirs[1], plain)
    group.pass_time(JOIN_NS + 50 * MS)
    assert serving(group) == [heirs[1]]


def test_a_later_heir_that_lived_on_takes_over_though_it_has_no_messages() -> None:
    group = KeptArbitratedGroup(3)
    group.pass_time(500 * MS)
    primary, heirs = group.primary.name, group.primary.view.heirs
    group.stalled.add(heirs[0])
    group.crash(primary)
    group.pass_time(500 * MS)
    assert serving(group) == [heirs[1]]


def test_a_later_heir_that_came_back_once_takes_over_as_any_other() -> None:
    group = KeptArbitratedGroup(3)
    group.pass_time(500 * MS)
    last = group.primary.view.heirs[1]
    group.crash(last)
    group.pass_time(100 * MS)
    group.start(last)
    group.pass_time(500 * MS)
    primary, heirs = group.primary.name, group.primary.view.heirs
    assert heirs[1] == last
    group.stalled.add(heirs[0])
    group.crash(primary)
    group.pass_time(500 * MS)
    assert serving(group) == [last]


@pytest.mark.parametrize("failed", ["a", "b"])
def test_who_comes_back_with_a_journal_that_had_failed_waits_for_the_whole_one(failed: str) -> None:
    """A backup whose journal fails confirms copies from memory: the primary's journal alone has them."""
    group = KeptArbitratedGroup()
    with_messages_undone(group)
    assert group.primary.name == "a"
    group.notebooks[failed].full = True
    publisher = group.client("p")
    publisher.publish("kept/1", b"three", qos=1, packet_id=5)
    group.pass_time(50 * MS)
    (answer,) = [packet for packet in publisher.take() if isinstance(packet, Puback)]
    assert group.notebooks[failed].behind
    group.notebooks[failed].full = False
    group.crash_all()
    group.start(failed)
    group.pass_time(3 * JOIN_NS, 5 * MS)
    assert serving(group) == []
    whole = "b" if failed == "a" else "a"
    group.start(whole)
    group.pass_time(2 * JOIN_NS, 5 * MS)
    assert serving(group) == [whole]
    taken = [b"one", b"two"] + ([b"three"] if answer.reason == 0 else [])
    assert set(payloads(group.client("s"))) >= set(taken)


def test_who_was_the_last_to_serve_serves_alone_also_with_a_journal_that_had_failed() -> None:
    group = KeptArbitratedGroup()
    group.crash("a")
    group.pass_time(50 * MS)
    with_messages_undone(group)
    group.notebooks["b"].full = True
    group.client("p").publish("kept/1", b"refused", qos=1, packet_id=3)
    group.pass_time(5 * MS)
    assert group.notebooks["b"].behind
    group.notebooks["b"].full = False
    group.crash_all()
    group.start("b")
    group.pass_time(2 * JOIN_NS, 5 * MS)
    assert serving(group) == ["b"]
    assert payloads(group.client("s"))[:2] == [b"one", b"two"]


class SlowlyArbitratedGroup(KeptArbitratedGroup):
    """An answer comes when time has passed: what others said before they knew of a view is known by then."""

    def pass_time(self, ns: int, step_ns: int = 1 * MS) -> None:
        for _ in range(ns // step_ns):
            self.prompt = False
            super().pass_time(step_ns, step_ns)
            self.arbiter.answer(self, self.order)


@pytest.mark.parametrize("kind", [KeptGroup, SlowlyArbitratedGroup])
@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_a_primary_that_did_not_write_down_its_last_view_has_the_messages_all_the_same(
    kind: type[KeptGroup], order: str
) -> None:
    """All die right after a later heir was added, whose journal alone knows of the view."""
    group = kind(3)
    group.pass_time(500 * MS)
    with_messages_undone(group)
    primary, (first, last) = group.primary.name, group.primary.view.heirs
    group.crash(last)
    group.pass_time(100 * MS)
    group.unsynced = {primary, first}
    group.start(last)
    group.pass_time(500 * MS)
    assert group.primary.view.heirs == (first, last)
    group.crash_all()
    group.unsynced.clear()
    entitled = {}
    for name in order:
        entitled[name] = group.start(name).entitled
        group.pass_time(10 * MS)
    assert entitled[last] > entitled[primary]
    group.pass_time(3 * JOIN_NS, 5 * MS)
    assert serving(group) == [primary]
    assert payloads(group.client("s")) == [b"one", b"two"]


def test_a_view_is_not_given_to_who_lacks_its_messages_while_one_that_may_have_them_is_not_there() -> None:
    standing = Standing(8, "a", heirs=("b", "c"))
    both, one = (Heard("a", 8), Heard("b", 8)), (Heard("a", 8),)
    for present, won in (((), False), (one, False), (both, True)):
        claim = Claim(14, 8, present=present, messages=False)
        assert is_won(standing, claim, "c", "1") is won
    assert is_won(standing, Claim(14, 8, under="a"), "c", "1")
    assert is_won(Standing(8, "c"), Claim(14, 8, messages=False), "c", "2")
    assert "its state" in why_lost(standing, Claim(14, 4, messages=False), "c")


def test_a_primary_outranks_an_heir_of_its_reign_that_left_and_whose_state_is_as_long() -> None:
    """Its view keeps its number when an heir is lost: that lacks the messages since, and does not know it."""
    left, primary = Worth(4, 12, 1, 6), Worth(4, 12, 1, 5)
    assert rank_of(1, left, [left, primary]) < rank_of(0, primary, [left, primary])
    assert rank_of(1, Worth(4, 12, 2, 6), [primary]) > rank_of(0, primary, [])  # it lives, and has all
    assert rank_of(1, left, [Worth(4, 12, 0, 6)]) > rank_of(
        0, Worth(4, 12, 0, 6), [left]
    )  # it has none of them
    later = Worth(4, 16, 0, 6)
    assert rank_of(2, later, [primary]) < rank_of(0, primary, [later])
    others = Worth(4, 18, 0, 6)  # of a view that was not its own
    assert rank_of(2, others, [primary]) > rank_of(0, primary, [others])
