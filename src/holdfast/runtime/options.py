"""The options of a broker process, as the command line hands them on."""

from __future__ import annotations

from msgspec import Struct


class BrokerOptions(Struct, frozen=True):
    listen: list[tuple[str, int]]
    contracts: str | None = None
    policy: str = "edf"
    group: str | None = None
    member: str | None = None
    coordination: bool = True
    selective: bool = True
    copy_first: bool = False
    patience_ns: int = 1_000_000
    data: str | None = None
