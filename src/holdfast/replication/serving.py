"""What a primary does for its backups: increments, snapshots, copies of what they lack.

Laws:
- a member is an heir from the moment it has the state and every message that waits, not before
- an heir that is lost leaves the view under its number, and for `silence` no other view is opened: whoever it
  was must be able to open a higher one, and be heard of
- a snapshot and the copies that a new backup lacks go piece by piece, between messages
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.replication.contest import Contest
from holdfast.replication.increments import SNAPSHOT_PART, HeirGone, Increment, everything
from holdfast.replication.messages import Ask, Drop, Snapshot, State
from holdfast.replication.peer import Peer
from holdfast.replication.peers import PeerState
from holdfast.replication.recording import record_retained
from holdfast.replication.roles import Role
from holdfast.replication.views import View, next_number

if TYPE_CHECKING:
    from holdfast.replication.member import Member

SESSIONS_COPIED_PER_TURN = 50
SNAPSHOT_BYTES_WAITING_MAX = 262_144


class Serving:
    def __init__(self, member: Member) -> None:
        self.member = member
        self._snapshots: dict[Peer, Iterator[Increment]] = {}
        self._copying: Iterator[str] | None = None
        self._calm_ns = 0  # until then an heir that was lost may open a view of its own
        self.contest = Contest(member, self._go_on)

    def stop(self) -> None:
        """This broker serves no more: what it had not delivered is the new primary's to deliver."""
        self.contest.stop()
        self.member.broker.core.forget_jobs()
        for session in self.member.broker.clients.sessions.values():
            session.clear()
        self.member.broker.core.retained_log = None
        self.member.broker.core.set_backup(None)
        self._snapshots.clear()
        self._copying = None
        self._calm_ns = 0
        self.member.peers.forget_followers()

    def lost(self, peer: Peer, now_ns: int, *, silent: bool = False) -> None:
        self._snapshots.pop(peer, None)
        if not peer.state.follows:
            return
        newer = self.member.peers.link_to(peer.state.name)
        still_there = newer is not None and newer is not peer and newer.state.follows
        if peer.state.name in self.member.view.heirs and not still_there:
            self.without(peer.state.name, now_ns, silent=silent)
        elif self.member.broker.core.board.backup is peer and not self.contest.holding:
            self._copying = None
            self.member.broker.core.set_backup(None)

    def replicas(self) -> list[int]:
        return [
            peer.state.has
            for peer in self.member.peers.greeted()
            if peer.state.name in self.member.view.heirs
        ]

    def asked(self, peer: Peer, ask: Ask, now_ns: int) -> None:
        """A member follows us: it gets the increments it lacks, or everything."""
        if self.member.role is not Role.PRIMARY:
            return
        state: PeerState = peer.state
        self.tell_increments()
        lacks = self.member.log.since(ask.epoch, ask.number)
        state.follows, state.has = True, ask.number
        if state.name in self.member.view.heirs:
            self.without(state.name, now_ns)
        if lacks is None:
            self._snapshots[peer] = everything(self.member.broker)
            self.member.peers.send(peer, Snapshot([], first=True))
        else:
            self.member.peers.send(
                peer, Snapshot(lacks, last=True, epoch=self.member.log.epoch, number=self.member.log.number)
            )

    def bring_up_to_date(self, now_ns: int) -> bool:
        """A part of each snapshot that is on its way, and of the messages that a new backup lacks."""
        for peer, parts in list(self._snapshots.items()):
            if peer.output_size > SNAPSHOT_BYTES_WAITING_MAX:
                continue
            increments = [increment for increment, _ in zip(parts, range(SNAPSHOT_PART), strict=False)]
            last = len(increments) < SNAPSHOT_PART
            if last:
                del self._snapshots[peer]
                self.tell_increments()
            self.member.peers.send(
                peer,
                Snapshot(increments, last=last, epoch=self.member.log.epoch, number=self.member.log.number),
            )
        if self._copying is not None:
            self._copy_some(now_ns)
        calm = now_ns >= self._calm_ns
        if calm and self._calm_ns:
            self._calm_ns = 0
            self._take_in_others(now_ns)
        return bool(self._snapshots) or (self._copying is not None and calm)

    def has(self, peer: Peer, number: int, now_ns: int) -> None:
        state: PeerState = peer.state
        state.has = number
        if self.member.role is not Role.PRIMARY or not state.follows or peer in self._snapshots:
            return
        if self.contest.holding:
            return
        if state.name not in self.member.view.heirs and self._copying is None:
            if not self.member.view.heirs:
                self._protect_with(peer)
            elif now_ns >= self._calm_ns:
                self._add(state.name, now_ns)

    def _protect_with(self, peer: Peer) -> None:
        """Copies go to this member from now on; what it lacks follows piece by piece."""
        self.member.way.forget()
        self.member.broker.core.set_backup(peer)
        self.member.broker.core.copy_queued()
        self._copying = iter(list(self.member.broker.clients.sessions))

    def _copy_some(self, now_ns: int) -> None:
        backup = self.member.broker.core.board.backup
        assert self._copying is not None
        for _ in range(SESSIONS_COPIED_PER_TURN):
            client_id = next(self._copying, None)
            if client_id is None and now_ns < self._calm_ns:
                return
            if client_id is None:
                self._copying = None
                assert isinstance(backup, Peer)
                self._add(backup.state.name, now_ns, first=True)
                return
            session = self.member.broker.clients.sessions.get(client_id)
            if session is not None:
                self.member.broker.core.copy_held(session)

    def _add(self, name: str, now_ns: int, *, first: bool = False) -> None:
        """A member is up to date: it is an heir, in a new view; the first, if it has the copies."""
        number = next_number(self.member.view_max, self.member.index)
        others = self.member.view.heirs
        heirs = (name, *others) if first else (*others, name)
        self.member.set_view(View(number, self.member.name, heirs), now_ns)
        self.member.event("protected", {"view": number, "heirs": ", ".join(self.member.view.heirs)})
        self._take_in_others(now_ns)

    def _take_in_others(self, now_ns: int) -> None:
        for peer in self.member.peers.greeted():  # who was up to date while another was taken in
            if (
                peer.state.follows
                and peer.state.name not in self.member.view.heirs
                and peer not in self._snapshots
                and peer.state.has == self.member.log.number
            ):
                self.has(peer, peer.state.has, now_ns)

    def without(self, name: str, now_ns: int, *, silent: bool = False) -> None:
        """An heir is gone. The view keeps its number: whoever it was must be able to open a higher one."""
        self.member.recorder.record(HeirGone(name))
        heirs = tuple(heir for heir in self.member.view.heirs if heir != name)
        self.member.set_view(View(self.member.view.number, self.member.name, heirs), now_ns)
        self.member.event("lost heir", {"view": self.member.view.number, "lost": name})
        self._calm_ns = now_ns + self.member.group.silence_ns
        self.contest.begin(now_ns, silent=silent)

    def _go_on(self, now_ns: int) -> None:
        """Without the heirs that were lost. If one of them had the copies, another gets them."""
        backup, heirs = self.member.broker.core.board.backup, self.member.view.heirs
        if isinstance(backup, Peer) and backup.state.name not in heirs:
            self._copying = None
            self.member.broker.core.set_backup(None)
            heir = self.member.peers.link_to(heirs[0]) if heirs else None
            if heir is None:
                self.member.event("unprotected", {"view": self.member.view.number})
            else:
                self.member.set_view(View(self.member.view.number, self.member.name, heirs[1:]), now_ns)
                self._protect_with(heir)
        self._take_in_others(now_ns)

    def drop_backup(self, why: str) -> None:
        backup = self.member.broker.core.board.backup
        self.member.broker.core.backup_lags = False
        if isinstance(backup, Peer):
            self.member.peers.send(backup, Drop(why))
            self.member.event("dropped backup", {"peer": backup.state.name, "why": why})
            self.member.peers.close(backup)
            self.member.peer_ended(backup, self.member.turned_ns)

    def record_retained(self) -> None:
        record_retained(self.member.broker, self.member.recorder)

    def tell_the_rest(self) -> None:
        """Before this broker ends."""
        self.record_retained()
        self.tell_increments()

    def tell_increments(self) -> None:
        unsent = self.member.recorder.take_unsent()
        if not unsent:
            return
        word = State(self.member.log.epoch, self.member.log.number - len(unsent) + 1, unsent)
        for peer in self.member.peers.greeted():
            if peer.state.follows:
                self.member.peers.send(peer, word)
