"""What was measured against what is configured."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contract.file import load_contracts
from holdfast.contract.measured import FIGURES, IN_FORCE, Measured, compare, in_force, parse_figures
from holdfast.contract.model import ContractBook
from holdfast.contract.plan import make_plan

MS = 1_000_000
FRAME = Path(__file__).parents[2] / "examples" / "frame.toml"


@pytest.fixture(scope="module")
def book() -> ContractBook:
    return load_contracts(FRAME)


def test_nothing_longer_is_nothing_to_say(book: ContractBook) -> None:
    for measured in (Measured(), Measured(failover_ns=50 * MS, broker_to_backup_ns=49_000)):
        assert compare(book, make_plan(book), measured).warnings() == []


def test_a_longer_failover_says_by_how_much_and_what_it_costs(book: ContractBook) -> None:
    found = compare(book, make_plan(book), Measured(failover_ns=61 * MS))
    assert found.refused == ()
    assert found.replicated == ("0",)
    assert found.warnings() == [
        "deployment.failover is 50ms, and 61ms was measured: 11ms more",
        "with what was measured, replicated too: 0",
    ]


def test_contracts_that_cannot_be_kept_are_named(book: ContractBook) -> None:
    found = compare(book, make_plan(book), Measured(failover_ns=101 * MS, broker_to_backup_ns=60_000))
    assert found.refused == ("0", "2")
    assert [excess.key for excess in found.excesses] == ["failover", "broker_to_backup"]


@given(st.none() | st.integers(0, 10**9), st.none() | st.integers(0, 10**9))
def test_figures_survive_the_way_through_topics(failover_us: int | None, way_us: int | None) -> None:
    texts = {
        FIGURES["failover"]: "" if failover_us is None else str(failover_us),
        FIGURES["broker_to_backup"]: "" if way_us is None else str(way_us),
    }
    measured = parse_figures(texts)
    assert measured.failover_ns == (None if failover_us is None else failover_us * 1000)
    assert measured.broker_to_backup_ns == (None if way_us is None else way_us * 1000)


@pytest.mark.parametrize("text", ["", "-", "inf", "nan", "1e400", "x"])
def test_what_is_no_number_was_not_measured(text: str) -> None:
    assert parse_figures({FIGURES["failover"]: text}).failover_ns is None


def test_a_failover_within_the_x_in_force_is_still_longer_than_the_file_says(book: ContractBook) -> None:
    measured = Measured(failover_ns=61 * MS, x_ns=61 * MS)
    assert compare(book, make_plan(book), measured).warnings() == [
        "deployment.failover is 50ms, and 61ms was measured: 11ms more; "
        "the group reckons with 61ms at the moment",
        "with what was measured, replicated too: 0",
    ]
    measured = Measured(failover_ns=62 * MS, x_ns=61 * MS)
    found = compare(book, make_plan(book), measured)
    assert found.warnings()[0] == "deployment.failover is 50ms, and 62ms was measured: 12ms more"
    measured = Measured(failover_ns=40 * MS, x_ns=61 * MS)
    assert compare(book, make_plan(book), measured).warnings() == []


def test_what_is_in_force_is_told_with_what_it_costs(book: ContractBook) -> None:
    told = {
        IN_FORCE["x"]: "50000",
        IN_FORCE["silence"]: "38950",
        IN_FORCE["why"]: "contract '0': its deadline",
    }
    assert in_force(book, parse_figures(told)) == [
        "in force: a silent member is waited for 38.95ms, x is 50ms: contract '0': its deadline",
        "late if a primary falls silent: some messages of 0, 1",
    ]
    longer = in_force(book, Measured(x_ns=90 * MS, silence_ns=80 * MS))
    assert longer[1:] == [
        "it costs earlier copies: 2 within 9.95ms, 5 within 409.95ms",
        "late if a primary falls silent: some messages of 0, 1",
    ]
    assert in_force(book, Measured()) == []
    assert in_force(ContractBook(), Measured(x_ns=50 * MS, silence_ns=30 * MS))[1] == (
        "it costs no contract anything"
    )
