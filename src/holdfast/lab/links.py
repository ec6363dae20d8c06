"""Links between brokers and the subscribers of a destination, with a delay that changes while a trial runs.

Laws:
- a delay is never below the one that the link is said to have at least
- each broker has a relay of its own, so that a subscriber behind a link has an address for every member and
  never needs, or learns, one that goes round the link
- before measuring begins, and after it has ended, the delay is the least one
- what was started here is gone after `close`
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from holdfast.address import LOOPBACK
from holdfast.lab.group import Relay
from holdfast.lab.model import Link
from holdfast.units import MS, S

STEP_NS = 50 * MS
NOISE = 0.25
"""How much of the swing may come on top of the daily shape by chance."""


class Rng(Protocol):
    def random(self) -> float: ...


def delay_ns(link: Link, at_ns: int, measure_ns: int, rng: Rng) -> int:
    """The delay that long after measuring began: a day.s rise and fall, noise, and the spike."""
    if not 0 <= at_ns < measure_ns:
        return link.delay_ns
    daily = link.swing_ns * math.sin(math.pi * at_ns / measure_ns) ** 2
    # Small most of the time, as on the way to a cloud.
    noise = link.swing_ns * NOISE * rng.random() ** 3
    spike = link.spike_ns if link.spike_at_ns <= at_ns < link.spike_at_ns + link.spike_for_ns else 0
    return link.delay_ns + round(daily + noise) + spike


class SteeredLink:
    """The relays of one link. `begin` starts to steer them."""

    def __init__(self, link: Link, brokers: Sequence[str], measure_ns: int, seed: int) -> None:
        self.link = link
        self.applied: list[tuple[int, int]] = []
        """When, by the wall clock, each delay was set, and what it was."""
        self._measure_ns = measure_ns
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._relays: list[Relay] = []
        try:
            for address in brokers:
                self._relays.append(Relay(int(address.rpartition(":")[2])))
            self._set(link.delay_ns)
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the subscribers of this destination connect, in the order of the brokers."""
        return tuple(f"{LOOPBACK}:{relay.port}" for relay in self._relays)

    def begin(self, begin_ns: int) -> None:
        """Measuring begins at that time of the wall clock."""
        self._thread = threading.Thread(target=self._steer, args=(begin_ns,), name="link", daemon=True)
        self._thread.start()

    def figures(self) -> dict[str, list[float]]:
        """What was set: times since the first, and delays, both in milliseconds."""
        first_ns = self.applied[0][0] if self.applied else 0
        name = self.link.destination
        return {
            f"link_{name}_at_ms": [(at_ns - first_ns) / MS for at_ns, _ in self.applied],
            f"link_{name}_delay_ms": [delay / MS for _, delay in self.applied],
        }

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        for relay in self._relays:
            relay.end()
        self._relays = []

    def _steer(self, begin_ns: int) -> None:
        due_ns = begin_ns
        while not self._over.wait(max(0, due_ns - time.time_ns()) / S):
            at_ns = time.time_ns() - begin_ns
            now_ns = delay_ns(self.link, at_ns, self._measure_ns, self._rng)
            self._set(now_ns)
            if at_ns >= self._measure_ns:
                return
            self.applied.append((begin_ns + at_ns, now_ns))
            due_ns += STEP_NS

    def _set(self, delay: int) -> None:
        for relay in self._relays:
            relay.tell("delay", ms=delay / MS)


class SteeredLinks:
    """All links of a trial, by destination."""

    def __init__(self, links: Sequence[Link], brokers: Sequence[str], measure_ns: int, seed: int) -> None:
        self._links: dict[str, SteeredLink] = {}
        try:
            for number, link in enumerate(links):
                self._links[link.destination] = SteeredLink(link, brokers, measure_ns, seed + number)
        except BaseException:
            self.close()
            raise

    def addresses(self, destination: str, direct: tuple[str, ...]) -> tuple[str, ...]:
        """What a subscriber of that destination is told: its relays, or the brokers themselves."""
        link = self._links.get(destination)
        return direct if link is None else link.addresses

    def begin(self, begin_ns: int) -> None:
        for link in self._links.values():
            link.begin(begin_ns)

    def figures(self) -> dict[str, list[float]]:
        return {name: values for link in self._links.values() for name, values in link.figures().items()}

    def close(self) -> None:
        for link in self._links.values():
            link.close()
