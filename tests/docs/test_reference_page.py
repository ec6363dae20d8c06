"""docs/reference.md has every topic in which a broker says something of its group, and no other."""

import re
from pathlib import Path

from tests.replication.pair import Group

from holdfast.replication.measures import group_figures

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
TITLE = "## What a broker says of its group"


def test_every_topic_of_a_group_is_in_the_table() -> None:
    group = Group(2)
    section = PAGE.read_text().partition(TITLE)[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    listed = sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row))
    said = sorted(name.removeprefix("group/") for name in group_figures(next(iter(group.members.values()))))
    assert listed == said
