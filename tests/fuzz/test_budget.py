"""The budget of the fuzz targets: what is dear for its bytes is found, what was slow once is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fuzz.budget import AGAIN, EXECUTION_WEIGHT, PRICED, SENT_BYTES_IN_WEIGHT, Budget, Run, TooDear

from fuzz import broker, publish, seeds

SEED = bytes(100 - EXECUTION_WEIGHT)
TIMES_MAX = 5


def run_all(run: Run, inputs: list[bytes]) -> None:
    for data in inputs:
        run(data)


class Clock:
    """Processor time that only a made-up target spends."""

    def __init__(self, cost_ns: Callable[[bytes, int], int], sent: int = 0) -> None:
        self.now_ns = 0
        self.runs = 0
        self.sent = sent
        self.cost_ns = cost_ns

    def run(self, data: bytes) -> int:
        self.runs += 1
        self.now_ns += self.cost_ns(data, self.runs)
        return self.sent

    def budget(self) -> Budget:
        return Budget(self.run, [SEED], TIMES_MAX, lambda: self.now_ns)


def cost_of(number: int, ns: int) -> Callable[[bytes, int], int]:
    """1,000 ns for the seed, `ns` for anything else; `number` times, then 1,000."""
    return lambda data, runs: ns if data != SEED and runs - PRICED <= number else 1_000


def test_the_price_is_that_of_the_seeds() -> None:
    assert Clock(lambda data, runs: 1_000 + (runs == 1)).budget().price_ns == 10


@pytest.mark.parametrize(("ns", "found"), [(5_000, False), (5_001, True)])
def test_what_costs_more_than_its_weight_is_found(ns: int, found: bool) -> None:
    budget = Clock(cost_of(1_000, ns)).budget()
    data = b"x" * len(SEED)
    if not found:
        budget(data)
        return
    with pytest.raises(TooDear, match="for a weight of 100: 5 times"):
        budget(data)


def test_what_was_slow_for_a_while_is_run_again() -> None:
    Clock(cost_of(AGAIN, 1_000_000)).budget()(b"x" * len(SEED))
    with pytest.raises(TooDear):
        Clock(cost_of(AGAIN + 1, 1_000_000)).budget()(b"x" * len(SEED))


def test_what_clients_send_weighs_too() -> None:
    """The seed weighs as much more, so that one unit of weight is cheaper."""
    assert Clock(cost_of(0, 0), sent=100 * SENT_BYTES_IN_WEIGHT).budget().price_ns == 5


def test_work_that_grows_faster_than_its_input_is_found() -> None:
    quadratic = Clock(lambda data, runs: len(data) ** 2).budget()
    quadratic(bytes(2 * len(SEED)))
    with pytest.raises(TooDear):
        quadratic(bytes(6 * len(SEED)))


@pytest.mark.parametrize("bound", ["UNITS_PER_BYTE", "CONTROL_UNITS_PER_BYTE"])
def test_the_broker_counts_units_for_each_byte(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(broker, bound, 0)
    with pytest.raises(AssertionError, match="units"):
        run_all(broker.run, list(seeds.broker_seeds()))


def test_a_publish_has_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "UNITS", publish.UNITS - 1)
    with pytest.raises(AssertionError, match="4 units for"):
        run_all(publish.run, [b"\x01\x00\x06new/%d0\x00" % number for number in range(2)])
