"""The figures of a file against what a running group measured.

- Only what is longer than configured counts: a file may promise less than could be kept.
- What a longer failover costs is reckoned with the x in force, where that is longer still.
- A warning says by how much, and which contracts the measured figures would refuse or replicate.
"""

from __future__ import annotations

import msgspec

from holdfast.contract.admission import admit
from holdfast.contract.bounds import dispatch_deadline_ns
from holdfast.contract.model import ContractBook
from holdfast.contract.plan import Plan, make_plan
from holdfast.units import format_duration

US = 1000
# What a group exports under $SYS/broker, by the key of the deployment that it is held against.
FIGURES = {
    "failover": "group/failover/max us",
    "broker_to_backup": "group/backup way/measured us",
}
# What it says of the silence that it waits for.
IN_FORCE = {
    "x": "group/failover/in force us",
    "silence": "group/silence/in force us",
    "why": "group/silence/why",
}


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """None: nobody has measured it yet."""

    failover_ns: int | None = None
    broker_to_backup_ns: int | None = None
    x_ns: int | None = None  # in force
    silence_ns: int | None = None  # in force
    silence_why: str = ""


class Excess(msgspec.Struct, frozen=True):
    """A figure of the deployment that was measured to be longer."""

    key: str
    measured_ns: int
    configured_ns: int
    in_force_ns: int | None = None  # what the group reckons with, if that is enough

    def __str__(self) -> str:
        by = format_duration(self.measured_ns - self.configured_ns)
        measured, configured = format_duration(self.measured_ns), format_duration(self.configured_ns)
        line = f"deployment.{self.key} is {configured}, and {measured} was measured: {by} more"
        if self.in_force_ns is not None:
            line += f"; the group reckons with {format_duration(self.in_force_ns)} at the moment"
        return line


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

    def read(name: str) -> int | None:
        try:
            return round(float(figures.get(name, "")) * US)
        except (ValueError, OverflowError):
            return None

    return Measured(
        failover_ns=read(FIGURES["failover"]),
        broker_to_backup_ns=read(FIGURES["broker_to_backup"]),
        x_ns=read(IN_FORCE["x"]),
        silence_ns=read(IN_FORCE["silence"]),
        silence_why=figures.get(IN_FORCE["why"], ""),
    )


def in_force(book: ContractBook, measured: Measured) -> list[str]:
    """What the group waits for now, why, and which contracts that costs what."""
    if measured.x_ns is None or measured.silence_ns is None:
        return []
    configured, x_ns = book.deployment, measured.x_ns
    then = msgspec.structs.replace(configured, failover_ns=x_ns)
    silence, x = format_duration(measured.silence_ns), format_duration(x_ns)
    lines = [f"in force: a silent member is waited for {silence}, x is {x}: {measured.silence_why}"]
    sooner = [
        f"{contract.name} within {format_duration(admit(contract, then).replication_deadline_ns or 0)}"
        for contract in book.contracts
        if admit(contract, configured).replicate and x_ns > configured.failover_ns
    ]
    late = [
        contract.name
        for contract in (*book.contracts, book.default)
        if dispatch_deadline_ns(contract, configured) < x_ns
    ]
    if sooner:
        lines.append(f"it costs earlier copies: {', '.join(sooner)}")
    if late:
        lines.append(f"late if a primary falls silent: some messages of {', '.join(late)}")
    if not sooner and not late:
        lines.append("it costs no contract anything")
    return lines


def compare(book: ContractBook, plan: Plan, measured: Measured) -> Comparison:
    """What becomes of the book's contracts under the measured figures, where those are longer."""
    configured = book.deployment
    x_ns = max(configured.failover_ns, measured.x_ns or 0)
    longer = {
        f"{key}_ns": value
        for key in FIGURES
        if (value := getattr(measured, f"{key}_ns")) is not None and value > getattr(configured, f"{key}_ns")
    }
    excesses = tuple(
        Excess(
            name.removesuffix("_ns"),
            value,
            getattr(configured, name),
            x_ns if name == "failover_ns" and value <= x_ns else None,
        )
        for name, value in longer.items()
    )
    if not excesses:
        return Comparison(())
    deployment = msgspec.structs.replace(
        configured, **{**longer, "failover_ns": max(x_ns, longer.get("failover_ns", 0))}
    )
    then = make_plan(msgspec.structs.replace(book, deployment=deployment))
    pairs = [(now, later) for now, later in zip(plan.admissions, then.admissions, strict=True)]
    return Comparison(
        excesses,
        tuple(now[0].name for now, later in pairs if now[1].admitted and not later[1].admitted),
        tuple(now[0].name for now, later in pairs if later[1].replicate and not now[1].replicate),
    )
