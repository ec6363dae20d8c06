"""What a backup does with what its primary tells it: views, increments, snapshots.

Laws:
- increments are taken without a gap; a gap is asked for, and healed by increments or a snapshot
- words of a broker that is not followed change nothing
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.replication.increments import apply, wipe
from holdfast.replication.messages import Ask, Has, Snapshot, State, ViewIs
from holdfast.replication.peer import Peer
from holdfast.replication.roles import Happening, Role
from holdfast.replication.views import View

if TYPE_CHECKING:
    from holdfast.replication.member import Member


class Following:
    def __init__(self, member: Member) -> None:
        self.member = member
        self._in_snapshot = False
        self.partial = False  # of what was wiped for a snapshot, not all has come

    def begin(self, peer: Peer) -> None:
        """Asks a primary for what we lack."""
        self._in_snapshot = False
        self.member.buffer.clear()
        for other in self.member.peers.all():
            other.buffer = None
        peer.buffer = self.member.buffer
        self.member.peers.send(peer, Ask(self.member.log.epoch, self.member.log.number))

    def view_is(self, peer: Peer, word: ViewIs, now_ns: int) -> None:
        if word.number < self.member.view_max or word.primary != peer.state.name:
            return
        self.member.told(peer, Role.PRIMARY, word.number, now_ns)
        if self.member.follows(peer):
            self.member.view = View(word.number, word.primary, word.heirs)
            self.member.view_max = max(self.member.view_max, word.number)
            self.member.tell_clients()
            if self.member.name in word.heirs:
                self.member.entitled = word.number
                self.member.happen(Happening.SYNCED, now_ns)
            elif self.member.role is Role.BACKUP:
                self.member.role = Role.SYNCING

    def state(self, peer: Peer, word: State, now_ns: int) -> None:
        if not self.member.follows(peer):
            return
        if not self._in_snapshot and (word.epoch, word.first) != (
            self.member.log.epoch,
            self.member.log.number + 1,
        ):
            self.member.event("gap", {"have": self.member.log.number, "came": word.first})
            self.member.peers.send(peer, Ask(self.member.log.epoch, self.member.log.number))
            return
        for increment in word.increments:
            apply(self.member.broker, increment, now_ns)
            if not self._in_snapshot:
                self.member.log.append(increment)
        if not self._in_snapshot:
            self.member.peers.send(peer, Has(self.member.log.number))

    def snapshot(self, peer: Peer, word: Snapshot, now_ns: int) -> None:
        if not self.member.follows(peer):
            return
        if word.first:
            self._in_snapshot = self.partial = True
            self.member.log.become(0, 0)  # a part of a state is none
            wipe(self.member.broker, now_ns)
        for increment in word.increments:
            apply(self.member.broker, increment, now_ns)
        if word.last and not self._in_snapshot:
            self._healed(word)
        elif word.last:
            self._in_snapshot = self.partial = False
            self.member.log.become(word.epoch, word.number)
        if word.last:
            self.member.peers.send(peer, Has(self.member.log.number))

    def _healed(self, word: Snapshot) -> None:
        """Increments closed a gap: the log goes on with them."""
        for increment in word.increments:
            self.member.log.append(increment)
        self.member.log.rename(word.epoch)
