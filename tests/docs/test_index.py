"""docs/README.md lists every page, and the README is short."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
README_WORDS_MAX = 1500
LINK = re.compile(r"\]\(([\w./-]+\.md)[)#]")


def linked(page: Path) -> list[Path]:
    return [(page.parent / target).resolve() for target in LINK.findall(page.read_text())]


def test_the_index_lists_every_page_once_with_a_line_of_its_own() -> None:
    lines = [line for line in INDEX.read_text().splitlines() if line.startswith("- ")]
    assert all(re.fullmatch(r"- \[[^]]+\]\([^)]+\): .+\.", line) for line in lines)
    listed = Counter(linked(INDEX))
    assert set(listed.values()) == {1}
    pages = {*DOCS.glob("*.md"), *(DOCS / "decisions").glob("*.md")} - {INDEX}
    assert pages | {ROOT / "README.md", ROOT / "ARCHITECTURE.md"} == set(listed)


def test_the_readme_leads_to_every_page_of_docs() -> None:
    assert {*DOCS.glob("*.md")} <= set(linked(ROOT / "README.md"))


def test_every_report_is_reached_from_the_comparison() -> None:
    assert {*(DOCS / "results").glob("*/*.md")} == {
        page for page in linked(DOCS / "reproducing.md") if page.is_relative_to(DOCS / "results")
    }


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS_MAX
