"""How long to wait before dialling again.

Laws:
- the wait is drawn evenly from (0, bound]: clients that lost the same broker do not come back together
- the bound doubles with every failure up to its maximum, and starts again after a success
"""

from __future__ import annotations

from typing import Protocol


class Rng(Protocol):
    """What `random.Random` offers; the driver seeds it."""

    def random(self) -> float: ...


class Backoff:
    def __init__(self, rng: Rng, ns_min: int, ns_max: int) -> None:
        assert 0 < ns_min <= ns_max
        self._rng = rng
        self._ns_min = ns_min
        self.ns_max = ns_max
        self._bound_ns = ns_min

    def failed(self) -> int:
        """The wait before the next attempt."""
        wait_ns = 1 + int(self._rng.random() * (self._bound_ns - 1))
        self._bound_ns = min(2 * self._bound_ns, self.ns_max)
        return wait_ns

    def succeeded(self) -> None:
        self._bound_ns = self._ns_min
