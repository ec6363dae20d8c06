"""FRAME's timing bounds, in whole nanoseconds, nothing rounded; None is infinite.

- Lemma 1: a copy that is at the backup within D_r = (N + L)·T − Δ_PB − Δ_BB − x of the arrival keeps L.
- Lemma 2: a dispatch within D_d = D − Δ_PB − Δ_BS of the arrival keeps D.
- A rare alarm (T = ∞) with N + L ≥ 1 has all the time there is; with N + L = 0 it has none.
"""

from __future__ import annotations

from holdfast.contract.model import Contract, Deployment


def custody_gap_ns(deployment: Deployment) -> int:
    """Δ_PB + Δ_BB + x: how long a message may exist only in a broker that has just crashed."""
    return deployment.publisher_to_broker_ns + deployment.broker_to_backup_ns + deployment.failover_ns


def travel_ns(contract: Contract, deployment: Deployment) -> int:
    """Δ_PB + Δ_BS: what no scheduling can save, and so the shortest deadline that can be met."""
    return deployment.publisher_to_broker_ns + deployment.broker_to_subscriber_ns[contract.destination]


def replication_deadline_ns(contract: Contract, deployment: Deployment) -> int | None:
    """D_r of Lemma 1, from the arrival at the broker."""
    if contract.loss_tolerance is None:
        return None
    covered = contract.retention + contract.loss_tolerance
    if contract.period_ns is None:
        return None if covered else -custody_gap_ns(deployment)
    return covered * contract.period_ns - custody_gap_ns(deployment)


def dispatch_deadline_ns(contract: Contract, deployment: Deployment) -> int:
    """D_d of Lemma 2, from the arrival at the broker."""
    return contract.deadline_ns - travel_ns(contract, deployment)


def covered_min(contract: Contract, at_least_ns: int, deployment: Deployment) -> int:
    """The smallest N + L for which D_r is at least `at_least_ns`."""
    needed_ns = max(0, at_least_ns + custody_gap_ns(deployment))
    if contract.period_ns is None:
        return 1 if needed_ns else 0
    return -(-needed_ns // contract.period_ns)
