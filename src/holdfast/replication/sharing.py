"""What members that share a secret tell each other of passwords: that one was right, as a keyed hash.

So a client that comes to another member after a failover need not wait until its password is checked again.

Laws:
- only who has proven the secret hears or tells; what is told means nothing without it
- each member tells what it found out itself, all of it to who is new; a turn tells each a bounded piece
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdfast.replication.messages import Right
from holdfast.replication.peer import Peer

TOLD_AT_ONCE = 500
UNTOLD_MAX = 20_000


class Sharing:
    """`everything` gives all that this member knows, `learn` takes what another says."""

    def __init__(self, everything: Callable[[], list[bytes]], learn: Callable[[list[bytes]], None]) -> None:
        self._everything = everything
        self.learn = learn
        self._untold: dict[Peer, deque[bytes]] = {}

    def greeted(self, peer: Peer) -> None:
        self._untold[peer] = deque(self._everything(), UNTOLD_MAX)

    def add(self, tag: bytes) -> None:
        for untold in self._untold.values():
            untold.append(tag)

    def turn(self, send: Callable[[Peer, Right], None]) -> bool:
        """Tells everybody a piece; says whether there is more."""
        for peer in [peer for peer in self._untold if peer.closing]:
            del self._untold[peer]
        for peer, untold in self._untold.items():
            if untold:
                send(peer, Right([untold.popleft() for _ in range(min(TOLD_AT_ONCE, len(untold)))]))
        return any(self._untold.values())
