"""How long the contracts bear a silent primary: never so long that one is not kept, or copied for it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.contract.contract_strategies import contracts, deployments

from holdfast.contract.admission import admit
from holdfast.contract.bounds import dispatch_deadline_ns
from holdfast.contract.file import load_contracts
from holdfast.contract.model import Contract, ContractBook, Deployment
from holdfast.contract.silence import COPY_ROOM_NS, REDIRECT_NS, silence_bound
from holdfast.units import MS, US

FRAME = Path(__file__).parents[2] / "examples" / "frame.toml"
BEAT_NS = 10 * MS


def test_the_example_of_the_page() -> None:
    alarm = Contract(
        name="alarm",
        topics=("shop/alarm/+",),
        period_ns=200 * MS,
        deadline_ns=150 * MS,
        loss_tolerance=0,
        retention=2,
    )
    book = ContractBook(contracts=(alarm,))
    found = silence_bound(book, heartbeat_ns=BEAT_NS)
    assert (found.silence_ns, found.x_ns) == (139_950 * US, 150 * MS)
    patient = ContractBook(contracts=(msgspec.structs.replace(alarm, deadline_ns=250 * MS),))
    assert silence_bound(patient, heartbeat_ns=BEAT_NS).x_ns == (400_000 - 50 - 250_000) * US - COPY_ROOM_NS
    for x_ns, copied in ((246_950 * US + COPY_ROOM_NS, False), (246_950 * US + COPY_ROOM_NS + 1, True)):
        assert admit(alarm, Deployment(failover_ns=x_ns)).replicate is copied


@st.composite
def books(draw: st.DrawFn) -> ContractBook:
    small = draw(deployments)
    deployment = Deployment(
        failover_ns=small.failover_ns * MS,
        publisher_to_broker_ns=small.publisher_to_broker_ns * MS,
        broker_to_backup_ns=small.broker_to_backup_ns * MS,
        broker_to_subscriber_ns={name: ns * MS for name, ns in small.broker_to_subscriber_ns.items()},
    )
    made = []
    for index in range(draw(st.integers(0, 4))):
        each = draw(contracts(f"c{index}"))
        period_ns = None if each.period_ns is None else each.period_ns * MS
        made.append(msgspec.structs.replace(each, period_ns=period_ns, deadline_ns=each.deadline_ns * 5 * MS))
    return ContractBook(
        deployment=deployment,
        contracts=tuple(each for each in made if admit(each, deployment).admitted),
        default=msgspec.structs.replace(ContractBook().default, destination="edge"),
    )


@given(books())
def test_with_the_x_of_the_bound_the_same_is_admitted_and_the_same_is_replicated(book: ContractBook) -> None:
    bound = silence_bound(book, heartbeat_ns=BEAT_NS)
    then = msgspec.structs.replace(book.deployment, failover_ns=bound.x_ns)
    assert bound.x_ns >= book.deployment.failover_ns
    for contract in (*book.contracts, book.default):
        now, later = admit(contract, book.deployment), admit(contract, then)
        assert later.admitted
        assert later.replicate == now.replicate


@given(books(), st.integers(0, 30))
def test_silence_and_redirect_fit_into_x_and_every_deadline(book: ContractBook, redirect_ms: int) -> None:
    bound = silence_bound(book, heartbeat_ns=BEAT_NS, redirect_ns=redirect_ms * MS)
    assert bound.silence_ns >= 3 * BEAT_NS
    if bound.silence_ns > 3 * BEAT_NS:
        longest_ns = bound.silence_ns + bound.redirect_ns
        assert bound.redirect_ns >= redirect_ms * MS
        assert longest_ns <= bound.x_ns
        for contract in (*book.contracts, book.default):
            assert longest_ns <= dispatch_deadline_ns(contract, book.deployment)


@given(books())
def test_the_bound_is_no_shorter_than_it_must_be(book: ContractBook) -> None:
    """With another millisecond a contract is late, replicated, or left without room for its copy."""
    bound = silence_bound(book, heartbeat_ns=BEAT_NS)
    assume(bound.silence_ns > 3 * BEAT_NS and bound.x_ns > book.deployment.failover_ns)
    x_ns = bound.silence_ns + bound.redirect_ns + MS + COPY_ROOM_NS
    then = msgspec.structs.replace(book.deployment, failover_ns=x_ns)
    contract = next(each for each in (*book.contracts, book.default) if each.name == bound.contract)
    later = admit(contract, then)
    late = x_ns > dispatch_deadline_ns(contract, book.deployment)
    assert late or not later.admitted or later.replicate


@pytest.mark.parametrize(
    ("retention", "loss", "deadline_ms", "silence_ms"),
    [
        (1, 0, 150, 100 - 3 - 10),  # what the publisher keeps, less the copy and the redirect
        (2, 0, 150, 40),  # not replicated, and so it stays: the x of the file
        (1, 0, 60, 50),  # the deadline
        (1, 0, 40, 30),  # the deadline, just
        (1, 0, 39, 30),  # shorter than three heartbeats cannot be told from life
        (0, None, 400, 390),
        (0, None, 5_000, 990),  # topics without a contract have a deadline of a second
    ],
)
def test_the_figure_for_one_contract(
    retention: int, loss: int | None, deadline_ms: int, silence_ms: int
) -> None:
    contract = Contract(
        name="c",
        topics=("c/+",),
        period_ns=100 * MS,
        deadline_ns=deadline_ms * MS,
        loss_tolerance=loss,
        retention=retention,
    )
    book = ContractBook(
        deployment=Deployment(failover_ns=50 * MS, broker_to_backup_ns=0), contracts=(contract,)
    )
    assert silence_bound(book, heartbeat_ns=BEAT_NS).silence_ns == silence_ms * MS


def test_the_published_contracts_are_bound_by_their_deadline() -> None:
    bound = silence_bound(load_contracts(FRAME), heartbeat_ns=BEAT_NS)
    assert (bound.silence_ns, bound.x_ns) == (49 * MS - REDIRECT_NS - 50 * US, 50 * MS)
    assert str(bound) == "contract '0': its deadline is 50ms"


def test_what_a_subscriber_asks_for_counts() -> None:
    book = ContractBook(deployment=Deployment(failover_ns=50 * MS, broker_to_backup_ns=50 * US))
    asked = msgspec.structs.replace(book.default, name="asked", deadline_ns=70 * MS)
    assert silence_bound(book, heartbeat_ns=BEAT_NS).silence_ns == 990 * MS - 50 * US
    bound = silence_bound(book, heartbeat_ns=BEAT_NS, asked=[asked])
    assert (bound.silence_ns, bound.contract) == (60 * MS - 50 * US, "asked")
