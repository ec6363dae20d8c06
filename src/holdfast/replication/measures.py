"""What a group measures of itself: the way to the backup, how long a failover took, and what led to it.

Laws:
- the way is judged by a low percentile: a busy machine adds to a round trip, and takes nothing away
- the configured way is the least that is ever reckoned with; a longer one counts when it is noticeably
  longer, and no more when it is clearly shorter again
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from msgspec import structs

from holdfast.replication.messages import Beat
from holdfast.replication.roles import Happening, Role
from holdfast.status import CHANGES_MAX, FAILOVERS_MAX, Failover, RoleChange, about_ns
from holdfast.units import MS

if TYPE_CHECKING:
    from holdfast.replication.member import Member
    from holdfast.replication.peers import PeerState

SAMPLES = 100  # round trips that a judgement takes
PERCENTILE = 10
LONGER_PERCENT = 125  # of what is reckoned with: then the way is longer
SHORTER_PERCENT = 60  # then it is shorter
NOISE_NS = 20_000  # differences below this are none
NONE = "-"


class WayMeter:
    """Half round trips to one backup; `used_ns` is what Proposition 1 should reckon with."""

    def __init__(self, configured_ns: int) -> None:
        self.configured_ns = configured_ns
        self.used_ns = configured_ns
        self.measured_ns: int | None = None
        self._samples: list[int] = []

    def forget(self) -> None:
        """Another backup, another way."""
        self._samples.clear()
        self.measured_ns = None

    def add(self, way_ns: int) -> bool:
        """Says whether `used_ns` has changed."""
        self._samples.append(way_ns)
        if len(self._samples) < SAMPLES:
            return False
        self.measured_ns = sorted(self._samples)[SAMPLES * PERCENTILE // 100]
        self._samples.clear()
        return self._judge(max(self.measured_ns, self.configured_ns))

    def _judge(self, way_ns: int) -> bool:
        longer = way_ns * 100 > self.used_ns * LONGER_PERCENT and way_ns - self.used_ns > NOISE_NS
        shorter = way_ns * 100 < self.used_ns * SHORTER_PERCENT and self.used_ns - way_ns > NOISE_NS
        if longer or shorter:
            self.used_ns = way_ns
        return longer or shorter


class History:
    """What a member was, and when it took over: the last of each, oldest first."""

    def __init__(self) -> None:
        self.changes: deque[RoleChange] = deque(maxlen=CHANGES_MAX)
        self.failovers: deque[Failover] = deque(maxlen=FAILOVERS_MAX)
        self.failovers_total = 0
        self.alive_total = 0  # of these, from a primary that only stood still
        self._took_over_ns: int | None = None  # when, and whether the primary lived is not known yet
        self._primary = ""
        self._why = ""

    def changed(self, member: Member, was: Role, why: Happening) -> None:
        self.changes.append(
            RoleChange(
                at_ns=member.core.board.wall_ns,
                was=was.value,
                role=member.role.value,
                view=member.view_max,
                why=why.value,
            )
        )

    def lost_primary(self, state: PeerState) -> None:
        """Its primary is gone, for all that this member can see."""
        self._primary = state.name
        if state.said_bye:
            self._why = "it said goodbye"
        else:
            self._why = "nothing was heard of it" if state.mute else "its connection ended"

    def was_alive(self, member: Member, name: str, beat: Beat, now_ns: int) -> None:
        """A beat of the primary that this member took over from may tell that it stood still just then."""
        at_ns = self._took_over_ns
        if at_ns is None or name != self._primary:
            return
        woke_ns = now_ns - beat.woke_ns
        if not beat.stood_ns or not woke_ns - beat.stood_ns <= at_ns <= woke_ns + beat.stood_ns:
            return
        self._took_over_ns = None
        self.alive_total += 1
        last = self.failovers.pop()
        why = f"it stood still for {about_ns(beat.stood_ns)}"
        self.failovers.append(structs.replace(last, stood_still_ns=beat.stood_ns, why=why))
        # from its last word on, which may have been a heartbeat before it stood still
        member.silence.heed(member.silence.ns + max(0, woke_ns - at_ns), now_ns)
        details = {"primary": name, "view": last.view, "stood_still_ms": beat.stood_ns / MS}
        member.event("primary was alive", {**details, "waited_ms": member.silence.ns / MS})

    def took_over(self, member: Member, now_ns: int, copies: int) -> None:
        self.failovers_total += 1
        self._took_over_ns = now_ns
        self.failovers.append(
            Failover(
                at_ns=member.core.board.wall_ns,
                view=member.view_max,
                primary=self._primary,
                x_ns=member.failover_ns,
                why=self._why,
                again=member.again,
                copies=copies,
            )
        )


def group_figures(member: Member) -> dict[str, int | str]:
    """What a member says of itself under $SYS/broker; what is not there is `-`, never empty."""
    core, view = member.core, member.view
    return {
        "group/name": member.group.name,
        "group/member": member.name,
        "group/role": member.role.value,
        "group/view": view.number,
        "group/primary": view.primary or NONE,
        "group/heirs": ",".join(view.heirs) or NONE,
        "group/protected": int(bool(member.serving.protected_by)),
        "group/contracts differ": ",".join(_differing(member)) or NONE,
        "group/unarbitrated": member.group.unarbitrated if member.group.zookeeper else NONE,
        "group/holding": int(member.serving.holding),
        "group/copies/sent": core.copies,
        "group/copies/aborted": core.copies_aborted,
        "group/copies/discarded": core.board.discarded,
        "group/copies/held": len(member.buffer),
        "group/copies/superseded": member.buffer.superseded,
        "group/marks/sent": core.board.marks,
        "group/marks/lag us": micros(core.board.marks_lag_ns),
        "group/marks/lag max us": micros(core.board.marks_lag_max_ns),
        "group/dispatched again": member.again,
        "group/duplicates": core.duplicates,
        "group/failover/last us": micros(member.failover_ns),
        "group/failover/max us": micros(member.failover_max_ns),
        "group/failover/configured us": micros(member.broker.contracts.book.deployment.failover_ns),
        "group/failover/in force us": micros(core.failover_ns),
        "group/failover/alive": member.history.alive_total,
        "group/silence/in force us": micros(member.silence.ns),
        "group/silence/why": member.silence.why,
        "group/stalls/count": member.silence.own.total,
        "group/stalls/longest us": micros(member.silence.own.longest_ns),
        "group/backup way/measured us": micros(member.way.measured_ns),
        "group/backup way/used us": micros(core.to_backup_ns),
    }


def _differing(member: Member) -> list[str]:
    return [peer.state.name for peer in member.peers.greeted() if peer.state.differs]


def micros(ns: int | None) -> str:
    return NONE if ns is None else f"{ns / 1000:g}"
