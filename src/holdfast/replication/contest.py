"""A primary that lost an heir, and an arbiter that says whether it still serves.

Laws:
- while the arbiter has not said so, no publisher hears that a message is safe which only this broker has
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


class Contest:
    """`go_on` is called when this broker may go on without the heirs that it lost."""

    def __init__(self, member: Member, go_on: Callable[[int], None]) -> None:
        self.member = member
        self.holding = False  # what waits for the heir that is lost waits for the arbiter now
        self.next_ns: int | None = None
        self._go_on = go_on
        self._number = 0  # that was claimed and not answered

    def stop(self) -> None:
        self.holding = False
        self.next_ns = None
        self._number = 0

    def begin(self, now_ns: int) -> None:
        """An heir is gone: it may claim the next view, and so do we."""
        if not self.member.group.zookeeper:
            self._go_on(now_ns)
            return
        self.holding = True
        self._claim()

    def _claim(self) -> None:
        self.next_ns = None
        if self._number == 0:
            self._number = next_number(self.member.view_max, self.member.index)
            self.member.claims.append(Claim(self._number, self.member.view.number))

    def look_around(self, now_ns: int) -> None:
        if self.next_ns is not None and now_ns >= self.next_ns:
            self._claim()

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
