"""A port for people and programs that watch: a few paths, GET and HEAD only, on the broker's own loop.

Laws:
- one request to a connection; it has REQUEST_S to come, its answer ANSWER_S to go, then the connection ends
- a request is at most REQUEST_BYTES_MAX long, and at most CONNECTIONS_MAX are open: junk costs nothing more
- an answer is made piece by piece, one for each turn of the loop, and none while the last is not taken
- with a token, whoever does not say it learns nothing but that
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple, cast

from holdfast.address import Address
from holdfast.errors import Unavailable

REQUEST_BYTES_MAX = 8192
CONNECTIONS_MAX = 64
REQUEST_S = 5.0
ANSWER_S = 20.0
END = b"\r\n\r\n"
PLAIN = "text/plain; charset=utf-8"
JSON = "application/json"


class Answer(NamedTuple):
    """`pieces` are asked for one after the other, and only as fast as the other side takes them."""

    status: HTTPStatus
    content_type: str
    pieces: Iterator[bytes]


Routes = Mapping[str, Callable[[], Answer]]


class Asked(NamedTuple):
    """A request as far as it matters; `refused` where there is nothing else to say."""

    path: str = ""
    head_only: bool = False
    chunked: bool = False
    refused: HTTPStatus | None = None


def words(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, PLAIN, iter([text.encode() + b"\n"]))


def understand(head: bytes, token: bytes | None) -> Asked:
    """What a request asks for. Any bytes will do: what is no request is refused."""
    line, *fields = head.split(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        return Asked(refused=HTTPStatus.BAD_REQUEST)
    if token is not None and not _says(fields, token):
        return Asked(refused=HTTPStatus.UNAUTHORIZED)
    if parts[0] not in (b"GET", b"HEAD"):
        return Asked(refused=HTTPStatus.METHOD_NOT_ALLOWED)
    path = parts[1].partition(b"?")[0]
    return Asked(path.decode("latin-1"), head_only=parts[0] == b"HEAD", chunked=parts[2] == b"HTTP/1.1")


def _says(fields: list[bytes], token: bytes) -> bool:
    for field in fields:
        name, _, value = field.partition(b":")
        if name.lower() == b"authorization":
            scheme, _, said = value.strip().partition(b" ")
            return scheme.lower() == b"bearer" and hmac.compare_digest(said.strip(), token)
    return False


def head_of(answer: Answer, *, chunked: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    if answer.status is HTTPStatus.UNAUTHORIZED:
        lines.append("WWW-Authenticate: Bearer")
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    return "\r\n".join(lines).encode() + END


class HttpPort:
    def __init__(self, loop: asyncio.AbstractEventLoop, routes: Routes, token: bytes | None = None) -> None:
        self.loop = loop
        self.routes = routes
        self.token = token
        self.open: set[_Exchange] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> list[Address]:
        """Opens it, and returns the addresses it has."""
        try:
            self._server = await self.loop.create_server(
                lambda: _Exchange(self),
                host or None,
                port,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else REQUEST_S,
                backlog=CONNECTIONS_MAX,
            )
        except OSError as error:
            why = error.strerror or error
            where = Address(host, port)
            raise Unavailable(f"cannot listen on {where}: {why}. Choose another with --http.") from error
        return [Address(*each.getsockname()[:2]) for each in self._server.sockets]

    def answer(self, asked: Asked) -> Answer:
        if asked.refused is not None:
            return words(asked.refused, asked.refused.description or asked.refused.phrase)
        route = self.routes.get(asked.path)
        if route is None:
            return words(HTTPStatus.NOT_FOUND, f"there are {', '.join(self.routes)}")
        return route()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for exchange in list(self.open):
                exchange.give_up()
            await self._server.wait_closed()


class _Exchange(asyncio.Protocol):
    """One connection: a request, its answer, the end."""

    def __init__(self, port: HttpPort) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._pieces: Iterator[bytes] | None = None
        self._chunked = False
        self._paused = False
        self._due = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        if len(self._port.open) >= CONNECTIONS_MAX:
            self._transport.abort()
            return
        self._port.open.add(self)
        self._timer = self._port.loop.call_later(REQUEST_S, self.give_up)

    def connection_lost(self, error: Exception | None) -> None:
        self._port.open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._transport = self._timer = self._pieces = None

    def give_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._pieces is not None or self._transport is None:
            return  # what comes behind the request is not looked at
        self._head += data
        head, end, _ = self._head.partition(END)
        if len(head) > REQUEST_BYTES_MAX:
            self._send(Asked(refused=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        elif end:
            self._send(understand(head, self._port.token))

    def _send(self, asked: Asked) -> None:
        assert self._transport is not None
        assert self._timer is not None
        self._timer.cancel()
        self._timer = self._port.loop.call_later(ANSWER_S, self.give_up)
        answer = self._port.answer(asked)
        self._chunked = asked.chunked
        self._pieces = iter(()) if asked.head_only else answer.pieces
        self._transport.write(head_of(answer, chunked=asked.chunked and not asked.head_only))
        self._head = b""
        if asked.head_only:
            self._transport.close()
        else:
            self._soon()

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._port.loop.call_soon(self._more)

    def _more(self) -> None:
        """The next piece, then whoever else has something to do."""
        self._due = False
        if self._transport is None or self._pieces is None or self._paused:
            return
        piece = next(self._pieces, None)
        if piece is None:
            if self._chunked:
                self._transport.write(b"0\r\n\r\n")
            self._transport.close()
            return
        if piece:
            self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)
        self._soon()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._soon()
