"""The bounds of one contract with its own numbers: Lemmas 1 and 2, Proposition 1, and other N. Pure.

Law: every figure comes from `contract.bounds` and `contract.admission`; nothing is reckoned twice.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from holdfast.contract.admission import admit, retention_min
from holdfast.contract.bounds import dispatch_deadline_ns, replication_deadline_ns
from holdfast.contract.model import Contract, Deployment
from holdfast.dashboard.words import exact

CHOICES_MAX = 8


class Lemma(Struct, frozen=True):
    """`formula` with symbols, `numbers` with the contract's own, `meaning` in a sentence."""

    title: str
    formula: str
    numbers: str
    meaning: str


class Choice(Struct, frozen=True):
    """What another number of kept messages would do. `outcome` is one or two words, `meaning` a sentence."""

    retention: int
    copied_within: str
    outcome: str
    meaning: str
    current: bool


class Worked(Struct, frozen=True):
    lemmas: tuple[Lemma, ...]
    choices: tuple[Choice, ...]


def work_out(contract: Contract, deployment: Deployment) -> Worked:
    return Worked(
        (_copy(contract, deployment), _dispatch(contract, deployment), _decision(contract, deployment)),
        tuple(_choices(contract, deployment)),
    )


def _copy(contract: Contract, deployment: Deployment) -> Lemma:
    result_ns = replication_deadline_ns(contract, deployment)
    title = "Lemma 1: when a copy must be at the backup"
    formula = "D_r = (N + L) · T − Δ_PB − Δ_BB − x"
    if contract.loss_tolerance is None:
        return Lemma(title, formula, "L = ∞, so D_r = ∞", "Best effort: no copy is ever needed.")
    gaps = (deployment.publisher_to_broker_ns, deployment.broker_to_backup_ns, deployment.failover_ns)
    numbers = (
        f"({contract.retention} + {contract.loss_tolerance}) · {exact(contract.period_ns)} − "
        f"{' − '.join(map(exact, gaps))} = {exact(result_ns)}"
    )
    if result_ns is None:
        return Lemma(
            title, formula, numbers, "A rare alarm that is kept once: there is all the time there is."
        )
    if result_ns < 0:
        meaning = (
            f"Negative: a crash can lose more than {contract.loss_tolerance} in a row before publishers "
            "have moved and sent again what they keep."
        )
    else:
        losable = contract.loss_tolerance or "none"
        meaning = (
            f"After a crash publishers send the last {contract.retention} of each topic again, and {losable} "
            "in a row may be lost. Whatever is older must be at the backup, at the latest "
            f"{exact(result_ns)} after it came."
        )
    return Lemma(title, formula, numbers, meaning)


def _dispatch(contract: Contract, deployment: Deployment) -> Lemma:
    result_ns = dispatch_deadline_ns(contract, deployment)
    way_ns = deployment.broker_to_subscriber_ns[contract.destination]
    numbers = (
        f"{exact(contract.deadline_ns)} − {exact(deployment.publisher_to_broker_ns)} − "
        f"{exact(way_ns)} = {exact(result_ns)}"
    )
    if result_ns < 0:
        meaning = "Negative: the way alone takes longer than the deadline."
    else:
        meaning = (
            f"The way to a subscriber at {contract.destination} is at least {exact(way_ns)}. What is left, "
            f"{exact(result_ns)}, is the broker's: it sends whatever is due first, first."
        )
    return Lemma("Lemma 2: when the broker must have sent it on", "D_d = D − Δ_PB − Δ_BS", numbers, meaning)


def _decision(contract: Contract, deployment: Deployment) -> Lemma:
    found = admit(contract, deployment)
    copy_ns, dispatch_ns = found.replication_deadline_ns, found.dispatch_deadline_ns
    sign = ">" if copy_ns is not None and dispatch_ns > copy_ns else "≤"
    numbers = f"{exact(dispatch_ns)} {sign} {exact(copy_ns)}"
    title, formula = "Proposition 1: whether it is copied", "copy exactly if D_d > D_r"
    if not found.admitted:
        return Lemma(title, formula, numbers, f"It cannot be promised: {found.reason}.")
    if found.replicate:
        meaning = "A copy is due before the message need be sent on, so the backup gets one."
    else:
        meaning = (
            "The message is sent on before a copy would be due, so none is made, and nothing is lost by that."
        )
    return Lemma(title, formula, numbers, meaning)


def _choices(contract: Contract, deployment: Deployment) -> list[Choice]:
    """N from 0 to one more than could ever help, and the contract's own."""
    if contract.loss_tolerance is None:
        return [_choice(contract, deployment, retention=contract.retention, current=True)]
    enough = retention_min(contract, deployment, max(0, dispatch_deadline_ns(contract, deployment)))
    wanted = sorted({contract.retention, *range(min(enough, CHOICES_MAX - 2) + 2)})
    return [_choice(contract, deployment, retention=n, current=n == contract.retention) for n in wanted]


def _choice(contract: Contract, deployment: Deployment, *, retention: int, current: bool) -> Choice:
    found = admit(replace(contract, retention=retention), deployment)
    if not found.admitted:
        outcome, meaning = "refused", "a crash could lose more in a row than the contract allows"
        if found.dispatch_deadline_ns < 0:
            meaning = "no N helps: the deadline is shorter than the way"
    elif found.replicate:
        outcome, meaning = (
            "copied",
            f"every message is copied to the backup within {exact(found.replication_deadline_ns)}",
        )
    elif contract.loss_tolerance is None:
        outcome, meaning = "not copied", "best effort: N changes nothing"
    else:
        outcome, meaning = "not copied", "publishers keep enough to make copies superfluous"
    return Choice(retention, exact(found.replication_deadline_ns), outcome, meaning, current)
