"""How long a member is waited for that nothing is heard of, and what comes of standstills."""

from __future__ import annotations

import pytest
from tests.broker.bench import MS, book, contract
from tests.replication.pair import Group, group_of

from holdfast.contract.model import ContractBook
from holdfast.mqtt.packets import Properties, Suback, Subscribe, Subscription
from holdfast.replication.group import GroupConfig
from holdfast.replication.messages import Right
from holdfast.replication.roles import Role
from holdfast.replication.silence import CALM_NS, NOTED_NS, STALLS_KEPT_NS, Silence, Stalls

BEAT_NS = 10 * MS


def patient(deadline: str = "150ms") -> ContractBook:
    """N = 1, L = 0, T = 100 ms: x may be 96.95 ms."""
    return book(contract("slow", "slow/+", deadline, 0).replace("retention = 2", "retention = 1"))


def derived(size: int = 2, contract_book: ContractBook | None = None) -> Group:
    group = Group(size, contract_book or patient(), silence_ns=None)
    group.pass_time(100 * MS)
    return group


def stall(group: Group, name: str, ns: int) -> None:
    group.stalled.add(name)
    group.pass_time(ns)
    group.stalled.discard(name)
    group.pass_time(50 * MS)


def config(**more: object) -> GroupConfig:
    return group_of(2, silence_ns=None, **more)


def test_a_file_that_says_silence_is_obeyed() -> None:
    silence = Silence(group_of(2, silence_ns=30 * MS), patient())
    silence.own.add(60 * MS, 0)
    assert not silence.look(1)
    assert (silence.ns, silence.least_ns, silence.x_ns) == (30 * MS, 30 * MS, 50 * MS)


def test_without_it_the_contracts_bound_it_and_are_reckoned_with_it() -> None:
    silence = Silence(config(), patient())
    assert silence.bound is not None
    assert silence.ns == silence.bound.silence_ns == 86_900_000
    assert silence.x_ns == 96_950_000


def test_a_group_that_could_wait_long_waits_only_as_long_as_its_members_stood_still() -> None:
    silence = Silence(config(), ContractBook())
    assert silence.ns == CALM_NS
    silence.heed(51 * MS, 1)
    assert silence.look(2)
    assert silence.ns == 102 * MS
    silence.own.add(200 * MS, 3)
    assert silence.look(4)
    assert silence.ns == 400 * MS
    silence.own.add(900 * MS, 5)
    silence.look(6)
    assert silence.ns == 989_950_000
    assert silence.look(7 + STALLS_KEPT_NS)
    assert silence.ns == CALM_NS


@pytest.mark.parametrize(
    ("beat_ns", "gap_ns", "counts"),
    [
        (10 * MS, 50 * MS, 0),
        (10 * MS, 50 * MS + 1, 1),
        (30 * MS, 60 * MS, 0),
        (30 * MS, 60 * MS + 1, 1),
        (10 * MS, 989_950_000, 1),
        (10 * MS, 989_950_001, 0),
    ],
)
def test_a_gap_counts_if_more_is_to_be_waited_for_and_could_be(
    beat_ns: int, gap_ns: int, counts: int
) -> None:
    silence = Silence(config(heartbeat_ns=beat_ns), ContractBook())
    silence.heed(gap_ns, 1)
    assert len(silence.gaps) == counts


def test_what_the_primary_says_is_done_within_the_bound() -> None:
    silence = Silence(config(), patient())
    for told_ns, done_ns in ((40 * MS, 40 * MS), (1, 30 * MS), (500 * MS, 86_900_000)):
        silence.told_ns = told_ns
        silence.look(1)
        assert silence.ns == done_ns


def test_redirects_that_take_long_shorten_it_when_most_do() -> None:
    silence = Silence(config(), patient())
    assert not silence.redirected(20 * MS)
    assert not silence.redirected(20 * MS)
    assert silence.redirected(20 * MS)
    silence.look(1)
    assert silence.ns == 76_900_000


def test_stalls_are_kept_for_a_while() -> None:
    stalls = Stalls()
    for at, ns in ((0, 50), (10, 70), (20, 60)):
        stalls.add(ns, at)
    assert (len(stalls), stalls.longest_ns, stalls.total) == (3, 70, 3)
    stalls.expire(STALLS_KEPT_NS + 11)
    assert (len(stalls), stalls.longest_ns, stalls.total) == (1, 60, 3)


@pytest.mark.parametrize("ns", [35 * MS, 70 * MS, 76 * MS])
def test_a_primary_that_stands_still_for_less_than_the_contracts_bear_goes_on(ns: int) -> None:
    group = derived()
    view = group.primary.view
    for _ in range(5):
        stall(group, "a", ns)
    assert group.primary.name == "a"
    assert group.primary.view == view
    assert group.primary.silence.own.total == 5


