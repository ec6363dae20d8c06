"""A port for people and programs that watch: a few paths, GET and HEAD only, on the broker's own loop.

Laws:
- one request to a connection; it has REQUEST_S to come, its answer ANSWER_S to go, then the connection ends
- a request is at most REQUEST_BYTES_MAX long, and at most OPEN_MAX connections are open, ACCEPTS_MAX more a
  turn: when one too many comes, the oldest half request is ended, or else a farewell
- at most ANSWERS_MAX answers are under way; who does not take its answer is ended when somebody else asks
- whether a process lives is answered always, in one piece, whatever else is under way
- an answer is made piece by piece, one for each turn of the loop, and none while the last is not taken
- with a token, whoever does not say it learns nothing but that; without one, who calls it by a strange name
  hears of nothing but health: a page could have pointed a name of its own here
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from holdfast.address import Address
from holdfast.errors import Unavailable
from holdfast.runtime.ports import open_listener
from holdfast.runtime.upgrade import hostname, is_fixed

REQUEST_BYTES_MAX = 8192
OPEN_MAX = 256
ANSWERS_MAX = 64
ACCEPTS_MAX = 16
BACKLOG = 128
REQUEST_S = 5.0
ANSWER_S = 20.0
FAREWELL_S = 2.0
ACCEPT_AGAIN_S = 0.1
HEALTH = "/health/"
END = b"\r\n\r\n"
PLAIN = "text/plain; charset=utf-8"
JSON = "application/json"
STRANGE_NAME = "ask by an address, as localhost, or by the name that the port was opened with"


class Answer(NamedTuple):
    """`pieces` are asked for one after the other, and only as fast as the other side takes them."""

    status: HTTPStatus
    content_type: str
    pieces: Iterator[bytes]
    brief: bool = False  # one small piece, said at once


Routes = Mapping[str, Callable[[], Answer]]


class Asked(NamedTuple):
    """A request as far as it matters; `refused` where there is nothing else to say."""

    path: str = ""
    hosts: tuple[str, ...] = ()
    head_only: bool = False
    chunked: bool = False
    refused: HTTPStatus | None = None


def words(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, PLAIN, iter([text.encode() + b"\n"]), brief=True)


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
    return Asked(
        parts[1].partition(b"?")[0].decode("latin-1"),
        tuple(each.decode("latin-1") for each in _values(fields, b"host")),
        head_only=parts[0] == b"HEAD",
        chunked=parts[2] == b"HTTP/1.1",
    )


def _says(fields: list[bytes], token: bytes) -> bool:
    for value in _values(fields, b"authorization"):
        scheme, _, said = value.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(said.strip(), token)
    return False


def _values(fields: list[bytes], name: bytes) -> Iterator[bytes]:
    for field in fields:
        found, _, value = field.partition(b":")
        if found.strip().lower() == name:
            yield value.strip()


def is_ours(hosts: tuple[str, ...], own: str) -> bool:
    """Whether nobody else decides where these lead: each is an address, localhost, or what we are called."""
    names = [hostname(f"//{host}") for host in hosts]
    return all(name is not None and (name == own.lower() or is_fixed(name)) for name in names)


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


class Stage(Enum):
    """How far an exchange is."""

    HALF = auto()  # its request is not complete, or TLS is not agreed on
    ANSWERED = auto()  # its answer is under way
    OVER = auto()  # everything was said


class HttpPort:
    def __init__(self, loop: asyncio.AbstractEventLoop, routes: Routes, token: bytes | None = None) -> None:
        self.loop = loop
        self.routes = routes
        self.token = token
        self.open: dict[_Exchange, None] = {}  # in the order in which they came to where they are
        self._name = ""
        self._tls: ssl.SSLContext | None = None
        self._listeners: list[socket.socket] = []
        self._paused: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> list[Address]:
        """Opens it, and returns the addresses it has."""
        self._name, self._tls = host, tls
        try:
            found = await self.loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                self._listeners.append(open_listener(family, address, BACKLOG))
        except OSError as error:
            why = error.strerror or error
            where = Address(host, port)
            raise Unavailable(f"cannot listen on {where}: {why}. Choose another with --http.") from error
        self._read_listeners()
        return [Address(*each.getsockname()[:2]) for each in self._listeners]

    def _read_listeners(self) -> None:
        self._paused = None
        for each in self._listeners:
            self.loop.add_reader(each.fileno(), self._accept, each)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                peer, _address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError:  # no descriptor is left: who waits stays in the kernel's queue for a moment
                for each in self._listeners:
                    self.loop.remove_reader(each.fileno())
                self._paused = self.loop.call_later(ACCEPT_AGAIN_S, self._read_listeners)
                return
            if len(self.open) >= OPEN_MAX:
                self._end_one(Stage.HALF) or self._end_one(Stage.OVER)
            exchange = _Exchange(self, peer)
            self.open[exchange] = None
            exchange.begin(self._tls)

    def _end_one(self, stage: Stage, *, stuck: bool = False) -> bool:
        """Ends the first that is at this stage, and takes nothing if that is asked; whether there was one."""
        for exchange in self.open:
            if exchange.stage is stage and (exchange.paused or not stuck):
                exchange.give_up()
                return True
        return False

    def has_room(self) -> bool:
        """Whether one more answer may be under way; who does not take its own makes room."""
        under_way = sum(each.stage is Stage.ANSWERED for each in self.open)
        return under_way < ANSWERS_MAX or self._end_one(Stage.ANSWERED, stuck=True)

    def answer(self, asked: Asked) -> Answer:
        if asked.refused is not None:
            return words(asked.refused, asked.refused.description or asked.refused.phrase)
        route = self.routes.get(asked.path)
        if route is None:
            return words(HTTPStatus.NOT_FOUND, f"there are {', '.join(self.routes)}")
        if asked.path.startswith(HEALTH):
            return route()
        if self.token is None and not is_ours(asked.hosts, self._name):
            return words(HTTPStatus.MISDIRECTED_REQUEST, STRANGE_NAME)
        if not self.has_room():
            return words(HTTPStatus.SERVICE_UNAVAILABLE, f"{ANSWERS_MAX} answers are under way; ask again")
        return route()

    async def close(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
        for listener in self._listeners:
            self.loop.remove_reader(listener.fileno())
            listener.close()
        begun = [each.beginning for each in self.open if each.beginning is not None]
        for exchange in list(self.open):
            exchange.give_up()
        await asyncio.gather(*begun, return_exceptions=True)


class _Exchange(asyncio.Protocol):
    """One connection: a request, its answer, the end."""

    def __init__(self, port: HttpPort, peer: socket.socket) -> None:
        self.stage = Stage.HALF
        self.paused = False
        self.beginning: asyncio.Task[Any] | None = None
        self._port = port
        self._peer: socket.socket | None = peer
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._pieces: Iterator[bytes] | None = None
        self._chunked = False
        self._due = False
        self._timer = port.loop.call_later(REQUEST_S, self.give_up)

    def begin(self, tls: ssl.SSLContext | None) -> None:
        assert self._peer is not None
        made = self._port.loop.connect_accepted_socket(
            lambda: self, self._peer, ssl=tls, ssl_handshake_timeout=None if tls is None else REQUEST_S
        )
        self.beginning = self._port.loop.create_task(made)
        self.beginning.add_done_callback(self._begun)

    def _begun(self, task: asyncio.Task[Any]) -> None:
        self.beginning = None
        if task.cancelled() or task.exception() is not None:
            self.connection_lost(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, error: Exception | None) -> None:
        self._port.open.pop(self, None)
        self._timer.cancel()
        self._transport = self._pieces = self._peer = None

    def give_up(self) -> None:
        """Ends it, however far it is."""
        self._port.open.pop(self, None)
        if self._transport is not None:
            self._transport.abort()
        elif self._peer is not None:
            with suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)  # whoever greets it learns of the end

    def data_received(self, data: bytes) -> None:
        if self.stage is not Stage.HALF or self._transport is None:
            return  # what comes behind the request is not looked at
        self._head += data
        head, end, _ = self._head.partition(END)
        if len(head) > REQUEST_BYTES_MAX:
            self._send(Asked(refused=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        elif end:
            self._send(understand(head, self._port.token))

    def _send(self, asked: Asked) -> None:
        assert self._transport is not None
        answer = self._port.answer(asked)
        self._chunked = asked.chunked and not asked.head_only
        self._pieces = iter(()) if asked.head_only else answer.pieces
        self._head = b""
        self._move_to(Stage.ANSWERED, ANSWER_S)
        self._transport.write(head_of(answer, chunked=self._chunked))
        if answer.brief or asked.head_only:
            self._transport.write(b"".join(self._framed(piece) for piece in self._pieces))
            self._finish()
        else:
            self._soon()

    def _move_to(self, stage: Stage, seconds: float) -> None:
        """It is the last at its new stage, and has so long for it."""
        self.stage = stage
        if self._port.open.pop(self, self) is None:
            self._port.open[self] = None
        self._timer.cancel()
        self._timer = self._port.loop.call_later(seconds, self.give_up)

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._port.loop.call_soon(self._more)

    def _more(self) -> None:
        """The next piece, then whoever else has something to do."""
        self._due = False
        if self._transport is None or self._pieces is None or self.paused:
            return
        piece = next(self._pieces, None)
        if piece is None:
            self._finish()
            return
        if piece:
            self._transport.write(self._framed(piece))
        self._soon()

    def _framed(self, piece: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece

    def _finish(self) -> None:
        assert self._transport is not None
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")
        self._pieces = None
        self._move_to(Stage.OVER, FAREWELL_S if not self.paused else ANSWER_S)
        self._transport.close()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._soon()
