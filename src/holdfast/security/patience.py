"""How long an attempt to log in must wait because of those that failed before it.

Laws:
- the first few failures of an address or a user cost nothing; then each makes the next attempts slower
- however many attempts wait, one after another is let through: guessing in parallel is no faster
- nobody waits longer than WAIT_NS_MAX: an attempt that would is refused instead
- what is remembered is bounded, and forgotten
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.units import MS, S

FREE_FAILURES = 3
STEP_NS = 250 * MS
STEP_NS_MAX = 4 * S
WAIT_NS_MAX = 5 * S
FORGOTTEN_NS = 300 * S
KEPT_MAX = 20_000


class Record(Struct):
    failures: int = 0
    last_ns: int = 0
    next_ns: int = 0  # when the next attempt may be made


class Patience:
    def __init__(self) -> None:
        self._records: dict[str, Record] = {}

    def wait_ns(self, sources: tuple[str, ...], now_ns: int) -> int | None:
        """How long an attempt from there has to wait; None: too long, it is refused."""
        records = [record for source in sources if (record := self._known(source, now_ns)) is not None]
        due_ns = max((record.next_ns for record in records), default=0)
        if due_ns - now_ns > WAIT_NS_MAX:
            return None
        for record in records:
            record.next_ns = max(now_ns, due_ns) + step_ns(record.failures)
        return max(0, due_ns - now_ns)

    def _known(self, source: str, now_ns: int) -> Record | None:
        record = self._records.get(source)
        if record is None or record.failures < FREE_FAILURES:
            return None
        if now_ns - record.last_ns > FORGOTTEN_NS:
            del self._records[source]
            return None
        return record

    def failed(self, sources: tuple[str, ...], now_ns: int) -> None:
        for source in sources:
            record = self._records.pop(source, None)
            if record is None or now_ns - record.last_ns > FORGOTTEN_NS:
                record = Record()
            record.failures += 1
            record.last_ns = now_ns
            if record.failures == FREE_FAILURES:
                record.next_ns = now_ns + step_ns(record.failures)
            self._records[source] = record
            if len(self._records) > KEPT_MAX:
                del self._records[next(iter(self._records))]


def step_ns(failures: int) -> int:
    """The time between two attempts after so many failures."""
    return min(STEP_NS << min(failures - FREE_FAILURES, 10), STEP_NS_MAX)
