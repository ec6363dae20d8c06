"""What became of each failure: which view followed, and how long clients were without a primary. Pure.

Law: a failover is timed from what caused it if that was done here, else from when its client noticed.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.client import Client
from holdfast.mqtt.conventions import ViewNote
from holdfast.units import MS


class Moves(Struct, frozen=True):
    """How often clients were moved to another primary; when the last of them was, and how long it took it."""

    count: int = 0
    at_ns: int = 0
    took_ns: int = 0


def moves_of(*clients: Client) -> Moves:
    """Of clients together: a move counts when all have made it, and lasts as long as the slowest."""
    each = [client.failovers for client in clients]
    return Moves(
        count=min((failovers.count for failovers in each), default=0),
        at_ns=max((failovers.at_ns or 0 for failovers in each), default=0),
        took_ns=max((failovers.durations_ns[-1] for failovers in each if failovers.count), default=0),
    )


class Failover(Struct):
    """`since` says from what on it is timed, if that was done here. None of a time: not over yet."""

    since: str = ""
    at_ns: int | None = None
    subscriber_ns: int | None = None
    publishers_ns: int | None = None

    def took_ns(self, moves: Moves) -> int:
        return moves.took_ns if self.at_ns is None else max(0, moves.at_ns - self.at_ns)

    @property
    def over(self) -> bool:
        return self.subscriber_ns is not None and self.publishers_ns is not None


class Story:
    """The failovers in their order."""

    def __init__(self) -> None:
        self.failovers: list[Failover] = []
        self._caused: tuple[str, int] | None = None
        self._subscriber = self._publishers = 0  # moves that were seen
        self._of_some = (0, 0)  # of these, what one of the two alone had made when a failover was caused

    def caused(self, what: str, at_ns: int) -> None:
        """The primary was put out of service here: the next failover comes of that. What only some clients
        had noticed before was none."""
        self._caused = (what, at_ns)
        self.failovers = [each for each in self.failovers if each.over]
        told = len(self.failovers)
        self._of_some = (self._subscriber - told, self._publishers - told)

    def subscriber(self, moves: Moves) -> None:
        if moves.count > self._subscriber:
            self._subscriber = moves.count
            failover = self._number(moves.count - self._of_some[0])
            failover.subscriber_ns = failover.took_ns(moves)

    def publishers(self, moves: Moves) -> None:
        if moves.count > self._publishers:
            self._publishers = moves.count
            failover = self._number(moves.count - self._of_some[1])
            failover.publishers_ns = failover.took_ns(moves)

    def _number(self, count: int) -> Failover:
        while len(self.failovers) < count:
            self.failovers.append(Failover())
            if self._caused is not None:
                self.failovers[-1].since, self.failovers[-1].at_ns = self._caused
                self._caused = None
        return self.failovers[count - 1]

    @property
    def over(self) -> int:
        """How many everybody has behind."""
        return sum(failover.over for failover in self.failovers)


def view_words(view: ViewNote | None) -> str:
    if view is None or not view.places:
        return "No view yet: nobody serves."
    primary, *heirs = (place.name for place in view.places)
    protection = f"{' and '.join(heirs)} protects it" if heirs else "nobody protects it"
    return f"View {view.number}: {primary} serves, {protection}."


def protected(view: ViewNote | None) -> bool:
    return view is not None and len(view.places) > 1


def failover_words(story: Story) -> str:
    """Of the last one. Numbers are those of failovers that everybody has behind."""
    if not story.failovers:
        return "No failover yet."
    last = story.failovers[-1]
    return _words(last, story.over + (not last.over))


def over_words(story: Story) -> str:
    """Of the last one that everybody has behind."""
    return _words([failover for failover in story.failovers if failover.over][-1], story.over)


def _words(last: Failover, number: int) -> str:
    told = {"subscriber": last.subscriber_ns, "all publishers": last.publishers_ns}
    took = {whom: ns for whom, ns in told.items() if ns is not None}
    if last.at_ns is None:
        longest_ns = max(took.values(), default=0)
        soon = "at once" if longest_ns < MS else f"within {_ms(longest_ns)}"
        who = " and ".join(took).replace("all ", "")
        return f"Failover {number}: {who} noticed, and went on {soon}."
    parts = ", ".join(f"{whom} {_ms(ns)}" for whom, ns in took.items())
    return f"Failover {number}: {parts} after {last.since}."


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"
