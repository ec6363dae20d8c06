"""Sizes that lie around a bound: where a loop that works in pieces goes wrong, if it does."""

from __future__ import annotations

from hypothesis import strategies as st


def sizes_around(*bounds: int) -> list[int]:
    """Nothing, one, and the neighbours of each bound and of its double."""
    near = {0, 1, 2}
    for bound in bounds:
        near |= {max(0, times * bound + off) for times in (1, 2) for off in (-1, 0, 1)}
    return sorted(near)


def any_size(*bounds: int) -> st.SearchStrategy[int]:
    """Any size up to three pieces, more often one of those around the bounds."""
    return st.one_of(st.sampled_from(sizes_around(*bounds)), st.integers(0, 3 * max(bounds)))
