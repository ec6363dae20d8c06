"""Each message once, and in order, for every publisher and topic.

Laws:
- what is not newer than the newest seen of its stream is not given out
- the gap before a message is exact: what is missing there was never given out and never will be
- at most `streams_max` streams are remembered; the ones known longest are forgotten first
"""

from __future__ import annotations

DUPLICATE = -1


class Order:
    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        self._newest: dict[tuple[str, str], int] = {}
        self.duplicates = 0

    def seen(self, publisher: str, topic: str, sequence: int) -> int:
        """How many are missing right before this message, or DUPLICATE."""
        key = (publisher, topic)
        newest = self._newest.get(key)
        if newest is None:
            if len(self._newest) >= self._streams_max:
                del self._newest[next(iter(self._newest))]
            self._newest[key] = sequence
            return 0
        if sequence <= newest:
            self.duplicates += 1
            return DUPLICATE
        self._newest[key] = sequence
        return sequence - newest - 1
