"""What a primary may do on its own: the arbiter must know its heirs; that it still serves, the arbiter
says, or whoever is heard next.

Laws:
- while it is not known whether this broker still serves, no publisher and no subscriber hears that
  something is safe which only this broker has
- with an arbiter, a view is opened when the arbiter gave it, also one that only has another heir; a claim
  that is lost ends this broker's service; one that is not answered decides nothing, and is made again. Where
  the group file says `unarbitrated = "go-on"`, a primary that gets no answer goes on as if it still served
- without an arbiter, a view with another heir is opened when the heirs of before know its number: if one of
  them takes over instead, it does so in a higher view
- without an arbiter, a primary whose last heir fell silent may be cut off from everybody: it goes on when a
  `silence` has passed since it heard anybody, for until then the heir can say that it serves, or after a
  second in which it heard nobody
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.replication.roles import Role
from holdfast.replication.views import Claim, Standing, View, next_number
from holdfast.units import S

if TYPE_CHECKING:
    from holdfast.replication.member import Member

AGAIN_NS = 1 * S
ALONE_NS_MAX = 1 * S  # without a sign of anybody: publishers may be silent because they wait


class Contest:
    """`go_on` is called when this broker may go on without the heirs that it lost, `opened` when a view has
    the heirs that were proposed."""

    def __init__(
        self, member: Member, *, go_on: Callable[[int], None], opened: Callable[[int], None]
    ) -> None:
        self.member = member
        self.holding = False  # what waits for the heir that is lost waits for an answer now
        self.unanswered = False  # the arbiter was asked last, and gave no answer
        self.next_ns: int | None = None
        self._signs: tuple[int, int] | None = None  # of others, when the heir fell silent; None once one came
        self._alone_until_ns = 0
        self._go_on = go_on
        self._opened = opened
        self._claimed: Claim | None = None  # and not answered
        self._proposed: tuple[str, ...] | None = None  # heirs of the view that is to be opened
        self._number = 0  # of that view, without an arbiter
        self._known: tuple[str, ...] = ()  # heirs of the view that the arbiter gave last

    @property
    def proposing(self) -> bool:
        """An heir is being added."""
        return self._proposed is not None

    def stop(self) -> None:
        self._hold(False)
        self.unanswered = False
        self.next_ns = self._signs = None
        self._claimed = self._proposed = None
        self._known = ()

    # Heirs that come

    def propose(self, heirs: tuple[str, ...], now_ns: int) -> None:
        """A new view is to have these heirs."""
        self._proposed = heirs
        if self.member.group.zookeeper:
            self._claim()
        else:
            self._number = next_number(self.member.view_max, self.member.index)
            if self.member.view.heirs:
                self.member.beat(now_ns)
            self.settle(now_ns)

    def outbid(self, now_ns: int) -> None:
        """A view of the same heirs above all others, at once: somebody else serves whom they may follow."""
        if self.member.group.zookeeper:
            self.propose(self.member.view.heirs, now_ns)
        else:
            self._proposed = None
            self._open(next_number(self.member.view_max, self.member.index), self.member.view.heirs, now_ns)

    @property
    def coming(self) -> int:
        """The number of the view that is to be opened when the heirs of before know it; 0: of none."""
        return self._number if self.proposing and not self.member.group.zookeeper else 0

    def settle(self, now_ns: int) -> None:
        """Without an arbiter the view is opened when every heir of before knows of it."""
        if self._proposed is None or self.member.group.zookeeper:
            return
        if self._number <= self.member.view_max:
            self.propose(self._proposed, now_ns)  # others have told of a higher one meanwhile
            return
        links = (self.member.peers.link_to(name) for name in self.member.view.heirs)
        if all(link is None or link.state.view >= self._number for link in links):
            heirs, self._proposed = self._proposed, None
            self._open(self._number, heirs, now_ns)

    def withdraw(self, name: str) -> None:
        """Who was to be an heir is gone before it was one."""
        if self._proposed is not None and name in self._proposed:
            self._proposed = None

    def _open(self, number: int, heirs: tuple[str, ...], now_ns: int) -> None:
        self.member.set_view(View(number, self.member.name, heirs), now_ns)
        self._opened(now_ns)

    # Heirs that go

    def begin(self, now_ns: int, *, silent: bool) -> None:
        """An heir is gone: it may claim the next view, and so do we."""
        self._proposed = None
        arbitrated = bool(self.member.group.zookeeper)
        if arbitrated and (self._claimed is not None or self._known != self.member.view.heirs):
            self._hold(True)
            self._claim()
        elif silent and not self.member.view.heirs and not arbitrated:
            self._hold(True)
            self._signs = self._heard()
            self._alone_until_ns = now_ns + ALONE_NS_MAX
            self.next_ns = now_ns + self.member.silence.ns
        elif not self.holding:
            self._go_on(now_ns)

    def _hold(self, holding: bool) -> None:
        self.holding = holding
        self.member.core.withhold(holding)

    def _claim(self) -> None:
        self.next_ns = None
        if self._claimed is None:
            number = next_number(self.member.view_max, self.member.index)
            heirs = self.member.view.heirs if self._proposed is None else self._proposed
            self._claimed = Claim(number, self.member.view.number, heirs)
            self.member.claims.append(self._claimed)

    def look_around(self, now_ns: int) -> None:
        if self.next_ns is None or now_ns < self.next_ns:
            return
        if self.member.group.zookeeper:
            self._claim()
        elif self._signs is None or now_ns >= self._alone_until_ns:
            self.stop()
            self._go_on(now_ns)
        else:
            self._signs = None if self._heard() != self._signs else self._signs
            self.next_ns = now_ns + self.member.silence.ns

    def _heard(self) -> tuple[int, int]:
        """Changes with every sign of a client or a member."""
        peers = (peer.heard_ns for peer in self.member.peers.all())
        return self.member.core.bytes_received, max(peers, default=0)

    # What the arbiter says

    def answered(
        self, number: int, won: bool | None, standing: Standing | None, why: str, now_ns: int
    ) -> None:
        claim = self._claimed
        if claim is None or number != claim.number or self.member.role is not Role.PRIMARY:
            return
        self._claimed = None
        was_unanswered, self.unanswered = self.unanswered, won is None
        if won:
            settled = self._proposed is None and claim.heirs == self.member.view.heirs
            if settled or was_unanswered:
                self.member.event("arbitrated", {"view": number})
            self._given(claim, now_ns)
        elif won is None:
            self._not_answered(None if was_unanswered else why, now_ns)
        elif standing is not None:
            self.member.event("claim lost", {"view": number, "why": why})
            self.member.overruled(standing.number, now_ns)

    def _not_answered(self, why: str | None, now_ns: int) -> None:
        """`why` is None if that was said already."""
        goes_on = self.member.group.goes_on_unarbitrated
        if why is not None:
            waits = "acknowledges what only this broker has" if goes_on else "acknowledges nothing alone"
            details = {"view": self.member.view.number, "why": why, "meanwhile": waits}
            self.member.event("not arbitrated", details)
        self.next_ns = now_ns + AGAIN_NS
        if self.holding and goes_on:
            self._hold(False)
            self._go_on(now_ns)

    def _given(self, claim: Claim, now_ns: int) -> None:
        """The view is ours. Who was lost since the claim is still among the heirs that the arbiter knows."""
        proposed, self._known = self._proposed, claim.heirs
        if claim.heirs == proposed:
            self._proposed = None
            self._open(claim.number, claim.heirs, now_ns)
        elif proposed is not None or claim.heirs != self.member.view.heirs:
            heirs = self.member.view.heirs
            self.member.set_view(View(claim.number, self.member.name, heirs), now_ns)
            self._claim()
        else:
            self.member.set_view(View(claim.number, self.member.name, claim.heirs), now_ns)
            if self.holding:
                self._hold(False)
                self._go_on(now_ns)
