"""What a feed cannot give.

Unavailable
├── journal.Corrupt    a segment is damaged; names the file and the byte
├── Gone               what was asked for is not kept any more
└── Beyond             what was asked for was never durable here
"""

from __future__ import annotations

from holdfast.errors import Unavailable


class Gone(Unavailable):
    def __init__(self, feed: str, start: int, first: int) -> None:
        self.feed = feed
        self.start = start
        self.first = first
        super().__init__(
            f"the feed {feed} begins at offset {first}: what lies between {start} and it was pruned. "
            f"Go on from {first}, and keep more by a longer retention."
        )


class Beyond(Unavailable):
    def __init__(self, feed: str, end: int, head: int) -> None:
        self.feed = feed
        self.end = end
        self.head = head
        super().__init__(
            f"the feed {feed} ends at offset {head}: {end} was never reached. "
            "Is it another journal than the one that was read before?"
        )
