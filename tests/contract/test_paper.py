"""What the FRAME paper publishes (sections III-C, III-D and VI), checked number by number."""

from pathlib import Path

import msgspec
import pytest

from holdfast.contract.admission import admit, order, order_groups, retention_min
from holdfast.contract.bounds import dispatch_deadline_ns, replication_deadline_ns
from holdfast.contract.file import load_contracts
from holdfast.contract.model import Contract, ContractBook
from holdfast.contract.plan import make_plan
from holdfast.units import ms_of

EXAMPLES = Path(__file__).parents[2] / "examples"

# category: D_d, D_r (None: infinite), replicate, the minimum N of Table 2; milliseconds
PUBLISHED = {
    "0": (49.0, 49.95, False, 2),
    "1": (49.0, 99.95, False, 0),
    "2": (99.0, 49.95, True, 1),
    "3": (99.0, 249.95, False, 0),
    "4": (99.0, None, False, 0),
    "5": (480.0, 449.95, True, 1),
}


@pytest.fixture(scope="module")
def frame() -> ContractBook:
    return load_contracts(EXAMPLES / "frame.toml")


@pytest.fixture(scope="module")
def frame_plus() -> ContractBook:
    return load_contracts(EXAMPLES / "frame-plus.toml")


def named(book: ContractBook, name: str) -> Contract:
    return next(contract for contract in book.contracts if contract.name == name)


@pytest.mark.parametrize("category", PUBLISHED)
def test_lemma_1_replication_deadline(frame: ContractBook, category: str) -> None:
    """Section III-C, equation (1), with the values of section III-D.2."""
    value_ns = replication_deadline_ns(named(frame, category), frame.deployment)
    assert (None if value_ns is None else ms_of(value_ns)) == PUBLISHED[category][1]


@pytest.mark.parametrize("category", PUBLISHED)
def test_lemma_2_dispatch_deadline(frame: ContractBook, category: str) -> None:
    """Section III-C, equation (2), with the values of section III-D.2."""
    assert ms_of(dispatch_deadline_ns(named(frame, category), frame.deployment)) == PUBLISHED[category][0]


@pytest.mark.parametrize("category", PUBLISHED)
def test_proposition_1_selective_replication(frame: ContractBook, category: str) -> None:
    """Section III-D.2: only categories 2 and 5 need replication."""
    assert admit(named(frame, category), frame.deployment).replicate is PUBLISHED[category][2]


@pytest.mark.parametrize("category", PUBLISHED)
def test_table_2_minimum_retention(frame: ContractBook, category: str) -> None:
    """Table 2, fifth column: the minimum N for which D_r is not negative, and one less is refused."""
    contract = named(frame, category)
    least = retention_min(contract, frame.deployment)
    assert least == contract.retention == PUBLISHED[category][3]
    if least:
        fewer = msgspec.structs.replace(contract, retention=least - 1)
        refused = admit(fewer, frame.deployment)
        assert not refused.admitted
        assert refused.retention_min == least
        assert f"retention of at least {least} would do" in refused.reason


def test_published_order_of_deadlines(frame: ContractBook) -> None:
    """Section III-D.2: {D0d=D1d < D0r=D2r < D2d=D3d=D4d < D1r < D3r < D5r < D5d}."""
    groups = [set(names) for _, names in order_groups(frame.contracts, frame.deployment)]
    assert groups == [
        {"D_d(0)", "D_d(1)"},
        {"D_r(0)", "D_r(2)"},
        {"D_d(2)", "D_d(3)", "D_d(4)"},
        {"D_r(1)"},
        {"D_r(3)"},
        {"D_r(5)"},
        {"D_d(5)"},
    ]
    assert " ".join(order(frame.contracts, frame.deployment)) == (
        "D_d(0) D_d(1) D_r(0) D_r(2) D_d(2) D_d(3) D_d(4) D_r(1) D_r(3) D_r(5) D_d(5)"
    )


def test_workload_of_1525_topics(frame: ContractBook) -> None:
    """Section VI: ten topics each in categories 0 and 1, five in category 5, the rest in 2 to 4."""
    assert [contract.count for contract in frame.contracts] == [10, 10, 500, 500, 500, 5]
    plan = make_plan(frame)
    assert plan.admitted
    assert plan.replicated_fraction == 505 / 1525


def test_frame_plus_replicates_nothing(frame: ContractBook, frame_plus: ContractBook) -> None:
    """Section III-D.3: one message more of retention in categories 2 and 5 and D_d < D_r in both."""
    plan = make_plan(frame_plus)
    assert plan.admitted
    assert plan.replicated_fraction == 0
    assert not any(admission.replicate for _, admission in plan.admissions)
    for before, after in zip(frame.contracts, frame_plus.contracts, strict=True):
        more = 1 if before.name in "25" else 0
        assert after == msgspec.structs.replace(before, retention=before.retention + more)


def test_rare_alarms_have_no_period(frame: ContractBook) -> None:
    """Section III-D.4: T = ∞ and L = 0 is admissible with N above zero, and needs no replication."""
    alarm = Contract(name="alarm", topics=("alarm/#",), deadline_ns=2_000_000, loss_tolerance=0, retention=1)
    admission = admit(alarm, frame.deployment)
    assert admission.admitted
    assert not admission.replicate
    assert admission.replication_deadline_ns is None
    bare = admit(msgspec.structs.replace(alarm, retention=0), frame.deployment)
    assert not bare.admitted
    assert bare.retention_min == 1


def test_a_deadline_longer_than_the_period(frame: ContractBook) -> None:
    """Section III-D.4: D > T, as in streaming, likely needs replication."""
    stream = msgspec.structs.replace(named(frame, "2"), deadline_ns=1_000_000_000)
    admission = admit(stream, frame.deployment)
    assert admission.admitted
    assert admission.replicate
