"""Replaces attributes for a while: how mutants break things, and a meter counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Break = Callable[[Any], object]


@contextmanager
def patched(owners: tuple[object, ...], name: str, make: Break) -> Iterator[None]:
    """For a while the attribute is what `make` makes of it."""
    before = [getattr(owner, name) for owner in owners]
    for owner, value in zip(owners, before, strict=True):
        setattr(owner, name, make(value))
    try:
        yield
    finally:
        for owner, value in zip(owners, before, strict=True):
            setattr(owner, name, value)
