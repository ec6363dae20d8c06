"""A member that begins to serve, and one that serves no more.

Laws:
- at recovery only what was not discarded is dispatched again, by deadline
- who steps down says to its clients where to go, and records what only it knows first
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.replication.peer import Peer
from holdfast.replication.views import View

if TYPE_CHECKING:
    from holdfast.replication.member import Member

NUMBERS_SKIPPED = 2**32  # publication numbers that a crashed primary may have given without our knowing
GRACE_S = 5  # how long clients that were connected may take to come to a new primary


def promote(member: Member, now_ns: int) -> None:
    """The primary is gone, or there was none: this broker serves."""
    clients, core = member.broker.clients, member.core
    member.absence.end()
    member.silence.told_ns = 0
    member.silence.own.serves()
    for peer in member.peers.all():
        peer.buffer = None
    core.board.mute = False
    if member.following.partial:
        member.log.become(0, 0, member.life)  # a part of a state, which nobody else has
        member.following.partial = False
    member.log.begin(member.view_max, member.life)
    published = max(member.buffer.number_max, member.published_max, core.number)
    core.number_from(published + NUMBERS_SKIPPED)
    clients.all_away(now_ns, GRACE_S)
    copies, retained = member.buffer.taken, dict.fromkeys(member.buffer.retained)
    member.again = member.buffer.recover({each.serial: each for each in clients.sessions.values()})
    member.recorder.recording = True
    core.retained_log = retained  # what only the copies said, others do not know
    last_sign_ns = member.absence.last_sign_ns
    if last_sign_ns is not None:
        member.failover_ns = now_ns - last_sign_ns
        member.failover_max_ns = max(member.failover_ns, member.failover_max_ns or 0)
        if member.absence.silent and member.view.heirs[:1] == (member.name,):
            member.silence.redirected(member.failover_ns - member.silence.ns)
        member.history.took_over(member, now_ns, copies)
        core.board.took_over_ns = core.board.wall_ns
    member.reckon_again()
    member.set_view(View(member.view_max, member.name), now_ns)
    member.broker.access.serves(now_ns)
    member.door.open(now_ns)
    member.event("serving", {"view": member.view.number, "again": member.again, "copies": copies})
    if last_sign_ns is not None:
        member.event("unprotected", {"view": member.view.number})  # until somebody joins


def step_down(member: Member, now_ns: int, successor: Peer | None) -> None:
    member.core.board.mute = True
    member.serving.record_retained()  # what only this broker knows makes its state another's no more
    member.recorder.recording = False
    member.recorder.unsent.clear()
    member.recorder.give_up("this broker does not serve any more")
    member.serving.stop()
    name = member.group.owner_of(member.view_max) if successor is None else successor.state.name
    member.view = View(member.view_max, name if name != member.name else "")
    member.tell_clients()
    member.door.close(now_ns)
    member.rejoin(now_ns)
