"""Attacks by name.

An attack is a generator. What it does before its first `yield` costs only itself: it makes its bytes.
After that it does a piece of its work at every step, for as long as it is asked; when it ends, it has
done all it can. A broker may refuse any of it: then it begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec import Struct

from hostile.field import Where

if TYPE_CHECKING:
    from hostile.attacker import Field

Run = Callable[["Field"], Iterator[None]]

ATTACKS: dict[str, Attack] = {}


class Attack(Struct, frozen=True, kw_only=True):
    """`stays` says that what it leaves behind is meant to stay, so that memory does not come back."""

    name: str
    says: str
    run: Run
    where: Where = Where.OPEN
    stays: bool = False


def attack(says: str, where: Where = Where.OPEN, *, stays: bool = False) -> Callable[[Run], Run]:
    """Its name is that of the function."""

    def add(run: Run) -> Run:
        name = run.__name__.replace("_", "-")
        ATTACKS[name] = Attack(name=name, says=says, run=run, where=where, stays=stays)
        return run

    return add


def all_attacks() -> dict[str, Attack]:
    """Those of every file here, in the order in which they are told."""
    for name in ("control", "connections", "sessions", "messages", "spread", "ports"):
        import_module(f"hostile.attacks.{name}")
    return ATTACKS
