"""Piece by piece: the one place where a bounded piece of something longer is taken.

Laws:
- what comes out, piece after piece, is what went in: nothing is dropped, doubled or moved
- no more is read than is given: what follows a piece is read when the next one is asked for
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def take(source: Iterator[T], count_max: int) -> list[T]:
    """The next so many; fewer only when there are no more."""
    return list(islice(source, count_max))


def slices_of(whole: Sequence[T], count_max: int) -> Iterator[Sequence[T]]:
    """Pieces of a sequence that does not change meanwhile, each of so many but the last."""
    for first in range(0, len(whole), count_max):
        yield whole[first : first + count_max]


def pieces_of(
    source: Iterable[T], size_of: Callable[[T], int], *, size_max: int, count_max: int | None = None
) -> Iterator[list[T]]:
    """Pieces that are not empty. A piece ends with the item that makes it `size_max` or larger."""
    piece: list[T] = []
    size = 0
    for item in source:
        piece.append(item)
        size += size_of(item)
        if size >= size_max or len(piece) == count_max:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
