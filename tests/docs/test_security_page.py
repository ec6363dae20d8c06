"""Every protection on the page about security names a test that exists, and its examples are what it says."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.broker.rules import Who
from holdfast.config import loads
from holdfast.security.config import Security
from holdfast.security.hook import Attempt
from holdfast.security.rules import load_rules

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = [
    line
    for line in PAGE.partition("## Protections")[2].splitlines()
    if line.startswith("| ") and "---" not in line
]
PROTECTIONS = [row for row in ROWS if row != "| protection | test |"]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)` \|$")


def example(language: str, words: str) -> str:
    """The block of the page with these words in it."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (found,) = [block for block in blocks if words in block]
    return found


def test_the_files_on_the_page_can_be_read(tmp_path: Path) -> None:
    security = loads(example("toml", "anonymous ="), Security)
    assert security.limits.connections_max == 10
    (tmp_path / "rules.toml").write_text(example("toml", "[[rule]]"))
    rules = load_rules(tmp_path / "rules.toml")
    assert rules.publishing(Who("press-1", "c"), b"plant/press-1/x")
    assert not rules.publishing(Who("press-1", "c"), b"plant/press-2/x")


def test_the_hook_on_the_page_works() -> None:
    names: dict[str, Any] = {}
    exec(example("python", "def authenticate"), names)
    token = names["TOKENS"]["robot-7"]
    for user, password, answer in (
        ("robot-7", token, "robot-7"),
        ("robot-7", b"wrong", None),
        ("nobody", b"", None),
    ):
        assert names["authenticate"](Attempt(user, password, "c", "192.0.2.1")) == answer


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
