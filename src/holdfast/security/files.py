"""Everything that a security file leads to, read at once: users, rules, keys, secret and hook.

Law: either all of it can be used, or one ConfigError says everything that is wrong with any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from holdfast.broker.rules import Rules
from holdfast.errors import ConfigError, Problem
from holdfast.security.config import Security, load_security, read_secret
from holdfast.security.gate import Known
from holdfast.security.hook import Hook, load_hook
from holdfast.security.rules import load_rules
from holdfast.security.tokens import load_tokens
from holdfast.security.users import load_users

N = TypeVar("N")
T = TypeVar("T")


class Loaded(Struct, frozen=True):
    known: Known
    hook: Hook | None = None
    secret: bytes | None = None


NOTHING = Loaded(Known(Security()))


def load_all(path: str | Path | None) -> Loaded:
    """What the file at `path` says, and the files behind it; without one, what holds without one."""
    if path is None:
        return NOTHING
    security = load_security(path)
    problems: list[Problem] = []

    def each(name: N | None, load: Callable[[N], T]) -> T | None:
        try:
            return load(name) if name else None
        except ConfigError as error:
            problems.extend(Problem(f"{error.source}: {one.path}", one.message) for one in error.problems)
            return None

    users = each(security.users, load_users)
    rules: Rules | None = each(security.rules, load_rules)
    hook = each(security.hook, load_hook)
    tokens = each(security.jwt, load_tokens)
    if problems:
        raise ConfigError(str(path), problems)
    secret = read_secret(security.peers.secret) if security.peers.secret else None
    return Loaded(Known(security, users or {}, rules, tokens), hook, secret)
