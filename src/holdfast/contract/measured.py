"""The figures of a file against what a running group measured.

- Only what is longer than configured counts: a file may promise less than could be kept.
- A warning says by how much, and which contracts the measured figures would refuse or replicate.
"""

from __future__ import annotations

import msgspec

from holdfast.contract.model import ContractBook
from holdfast.contract.plan import Plan, make_plan
from holdfast.units import format_duration

US = 1000
# What a group exports under $SYS/broker, by the key of the deployment that it is held against.
FIGURES = {
    "failover": "group/failover/max us",
    "broker_to_backup": "group/backup way/measured us",
}


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """None: nobody has measured it yet."""

    failover_ns: int | None = None
    broker_to_backup_ns: int | None = None


class Excess(msgspec.Struct, frozen=True):
    """A figure of the deployment that was measured to be longer."""

    key: str
    measured_ns: int
    configured_ns: int

    def __str__(self) -> str:
        by = format_duration(self.measured_ns - self.configured_ns)
        measured, configured = format_duration(self.measured_ns), format_duration(self.configured_ns)
        return f"deployment.{self.key} is {configured}, and {measured} was measured: {by} more"


class Comparison(msgspec.Struct, frozen=True):
    excesses: tuple[Excess, ...]
    refused: tuple[str, ...] = ()
    replicated: tuple[str, ...] = ()

    def warnings(self) -> list[str]:
        lines = [str(excess) for excess in self.excesses]
        if self.refused:
            lines.append(f"with what was measured, no longer admitted: {', '.join(self.refused)}")
        if self.replicated:
            lines.append(f"with what was measured, replicated too: {', '.join(self.replicated)}")
        if lines and not (self.refused or self.replicated):
            lines.append("every contract is kept even so; raise the configured figure to be told the truth")
        return lines


def parse_figures(figures: dict[str, str]) -> Measured:
    """From the topics below $SYS/broker/ and their payloads; what is no number was not measured."""

    def read(key: str) -> int | None:
        try:
            return round(float(figures.get(FIGURES[key], "")) * US)
        except (ValueError, OverflowError):
            return None

    return Measured(failover_ns=read("failover"), broker_to_backup_ns=read("broker_to_backup"))


def compare(book: ContractBook, plan: Plan, measured: Measured) -> Comparison:
    """What becomes of the book's contracts under the measured figures, where those are longer."""
    configured = book.deployment
    longer = {
        f"{key}_ns": value
        for key in FIGURES
        if (value := getattr(measured, f"{key}_ns")) is not None and value > getattr(configured, f"{key}_ns")
    }
    excesses = tuple(
        Excess(name.removesuffix("_ns"), value, getattr(configured, name)) for name, value in longer.items()
    )
    if not excesses:
        return Comparison(())
    deployment = msgspec.structs.replace(configured, **longer)
    then = make_plan(msgspec.structs.replace(book, deployment=deployment))
    pairs = [(now, later) for now, later in zip(plan.admissions, then.admissions, strict=True)]
    return Comparison(
        excesses,
        tuple(now[0].name for now, later in pairs if now[1].admitted and not later[1].admitted),
        tuple(now[0].name for now, later in pairs if later[1].replicate and not now[1].replicate),
    )
