"""A contract file becomes a ContractBook, or a ConfigError with everything that is wrong with it.

The proof of a contract rests on the deployment's numbers, so a file with contracts must state them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from holdfast.config import Checked, Limits, duration, load, loads, named, whole
from holdfast.contract.model import (
    CONTRACT_DEFAULT,
    DEPLOYMENT_DEFAULT,
    DESTINATION_DEFAULT,
    Capacity,
    Contract,
    ContractBook,
    Deployment,
    Promise,
)
from holdfast.errors import ConfigError, Problem
from holdfast.units import S

_DEPLOYMENT_EXAMPLE = (
    'failover = "50ms", publisher_to_broker = "0ms", broker_to_backup = "0.05ms", '
    'broker_to_subscriber = { edge = "1ms" }'
)


class _DefaultPromise(Promise, frozen=True, kw_only=True):
    deadline_ns: Annotated[int, duration(0, "1s")] = named("deadline", 1 * S)
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


class _ContractFile(Checked, frozen=True, kw_only=True):
    deployment: Deployment | None = None
    capacity: Capacity = Capacity()
    limits: Limits = Limits()
    default: _DefaultPromise = _DefaultPromise()
    contracts: tuple[Contract, ...] = named("contract", ())

    def relations(self) -> Iterator[Problem]:
        if self.contracts and self.deployment is None:
            yield Problem("deployment", f"missing; write [deployment] with {_DEPLOYMENT_EXAMPLE}")
            return
        try:
            self.book()
        except ConfigError as error:
            yield from error.problems

    def book(self) -> ContractBook:
        deployment = self.deployment or DEPLOYMENT_DEFAULT
        return ContractBook(
            deployment=deployment,
            capacity=self.capacity,
            limits=self.limits,
            default=self.default.contract_in(deployment),
            contracts=self.contracts,
        )


def load_contracts(path: str | Path) -> ContractBook:
    """The contract file at `path`."""
    return load(path, _ContractFile).book()


def parse_contracts(document: str, source: str = "contracts") -> ContractBook:
    """The same for text that is already in memory."""
    return loads(document, _ContractFile, source).book()
