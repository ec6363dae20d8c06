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
- while a secret is changed members have several: who dials proves by the first of its own, who listens takes
  any of its own and proves by the same one. So two of which each knows the first of the other always agree
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

NONCE_BYTES = 32
LABEL = b"holdfast: a member of a group\0"
UNPROVEN = "it does not know the secret of this group"


class Secret:
    """What the members of a group share, in the order of its file; `draw` gives bytes that nobody can
    foresee, so many."""

    def __init__(self, secrets: tuple[bytes, ...], group: str, draw: Callable[[int], bytes]) -> None:
        self.use(secrets)
        self._group = hashlib.sha256(group.encode()).digest()
        self._draw = draw

    def use(self, secrets: tuple[bytes, ...]) -> None:
        """For greetings that begin from now on."""
        assert secrets
        self._secrets = secrets

    def begin(self, *, dialed: bool) -> Handshake:
        """Who dials knows by which it proves; who listens learns that from the other side."""
        secrets = self._secrets[:1] if dialed else self._secrets
        return Handshake(secrets, self._group, self._draw(NONCE_BYTES), dialed=dialed)

    def __repr__(self) -> str:
        return "Secret(…)"


class Handshake:
    """One connection's; `proven` once the other side has shown that it knows the secret."""

    def __init__(self, secrets: tuple[bytes, ...], group: bytes, nonce: bytes, *, dialed: bool) -> None:
        self._secrets = secrets
        self._group = group
        self._dialed = dialed
        self._theirs: bytes | None = None
        self.nonce = nonce
        self.proven = False

    def challenged(self, nonce: bytes) -> bytes | None:
        """The other side's challenge; returns our proof if it is our turn. ValueError: it is no challenge."""
        if self._theirs is not None or len(nonce) != NONCE_BYTES or nonce == self.nonce:
            raise ValueError("a challenge is one fresh nonce")
        self._theirs = nonce
        return self._proof(self._secrets[0], ours=True) if self._dialed else None

    def proved(self, proof: bytes) -> bytes | None:
        """The other side's proof; returns ours if it is our turn now. ValueError: it proves nothing."""
        by = None if self._theirs is None or self.proven else self._proven_by(proof)
        if by is None:
            raise ValueError(UNPROVEN)
        self.proven = True
        return None if self._dialed else self._proof(by, ours=True)

    def _proven_by(self, proof: bytes) -> bytes | None:
        """Which secret the other side knows."""
        known = [each for each in self._secrets if hmac.compare_digest(proof, self._proof(each, ours=False))]
        return known[0] if known else None

    def _proof(self, secret: bytes, *, ours: bool) -> bytes:
        assert self._theirs is not None
        dialers, listeners = (self.nonce, self._theirs) if self._dialed else (self._theirs, self.nonce)
        end = b"dialer\0" if self._dialed == ours else b"listener\0"
        return hmac.digest(secret, LABEL + self._group + end + dialers + listeners, "sha256")
