"""Pages in which a command writes what was measured; the rest of them is written by hand.

`<!-- measured: WORD … -->` begins such a part, `<!-- /measured -->` ends it; the words say what is shown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

MARKED = re.compile(r"(<!-- measured:((?: \S+)*) -->\n).*?(<!-- /measured -->)", re.DOTALL)


def words_of(page: str) -> list[list[str]]:
    """What the marks of a page ask for, in their order."""
    return [found[2].split() for found in MARKED.finditer(page)]


def filled(page: str, lines: Callable[[list[str]], list[str]]) -> str:
    """The page with these lines between its marks."""

    def measured(found: re.Match[str]) -> str:
        return found[1] + "\n".join(lines(found[2].split())).strip() + "\n" + found[3]

    return MARKED.sub(measured, page)


def settle(pages: Mapping[Path, str], check: bool, command: str) -> int:
    """Writes the pages, or with `check` says which of them differ from what is there; gives an exit code."""
    stale = {path: text for path, text in pages.items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if check:
            print(f"{path} differs from its results: run {command}", file=sys.stderr)
        else:
            path.write_text(text)
    return int(check and bool(stale))
