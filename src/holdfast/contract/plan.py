"""What becomes of every contract of a book: the bounds, what is replicated, and whether the load fits.

- A contract is refused by its bounds, or else by the load; the reason says which, and what would do.
- A book is admitted exactly if all its contracts and its default are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.config import told
from holdfast.contract.admission import Admission, admit, order_groups
from holdfast.contract.file import ContractFile, examine_contracts
from holdfast.contract.load import Load, check_load
from holdfast.contract.model import Contract, ContractBook, Deployment
from holdfast.errors import ConfigError, Problem


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`admissions` stand in the order of the book; `groups` are all deadlines, equal ones together.

    `replicated_fraction` is the share of topics, by `count`, of admitted contracts that are replicated.
    """

    admissions: tuple[tuple[Contract, Admission], ...]
    default: Admission
    groups: tuple[tuple[int, tuple[str, ...]], ...]
    load: Load
    replicated_fraction: float

    @property
    def admitted(self) -> bool:
        return self.default.admitted and all(admission.admitted for _, admission in self.admissions)

    @property
    def order(self) -> list[str]:
        return [name for _, names in self.groups for name in names]


def make_plan(book: ContractBook) -> Plan:
    """Judge every contract of the book, alone and together."""
    load = check_load(book.contracts, book.deployment, book.capacity)
    too_much = {refusal.name: refusal.reason for refusal in load.refusals}
    admissions = []
    for contract in book.contracts:
        admission = admit(contract, book.deployment)
        if contract.name in too_much:
            admission = msgspec.structs.replace(
                admission, admitted=False, replicate=False, reason=too_much[contract.name]
            )
        admissions.append((contract, admission))
    return Plan(
        admissions=tuple(admissions),
        default=admit(book.default, book.deployment),
        groups=order_groups(book.contracts, book.deployment),
        load=load,
        replicated_fraction=_replicated_fraction(admissions),
    )


def load_admitted(path: Path) -> ContractBook:
    """The book of a file whose every promise can be kept; a refused contract is a problem of the file."""
    file, problems = examine_contracts(path)
    if problems:
        raise ConfigError(str(path), [*problems, *told(_refusals(file))])
    book = file.book()
    plan = make_plan(book)
    judged = [*plan.admissions, (book.default, plan.default)]
    refused = [Problem(f"contract {c.name!r}", a.reason) for c, a in judged if not a.admitted]
    if refused:
        raise ConfigError(str(path), refused)
    return book


def _refusals(file: ContractFile) -> Iterator[Problem]:
    """What can be said of single contracts of a file that cannot be used as a whole."""
    deployment = file.deployment
    for contract in file.contracts:
        if not isinstance(contract, Contract) or not isinstance(deployment, Deployment):
            continue  # its problems are told already
        if contract.destination in deployment.broker_to_subscriber_ns:
            admission = admit(contract, deployment)
            if not admission.admitted:
                yield Problem(f"contract {contract.name!r}", admission.reason)


def _replicated_fraction(admissions: list[tuple[Contract, Admission]]) -> float:
    topics = sum(contract.count for contract, admission in admissions if admission.admitted)
    replicated = sum(contract.count for contract, admission in admissions if admission.replicate)
    return replicated / topics if topics else 0.0
