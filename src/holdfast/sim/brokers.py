"""A member of the group as a process of the simulated world: moves bytes, decides nothing.

Laws:
- what a member may not read waits in the socket; what it closes is written first
- a step's writes leave in the order in which the board gives them
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.replication.peer import Peer
from holdfast.replication.roles import Role
from holdfast.sim.ledger import Promotion, ViewSeen
from holdfast.sim.meter import Meter, kept_by, turn_units_max
from holdfast.sim.network import Address, End
from holdfast.sim.options import HOSTILE, PEER_PORT
from holdfast.sim.setting import Setting
from holdfast.sim.state import state_of
from holdfast.sim.world import ACCEPTED, CALL, DATA, FAILED, LOST, OPENED, Host, Outputs, Process

if TYPE_CHECKING:
    from holdfast.contract.model import ContractBook
    from holdfast.replication.member import Member
    from holdfast.sim.options import Options

READ_BYTES = 32_768  # at once, as runtime/poller.pyx does
Wire = Any
Peers = dict[str, tuple[Address, Address]]
MakeMember = Callable[["Options", "MemberProcess"], "Member"]


class MemberProcess(Process):
    """Runs one member. `peers` says where each member takes clients, and where peers."""

    __slots__ = ("_dials", "_due_ns", "_ends", "_group_work", "_held", "_job_ns", "_meter", "_network",
                 "_peer", "_spent", "_unit_ns", "_units_max", "_view", "arbiter", "book", "events", "ledger",
                 "life", "member", "peers")  # fmt: skip

    def __init__(
        self, setting: Setting, host: Host, peers: Peers, make: MakeMember, life: int, book: ContractBook
    ) -> None:
        """`make` makes the member, which reads its contracts from `book`."""
        super().__init__(setting.world, host, host.name, setting.options.cost_ns)
        self.life = life
        self.book = book
        self.arbiter = setting.arbiter
        self.events: list[str] = []  # what the member said of itself in this step
        self.ledger = setting.ledger
        self.peers = peers
        self._peer = peers[host.name][1]
        self._network = setting.network
        self._ends: dict[Wire, End] = {}
        self._held: list[End] = []
        self._due_ns: int | None = None
        self._dials = self._group_work = True
        self._job_ns = setting.options.job_ns
        hostile = setting.options.hostile
        self._meter = setting.meter
        self._unit_ns = 0 if hostile is None else hostile.unit_ns
        self._units_max = turn_units_max(setting.options.limits)
        self._spent = 0  # units that the broker had charged for at its last turn
        self._view = (-1, "")
        self.member = make(setting.options, self)
        for address in peers[host.name]:
            setting.network.listen(address, self)
        self._plan()

    def heard(self, event: str, details: dict[str, object]) -> None:
        """What the member says about itself."""
        if event == "mistake":
            self.ledger.mistakes.append((self.world.now_ns, self.name, f"{details}"))
        elif event == "serving":
            self._dials = True
            self.ledger.promotions.append(
                Promotion(self.world.now_ns, self.name, state_of(self.member.broker), self.member.view.number)
            )
        self.events.append(event)
        self.world.tell(self.name, event, details)

    @property
    def leads(self) -> bool:
        return self.member.role is Role.PRIMARY

    def protects(self, living: list[MemberProcess]) -> bool:
        """Whether every other living member could take over from this primary, if it is not alone by plan,
        and it knows which are dead."""
        others = {each.name for each in living if each is not self}
        if not others:
            return len(self.peers) == 1
        return others == set(self.member.serving.protected_by) and self._copies()

    def is_covered(self, living: list[MemberProcess]) -> bool:
        """Whether everybody whom this primary believes to be an heir is one and knows it, and the first has
        the copies."""
        ready = {each.name for each in living if each.member.role is Role.BACKUP and not each.paused}
        return set(self.member.view.heirs) <= ready and self._copies()

    def _copies(self) -> bool:
        """Whether no other than the first heir is given the copies, and this primary knows that it serves."""
        heirs, serving = self.member.view.heirs, self.member.serving
        backup = self.member.core.board.backup
        elsewhere = isinstance(backup, Peer) and (backup.state.name,) != heirs[:1]
        return bool(heirs) and not elsewhere and not serving._giving and not serving.contest.holding

    # A step

    def feed(self, kind: int, end: End | None, data: Any) -> None:
        member, now_ns = self.member, self.world.now_ns
        if kind == CALL:
            number, won, standing, why = data
            self._dials = True
            member.claimed(number, won, now_ns, standing=standing, why=why)
            return
        if kind == FAILED:
            self._dials = True
            member.undialable(data, now_ns)
            return
        assert end is not None
        if kind == DATA:
            self._read(end, data)
            self._group_work |= end.address[1] == PEER_PORT
            return
        self._dials = True
        if kind == ACCEPTED:
            peer = data == self._peer
            wire = member.accept_peer(None, now_ns) if peer else member.open(None, now_ns)
            self._meet(end, wire)
        elif kind == OPENED:
            self._meet(end, member.dialed(data, None, now_ns))
        elif kind == LOST and end.handle in self._ends:
            del self._ends[end.handle]
            member.lost(end.handle, now_ns)

    def _meet(self, end: End, wire: Wire) -> None:
        if wire is None:
            end.close()
            return
        end.handle = wire
        self._ends[wire] = end

    def _read(self, end: End, data: bytes) -> None:
        for first in range(0, len(data), READ_BYTES):
            self._read_piece(end, data[first : first + READ_BYTES])

    def _read_piece(self, end: End, data: bytes) -> None:
        wire = end.handle
        if wire not in self._ends:
            return
        if end.unread or not wire.wants_bytes() or (self._full() and end.address[1] != PEER_PORT):
            if not end.unread:
                self._held.append(end)
            end.unread.append(data)
        else:
            wire.feed(data, self.world.now_ns, self.wall_ns)

    def _full(self) -> bool:
        """What was read since the last turn was much work: clients are not read before the next."""
        return self.member.broker.core.work_left <= 0

    def _read_held(self) -> None:
        """What waited while a wire was not to be read, as far as it may be read now."""
        ends, self._held = self._held, []
        for end in ends:
            while end.unread and end.handle.wants_bytes() and not self._full():
                end.handle.feed(end.unread.pop(0), self.world.now_ns, self.wall_ns)
            if end.unread:
                self._held.append(end)

    def reload(self, book: ContractBook) -> None:
        """Other contracts, as by SIGHUP."""
        self.book = book
        self.member.reload(book)
        self._dials = True
        self.wake()

    def turn(self) -> bool:
        if self.events:
            self.events.clear()
        if self._held:
            self._read_held()
        core, job_ns = self.member.broker.core, self._job_ns
        before = core.jobs_waiting
        read = 0 if self._meter is None else self._meter.read(self.member.broker, self._spent)
        leads = self.leads
        more = self.member.turn(self.world.now_ns, self.wall_ns)
        self.worked_ns = job_ns * (before - core.jobs_waiting)
        if self._meter is not None:
            self._charge(self._meter, read, leads and self.leads)
        return more or (not self._full() and any(end.handle.wants_bytes() for end in self._held))

    def _charge(self, meter: Meter, read: int, leads: bool) -> None:
        """What this step did takes time."""
        units, meter.units = meter.units + read, 0
        self._spent = self.member.broker.works.spent
        self.worked_ns += self._unit_ns * units
        now_ns = self.world.now_ns
        if leads and units > self._units_max:
            self.ledger.overwork.append((now_ns, self.name, units, self._units_max))
        for name, size, most in kept_by(self.member.broker):
            if size > most:
                self.ledger.overfull.append((now_ns, self.name, name, size, most))

    def outputs(self) -> Outputs:
        written = []
        for wire in self.member.broker.core.board.take_ready():
            end = self._ends.get(wire)
            if end is None:
                wire.take_output()
                continue
            if not end.peer.reads and not wire.closing:
                wire.writable = False
                continue
            if wire.closing and self._meter is not None and self.leads:
                self._note_hangup(end)
            written.append((end, wire.take_output(), wire.closing))
            if wire.closing:
                del self._ends[wire]
            else:
                wire.flushed()
        return written

    def _note_hangup(self, end: End) -> None:
        client = end.peer.process.name
        if end.address[1] != PEER_PORT and client != HOSTILE and end.peer.open:  # it did not leave itself
            self.ledger.hung_up.append((self.world.now_ns, self.name, client))

    def wrap_up(self) -> bool:
        member, now_ns = self.member, self.world.now_ns
        if self._dials or self._due_ns is None or self._due_ns <= now_ns:
            self._dials, self._group_work = False, True
            for name in member.take_dials():
                self._network.dial(self, self.peers[name][1], name)
        if self.arbiter is not None and member.claims:
            claims, member.claims = member.claims, []
            for claim in claims:
                self.arbiter.ask(self, claim)
        if self._group_work or self._due_ns is None:
            self._group_work = False
            self._due_ns = member.next_ns
        else:  # bytes of clients change nothing but what the broker itself waits for
            broker_ns = member.broker.next_ns
            if broker_ns is not None and broker_ns < self._due_ns:
                self._due_ns = broker_ns
        view = member.view
        if self._view != (view.number, view.primary):
            self._view = (view.number, view.primary)
            self.ledger.member_views.append(ViewSeen(now_ns, self.name, self.life, view.number, view.primary))
        return member.broker.core.board.waiting

    def next_ns(self) -> int | None:
        return self._due_ns

    def died(self) -> None:
        self._ends.clear()
        self._held.clear()
        self.member.broker.drain(self.world.now_ns)
