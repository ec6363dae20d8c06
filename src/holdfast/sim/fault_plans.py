"""Draws what goes wrong in a run, and when."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

from msgspec import structs

from holdfast.sim.moments import MOMENTS
from holdfast.sim.options import FLAPS, Fault
from holdfast.units import MS

SETTLE_NS = 400 * MS
CLIENT_STALLS = 0.5  # of the seeds in which members stand still, publishers do too
Plan: TypeAlias = Callable[[Random, int, int, int, int], tuple[Fault, ...]]

AIMED = 0.4  # of the faults that hit a broker wait for a moment that matters

KINDS = (
    ("kill", "primary", 30),
    ("crash", "primary", 14),
    ("kill", "backup", 8),
    ("crash", "backup", 4),
    ("pause", "primary", 10),
    ("pause", "backup", 5),
    ("cut", "pair", 5),
    ("cut one way", "pair", 5),
    ("isolate", "primary", 5),
    ("reset", "subscriber", 5),
    ("reset", "publisher", 5),
    ("reset", "pair", 4),
)
APART = (
    ("cut", "pair"),
    ("cut one way", "pair"),
    ("isolate", "primary"),
    *(("seclude", "primary"), ("split", "primary")) * 2,
)
NEEDS_RESTART = {"kill", "crash"}


def draw_faults(
    rng: Random,
    more: Random,
    members: int,
    publish_ns: int,
    silence_ns: int,
    x_ns: int,
    reliable: bool,
    arbiter: bool,
) -> tuple[Fault, ...]:
    """One plan of those below, some of its faults aimed at moments."""
    faults = _draw_plain_faults(rng, publish_ns, silence_ns, x_ns, reliable)
    chance = more.random()
    plans: tuple[tuple[float, Plan], ...] = (
        (0.07, _draw_reload),
        (0.12, _draw_blackout),
        (0.18, _draw_freeze),
        (0.34, _draw_returns),
        (0.65 if arbiter else 0.37, _draw_apart),
    )
    for below, plan in plans:
        if chance < below:
            at_ns = SETTLE_NS + int((publish_ns - SETTLE_NS) * more.uniform(0.05, 0.3))
            faults = plan(more, members, at_ns, silence_ns, x_ns)
            break
    return tuple(
        structs.replace(fault, aim=more.choice(MOMENTS), nth=more.choice((1, 1, 2, 5)))
        if fault.where in ("primary", "backup", "pair") and more.random() < AIMED
        else fault
        for fault in faults
        if arbiter or fault.where != "arbiter"
    )


def draw_flaps(rng: Random, publish_ns: int, silence_ns: int, x_ns: int) -> tuple[Fault, ...]:
    """Two members lose and find each other again and again; some time later the primary may die."""
    at_ns = SETTLE_NS + int((publish_ns - SETTLE_NS) * rng.uniform(0.05, 0.2))
    flap = Fault(
        kind="flap",
        where="pair",
        at_ns=at_ns,
        for_ns=rng.choice((rng.randrange(MS, silence_ns), rng.randrange(silence_ns, 2 * silence_ns))),
        share=rng.random(),
    )
    later_ns = at_ns + FLAPS * 2 * flap.for_ns + x_ns
    kill = _draw_fault(rng, "kill", "primary", later_ns, silence_ns, x_ns)
    return (flap, kill) if rng.random() < 0.4 else (flap,)


def draw_stalls(rng: Random, beside: Random, publish_ns: int, x_ns: int) -> tuple[Fault, ...]:
    """A member stands still, once or again and again, perhaps a publisher at about the same time; some time
    later the primary may die for good."""
    at_ns = SETTLE_NS + int((publish_ns - SETTLE_NS) * rng.uniform(0.05, 0.2))
    for_ns = rng.choice((rng.randrange(35, 70), rng.randrange(1, 100), rng.randrange(70, 300))) * MS
    stall = Fault(
        kind="stall",
        where=rng.choice(("primary", "primary", "primary", "backup")),
        at_ns=at_ns,
        for_ns=for_ns,
        share=rng.random(),
        times=rng.choice((1, 3, 4)),
        again_ns=for_ns + rng.randrange(50, 300) * MS,
    )
    if beside.random() < CLIENT_STALLS:
        for_ns = beside.choice((beside.randrange(5, 60), beside.randrange(60, 250))) * MS
        after_ns = beside.randrange(-min(240, for_ns // MS), 120) * MS
        again_ns = stall.again_ns + abs(after_ns) + for_ns
        stall = structs.replace(stall, client_after_ns=after_ns, client_for_ns=for_ns, again_ns=again_ns)
    later_ns = at_ns + stall.times * stall.again_ns + x_ns
    dies = _draw_fault(rng, rng.choice(("kill", "crash")), "primary", later_ns, x_ns, x_ns)
    return (stall, dies) if rng.random() < 0.5 else (stall,)


def aim_at_grants(more: Random, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """The primary's host falls just after a SUBACK, instead of whatever else was to hit the primary."""
    return tuple(
        structs.replace(fault, kind="crash", share=1.0, aim="suback", nth=more.choice((1, 2, 5)))
        if fault.where == "primary" and fault.kind in NEEDS_RESTART
        else fault
        for fault in faults
    )


