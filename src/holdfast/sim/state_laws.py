"""The laws of what is promised of clients' state, of service and of repeats, judged from the ledger.

State         what was granted or acknowledged (sessions, subscriptions, retained messages) is there at
              whoever serves next, at the end, and at every heir
Serves        while a member is up and cut off from nobody, somebody serves before long
In order      what reaches a broker behind a subscription reaches the subscriber
Exactly once  an ordinary subscriber is given each message of QoS 2 once
Order         an ordinary subscriber is given what a publisher sends to a topic in order, if the publisher
              is an ordinary one or all is QoS 2
Repeats       what an ordinary subscriber is given again after a crash was under way just before it
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from holdfast.replication.candidacy import NAPS_MAX
from holdfast.sim.evidence import BETWEEN_BROKERS, CRASHES, Evidence, Violation
from holdfast.sim.ledger import Identity, State
from holdfast.units import MS, format_duration

# How far the marks of what was delivered may lag, by default: so much may be repeated after a crash.
MARKS_LAG_MESSAGES = 100
MARKS_LAG_NS = 100 * MS
JUDGE_REPEATS = True


def state(evidence: Evidence) -> Iterator[Violation]:
    if evidence.torn():
        return
    yield from _lost_sessions(evidence)
    yield from _promoted(evidence)
    yield from _at_the_end(evidence)
    yield from _seen(evidence)


def _lost_sessions(evidence: Evidence) -> Iterator[Violation]:
    """One that something was granted to, or that began neither while something was wrong nor just before:
    CONNACK alone waits for nobody, and beside hostile clients an heir may hear of it late."""
    longest_ns = max((fault.lasts_ns for fault in evidence.options.faults), default=0)
    settled_ns = evidence.told_ns() + evidence.options.silence_ns_max
    broke = [at_ns for at_ns, what in evidence.faults if not what.startswith("restart")]
    for at_ns, who in evidence.ledger.lost_sessions:
        met_ns = evidence.ledger.sessions.get(who, at_ns)
        promised = any(
            client == who and grant.at_ns < at_ns for (client, _), grant in evidence.ledger.granted.items()
        )
        since_ns, until_ns = met_ns - longest_ns - settled_ns, met_ns + settled_ns
        disturbed = evidence.options.hostile or any(since_ns <= each <= until_ns for each in broke)
        if promised or not disturbed:
            yield Violation("State", f"{who} came back, and its session was not there")


def _promoted(evidence: Evidence) -> Iterator[Violation]:
    """Whoever serves next, in a higher view, has every subscription that was granted before."""
    served: dict[str, int] = {}
    for place, promotion in enumerate(evidence.ledger.promotions):
        served[promotion.who] = max(served.get(promotion.who, 0), promotion.view)
        for (client, wanted), grant in evidence.ledger.granted.items() if place else ():
            if promotion.view < served.get(grant.member, 0):
                continue  # of two that began to serve together this one gives way
            way_ns = evidence.told_ns() if grant.member and grant.member != promotion.who else 0
            known = (client, wanted) in promotion.state.subscriptions
            if grant.at_ns < promotion.at_ns + way_ns and not known:
                yield Violation(
                    "State",
                    f"{promotion.who} took over without the subscription of {client} to {wanted}, which was "
                    f"granted {format_duration(abs(promotion.at_ns - grant.at_ns))} before",
                )


def _at_the_end(evidence: Evidence) -> Iterator[Violation]:
    ledger = evidence.ledger
    first: tuple[str, State] | None = None
    for name, found in ledger.states.items():
        for client, wanted in ledger.granted:
            if (client, wanted) not in found.subscriptions:
                yield Violation("State", f"{name} ends without the subscription of {client} to {wanted}")
        yield from _retained(evidence, f"{name} ends", found.retained)
        if first is None:
            first = name, found
        elif found != first[1]:
            yield Violation("State", f"{name} would take over with another state: {_differ(first[1], found)}")


def _differ(one: State, other: State) -> str:
    """The first few things that only one of two has."""
    words = []
    for what in ("sessions", "subscriptions"):
        mine, theirs = getattr(one, what), getattr(other, what)
        words += [f"{len(mine - theirs)} {what} less {sorted(mine - theirs)[:2]}"] if mine - theirs else []
        words += [f"{len(theirs - mine)} {what} more {sorted(theirs - mine)[:2]}"] if theirs - mine else []
    topics = [
        each for each in one.retained | other.retained if one.retained.get(each) != other.retained.get(each)
    ]
    words += [f"{len(topics)} retained messages {sorted(topics)[:2]}"] if topics else []
    return ", ".join(words)


def _retained(evidence: Evidence, where: str, found: dict[str, bytes]) -> Iterator[Violation]:
    """The last that was acknowledged, or one that was sent later."""
    for topic, kept in evidence.ledger.retained.items():
        acknowledged = [place for place, each in enumerate(kept) if each.acknowledged_ns is not None]
        allowed = [each.payload for each in kept[acknowledged[-1] :]] if acknowledged else []
        if acknowledged and found.get(topic) not in allowed:
            yield Violation("State", f"{where} with {found.get(topic)!r} retained at {topic}, not {allowed}")


def _seen(evidence: Evidence) -> Iterator[Violation]:
    """What the client itself found."""
    seen = evidence.ledger.seen
    if seen is None:
        return
    missed = [wanted for wanted in seen.tried if wanted not in seen.through]
    if missed:
        yield Violation(
            "State", f"nothing comes through {len(missed)} of {len(seen.tried)} subscriptions: {missed[:3]}"
        )
    yield from _retained(evidence, "a client that subscribes is left", seen.retained)


def serves(evidence: Evidence) -> Iterator[Violation]:
    options = evidence.options
    most_ns = options.join_wait_ns + 4 * options.silence_ns_max + 4 * options.answer_ns_max + 200 * MS
    most_ns += NAPS_MAX * options.join_wait_ns if options.nod_ns else 0
    for since_ns, until_ns in evidence.ledger.unserved:
        if until_ns - since_ns > most_ns:
            yield Violation(
                "Serves",
                f"nobody served for {format_duration(until_ns - since_ns)} from "
                f"{format_duration(since_ns - evidence.ledger.start_ns)} on, though a member was up",
            )


def in_order(evidence: Evidence) -> Iterator[Violation]:
    if evidence.torn():
        return
    for number, instant in enumerate(evidence.ledger.instants):
        if instant.granted and instant.acknowledged_ns is not None and not instant.received:
            yield Violation(
                "In order", f"message {number} came behind its subscription, and did not reach it"
            )


def exactly_once(evidence: Evidence) -> Iterator[Violation]:
    if evidence.torn():
        return
    for subscriber, stream, number in _again(evidence):
        if _both(evidence, subscriber, stream) == 2:
            yield Violation(
                "Exactly once",
                f"subscriber {subscriber} was given number {number} of publisher {stream[0]}, "
                f"topic {stream[1]}, again, with QoS 2",
                Identity(*stream, number),
                subscriber,
            )


def _both(evidence: Evidence, subscriber: int, stream: tuple[int, int]) -> int:
    """The QoS that a subscriber gets a stream with."""
    return min(evidence.options.topics[stream[1]].qos, evidence.options.subscribers[subscriber].qos)


def order(evidence: Evidence) -> Iterator[Violation]:
    """Of each publisher and topic: ordinary ones, or all is QoS 2. What comes again is for other laws."""
    if evidence.torn():
        return
    for subscriber, plan in enumerate(evidence.options.subscribers):
        if not plan.plain:
            continue
        for stream, given in evidence.given[subscriber].items():
            plain = stream[0] in evidence.options.plain_publishers
            if not plain and _both(evidence, subscriber, stream) < 2:
                continue  # its library sends again what it keeps
            known: set[int] = set()
            last = -1
            for place, (number, _) in enumerate(given):
                early = number < last and number not in known
                if early and not (
                    _sent_again(evidence, subscriber, stream, last, place)
                    or _missed_untold(evidence, subscriber, stream, last, place)
                ):
                    yield Violation(
                        "Order",
                        f"subscriber {subscriber} was given number {number} of publisher {stream[0]}, "
                        f"topic {stream[1]}, for the first time after {last}",
                        Identity(*stream, number),
                        subscriber,
                    )
                known.add(number)
                last = max(last, number)


def _sent_again(evidence: Evidence, subscriber: int, stream: tuple[int, int], last: int, place: int) -> bool:
    """Whether a publisher sends again what was not acknowledged when the last was given, in order, up to
    that one: with QoS 0 a subscriber may have had no connection when some of it came before."""
    given = evidence.given[subscriber][stream]
    number, at_ns = given[place]
    last_ns = next(given_ns for each, given_ns in given if each == last)
    acknowledged_ns = evidence.ledger.acknowledged.get(Identity(*stream, number), at_ns)
    if evidence.options.subscribers[subscriber].qos or acknowledged_ns + evidence.way_ns() < last_ns:
        return False
    comes_again = any(later == last for later, _ in given[place + 1 :])
    return comes_again and evidence.options.topics[stream[1]].qos > 0


def _missed_untold(
    evidence: Evidence, subscriber: int, stream: tuple[int, int], last: int, place: int
) -> bool:
    """Whether a message was made while a subscriber with QoS 0 had no connection, so that its broker let it
    go, and the heir with a copy that took over could not hear of that: it was cut off by then."""
    given, plan = evidence.given[subscriber][stream], evidence.options.subscribers[subscriber]
    number, at_ns = given[place]
    made_ns = evidence.ledger.created[stream][number]
    last_ns = next(given_ns for each, given_ns in given if each == last)
    apart = any(what in BETWEEN_BROKERS and ns <= last_ns for ns, what in evidence.faults)
    moved = any(last_ns <= each.at_ns + evidence.way_ns() <= at_ns for each in evidence.ledger.promotions)
    if plan.qos or not (apart and moved):
        return False
    base_ns = evidence.ledger.start_ns + evidence.options.opens_ns
    came = [at_ns for at_ns, _ in evidence.ledger.taken[subscriber]]
    for left_ns, back_ns in plan.away:
        there_ns = next((at_ns for at_ns in came if at_ns > base_ns + back_ns), 1 << 62)
        if base_ns + left_ns - evidence.way_ns() <= made_ns <= there_ns:
            return True
    return False


def _again(evidence: Evidence) -> Iterator[tuple[int, tuple[int, int], int]]:
    """What ordinary subscribers were given more than once."""
    for subscriber, plan in enumerate(evidence.options.subscribers):
        if not plan.plain or plan.qos == 0:
            continue
        for stream, given in evidence.given[subscriber].items():
            known: set[int] = set()
            for number, _ in given:
                if number in known:
                    yield subscriber, stream, number
                known.add(number)


def repeats(evidence: Evidence) -> Iterator[Violation]:
    """After each crash of a primary at most what was delivered within the lag of the marks comes again. What
    its publisher sends again, as far as its ring reaches, is not counted, nor what was on its way to the
    subscriber at this crash or an earlier one: nobody who lived heard that it came."""
    crashes = [at_ns for at_ns, what in evidence.faults if what in CRASHES]
    if not JUDGE_REPEATS or evidence.torn() or not crashes:
        return
    for subscriber, plan in enumerate(evidence.options.subscribers):
        if not plan.plain or plan.qos == 0:
            continue
        times = sorted(at_ns for given in evidence.given[subscriber].values() for _, at_ns in given)
        lag_ns = MARKS_LAG_NS + evidence.told_ns()
        for crash_ns, next_ns in zip(crashes, [*crashes[1:], 1 << 62], strict=True):
            recent = bisect_right(times, crash_ns) - bisect_left(times, crash_ns - lag_ns)
            repeated = sum(
                _repeated(evidence, subscriber, stream, crashes, crash_ns, next_ns)
                for stream in evidence.given[subscriber]
            )
            if repeated > max(MARKS_LAG_MESSAGES, recent):
                yield Violation(
                    "Repeats",
                    f"subscriber {subscriber} was given {repeated} again after a crash; {recent} came within "
                    f"{format_duration(lag_ns)} before it",
                    subscriber=subscriber,
                )


def _repeated(
    evidence: Evidence,
    subscriber: int,
    stream: tuple[int, int],
    crashes: list[int],
    crash_ns: int,
    next_ns: int,
) -> int:
    created = evidence.ledger.created[stream]
    ring = max(1, evidence.options.topics[stream[1]].contract.retention)
    kept_from = bisect_right(created, crash_ns) - ring
    first_ns: dict[int, int] = {}
    count = 0
    for number, at_ns in evidence.given[subscriber][stream]:
        got_ns = first_ns.setdefault(number, at_ns)
        under_way = any(created[number] <= ns < got_ns for ns in crashes)
        count += got_ns <= crash_ns < at_ns <= next_ns and not under_way and number < kept_from
    return count


STATE_LAWS: tuple[Callable[[Evidence], Iterator[Violation]], ...] = (
    state,
    serves,
    in_order,
    exactly_once,
    order,
    repeats,
)
