"""Laws of the bounds and of admission, for any contract in any deployment."""

import msgspec
import pytest
from contract_strategies import contracts, deployments
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contract.admission import (
    admit,
    admit_requirement,
    loss_tolerance_min,
    order_groups,
    retention_min,
    strictest,
)
from holdfast.contract.model import Contract, Deployment
from holdfast.contract.requirement import NOTHING, Requirement

EDGE_1_MS = Deployment(
    failover_ns=50_000_000,
    publisher_to_broker_ns=0,
    broker_to_backup_ns=50_000,
    broker_to_subscriber_ns={"edge": 1_000_000},
)
REPLACE = msgspec.structs.replace
INFINITE = float("inf")


def infinite(value: int | None) -> float:
    return INFINITE if value is None else value


def least(fits: "list[bool]") -> int:
    return fits.index(True)


@given(contracts(), deployments)
def test_admission_is_the_two_bounds(contract: Contract, deployment: Deployment) -> None:
    """Stated again with floats and infinities, independently of the code under test."""
    x = deployment.failover_ns
    pb = deployment.publisher_to_broker_ns
    covered = contract.retention + infinite(contract.loss_tolerance)
    custody = 0 if covered == 0 else covered * infinite(contract.period_ns)
    d_r = custody - pb - deployment.broker_to_backup_ns - x
    d_d = contract.deadline_ns - pb - deployment.broker_to_subscriber_ns[contract.destination]
    admission = admit(contract, deployment)
    assert infinite(admission.replication_deadline_ns) == d_r
    assert admission.dispatch_deadline_ns == d_d
    assert admission.admitted == (d_r >= 0 and d_d >= 0)
    assert admission.replicate == (admission.admitted and d_d > d_r)
    assert admission.reason


@given(contracts(), deployments)
def test_the_smallest_retention_is_admitted_and_the_smallest(
    contract: Contract, deployment: Deployment
) -> None:
    def bound_holds(retention: int) -> bool:
        bound = admit(REPLACE(contract, retention=retention), deployment).replication_deadline_ns
        return bound is None or bound >= 0

    assert retention_min(contract, deployment) == least([bound_holds(n) for n in range(50)])
    admission = admit(contract, deployment)
    if admission.retention_min is None:
        assert admission.dispatch_deadline_ns < 0
    else:
        assert admit(REPLACE(contract, retention=admission.retention_min), deployment).admitted


@given(contracts(), deployments)
def test_the_smallest_loss_tolerance_is_the_smallest(contract: Contract, deployment: Deployment) -> None:
    def bound_holds(tolerance: int) -> bool:
        bound = admit(REPLACE(contract, loss_tolerance=tolerance), deployment).replication_deadline_ns
        return bound is None or bound >= 0

    assert loss_tolerance_min(contract, deployment) == least([bound_holds(n) for n in range(50)])


@given(contracts(), deployments)
def test_the_retention_that_does_without_replication_does(contract: Contract, deployment: Deployment) -> None:
    admission = admit(contract, deployment)
    if admission.replicate:
        enough = retention_min(contract, deployment, at_least_ns=admission.dispatch_deadline_ns)
        assert f"retention {enough} would do without" in admission.reason
        assert not admit(REPLACE(contract, retention=enough), deployment).replicate
        assert admit(REPLACE(contract, retention=enough - 1), deployment).replicate


@given(contracts(), deployments, st.none() | st.integers(0, 60), st.none() | st.integers(0, 4))
def test_a_requirement_never_weakens_a_contract(
    contract: Contract, deployment: Deployment, deadline_ns: int | None, loss_tolerance: int | None
) -> None:
    requirement = Requirement(deadline_ns, loss_tolerance)
    wanted = strictest(contract, requirement)
    assert wanted.deadline_ns == max(1, min(contract.deadline_ns, infinite(deadline_ns)))
    assert infinite(wanted.loss_tolerance) == min(infinite(contract.loss_tolerance), infinite(loss_tolerance))
    asked = admit_requirement(contract, deployment, requirement)
    assert asked == admit(wanted, deployment)
    if asked.admitted:
        assert admit(contract, deployment).admitted


def test_nothing_asked_for_is_the_contract_itself() -> None:
    contract = Contract(name="a", topics=("a",), period_ns=10**8, deadline_ns=10**8, loss_tolerance=3)
    assert admit_requirement(contract, EDGE_1_MS, NOTHING) == admit(contract, EDGE_1_MS)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"deadline_ns": 500_000}, ["deadline 0.5ms cannot be met", "at least 1ms would do"]),
        ({"deadline_ns": 0}, ["deadline 1ns cannot be met", "0.999999ms more"]),
        ({"loss_tolerance": 0}, ["loss tolerance 0 cannot be kept", "retention of at least 1", "at least 1"]),
        ({"deadline_ns": 0, "loss_tolerance": 0}, ["deadline 1ns cannot", "loss tolerance 0 cannot"]),
    ],
)
def test_a_refused_requirement_says_what_would_do(asked: dict[str, int], words: list[str]) -> None:
    contract = Contract(name="a", topics=("a",), period_ns=10**8, deadline_ns=10**8, loss_tolerance=3)
    refused = admit_requirement(contract, EDGE_1_MS, Requirement(**asked))
    assert not refused.admitted
    assert all(word in refused.reason for word in words), refused.reason


@given(st.lists(contracts(), max_size=6), deployments)
def test_order_is_ascending_and_complete(many: list[Contract], deployment: Deployment) -> None:
    named = [REPLACE(contract, name=str(index)) for index, contract in enumerate(many)]
    groups = order_groups(named, deployment)
    values = [value for value, _ in groups]
    assert values == sorted(set(values))
    found = {name: value for value, names in groups for name in names}
    expected = {}
    for contract in named:
        admission = admit(contract, deployment)
        expected[f"D_d({contract.name})"] = admission.dispatch_deadline_ns
        if admission.replication_deadline_ns is not None:
            expected[f"D_r({contract.name})"] = admission.replication_deadline_ns
    assert found == expected
