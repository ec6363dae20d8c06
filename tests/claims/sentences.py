"""The sentences of a page, and those that the docstrings of the claims quote."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGES = {
    "failover.md": ROOT / "docs" / "failover.md",
    "deploying.md": ROOT / "docs" / "deploying.md",
    "README.md": ROOT / "README.md",
}
ALSO_QUOTED = {
    name: ROOT / "docs" / name
    for name in (
        "logs.md",
        "metrics.md",
        "reference.md",
        "reproducing.md",
        "security.md",
        "simulator.md",
        "spark.md",
    )
}
# A list of pages and files promises nothing.
LISTS = ("Where to go next",)
BLOCKS = re.compile(r"```.*?```|<!-- drawn: .*?<!-- /drawn -->", re.DOTALL)
ENDS = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`*\[])")
QUOTES = re.compile(r'(\w+\.md): "')


class Quote(NamedTuple):
    page: str
    sentence: str
    test: str


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("*", "")).strip()


def sentences_of(name: str) -> list[str]:
    """In their order: those of paragraphs, of list items, and of the cells of tables that say more than a
    name.
    """
    text = BLOCKS.sub("\n\n", PAGES[name].read_text())
    for title in LISTS:
        text = re.sub(rf"\n## {title}\n.*?(?=\n## |\Z)", "\n", text, flags=re.DOTALL)
    found: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        for piece in _pieces(block):
            found += [plain(each) for each in ENDS.split(plain(piece))]
    return [each for each in found if len(each.split()) > 3]


def _pieces(block: str) -> Iterator[str]:
    lines = block.strip().splitlines()
    if lines and lines[0].startswith("|"):
        for line in lines[2:]:
            yield from line.strip().strip("|").split(" | ")[1:]  # the first says what the row is about
        return
    item = ""
    for line in lines:
        if line.startswith("#"):
            continue
        if line.startswith("- "):
            yield item
            item = line[2:]
        else:
            item += "\n" + line
    yield item


def quotes() -> list[Quote]:
    found = []
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                where = f"{path.relative_to(ROOT)}::{node.name}"
                found += [
                    Quote(page, words, where) for page, words in quoted_in(ast.get_docstring(node) or "")
                ]
    return found


def quoted_in(docstring: str) -> Iterator[tuple[str, str]]:
    starts = list(QUOTES.finditer(docstring))
    for start, after in zip_longest(starts, starts[1:]):
        words = docstring[start.end() : None if after is None else after.start()].split("\n\n")[0].rstrip()
        assert words.endswith('"'), f"a quotation that does not end: {words!r}"
        yield start[1], plain(words[:-1])


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
