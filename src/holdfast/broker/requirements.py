"""What a SUBSCRIBE asks of the topics that it names: its user properties.

Law: they are read once for each packet, however many filters it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.contract.requirement import NOTHING, Requirement
from holdfast.errors import PeerError
from holdfast.mqtt.conventions import (
    DEADLINE_PROPERTY,
    DEPTH_PROPERTY,
    LAST_MAX,
    LAST_PROPERTY,
    LOSS_PROPERTY,
    LOSS_UNLIMITED,
)
from holdfast.mqtt.packets import Properties
from holdfast.mqtt.reasons import Reason
from holdfast.units import parse_duration

SYSTEM_TOPICS = "$SYS/"
DEPTHS = ("1", "2", "3", "4")


def parse_last(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 4 and 1 <= int(value) <= LAST_MAX):
        raise ValueError(f"a number of last results is from 1 to {LAST_MAX}")
    return int(value)


def requirement_of(properties: Properties) -> Requirement:
    """What is asked; raises why it means nothing."""
    if not properties.user:
        return NOTHING
    deadline_ns: int | None = None
    loss: int | None = None
    last = 0
    for name, value in properties.user:
        try:
            if name == DEPTH_PROPERTY and value not in DEPTHS:
                raise ValueError(f"a depth is one of {', '.join(DEPTHS)}")
            if name == DEADLINE_PROPERTY:
                deadline_ns = parse_duration(value)
                if deadline_ns <= 0:
                    raise ValueError("a deadline is longer than 0")
            elif name == LOSS_PROPERTY and value != LOSS_UNLIMITED:
                loss = int(value)
                if not 0 <= loss < 2**31:
                    raise ValueError("a loss tolerance is a whole number of at least 0, or unlimited")
            elif name == LAST_PROPERTY:
                last = parse_last(value)
        except ValueError as error:
            raise PeerError(Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"{name} = {value!r}: {error}") from error
    return Requirement(deadline_ns, loss, last)


class Wish(Protocol):
    wanted: str  # a filter as the client wrote it


def depth_of(properties: Properties, wishes: Iterable[Wish]) -> int:
    """How many members of the group must know of it first; 0: as many as is usual. What a broker tells of
    itself is nobody else's matter."""
    for name, value in properties.user:
        if name == DEPTH_PROPERTY:
            return int(value) if value in DEPTHS else 0
    for wish in wishes:
        if not wish.wanted.startswith(SYSTEM_TOPICS):
            return 0
    return 1
