"""When which channel is due. Pure: time is an argument, and nothing waits here.

Laws:
- the due times of a channel are a grid: one period apart, and shifted against those of other channels so that
  any number of channels with one period spreads evenly over it
- executions of a channel never overlap: what was taken is due again only after it is `over`
- due times that pass meanwhile are counted as late and not made up for: the next execution covers them
- after a failure the channel is due at its next time, then after 2, 4, 8 of them, up to BACKOFF_NS_MAX; a
  success ends that
- a clock that goes back moves the grid with it: nothing is due later than a period because of it
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from holdfast.units import MIN

BACKOFF_NS_MAX = 5 * MIN
# The golden ratio's fraction: multiples of it never come close to each other on a circle.
SPREAD_PPM = 618_034


@dataclass(slots=True)
class Entry:
    """One channel. `late` counts due times that passed while it ran or waited."""

    period_ns: int
    slot: int
    due_ns: int
    running: bool = False
    failures: int = 0
    late: int = 0


class Schedule:
    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._now_ns = 0

    def declare(
        self,
        periods_ns: Mapping[str, int],
        now_ns: int,
        *,
        changed: Container[str] = (),
        failures: Mapping[str, int] | None = None,
    ) -> None:
        """These are the channels from now on. One that stays as it was keeps its times and its count.

        `failures` is how often those that are new have failed before, and makes them wait as if it was here.
        """
        self._advance(now_ns)
        self._entries = {
            name: each
            for name, each in self._entries.items()
            if periods_ns.get(name) == each.period_ns and name not in changed
        }
        taken = {each.slot for each in self._entries.values()}
        free = (slot for slot in range(len(taken) + len(periods_ns)) if slot not in taken)
        for name, period_ns in periods_ns.items():
            if name not in self._entries:
                slot = next(free)
                shift_ns = period_ns * (slot * SPREAD_PPM % 1_000_000) // 1_000_000
                entry = Entry(period_ns, slot, now_ns + shift_ns, failures=(failures or {}).get(name, 0))
                if entry.failures > 1:
                    entry.due_ns += self._pause(entry) * period_ns
                self._entries[name] = entry

    def take(self, now_ns: int) -> list[str]:
        """The channels that are due and not running, longest due first. They run until `over`."""
        self._advance(now_ns)
        due = [name for name, each in self._entries.items() if not each.running and each.due_ns <= now_ns]
        due.sort(key=lambda name: self._entries[name].due_ns)
        for name in due:
            self._entries[name].running = True
        return due

    def next_ns(self) -> int | None:
        """When a channel that does not run will be due; None if all run or there is none."""
        return min((each.due_ns for each in self._entries.values() if not each.running), default=None)

    def over(self, name: str, now_ns: int, *, failed: bool) -> None:
        """The execution has ended. One of a channel that was dropped or changed meanwhile counts no more."""
        self._advance(now_ns)
        entry = self._entries.get(name)
        if entry is None or not entry.running:
            return
        entry.running = False
        entry.failures = entry.failures + 1 if failed else 0
        passed = max(0, now_ns - entry.due_ns) // entry.period_ns
        entry.late += passed
        entry.due_ns += (passed + self._pause(entry)) * entry.period_ns

    def late_ns(self, name: str, now_ns: int) -> int:
        """How long ago the channel was due; 0 if it is not."""
        entry = self._entries.get(name)
        return max(0, now_ns - entry.due_ns) if entry is not None else 0

    def entry(self, name: str) -> Entry | None:
        return self._entries.get(name)

    @staticmethod
    def _pause(entry: Entry) -> int:
        """How many periods lie between this execution and the next."""
        if entry.failures <= 1:
            return 1
        longest = max(1, BACKOFF_NS_MAX // entry.period_ns)
        return int(min(2 ** min(entry.failures - 1, 32), longest))

    def _advance(self, now_ns: int) -> None:
        if now_ns < self._now_ns:
            for each in self._entries.values():
                each.due_ns -= self._now_ns - now_ns
        self._now_ns = now_ns
