"""What changed in the rights of whom, when the files were read again: one line for each user.

Law: no line says anything of a password or a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.security.gate import Known

EVERYBODY = "*"
CHANGES_TOLD_MAX = 1000


class Change(NamedTuple):
    user: str
    what: str


def changes(before: Known, after: Known) -> Iterator[Change]:
    """In the order of names; what is everybody's first."""
    if before.security.anonymous != after.security.anonymous:
        yield Change(EVERYBODY, f"anonymous = {after.security.anonymous}")
    old, new = before.security, after.security
    if (old.limits, old.address_limits, old.bans) != (new.limits, new.address_limits, new.bans):
        yield Change(EVERYBODY, "limits")
    if (None if before.tokens is None else before.tokens.signers) != (
        None if after.tokens is None else after.tokens.signers
    ):
        yield Change(EVERYBODY, "keys of tokens")
    if (before.rules is None) != (after.rules is None):
        yield Change(EVERYBODY, "rules no longer hold" if after.rules is None else "rules hold now")
    elif before.rules is not None and after.rules is not None:
        for user in sorted({*before.rules.named(), *after.rules.named()}):
            if before.rules.grants(user) != after.rules.grants(user):
                yield Change(user or EVERYBODY, "rules")
    for user in sorted({*before.users, *after.users}):
        if user not in after.users:
            yield Change(user, "removed")
        elif user not in before.users:
            yield Change(user, "added")
        elif before.users[user] != after.users[user]:
            yield Change(user, "password")
