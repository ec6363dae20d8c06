"""No input costs more processor time than its bytes are worth.

    weight      the bytes of an input, something for the execution itself, and what its clients send: that is
                copied more than read, so 256 bytes of it weigh as much as one of the input
    price       what the seeds of a target cost for each unit of weight: so a slow machine, or a sanitizer,
                needs no other numbers

An input is found when it costs more than `times_max` times the price of its weight, also when it is run
again: the least of several counts, since a machine with other work makes anything slow once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

EXECUTION_WEIGHT = 16
SENT_BYTES_IN_WEIGHT = 256
AGAIN = 10
PRICED = 3  # times that each seed is run

Run = Callable[[bytes], int]  # one execution; returns the bytes that its clients sent


class TooDear(AssertionError):
    """An input that costs more than its bytes are worth."""


class Budget:
    def __init__(
        self,
        run: Run,
        seeds: Iterable[bytes],
        times_max: float,
        clock_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.run = run
        self.times_max = times_max
        self._clock_ns = clock_ns
        self.price_ns = self._price_ns(list(seeds))

    def __call__(self, data: bytes) -> None:
        """One execution, and some more if that was dear."""
        weight, spent_ns = self._measure(data)
        may_ns = self.times_max * self.price_ns * weight
        for _ in range(AGAIN):
            if spent_ns <= may_ns:
                return
            spent_ns = min(spent_ns, self._measure(data)[1])
        if spent_ns > may_ns:
            times = spent_ns / weight / self.price_ns
            raise TooDear(
                f"{spent_ns / 1e6:.2f} ms for a weight of {weight}: {times:.0f} times what the seeds cost, "
                f"{self.times_max:.0f} times is the most"
            )

    def _measure(self, data: bytes) -> tuple[int, int]:
        """The weight of an input, and what it cost."""
        before_ns = self._clock_ns()
        sent = self.run(data)
        spent_ns = self._clock_ns() - before_ns
        return EXECUTION_WEIGHT + len(data) + sent // SENT_BYTES_IN_WEIGHT, spent_ns

    def _price_ns(self, seeds: list[bytes]) -> float:
        weights = spent_ns = 0
        for seed in seeds:
            measured = [self._measure(seed) for _ in range(PRICED)]
            weights += measured[0][0]
            spent_ns += min(each for _, each in measured)
        return spent_ns / weights
