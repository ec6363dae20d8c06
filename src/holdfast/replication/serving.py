"""What a primary does for its backups: increments, snapshots, copies of what they lack.

Laws:
- a member is an heir from the moment it has the state and every message that waits, not before
- an heir that is lost leaves the view under its number, and for `silence` no other view is opened: whoever it
  was must be able to open a higher one, and be heard of
- clients hear of a view when its heirs know of its number: whichever of them serves next has a higher one
- a view protects when each of its heirs has repeated it: all of them know who comes after whom
- what waited for a backup that is gone waits for the next heir, if there is one, and else for the contest
- when an heir fell silent, the others count for depth once they have answered since: this broker may be the
  one that is cut off, and who fell silent the one that takes over; nor does what they said before that make
  this broker open a view above another's
- without an arbiter, a member that followed this broker and never had its messages opens a view only because
  it hears nobody: this broker does not yield to it, and opens a higher one
- a snapshot and the copies that a new backup lacks go piece by piece, between messages
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.replication.contest import Contest
from holdfast.replication.group import MEMBERS_MAX
from holdfast.replication.increments import HeirGone, state_size
from holdfast.replication.messages import Ask, Drop, Snapshot
from holdfast.replication.peer import Peer
from holdfast.replication.peers import PeerState
from holdfast.replication.recording import record_retained
from holdfast.replication.roles import Role
from holdfast.replication.silence import OFTEN
from holdfast.replication.transfers import HealingTransfer, SnapshotTransfer, state_words
from holdfast.replication.views import View

if TYPE_CHECKING:
    from holdfast.replication.member import Member

SESSIONS_COPIED_PER_TURN = 50
HISTORY_FACTOR = (
    2  # who has nothing is told the history of a state, unless that is so much longer than the state
)
WAITING_BYTES_MAX = 2**20  # on the way to a member that is being brought up to date: then it takes some first


def has_room(peer: Peer) -> bool:
    return peer.output_size <= WAITING_BYTES_MAX


class Serving:
    def __init__(self, member: Member) -> None:
        self.member = member
        self._snapshots: dict[Peer, SnapshotTransfer | HealingTransfer] = {}  # those who are not up to date
        self._copying: Iterator[str] | None = None
        self._copying_next = ""  # whose messages are not all copied yet
        self._copied_ns: int | None = None  # when all copies had been put on their way to a new backup
        self.protected_by: tuple[str, ...] = ()  # heirs that know that they are
        self._untold = False  # of this view the clients do not know yet
        self._calm_ns = 0  # until then an heir that was lost may open a view of its own
        self._silent_ns = -1  # when an heir fell silent last
        self._asked: set[int] = set()  # members that followed this broker since it serves
        self._custodian = (
            -1
        )  # the one that was its first heir last, and may have taken over with its messages
        self.contest = Contest(member, go_on=self._go_on, opened=self._take_in_others)
        member.core.mark(copied=True)

    def stop(self) -> None:
        """This broker serves no more: what it had not delivered is the new primary's to deliver."""
        self.member.broker.core.forget_jobs()  # first: what waited for an heir is not let go for its want
        self.contest.stop()
        self.member.broker.core.topics.forget_publishers()
        for session in self.member.broker.clients.sessions.values():
            session.clear()
        self.member.broker.core.retained_log = None
        self.member.broker.core.set_backup(None)
        self._snapshots.clear()
        self._copying = self._copied_ns = None
        self._calm_ns, self._silent_ns = 0, -1
        self._untold, self.protected_by = False, ()
        self._asked, self._custodian = set(), -1
        self.member.peers.forget_followers()

    def lost(self, peer: Peer, now_ns: int, *, silent: bool = False) -> None:
        self._snapshots.pop(peer, None)
        if not peer.state.follows:
            return
        if silent:
            self._silent_ns = now_ns
        newer = self.member.peers.link_to(peer.state.name)
        still_there = newer is not None and newer is not peer and newer.state.follows
        if not still_there:
            self.contest.withdraw(peer.state.name)
        if self.member.broker.core.board.backup is peer:
            self.member.broker.core.backup_gone = True
        if peer.state.name in self.member.view.heirs and not still_there:
            self.without(peer.state.name, now_ns, silent=silent)
        elif self.member.broker.core.board.backup is peer:
            self._copying = self._copied_ns = None
            self.contest.begin(now_ns, silent=silent)

    def replicas(self) -> list[int]:
        """How much of the state those have who would take over, the next one first."""
        return [self._has(self.member.peers.link_to(name)) for name in self.member.view.heirs]

    def coming(self) -> list[int]:
        """The same of the one that is being given the messages that wait, to be the next heir."""
        backup = self.member.broker.core.board.backup
        return [self._has(backup)] if isinstance(backup, Peer) and self._giving else []

    def _has(self, link: Peer | None) -> int:
        answers = link is not None and link.state.heard_us_ns > self._silent_ns
        return link.state.has if link is not None and answers else -1

    @property
    def holding(self) -> bool:
        return self.contest.holding

    def followers(self) -> int:
        """How many members have the state, or are about to."""
        return sum(peer.state.follows for peer in self.member.peers.greeted())

    def asked(self, peer: Peer, ask: Ask, now_ns: int) -> None:
        """A member follows us: it gets the increments it lacks, or everything."""
        if self.member.role is not Role.PRIMARY:
            return
        state: PeerState = peer.state
        self.tell_increments()
        state.follows, state.has = True, ask.number
        self._asked.add(state.index)
        if ask.number == 0 and state.index == self._custodian:
            self._custodian = -1  # it has started again, and has nothing
        if self.member.broker.core.board.backup is peer:
            self._copying = self._copied_ns = None  # it may have none of what it was given: it gets all again
        if state.name in self.member.view.heirs:
            self.without(state.name, now_ns)
        log = self.member.log
        too_long = ask.number == 0 and log.number > HISTORY_FACTOR * state_size(self.member.broker)
        if too_long or log.life_in(ask.epoch) != ask.life:
            self._begin_snapshot(peer)
        else:
            self._snapshots[peer] = HealingTransfer(ask.epoch, ask.number)
            self._send_piece(peer)

    def bring_up_to_date(self, now_ns: int) -> bool:
        """A part of each snapshot that is on its way, and of the messages that a new backup lacks."""
        if self.member.role is not Role.PRIMARY:
            return False
        if self._untold:
            self.announce(now_ns)
        for peer in list(self._snapshots):
            if has_room(peer):
                self._send_piece(peer)
        if self._copying is not None:
            self._copy_some(now_ns)
        if self._copied_ns is not None:
            self._add_when_it_has_them(now_ns)
        self.contest.settle(now_ns)
        calm = now_ns >= self._calm_ns
        if calm and self._calm_ns:
            self._calm_ns = 0
        if calm and not self.contest.proposing:
            self._take_in_others(now_ns)
            self._prefer_steadier()
        backup = self.member.broker.core.board.backup
        copying = self._copying is not None and isinstance(backup, Peer) and has_room(backup)
        return copying or any(has_room(peer) for peer in self._snapshots)

    def _send_piece(self, peer: Peer) -> None:
        """The next word for a member that is not up to date."""
        self.tell_increments()
        word = self._snapshots[peer].next_word(self.member.log)
        if word is None:
            self._begin_snapshot(peer)
            return
        if word.last:
            del self._snapshots[peer]
        self.member.peers.send(peer, word)

    def _begin_snapshot(self, peer: Peer) -> None:
        self._snapshots[peer] = SnapshotTransfer(self.member.broker)
        self.member.peers.send(peer, Snapshot([], first=True))

    def has(self, peer: Peer, number: int, now_ns: int) -> None:
        state: PeerState = peer.state
        state.has = number
        if self.member.role is not Role.PRIMARY or not state.follows or peer in self._snapshots:
            return
        if self.contest.holding or self.contest.proposing or self.member.peers.unsettled(peer, now_ns):
            return
        if state.name not in self.member.view.heirs and not self._giving:
            if not self.member.view.heirs:
                self._protect_with(peer)
            elif now_ns >= self._calm_ns:
                self._add(state.name, now_ns)

    def _protect_with(self, peer: Peer) -> None:
        """Copies go to this member from now on; what it lacks follows piece by piece."""
        self.member.way.forget()
        if peer.state.index == self._custodian:
            self._custodian = -1  # until it has all of them again
        self.member.broker.core.set_backup(peer)
        self.member.broker.core.copy_queued()
        self._copying = iter(list(self.member.broker.clients.sessions))
        self._copying_next = ""
        self._copied_ns = None

    @property
    def _giving(self) -> bool:
        """A new backup is being given the messages that wait."""
        return self._copying is not None or self._copied_ns is not None

    def _copy_some(self, now_ns: int) -> None:
        backup = self.member.broker.core.board.backup
        assert self._copying is not None
        assert isinstance(backup, Peer)
        for _ in range(SESSIONS_COPIED_PER_TURN):
            if not has_room(backup):
                return
            key = self._copying_next or next(self._copying, "")
            if not key:
                self._copying, self._copied_ns = None, now_ns
                return
            session = self.member.broker.clients.sessions.get(key)
            all_copied = session is None or self.member.broker.core.copy_held(session, WAITING_BYTES_MAX)
            self._copying_next = "" if all_copied else key

    def _add_when_it_has_them(self, now_ns: int) -> None:
        """What echoes a beat that was sent behind the copies has got the copies."""
        backup = self.member.broker.core.board.backup
        assert isinstance(backup, Peer)
        assert self._copied_ns is not None
        if backup.state.heard_us_ns > self._copied_ns and now_ns >= self._calm_ns:
            self._copied_ns = None
            self._add(backup.state.name, now_ns, first=True)

    def _add(self, name: str, now_ns: int, *, first: bool = False) -> None:
        """A member is up to date: it is an heir, in a new view; the first, if it has the copies."""
        others = self.member.view.heirs
        self.contest.propose((name, *others) if first else (*others, name), now_ns)

    def opened(self, now_ns: int) -> None:
        """The view is another."""
        self._untold = True
        self.announce(now_ns)

    def repeated(self, peer: Peer, view: View, now_ns: int) -> None:
        """A member knows that view of ours."""
        peer.state.knows = view
        self.announce(now_ns)

    def announce(self, now_ns: int) -> None:
        """Tells clients of the view once all its heirs know of its number, and everybody that this broker is
        protected once they know who comes after whom."""
        view, before = self.member.view, self.protected_by
        backup = self.member.broker.core.board.backup
        if isinstance(backup, Peer) and (backup.state.name,) == view.heirs[:1] and not self._giving:
            self._custodian = backup.state.index
        links = [self.member.peers.link_to(name) for name in view.heirs]
        if self._untold and all(link is None or link.state.view >= view.number for link in links):
            self._untold = False
            self.member.tell_clients()
        if any(link is None or link.state.knows != view for link in links):
            self.protected_by = tuple(name for name in before if name in view.heirs)
            return
        self.protected_by = view.heirs
        if before and not view.heirs:
            self.member.event("unprotected", {"view": view.number})
        elif set(view.heirs) - set(before):
            self.member.event("protected", {"view": view.number, "heirs": ", ".join(view.heirs)})
            self.member.broker.timers.at(now_ns, self.member.broker.system_topics.publish_more)

    def outgrow(self, state: PeerState, now_ns: int) -> bool:
        """A member that does not serve knows a higher view than ours. If nobody but it, or we, could have
        opened that, nobody serves in it: we open a higher one, and keep what we have. Says whether so."""
        member, owner = self.member, state.view % MEMBERS_MAX
        if (
            member.role is not Role.PRIMARY
            or state.view <= member.view_max
            or state.role in (Role.PRIMARY, Role.CLAIMING)
            or owner not in (state.index, member.index)
        ):
            return False
        if state.heard_us_ns <= self._silent_ns:
            return True  # it was said before that, and somebody may have taken over since
        self.open_above(state.view, now_ns)
        return True

    def outranks(self, index: int) -> bool:
        """Whether this broker serves, and what that member opens is opened only for want of hearing it."""
        serves = self.member.role is Role.PRIMARY and not self.member.group.zookeeper
        return serves and index in self._asked and index != self._custodian

    def open_above(self, number: int, now_ns: int) -> None:
        """A higher view than that one, with everything that we have."""
        self.member.view_max = max(self.member.view_max, number)
        self.contest.outbid(now_ns)

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
        self._calm_ns = now_ns + self.member.silence.ns
        self.contest.begin(now_ns, silent=silent)

    def _go_on(self, now_ns: int) -> None:
        """Without the heirs that were lost. If one of them had the copies, another gets them."""
        backup, heirs = self.member.broker.core.board.backup, self.member.view.heirs
        if isinstance(backup, Peer) and backup.state.name not in heirs:
            self._copying = self._copied_ns = None
            heir = self.member.peers.link_to(heirs[0]) if heirs else None
            if heirs and heir is None:
                return  # it is about to be lost too
            if heir is None:
                self.member.broker.core.set_backup(None)
            else:
                self.member.set_view(View(self.member.view.number, self.member.name, heirs[1:]), now_ns)
                self._protect_with(heir)
        self._take_in_others(now_ns)

    def _prefer_steadier(self) -> None:
        """A first heir that stands still often makes way for one that does not, and joins again behind it."""
        heirs = self.member.view.heirs
        if len(heirs) < 2 or self.protected_by != heirs or self._giving or self.contest.holding:
            return
        links = [self.member.peers.link_to(name) for name in heirs]
        stalls = [0 if link is None else link.state.stalls for link in links]
        if None not in links and stalls[0] >= OFTEN and min(stalls[1:]) == 0:
            self.drop_backup("it stands still often, and another heir does not")

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
        self.member.core.tell_the_rest()

    def tell_increments(self) -> None:
        unsent = self.member.recorder.take_unsent()
        if not unsent:
            return
        log = self.member.log
        behind = {peer for peer, transfer in self._snapshots.items() if not transfer.live}
        told = [each for each in self.member.peers.greeted() if each.state.follows and each not in behind]
        for word in state_words(log.epoch, log.number - len(unsent) + 1, unsent) if told else ():
            for peer in told:
                self.member.peers.send(peer, word)
