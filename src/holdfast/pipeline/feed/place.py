"""Where a feed is read: from files that this process sees, or from a recorder that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from holdfast.errors import Unavailable
from holdfast.pipeline.feed.journal import FeedReader
from holdfast.pipeline.layout import Layout

SERVED_PREFIX = "grpc://"


class Readable(Protocol):
    """What FeedReader promises, wherever the feed is."""

    @property
    def head(self) -> int: ...
    @property
    def first(self) -> int: ...
    def cut(self, start: int, end: int, records_max: int) -> list[tuple[int, int]]: ...
    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]: ...
    def commit(self, consumer: str, offset: int) -> None: ...


def open_feed(where: str | Path, name: str) -> Readable:
    """The feed of this name in a data folder, or at a recorder that serves it: "grpc://host:port"."""
    if str(where).startswith(SERVED_PREFIX):
        from holdfast.pipeline.feed.flight import ServedFeed

        return ServedFeed(str(where), name)
    layout = Layout(where)
    if not layout.data.is_dir():
        raise Unavailable(
            f"there is no data folder {where}: start `holdfast record` there first, or name the right one"
        )
    return FeedReader(layout.feed(name))
