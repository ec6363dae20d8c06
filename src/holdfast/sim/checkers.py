"""The laws of the design, judged from the ledger of one run and from nothing else.

Loss          no subscriber misses more than L messages of a stream in a row, for each failure of a primary
Custody       of a stream with L = 0 nothing is missed
Deadline      before the first fault every message is there within D
Pruning       after a failover nobody is sent again what was dispatched well before it
One primary   a view has one primary; views only grow, for every member and every client
Once          each subscriber is given each message of a stream once, and in order
Gaps          each subscriber is told how many it misses, exactly
Acknowledged  what was acknowledged to its publisher reaches every subscriber with QoS 1 or 2
Failover      after a crash of the primary every publisher has another within x
Bounded       when all is healed and nobody publishes, everything comes to rest
No mistake    no member ran into an error that it did not expect

What is promised of sessions, subscriptions and service: state_laws.py. What holds beside hostile clients:
hostile_laws.py. When nobody may take over: stall_laws.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise

from holdfast.sim.evidence import BETWEEN_BROKERS, CRASHES, OF_CLIENTS, Evidence, Violation
from holdfast.sim.hostile_laws import HOSTILE_LAWS
from holdfast.sim.ledger import ON_THE_WIRE, PAYLOAD, Identity, Ledger
from holdfast.sim.options import Options
from holdfast.sim.stall_laws import STALL_LAWS
from holdfast.sim.state_laws import STATE_LAWS
from holdfast.units import MS, format_duration

SHOWN_MAX = 3
SETTLED_NS = 500 * MS
LATE_NS = 50 * MS  # that a publisher keeps messages for beyond N periods


def judge(options: Options, ledger: Ledger) -> list[Violation]:
    """Every law that was broken, the first few breaches of each."""
    evidence = Evidence(options, ledger)
    broken = []
    for law in LAWS:
        for place, violation in enumerate(law(evidence)):
            if place == SHOWN_MAX:
                break
            broken.append(violation)
    return broken


def loss(evidence: Evidence) -> Iterator[Violation]:
    if not evidence.within_the_model():
        return
    for subscriber, stream, first in evidence.streams():
        tolerance = evidence.options.topics[stream[1]].contract.loss_tolerance
        if tolerance is None:
            continue
        missing = evidence.missing(subscriber, stream, first)
        for run in _runs(missing):
            if len(run) > tolerance and not evidence.failures_took(stream, run, tolerance):
                law = "Loss" if tolerance else "Custody"
                yield Violation(
                    law,
                    f"subscriber {subscriber} misses {len(run)} in a row of publisher {stream[0]}, "
                    f"topic {stream[1]}, from number {run[0]} on; L is {tolerance}",
                    Identity(*stream, run[0]),
                    subscriber,
                )


def _runs(numbers: list[int]) -> Iterator[list[int]]:
    """Those that follow each other."""
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def deadline(evidence: Evidence) -> Iterator[Violation]:
    if not evidence.options.calm:
        return
    for subscriber, stream, first in evidence.streams():
        deadline_ns = evidence.options.topics[stream[1]].contract.deadline_ns
        times = evidence.ledger.created[stream]
        until = bisect_right(times, evidence.first_fault_ns - deadline_ns)
        for number, at_ns in evidence.given[subscriber].get(stream, ()):
            if first <= number < until and at_ns - times[number] > deadline_ns:
                yield Violation(
                    "Deadline",
                    f"subscriber {subscriber} got a message after {format_duration(at_ns - times[number])}; "
                    f"D is {format_duration(deadline_ns)}",
                    Identity(*stream, number),
                    subscriber,
                )


def acknowledged(evidence: Evidence) -> Iterator[Violation]:
    options, ledger = evidence.options, evidence.ledger
    if evidence.torn():
        return
    for subscriber, stream, first in evidence.streams(plain=True):
        if options.subscribers[subscriber].qos and options.topics[stream[1]].qos:
            for number in evidence.missing(subscriber, stream, first):
                message = Identity(*stream, number)
                if message in ledger.acknowledged:
                    yield Violation(
                        "Acknowledged",
                        f"publisher {stream[0]}, topic {stream[1]}, number {number} was acknowledged "
                        f"and never reached subscriber {subscriber}",
                        message,
                        subscriber,
                    )


def once(evidence: Evidence) -> Iterator[Violation]:
    for subscriber, streams in enumerate(evidence.given):
        for stream, given in streams.items():
            before = -1
            if evidence.is_plain(subscriber, stream[0]):
                continue
            for number, _ in given:
                if number <= before:
                    yield Violation(
                        "Once",
                        f"subscriber {subscriber} was given number {number} of publisher {stream[0]}, topic "
                        f"{stream[1]}, after {before}",
                        Identity(*stream, number),
                        subscriber,
                    )
                before = max(before, number)


def gaps(evidence: Evidence) -> Iterator[Violation]:
    for subscriber, streams in enumerate(evidence.given):
        told = {
            PAYLOAD.unpack(payload)[1:4]: missed
            for payload, missed in evidence.ledger.gaps[subscriber].items()
        }
        for stream, given in streams.items():
            if evidence.is_plain(subscriber, stream[0]):
                continue
            for (before, _), (number, _) in pairwise(given):
                missed = max(0, number - before - 1)
                if missed != told.get((*stream, number), 0):
                    yield Violation(
                        "Gaps",
                        f"subscriber {subscriber} misses {missed} before number {number} of publisher "
                        f"{stream[0]}, topic {stream[1]}, and was told {told.get((*stream, number), 0)}",
                        Identity(*stream, number),
                        subscriber,
                    )


def one_primary(evidence: Evidence) -> Iterator[Violation]:
    primaries: dict[int, str] = {}
    seen: dict[tuple[str, int], int] = {}
    for view in (*evidence.ledger.member_views, *evidence.ledger.views):
        if view.primary and view.number and primaries.setdefault(view.number, view.primary) != view.primary:
            yield Violation(
                "One primary",
                f"view {view.number} has two: {primaries[view.number]} and, says {view.who}, {view.primary}",
            )
        before = seen.get((view.who, view.life), 0)
        if view.number < before:
            yield Violation("One primary", f"{view.who} went back from view {before} to {view.number}")
        seen[(view.who, view.life)] = max(before, view.number)


def failover(evidence: Evidence) -> Iterator[Violation]:
    x_ns = evidence.options.x_ns
    redirects = evidence.ledger.redirects
    if evidence.blackout_ns or evidence.frozen():
        return
    faults = evidence.faults
    for place, (at_ns, what) in enumerate(faults):
        if what not in CRASHES:
            continue
        next_ns = faults[place + 1][0] if place + 1 < len(faults) else 1 << 62
        for publisher in range(evidence.options.publishers):
            if publisher in evidence.options.plain_publishers:
                continue
            name = f"publisher-{publisher}"
            moved_ns = min((ns for ns, who, _ in redirects if who == name and ns >= at_ns), default=None)
            if next_ns < at_ns + x_ns:
                continue
            if moved_ns is None or moved_ns - at_ns > x_ns + _stood_still_ns(evidence, name, at_ns, moved_ns):
                took = "never" if moved_ns is None else f"after {format_duration(moved_ns - at_ns)}"
                yield Violation(
                    "Failover", f"{name} found another primary {took}; x is {format_duration(x_ns)}"
                )


def _stood_still_ns(evidence: Evidence, name: str, from_ns: int, until_ns: int) -> int:
    """How long a client stood still itself between two times: nobody else can make up for that."""
    stalls = [each for each in evidence.ledger.stalled_clients if each.who == name]
    return sum(max(0, min(each.until_ns, until_ns) - max(each.since_ns, from_ns)) for each in stalls)


def pruning(evidence: Evidence) -> Iterator[Violation]:
    """Sent by a new primary though dispatched well before, and not among what its publisher sends again."""
    options, ledger = evidence.options, evidence.ledger
    crashes = [at_ns for at_ns, what in evidence.faults if what in CRASHES]
    if not crashes or any(what in BETWEEN_BROKERS | OF_CLIENTS for _, what in evidence.faults):
        return  # an acknowledgement that never came back is not a dispatch
    if evidence.frozen() or any(plan.away for plan in options.subscribers):
        return  # nor is what waits for a session
    moved = [at_ns for at_ns, what in evidence.faults if what in (*CRASHES, "pause primary", "stall primary")]
    told_ns = evidence.told_ns() + options.heartbeat_ns + 40 * MS
    for subscriber, wired in enumerate(ledger.wired):
        arrived: dict[bytes, tuple[int, str]] = {}
        for at_ns, member, payload in _on_the_wire(wired):
            if payload not in arrived:
                arrived[payload] = (at_ns, member)
                continue
            before_ns, before = arrived[payload]
            arrived[payload] = (at_ns, member)
            crash_ns = max((ns for ns in crashes if ns <= at_ns), default=None)
            if crash_ns is None or before == member or before_ns + told_ns > crash_ns:
                continue
            if any(crash_ns - SETTLED_NS < ns < crash_ns for ns in moved):
                continue  # clients may still be on their way from the one before, or with it
            _, publisher, topic, number, _ = PAYLOAD.unpack(payload)
            if evidence.is_plain(subscriber, publisher):
                continue
            if not evidence.had_by_all(Identity(publisher, topic, number), crash_ns - told_ns):
                continue
            acknowledged_ns = ledger.acknowledged.get(Identity(publisher, topic, number), at_ns)
            if options.topics[topic].qos and acknowledged_ns >= crash_ns:
                continue  # its publisher sends it again
            times = ledger.created[(publisher, topic)]
            contract = options.topics[topic].contract
            periods = contract.retention + (contract.loss_tolerance or 0) * evidence.late_publishers
            kept_ns = periods * (contract.period_ns or 0) + LATE_NS * (contract.retention > 0)
            if times[number] > times[bisect_right(times, crash_ns) - 1] - kept_ns:
                continue  # so does who kept it for its time, not only for its place
            if number < bisect_right(times, crash_ns) - max(contract.retention, 1):
                yield Violation(
                    "Pruning",
                    f"{member} sent subscriber {subscriber} again what {before} had sent "
                    f"{format_duration(crash_ns - before_ns)} before the crash",
                    Identity(publisher, topic, number),
                    subscriber,
                )


def _on_the_wire(wired: list[tuple[int, str, bytes]]) -> Iterator[tuple[int, str, bytes]]:
    """The payloads in the bytes that came from each member, though they may be cut anywhere."""
    rest: dict[str, bytes] = {}
    for at_ns, member, data in wired:
        data = rest.get(member, b"") + data
        end = 0
        for match in ON_THE_WIRE.finditer(data):
            end = match.end()
            yield at_ns, member, match[0]
        rest[member] = data[max(end, len(data) - PAYLOAD.size + 1) :]


def bounded(evidence: Evidence) -> Iterator[Violation]:
    for text in evidence.ledger.rest:
        yield Violation("Bounded", text)


def no_mistake(evidence: Evidence) -> Iterator[Violation]:
    for at_ns, who, text in evidence.ledger.mistakes:
        yield Violation("No mistake", f"{who} at {at_ns}: {text}")


LAWS: tuple[Callable[[Evidence], Iterator[Violation]], ...] = (
    no_mistake,
    one_primary,
    loss,
    acknowledged,
    once,
    gaps,
    pruning,
    failover,
    deadline,
    bounded,
    *STATE_LAWS,
    *HOSTILE_LAWS,
    *STALL_LAWS,
)
