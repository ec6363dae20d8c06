"""A set of packet identifiers holds what a set would, in little memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.broker.idset import IdSet

IDS = 65_535
BITMAP = 8192
RUNS = st.tuples(st.booleans(), st.integers(0, IDS), st.integers(1, 3000), st.sampled_from([1, 2, 7, 40_503]))


@given(runs=st.lists(RUNS, max_size=12))
@settings(max_examples=200, deadline=None)
def test_it_holds_what_a_set_would(runs: list[tuple[bool, int, int, int]]) -> None:
    found, expected = IdSet(), set[int]()
    for adds, first, many, step in runs:
        for number in range(many):
            each = (first + number * step) % (IDS + 1)
            (found.add if adds else found.discard)(each)
            (expected.add if adds else expected.discard)(each)
        assert list(found) == sorted(expected)
        assert len(found) == len(expected)
        assert all((each in found) == (each in expected) for each in range(first, min(first + 50, IDS)))
        assert found.bytes <= min(BITMAP, max(16, 8 * len(found) + 8)) or found.bytes == BITMAP
        assert found.bytes < BITMAP or len(found) > 512


@pytest.mark.parametrize(
    ("many", "size"), [(0, 0), (1, 16), (8, 16), (9, 32), (1000, 2048), (2048, 4096), (2049, BITMAP)]
)
def test_it_takes_two_bytes_for_each_and_no_more_than_a_bitmap(many: int, size: int) -> None:
    assert IdSet(range(1, many + 1)).bytes == size
    assert IdSet(reversed(range(1, many + 1))).bytes == size


def test_it_gives_back_what_it_does_not_need() -> None:
    found = IdSet(range(IDS + 1))
    assert (len(found), found.bytes) == (IDS + 1, BITMAP)
    for each in range(IDS + 1):
        found.discard(each)
    assert (len(found), found.bytes) == (0, 16)
