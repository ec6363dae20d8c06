"""The room in which attempts to log in wait for their turn.

Laws:
- so many wait at most; when the room is full, whoever has most places in it gives one up, an address before
  others and a name before others of its address: who fills it pays
- an address that is suspected has a share of its own, and no more. When that is full, who left has no place
  in it, and who failed there before goes before who did not
- addresses take turns: one that asks much waits behind itself
"""

from __future__ import annotations

from collections import Counter, deque

from msgspec import Struct

from holdfast.security.gate import Wanted
from holdfast.security.patience import Source


class Place(Struct, eq=False):
    """One attempt in the room."""

    wanted: Wanted
    source: Source
    failed: bool = False  # as that user, from there, before
    waited: bool = False  # as long as it had to, for what failed before
    begun: bool = False  # it is looked at, and cannot be put out
    gone: bool = False

    @property
    def left(self) -> bool:
        """Nobody is there any more to hear what comes of it."""
        return self.wanted.connection.closing


class Room:
    def __init__(self, places_max: int) -> None:
        self.places_max = places_max
        self.count = 0
        self._by_address: dict[str, dict[Place, None]] = {}

    def enter(self, place: Place, share: int | None) -> Place | None:
        """Gives a place, if need be another's; returns who has none now: another, the newcomer, or nobody."""
        own = self._by_address.get(place.source.address, {})
        loser = None
        if share is not None and len(own) >= share:
            self._without_who_left(own)
        if share is not None and len(own) >= share:
            loser = _of_who_failed(own, place) or _of_busiest_name(own, place)
        elif self.count >= self.places_max:
            fullest = max(self._by_address.values(), key=len)
            theirs = len(fullest) > len(own) + 1
            loser = _newest(fullest) or place if theirs else _of_busiest_name(own, place)
        if loser is not place:
            if loser is not None:
                self.leave(loser)
            self._by_address.setdefault(place.source.address, {})[place] = None
            self.count += 1
        return loser

    def _without_who_left(self, places: dict[Place, None]) -> None:
        for place in [each for each in places if each.left and not each.begun]:
            self.leave(place)

    def leave(self, place: Place) -> None:
        place.gone = True
        places = self._by_address.get(place.source.address)
        if places is None or place not in places:
            return
        del places[place]
        self.count -= 1
        if not places:
            del self._by_address[place.source.address]


def _newest(places: dict[Place, None], name: str | None = None) -> Place | None:
    for place in reversed(places):
        if not place.begun and name in (None, place.source.user):
            return place
    return None


def _of_who_failed(own: dict[Place, None], newcomer: Place) -> Place | None:
    failed = (place for place in reversed(own) if place.failed and not place.begun)
    return None if newcomer.failed else next(failed, None)


def _of_busiest_name(own: dict[Place, None], newcomer: Place) -> Place:
    names = Counter(place.source.user for place in own)
    name, most = names.most_common(1)[0] if names else ("", 0)
    if most > names[newcomer.source.user] + 1:
        return _newest(own, name) or newcomer
    return newcomer


class Turns:
    """Places that wait to be looked at: addresses take turns, and each has an order."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Place]] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, place: Place) -> None:
        self._queues.setdefault(place.source.address, deque()).append(place)

    def take(self) -> Place:
        address = next(iter(self._queues))
        queue = self._queues.pop(address)
        place = queue.popleft()
        if queue:
            self._queues[address] = queue
        return place
