"""Connections that have not said who they are: how many wait, and who goes when one more comes.

Laws:
- at most STRANGERS_MAX wait, and one more is always let in: somebody else goes for it
- whoever comes from an address of the group file stays as long as anybody else is there to go
- of others, the address with most of them pays: however many come from one, those of another stay
- of one address the oldest goes, if it had GREETING_NS_MIN to say who it is; else the last, so that no crowd
  is fast enough to leave nobody the time for a greeting
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.replication.peer import Peer
from holdfast.units import MS

STRANGERS_MAX = 64
GREETING_NS_MIN = 100 * MS


def nowhere(peer: Peer) -> str:
    """Where a connection comes from, as far as a driver has not said how to find out."""
    return ""


class WaitingRoom:
    """`address_of` and `expected`, the addresses of the group file, are the driver's to set."""

    def __init__(self) -> None:
        self.address_of: Callable[[Peer], str] = nowhere
        self.expected: set[str] = set()

    def who_goes(self, waiting: Sequence[Peer], now_ns: int) -> Peer | None:
        """Who makes room for one more; `waiting` stands in the order in which they came."""
        if len(waiting) < STRANGERS_MAX:
            return None
        crowds: dict[str, list[Peer]] = {}
        for peer in waiting:
            if not peer.state.address:
                peer.state.address = self.address_of(peer)
            crowds.setdefault(peer.state.address, []).append(peer)
        others = [crowd for address, crowd in crowds.items() if address not in self.expected]
        crowd = max(others or crowds.values(), key=len)
        return crowd[0] if now_ns - crowd[0].opened_ns >= GREETING_NS_MIN else crowd[-1]
