"""How a follower is told of state: in words each of which fits into a frame.

Laws:
- a word that carries increments is bounded in count and in bytes; the largest increment fits into a frame
- a snapshot is read while it changes: what changes meanwhile is told to the follower as well, at once
- healing is read from the log, in its order: what happens meanwhile is part of it, and told in no other way
- after a healing word the follower has the state that the word names, under the epoch in which it arose
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.broker.broker import Broker
from holdfast.replication.increments import Increment, StateLog, encoded_parts, everything
from holdfast.replication.messages import Healing, Snapshot, State, raw_healing, raw_snapshot, raw_state

WORD_INCREMENTS_MAX = 200
WORD_BYTES = 65_536  # at which a word ends; it is larger by one increment at most


def word_parts(increments: Iterable[Increment]) -> Iterator[list[msgspec.Raw]]:
    """As many increments together as one word carries."""
    return encoded_parts(increments, size_max=WORD_BYTES, count_max=WORD_INCREMENTS_MAX)


def state_words(epoch: int, first: int, increments: Iterable[Increment]) -> Iterator[State]:
    for part in word_parts(increments):
        yield raw_state(epoch, first, part)
        first += len(part)


class SnapshotTransfer:
    """Everything there is."""

    live = True  # the follower is told at once of what happens meanwhile

    def __init__(self, broker: Broker) -> None:
        self._parts = word_parts(everything(broker))

    def next_word(self, log: StateLog) -> Snapshot:
        part = next(self._parts, None)
        last = part is None
        return raw_snapshot(part or [], last=last, epoch=log.epoch, number=log.number, life=log.life)


class HealingTransfer:
    """What a follower at (epoch, number) lacks of the log, if that is the same life's epoch."""

    live = False

    def __init__(self, epoch: int, number: int) -> None:
        self._epoch = epoch
        self._number = number

    def next_word(self, log: StateLog) -> Healing | None:
        """None: the log does not reach back so far any more."""
        lacks = log.after(self._epoch, self._number, WORD_INCREMENTS_MAX)
        if lacks is None:
            return None
        part = next(word_parts(lacks.increments), [])
        self._number += len(part)
        self._epoch = lacks.epoch if len(part) == len(lacks.increments) else self._epoch
        last = (self._epoch, self._number) == (log.epoch, log.number)
        life = log.life_in(self._epoch) or 0
        return raw_healing(self._epoch, self._number, part, last=last, life=life)