def _draw_reload(more: Random, members: int, at_ns: int, silence_ns: int, x_ns: int) -> tuple[Fault, ...]:
    """Other contracts, at one member after the other; later something else."""
    gap_ns = more.choice((0, more.randrange(1, 4 * silence_ns), more.randrange(200, 1_200) * MS))
    reload = Fault(kind="reload", where="members", at_ns=at_ns, for_ns=gap_ns, share=more.random())
    later_ns = at_ns + members * gap_ns + x_ns
    return reload, _draw_fault(more, "kill", "primary", later_ns, silence_ns, x_ns)


def _draw_blackout(more: Random, members: int, at_ns: int, silence_ns: int, x_ns: int) -> tuple[Fault, ...]:
    """Everybody dies, and comes back in some order."""
    gap_ns = more.choice((0, more.randrange(1, 800) * MS, more.randrange(1, 2_000) * MS))
    return (Fault(kind="blackout", where="members", at_ns=at_ns, for_ns=gap_ns, share=more.random()),)


def _draw_freeze(more: Random, members: int, at_ns: int, silence_ns: int, x_ns: int) -> tuple[Fault, ...]:
    """A backup stands still, and the primary dies meanwhile."""
    for_ns = more.choice((more.randrange(MS, silence_ns), more.randrange(silence_ns, 6 * silence_ns)))
    freeze = Fault(kind="freeze", where="backup", at_ns=at_ns, for_ns=for_ns, share=more.random())
    return freeze, Fault(kind="restart", where="dead", at_ns=at_ns + for_ns + x_ns)


def _draw_apart(more: Random, members: int, at_ns: int, silence_ns: int, x_ns: int) -> tuple[Fault, ...]:
    """Who serves does not hear the others, sometimes not the arbiter either; a backup may die meanwhile."""
    kind, where = more.choice(APART)
    first = _draw_fault(more, kind, where, at_ns, silence_ns, x_ns)
    later_ns = first.at_ns + first.for_ns + x_ns
    unanswered = Fault(kind="cut", where="arbiter", at_ns=later_ns, for_ns=more.randrange(1, 600) * MS)
    return first, unanswered, _draw_fault(more, "kill", "backup", later_ns, silence_ns, x_ns)


def _draw_returns(more: Random, members: int, at_ns: int, silence_ns: int, x_ns: int) -> tuple[Fault, ...]:
    """A member dies, comes back, is brought up to date, and must take over."""
    hit = more.choice(("primary", "backup"))
    first = _draw_fault(more, more.choice(("kill", "crash")), hit, at_ns, silence_ns, x_ns)
    back_ns = at_ns + x_ns + more.randrange(1, 300) * MS
    again_ns = back_ns + more.randrange(1, 300) * MS
    return (
        first,
        Fault(kind="restart", where="dead", at_ns=back_ns),
        _draw_fault(more, "kill", "primary", again_ns, silence_ns, x_ns),
    )


def _draw_plain_faults(
    rng: Random, publish_ns: int, silence_ns: int, x_ns: int, reliable: bool
) -> tuple[Fault, ...]:
    """One fault, sometimes the return of what was killed, sometimes another fault after all is well again."""
    kind, where, _ = rng.choices(KINDS, weights=[weight for *_, weight in KINDS])[0]
    if reliable and rng.random() < 0.4:
        kind, where = "crash", "primary"
    at_ns = SETTLE_NS + int((publish_ns - SETTLE_NS) * rng.uniform(0.1, 0.45))
    first = _draw_fault(rng, kind, where, at_ns, silence_ns, x_ns)
    faults = [first]
    if kind in NEEDS_RESTART and rng.random() < (0.8 if reliable else 0.3):
        before_ns = rng.randrange(1, 400 if reliable else 150) * MS
        faults.insert(
            0,
            Fault(
                kind=rng.choice(("pause", "reset", "cut")) if reliable else "pause",
                where="subscriber",
                at_ns=at_ns - before_ns,
                for_ns=before_ns + rng.randrange(100) * MS + 1,
                share=rng.random(),
            ),
        )
    back_ns = at_ns + x_ns + rng.randrange(1, 300) * MS
    if kind in NEEDS_RESTART and rng.random() < 0.7:
        faults.append(Fault(kind="restart", where="dead", at_ns=back_ns))
    if rng.random() < 0.3:
        kind, where, _ = rng.choices(KINDS, weights=[weight for *_, weight in KINDS])[0]
        again_ns = max(back_ns, first.at_ns + first.for_ns + x_ns) + rng.randrange(50, 400) * MS
        faults.append(_draw_fault(rng, kind, where, again_ns, silence_ns, x_ns))
    return tuple(faults)


def _draw_fault(rng: Random, kind: str, where: str, at_ns: int, silence_ns: int, x_ns: int) -> Fault:
    for_ns = 0
    if kind == "pause":
        short, long = rng.randrange(1, silence_ns // 2), silence_ns + rng.randrange(MS, 2 * x_ns)
        for_ns = long if rng.random() < 0.7 else short
    elif kind in ("cut", "cut one way", "isolate", "seclude", "split"):
        for_ns = rng.randrange(MS, 3 * x_ns)
    return Fault(
        kind=kind,
        where=where,
        at_ns=at_ns,
        for_ns=for_ns,
        feeds=rng.random() < 0.3,
        share=rng.choice((0.0, 1.0, rng.random(), rng.random(), rng.random())),
    )
