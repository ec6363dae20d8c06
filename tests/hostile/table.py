"""What came of an attack, in a line; and whether anybody but the attacker felt it."""

from __future__ import annotations

from collections.abc import Iterator

from hostile.attacks import Attack
from hostile.measure import KEPT, Result

MEMORY_MIB_MAX = 320  # above what it was: the bound of queued bytes, and what tables take
LEFT_MIB_MAX = 96  # when the attack is over, unless what it left is meant to stay
EXCUSED_SHARE_MAX = (
    0.03  # of the messages: where more were late and excused, it is not known what an attack does
)
CPU_QUIET_MAX = 0.5  # of a core: what an attack left behind is over when it is
WIDTHS = (30, 13, 20, 11, 5, 8, 7, 5, 4, 16, 4, 6)
HEADS = (
    "attack", "quiet p50 p99", "attack p50 p99 max", "late", "lost", "refused", "health", "fail", "kept",
    "MiB before>peak>after", "CPU", "turn",
)  # fmt: skip


def is_judged(result: Result) -> bool:
    """Whether the machine was quiet enough to tell what an attack does to the good pair."""
    return result.excused <= EXCUSED_SHARE_MAX * result.attacked.sent


def faults(result: Result, attack: Attack) -> Iterator[str]:
    """Why a row is red, if it is."""
    late = result.attacked.late - result.excused
    if late > result.quiet.late / max(1, result.quiet.sent) * result.attacked.sent:
        yield f"{late} late, of {result.attacked.sent}"
    if result.attacked.lost or result.quiet.lost:
        yield f"{result.attacked.lost + result.quiet.lost} lost"
    if result.gone:
        yield f"a good client was sent away: {result.gone[0]}"
    if result.refused:
        yield f"{len(result.refused)} of {result.visits} others were refused: {result.refused[0]}"
    if result.health:
        yield f"{len(result.health)} of {result.probes} probes of health failed: {result.health[0]}"
    if result.failovers:
        yield f"{result.failovers} failovers"
    if result.kept < KEPT:
        yield f"{KEPT - result.kept} of {KEPT} acknowledged messages of L = 0 are gone"
    grown = result.peak_mib - result.before_mib
    if grown > MEMORY_MIB_MAX:
        yield f"memory grew by {grown:.0f} MiB"
    if result.cpu_quiet > CPU_QUIET_MAX:
        yield f"between attacks the broker is busy: {result.cpu_quiet:.0%} of a core"
    left = result.after_mib - result.before_mib
    if left > LEFT_MIB_MAX and not attack.stays:
        yield f"{left:.0f} MiB did not come back"


def head() -> str:
    return " ".join(f"{name:<{width}}" for name, width in zip(HEADS, WIDTHS, strict=True)).rstrip()


def row(result: Result, attack: Attack) -> str:
    late = str(result.attacked.late) + (f" ({result.excused} busy)" if result.excused else "")
    under = result.attacked
    cells = (
        result.attack,
        f"{result.quiet.p50_ms:.1f} {result.quiet.p99_ms:.1f}",
        f"{under.p50_ms:.1f} {under.p99_ms:.1f} {under.max_ms:.0f}",
        late,
        str(under.lost),
        f"{len(result.refused) + len(result.gone)}/{result.visits}",
        f"{len(result.health)}/{result.probes}",
        str(result.failovers),
        str(result.kept),
        f"{result.before_mib:.0f} > {result.peak_mib:.0f} > {result.after_mib:.0f}",
        f"{result.cpu:.0%}",
        f"{result.turn_ms:g}",
    )
    line = " ".join(f"{cell:<{width}}" for cell, width in zip(cells, WIDTHS, strict=True))
    found = list(faults(result, attack))
    verdict = "RED  " if found else "well " if is_judged(result) else "busy "
    return f"{verdict} {line.rstrip()}" + "".join(f"\n        {each}" for each in found)
