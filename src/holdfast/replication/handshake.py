"""Two members of a group prove to each other that they share a secret, before anything else is said.

    listener                                   dialer
    Challenge(its nonce)  ───────────────────▶
                          ◀─────────────────── Challenge(its nonce)
                          ◀─────────────────── Proof
    Proof                 ───────────────────▶
    Hello                 ◀──────────────────▶ Hello

Laws:
- a proof is worth something once: it is over two nonces, and each side drew one of them for this connection
- a proof says which end made it, so that nobody can be answered with its own
- who listens proves nothing to a stranger: a dialer that cannot prove itself learns nothing to guess by
- the secret itself is never said
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

NONCE_BYTES = 32
LABEL = b"holdfast: a member of a group\0"


class Secret:
    """What the members of a group share; `draw` gives bytes that nobody can foresee, so many."""

    def __init__(self, secret: bytes, group: str, draw: Callable[[int], bytes]) -> None:
        self._secret = secret
        self._group = hashlib.sha256(group.encode()).digest()
        self._draw = draw

    def begin(self, *, dialed: bool) -> Handshake:
        return Handshake(self, self._draw(NONCE_BYTES), dialed=dialed)

    def proof(self, dialer: bool, dialers_nonce: bytes, listeners_nonce: bytes) -> bytes:
        end = b"dialer\0" if dialer else b"listener\0"
        said = LABEL + self._group + end + dialers_nonce + listeners_nonce
        return hmac.digest(self._secret, said, "sha256")

    def __repr__(self) -> str:
        return "Secret(…)"


class Handshake:
    """One connection's; `proven` once the other side has shown that it knows the secret."""

    def __init__(self, secret: Secret, nonce: bytes, *, dialed: bool) -> None:
        self._secret = secret
        self._dialed = dialed
        self._theirs: bytes | None = None
        self.nonce = nonce
        self.proven = False

    def challenged(self, nonce: bytes) -> bytes | None:
        """The other side's challenge; returns our proof if it is our turn. ValueError: it is no challenge."""
        if self._theirs is not None or len(nonce) != NONCE_BYTES or nonce == self.nonce:
            raise ValueError("a challenge is one fresh nonce")
        self._theirs = nonce
        return self._proof(ours=True) if self._dialed else None

    def proved(self, proof: bytes) -> bytes | None:
        """The other side's proof; returns ours if it is our turn now. ValueError: it proves nothing."""
        if self._theirs is None or self.proven or not hmac.compare_digest(proof, self._proof(ours=False)):
            raise ValueError("it does not know the secret of this group")
        self.proven = True
        return None if self._dialed else self._proof(ours=True)

    def _proof(self, *, ours: bool) -> bytes:
        assert self._theirs is not None
        dialers, listeners = (self.nonce, self._theirs) if self._dialed else (self._theirs, self.nonce)
        return self._secret.proof(self._dialed == ours, dialers, listeners)
