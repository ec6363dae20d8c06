"""What a broker process says of itself: BrokerStatus, and whether it is ready.

Laws:
- asking changes nothing, and costs the same however many clients and topics there are
- whatever grows with the contract file comes in pieces of CONTRACTS_AT_ONCE, so that the loop can do
  something else between them; numbers of two pieces may be of two moments
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.broker.broker import Broker
from holdfast.broker.system_topics import VERSION
from holdfast.broker.terms import Terms
from holdfast.mqtt.reasons import Reason
from holdfast.pieces import slices_of
from holdfast.replication.member import Member
from holdfast.replication.peers import PeerState
from holdfast.replication.roles import Role
from holdfast.runtime.keeping import Keeper
from holdfast.runtime.priority import Priority
from holdfast.runtime.server import Server
from holdfast.status import (
    CONTRACTS_MAX,
    BrokerStatus,
    ContractStatus,
    Histogram,
    JournalStatus,
    LinkStatus,
    Memory,
    MemoryPart,
    Promise,
    Queues,
    Reckoning,
    Traffic,
    Usage,
    encode_status,
)

CONTRACTS_AT_ONCE = 20
ALONE = "alone"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

READY = {
    Role.PRIMARY: "it serves",
    Role.BACKUP: "it has the state of the primary, and takes over when it is gone",
}
NOT_READY = {
    Role.JOINING: "it looks for a primary",
    Role.SYNCING: "it follows a primary, and does not have its state yet",
    Role.CLAIMING: "it has asked the arbiter for the next view, and has no answer yet",
}


class Reporter:
    def __init__(
        self, host: Broker | Member, server: Server, keeper: Keeper | None, priority: Priority
    ) -> None:
        self.host = host
        self.member = host if isinstance(host, Member) else None
        self.broker = host.broker if isinstance(host, Member) else host
        self._server = server
        self._keeper = keeper
        self._priority = priority
        self._started_at_ns = time.time_ns()

    @property
    def contracts(self) -> list[Terms]:
        """Those that are reported; what has no contract comes last, however many there are."""
        contracts = self.broker.contracts
        return [*contracts.contracts[: CONTRACTS_MAX - 1], contracts.default]

    @property
    def role(self) -> str:
        return ALONE if self.member is None else self.member.role.value

    def readiness(self) -> tuple[bool, str]:
        """Whether clients are served here, or would be at once if the primary went; and why, in words."""
        if self.broker.draining:
            return False, "it is shutting down"
        if self.member is None:
            return True, READY[Role.PRIMARY]
        if self.member.doubt is not None:
            return False, "it slept, and asks its heir whether it still serves"
        role = self.member.role
        words = READY.get(role) or NOT_READY[role]
        if apart := self._apart():
            return role in READY, "; ".join([words, *(f"it cannot join {each}" for each in apart)])
        if role is Role.JOINING and self.member.candidacy.refused:
            return False, f"{words}, and may not serve: {self.member.candidacy.refused}"
        return role in READY, words

    def _apart(self) -> list[str]:
        """Which members live and are not of its company, and why."""
        found = {} if self.member is None else self.member.peers.apart(time.monotonic_ns())
        return [f"{name}: {why}" for name, why in found.items()]

    def status(self) -> BrokerStatus:
        """Everything but the contracts."""
        broker, core, member = self.broker, self.broker.core, self.member
        ready, why = self.readiness()
        at_ns = time.time_ns()
        return BrokerStatus(
            version=VERSION,
            name=broker.name,
            group="" if member is None else member.group.name,
            pid=os.getpid(),
            started_at_ns=self._started_at_ns,
            at_ns=at_ns,
            uptime_ns=at_ns - self._started_at_ns,
            role=self.role,
            view=0 if member is None else member.view.number,
            primary="" if member is None else member.view.primary,
            heirs=[] if member is None else list(member.view.heirs),
            unarbitrated=member.group.unarbitrated if member is not None and member.group.zookeeper else "",
            unanswered=member is not None and member.serving.contest.unanswered,
            holding=member is not None and member.serving.holding,
            ready=ready,
            ready_why=why,
            apart=self._apart(),
            policy=broker.policy,
            connections=len(broker.connections),
            sessions=len(broker.clients.sessions),
            subscriptions=len(core.tree),
            topics=core.topics.count,
            reckoning=self._reckoning(),
            traffic=Traffic(
                messages_received=core.messages_received,
                messages_sent=core.board.messages_sent,
                messages_dropped=core.board.messages_dropped,
                messages_refused=core.messages_refused,
                duplicates=core.duplicates,
                bytes_received=core.bytes_received,
                bytes_sent=core.board.bytes_sent,
            ),
            queues=self._queues(),
            usage=usage(self._priority),
            memory=memory_of(broker, member),
            slices=Histogram(counts=self._server.slices.counts, sum_ns=self._server.slices.sum_ns),
            refusals={reason_name(reason): count for reason, count in sorted(broker.refusals.items())},
            links=[] if member is None else links_of(member, time.monotonic_ns()),
            failovers_total=0 if member is None else member.history.failovers_total,
            failovers_alive_total=0 if member is None else member.history.alive_total,
            **self._stalls(at_ns),
            failovers=[] if member is None else list(member.history.failovers),
            changes=[] if member is None else list(member.history.changes),
            journal=self._journal(),
            quotas=broker.access.quotas(time.monotonic_ns(), at_ns),
            contracts_left_out=max(0, len(broker.contracts.all) - CONTRACTS_MAX),
        )

    def status_json(self) -> Iterator[bytes]:
        """The status with its contracts, in pieces."""
        document = encode_status(self.status())
        end = b"]}"
        assert document.endswith(b'"contracts":[' + end), "contracts come last"
        yield document.removesuffix(end)
        comma = b""
        for contracts in slices_of(self.contracts, CONTRACTS_AT_ONCE):
            yield comma + msgspec.json.encode([contract_status(each) for each in contracts])[1:-1]
            comma = b","
        yield end

    def _reckoning(self) -> Reckoning:
        deployment, member = self.broker.contracts.book.deployment, self.member
        if member is None:
            return Reckoning(
                failover_ns=deployment.failover_ns,
                publisher_to_broker_ns=deployment.publisher_to_broker_ns,
                broker_to_backup_ns=deployment.broker_to_backup_ns,
            )
        return Reckoning(
            failover_ns=deployment.failover_ns,
            x_ns=member.core.failover_ns,
            silence_ns=member.silence.ns,
            silence_ns_max=None if member.silence.bound is None else member.silence.bound.silence_ns,
            silence_why=member.silence.why,
            failover_last_ns=member.failover_ns,
            failover_max_ns=member.failover_max_ns,
            publisher_to_broker_ns=deployment.publisher_to_broker_ns,
            broker_to_backup_ns=member.core.to_backup_ns,
            broker_to_backup_measured_ns=member.way.measured_ns,
        )

    def _stalls(self, at_ns: int) -> dict[str, Any]:
        """How often this process stood still."""
        if self.member is None:
            return {}
        own = self.member.silence.own
        woke_ns = time.monotonic_ns() - own.last_at_ns
        return {
            "stalls_total": own.total,
            "stalls": len(own),
            "stalls_longest_ns": own.longest_ns,
            "stalls_last_at_ns": at_ns - woke_ns if own.total else None,
        }

    def _queues(self) -> Queues:
        core = self.broker.core
        return Queues(
            jobs=core.jobs_waiting,
            jobs_max=core.jobs_ahead_max,
            control=len(core.control),
            messages=core.messages_held,
            messages_bytes=core.bytes_held,
            copies=0 if self.member is None else len(self.member.buffer),
            discards=core.board.discarded,
            retained=core.retained_count,
        )

    def _journal(self) -> JournalStatus | None:
        if self._keeper is None:
            return None
        journal, cut = self._keeper.journal, self._keeper.journal.cut
        return JournalStatus(
            state=self._keeper.keeping.health.value,
            bytes=journal.used_bytes,
            waiting_bytes=journal.waiting_bytes,
            cut_bytes=0 if cut is None else cut.bytes,
            cut_why="" if cut is None else f"{cut.file}, byte {cut.offset}: {cut.why}",
        )


def contract_status(terms: Terms) -> ContractStatus:
    contract = terms.contract
    return ContractStatus(
        name=terms.name,
        topics=list(contract.topics),
        promise=Promise(
            deadline_ns=terms.deadline_ns,
            loss_tolerance=contract.loss_tolerance,
            retention=terms.retention,
            period_ns=contract.period_ns,
            destination=contract.destination,
            to_subscriber_ns=terms.to_subscriber_ns,
            durable=terms.durable,
        ),
        published=terms.published,
        delivered=terms.delivered,
        late=terms.late,
        while_away=terms.while_away,
        late_last_at_ns=terms.late_ns or None,
        lost=terms.lost,
        lost_last_at_ns=terms.lost_ns or None,
        loss_run=terms.loss_run,
        loss_run_max=terms.loss_run_max,
        broken_last_at_ns=terms.broken_ns or None,
        dropped=terms.dropped,
        expired=terms.expired,
        replicated=terms.copied,
        replicated_late=terms.copied_late,
        aborted=terms.aborted,
        pruned=terms.pruned,
        latency=Histogram(counts=terms.latency_counts, sum_ns=terms.latency_sum_ns),
    )


def links_of(member: Member, now_ns: int) -> list[LinkStatus]:
    """Every other member, in the order of the group file."""
    found: list[LinkStatus] = []
    for config in member.group.members:
        if config.name == member.name:
            continue
        known = [peer for peer in member.peers.all() if peer.state.name == config.name and peer.state.greeted]
        if not known:
            found.append(LinkStatus(member=config.name, address=config.peer, health="down"))
            continue
        peer = known[-1]
        state: PeerState = peer.state
        found.append(
            LinkStatus(
                member=config.name,
                address=config.peer,
                health="silent" if state.mute else "up",
                role=state.role.value,
                view=state.view,
                way_ns=state.way_ns,
                heard_ns=max(0, now_ns - peer.heard_ns),
                behind=max(0, member.log.number - state.has) if state.follows else None,
                waiting_bytes=peer.output_size,
                backup=member.core.board.backup is peer,
                contracts_differ=state.differs,
            )
        )
    return found


def memory_of(broker: Broker, member: Member | None) -> Memory:
    """What is kept for clients, by the bounds of the limits."""
    core, limits = broker.core, broker.limits
    backup = core.board.backup
    kept = (
        ("queues", core.board.sessions_bytes, limits.buffer_bytes_max),
        ("retained", core.retained_taken, limits.retained_bytes_max),
        ("topics", core.topics.bytes_held, limits.topics_bytes_max),
        ("pending", core.pending_bytes, limits.pending_bytes_max),
        ("connecting", core.connecting_bytes, limits.connecting_bytes_max),
        ("output", core.board.outputs.bytes_waiting, limits.output_bytes_max),
        ("backup", 0 if backup is None else backup.output_size, limits.backup_bytes_max),
        ("sessions", broker.holdings.total, limits.sessions_bytes_max),
        ("state log", 0 if member is None else member.log.kept_bytes, limits.state_log_bytes_max),
    )
    parts = [MemoryPart(name=name, bytes=size, bytes_max=most) for name, size, most in kept]
    return Memory(bytes=sum(part.bytes for part in parts), bytes_max=limits.memory_bytes_max, parts=parts)


def reason_name(reason: int) -> str:
    try:
        return Reason(reason).name.lower()
    except ValueError:
        return f"0x{reason:02x}"


def usage(priority: Priority) -> Usage:
    """What this process uses of the machine."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/statm") as file:
        resident_pages = int(file.read().split()[1])
    return Usage(
        cpu_ns=int((spent.ru_utime + spent.ru_stime) * 1e9),
        memory_bytes=resident_pages * PAGE_BYTES,
        files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        processor=priority.processor,
        locked=priority.memory,
    )
