"""When nobody may take over, judged apart from the code that decides it.

Patience      while nothing else is wrong, nobody takes over from a primary that stands still for no longer
              than the silence that the contracts bear, nor because a backup stands still
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.sim.evidence import Evidence, Violation
from holdfast.sim.ledger import Stall
from holdfast.units import MS, format_duration

CALM_NS = 100 * MS  # that a group waits which never saw a member stand still, where its contracts bear it
MARGIN = 2  # times the longest standstill so far
ALONE_NS = 1_000 * MS  # what happened within this of a standstill may be the reason, too


def patience(evidence: Evidence) -> Iterator[Violation]:
    options, ledger = evidence.options, evidence.ledger
    others = [at_ns for at_ns, what in evidence.faults if not what.startswith("stall ")]
    settled_ns = 2 * options.ways["peer"].longest_ns + 4 * options.cost_ns + 2 * MS
    for stall in ledger.stalls:
        length_ns = stall.until_ns - stall.since_ns
        if any(stall.since_ns - ALONE_NS <= at_ns <= stall.until_ns + ALONE_NS for at_ns in others):
            continue
        if stall.led and length_ns > _borne_ns(evidence, stall) - options.heartbeat_ns - settled_ns:
            continue
        for promotion in ledger.promotions:
            if stall.since_ns <= promotion.at_ns <= stall.until_ns + options.heartbeat_ns + settled_ns:
                what = "primary" if stall.led else "backup"
                yield Violation(
                    "Patience",
                    f"{promotion.who} took over though the {what} {stall.who} lived, and stood still for no "
                    f"more than {format_duration(length_ns)}",
                )


def _borne_ns(evidence: Evidence, stall: Stall) -> int:
    """The least silence that must be waited for by then."""
    options = evidence.options
    bound = options.bound
    if bound is None:
        return options.silence_ns
    seen = (
        each.until_ns - each.since_ns
        for each in evidence.ledger.stalls
        if each.until_ns + ALONE_NS // 5 < stall.since_ns
    )
    longest_ns = max((ns for ns in seen if ns <= bound.silence_ns), default=0)
    return min(bound.silence_ns, max(CALM_NS, MARGIN * longest_ns))


STALL_LAWS: tuple[Callable[[Evidence], Iterator[Violation]], ...] = (patience,)
