"""What a subscriber asks of the topics that it names, besides what their contracts promise to everybody.

Law: it never weakens a contract; of several the stricter counts.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Requirement(Struct, frozen=True):
    """None: nothing is asked. Best effort asks for nothing: no contract is weakened by it.

    `last` is how many of the last results of a channel it wants."""

    deadline_ns: int | None = None
    loss_tolerance: int | None = None
    last: int = 0

    @property
    def demands(self) -> bool:
        """Whether it has to be proven that it can be kept."""
        return self.deadline_ns is not None or self.loss_tolerance is not None

    def and_also(self, other: Requirement) -> Requirement:
        return Requirement(
            smaller(self.deadline_ns, other.deadline_ns),
            smaller(self.loss_tolerance, other.loss_tolerance),
            max(self.last, other.last),
        )


NOTHING = Requirement()


def smaller(*each: Any) -> int | None:
    """Of those that are numbers."""
    return min((one for one in each if isinstance(one, int)), default=None)
