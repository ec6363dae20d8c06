"""The bounds on a contract's page are those of `contract.bounds`, with its own numbers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contract.admission import admit
from holdfast.contract.model import Contract, Deployment
from holdfast.dashboard.render import worked_out
from holdfast.dashboard.worked import CHOICES_MAX, work_out
from holdfast.units import MS, US, S

DEPLOYMENT = Deployment(
    failover_ns=50 * MS,
    publisher_to_broker_ns=0,
    broker_to_backup_ns=50 * US,
    broker_to_subscriber_ns={"edge": 1 * MS},
)


def made(
    *, period_ns: int | None = 100 * MS, deadline_ns: int = 100 * MS, tolerance: int | None = 0, kept: int = 1
) -> Contract:
    return Contract(
        name="metering",
        topics=("plant/metering/+",),
        period_ns=period_ns,
        deadline_ns=deadline_ns,
        loss_tolerance=tolerance,
        retention=kept,
        destination="edge",
    )


def spaced(text: str) -> str:
    return text.replace("\N{NARROW NO-BREAK SPACE}", " ")


def test_the_numbers_of_the_published_category_2() -> None:
    copy, dispatch, decision = work_out(made(), DEPLOYMENT).lemmas
    assert spaced(copy.numbers) == "(1 + 0) · 100 ms − 0 ms − 0.05 ms − 50 ms = 49.95 ms"
    assert spaced(dispatch.numbers) == "100 ms − 0 ms − 1 ms = 99 ms"
    assert spaced(decision.numbers) == "99 ms > 49.95 ms"
    assert "the backup gets one" in decision.meaning


def test_what_another_n_would_do() -> None:
    """The published FRAME+: one more kept message, and nothing of the category is copied any more."""
    choices = work_out(made(), DEPLOYMENT).choices
    assert [(each.retention, each.outcome, each.current) for each in choices] == [
        (0, "refused", False),
        (1, "copied", True),
        (2, "not copied", False),
        (3, "not copied", False),
    ]


@pytest.mark.parametrize(
    ("contract", "words"),
    [
        (made(tolerance=None), "Best effort"),
        (made(period_ns=None), "A rare alarm"),
        (made(kept=0), "Negative: a crash can lose more than 0 in a row"),
    ],
)
def test_the_edges_are_said(contract: Contract, words: str) -> None:
    assert work_out(contract, DEPLOYMENT).lemmas[0].meaning.startswith(words)


def test_a_deadline_shorter_than_the_way_is_said() -> None:
    worked = work_out(made(deadline_ns=MS // 2), DEPLOYMENT)
    assert worked.lemmas[1].meaning.startswith("Negative")
    assert worked.lemmas[2].meaning.startswith("It cannot be promised")
    assert {each.outcome for each in worked.choices} == {"refused"}


@given(
    period_ns=st.none() | st.integers(1 * MS, 10 * S),
    deadline_ns=st.integers(1, 10 * S),
    tolerance=st.none() | st.integers(0, 100),
    kept=st.integers(0, 1000),
)
def test_every_choice_is_what_admission_says(
    period_ns: int | None, deadline_ns: int, tolerance: int | None, kept: int
) -> None:
    contract = made(period_ns=period_ns, deadline_ns=deadline_ns, tolerance=tolerance, kept=kept)
    worked = work_out(contract, DEPLOYMENT)
    assert 1 <= len(worked.choices) <= CHOICES_MAX + 1
    assert [each.retention for each in worked.choices if each.current] == [kept]
    for each in worked.choices:
        found = admit(
            made(period_ns=period_ns, deadline_ns=deadline_ns, tolerance=tolerance, kept=each.retention),
            DEPLOYMENT,
        )
        outcome = "refused" if not found.admitted else "copied" if found.replicate else "not copied"
        assert each.outcome == outcome
    assert re.sub("<[^>]+>", "", worked_out(worked)).count("(now)") == 1
