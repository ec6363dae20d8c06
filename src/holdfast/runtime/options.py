"""The options of a broker process, as the command line hands them on."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from holdfast.address import Address
from holdfast.replication.group import Switches


class BrokerOptions(Struct, frozen=True):
    listen: list[Address]
    contracts: str | None = None
    policy: str = "edf"
    group: str | None = None
    member: str | None = None
    switches: Switches = Switches()
    data: str | None = None
    security: str | None = None
    log: Literal["text", "json"] = "text"
    http: Address | None = None
    http_token: str | None = None  # a file
    counting: bool = True  # see Board.counting
    realtime: bool = False  # asked for, if it may be had