def test_one_that_stands_still_for_longer_is_taken_over_from_within_x() -> None:
    group = derived()
    group.stalled.add("a")
    group.pass_time(88 * MS)
    assert group.members["b"].role is Role.PRIMARY
    group.stalled.discard("a")
    group.pass_time(300 * MS)
    assert group.members["a"].role is Role.BACKUP


@pytest.mark.parametrize("after_ms", range(1, 12))
def test_no_more_than_a_heartbeat_passes_without_a_word(after_ms: int) -> None:
    """Also where something else was written shortly before a heartbeat was due: who is then stopped would
    have been silent for two heartbeats already."""
    group = derived()
    primary, heir = group.members["a"].peers.link_to("b"), group.members["b"].peers.link_to("a")
    assert primary is not None
    assert heir is not None
    group.pass_time(after_ms * MS)
    group.members["a"].peers.send(primary, Right([]))
    group.run()
    for _ in range(30):
        group.pass_time(1 * MS)
        assert group.now_ns - heir.heard_ns <= BEAT_NS


def test_a_heir_that_stands_still_stays_one() -> None:
    group = derived()
    view = group.primary.view
    for _ in range(5):
        stall(group, "b", 70 * MS)
    assert group.primary.view == view


def test_followers_do_as_the_primary_says() -> None:
    group = derived(contract_book=book(contract("slow", "slow/+", "900ms", "unlimited")))
    assert {each.silence.ns for each in group.members.values()} == {CALM_NS}
    stall(group, "a", 80 * MS)
    (silence_ns,) = {each.silence.ns for each in group.members.values()}
    assert silence_ns == 2 * group.members["b"].silence.gaps.longest_ns >= 160 * MS
    primary = group.primary.silence
    primary.ns, primary.look = 123 * MS, lambda now_ns, told: False  # type: ignore[method-assign]
    group.pass_time(50 * MS)
    assert {each.silence.ns for each in group.members.values()} == {123 * MS}


def test_a_primary_that_woke_hears_clients_when_its_heir_has_answered() -> None:
    group = derived()
    publisher, subscriber = group.client("p"), group.client("s")
    subscriber.subscribe("slow/+")
    group.stalled.add("a")
    group.pass_time(60 * MS)
    publisher.publish("slow/1", b"waits")
    group.stalled.discard("a")
    group.members["a"].turn(group.now_ns, group.wall_ns)
    assert group.members["a"].doubt is not None
    group.run()
    assert group.members["a"].doubt is None
    assert [each.payload for each in subscriber.messages()] == [b"waits"]


def test_what_a_subscriber_asks_for_shortens_it_at_every_member() -> None:
    group = derived()
    asks = Properties(user=[("hf-deadline", "70ms")])
    client = group.client("s")
    client.say(Subscribe(1, [Subscription("slow/+", 0)], asks))
    group.pass_time(50 * MS)
    assert [each.reasons for each in client.take() if isinstance(each, Suback)] == [[0]]
    assert {each.silence.ns for each in group.members.values()} == {58_950_000}
    stall(group, "a", 75 * MS)
    assert group.primary.name == "b"


def test_other_contracts_are_another_bound() -> None:
    group = derived()
    for member in group.members.values():
        member.reload(patient("80ms"))
    group.pass_time(50 * MS)
    assert {each.silence.ns for each in group.members.values()} == {68_950_000}
    assert {each.core.failover_ns for each in group.members.values()} == {79 * MS}


def said(group: Group, event: str) -> list[dict[str, object]]:
    return [details for _, name, details in group.events if name == event]


def test_a_takeover_from_a_primary_that_lived_is_told_with_how_long_it_stood_still() -> None:
    group = derived()
    stall(group, "a", 120 * MS)
    (told,) = said(group, "primary was alive")
    assert (told["primary"], told["waited_ms"]) == ("a", 86.9)
    assert 110 <= float(str(told["stood_still_ms"])) <= 120
    history = group.members["b"].history
    (failover,) = history.failovers
    assert failover.stood_still_ns == float(str(told["stood_still_ms"])) * MS
    assert (history.failovers_total, history.alive_total) == (1, 1)
    assert "stood still" in failover.why
    group.pass_time(500 * MS)
    assert len(said(group, "primary was alive")) == 1


@pytest.mark.parametrize("stopped_ms", range(31, 60, 4))
def test_also_where_the_standstill_itself_was_just_short_of_the_silence(stopped_ms: int) -> None:
    """The silence began with the last beat before it."""
    group = Group(2, silence_ns=30 * MS)
    group.pass_time(100 * MS)
    for shift_ms in range(10):
        group.pass_time(shift_ms * MS)
        stall(group, group.primary.name, stopped_ms * MS)
        group.pass_time(200 * MS)
    histories = [each.history for each in group.members.values()]
    assert sum(each.failovers_total for each in histories) > 5
    assert [each.alive_total for each in histories] == [each.failovers_total for each in histories]


