"""The connections of a member to the others: who dials whom, who is who, who is silent.

Laws:
- of two members the one that stands later in the order dials; one that looks for a primary dials everybody.
  Where that makes two connections, the one that the later member dialed stays
- nobody is listened to before it has said who it is, under the same protocol, group and contracts; in a group
  with a secret, nobody says or hears that before it has proven that it knows the secret
- strangers are few, say little, and have little time; they do not crowd out those whom we dialed ourselves,
  nor members that are about to say who they are (waiting.py). Whatever is done for members costs the same,
  however many strangers there are
- who is refused, or refuses us, lives: that it was seen is remembered for a while, with what it said it is
- nobody waits for a word of ours for longer than a heartbeat, whatever was written before
- a member that is not heard of for `silence` is taken for gone; its connection stays for a while, so that it
  learns what it missed, should it wake
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from msgspec import Struct

from holdfast.broker.broker import Broker, Event
from holdfast.broker.link import Inbox
from holdfast.replication.group import GroupConfig
from holdfast.replication.handshake import Handshake, Secret
from holdfast.replication.messages import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    Beat,
    Bye,
    Challenge,
    Hello,
    Proof,
    Refusal,
    Word,
    Worth,
    decode_word,
    encode_word,
)
from holdfast.replication.peer import Peer
from holdfast.replication.roles import Role
from holdfast.replication.silence import Silence
from holdfast.replication.views import View
from holdfast.replication.waiting import APART_NS_MAX, WaitingRoom
from holdfast.units import MS, S

DIAL_AGAIN_NS = 50 * MS
GREETING_NS_MAX = 5 * S
FAR_TRIPS = 3
WHY_SIZE_MAX = 200  # of what another says, kept
MUTE_NS_MAX = 5 * S  # that a connection stays open, and nothing comes over it
BEAT_NS_MAX = 100 * MS  # however much else is written
STRANGERS_FRAME_BYTES_MAX = 4096
FAR = "it cannot protect this one; raise silence in the group file above that, or choose a nearer member"
NAME_CHARS_MAX = 100  # of a name that somebody gives itself, in the log
CROWDED = "too many connections have not said who they are"
DIFFERENT = "the contract files differ: give every member the same"


class PeerState(Struct):
    """What is known of the member at the other end."""

    name: str = ""
    index: int = -1
    greeted: bool = False  # it said who it is
    role: Role = Role.JOINING
    view: int = 0
    worth: Worth = Worth()
    follows: bool = False  # asked for our state
    has: int = 0  # how much of it it has
    knows: View = View()  # the view of ours that it repeated last
    echo_ns: int = 0
    echo_heard_ns: int = 0
    way_ns: int | None = None  # half of the last round trip
    dialed: bool = False  # by us
    said_bye: bool = False
    beat_ns: int = 0  # when we last beat for it
    heard_us_ns: int = 0  # when we said what it had heard when it last spoke
    mute: bool = False  # nothing was heard of it for too long
    contracts: str = ""  # the digest of those that it has
    differs: bool = False  # they are others than ours, since one of us read them again
    handshake: Handshake | None = None  # in a group with a secret
    before: PeerState | None = None  # of the connection that this one replaces
    trips_far: int = 0  # round trips in a row that took longer than silence
    far: bool = False  # it was said that the way to it is too long
    stalls: int = 0  # how often it stood still lately, as it says
    told: tuple[int, ...] = ()  # the longest of these, and the longest that it heard nothing of another

    def recall(self) -> None:
        """A greeting may be older than what the member said over the connection before: that it serves is
        believed until its next beat."""
        before, self.before = self.before, None
        if before is not None and before.role is Role.PRIMARY and before.view >= self.view:
            self.role, self.view = before.role, before.view


class Sighting(Struct, frozen=True):
    """A member that lives, and is not of our company now: what it was when it said so."""

    index: int
    role: Role
    worth: Worth
    at_ns: int


BeatFor = Callable[[Peer, int], Beat]


class Peers:
    def __init__(
        self,
        broker: Broker,
        group: GroupConfig,
        name: str,
        silence: Silence,
        *,
        hello: Callable[[], Hello],
        joining: Callable[[], bool],
        event: Event,
        secret: Secret | None = None,
    ) -> None:
        self.group = group
        self.name = name
        self.silence = silence
        self.secret = secret
        self._broker = broker
        self._hello = hello
        self._joining = joining
        self._event = event
        self._peers: list[Peer] = []  # whom we dialed, and who said who it is
        self.room = WaitingRoom()  # of strangers
        self._index = group.index_of(name)
        self._earlier = {member.name for member in group.members[: self._index]}
        self._dial_at_ns = {member.name: 0 for member in group.members if member.name != name}
        self._dialing: set[str] = set()
        self.sightings: dict[str, Sighting] = {}
        self.refusals: dict[str, str] = {}  # why a member and we are not of one company, if it lives
        self._refused_ns: dict[str, int] = {}  # when that was last said
        self.sought = ""  # whether it can be reached is being tried out of turn
        self._beat_at_ns = 0
        self._now_ns = 0

    def all(self) -> list[Peer]:
        """Those that are no strangers."""
        return list(self._peers)

    def speaking(self, most: int) -> list[Peer]:
        """So many of the strangers that have said something, who came first first."""
        if self.room.oldest() is None:
            return []
        spoke = (peer for peer in self.room.all() if peer.control or peer.fault is not None)
        return list(islice(spoke, most))

    def greeted(self) -> list[Peer]:
        """Those we know and hear."""
        return [
            peer for peer in self._peers if peer.state.greeted and not peer.closing and not peer.state.mute
        ]

    def link_to(self, name: str) -> Peer | None:
        return next((peer for peer in self.greeted() if peer.state.name == name), None)

    # Connections

    def dialed(self, inbox: Inbox | None, now_ns: int, name: str) -> Peer:
        """A connection to that member."""
        peer = self._begin(inbox, now_ns, name)
        peer.known = True  # we know whom we dialed, if not yet who answers
        self._dialing.discard(name)
        self._peers.append(peer)
        return peer

    def accept(self, inbox: Inbox | None, now_ns: int, address: str) -> Peer | None:
        """A connection of a stranger from there; None: it is turned away."""
        if self.room.is_full:
            goes = self.room.who_goes(address, now_ns)
            if goes is None:
                self._event("peer refused", {"peer": "unknown", "why": CROWDED})
                return None
            self.refuse(goes, CROWDED)
            self.forget(goes, now_ns)
        peer = self._begin(inbox, now_ns)
        self.room.enter(peer, address)
        return peer

    def _begin(self, inbox: Inbox | None, now_ns: int, name: str = "") -> Peer:
        peer = Peer(self._broker.core, inbox, now_ns)
        peer.frame_bytes_max = STRANGERS_FRAME_BYTES_MAX
        peer.state = PeerState(name=name, dialed=bool(name))
        if self.secret is None:
            self.send(peer, self._hello())
        else:
            peer.state.handshake = self.secret.begin(dialed=peer.state.dialed)
            self.send(peer, Challenge(peer.state.handshake.nonce))
        return peer

    def take_dials(self) -> list[str]:
        """Whom to dial now."""
        due = [
            name for name, at_ns in self._dial_at_ns.items() if at_ns <= self._now_ns and self._may_dial(name)
        ]
        self._dialing.update(due)
        return due

    def _may_dial(self, name: str) -> bool:
        ours = name in self._earlier or self._joining() or name == self.sought
        return ours and name not in self._dialing and not self._has_link(name)

    def keep_one(self, peer: Peer) -> list[Peer]:
        """Closes all connections to its member but one; which of them this one replaces."""
        replaced = []
        for other in self.others_to(peer):
            worse = self._second_best(peer, other)
            self.close(worse)
            if worse is peer:
                break
            peer.state.before = other.state
            replaced.append(other)
        return replaced

    def _second_best(self, peer: Peer, other: Peer) -> Peer:
        """Which of two connections to a member goes: the older, unless the newer is the wrong way round."""
        later = max(self._index, peer.state.index) == self._index
        right = peer.state.dialed == later or other.state.dialed != later or other.state.mute
        return other if right else peer

    def _has_link(self, name: str) -> bool:
        return any(
            peer.state.name == name and not peer.closing and not peer.state.mute for peer in self._peers
        )

    def others_to(self, peer: Peer) -> list[Peer]:
        """Our other connections to the same member, silent ones too."""
        name = peer.state.name
        return [
            each for each in self._peers if each.state.name == name and each is not peer and not each.closing
        ]

    def unsettled(self, peer: Peer, now_ns: int) -> bool:
        """Whether another connection to the same member is being made, and may take the place of this one."""
        return any(
            not other.state.greeted and now_ns - other.opened_ns <= self.silence.ns
            for other in self.others_to(peer)
        )

    def dial_now(self, name: str) -> None:
        """Is it there?"""
        self._dial_at_ns[name] = 0
        self.sought = name

    def undialable(self, name: str, now_ns: int) -> None:
        self._found_out(name)
        self.refusals.pop(name, None)
        self._dialing.discard(name)
        self._dial_at_ns[name] = now_ns + DIAL_AGAIN_NS

    def close(self, peer: Peer) -> None:
        peer.closed()

    def say_goodbye(self) -> None:
        """Ends every connection, after all that was to be said."""
        for peer in (*self._peers, *self.room.all()):
            if peer.state.greeted:
                self.send(peer, Bye())
            self.close(peer)

    def forget(self, peer: Peer, now_ns: int) -> bool:
        """The connection is over; says whether that is news."""
        if peer in self.room:
            self.room.leave(peer)
        elif peer in self._peers:
            self._peers.remove(peer)
        else:
            return False
        self._found_out(peer.state.name)
        if not peer.closing:
            peer.closed()
        if peer.state.name in self._dial_at_ns:
            self._dial_at_ns[peer.state.name] = now_ns + DIAL_AGAIN_NS
        return True

    def _found_out(self, name: str) -> None:
        if name == self.sought:
            self.sought = ""

    def refuse(self, peer: Peer, why: str, name: str = "") -> None:
        """`name` is what it calls itself, if it has said so."""
        name = peer.state.name or name[:NAME_CHARS_MAX]
        self._event("peer refused", {"peer": name or "unknown", "why": why})
        self._note_refusal(peer.state.name, why)
        self.send(peer, Refusal(why))
        self.close(peer)

    # Words

    def send(self, peer: Peer, word: Word) -> None:
        peer.send_control(encode_word(word))

    def word(self, peer: Peer, now_ns: int) -> Word | None:
        """The next word of a member; None when it was not for others to see, or broke a rule."""
        word = decode_word(peer.control.popleft())
        peer.state.mute &= now_ns - peer.heard_ns > self.silence.ns  # it may have waited here
        if word is None:
            self.refuse(peer, "what came is no word of this protocol")
            return None
        if peer.state.handshake is not None and not isinstance(word, Refusal):
            proven = peer.state.handshake.proven
            if isinstance(word, Challenge | Proof) or not proven:
                self._prove(peer, peer.state.handshake, word)
                return None
        if not peer.state.greeted and isinstance(word, Challenge):
            self._distrust(
                peer, "the first word must be a greeting; the members of this group have no secret"
            )
            return None
        if not peer.state.greeted and not isinstance(word, Hello | Refusal):
            self.refuse(peer, "the first word must be a greeting")
            return None
        if isinstance(word, Beat):
            self._measure(peer.state, word, now_ns)
        return word

    def _prove(self, peer: Peer, handshake: Handshake, word: Word) -> None:
        """What is said before it is clear that both know the secret."""
        try:
            match word:
                case Challenge(nonce):
                    ours = handshake.challenged(nonce)
                case Proof(proof):
                    ours = handshake.proved(proof)
                case _:
                    raise ValueError("the members of this group prove that they know its secret first")
        except ValueError as error:
            self._distrust(peer, str(error))
            return
        if ours is not None:
            self.send(peer, Proof(ours))
        if handshake.proven:
            self.send(peer, self._hello())

    def _distrust(self, peer: Peer, why: str) -> None:
        """It does not prove itself as the members of this group do."""
        self.turn_away(self.room.address_of(peer), why)
        self.refuse(peer, why)

    def _measure(self, state: PeerState, beat: Beat, now_ns: int) -> None:
        state.worth = beat.worth
        state.stalls, state.told = beat.stalls, (beat.stalled_ns, beat.gap_ns)
        state.echo_ns, state.echo_heard_ns = beat.sent_ns, now_ns
        if beat.echo_ns:
            state.way_ns = max(0, now_ns - beat.echo_ns - beat.held_ns) // 2
            if beat.echo_ns != state.heard_us_ns:  # the same is echoed until another is heard
                state.trips_far = state.trips_far + 1 if 2 * state.way_ns > self.silence.ns else 0
            if not state.far and state.trips_far >= FAR_TRIPS:  # one may have met a standstill
                state.far = True
                trip_ms, silence_ms = 2 * state.way_ns // MS, self.silence.ns // MS
                takes = f"to {state.name} and back takes {trip_ms} ms, and {silence_ms} ms count as silence"
                self._event("link too slow", {"peer": state.name, "why": f"{takes}: {FAR}"})

    def greet(self, peer: Peer, hello: Hello, contracts: str) -> bool:
        """Whether the two can be of one group; if not, the other side is told why."""
        names = [member.name for member in self.group.members]
        if hello.protocol != PROTOCOL:
            why = f"protocol {hello.protocol} is spoken there, {PROTOCOL} here: run the same version on both"
        elif hello.group != self.group.name:
            why = f"that is group {hello.group!r}, this is {self.group.name!r}"
        elif hello.name not in names or hello.name == self.name:
            why = f"{hello.name!r} is not another member of the group: {', '.join(names)}"
        elif peer.certificate_name not in (None, hello.name):
            why = f"its certificate is of {peer.certificate_name!r}, and it says that it is {hello.name!r}"
        elif hello.contracts != contracts:
            why = DIFFERENT
        else:
            state: PeerState = peer.state
            state.name, state.index = hello.name, names.index(hello.name)
            state.greeted = True
            state.worth = hello.worth
            state.contracts = hello.contracts
            peer.frame_bytes_max = FRAME_BYTES_MAX
            self._get_to_know(peer)
            self.sightings.pop(hello.name, None)
            self.refusals.pop(hello.name, None)
            self._found_out(hello.name)
            return True
        if hello.group == self.group.name and peer.certificate_name in (None, hello.name):
            self._saw(hello, peer.heard_ns)
            self._note_refusal(hello.name, why)
        self.refuse(peer, why, hello.name)
        return False

    def _get_to_know(self, peer: Peer) -> None:
        if peer in self.room:
            self.room.leave(peer)
            self._peers.append(peer)
            peer.get_known()

    def compare(self, peer: Peer, theirs: str, ours: str) -> None:
        """One of two that protect each other has read its contracts again: they go on, and say so."""
        state: PeerState = peer.state
        differed, state.contracts, state.differs = state.differs, theirs, theirs != ours
        if state.differs and not differed:
            self._event("contracts differ", {"peer": state.name, "why": DIFFERENT})
        elif differed and not state.differs:
            self._event("contracts agree", {"peer": state.name})

    # Those who live and are not of our company

    def _saw(self, hello: Hello, at_ns: int) -> None:
        names = [member.name for member in self.group.members]
        if hello.name in names and hello.name != self.name:
            self.sightings[hello.name] = Sighting(names.index(hello.name), hello.role, hello.worth, at_ns)

    def _note_refusal(self, name: str, why: str) -> None:
        if name in self._dial_at_ns:
            self.refusals[name] = "".join(each for each in why[:WHY_SIZE_MAX] if each.isprintable())
            self._refused_ns[name] = self._broker.core.board.now_ns

    def turn_away(self, address: str, why: str) -> None:
        """Who comes from there cannot prove that it is a member."""
        self.room.turn_away(address, why, self._broker.core.board.now_ns)

    def distrusted(self, name: str, why: str) -> None:
        """Greetings with a member that was dialed broke off before it was heard."""
        self._note_refusal(name, why)

    def broke_off(self, peer: Peer, why: str) -> None:
        """A connection broke for this reason; before the greetings were over it is why the two are apart."""
        if not peer.state.greeted:
            self._note_refusal(peer.state.name, why)

    def apart(self, now_ns: int) -> dict[str, str]:
        """Members that live and are not of our company, and why, as far as that is known."""
        why = self.room.turned_away(now_ns)
        said = self._refused_ns
        why |= {name: each for name, each in self.refusals.items() if now_ns - said[name] <= APART_NS_MAX}
        here = {peer.state.name for peer in self.greeted()}
        return {name: why[name] for name in sorted(why.keys() - here)}

    def sighted(self, peer: Peer, why: str) -> None:
        """A member that we know says that it will not have us."""
        state: PeerState = peer.state
        self._note_refusal(state.name, why)
        if state.greeted:
            self.sightings[state.name] = Sighting(state.index, state.role, state.worth, peer.heard_ns)

    def sighted_since(self, since_ns: int) -> list[Sighting]:
        here = {peer.state.name for peer in self.greeted()}
        return [
            sighting
            for name, sighting in self.sightings.items()
            if sighting.at_ns >= since_ns and name not in here
        ]

    def forget_followers(self) -> None:
        for peer in self._peers:
            peer.state.follows = False

    # The time

    @property
    def next_ns(self) -> int | None:
        times = [at_ns for name, at_ns in self._dial_at_ns.items() if self._may_dial(name)]
        if self._peers:
            times.append(self._beat_at_ns)
        oldest = self.room.oldest()
        if oldest is not None:
            times.append(oldest.opened_ns + GREETING_NS_MAX + 1)
        times += [peer.heard_ns + self.silence.ns + 1 for peer in self.greeted()]
        return min(times, default=None)

    def look_around(self, beat: BeatFor, now_ns: int) -> None:
        self._now_ns = now_ns
        if now_ns >= self._beat_at_ns:
            self.beat(beat, now_ns, everybody=False)

    def beat(self, beat: BeatFor, now_ns: int, *, everybody: bool = True) -> None:
        """Tells the others that we live, and what we are; who was written to just now knows the former."""
        self._beat_at_ns = now_ns + self.group.heartbeat_ns
        for peer in self.greeted():
            state: PeerState = peer.state
            written = now_ns - peer.wrote_ns < self.group.heartbeat_ns
            if everybody or not written or now_ns - state.beat_ns >= BEAT_NS_MAX:
                state.beat_ns = now_ns
                self.send(peer, beat(peer, now_ns))
            else:
                self._beat_at_ns = min(self._beat_at_ns, peer.wrote_ns + self.group.heartbeat_ns)

    def answer(self, peer: Peer, beat: BeatFor, now_ns: int) -> None:
        """At once, whatever else was written."""
        if peer.state.greeted and not peer.closing:
            peer.state.beat_ns = now_ns
            self.send(peer, beat(peer, now_ns))

    def silent(self, now_ns: int) -> list[Peer]:
        """Those of which nothing was heard for too long, each told of once; later their connections close."""
        while (oldest := self.room.oldest()) is not None and now_ns - oldest.opened_ns > GREETING_NS_MAX:
            self.forget(oldest, now_ns)
        silent = []
        for peer in self._peers:
            state: PeerState = peer.state
            quiet_ns = now_ns - peer.heard_ns
            if quiet_ns > self.silence.ns + MUTE_NS_MAX or (
                not state.greeted and now_ns - peer.opened_ns > GREETING_NS_MAX
            ):
                peer.closed()
            elif state.greeted and not state.mute and quiet_ns > self.silence.ns:
                state.mute = True
                silent.append(peer)
        return silent

    def forgive(self, slept_ns: int, now_ns: int) -> None:
        """We slept for so long ourselves: that is nobody else's silence."""
        for peer in self._peers:
            peer.heard_ns = min(peer.heard_ns + slept_ns, max(peer.heard_ns, now_ns))
            peer.gap_ns = 0
