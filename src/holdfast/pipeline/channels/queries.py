"""The text of a channel's query, and where in which file each of its characters was written.

Law: a place that is told is one that an editor can go to: a line of the pipeline file for a query that stands
in it, a line of its own file for another. Only where TOML escapes hide a query's lines, the line is
counted within the query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.config import read
from holdfast.errors import ConfigError, Problem
from holdfast.pipeline.declared import Channel

QUERY_CHARS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Query:
    """`file` is empty for a query in the pipeline file; `line` is where the text begins, 0 if unknown."""

    channel: Channel
    text: str
    file: str = ""
    line: int = 0

    def place(self, offset: int | None) -> str:
        """Where the character at this offset of the text is, in words that begin with the channel."""
        where = f"channel {self.channel.name}"
        if offset is None:
            return f"{where}, {self.file}" if self.file else where
        inside = self.text.count("\n", 0, offset)
        if not self.line:
            return f"{where}, line {inside + 1} of the query"
        return f"{where}, {self.file + ' ' if self.file else ''}line {self.line + inside}"


def read_queries(channels: Iterable[Channel], source: Path) -> dict[str, Query]:
    """The queries by channel; ConfigError with every file that cannot be read. `source` is the pipeline."""
    found: dict[str, Query] = {}
    problems: list[Problem] = []
    document = source.read_text() if source.is_file() else ""
    seen: dict[str, int] = {}
    for channel in channels:
        if not channel.file:
            line, seen[channel.query] = _line(document, channel.query, seen.get(channel.query, 0))
            found[channel.name] = Query(channel, channel.query, "", line)
            continue
        try:
            found[channel.name] = Query(channel, read(source.parent / channel.file), channel.file, 1)
        except ConfigError as error:
            problems += (
                Problem(f"channel {channel.name}, {channel.file}", each.message) for each in error.problems
            )
    problems += _sizes(found.values())
    if problems:
        raise ConfigError(str(source), problems)
    return found


def _line(document: str, query: str, begin: int) -> tuple[int, int]:
    """The line where the query stands as it is, and where to look for the next that is the same."""
    at = document.find(query, begin)
    return (document.count("\n", 0, at) + 1, at + len(query)) if at >= 0 else (0, begin)


def _sizes(queries: Iterable[Query]) -> Iterator[Problem]:
    for query in queries:
        if not query.text.strip():
            yield Problem(query.place(None), "there is no query in it")
        elif len(query.text) > QUERY_CHARS_MAX:
            yield Problem(query.place(None), f"the query is longer than {QUERY_CHARS_MAX} characters")
