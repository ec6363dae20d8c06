"""The password file: one line for each user, its name and the argon2 hash of its password.

Laws:
- a password is never in the file, nor in an error
- a change is whole or not at all, and two at a time do not undo each other: the file is replaced under a lock
- only its owner can read the file
- every hash costs the same, so that time does not tell whose it is
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.config import read
from holdfast.errors import ConfigError, Problem

if TYPE_CHECKING:
    from argon2 import PasswordHasher

NAME_CHARS_MAX = 200
SHOWN_CHARS = 100  # of a name that is longer
PASSWORD_BYTES_MAX = 1024
USERS_MAX = 1_000_000
NAME_SPECIAL = ":+#/"
NOBODY_LEFT = "# no users\n"  # on purpose: a file with nothing in it is taken for a copy that was cut

# 19 MiB and two passes are what OWASP asks for at least.
TIME_COST, MEMORY_KIB = 2, 19_456
TIME_COST_MAX, MEMORY_KIB_MAX = 100, 2**20
# Of random bytes that nobody knows.
NOBODYS_HASH = (
    "$argon2id$v=19$m=19456,t=2,p=1$5FXA4ncaGNv0E0ZNW6vBig$LKkTsnTwEcdrl5VyZ4GYaJgUFCe7XFmtlEIYZHcRAgo"
)


def problem_of_name(name: str) -> str:
    """Why a user cannot have that name; empty if it can."""
    if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        return f"a name has 1 to {NAME_CHARS_MAX} printable characters, without a space at its ends"
    if name[0] in "$#" or any(char in name for char in NAME_SPECIAL):
        return "a name has no ':', '+', '#' or '/', and no '$' in front: it may stand in topics"
    return ""


def remembered_as(name: str) -> str:
    """The name under which failures are remembered: one that nobody can have may be as long as a packet."""
    if len(name) <= NAME_CHARS_MAX:
        return name
    return f"{name[:SHOWN_CHARS]}…{hashlib.blake2b(name.encode(), digest_size=32).hexdigest()}"


@cache
def hasher() -> PasswordHasher:
    """Only brokers with passwords pay for the import."""
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=TIME_COST, memory_cost=MEMORY_KIB, parallelism=1)


def hash_password(password: bytes) -> str:
    return hasher().hash(password)


def verify(stored: str | None, password: bytes) -> bool:
    """Whether that is the password; takes as long for a user that does not exist."""
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        hasher().verify(NOBODYS_HASH if stored is None else stored, password)
    except (VerificationError, InvalidHashError):
        return False
    return stored is not None


def load_users(path: str | Path) -> dict[str, str]:
    """Names and hashes, or a ConfigError with every line that is wrong, which it does not quote."""
    users: dict[str, str] = {}
    problems = []
    for number, line in enumerate(read(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, stored = line.partition(":")
        why = problem_of_name(name) or _problem_of_hash(stored)
        if not why and name in users:
            why = "the same name stands above"
        if why:
            problems.append(Problem(f"line {number}", f"{why}; write users with holdfast user add"))
        users[name] = stored
    if len(users) > USERS_MAX:
        problems.append(Problem("", f"more than {USERS_MAX} users; use a hook"))
    if problems:
        raise ConfigError(str(path), problems)
    return users


def _problem_of_hash(stored: str) -> str:
    from argon2 import extract_parameters
    from argon2.exceptions import InvalidHashError

    try:
        found = extract_parameters(stored)
    except (InvalidHashError, ValueError):
        return "what stands behind the name is no argon2 hash"
    if found.type.name != "ID" or found.memory_cost > MEMORY_KIB_MAX or found.time_cost > TIME_COST_MAX:
        return "the hash is not of the kind that holdfast user add makes"
    return ""


@contextmanager
def change_users(path: str | Path) -> Iterator[dict[str, str]]:
    """The users to be changed; what is in the dict at the end of the block is what the file has after it."""
    path = Path(path)
    with open(os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        users = load_users(path) if path.exists() else {}
        yield users
        _replace(path, "".join(f"{name}:{stored}\n" for name, stored in sorted(users.items())) or NOBODY_LEFT)


def _replace(path: Path, content: str) -> None:
    new = path.with_name(path.name + ".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        _keep_owner(path, new)
    new.replace(path)


def _keep_owner(path: Path, new: Path) -> None:
    """Root may write a file that a broker reads as another user."""
    before = path.stat()
    if (before.st_uid, before.st_gid) != (os.getuid(), os.getgid()) and os.getuid() == 0:
        os.chown(new, before.st_uid, before.st_gid)
    new.chmod(before.st_mode & 0o660)
