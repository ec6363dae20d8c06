"""How long an attempt to log in must wait because of those that failed before it.

Three things are remembered: what failed from one address as one user (a pair), from one address as anybody,
and as one user from anywhere. Behind one address there may be many users.

Laws:
- the first few failures of a pair cost nothing; then each makes its next attempts slower
- however many attempts of a pair wait, one after another is let through: guessing in parallel is no faster
- who guesses as many users, or from many addresses, waits in one line for all of them after its first guess
- who did not fail itself is never refused for the failures of others, and waits CLEAN_WAIT_NS_MAX for them at
  most; whom an address let in before does not wait for others at all
- nobody waits longer than WAIT_NS_MAX: an attempt that would is refused instead
- what is remembered is bounded, however long the names, and forgotten
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from msgspec import Struct

from holdfast.security.users import remembered_as
from holdfast.units import MS, S

FREE_FAILURES = 3
STEP_NS = 250 * MS
STEP_NS_MAX = 4 * S
WAIT_NS_MAX = 5 * S
CLEAN_WAIT_NS_MAX = 1 * S
FORGOTTEN_NS = 300 * S
KEPT_MAX = 20_000


class Source(NamedTuple):
    """Who tries: where from, and as whom."""

    address: str
    user: str

    @classmethod
    def of(cls, address: str, name: str) -> Source:
        return cls(address, remembered_as(name))

    @property
    def crowds(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """What it has in common with others."""
        return ("from", self.address), ("as", self.user)


Key: TypeAlias = Source | tuple[str, str]


class Record(Struct):
    failures: int = 0
    last_ns: int = 0
    next_ns: int = 0  # when the next attempt may be made


class Patience:
    def __init__(self) -> None:
        self._pairs: dict[Key, Record] = {}
        self._crowds: dict[Key, Record] = {}
        self._let_in: dict[Source, None] = {}  # the latest last

    def wait_ns(self, source: Source, now_ns: int) -> int | None:
        """How long an attempt from there has to wait; None: too long, it is refused."""
        own = _known(self._pairs, source, now_ns)
        crowds = [] if source in self._let_in else self._troubled(source, now_ns)
        if own is None:
            return max((_clean_wait_ns(each) for each in crowds), default=0)
        lines = [each for each in (own, *crowds) if each.failures >= FREE_FAILURES]
        due_ns = max((record.next_ns for record in lines), default=0)
        if due_ns - now_ns > WAIT_NS_MAX:
            return None
        for record in lines:
            record.next_ns = max(now_ns, due_ns) + step_ns(record.failures)
        return max(0, due_ns - now_ns)

    def _troubled(self, source: Source, now_ns: int) -> list[Record]:
        found = [_known(self._crowds, crowd, now_ns) for crowd in source.crowds]
        return [record for record in found if record is not None and record.failures >= FREE_FAILURES]

    def suspects(self, source: Source, now_ns: int) -> bool:
        """Whether so much failed from its address that few of its attempts may wait at once."""
        record = _known(self._crowds, source.crowds[0], now_ns)
        return source not in self._let_in and record is not None and record.failures >= FREE_FAILURES

    def remembers(self, source: Source, now_ns: int) -> bool:
        """Whether that user failed from there."""
        return _known(self._pairs, source, now_ns) is not None

    def failed(self, source: Source, now_ns: int) -> None:
        _count(self._pairs, source, now_ns)
        for crowd in source.crowds:
            _count(self._crowds, crowd, now_ns)

    def succeeded(self, source: Source) -> None:
        self._let_in.pop(source, None)
        self._let_in[source] = None
        if len(self._let_in) > KEPT_MAX:
            del self._let_in[next(iter(self._let_in))]


def _known(records: dict[Key, Record], key: Key, now_ns: int) -> Record | None:
    record = records.get(key)
    if record is not None and now_ns - record.last_ns > FORGOTTEN_NS:
        del records[key]
        return None
    return record


def _count(records: dict[Key, Record], key: Key, now_ns: int) -> None:
    record = records.pop(key, None)
    if record is None or now_ns - record.last_ns > FORGOTTEN_NS:
        record = Record()
    record.failures += 1
    record.last_ns = now_ns
    if record.failures == FREE_FAILURES:
        record.next_ns = now_ns + step_ns(record.failures)
    records[key] = record
    if len(records) > KEPT_MAX:
        del records[next(iter(records))]


def step_ns(failures: int) -> int:
    """The time between two attempts after so many failures."""
    return min(STEP_NS << min(failures - FREE_FAILURES, 10), STEP_NS_MAX)


def _clean_wait_ns(crowd: Record) -> int:
    return min(step_ns(crowd.failures), CLEAN_WAIT_NS_MAX)
