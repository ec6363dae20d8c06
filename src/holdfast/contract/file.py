"""A contract file becomes a ContractBook, or a ConfigError with everything that is wrong with it.

The proof of a contract rests on the numbers of the deployment. Those that a file does not say are assumed,
and can be told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.config import examine, load, loads, named, parse, read
from holdfast.contract.model import (
    CONTRACT_DEFAULT,
    DESTINATION_DEFAULT,
    Contract,
    ContractBook,
    Deployment,
    Promise,
    Terms,
)
from holdfast.errors import Problem
from holdfast.readers import duration, whole
from holdfast.units import S, format_duration


class _DefaultPromise(Promise, frozen=True, kw_only=True):
    deadline_ns: Annotated[int, duration(1, "1s")] = named("deadline", 1 * S)
    loss_tolerance: Annotated[int | None, whole(0, 2**31 - 1, 0, infinite="unlimited")] = None
    destination: str = ""

    def contract_in(self, deployment: Deployment) -> Contract:
        """The promise for every topic; it goes to the first destination unless it says another."""
        known = deployment.broker_to_subscriber_ns
        usual = DESTINATION_DEFAULT if DESTINATION_DEFAULT in known else next(iter(known))
        return Contract(
            name=CONTRACT_DEFAULT.name,
            topics=CONTRACT_DEFAULT.topics,
            period_ns=self.period_ns,
            deadline_ns=self.deadline_ns,
            loss_tolerance=self.loss_tolerance,
            retention=self.retention,
            destination=self.destination or usual,
            priority=self.priority,
        )


class ContractFile(Terms, frozen=True, kw_only=True):
    """The whole file; its default may leave out where it goes."""

    default: _DefaultPromise = _DefaultPromise()

    def default_destination(self) -> str:
        return self.default.destination

    def book(self) -> ContractBook:
        return ContractBook(
            deployment=self.deployment,
            capacity=self.capacity,
            limits=self.limits,
            default=self.default.contract_in(self.deployment),
            contracts=self.contracts,
        )


def examine_contracts(path: str | Path) -> tuple[ContractFile, list[Problem]]:
    """What a file says as far as it can be used, and all that is wrong with it."""
    return examine(path, ContractFile)


def load_contracts(path: str | Path) -> ContractBook:
    """The contract file at `path`."""
    return load(path, ContractFile).book()


def load_with_assumed(path: str | Path) -> tuple[ContractBook, dict[str, str]]:
    """The contract file at `path`, and what is assumed of its deployment because it does not say it."""
    document = read(path)
    book = parse_contracts(document, str(path))
    said = parse(document, str(path)).get("deployment", {})
    names = {field.encode_name: field.name for field in msgspec.structs.fields(Deployment)}
    return book, {
        key: _written(getattr(book.deployment, name)) for key, name in names.items() if key not in said
    }


def _written(value: int | dict[str, int]) -> str:
    """A duration, or one for each destination, as a file says it."""
    if isinstance(value, int):
        return f'"{format_duration(value)}"'
    return "{ " + ", ".join(f"{key} = {_written(each)}" for key, each in value.items()) + " }"


def parse_contracts(document: str, source: str = "contracts") -> ContractBook:
    """The same for text that is already in memory."""
    return loads(document, ContractFile, source).book()
