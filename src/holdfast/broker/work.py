"""What clients ask that is no message: counted in units, and done in pieces.

    units       about a quarter of a microsecond of work each, on the machine that this was measured on
    Pieces      work that can be interrupted where it yields; what it spends it says to Works
    Works       what was interrupted, and goes on in turns

Laws:
- whatever a client asks costs units that follow what it makes the broker do: filters, properties, bytes,
  nodes visited
- a turn spends its shares, and beyond each of them one piece at most: a filter, or the check of one packet
- who was interrupted goes on before others begin, everybody in turn, and waits alone: only its own connection
  is not looked at meanwhile
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from holdfast.broker.connection import Connection

Pieces: TypeAlias = Iterator[None]

ROUND = 256  # units for one of those that were interrupted, before the next has its turn

# What things cost.
PACKET = 8  # any packet that plain Python handles
CONNECT = 24
FILTER = 16  # a subscription made or given up
FILTER_BYTES = 64  # of a filter in a unit, besides
GRANT = 2  # a filter of a SUBACK
RIGHT = 12  # a question to the rules
DROP = 10  # a subscription of a session that ended
CLEARED = 3  # messages in a unit that waited for a session that ended
CONTRACTS = 4  # contracts in a unit that a requirement is held against
BYTES = 128  # of a packet in a unit, read and checked

# What a turn spends.
READ_PER_TURN = 2048  # on what is read before it; then clients are not read until the turn
READ_AT_ONCE = 512  # of these by one connection: beyond that it is put aside
READ_AT_LEAST = 32  # the same where many have something to say at once
ASIDE_PER_TURN = 512  # on those that were put aside
INTERRUPTED_PER_TURN = 1024  # on what was interrupted
ENDED_PER_TURN = 640  # at once on what sessions leave that end; the rest is interrupted
CONTROL_PER_TURN = 1024  # on CONNECT, DISCONNECT and faults
REPLAYED_PER_TURN = 1024  # on retained messages for new subscriptions
DOUBTED_PER_TURN = 1024  # on whether clients may still read what waits for them
DOUBTS_PER_TURN = DOUBTED_PER_TURN // RIGHT  # so many questions


class Works:
    """`stopped_by` is told what the work of a connection was stopped by, in a turn."""

    def __init__(self, stopped_by: Callable[[Connection, Exception, int], None]) -> None:
        self.spent = 0  # units, by all work so far
        self.interrupted: deque[tuple[Pieces, Connection | None]] = deque()
        self.ended_left = ENDED_PER_TURN  # units for sessions that end before the next turn
        self._ending: deque[Pieces] = deque()
        self._stopped_by = stopped_by

    def begin(self, pieces: Pieces, units: int, connection: Connection | None = None) -> int:
        """Does what so many units allow, and the rest in turns; returns what was spent."""
        before = self.spent
        for _ in pieces:
            if self.spent - before >= units:
                self.interrupted.append((pieces, connection))
                break
        return self.spent - before

    def end(self, pieces: Pieces) -> None:
        """What a session leaves that ends. However many end together, they have one place in the order."""
        if self.ended_left > 0 and not self._ending:
            before = self.spent
            for _ in pieces:
                if self.spent - before >= self.ended_left:
                    break
            self.ended_left -= self.spent - before or 1
            if self.ended_left > 0:
                return
        if not self._ending:
            self.interrupted.append((self._end_all(), None))
        self._ending.append(pieces)

    def _end_all(self) -> Pieces:
        while self._ending:
            yield from self._ending[0]
            self._ending.popleft()
            self.spent += 1

    def turn(self, units: int, now_ns: int) -> None:
        """Goes on with what was interrupted, some of each after the other."""
        end = self.spent + units
        while self.interrupted and self.spent < end:
            pieces, connection = self.interrupted.popleft()
            self.spent += 1
            try:
                self.begin(pieces, min(ROUND, end - self.spent), connection)
            except Exception as error:
                if connection is None:
                    raise
                self._stopped_by(connection, error, now_ns)
