"""Where a feed is read: from files that this process sees, or from a recorder that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from msgspec import Struct

from holdfast.address import Address
from holdfast.errors import Unavailable
from holdfast.pipeline.feed.journal import FeedReader
from holdfast.pipeline.layout import Layout

SERVED_PREFIXES = ("grpc://", "grpc+tls://")


class Served(Struct, frozen=True):
    """A recorder that serves its feeds: where, what it wants to hear, and who signed its certificate. The
    latter are files, which whoever reads has at that path."""

    location: str
    token_file: str = ""
    authority: str = ""

    def __str__(self) -> str:
        return self.location


class FeedDoor(Struct, frozen=True):
    """Where feeds are served, what a reader must say, and the certificate with its key that TLS shows."""

    address: Address
    token: bytes | None = None
    certificate: tuple[bytes, bytes] | None = None

    @property
    def scheme(self) -> str:
        return "grpc" if self.certificate is None else "grpc+tls"


class Readable(Protocol):
    """What FeedReader promises, wherever the feed is."""

    @property
    def head(self) -> int: ...
    @property
    def first(self) -> int: ...
    def cut(self, start: int, end: int, records_max: int) -> list[tuple[int, int]]: ...
    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]: ...
    def commit(self, consumer: str, offset: int) -> None: ...


def open_feed(where: str | Path | Served, name: str) -> Readable:
    """The feed of this name in a data folder, or at a recorder that serves it: "grpc://host:port"."""
    if str(where).startswith(SERVED_PREFIXES):
        from holdfast.pipeline.feed.flight import ServedFeed

        return ServedFeed(where if isinstance(where, Served) else Served(str(where)), name)
    assert not isinstance(where, Served), where
    layout = Layout(where)
    if not layout.data.is_dir():
        raise Unavailable(
            f"there is no data folder {where}: start `holdfast record` there first, or name the right one"
        )
    return FeedReader(layout.feed(name))
