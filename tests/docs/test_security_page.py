"""Every protection on the page about security names a test that exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = [
    line
    for line in PAGE.partition("## Protections")[2].splitlines()
    if line.startswith("| ") and "---" not in line
]
PROTECTIONS = [row for row in ROWS if row != "| protection | test |"]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)` \|$")


def test_the_page_has_its_tables() -> None:
    assert len(PROTECTIONS) > 40


@pytest.mark.parametrize("row", PROTECTIONS, ids=lambda row: row[2:60])
def test_a_protection_names_a_test_that_exists(row: str) -> None:
    named = NAMED.search(row)
    assert named is not None, "the line names no test"
    path, function = named.groups()
    functions = {
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert function in functions
