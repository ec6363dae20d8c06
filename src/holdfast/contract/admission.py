"""Whether a contract can be kept, and what must be replicated to keep it.

- Admitted exactly if D_r ≥ 0 and D_d ≥ 0 (FRAME, section III-D.1).
- Replicated exactly if admitted and D_d > D_r (Proposition 1); best effort never is.
- A refusal says which bound fails, by how much, and what would be admissible. Nothing is weakened silently.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import msgspec

from holdfast.contract.bounds import (
    covered_min,
    custody_gap_ns,
    dispatch_deadline_ns,
    replication_deadline_ns,
    travel_ns,
)
from holdfast.contract.model import Contract, Deployment
from holdfast.contract.requirement import Requirement, smaller
from holdfast.units import format_duration


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one contract. `retention_min` is the smallest N that would do, None if none does."""

    admitted: bool
    dispatch_deadline_ns: int
    replication_deadline_ns: int | None
    replicate: bool
    retention_min: int | None
    reason: str


def admit(contract: Contract, deployment: Deployment) -> Admission:
    """Lemmas 1 and 2 and Proposition 1 for one contract."""
    dispatch_ns = dispatch_deadline_ns(contract, deployment)
    replication_ns = replication_deadline_ns(contract, deployment)
    in_time = dispatch_ns >= 0
    safe = replication_ns is None or replication_ns >= 0
    replicate = in_time and safe and replication_ns is not None and dispatch_ns > replication_ns
    if in_time and safe:
        reason = _admitted_reason(contract, deployment, dispatch_ns, replication_ns)
    else:
        refusals = [] if in_time else [_deadline_refusal(contract, deployment)]
        refusals += [] if safe else [_loss_refusal(contract, deployment)]
        reason = "; ".join(refusals)
    return Admission(
        admitted=in_time and safe,
        dispatch_deadline_ns=dispatch_ns,
        replication_deadline_ns=replication_ns,
        replicate=replicate,
        retention_min=retention_min(contract, deployment) if in_time else None,
        reason=reason,
    )


def retention_min(contract: Contract, deployment: Deployment, at_least_ns: int = 0) -> int:
    """The smallest N for which D_r is at least `at_least_ns`."""
    if contract.loss_tolerance is None:
        return 0
    return max(0, covered_min(contract, at_least_ns, deployment) - contract.loss_tolerance)


def loss_tolerance_min(contract: Contract, deployment: Deployment) -> int:
    """The smallest L that the contract's N can keep."""
    return max(0, covered_min(contract, 0, deployment) - contract.retention)


def admit_requirement(contract: Contract, deployment: Deployment, requirement: Requirement) -> Admission:
    """The contract together with what a subscriber asks for. The promise that results is `strictest(...)`."""
    return admit(strictest(contract, requirement), deployment)


def strictest(contract: Contract, requirement: Requirement) -> Contract:
    """The contract with the smaller of each deadline and each loss tolerance. No deadline is 0."""
    deadline_ns = smaller(contract.deadline_ns, requirement.deadline_ns)
    return msgspec.structs.replace(
        contract,
        deadline_ns=max(1, deadline_ns or 0),
        loss_tolerance=smaller(contract.loss_tolerance, requirement.loss_tolerance),
    )


def _admitted_reason(
    contract: Contract, deployment: Deployment, dispatch_ns: int, replication_ns: int | None
) -> str:
    if contract.loss_tolerance is None:
        return "best effort: nothing to replicate"
    if replication_ns is None:
        return "a rare alarm that the publisher or the loss tolerance covers: nothing to replicate"
    dispatch, replication = format_duration(dispatch_ns), format_duration(replication_ns)
    if dispatch_ns <= replication_ns:
        return f"dispatched within {dispatch}, before a copy would be needed at {replication}"
    without = retention_min(contract, deployment, at_least_ns=dispatch_ns)
    return (
        f"a copy is needed within {replication}, dispatch may take {dispatch}: replicated; "
        f"retention {without} would do without"
    )


def _deadline_refusal(contract: Contract, deployment: Deployment) -> str:
    travel = travel_ns(contract, deployment)
    return (
        f"deadline {format_duration(contract.deadline_ns)} cannot be met: publisher to broker and broker to "
        f"{contract.destination} take {format_duration(travel)}, "
        f"{format_duration(travel - contract.deadline_ns)} more; a deadline of at least "
        f"{format_duration(travel)} would do"
    )


def _loss_refusal(contract: Contract, deployment: Deployment) -> str:
    assert contract.loss_tolerance is not None
    gap = format_duration(custody_gap_ns(deployment))
    covered = contract.retention + contract.loss_tolerance
    if contract.period_ns is None:
        cause = f"a message lost with the broker is kept nowhere else for the {gap} until a copy is safe"
    else:
        held_ns = covered * contract.period_ns
        short = format_duration(custody_gap_ns(deployment) - held_ns)
        cause = (
            f"retention {contract.retention} and the tolerance cover {format_duration(held_ns)} of messages, "
            f"failover and copying take {gap}, {short} more"
        )
    return (
        f"loss tolerance {contract.loss_tolerance} cannot be kept: {cause}; "
        f"retention of at least {retention_min(contract, deployment)} would do, "
        f"or a loss tolerance of at least {loss_tolerance_min(contract, deployment)}"
    )


def order_groups(
    contracts: Iterable[Contract], deployment: Deployment
) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """All finite deadlines, ascending, equal ones together: ((49_000_000, ("D_d(0)", "D_d(1)")), …).

    Equal ones stand dispatch before replication, then in the order of the contracts.
    """
    values: list[tuple[int, int, int, str]] = []
    for index, contract in enumerate(contracts):
        values.append((dispatch_deadline_ns(contract, deployment), 0, index, f"D_d({contract.name})"))
        replication_ns = replication_deadline_ns(contract, deployment)
        if replication_ns is not None:
            values.append((replication_ns, 1, index, f"D_r({contract.name})"))
    values.sort()
    return tuple(
        (value_ns, tuple(name for *_, name in group))
        for value_ns, group in groupby(values, key=lambda v: v[0])
    )


def order(contracts: Iterable[Contract], deployment: Deployment) -> list[str]:
    """The names of `order_groups` in one list, most urgent first: ["D_d(0)", "D_d(1)", "D_r(0)", …]."""
    return [name for _, names in order_groups(contracts, deployment) for name in names]
