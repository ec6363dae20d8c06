"""A primary that lost an heir: whether it still serves, the arbiter says, or whoever is heard next.

Laws:
- while that is not known, no publisher hears that a message is safe which only this broker has
- without an arbiter, a primary whose last heir fell silent may be cut off from everybody: it goes on when a
  `silence` has passed since it heard anybody, for until then the heir can say that it serves, or after a
  second in which it heard nobody
- a claim that is won is the number of the view; one that is lost ends this broker's service
- an arbiter that does not answer decides nothing: the primary goes on in its view, says so, and asks again
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.replication.roles import Role
from holdfast.replication.views import Claim, View, next_number
from holdfast.units import S

if TYPE_CHECKING:
    from holdfast.replication.member import Member

AGAIN_NS = 1 * S
ALONE_NS_MAX = 1 * S  # without a sign of anybody: publishers may be silent because they wait


class Contest:
    """`go_on` is called when this broker may go on without the heirs that it lost."""

    def __init__(self, member: Member, go_on: Callable[[int], None]) -> None:
        self.member = member
        self.holding = False  # what waits for the heir that is lost waits for an answer now
        self.next_ns: int | None = None
        self._signs: tuple[int, int] | None = None  # of others, when the heir fell silent; None once one came
        self._alone_until_ns = 0
        self._go_on = go_on
        self._number = 0  # that was claimed and not answered

    def stop(self) -> None:
        self.holding = False
        self.next_ns = self._signs = None
        self._number = 0

    def begin(self, now_ns: int, *, silent: bool) -> None:
        """An heir is gone: it may claim the next view, and so do we."""
        if self.member.group.zookeeper:
            self.holding = True
            self._claim()
        elif silent and not self.member.view.heirs:
            self.holding = True
            self._signs = self._heard()
            self._alone_until_ns = now_ns + ALONE_NS_MAX
            self.next_ns = now_ns + self.member.group.silence_ns
        else:
            self.holding = False
            self._go_on(now_ns)

    def _claim(self) -> None:
        self.next_ns = None
        if self._number == 0:
            self._number = next_number(self.member.view_max, self.member.index)
            self.member.claims.append(Claim(self._number, self.member.view.number))

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
            self.next_ns = now_ns + self.member.group.silence_ns

    def _heard(self) -> tuple[int, int]:
        """Changes with every sign of a client or a member."""
        peers = (peer.heard_ns for peer in self.member.peers.all())
        return self.member.core.bytes_received, max(peers, default=0)

    def answered(self, number: int, won: bool | None, standing: int, why: str, now_ns: int) -> None:
        if number != self._number or self.member.role is not Role.PRIMARY:
            return
        self._number = 0
        if won is False:
            self.member.event("claim lost", {"view": number, "why": why})
            self.member.heard_of(standing, now_ns)
            return
        if won is None:
            self.member.event("not arbitrated", {"view": self.member.view.number, "why": why})
            self.next_ns = now_ns + AGAIN_NS
        elif number > self.member.view.number:
            self.member.event("arbitrated", {"view": number})
            self.member.set_view(View(number, self.member.name, self.member.view.heirs), now_ns)
        if self.holding:
            self.holding = False
            self._go_on(now_ns)
