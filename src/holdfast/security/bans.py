"""Who is not let in for a while: who flaps, and who guesses.

Laws:
- a ban is of one client of one user, or of one user at one address: nobody else is banned by it
- every ban has an end
- what is remembered is bounded, however long the names: the oldest goes first
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from holdfast.errors import PeerError
from holdfast.mqtt.reasons import Reason
from holdfast.security.config import BanLimits
from holdfast.security.users import remembered_as
from holdfast.units import S

KEPT_MAX = 10_000

Why: TypeAlias = Literal["flaps", "guesses"]


class Banned(NamedTuple):
    """Whom a ban is of: a client identifier of a user (of an address, without a name), or a user there."""

    why: Why
    user: str
    address: str
    client_id: str


class Tally(Struct):
    since_ns: int
    count: int = 0


class Bans:
    def __init__(self, limits: BanLimits | None) -> None:
        self.limits = limits
        self.total: Counter[str] = Counter()
        self._tallies: dict[Banned, Tally] = {}
        self._until_ns: dict[Banned, int] = {}

    def flapped(self, user: str, address: str, client_id: str, now_ns: int) -> Banned | None:
        """A connection that was let in is over; returns who is banned for it."""
        most = None if self.limits is None else self.limits.flaps_max
        return None if most is None else self._count(_flapper(user, address, client_id), most + 1, now_ns)

    def guessed(self, user: str, address: str, now_ns: int) -> Banned | None:
        """A login failed: with as many as may, its user is banned there."""
        most = None if self.limits is None else self.limits.guesses_max
        return None if most is None else self._count(_guesser(user, address), most, now_ns)

    def _count(self, whom: Banned, enough: int, now_ns: int) -> Banned | None:
        assert self.limits is not None
        tally = self._tallies.pop(whom, None)
        if tally is None or now_ns - tally.since_ns > self.limits.within_ns:
            tally = Tally(now_ns)
        tally.count += 1
        if tally.count < enough:
            _keep(self._tallies, whom, tally)
            return None
        self.total[whom.why] += 1
        _keep(self._until_ns, whom, now_ns + self.limits.lasts_ns)
        return whom

    def check_client(self, user: str, address: str, client_id: str, now_ns: int) -> None:
        if self._until_ns:
            words = "this client connected and left too often"
            self._check(_flapper(user, address, client_id), words, now_ns)

    def check_login(self, user: str, address: str, now_ns: int) -> None:
        words = "too many logins of this user failed from there"
        self._check(_guesser(user, address), words, now_ns)

    def _check(self, whom: Banned, words: str, now_ns: int) -> None:
        until_ns = self._until_ns.get(whom)
        if until_ns is None:
            return
        if until_ns <= now_ns:
            del self._until_ns[whom]
            return
        left_s = -((now_ns - until_ns) // S)
        raise PeerError(Reason.BANNED, f"{words}; come again in {left_s} s")

    def now(self, now_ns: int) -> dict[Banned, int]:
        """Who is banned, and until when; the latest last."""
        self._until_ns = {whom: until for whom, until in self._until_ns.items() if until > now_ns}
        return self._until_ns


def _flapper(user: str, address: str, client_id: str) -> Banned:
    return Banned("flaps", remembered_as(user), "" if user else address, client_id)


def _guesser(user: str, address: str) -> Banned:
    return Banned("guesses", remembered_as(user), address, "")


def _keep(kept: dict[Banned, int] | dict[Banned, Tally], whom: Banned, value: int | Tally) -> None:
    kept.pop(whom, None)
    kept[whom] = value  # type: ignore[assignment]
    if len(kept) > KEPT_MAX:
        del kept[next(iter(kept))]
