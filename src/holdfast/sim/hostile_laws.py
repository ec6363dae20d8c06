"""What holds for good clients whatever hostile ones send, judged where a seed has some.

Undisturbed   before the first fault the primary hangs up on no good client, and nobody else takes over
Turn          no turn of a primary does more than the sum of its shares
Memory        what clients make a broker keep stays within each of its bounds
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.sim.evidence import Evidence, Violation


def undisturbed(evidence: Evidence) -> Iterator[Violation]:
    if evidence.options.hostile is None:
        return
    for at_ns, member, client in evidence.ledger.hung_up:
        if at_ns < evidence.first_fault_ns:
            yield Violation("Undisturbed", f"{member} hung up on {client} at {at_ns}, before any fault")
    if any(evidence.options.starts_ns):
        return  # members that start one by one may serve one after the other
    early = [each for each in evidence.ledger.promotions if each.at_ns < evidence.first_fault_ns]
    for each in early[1:]:
        yield Violation("Undisturbed", f"{each.who} took over at {each.at_ns}, before any fault")


def turn(evidence: Evidence) -> Iterator[Violation]:
    for at_ns, member, units, most in evidence.ledger.overwork:
        yield Violation("Turn", f"{member} did {units} units in its turn at {at_ns}; {most} are its shares")


def memory(evidence: Evidence) -> Iterator[Violation]:
    for at_ns, member, name, size, most in evidence.ledger.overfull:
        yield Violation("Memory", f"{member} kept {size} bytes of {name} at {at_ns}; its bound is {most}")


HOSTILE_LAWS = (undisturbed, turn, memory)
