"""Connections that have not said who they are: how many wait, and who goes when one more comes.

Laws:
- at most STRANGERS_MAX wait. For one more somebody goes, or the newcomer is turned away, which costs no more
  than to look up where it comes from
- whoever comes from an address of the group file stays as long as anybody else is there to go
- of others, the address with most of them pays, the newcomer counted: however many come from one, those of
  another stay
- who was turned away because it could not prove itself is remembered for a while by its address, if that is
  of a member: it may be one whose secret or certificate is another
- of one address the oldest goes, if it had GREETING_NS_MIN to say who it is; else the last, so that no crowd
  is fast enough to leave nobody the time for a greeting
"""

from __future__ import annotations

from holdfast.replication.peer import Peer
from holdfast.units import MS, S

STRANGERS_MAX = 64
GREETING_NS_MIN = 100 * MS
APART_NS_MAX = 5 * S  # that a refusal is told of after it happened; a member that lives dials all the time


class WaitingRoom:
    """`expected`, the addresses of the group file and who is there, is the driver's to set."""

    def __init__(self) -> None:
        self.expected: dict[str, set[str]] = {}
        self._turned_away: dict[str, tuple[str, int]] = {}  # from where, why, and when
        self._strangers: dict[Peer, str] = {}  # where each comes from, in the order in which they came
        self._crowds: dict[str, dict[Peer, None]] = {}  # the same, by where they come from

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._strangers

    def all(self) -> list[Peer]:
        """In the order in which they came."""
        return list(self._strangers)

    def oldest(self) -> Peer | None:
        return next(iter(self._strangers), None)

    def enter(self, peer: Peer, address: str) -> None:
        self._strangers[peer] = address
        self._crowds.setdefault(address, {})[peer] = None
        assert len(self._strangers) <= STRANGERS_MAX

    def leave(self, peer: Peer) -> None:
        address = self._strangers.pop(peer)
        crowd = self._crowds[address]
        del crowd[peer]
        if not crowd:
            del self._crowds[address]

    def turn_away(self, address: str, why: str, now_ns: int) -> None:
        """Somebody from there could not prove that it is a member."""
        if address in self.expected:
            self._turned_away[address] = why, now_ns

    def address_of(self, peer: Peer) -> str:
        return self._strangers.get(peer, "")

    def turned_away(self, now_ns: int) -> dict[str, str]:
        """Members from whose address somebody was turned away lately, and why."""
        return {
            name: f"who comes from its address, {address}, is turned away: {why}"
            for address, (why, at_ns) in self._turned_away.items()
            if now_ns - at_ns <= APART_NS_MAX
            for name in self.expected[address]
        }

    @property
    def is_full(self) -> bool:
        return len(self._strangers) >= STRANGERS_MAX

    def who_goes(self, address: str, now_ns: int) -> Peer | None:
        """Who makes room in a full one for a newcomer from there; None: nobody, it is turned away."""
        others = [crowd for each, crowd in self._crowds.items() if each not in self.expected]
        if not others and address not in self.expected:
            return None
        crowd = max(others or self._crowds.values(), key=len)
        oldest = next(iter(crowd))
        if now_ns - oldest.opened_ns >= GREETING_NS_MIN:
            return oldest
        favoured = bool(others) and address in self.expected
        if not favoured and len(self._crowds.get(address, ())) + 1 >= len(crowd):
            return None
        return next(reversed(crowd))
