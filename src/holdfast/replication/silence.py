"""How long nothing may be heard of a member before it is taken for gone, and how long members stood still.

Laws:
- a group file that says `silence` is obeyed; else it follows from the contracts, is never longer than they
  bear, and they are reckoned with the x that comes of it
- within that it is CALM_NS, or MARGIN times the longest standstill of the last STALLS_KEPT_NS that could be
  waited for: a machine that stalls is given time, one that does not is not
- the primary decides, and tells it with its beats; whoever follows it does as told, within its own bound
- no member ever takes another for gone sooner than after `least_ns`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.contract.admission import strictest
from holdfast.contract.model import Contract, ContractBook
from holdfast.contract.requirement import NOTHING, Requirement
from holdfast.contract.silence import BEATS, Bound
from holdfast.replication.group import GroupConfig, bound_of
from holdfast.status import about_ns
from holdfast.units import MS, S

if TYPE_CHECKING:
    from holdfast.replication.member import Member

CALM_NS = 100 * MS
MARGIN = 2
STALLS_KEPT_NS = 600 * S
STALLS_MAX = 1024
NOTED_NS = 10 * S
OFTEN = 3  # standstills within STALLS_KEPT_NS
REDIRECTS = 5  # the last of which the middle one counts


class Stalls:
    """The standstills of a member within the last minutes."""

    def __init__(self) -> None:
        self.total = 0  # since the process started
        self.longest_ns = 0
        self.last_ns = 0  # of the longest of late
        self.last_at_ns = 0  # when that was over
        self._lately: deque[tuple[int, int]] = deque(maxlen=STALLS_MAX)

    def __len__(self) -> int:
        return len(self._lately)

    def note(self, ns: int, now_ns: int) -> None:
        """Perhaps too short to count, but others may have waited for longer: from the last beat on. A shorter
        one soon after does not hide it from whoever took over by it, and has not heard of it yet."""
        if ns >= self.last_ns or now_ns - self.last_at_ns > NOTED_NS:
            self.last_ns, self.last_at_ns = ns, now_ns

    def serves(self) -> None:
        """What was before is nobody's reason to take over from now on."""
        self.last_ns = 0

    def add(self, ns: int, now_ns: int) -> None:
        self.total += 1
        self._lately.append((now_ns, ns))
        self.longest_ns = max(ns for _, ns in self._lately)

    def expire(self, now_ns: int) -> None:
        while self._lately and self._lately[0][0] < now_ns - STALLS_KEPT_NS:
            self._lately.popleft()
            self.longest_ns = max((ns for _, ns in self._lately), default=0)


class Silence:
    """`ns` is in force. `own` are the standstills of this member, `gaps` what it did not hear others for."""

    def __init__(self, group: GroupConfig, book: ContractBook) -> None:
        self._group = group
        self.least_ns = group.silence_ns or BEATS * group.heartbeat_ns
        self.ns = self.least_ns
        self.own = Stalls()
        self.gaps = Stalls()
        self.longest_ns = 0  # of all that are known and could be waited for
        self.told_ns = 0  # by the primary that is followed; 0: nobody is
        self.bound: Bound | None = None
        self._redirects: deque[int] = deque([0] * REDIRECTS, maxlen=REDIRECTS)
        self._asked: dict[str, Requirement] = {}  # of the topics of a contract, by its name
        self.reckon_with(book)
        self.look(0)

    def reckon_with(self, book: ContractBook) -> None:
        """Other contracts. What subscribers asked of one that is gone, they are taken to ask of new ones."""
        self._book = book
        names = {contract.name for contract in (*book.contracts, book.default)}
        gone = [self._asked.pop(name) for name in list(self._asked) if name not in names]
        for contract in book.contracts:
            for requirement in gone:
                self._note(contract, requirement)
        self._bind()

    def _bind(self) -> bool:
        """Whether the bound is another one."""
        before = self.bound
        if self._group.silence_ns is None:
            contracts = (*self._book.contracts, self._book.default)
            self.bound = bound_of(
                self._group,
                self._book,
                measured_ns=sorted(self._redirects)[REDIRECTS // 2],
                asked=[
                    strictest(each, self._asked[each.name]) for each in contracts if each.name in self._asked
                ],
            )
        return before != self.bound

    @property
    def x_ns(self) -> int:
        """The failover time that contracts are reckoned with."""
        failover_ns = self._book.deployment.failover_ns
        if self.bound is None:
            return failover_ns
        return max(failover_ns, min(self.bound.x_ns, self.ns + self.bound.redirect_ns))

    @property
    def why(self) -> str:
        if self.bound is None:
            return "the group file says so"
        if self.ns >= self.bound.silence_ns:
            return str(self.bound)
        if self.told_ns:
            return "the primary says so"
        if MARGIN * self.longest_ns > CALM_NS:
            return f"a member stood still for {about_ns(self.longest_ns)} lately"
        return "no member stood still for longer lately"

    def asked(self, contract: Contract, requirement: Requirement) -> bool:
        """A subscriber asks for that of the topics of a contract; whether the bound is another one."""
        return self._note(contract, requirement) and self._bind()

    def _note(self, contract: Contract, requirement: Requirement) -> bool:
        before = self._asked.get(contract.name, NOTHING)
        self._asked[contract.name] = before.and_also(requirement)
        return before != self._asked[contract.name]

    def redirected(self, took_ns: int) -> bool:
        """What comes after the silence took so long; whether the bound is another one by that."""
        self._redirects.append(took_ns)
        return self._bind()

    def heed(self, gap_ns: int, now_ns: int) -> None:
        """So long nothing was heard of a member that lives. What is waited for anyway tells nothing, nor what
        nobody could wait for."""
        waited_ns = max(CALM_NS // MARGIN, (BEATS - 1) * self._group.heartbeat_ns)
        longest_ns = self.least_ns if self.bound is None else self.bound.silence_ns
        if waited_ns < gap_ns <= longest_ns:
            self.gaps.add(gap_ns, now_ns)

    def look(self, now_ns: int, told: Iterable[int] = ()) -> bool:
        """Decides what is in force from now on; whether that is something else. `told` are standstills and
        gaps that others tell of."""
        before = self.ns
        self.own.expire(now_ns)
        self.gaps.expire(now_ns)
        if self.bound is None:
            return False
        if self.told_ns:
            self.ns = max(self.least_ns, min(self.bound.silence_ns, self.told_ns))
        else:
            known = (self.own.longest_ns, self.gaps.longest_ns, *told)
            self.longest_ns = max((ns for ns in known if ns <= self.bound.silence_ns), default=0)
            self.ns = min(self.bound.silence_ns, max(self.least_ns, CALM_NS, MARGIN * self.longest_ns))
        return before != self.ns


def watch(member: Member, now_ns: int) -> None:
    """Takes what was heard, and not heard, of the others into account."""
    silence = member.silence
    told: list[int] = []
    for peer in member.peers.greeted():
        silence.heed(peer.gap_ns, now_ns)
        peer.gap_ns = 0
        told += peer.state.told
    if silence.look(now_ns, told):
        member.reckon_again()
        member.beat(now_ns)  # who follows this one waits as long
        member.event("silence", {"ms": silence.ns / MS, "why": silence.why})
        member.broker.timers.at(now_ns, member.broker.system_topics.publish_more)
