"""What a person is told of brokers that stood still: what the machine did, what was done, and what it costs.

Law: one sentence for each broker, as long as it stood still within the last ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.dashboard.words import about, plural
from holdfast.status import BrokerStatus, Failover
from holdfast.units import S

LATELY_NS = 600 * S
NAMES_MAX = 4


def stall_sentences(
    brokers: Iterable[BrokerStatus], serving: BrokerStatus, failovers: Iterable[tuple[int, str, Failover]]
) -> Iterator[str]:
    """`failovers` are when, who took over, and how."""
    alive = [each for each in failovers if each[2].stood_still_ns is not None]
    for status in brokers:
        if status.stalls:
            moved = [(who, how) for at_ns, who, how in alive if _is_of(status, at_ns, how)]
            times = "once" if status.stalls == 1 else f"{status.stalls} times"
            longest = about(status.stalls_longest_ns)
            did = (
                f"The machine stopped broker {status.name} {times} within ten minutes, for {longest} at most"
            )
            yield (f"{did}; {_done(serving, moved)}; {_cost(serving, status.stalls_longest_ns)}.")


def _is_of(status: BrokerStatus, at_ns: int, failover: Failover) -> bool:
    return failover.primary == status.name and at_ns > status.at_ns - LATELY_NS


def _done(serving: BrokerStatus, moved: list[tuple[str, Failover]]) -> str:
    waits = about(serving.reckoning.silence_ns)
    if not moved:
        return f"nobody took over, since {waits} of silence are waited for"
    who = " and ".join(sorted({name for name, _ in moved}))
    took = about(max(how.x_ns or 0 for _, how in moved))
    return f"{who} took over {plural(len(moved), 'time')}, within {took}"


def _cost(serving: BrokerStatus, stalled_ns: int) -> str:
    late = [
        each.name
        for each in serving.contracts
        if each.published and each.promise.deadline_ns - each.promise.to_subscriber_ns < stalled_ns
    ]
    if not late:
        return "every contract bears that"
    named = late[:NAMES_MAX]
    named += [f"{len(late) - NAMES_MAX} more"] if len(late) > NAMES_MAX else []
    return f"that is longer than {' and '.join(filter(None, (', '.join(named[:-1]), named[-1])))} can wait"
