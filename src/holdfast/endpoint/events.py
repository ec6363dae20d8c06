"""What an endpoint tells its driver, and the tickets of what its user asked."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from holdfast.endpoint.config import Address
from holdfast.errors import HoldfastError
from holdfast.mqtt.conventions import ViewNote


class Ticket:
    """One request, or many publications together; `reasons` has a code for each when it is `done`.

    `words` and `refused_at` are of the first refusal.
    """

    __slots__ = ("done", "left", "reasons", "refused_at", "what", "words")

    def __init__(self, what: str, count: int = 1) -> None:
        self.what = what
        self.reasons = [0] * count
        self.left = count
        self.done = False
        self.words: str | None = None
        self.refused_at: int | None = None


class Connected(Struct, frozen=True):
    """Somebody serves us, for the first time or again. `view` is None at a broker that knows no groups."""

    address: Address
    view: ViewNote | None
    session_present: bool


class Redirected(Struct, frozen=True):
    """We write to another primary; `ns` since we noticed that the old one is none any more."""

    address: Address
    view: ViewNote | None
    ns: int


class Lost(Struct, frozen=True):
    """A connection is over that was not meant to be; it will be dialled again."""

    address: Address
    why: str


class TurnedAway(Struct, frozen=True):
    """A broker refused to let us in, or to renew a subscription."""

    address: Address
    reason: int
    text: str


class Answered(Struct, frozen=True):
    ticket: Ticket


class Ended(Struct, frozen=True):
    """Nothing will come any more; `error` is None if our user wanted it so."""

    error: HoldfastError | None


Event: TypeAlias = Connected | Redirected | Lost | TurnedAway | Answered | Ended
