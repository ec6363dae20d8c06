"""A member that would serve: whether it is the one to do so, and what the arbiter says to that.

Laws:
- nobody serves who hears, or lately heard, of a primary, or of a member that is worth more: one of a later
  epoch or view, with the messages of that view's primary, which a primary that stepped down has let go of,
  or with more state
- a member that starts waits `join_wait` for the others, unless all of them are there; then it leaves those
  who are worth as much and come before it twice `silence` each
- what it sleeps meanwhile does not count, and it waits for two `silence` at least when it wakes; but a
  machine with too much to do wakes it late again and again, so all this takes no more than NAPS_MAX times
  `join_wait`. Who slept for as long as `join_wait` waits anew
- what was said before it slept says nothing of the present
- with an arbiter nobody serves in a view that it was not given, and nobody vouches for a member that it has
  not heard since it became a candidate, nor with what was said before the view that stands was known
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from holdfast.replication.group import MEMBERS_MAX
from holdfast.replication.messages import Worth
from holdfast.replication.peers import PeerState, Sighting
from holdfast.replication.roles import Happening, Role
from holdfast.replication.views import Claim, Heard, Standing, next_number

if TYPE_CHECKING:
    from holdfast.replication.member import Member


NAPS_MAX = 3  # times join_wait

# Epoch, view, custody, whether it served in all of that epoch, state: of two the greater one serves.
Rank: TypeAlias = tuple[int, int, int, bool, int]


class Candidacy:
    def __init__(self, member: Member) -> None:
        self.member = member
        self.since_ns = 0  # it looks for a primary; what it slept is left out
        self.refused = ""  # why the arbiter gave it no view, since then
        self._woke_ns = 0
        self._naps_left_ns = 0  # that it may still wait for having slept

    def begin(self, now_ns: int) -> None:
        """There is no primary that it knows."""
        self.since_ns = now_ns
        self.refused = ""
        self._naps_left_ns = NAPS_MAX * self.member.group.join_wait_ns

    def woke(self, slept_ns: int, now_ns: int) -> None:
        """The others could not be heard meanwhile."""
        self._woke_ns = now_ns
        wait_ns, since_ns = self.member.group.join_wait_ns, self.since_ns
        if slept_ns >= wait_ns:
            self.begin(now_ns)
            return
        longer_ns = max(slept_ns, now_ns + 2 * self.member.silence.ns - wait_ns - since_ns)
        longer_ns = min(longer_ns, now_ns - since_ns, self._naps_left_ns)
        self._naps_left_ns -= longer_ns
        self.since_ns += longer_ns

    def is_first(self, now_ns: int) -> bool:
        """Nobody who lives is better suited to serve: more state, or earlier in the order."""
        member = self.member
        others: list[PeerState | Sighting] = [*self._heard_since(self.since_ns)]
        others += member.peers.sighted_since(now_ns - member.group.join_wait_ns)
        if any(other.role in (Role.PRIMARY, Role.CLAIMING) for other in others):
            return False
        waited = now_ns - self.since_ns >= member.group.join_wait_ns
        if len(others) + 1 < len(member.group.members) and not waited:
            return False
        mine, *theirs = self._ranks(others)
        equals = [other for other, rank in zip(others, theirs, strict=True) if rank == mine]
        before = sum(other.index < member.index for other in equals)
        return all(rank <= mine for rank in theirs) and now_ns >= self._turn_ns(before)

    def _ranks(self, others: Sequence[PeerState | Sighting]) -> list[Rank]:
        """Of this member, and of each of the others."""
        member = self.member
        indices = [member.index, *(other.index for other in others)]
        worths = [member.worth, *(other.worth for other in others)]
        return [rank_of(index, worth, worths) for index, worth in zip(indices, worths, strict=True)]

    def _heard_since(self, since_ns: int) -> list[PeerState]:
        """Members that answered what we said since then: words of others may have been held up."""
        since_ns = max(since_ns, self._woke_ns)
        return [
            peer.state
            for peer in self.member.peers.greeted()
            if max(peer.state.heard_us_ns, peer.opened_ns) >= since_ns
        ]

    def _turn_ns(self, before: int) -> int:
        """When it is our turn, if so many come before us. They begin at the latest when we could."""
        if not before:
            return 0
        group = self.member.group
        return self.since_ns + group.join_wait_ns + before * 2 * self.member.silence.ns

    @property
    def next_ns(self) -> int | None:
        """When waiting ends: for those who did not answer, and for those who were seen and did not come."""
        member = self.member
        waits = [self.since_ns, *(each.at_ns + 1 for each in member.peers.sightings.values())]
        dues = [since_ns + member.group.join_wait_ns for since_ns in waits]
        dues += [self._turn_ns(before) for before in range(1, member.index + 1)]
        return min((due_ns for due_ns in dues if due_ns > member.turned_ns), default=None)

    def claim(self, now_ns: int) -> None:
        """Asks for the next view. Without an arbiter it is won at once: the number is nobody else's."""
        member = self.member
        number = next_number(max(member.view_max, member.used_max), member.index)
        if not member.group.zookeeper:
            self.answered(number, True, None, "", now_ns)
            return
        present = tuple(self._present(now_ns))
        member.claims.append(
            Claim(
                number,
                after=member.entitled,
                present=present,
                under=member.entitled_by,
                messages=self._brought_messages(),
            )
        )

    def _brought_messages(self) -> bool:
        """It came back with the durable messages of the view that it is entitled to, or there are none. Who
        had part in that view since it started takes over with what it has."""
        promised = any(terms.durable for terms in self.member.broker.contracts.all)
        return bool(self.member.entitled_by) or self.member.has_messages or not promised

    def _present(self, now_ns: int) -> Iterator[Heard]:
        """Those who are here and not better suited than we are: they need not be waited for."""
        others = self._heard_since(max(self.since_ns, now_ns - 2 * self.member.silence.ns))
        mine, *theirs = self._ranks(others)
        for other, rank in zip(others, theirs, strict=True):
            if other.role not in (Role.PRIMARY, Role.CLAIMING) and rank <= mine:
                yield Heard(other.name, other.view)

    def answered(
        self, number: int, won: bool | None, standing: Standing | None, why: str, now_ns: int
    ) -> None:
        member = self.member
        known = member.view_max
        if standing is not None:
            member.view_max = max(known, standing.number)
        if won and number > known:
            member.view_max = number
            member.happen(Happening.CLAIM_WON, now_ns)
        elif standing is not None and standing.number >= number and standing.number > known:
            self.claim(now_ns)  # the number was too low, which says nothing of who may serve
        else:
            member.event("claim lost", {"view": number, "why": why})
            member.happen(Happening.CLAIM_LOST, now_ns)
            self.refused = why


def rank_of(index: int, worth: Worth, known: Sequence[Worth]) -> Rank:
    """Who served throughout an epoch, and has the messages of a view of it, has those of every view of it:
    also of a later one that others of `known` had time to write down, and it had not, and of the same view
    after an heir was lost, which knows nothing of that."""
    reigned = worth.custody > 0 and worth.epoch % MEMBERS_MAX == index
    views = [each.entitled for each in known if reigned and each.epoch == worth.epoch]
    own = max((view for view in views if view % MEMBERS_MAX == index), default=0)
    return worth.epoch, max(worth.entitled, own), worth.custody, reigned, worth.number
