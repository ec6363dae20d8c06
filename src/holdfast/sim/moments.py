"""Moments of a broker at which a fault hurts most, told from what it writes and from what it says of itself.

A fault that is aimed at one strikes in the step in which it comes. What was going on when a fault struck is a
moment that was hit; the summary of a sweep counts the distinct ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.mqtt.codec import split
from holdfast.sim.network import End
from holdfast.sim.options import PEER_PORT

if TYPE_CHECKING:
    from holdfast.sim.brokers import MemberProcess

Outputs = list[tuple[End, bytes, bool]]

PACKETS = {2: "connack", 3: "delivery", 4: "puback", 5: "pubrec", 6: "pubrel", 7: "pubcomp", 9: "suback"}
EVENTS = {
    "serving",
    "protected",
    "lost heir",
    "unprotected",
    "silent",
    "dropped",
    "role",
    "refused by peer",
    "claim lost",
    "arbitrated",
    "not arbitrated",
}
GOING_ON = ("snapshot piece", "copying", "grant waits", "claim", "holding")
MOMENTS = (
    *("puback", "puback", "pubrec", "pubcomp", "suback", "suback", "connack", "delivery"),
    *sorted(EVENTS),
    *GOING_ON,
)


def written(outputs: Outputs) -> Iterator[str]:
    """The kinds of the packets for clients in what a step writes."""
    for end, data, _ in outputs:
        if end.address[1] == PEER_PORT:
            continue
        at = 0
        while (found := split(data, at)) is not None:
            first, _, at = found
            if first >> 4 in PACKETS:
                yield PACKETS[first >> 4]


def going_on(process: MemberProcess) -> Iterator[str]:
    """What is begun and not ended."""
    member = process.member
    serving, recorder = member.serving, member.recorder
    if serving._snapshots:
        yield "snapshot piece"
    if serving._copying is not None:
        yield "copying"
    if recorder.next_ns is not None:
        yield "grant waits"
    if serving.contest.holding:
        yield "holding"
    if member.claims:
        yield "claim"


def moments_of(process: MemberProcess, outputs: Outputs) -> set[str]:
    """Every moment that the step which writes this is."""
    return {*written(outputs), *(EVENTS & set(process.events)), *going_on(process)}


def describe(kind: str, process: MemberProcess, outputs: Outputs) -> str:
    """The moment that a fault hit, as a text that is the same for the same kind of moment."""
    member = process.member
    state = f"{member.role.value} with {len(member.view.heirs)} heirs"
    busy = "jobs" if member.broker.core.jobs_waiting else "idle"
    return f"{kind} of {state}, {busy}: {', '.join(sorted(moments_of(process, outputs))) or 'nothing'}"