@pytest.mark.parametrize("beat_before_ms", [0, 20])
def test_after_such_a_takeover_the_same_standstill_is_waited_for(beat_before_ms: int) -> None:
    """Also if it is shorter than three heartbeats: its heir counts from its last word on."""
    group = Group(2, ContractBook(), silence_ns=None, heartbeat_ns=30 * MS)
    group.pass_time(100 * MS)
    group.pass_time(beat_before_ms * MS)
    stall(group, "a", 108 * MS)
    assert group.primary.name == "b"
    assert ("b", "primary was alive") in {(name, event) for name, event, _ in group.events}
    group.pass_time(500 * MS)
    assert group.primary.silence.ns >= 2 * 100 * MS
    stall(group, "b", 108 * MS)
    assert group.primary.name == "b"


def test_a_short_standstill_does_not_hide_the_longer_one_before_it() -> None:
    """Whoever took over by that one may not have heard of it yet."""
    stalls = Stalls()
    stalls.note(45 * MS, 1_000 * MS)
    stalls.note(20 * MS, 1_050 * MS)
    assert (stalls.last_ns, stalls.last_at_ns) == (45 * MS, 1_000 * MS)
    stalls.note(50 * MS, 1_200 * MS)
    assert (stalls.last_ns, stalls.last_at_ns) == (50 * MS, 1_200 * MS)
    stalls.note(20 * MS, 1_200 * MS + NOTED_NS + 1)
    assert stalls.last_ns == 20 * MS
    stalls.serves()
    stalls.note(16 * MS, 1_300 * MS + NOTED_NS)
    assert stalls.last_ns == 16 * MS


@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_one_from_a_primary_that_died_or_could_not_be_heard_is_not(how: str) -> None:
    group = derived()
    if how == "killed":
        group.crash("a")
        group.pass_time(100 * MS)
        group.start("a")
    else:
        group.cut.add(frozenset("ab"))
        group.pass_time(150 * MS)
        group.heal()
    group.pass_time(500 * MS)
    history = group.members["b"].history
    assert (history.failovers_total, history.alive_total) == (1, 0)
    assert group.members["a"].role is Role.BACKUP


def test_an_heir_that_stands_still_often_is_not_the_first_while_a_steadier_one_is_there() -> None:
    group = derived(3)
    assert group.primary.view.heirs == ("b", "c")
    for _ in range(2):
        stall(group, "b", 50 * MS)
    group.pass_time(300 * MS)
    assert group.primary.view.heirs == ("b", "c")
    stall(group, "b", 50 * MS)
    group.pass_time(300 * MS)
    assert group.primary.view.heirs == ("c", "b")
    stall(group, "c", 50 * MS)
    group.pass_time(300 * MS)
    assert group.primary.view.heirs == ("c", "b")


def test_of_two_that_stand_still_as_often_the_first_stays() -> None:
    group = derived(3)
    for name in ("c", "b") * 4:
        stall(group, name, 50 * MS)
    group.pass_time(300 * MS)
    assert group.primary.view.heirs == ("b", "c")


def test_a_gap_that_an_heir_saw_is_told_to_the_primary() -> None:
    """The primary does not know how long it stood still, if nothing was due when it did."""
    silence = Silence(config(), ContractBook())
    assert not silence.look(1, (20 * MS, 40 * MS))
    assert silence.look(2, (60 * MS, 2_000 * MS))
    assert (silence.ns, silence.why) == (120 * MS, "a member stood still for 60ms lately")
    assert silence.look(3)
    assert silence.ns == CALM_NS


@pytest.mark.parametrize("after_ms", range(0, 30, 3))
def test_a_standstill_of_less_than_three_heartbeats_is_learned_from(after_ms: int) -> None:
    """With the heartbeat before it, it is longer than what a calm group waits."""
    group = Group(2, ContractBook(), silence_ns=None, heartbeat_ns=30 * MS)
    group.pass_time((100 + after_ms) * MS)
    view = group.primary.view
    stall(group, "a", 69 * MS)
    for _ in range(30):
        stall(group, "a", 86 * MS)
        group.pass_time(7 * MS)
    assert group.primary.view == view


@pytest.mark.parametrize("busy", [False, True])
def test_followers_are_told_at_once_that_more_is_waited_for(busy: bool) -> None:
    """Also where something is written all the time, so that fewer beats are needed."""
    group = derived(contract_book=book(contract("slow", "slow/+", "900ms", "unlimited")))
    stall(group, "a", 80 * MS)
    primary, link = group.members["a"], group.members["a"].peers.link_to("b")
    assert link is not None
    primary.silence.own.add(150 * MS, group.now_ns)
    for _ in range(20):
        if busy:
            primary.peers.send(link, Right([]))
        group.pass_time(1 * MS)
        if primary.silence.ns == 300 * MS:
            break
    group.run()
    assert {each.silence.ns for each in group.members.values()} == {300 * MS}


def test_one_round_trip_that_met_a_standstill_is_no_slow_link() -> None:
    group = Group(2, silence_ns=30 * MS)
    group.pass_time(100 * MS)
    stall(group, "b", 60 * MS)
    group.pass_time(200 * MS)
    assert said(group, "link too slow") == []
