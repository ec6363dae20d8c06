"""How far the consumers of a feed are: one small file for each.

Laws:
- a mark is replaced as a whole and never moves back
- a mark that cannot be read needs everything: nothing is pruned for it
- at most CONSUMERS_MAX consumers have marks
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from holdfast.errors import ConfigError, Problem, Unavailable

CONSUMERS_MAX = 100
MARK_BYTES_MAX = 32
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
UNFINISHED = ".new"


class Consumers:
    def __init__(self, feed: Path) -> None:
        self._directory = feed / "consumers"

    def marks(self) -> dict[str, int]:
        """Every consumer, and the offset below which it needs nothing."""
        try:
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            return {}
        return {name: self.mark(name) or 0 for name in names if not name.endswith(UNFINISHED)}

    def mark(self, consumer: str) -> int | None:
        """None if there is no such consumer, or its mark cannot be read."""
        try:
            with (self._directory / consumer).open("rb") as file:
                found = file.read(MARK_BYTES_MAX)
        except FileNotFoundError:
            return None
        text = found.removesuffix(b"\n")
        return int(text) if text.isdigit() and text != found else None

    def commit(self, consumer: str, offset: int) -> None:
        if NAME.fullmatch(consumer) is None or consumer.endswith(UNFINISHED):
            text = "expected letters, digits, _, - and ., 100 at most"
            raise ConfigError("feed", [Problem("consumer", f"found {consumer!r}; {text}")])
        known = self.mark(consumer)
        if known is not None and known >= offset:
            return
        if known is None and len(self.marks().keys() - {consumer}) >= CONSUMERS_MAX:
            raise Unavailable(
                f"{CONSUMERS_MAX} consumers have marks in {self._directory}: remove the files of those that "
                "will not come back"
            )
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            unfinished = self._directory / f"{consumer}.{os.getpid()}{UNFINISHED}"
            unfinished.write_bytes(b"%d\n" % offset)
            unfinished.replace(self._directory / consumer)
        except OSError as error:
            raise Unavailable(
                f"cannot write the mark of {consumer} in {self._directory}: {error.strerror or error}"
            ) from error
