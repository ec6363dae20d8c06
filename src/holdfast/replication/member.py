"""One broker of a group, pure: it serves, or it protects the one that does.

    open(...)           a client came            accept_peer(...), dialed(...)   another member
    wire.feed(...)      bytes came               lost(wire)                      a connection ended
    turn(now, wall)     a bounded piece of everything that waits; messages go before the group's own work
    board.take_ready()  the wires that have something to write, those to other members first

Laws:
- one primary for each view, and views only grow: see views.py
- a primary that hears of a higher view steps down; nobody follows a lower one
- what the group needs to do never holds up a message by more than one bounded piece
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.broker.broker import Broker, Event, ignore
from holdfast.broker.connection import Connection
from holdfast.broker.core import Core
from holdfast.broker.link import Inbox, Wire
from holdfast.broker.subscriptions import Subscription
from holdfast.contract.model import ContractBook
from holdfast.replication.absence import Absence
from holdfast.replication.buffer import BackupBuffer
from holdfast.replication.candidacy import Candidacy
from holdfast.replication.doubt import Doubt, ask_heir, is_unheard, slept_ns, suspect, wake
from holdfast.replication.following import Following
from holdfast.replication.group import MEMBERS_MAX, GroupConfig, Switches
from holdfast.replication.handshake import Secret
from holdfast.replication.hearing import GREETING_WORDS, hear, listen
from holdfast.replication.increments import StateLog, life_of
from holdfast.replication.measures import History, WayMeter, group_figures
from holdfast.replication.messages import (
    PROTOCOL,
    Ask,
    Beat,
    Bye,
    Drop,
    Has,
    Healing,
    Hello,
    Refusal,
    Right,
    Snapshot,
    State,
    ViewIs,
    Word,
    Worth,
    digest_of,
)
from holdfast.replication.peer import Peer
from holdfast.replication.peers import GREETING_NS_MAX, Peers, PeerState
from holdfast.replication.promotion import promote, step_down
from holdfast.replication.recording import GroupRecorder
from holdfast.replication.roles import Action, Happening, Role, step
from holdfast.replication.serving import Serving
from holdfast.replication.sharing import Sharing
from holdfast.replication.silence import Silence, watch
from holdfast.replication.standby import Door
from holdfast.replication.views import NO_VIEW, Claim, Standing, View, note_of

NEVER_NS = 2**62
USUAL = Switches()


class Member:
    def __init__(
        self,
        book: ContractBook,
        group: GroupConfig,
        name: str,
        *,
        policy: str = "edf",
        seed: int,
        now_ns: int,
        event: Event = ignore,
        switches: Switches = USUAL,
        secret: Secret | None = None,
    ) -> None:
        self.group = group
        self.name = name
        self.event = event
        self.broker = Broker(book, policy=policy, seed=seed, now_ns=now_ns, event=event)
        self.broker.name = name
        self.role = Role.JOINING
        self.life = life_of(seed)  # this process, among all that had its name
        self.view = View()
        self.claims: list[Claim] = []  # to put to the arbiter
        self.failover_ns: int | None = None  # from the primary's last sign to the new view, last time
        self.failover_max_ns: int | None = None  # the longest of these so far
        self.history = History()
        self.again = 0  # messages that were dispatched again, last time
        self.sharing = Sharing(list, lambda tags: None)  # nothing, until somebody puts another in
        self.doubt: Doubt | None = None
        self.index = group.index_of(name)
        self.published_max = 0
        self._due_ns = now_ns
        self._looked = True  # around, since it was asked whom to dial
        self.view_max = 0  # the highest view anybody told of
        self.entitled = 0  # the last view that we served, or were an heir in: our state is that or newer
        self.recalled_of = NO_VIEW  # whose messages a journal brought back
        self.entitled_by = ""  # who served then, if that was since we started
        self.used_max = 0  # numbers up to this one may have been ours before a crash
        self.turned_ns = now_ns
        self.silence = Silence(group, book)
        self.expected_ns = now_ns  # when the next turn was due, at the end of the last
        self._digest = digest_of(book)
        self._start_core(book, switches)
        self.log = StateLog(book.limits.state_log_max, book.limits.state_log_bytes_max)
        self.peers = Peers(
            self.broker,
            group,
            name,
            self.silence,
            hello=self._hello,
            joining=lambda: self.role is Role.JOINING,
            event=event,
            secret=secret,
        )
        self.serving = Serving(self)
        self.following = Following(self)
        self.candidacy = Candidacy(self)
        self.candidacy.begin(now_ns)
        self.absence = Absence(self)
        self.recorder = GroupRecorder(self.log, self.serving, depth=group.depth, wait_ns=group.depth_wait_ns)
        self.broker.recorder = self.recorder
        self.broker.demanded = self._demanded
        self.broker.system_topics.more.append(lambda: group_figures(self))
        self.door = Door(self.broker, lambda: self.role is Role.PRIMARY, self.heard_of)
        self.tell_clients()

    def _start_core(self, book: ContractBook, switches: Switches) -> None:
        core, limits = self.broker.core, book.limits
        self._reckon_with(book)
        core.selective = switches.selective
        core.copy_first = switches.copy_first
        core.patience_ns = switches.patience_ns if switches.selective and not switches.copy_first else 0
        core.board.coordinated = switches.coordination
        self.buffer = BackupBuffer(
            core,
            per_topic_max=limits.copies_per_topic_max,
            messages_max=limits.buffer_messages_max,
            bytes_max=limits.buffer_bytes_max,
        )

    def _reckon_with(self, book: ContractBook) -> None:
        self.way = WayMeter(book.deployment.broker_to_backup_ns)
        self.core.to_backup_ns = self.way.used_ns
        self.silence.reckon_with(book)
        self.core.failover_ns = self.silence.x_ns

    def _demanded(self, subscription: Subscription) -> None:
        """A subscriber asks for more than contracts say: it may be that no failover can take as long now."""
        changed = False
        for contract in self.broker.contracts.touched_by(subscription.filter):
            changed |= self.silence.asked(contract, subscription.requirement)
        if changed:
            self.reckon_again()

    def reckon_again(self) -> None:
        """Another x: Proposition 1 is decided again for every topic."""
        if self.core.failover_ns != self.silence.x_ns:
            self.core.failover_ns = self.silence.x_ns
            self.core.topics.forget_everything()

    @property
    def core(self) -> Core:
        return self.broker.core

    @property
    def worth(self) -> Worth:
        custody = 2 if self.buffer.custody else int(self.recalled_of == self.entitled)
        return Worth(self.log.epoch, self.entitled, custody, self.log.weight)

    @property
    def has_messages(self) -> bool:
        """All that were acknowledged in the view that it is entitled to, as far as they are to outlive it."""
        return self.role is Role.PRIMARY or self.worth.custody > 0

    def count_refusal(self, reason: int, text: str, whose: Mapping[str, object] | None = None) -> None:
        self.broker.count_refusal(reason, text, whose)

    # Wires

    def open(self, inbox: Inbox | None, now_ns: int) -> Connection | None:
        return self.broker.open(inbox, now_ns)

    def accept_peer(self, inbox: Inbox | None, now_ns: int, address: str = "") -> Peer | None:
        """Somebody from there, who may be a member; None: too many have not said who they are."""
        self._due_ns = min(self._due_ns, now_ns + GREETING_NS_MAX + 1)
        return self.peers.accept(inbox, now_ns, address)

    def take_dials(self) -> list[str]:
        """Whom to dial, as far as this member looked around since it was asked last."""
        looked, self._looked = self._looked, False
        return self.peers.take_dials() if looked and not self.broker.draining else []

    def dialed(self, name: str, inbox: Inbox | None, now_ns: int) -> Peer:
        self._due_ns = now_ns
        return self.peers.dialed(inbox, now_ns, name)

    def undialable(self, name: str, now_ns: int) -> None:
        self.peers.undialable(name, now_ns)
        self.absence.look(now_ns)
        self._due_ns = now_ns

    def lost(self, wire: Wire, now_ns: int) -> None:
        if isinstance(wire, Connection):
            self.broker.lost(wire, now_ns)
        elif isinstance(wire, Peer):
            suspect(self, now_ns)  # it may have ended because this broker was taken for gone
            if wire.known:
                listen(self, now_ns)  # to its last words
            else:
                hear(self, wire, GREETING_WORDS, now_ns)
            self.peer_ended(wire, now_ns)

    def mistaken(self, wire: Wire, error: Exception, now_ns: int) -> None:
        if isinstance(wire, Connection):
            self.broker.mistaken(wire, error, now_ns)
        elif isinstance(wire, Peer):
            self.event("mistake", {"what": repr(error), "peer": str(wire.state)})
            self.peer_ended(wire, now_ns)

    # Work

    def turn(self, now_ns: int, wall_ns: int) -> bool:
        """Messages first, then what the members have to say to each other, then the time."""
        if self.broker.draining:
            return self.broker.turn(now_ns, wall_ns)
        self.recorder.now_ns = now_ns
        slept, self.turned_ns = slept_ns(self, now_ns), now_ns
        if slept > self.silence.least_ns // 2:
            wake(self, now_ns, slept)
        suspect(self, now_ns, slept)
        if self.role is Role.PRIMARY and not self.view.heirs:
            self._hear_of_others(now_ns)
        doubted = self.doubt is not None
        more = not doubted and self.broker.turn(now_ns, wall_ns)
        if self._stirred(now_ns):
            more |= self._work(now_ns)
            more |= doubted and self.doubt is None  # what clients sent meanwhile waits for a turn
        self.expected_ns = self._due_ns
        return more

    def deliver(self, now_ns: int, wall_ns: int) -> bool:
        """Messages alone, unless this broker slept, or has to look around before each of them."""
        if slept_ns(self, now_ns) > self.silence.least_ns // 2 or is_unheard(self, now_ns):
            return False
        alone = not self.view.heirs or self.doubt is not None or bool(self.core.retained_log)
        return not alone and self.broker.deliver(now_ns, wall_ns)

    def _hear_of_others(self, now_ns: int) -> None:
        """An heir that was lost may serve by now: better to learn it, from it or from a client that leaves,
        before a message is acknowledged that nobody else has."""
        if self.broker.core.board.stirred:
            listen(self, now_ns)
        if self.broker.core.control:
            self.broker.hear(now_ns)

    def _stirred(self, now_ns: int) -> bool:
        """Whether there is anything to do but messages."""
        core = self.broker.core
        return bool(
            core.board.stirred
            or now_ns >= self._due_ns
            or core.backup_lags
            or core.retained_log
            or self.recorder.unsent
        )

    def _work(self, now_ns: int) -> bool:
        """Everything that the group needs, a bounded piece of each."""
        self.broker.core.board.stirred = False
        self._looked = True
        more = listen(self, now_ns)
        if self.doubt is not None:
            ask_heir(self, self.doubt, now_ns)
        self.serving.record_retained()
        self._look_around(now_ns)
        more |= self.serving.bring_up_to_date(now_ns)
        self.serving.tell_increments()
        more |= self.sharing.turn(self.peers.send)
        self.recorder.settle(now_ns)
        self._due_ns = now_ns if more else self._next_work_ns()
        return more

    @property
    def next_ns(self) -> int | None:
        next_ns = None if self.doubt is not None else self.broker.next_ns  # which does nothing meanwhile
        return self._due_ns if next_ns is None else min(next_ns, self._due_ns)

    def _next_work_ns(self) -> int:
        times = [self.peers.next_ns, self.recorder.next_ns, self.absence.next_ns]
        times.append(self.serving.contest.next_ns)
        if self.role is Role.JOINING:
            times.append(self.candidacy.next_ns)
        if self.doubt is not None:
            times.append(self.doubt.since_ns + self.silence.ns)
        return min((time for time in times if time is not None), default=NEVER_NS)

    def heard(self, peer: Peer, word: Word, now_ns: int) -> None:
        match word:
            case Hello():
                self._greeted(peer, word, now_ns)
            case Beat():
                self.published_max = max(self.published_max, word.published)
                peer.state.heard_us_ns = word.echo_ns
                self._measure(peer)
                if self.follows(peer):
                    self.silence.told_ns = word.silence_ns
                self.history.was_alive(self, peer.state.name, word, now_ns)
                if word.asks:
                    self.peers.answer(peer, self._beat, now_ns)
                self.told(peer, word.role, word.view, now_ns)
                if self.follows(peer) and word.coming > self.view_max:
                    self.view_max = word.coming
                    self.beat(now_ns)
            case ViewIs():
                self.following.view_is(peer, word, now_ns)
            case Ask():
                self.serving.asked(peer, word, now_ns)
            case State() | Snapshot() | Healing():
                self.following.heard(peer, word, now_ns)
            case Has():
                self.serving.has(peer, word.number, now_ns)
            case Drop():
                self.event("dropped", {"by": peer.state.name, "why": word.why})
                if not self.group.zookeeper:
                    self.buffer.custody = False  # it goes on without us; an arbiter may decide otherwise
                self.peers.sighted(peer, word.why)
                self.peers.close(peer)
            case Bye():
                self.event("said goodbye", {"peer": peer.state.name})
                peer.state.said_bye = True
                self.peers.close(peer)
            case Right():
                self.sharing.learn(word.tags)
            case Refusal():
                self.event("refused by peer", {"peer": peer.state.name, "why": word.why})
                self.peers.sighted(peer, word.why)
                self.peers.close(peer)

    def _measure(self, peer: Peer) -> None:
        """Proposition 1 is decided again when the way to the backup is another."""
        way_ns = peer.state.way_ns
        if self.core.board.backup is peer and way_ns is not None and self.way.add(way_ns):
            self.core.to_backup_ns = self.way.used_ns
            self.core.topics.forget_everything()
            self.broker.timers.at(self.turned_ns, self.broker.system_topics.publish_more)
            self.event("way to backup", {"us": self.way.used_ns // 1000})

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL,
            group=self.group.name,
            contracts=self._digest,
            name=self.name,
            role=self.role,
            view=self._view_told,
            worth=self.worth,
        )

    @property
    def _view_told(self) -> int:
        """The view that we serve in, or else the highest that we know of."""
        return self.view.number if self.role is Role.PRIMARY else self.view_max

    def _greeted(self, peer: Peer, hello: Hello, now_ns: int) -> None:
        replaced: list[Peer] = []
        if peer.state.greeted:  # it has other contracts than before
            self.peers.compare(peer, hello.contracts, self._digest)
        elif not self.peers.greet(peer, hello, self._digest):
            self._turned_down(hello, now_ns)
            return
        else:
            replaced = self.peers.keep_one(peer)
            self.sharing.greeted(peer)
        if not peer.closing:
            self.told(peer, hello.role, hello.view, now_ns)
            peer.state.recall()
        for other in replaced:  # after what was told: perhaps that this broker serves no more
            self.peer_ended(other, now_ns)

    def _turned_down(self, hello: Hello, now_ns: int) -> None:
        """A member that cannot be one of ours now lives all the same, and may serve."""
        sighting = self.peers.sightings.get(hello.name)
        if sighting is None:
            return
        self.heard_of(hello.view, now_ns)
        if hello.role is Role.PRIMARY and self.stands(sighting.index, hello.view):
            self.happen(Happening.DROPPED, now_ns)

    def stands(self, index: int, view: int) -> bool:
        """Whether nobody serves in a later view than that member, as far as we know. A number of its own that
        it has only told of, and not opened yet, is none."""
        its_own = self.view_max % MEMBERS_MAX == index
        return view >= (self.view.number if its_own else self.view_max)

    def told(self, peer: Peer, role: Role, view: int, now_ns: int) -> None:
        """A member says what it is."""
        state: PeerState = peer.state
        state.role, state.view = role, view
        if self.follows(peer):
            self.view_max = max(self.view_max, view)
            if role is not Role.PRIMARY:
                self.happen(Happening.DROPPED, now_ns)
        elif role is Role.PRIMARY and self.stands(state.index, view):
            if self.serving.outranks(state.index):
                self.serving.open_above(view, now_ns)
            elif not self.peers.unsettled(peer, now_ns):  # or else its next beat says the same
                self.view_max = max(self.view_max, view)
                self.happen(Happening.PRIMARY_FOUND, now_ns, peer)
        elif view == self.serving.contest.coming:  # it knows of the view that is to be opened
            self._due_ns = now_ns
        elif not self.serving.outgrow(state, now_ns):
            self.heard_of(view, now_ns)

    def heard_of(self, number: int, now_ns: int | None = None) -> None:
        """Somebody, perhaps a client, knows that view."""
        if number > self.view_max:
            self.view_max = number
            if self.serving.outranks(number % MEMBERS_MAX):
                self.serving.open_above(number, self.turned_ns if now_ns is None else now_ns)
            elif self.role is Role.PRIMARY and number > self.view.number:
                self.happen(Happening.HIGHER_VIEW, self.turned_ns if now_ns is None else now_ns)

    def overruled(self, number: int, now_ns: int) -> None:
        """The arbiter gave a view above ours to another, whether that was known here or not."""
        self.view_max = max(self.view_max, number)
        self.happen(Happening.HIGHER_VIEW, now_ns)

    # Roles

    def happen(self, happening: Happening, now_ns: int, peer: Peer | None = None) -> None:
        found = step(self.role, happening)
        if found is None:
            return
        self._due_ns = now_ns
        action, role = found
        before, self.role = self.role, role
        self.history.changed(self, before, happening)
        self.event("role", {"was": before.value, "is": role.value, "because": happening.value})
        match action:
            case Action.FOLLOW:
                assert peer is not None
                self._follow(peer)
            case Action.CLAIM:
                self.candidacy.claim(now_ns)
            case Action.PROMOTE:
                promote(self, now_ns)
            case Action.STEP_DOWN:
                step_down(self, now_ns, peer)
                if peer is not None:
                    self.happen(happening, now_ns, peer)
            case Action.REJOIN:
                self.rejoin(now_ns)
        if before is not role:
            self.beat(now_ns)

    def share(self, tag: bytes) -> None:
        """A password was right: the others may know."""
        self.sharing.add(tag)
        self._due_ns = 0

    def confirm(self) -> None:
        """The journal has more of the copies than before: the primary may know."""
        for peer in self.peers.all():
            if self.follows(peer):
                peer.confirm()

    def follows(self, peer: Peer) -> bool:
        return self.role in (Role.SYNCING, Role.BACKUP) and peer.buffer is not None

    def _follow(self, peer: Peer) -> None:
        self.view = View(peer.state.view, peer.state.name)
        self.absence.end()
        self.absence.last_sign_ns = None
        self.following.begin(peer)
        self.tell_clients()

    def rejoin(self, now_ns: int) -> None:
        """Looks for a primary; the copies stay, should nobody else have them."""
        self.silence.told_ns = 0
        self.candidacy.begin(now_ns)
        self.absence.end()
        for peer in self.peers.all():
            peer.buffer = None

    def claimed(
        self, number: int, won: bool | None, now_ns: int, *, standing: Standing | None = None, why: str = ""
    ) -> None:
        """The arbiter's answer; None: it gave none. `standing` is the view that it knows."""
        self._due_ns = now_ns
        if self.role is Role.CLAIMING:
            self.candidacy.answered(number, won, standing, why, now_ns)
        else:
            self.serving.contest.answered(number, won, standing, why, now_ns)

    def set_view(self, view: View, now_ns: int) -> None:
        """The primary tells everybody who serves and who takes over."""
        self.view = view
        self.view_max = max(self.view_max, view.number)
        self.entitled, self.entitled_by, self.log.behind = view.number, view.primary, False
        self.broker.timers.at(now_ns, self.broker.system_topics.publish_more)
        for peer in self.peers.greeted():
            self.peers.send(peer, ViewIs(view.number, view.primary, view.heirs))
        self.serving.opened(now_ns)

    def tell_clients(self) -> None:
        self.broker.announce(note_of(self.view, self.group, self.name))

    # The time

    def _look_around(self, now_ns: int) -> None:
        self.peers.look_around(self._beat, now_ns)
        watch(self, now_ns)
        for peer in self.peers.silent(now_ns):
            self._silent(peer, now_ns)
        if self.role is Role.JOINING and self.candidacy.is_first(now_ns):
            self.happen(Happening.ALONE, now_ns)
        self.absence.look(now_ns)
        self.serving.contest.look_around(now_ns)
        if self.broker.core.backup_lags and not self.serving.contest.holding:
            self.serving.drop_backup("it does not take its copies as fast as they come")

    def beat(self, now_ns: int) -> None:
        """Tells everybody at once what we are."""
        self.peers.beat(self._beat, now_ns)

    def _beat(self, peer: Peer, now_ns: int) -> Beat:
        state: PeerState = peer.state
        return Beat(
            role=self.role,
            view=self._view_told,
            worth=self.worth,
            published=self.broker.core.number,
            sent_ns=now_ns,
            echo_ns=state.echo_ns,
            held_ns=now_ns - state.echo_heard_ns,
            coming=self.serving.contest.coming,
            asks=self.doubt is not None,
            silence_ns=self.silence.ns if self.role is Role.PRIMARY else 0,
            stalls=len(self.silence.own),
            stalled_ns=self.silence.own.longest_ns,
            stood_ns=self.silence.own.last_ns,
            gap_ns=self.silence.gaps.longest_ns,
            woke_ns=now_ns - self.silence.own.last_at_ns,
        )

    def _silent(self, peer: Peer, now_ns: int) -> None:
        """Nothing was heard of a member for too long. It is told what follows, should it wake."""
        self.event("silent", {"peer": peer.state.name, "for_ms": (now_ns - peer.heard_ns) // 1_000_000})
        if self.role is Role.PRIMARY and peer.state.follows:
            self.peers.send(peer, Drop("nothing was heard of it for too long"))
            self.serving.lost(peer, now_ns, silent=True)
        elif self.follows(peer):
            self.absence.begin(peer, now_ns)
            self.absence.look(now_ns)
            if self.view.primary == self.name:
                self.peers.send(peer, ViewIs(self.view.number, self.view.primary, self.view.heirs))

    def peer_ended(self, peer: Peer, now_ns: int) -> None:
        """The connection to another member, or of a stranger, is over."""
        if not peer.known:
            self.peers.forget(peer, now_ns)
            return
        self._due_ns = now_ns
        follows = self.follows(peer)
        if not self.peers.forget(peer, now_ns) or self.broker.draining:
            return
        if follows:
            self.absence.begin(peer, now_ns)
            if not peer.state.said_bye and self.role is Role.BACKUP:
                self.peers.dial_now(peer.state.name)  # a connection may end though its other end lives
        if self.role is Role.PRIMARY and self.doubt is not None:
            self.doubt.lost(self.peers, peer)
        elif self.role is Role.PRIMARY:
            self.serving.lost(peer, now_ns)
        self.absence.look(now_ns)

    # The end, and a new beginning

    def reload(self, book: ContractBook) -> None:
        """New contracts. Members that protect each other go on, and say so until all have them."""
        self._reckon_with(book)
        self.broker.reload(book)
        self._digest = digest_of(book)
        for peer in self.peers.greeted():
            self.peers.compare(peer, peer.state.contracts, self._digest)
            self.peers.send(peer, self._hello())

    def drain(self, now_ns: int) -> None:
        """Says goodbye to the clients, then to the members, so that an heir takes over at once."""
        if self.role is Role.PRIMARY and self.view.heirs:
            self.broker.referral = self.group.member(self.view.heirs[0]).place.address
        self.broker.drain(now_ns)
        self.serving.tell_the_rest()
        self.peers.say_goodbye()
