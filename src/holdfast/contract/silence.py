"""How long a failover may take at most, by the contracts: so long a group may wait for a silent member.

Laws:
- with the x found here every contract is admitted that is admitted with the x of the file, and no contract is
  replicated that is not replicated with that
- silence and redirect together are no longer than x, nor than any deadline can wait; but silence is three
  heartbeats at least
- what a subscriber asks for counts as a contract does
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.contract.bounds import dispatch_deadline_ns, replication_deadline_ns
from holdfast.contract.model import Contract, ContractBook, Deployment
from holdfast.units import MS, format_duration

REDIRECT_NS = 10 * MS  # what a takeover and its news take at least, the ways between hosts aside
COPY_ROOM_NS = 3 * MS  # that a longer x leaves to a copy: it waits 1 ms, and is sent 1 ms before its time
BEATS = 3  # heartbeats that silence takes at least: one may be lost, one late


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """`silence_ns` is the longest silence, `x_ns` what the proof reckons with for it; `contract` and `why`
    say what makes it no longer."""

    silence_ns: int
    x_ns: int
    redirect_ns: int
    contract: str
    why: str

    def __str__(self) -> str:
        return f"contract {self.contract!r}: {self.why}"


class _Limit(msgspec.Struct, frozen=True, order=True):
    x_ns: int
    contract: str
    why: str


def silence_bound(
    book: ContractBook,
    *,
    heartbeat_ns: int,
    redirect_ns: int = REDIRECT_NS,
    asked: Iterable[Contract] = (),
) -> Bound:
    """For the contracts of a book, and those that subscribers made stricter."""
    deployment = book.deployment
    contracts = (*book.contracts, book.default, *asked)
    in_time = min(_in_time(contract, deployment) for contract in contracts)
    losses = [limit for contract in contracts for limit in _losses(contract, deployment)]
    tightest = min(losses, default=in_time)
    longest_ns = max(tightest.x_ns, deployment.failover_ns)
    if in_time.x_ns <= longest_ns:
        tightest = in_time
    redirect_ns += deployment.publisher_to_broker_ns + deployment.broker_to_backup_ns
    silence_ns = min(longest_ns, in_time.x_ns) - redirect_ns
    silence_ns = max(silence_ns, BEATS * heartbeat_ns)
    return Bound(
        silence_ns=silence_ns,
        x_ns=max(deployment.failover_ns, min(longest_ns, silence_ns + redirect_ns)),
        redirect_ns=redirect_ns,
        contract=tightest.contract,
        why=tightest.why,
    )


def _in_time(contract: Contract, deployment: Deployment) -> _Limit:
    deadline = format_duration(contract.deadline_ns)
    return _Limit(dispatch_deadline_ns(contract, deployment), contract.name, f"its deadline is {deadline}")


def _losses(contract: Contract, deployment: Deployment) -> Iterator[_Limit]:
    replication_ns = replication_deadline_ns(contract, deployment)
    if replication_ns is None or contract.period_ns is None:
        return
    dispatch_ns = dispatch_deadline_ns(contract, deployment)
    used_up_ns = replication_ns + deployment.failover_ns  # the x that leaves no time to copy
    covered = format_duration(used_up_ns)
    if dispatch_ns > replication_ns:
        why = f"its retention and tolerance cover {covered} of messages"
        yield _Limit(used_up_ns - COPY_ROOM_NS, contract.name, why)
    else:
        why = f"its retention and tolerance cover {covered} of messages, and with less it would be replicated"
        yield _Limit(used_up_ns - dispatch_ns - COPY_ROOM_NS, contract.name, why)
