"""Authentication by somebody else's code: the entry points of the group `holdfast.authentication`.

A hook takes an Attempt and returns the name of the user, or None for a refusal. It may be a plain function,
which runs in one of a few threads, or an async one, which runs on the broker's loop and must not block it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from typing import TypeAlias

from msgspec import Struct

from holdfast.errors import ConfigError, Problem

GROUP = "holdfast.authentication"


class Attempt(Struct, frozen=True, repr_omit_defaults=True):
    """What a client shows at CONNECT."""

    username: str
    password: bytes
    client_id: str
    address: str  # where it connects from, without the port

    def __repr__(self) -> str:
        return f"Attempt(username={self.username!r}, client_id={self.client_id!r}, address={self.address!r})"


Hook: TypeAlias = Callable[[Attempt], str | Awaitable[str | None] | None]


def load_hook(name: str) -> Hook:
    """The hook that an installed package offers under that name."""
    found = entry_points(group=GROUP)
    for each in found:
        if each.name == name:
            try:
                hook = each.load()
            except Exception as error:
                problem = Problem("hook", f"{name!r} cannot be loaded: {type(error).__name__}: {error}")
                raise ConfigError(each.value, [problem]) from error
            if not callable(hook):
                raise ConfigError(each.value, [Problem("hook", f"{name!r} is not callable")])
            return hook  # type: ignore[no-any-return]
    known = ", ".join(sorted({each.name for each in found})) or "none is installed"
    raise ConfigError(
        "hook", [Problem("hook", f"no package offers {name!r} in the group {GROUP}; there is: {known}")]
    )
