"""The Holdfast brokers of a trial: what its plan says of them, as files, options and processes."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.config import Checked
from holdfast.contract.model import ContractBook
from holdfast.contract.plan import load_admitted
from holdfast.lab.group import Group, Settings
from holdfast.lab.model import Plan
from holdfast.units import MS, format_duration

PPM = 1_000_000


def toml_of(book: ContractBook) -> str:
    """The contract file that says the same as the book."""
    lines: list[str] = []
    for name in ("deployment", "capacity", "limits"):
        lines += [f"[{name}]", *_fields_of(getattr(book, name)), ""]
    for contract in book.contracts:
        lines += ["[[contract]]", *_fields_of(contract), ""]
    return "\n".join(lines)


def _fields_of(table: Checked) -> Iterator[str]:
    for field in msgspec.structs.fields(table):
        value = getattr(table, field.name)
        if value != field.default:
            yield f"{field.encode_name} = {_written(field.name, value)}"


def _written(name: str, value: Any) -> str:
    if value is None:
        return '"unlimited"'
    if isinstance(value, dict):
        parts = ", ".join(f"{json.dumps(key)} = {_written(name, each)}" for key, each in value.items())
        return f"{{ {parts} }}"
    if name.endswith("_ns"):
        return f'"{format_duration(value)}"'
    if name.endswith("_ppm"):
        return str(value / PPM)
    return json.dumps(value, ensure_ascii=False)


class HoldfastBrokers:
    """See `system.System`. Its files, and what its members say, go to `folder`."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        brokers = plan.brokers
        contracts = folder / "contracts.toml"
        contracts.write_text(toml_of(plan.book()))
        # Said here, in words about the plan, rather than by a broker that does not start.
        load_admitted(contracts)
        settings = Settings(
            heartbeat=format_duration(brokers.heartbeat_ns),
            silence=format_duration(brokers.silence_ns),
            join_wait=format_duration(brokers.join_wait_ns),
            depth=brokers.depth,
            relayed=plan.fault.kind == "cut" or brokers.way_ns > 0,
            options={"policy": brokers.policy, "switches": msgspec.to_builtins(brokers.switches)},
        )
        self.group = Group(folder, brokers.count, contracts, settings)
        self._names: dict[str, str] = {}
        self._way_ns = brokers.way_ns

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self.group.addresses)

    def start(self) -> None:
        for name in self.group.members:
            self.group.start(name)

    def await_ready(self) -> None:
        members = list(self.group.members)
        for relay in self.group.relays.values():
            relay.tell("delay", ms=self._way_ns / MS)
        if len(members) > 1:
            note = self.group.await_protected(len(members) - 1)
            members = [place.name for place in note.places]
        self._name(members)

    def _name(self, members: list[str]) -> None:
        roles = ["primary", "backup", *(f"backup {number}" for number in range(2, len(members)))]
        self._names = dict(zip(roles, members, strict=False))

    def pids(self) -> dict[str, int]:
        members = self.group.members
        return {
            role: members[name].pid for role, name in self._names.items() if members[name].process is not None
        }

    def _look_again(self) -> None:
        """A busy machine may have made another broker the primary meanwhile."""
        note = self.group.view() if len(self.group.members) > 1 else None
        if note is not None and len(note.places) == len(self._names):
            self._name([place.name for place in note.places])

    def kill(self, role: str) -> int:
        self._look_again()
        at_ns = time.time_ns()
        self.group.kill(self._names[role])
        return at_ns

    def start_again(self, role: str) -> None:
        self.group.start(self._names[role])

    def stop(self, role: str) -> int:
        self._look_again()
        at_ns = time.time_ns()
        self.group.signal(self._names[role], signal.SIGSTOP)
        return at_ns

    def go_on(self, role: str) -> None:
        self.group.signal(self._names[role], signal.SIGCONT)

    def cut(self) -> int:
        at_ns = time.time_ns()
        for relay in self.group.relays.values():
            relay.tell("cut")
        return at_ns

    def heal(self) -> None:
        for relay in self.group.relays.values():
            relay.tell("heal")

    def takeover(self) -> dict[str, int]:
        return self.group.takeover(self._names["backup"]) if "backup" in self._names else {}

    def takeovers(self) -> int:
        served = sum(len(member.said("serving")) for member in self.group.members.values())
        return max(0, served - 1)

    def last_words(self) -> str:
        return self.group.last_words()

    def close(self) -> None:
        self.group.end()
