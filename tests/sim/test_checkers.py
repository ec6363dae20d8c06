"""Each law against ledgers written by hand: kept, and broken in the smallest way."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from msgspec import structs

from holdfast.sim.checkers import judge
from holdfast.sim.drawing import draw
from holdfast.sim.ledger import (
    Grant,
    Identity,
    Instant,
    Kept,
    Ledger,
    Promotion,
    Seen,
    State,
    ViewSeen,
    payload_of,
)
from holdfast.sim.options import Options, SubscriberPlan
from holdfast.sim.world import START_NS
from holdfast.units import MS

PERIOD_NS = 100 * MS
QUICK_NS = 2 * MS
CRASH = 50


def options(loss_tolerance: int | None, qos: int = 0, retention: int = 1) -> Options:
    """One topic, one publisher, one subscriber."""
    drawn = draw(1)
    contract = structs.replace(
        drawn.topics[0].contract,
        period_ns=PERIOD_NS,
        deadline_ns=50 * MS,
        loss_tolerance=loss_tolerance,
        retention=retention,
    )
    topic = structs.replace(drawn.topics[0], contract=contract, qos=qos, publishers=(0,))
    subscriber = SubscriberPlan(topics=(0,), qos=qos, destination="edge", depth=0)
    return structs.replace(
        drawn,
        topics=(topic,),
        publishers=1,
        plain_publishers=(),
        subscribers=(subscriber,),
        answer_ns_max=0,
        crowd=None,
        instants=0,
        bounds={},
        starts_ns=(0, 0),
    )


@dataclass
class Run:
    """A hundred messages and a crash in the middle; what is said here differs from the ordinary."""

    loss_tolerance: int | None = 0
    qos: int = 0
    lost: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    again: tuple[int, ...] = ()
    acknowledged: frozenset[int] = frozenset()
    moved_ns: int | None = 5 * MS
    fault: str = "kill"
    hit: str = "primary m0"
    subscribed_ns: int = 0
    second: int | None = None  # another crash, just behind the message of this number
    more: list[ViewSeen] = field(default_factory=list)

    def laws(self) -> set[str]:
        return {violation.law for violation in judge(options(self.loss_tolerance, self.qos), self.ledger())}

    def ledger(self) -> Ledger:
        ledger = Ledger(1)
        crash_ns = START_NS + CRASH * PERIOD_NS
        times = ledger.created.setdefault((0, 0), [])
        ledger.subscribed[0][0] = START_NS + self.subscribed_ns
        ledger.faults.append((crash_ns, self.fault, self.hit))
        if self.second is not None:
            ledger.faults.append((START_NS + self.second * PERIOD_NS + 1, "pause", self.hit))
        if self.moved_ns is not None:
            ledger.redirects.append((crash_ns + self.moved_ns, "publisher-0", 4))
        for number in range(100):
            created_ns = START_NS + number * PERIOD_NS
            times.append(created_ns)
            payload = payload_of(0, 0, number, created_ns)
            took_ns = 60 * MS if number in self.late else QUICK_NS
            if number not in self.lost:
                before = max((each for each in range(number) if each not in self.lost), default=number - 1)
                if before < number - 1:
                    ledger.gaps[0][payload] = number - 1 - before
                ledger.taken[0].append((created_ns + took_ns, [payload]))
                member = "m0" if number < CRASH else "m1"
                ledger.wired[0].append((created_ns + took_ns, member, b"xy" + payload + b"z"))
            if number == CRASH:
                for old in self.again:
                    old_payload = payload_of(0, 0, old, START_NS + old * PERIOD_NS)
                    ledger.wired[0].append((created_ns + took_ns, "m1", old_payload[:7]))
                    ledger.wired[0].append((created_ns + took_ns, "m1", old_payload[7:]))
        for number in self.acknowledged:
            ledger.acknowledged[Identity(0, 0, number)] = START_NS
        ledger.member_views.append(ViewSeen(START_NS, "m0", 0, 4, "m0"))
        ledger.member_views += self.more
        return ledger


def test_a_good_run_breaks_nothing() -> None:
    assert Run().laws() == set()


@pytest.mark.parametrize(
    ("tolerance", "lost", "laws"),
    [
        (0, {48}, {"Custody"}),
        (2, {48, 49}, set()),
        (2, {48, 49, 50}, {"Loss"}),
        (2, {40, 41, 50, 51}, set()),
        (2, {97, 98, 99}, {"Loss"}),
        (None, set(range(10, 60)), set()),
    ],
)
def test_loss_counts_messages_in_a_row(tolerance: int | None, lost: set[int], laws: set[str]) -> None:
    assert Run(loss_tolerance=tolerance, lost=frozenset(lost)).laws() == laws


def test_loss_counts_from_the_subscription_on() -> None:
    early = frozenset(range(10))
    assert Run(lost=early, subscribed_ns=9 * PERIOD_NS).laws() == set()
    assert Run(lost=early, subscribed_ns=9 * PERIOD_NS - 1).laws() == {"Custody"}


def test_loss_of_a_connection_is_outside_the_model() -> None:
    assert Run(lost=frozenset({48}), fault="reset", hit="subscriber subscriber-0").laws() == set()


def test_deadline_counts_before_the_first_fault() -> None:
    assert Run(late=frozenset({20})).laws() == {"Deadline"}
    assert Run(late=frozenset({CRASH, CRASH + 1})).laws() == set()


def test_acknowledged_means_kept_whatever_the_contract() -> None:
    lost = frozenset({48})
    assert Run(loss_tolerance=None, qos=1, lost=lost, acknowledged=lost).laws() == {"Acknowledged"}
    assert Run(loss_tolerance=None, qos=1, lost=lost).laws() == set()
    assert Run(loss_tolerance=None, qos=0, lost=lost, acknowledged=lost).laws() == set()


def test_once_and_in_order() -> None:
    run = Run()
    ledger = run.ledger()
    ledger.taken[0].append(ledger.taken[0][3])
    assert {violation.law for violation in judge(options(0), ledger)} == {"Once"}


def test_gaps_are_told_exactly() -> None:
    ledger = Run(loss_tolerance=None, lost=frozenset({7, 8})).ledger()
    assert judge(options(None), ledger) == []
    (payload,) = ledger.gaps[0]
    ledger.gaps[0][payload] = 1
    assert {violation.law for violation in judge(options(None), ledger)} == {"Gaps"}
    ledger.gaps[0].clear()
    assert {violation.law for violation in judge(options(None), ledger)} == {"Gaps"}


def test_pruning_forbids_what_was_dispatched_long_before() -> None:
    assert Run(again=(30,)).laws() == {"Pruning"}


def test_pruning_allows_what_the_publisher_sends_again() -> None:
    ledger = Run(again=(CRASH - 6,)).ledger()
    assert {violation.law for violation in judge(options(0, retention=2), ledger)} == {"Pruning"}
    assert judge(options(0, retention=7), ledger) == []


def test_pruning_allows_what_the_publisher_kept_beyond_its_last_n() -> None:
    ledger = Run(again=(CRASH - 2,)).ledger()
    assert judge(options(0, retention=2), ledger) == []


def test_failover_takes_x_at_most() -> None:
    assert Run(moved_ns=None).laws() == {"Failover"}
    assert Run(moved_ns=10_000 * MS).laws() == {"Failover"}


def test_a_view_has_one_primary_and_views_grow() -> None:
    def seen(who: str, number: int, primary: str, life: int = 0) -> ViewSeen:
        return ViewSeen(START_NS, who, life, number, primary)

    assert Run(more=[seen("m1", 5, "m1")]).laws() == set()
    assert Run(more=[seen("m1", 4, "m1")]).laws() == {"One primary"}
    assert Run(more=[seen("m0", 3, "m3")]).laws() == {"One primary"}
    assert Run(more=[seen("m0", 3, "m3", life=1)]).laws() == set()


def test_rest_and_mistakes_are_told() -> None:
    ledger = Run().ledger()
    ledger.rest.append("m0 ends with 3 jobs")
    ledger.mistakes.append((START_NS, "m0", "KeyError"))
    assert {violation.law for violation in judge(options(0), ledger)} == {"Bounded", "No mistake"}


@pytest.mark.parametrize(
    ("lost", "second", "broken"),
    [
        ({50, 51}, 51, False),
        ({50, 51}, None, True),
        ({50, 51}, 60, True),
        ({50, 51, 52}, 52, True),
        ({49, 50, 51}, 51, True),
    ],
    ids=["one for each", "two for one", "a second that is too late", "three for two", "three around two"],
)
def test_each_failure_may_take_the_tolerance_once(lost: set[int], second: int | None, broken: bool) -> None:
    """Two failures with nothing delivered between them may take L each, and no more."""
    run = Run(loss_tolerance=1, lost=frozenset(lost), second=second)
    assert ("Loss" in run.laws()) is broken


# What is promised of clients' state

CRASH_NS = START_NS + CRASH * PERIOD_NS
WANTED = ("crowd", "crowd/s/1")
KEPT = Kept("crowd/r/1", b"old", START_NS, START_NS + MS)


def state(*subscriptions: tuple[str, str], retained: bytes | None = None) -> State:
    kept = {} if retained is None else {KEPT.topic: retained}
    return State(frozenset({"crowd"}), frozenset(subscriptions), kept)


def judged(ledger: Ledger) -> set[str]:
    return {violation.law for violation in judge(options(0), ledger)}


@pytest.mark.parametrize(
    ("granted_ns", "by", "broken"),
    [
        (CRASH_NS - MS, "", True),
        (CRASH_NS - MS, "m0", True),
        (CRASH_NS + 1, "m0", True),
        (CRASH_NS + 1, "m1", False),
        (CRASH_NS + 10_000 * MS, "m0", False),
    ],
    ids=["by somebody", "by the dead", "on its way", "by the new one", "much later"],
)
def test_who_serves_next_has_what_was_granted(granted_ns: int, by: str, broken: bool) -> None:
    ledger = Run().ledger()
    ledger.granted[WANTED] = Grant(granted_ns, by)
    ledger.promotions = [Promotion(START_NS, "m0", state()), Promotion(CRASH_NS, "m1", state(WANTED))]
    assert judged(ledger) == set()
    ledger.promotions[1] = Promotion(CRASH_NS, "m1", state())
    assert judged(ledger) == ({"State"} if broken else set())


@pytest.mark.parametrize(("view", "broken"), [(3, False), (4, True), (5, True)])
def test_who_began_to_serve_beside_a_higher_view_need_not_have_what_was_granted_in_that(
    view: int, broken: bool
) -> None:
    ledger = Run().ledger()
    ledger.granted[WANTED] = Grant(CRASH_NS - MS, "m0")
    ledger.promotions = [Promotion(START_NS, "m0", state(), 4), Promotion(CRASH_NS, "m1", state(), view)]
    assert judged(ledger) == ({"State"} if broken else set())


def test_nothing_is_kept_through_a_blackout() -> None:
    ledger = Run(fault="blackout", hit="members m0").ledger()
    ledger.granted[WANTED] = Grant(CRASH_NS - MS, "m0")
    ledger.promotions = [Promotion(START_NS, "m0", state()), Promotion(CRASH_NS + MS, "m1", state())]
    assert judged(ledger) == set()


def test_the_primary_and_its_heirs_end_with_what_was_granted() -> None:
    ledger = Run().ledger()
    ledger.granted[WANTED] = Grant(START_NS, "m0")
    ledger.states = {"m1": state(WANTED), "m2": state(WANTED)}
    assert judged(ledger) == set()
    ledger.states["m2"] = state()
    assert judged(ledger) == {"State"}
    ledger.states["m2"] = state(WANTED, ("crowd", "crowd/s/2"))
    assert judged(ledger) == {"State"}


@pytest.mark.parametrize(
    ("last", "found", "broken"),
    [
        (None, b"old", False),
        (None, None, True),
        (None, b"older", True),
        (Kept(KEPT.topic, b"new", START_NS, None), b"old", False),
        (Kept(KEPT.topic, b"new", START_NS, None), b"new", False),
        (Kept(KEPT.topic, b"new", START_NS, START_NS), b"old", True),
    ],
)
def test_what_is_retained_is_the_last_that_was_acknowledged_or_a_later_one(
    last: Kept | None, found: bytes | None, broken: bool
) -> None:
    ledger = Run().ledger()
    ledger.retained[KEPT.topic] = [KEPT] if last is None else [KEPT, last]
    ledger.states = {"m1": state(retained=found)}
    assert judged(ledger) == ({"State"} if broken else set())
    ledger.states = {}
    ledger.seen = Seen([], set(), {} if found is None else {KEPT.topic: found})
    assert judged(ledger) == ({"State"} if broken else set())


def test_messages_come_through_every_subscription_at_the_end() -> None:
    ledger = Run().ledger()
    ledger.granted[WANTED] = Grant(START_NS, "m0")
    ledger.seen = Seen([WANTED[1]], {WANTED[1]}, {})
    assert judged(ledger) == set()
    ledger.seen = Seen([WANTED[1]], set(), {})
    assert judged(ledger) == {"State"}


def test_a_session_is_there_when_its_client_comes_back() -> None:
    ledger = Run().ledger()
    ledger.sessions["plain"] = CRASH_NS - 1_000 * MS
    assert judged(ledger) == set()
    ledger.lost_sessions.append((CRASH_NS + MS, "plain"))
    assert judged(ledger) == {"State"}
    ledger.sessions["plain"] = CRASH_NS - MS  # CONNACK alone waits for nobody
    assert judged(ledger) == set()
    ledger.granted[("plain", "a")] = Grant(CRASH_NS - MS, "m0")
    assert judged(ledger) == {"State"}


def test_somebody_serves_before_long() -> None:
    ledger = Run().ledger()
    ledger.unserved.append((START_NS, START_NS + options(0).join_wait_ns))
    assert judged(ledger) == set()
    ledger.unserved.append((START_NS, START_NS + 10_000 * MS))
    assert judged(ledger) == {"Serves"}


def test_what_comes_behind_a_subscription_reaches_it() -> None:
    ledger = Run().ledger()
    instant = Instant()
    ledger.instants.append(instant)
    assert judged(ledger) == set()
    instant.granted, instant.acknowledged_ns = True, START_NS
    assert judged(ledger) == {"In order"}
    instant.received = 1
    assert judged(ledger) == set()


def plain(qos: int) -> Options:
    """As above, with ordinary clients on both sides."""
    drawn = options(0, qos)
    subscriber = structs.replace(drawn.subscribers[0], plain=True)
    return structs.replace(drawn, plain_publishers=(0,), subscribers=(subscriber,))


@pytest.mark.parametrize(("qos", "laws"), [(1, set()), (2, {"Exactly once"})])
def test_qos_2_is_given_once(qos: int, laws: set[str]) -> None:
    ledger = Run(qos=qos).ledger()
    assert judge(plain(qos), ledger) == []
    ledger.taken[0].append(ledger.taken[0][3])
    assert {violation.law for violation in judge(plain(qos), ledger)} == laws


@pytest.mark.parametrize(("qos", "again", "early"), [(1, set(), set()), (2, {"Exactly once"}, {"Order"})])
def test_qos_2_of_a_publisher_with_the_library_is_given_once_and_in_order(
    qos: int, again: set[str], early: set[str]
) -> None:
    drawn, ledger = structs.replace(plain(qos), plain_publishers=()), Run(qos=qos).ledger()
    taken = list(ledger.taken[0])
    ledger.taken[0].append(taken[3])
    assert {violation.law for violation in judge(drawn, ledger)} == again
    ledger.taken[0] = [taken[1], taken[0], *taken[2:]]
    assert {violation.law for violation in judge(drawn, ledger)} == early


@pytest.mark.parametrize(("count", "laws"), [(10, set()), (45, set()), (49, {"Repeats"})])
def test_repeats_after_a_crash_are_bounded_by_the_lag(
    count: int, laws: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.sim.state_laws.MARKS_LAG_MESSAGES", 46)
    monkeypatch.setattr("holdfast.sim.state_laws.JUDGE_REPEATS", True)
    ledger = Run(qos=1).ledger()
    at_ns = CRASH_NS + 10 * MS
    ledger.taken[0] += [(at_ns, payloads) for _, payloads in ledger.taken[0][:count]]
    assert {violation.law for violation in judge(plain(1), ledger)} == laws


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    ("numbers", "laws"),
    [
        ([0, 1, 2, 3], set()),
        ([0, 2, 3], set()),
        ([0, 2, 1, 3], {"Order"}),
        ([1, 0], {"Order"}),
    ],
)
def test_what_comes_for_the_first_time_is_in_order(qos: int, numbers: list[int], laws: set[str]) -> None:
    ledger = Run(qos=qos).ledger()
    taken = ledger.taken[0]
    ledger.taken[0] = [(START_NS, taken[number][1]) for number in numbers]
    assert {violation.law for violation in judge(plain(qos), ledger)} == laws


def test_what_comes_again_does_not_count_for_the_order() -> None:
    ledger = Run(qos=1).ledger()
    taken = ledger.taken[0]
    ledger.taken[0] = [(START_NS, taken[number][1]) for number in (0, 1, 2, 1, 2, 3)]
    assert judge(plain(1), ledger) == []


@pytest.mark.parametrize(
    ("qos", "sent_with", "known_ns", "laws"),
    [(0, 1, 0, set()), (0, 1, -1, {"Order"}), (0, 0, 0, {"Order"}), (1, 1, 0, {"Order"})],
)
def test_what_its_publisher_sends_again_may_come_to_a_subscriber_of_qos_0_that_was_away(
    qos: int, sent_with: int, known_ns: int, laws: set[str]
) -> None:
    """But not what its publisher has long known to be safe: it does not send that again."""
    drawn = plain(sent_with)
    drawn = structs.replace(drawn, subscribers=(structs.replace(drawn.subscribers[0], qos=qos),))
    ledger = Run(qos=sent_with).ledger()
    way_ns = max(drawn.ways[name].longest_ns for name in ("edge", "cloud"))
    ledger.acknowledged = {Identity(0, 0, 1): START_NS - way_ns + known_ns}
    taken = ledger.taken[0]
    ledger.taken[0] = [(START_NS, taken[number][1]) for number in (0, 2, 1, 2, 3)]
    assert {violation.law for violation in judge(drawn, ledger)} == laws
    ledger.taken[0] = [(START_NS, taken[number][1]) for number in (0, 2, 1, 3)]
    assert {violation.law for violation in judge(drawn, ledger)} == {"Order"}
