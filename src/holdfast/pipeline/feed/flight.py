"""Feeds over Arrow Flight: for readers on hosts that do not see the files.

Laws:
- a served feed gives what its files give, with the same errors: Gone, Beyond, Corrupt, Unavailable
- a range that ends early is an error at the reader, whatever broke on the way
- with a token, who does not say it is told nothing of any feed, and changes nothing
- READS_MAX ranges are read at once; who comes later waits, and is told to come again after WAIT_S_MAX
"""

from __future__ import annotations

import contextlib
import hmac
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from holdfast.address import Address
from holdfast.errors import HoldfastError, Unavailable
from holdfast.journal import Corrupt
from holdfast.pipeline.feed.errors import Beyond, Gone
from holdfast.pipeline.feed.journal import FeedReader
from holdfast.pipeline.feed.place import FeedDoor, Served
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.records import RECORD

READS_MAX = 16
WAIT_S_MAX = 30.0
ASK_S_MAX = 30.0
READ_S_MAX = 600.0
REQUEST_BYTES_MAX = 10_000
BEARER = b"Bearer "

# What is told of an error besides its words: enough to raise the same one at the other end.
FIELDS: dict[type[Unavailable], tuple[str, ...]] = {
    Gone: ("feed", "start", "first"),
    Beyond: ("feed", "end", "head"),
    Corrupt: ("file", "offset", "text"),
}


def _encode_error(error: HoldfastError) -> flight.FlightServerError:
    fields = FIELDS.get(type(error), ()) if isinstance(error, Unavailable) else ()
    told = {"kind": type(error).__name__, "fields": [getattr(error, name) for name in fields]}
    return flight.FlightServerError(str(error), extra_info=json.dumps(told).encode())


def _decode_error(error: flight.FlightError | pa.ArrowException, where: str) -> Unavailable:
    told = getattr(error, "extra_info", None)
    if told:
        found = json.loads(told)
        for kind in FIELDS:
            if kind.__name__ == found["kind"]:
                return kind(*found["fields"])
    said = str(error).splitlines() or [type(error).__name__]
    return Unavailable(f"{where}: {said[0]}")


class _TokenGuard(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, token: bytes) -> None:
        super().__init__()
        self._wanted = BEARER + token

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> None:
        said = headers.get("authorization", [])
        if not any(hmac.compare_digest(each.encode(), self._wanted) for each in said):
            raise flight.FlightUnauthenticatedError("feeds are for who says the token")


class FeedServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves the feeds of these names."""

    def __init__(self, door: FeedDoor, layout: Layout, names: Sequence[str]) -> None:
        super().__init__(
            f"{door.scheme}://{door.address}",
            tls_certificates=None if door.certificate is None else [door.certificate],
            middleware=None if door.token is None else {"token": _TokenGuard(door.token)},
        )
        self._layout = layout
        self._names = tuple(names)
        self._reads = threading.BoundedSemaphore(READS_MAX)
        # A reader keeps an index, and belongs to one thread.
        self._own = threading.local()

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """`head`, `first`, `cut` and `commit`, with JSON in and out."""
        with _told():
            asked = _parse(action.body.to_pybytes())
            feed = self._feed(asked.get("feed"))
            return [json.dumps(_answer(feed, action.type, asked)).encode()]

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """One range, as its batches."""
        with _told():
            asked = _parse(ticket.ticket)
            feed = self._feed(asked.get("feed"))
            start, end = _number(asked, "start"), _number(asked, "end")
        return flight.GeneratorStream(RECORD, self._batches(feed, start, end))

    def _batches(self, feed: FeedReader, start: int, end: int) -> Iterator[pa.RecordBatch]:
        with _told():
            if not self._reads.acquire(timeout=WAIT_S_MAX):
                raise Unavailable(f"{READS_MAX} ranges are being read already: try again")
            try:
                # The thread that reads on may be another than the one that asked.
                yield from FeedReader(feed.directory).read(start, end)
            finally:
                self._reads.release()

    def _feed(self, name: object) -> FeedReader:
        if name not in self._names:
            raise Unavailable(f"no feed {name!r} is recorded here; there are: {', '.join(self._names)}")
        readers: dict[str, FeedReader] = self._own.__dict__.setdefault("readers", {})
        assert isinstance(name, str)
        return readers.setdefault(name, FeedReader(self._layout.feed(name)))


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except HoldfastError as error:
        raise _encode_error(error) from error


def _parse(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body) if len(body) <= REQUEST_BYTES_MAX else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unavailable("this is no request for a feed: expected JSON with feed, start and end")
    return found


def _number(asked: dict[str, Any], name: str) -> int:
    found = asked.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise Unavailable(f"{name}: found {found!r}; expected an offset")
    return found


def _answer(feed: FeedReader, kind: str, asked: dict[str, Any]) -> object:
    match kind:
        case "head":
            return feed.head
        case "first":
            return feed.first
        case "cut":
            records_max = max(1, _number(asked, "records_max"))
            return feed.cut(_number(asked, "start"), _number(asked, "end"), records_max)
        case "commit":
            feed.commit(str(asked.get("consumer")), _number(asked, "offset"))
            return None
    raise Unavailable(f"{kind!r} is not an action of a feed")


@contextlib.contextmanager
def serve_feeds(door: FeedDoor, layout: Layout, names: Sequence[str]) -> Iterator[str]:
    """Serves for the length of a `with` block; gives the address for `open_feed`."""
    try:
        server = FeedServer(door, layout, names)
    except (pa.ArrowException, OSError) as error:
        raise Unavailable(f"cannot serve feeds on {door.address}: is the port taken?") from error
    try:
        yield f"{door.scheme}://{Address(door.address.host, server.port)}"
    finally:
        server.shutdown()


def _read(path: str) -> bytes:
    """What a recorder is to be shown."""
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}") from error


class ServedFeed:
    """A feed that a recorder serves; the same as FeedReader to its user."""

    def __init__(self, served: Served, name: str) -> None:
        self.location = served.location
        self.name = name
        self._headers = [(b"authorization", BEARER + _read(served.token_file))] if served.token_file else []
        authority = _read(served.authority) if served.authority else None
        self._client = flight.connect(served.location, tls_root_certs=authority)

    @property
    def head(self) -> int:
        return int(self._ask("head"))

    @property
    def first(self) -> int:
        return int(self._ask("first"))

    def cut(self, start: int, end: int, records_max: int) -> list[tuple[int, int]]:
        found = self._ask("cut", start=start, end=end, records_max=records_max)
        return [(low, high) for low, high in found]

    def commit(self, consumer: str, offset: int) -> None:
        self._ask("commit", consumer=consumer, offset=offset)

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        ticket = flight.Ticket(json.dumps({"feed": self.name, "start": start, "end": end}).encode())
        at = start
        try:
            for chunk in self._client.do_get(ticket, self._options(READ_S_MAX)):
                at += chunk.data.num_rows
                yield chunk.data
        except (flight.FlightError, pa.ArrowException) as error:
            raise _decode_error(error, self._where) from error
        if at != end:
            raise Unavailable(f"{self._where}: the range [{start}, {end}) ended at {at}")

    def _options(self, seconds: float) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=seconds, headers=self._headers)

    @property
    def _where(self) -> str:
        return f"feed {self.name} at {self.location}"

    def _ask(self, kind: str, **asked: object) -> Any:
        body = json.dumps({"feed": self.name, **asked}).encode()
        try:
            (answer,) = self._client.do_action(flight.Action(kind, body), self._options(ASK_S_MAX))
        except (flight.FlightError, pa.ArrowException) as error:
            raise _decode_error(error, self._where) from error
        return json.loads(answer.body.to_pybytes())
