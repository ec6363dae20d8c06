"""Passwords that were found to be right lately, so that a client that comes back need not be checked again.

Laws:
- what is kept is a keyed hash of name, password and the user's line in the password file. The key is this
  process's own, or made from the secret of its group, whose members tell each other: nothing kept here can be
  tried against without it, and nothing of it is written to disk
- while a group changes its secret there are several keys: what is known by any is known, and is kept by the
  first. What was kept by a key that is gone is useless
- a changed line makes what was kept of it useless
- the least recently used goes when there are too many
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

KEPT_MAX = 20_000
TAG_BYTES = 32


def key_from(secret: bytes) -> bytes:
    """The key that members with that secret have in common."""
    return hmac.digest(secret, b"holdfast: passwords that were right", "sha256")


class Verified:
    def __init__(self, key: bytes, kept_max: int = KEPT_MAX) -> None:
        self._keys: tuple[bytes, ...] = (key,)
        self._kept: dict[bytes, None] = {}
        self._kept_max = kept_max
        self.tell: Callable[[bytes], None] | None = None  # who else wants to know

    def __len__(self) -> int:
        return len(self._kept)

    def use(self, keys: tuple[bytes, ...]) -> None:
        self._keys = keys

    def _tag(self, key: bytes, user: str, stored: str, password: bytes) -> bytes:
        hashed = hashlib.blake2b(key=key, digest_size=TAG_BYTES)
        for part in (user.encode(), stored.encode(), password):
            hashed.update(len(part).to_bytes(4, "big"))
            hashed.update(part)
        return hashed.digest()

    def knows(self, user: str, stored: str, password: bytes) -> bool:
        for key in self._keys:
            tag = self._tag(key, user, stored, password)
            if tag in self._kept:
                del self._kept[tag]
                self._kept[tag] = None
                if key != self._keys[0]:
                    self.add(user, stored, password)
                return True
        return False

    def add(self, user: str, stored: str, password: bytes) -> None:
        tag = self._tag(self._keys[0], user, stored, password)
        self._keep(tag)
        if self.tell is not None:
            self.tell(tag)

    def everything(self) -> list[bytes]:
        return list(self._kept)

    def learn(self, tags: list[bytes]) -> None:
        """What another member found out."""
        for tag in tags:
            if len(tag) == TAG_BYTES:
                self._keep(tag)

    def _keep(self, tag: bytes) -> None:
        self._kept[tag] = None
        if len(self._kept) > self._kept_max:
            del self._kept[next(iter(self._kept))]
