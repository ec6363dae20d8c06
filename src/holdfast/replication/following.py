"""What a backup does with what its primary tells it: views, increments, snapshots.

Laws:
- increments are taken without a gap, each once; a gap is asked for, and healed by increments or a snapshot
- the log names no state that is not there: while a snapshot comes it names none
- words of a broker that is not followed change nothing
- words may be read behind copies that were written behind them: what a copy says of its topic stands then
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.replication.increments import Increment, RetainedNow, apply, wipe
from holdfast.replication.messages import Ask, Has, Healing, Snapshot, State, ViewIs
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
        if self.partial:
            wipe(self.member.broker, self.member.turned_ns)
        for other in self.member.peers.all():
            other.buffer = None
        peer.buffer = self.member.buffer
        peer.buffer.fed = False
        self._ask(peer)

    def _ask(self, peer: Peer) -> None:
        log = self.member.log
        self.member.peers.send(peer, Ask(log.epoch, log.number, log.life))

    def view_is(self, peer: Peer, word: ViewIs, now_ns: int) -> None:
        if word.primary == self.member.name:
            self.member.serving.repeated(peer, View(word.number, word.primary, word.heirs), now_ns)
            return
        if word.primary != peer.state.name or not self.member.stands(peer.state.index, word.number):
            return
        self.member.told(peer, Role.PRIMARY, word.number, now_ns)
        if self.member.follows(peer):
            self.member.view = View(word.number, word.primary, word.heirs)
            self.member.view_max = max(self.member.view_max, word.number)
            self.member.tell_clients()
            if self.member.name in word.heirs:
                self.member.entitled, self.member.entitled_by = word.number, word.primary
                self.member.log.behind = False
                self.member.peers.send(peer, word)
                if word.heirs[0] != self.member.name:
                    if not self.member.buffer.fed:  # else copies come to us since that was said
                        self.member.buffer.clear()  # the first heir has them
                elif self.member.buffer.fed:
                    self.member.buffer.custody = True
                self.member.happen(Happening.SYNCED, now_ns)
            elif self.member.role is Role.BACKUP:
                self.member.role = Role.SYNCING

    def heard(self, peer: Peer, word: State | Snapshot | Healing, now_ns: int) -> None:
        if not self.member.follows(peer):
            return
        match word:
            case State():
                self._state(peer, word, now_ns)
            case Snapshot():
                self._snapshot(peer, word, now_ns)
            case Healing():
                self._healing(peer, word, now_ns)

    def _apply(self, increment: Increment, now_ns: int) -> None:
        copied = self.member.buffer.retained
        if isinstance(increment, RetainedNow) and increment.topic in copied:
            told = increment.upto if increment.message is None else increment.message[0]
            if told < copied[increment.topic]:
                return
            del copied[increment.topic]
        apply(self.member.broker, increment, now_ns)

    def _state(self, peer: Peer, word: State, now_ns: int) -> None:
        if not self._in_snapshot and (word.epoch, word.first) != (
            self.member.log.epoch,
            self.member.log.number + 1,
        ):
            self._ask_again(peer, word.first)
            return
        for increment in word.increments:
            self._apply(increment, now_ns)
            if not self._in_snapshot:
                self.member.log.append(increment)
        if not self._in_snapshot:
            self.member.peers.send(peer, Has(self.member.log.number))

    def _snapshot(self, peer: Peer, word: Snapshot, now_ns: int) -> None:
        if word.first:
            self._in_snapshot = self.partial = True
            self.member.log.become(0, 0)  # a part of a state is none
            self.member.buffer.retained.clear()
            wipe(self.member.broker, now_ns)
        elif not self._in_snapshot:
            return  # of one that was asked for before
        for increment in word.increments:
            self._apply(increment, now_ns)
        if word.last:
            self._in_snapshot = self.partial = False
            self.member.log.become(word.epoch, word.number, word.life)
            self.member.peers.send(peer, Has(word.number))

    def _healing(self, peer: Peer, word: Healing, now_ns: int) -> None:
        """Increments close a gap: the log goes on with them. Some may be known, from an earlier answer."""
        log, first = self.member.log, word.number - len(word.increments) + 1
        if self._in_snapshot or first > log.number + 1:
            self._ask_again(peer, first)
            return
        for increment in word.increments[log.number + 1 - first :]:
            self._apply(increment, now_ns)
            log.append(increment)
        if word.epoch > log.epoch and word.number == log.number:
            log.rename(word.epoch, word.life)
        if word.last:
            self.partial = False
            self.member.peers.send(peer, Has(log.number))

    def _ask_again(self, peer: Peer, came: int) -> None:
        self._in_snapshot = False
        self.member.event("gap", {"have": self.member.log.number, "came": came})
        self._ask(peer)
