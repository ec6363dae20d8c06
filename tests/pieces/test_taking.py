"""The helpers that every loop in pieces is made of: any size, any piece, what comes out is what went in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.pieces.sizes import any_size

from holdfast.pieces import pieces_of, slices_of, take

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"


@given(size=any_size(7), piece=st.integers(1, 9))
def test_pieces_that_are_taken_make_up_the_whole(size: int, piece: int) -> None:
    source = iter(range(size))
    pieces = []
    while len(found := take(source, piece)) == piece:
        pieces.append(found)
    pieces.append(found)
    assert [each for found in pieces for each in found] == list(range(size))
    assert all(len(found) == piece for found in pieces[:-1])


@given(size=any_size(7), piece=st.integers(0, 9))
def test_no_more_is_read_than_is_taken(size: int, piece: int) -> None:
    source = iter(range(size))
    assert take(source, piece) == list(range(min(size, piece)))
    assert list(source) == list(range(min(size, piece), size))


@given(size=any_size(7), piece=st.integers(1, 9))
def test_slices_make_up_the_whole(size: int, piece: int) -> None:
    whole = list(range(size))
    slices = list(slices_of(whole, piece))
    assert [each for found in slices for each in found] == whole
    assert all(len(found) == piece for found in slices[:-1])
    assert all(slices)


@given(
    sizes=st.lists(st.integers(0, 12), max_size=40),
    size_max=st.integers(1, 20),
    count_max=st.one_of(st.none(), st.integers(1, 9)),
)
def test_pieces_by_size_make_up_the_whole(sizes: list[int], size_max: int, count_max: int | None) -> None:
    read = 0

    def reading() -> Iterator[int]:
        nonlocal read
        for size in sizes:
            read += 1
            yield size

    given = 0
    pieces = []
    for piece in pieces_of(reading(), lambda size: size, size_max=size_max, count_max=count_max):
        given += len(piece)
        assert given == read, "more was read than given"
        assert piece
        assert sum(piece[:-1]) < size_max
        assert count_max is None or len(piece) <= count_max
        pieces.append(piece)
    assert [size for piece in pieces for size in piece] == sizes
    full = [sum(piece) >= size_max or len(piece) == count_max for piece in pieces[:-1]]
    assert all(full)


def test_nobody_takes_pieces_with_zip_and_range() -> None:
    """zip() has read one more of its first source when the second ends."""
    found = [
        f"{path}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in (ast.walk(ast.parse(path.read_text())) if "zip(" in path.read_text() else ())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip"
        if any(isinstance(each, ast.Call) and getattr(each.func, "id", "") == "range" for each in node.args)
    ]
    assert not found
