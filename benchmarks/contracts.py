"""The topics of a benchmark and the contracts file that promises something for each of them.

Topic names of one set have one length: packets then have one size, and receivers need not parse.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FRAME = Path(__file__).parents[1] / "examples" / "frame.toml"
DEPLOYMENT = """\
[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { edge = "1ms", cloud = "20ms" }
"""


@dataclass(frozen=True)
class Category:
    """One kind of topic: `plant/<name>/<number>`."""

    name: str
    count: int
    period: str
    deadline: str
    loss_tolerance: int | str
    retention: int

    def topics(self) -> list[str]:
        return [f"plant/{self.name}/{number:06}" for number in range(self.count)]

    def toml(self) -> str:
        tolerance = (
            f'"{self.loss_tolerance}"' if isinstance(self.loss_tolerance, str) else self.loss_tolerance
        )
        return (
            f'\n[[contract]]\nname = "{self.name}"\ntopics = ["plant/{self.name}/+"]\n'
            f'period = "{self.period}"\ndeadline = "{self.deadline}"\nloss_tolerance = {tolerance}\n'
            f'retention = {self.retention}\ndestination = "edge"\ncount = {self.count}\n'
        )


@dataclass(frozen=True)
class Contracts:
    """A set of categories; their topics are interleaved, as they would arrive from a plant."""

    categories: tuple[Category, ...]

    def topics(self) -> list[str]:
        each = [category.topics() for category in self.categories]
        assert len({len(topics) for topics in each}) == 1
        return [topic for together in zip(*each, strict=True) for topic in together]

    def toml(self) -> str:
        return DEPLOYMENT + "".join(category.toml() for category in self.categories)


def plant(topics: int, period: str = "50ms", deadline: str = "50ms", longer: str = "100ms") -> Contracts:
    """A fifth each: no loss at all, up to three lost in a row (twice), a longer deadline, and best effort.

    Every topic may send at one moment: they are admitted only if all can be dispatched within a deadline.
    """
    count, left = divmod(topics, 5)
    assert left == 0
    return Contracts(
        (
            Category("cat0", count, period, deadline, 0, 2),
            Category("cat1", count, period, deadline, 3, 0),
            Category("cat2", count, period, deadline, 3, 1),
            Category("cat3", count, period, longer, 3, 1),
            Category("cat4", count, period, longer, "unlimited", 0),
        )
    )
