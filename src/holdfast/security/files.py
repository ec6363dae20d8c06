"""Everything that a security file leads to, read at once: users, rules, keys, secret and hook.

Law: either all of it can be used, or one ConfigError says everything that is wrong with any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.broker.rules import Rules
from holdfast.config import Unknown, read, told
from holdfast.errors import ConfigError, Problem
from holdfast.security.config import Security, beside, examine_security, read_secrets, unreadable
from holdfast.security.gate import Known
from holdfast.security.hook import Hook, load_hook
from holdfast.security.rules import load_rules
from holdfast.security.tokens import Jwt, load_tokens
from holdfast.security.users import load_users

N = TypeVar("N")
T = TypeVar("T")


class Loaded(Struct, frozen=True):
    known: Known
    hook: Hook | None = None
    secrets: tuple[bytes, ...] = ()  # of the members: they prove by the first, and take any


NO_USER = (
    "is empty, and nobody has a name who is not in it; expected users as holdfast user add writes them. "
    "If nobody is meant, write a line that begins with #"
)
NO_RULE = (
    "has no rule: nobody could do anything; expected [[rule]]. "
    "If that is meant, write one with everyone = true and nothing else"
)

NOTHING = Loaded(Known(Security()))


def load_all(path: str | Path | None) -> Loaded:
    """What the file at `path` says, and the files behind it; without one, what holds without one."""
    if path is None:
        return NOTHING
    security, problems = examine_security(path)
    base = Path(path).absolute().parent

    def each(said: Callable[[], N | None], load: Callable[[N], T]) -> T | None:
        try:
            name = said()
            return load(name) if name else None
        except Unknown:
            return None
        except ConfigError as error:
            problems.extend(Problem(f"{error.source}: {one.path}", one.message) for one in error.problems)
            return None

    users = each(lambda: readable(base, security.users), load_users)
    if users == {}:
        problems.extend(told(_truncated(security, base)))
    rules: Rules | None = each(lambda: readable(base, security.rules), load_rules)
    if rules is not None and not rules.count:
        problems.append(Problem(beside(base, security.rules), NO_RULE))
    hook = each(lambda: security.hook, load_hook)
    tokens = each(lambda: usable(base, security.jwt), load_tokens)
    if problems:
        raise ConfigError(str(path), problems)
    secrets = read_secrets(security.peers.secret) if security.peers.secret else ()
    return Loaded(Known(security, users or {}, rules, tokens), hook, secrets)


def _truncated(security: Security, base: Path) -> Iterator[Problem]:
    """A file of users with nothing in it; where all names are in it, that would end everybody's session."""
    path = beside(base, security.users)
    if security.names_users_by_file_only and not read(path).strip():
        yield Problem(path, NO_USER)


def readable(base: Path, name: str) -> str:
    """Where that file is; empty if there is none to read, which is told already."""
    path = beside(base, name)
    return path if path and not unreadable("", path) else ""


def usable(base: Path, jwt: Jwt | None) -> Jwt | None:
    """With its keys where they are; None if something is wrong with it, which is told already."""
    if not isinstance(jwt, Jwt):
        return None
    keys = tuple(readable(base, key) for key in jwt.keys)
    return replace(jwt, keys=keys) if all(keys) else None
