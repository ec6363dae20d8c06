"""A TCP relay between a port and a target, for faults on real sockets: delay, jitter, cuts, refusals.

Laws: within a connection no byte is lost, changed or reordered, whatever is set; a cut is silent: bytes, ends
and resets wait until it is healed, as on a link that is down. Without delay a read is one write, at once.

`python -m holdfast.runtime.relay '{"target": "127.0.0.1:1883"}'` prints its address as a line of JSON, then
takes a command as JSON on each line of its input and answers each with a line. It ends with its input.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import sys
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import Literal, cast

import msgspec
import uvloop
from msgspec import Struct

from holdfast.address import Address, parse_address
from holdfast.errors import ConfigError, HoldfastError, Problem, Unavailable

WAITING_BYTES_MAX = 4 * 2**20
CONNECTIONS_MAX = 10_000
BACKLOG = 1024
RESET = struct.pack("ii", 1, 0)


class Direction(Enum):
    FORWARD = "forward"
    BACKWARD = "backward"


class RelayOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """`forward` is the way from the listening port to the target. The seed draws the jitter."""

    target: str
    listen: str = "127.0.0.1:0"
    seed: int = 0


class Command(Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag=str.lower):
    pass


class Delay(Command, frozen=True):
    """From now on everything takes this long each way, and up to `jitter_ms` longer."""

    ms: float
    jitter_ms: float = 0.0


class Cut(Command, frozen=True):
    """Nothing passes in these directions, and nobody is told. A new connection needs both."""

    direction: Literal["forward", "backward", "both"] = "both"


class Refuse(Command, frozen=True):
    """New connections are refused; those that are open go on."""


class Close(Command, frozen=True):
    """Every open connection is reset, on both sides."""


class Heal(Command, frozen=True):
    """The end of cuts and refusals; what waited is let through. The delay stays."""


class Status(Command, frozen=True):
    """Only the answer is wanted."""


AnyCommand = Delay | Cut | Refuse | Close | Heal | Status


class Answer(Struct, frozen=True, omit_defaults=True):
    """`connections` and the bytes that were passed on, or what was wrong with the command."""

    ok: bool
    error: str = ""
    connections: int = 0
    forward_bytes: int = 0
    backward_bytes: int = 0


class Ending(Enum):
    END = auto()  # no more bytes from this side
    CLOSED = auto()
    RESET = auto()


Item = bytes | Ending


def reset(transport: asyncio.Transport) -> None:
    """Closes with a reset, as a process that dies with unread input does."""
    found = transport.get_extra_info("socket")
    if found is not None and found.fileno() >= 0:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    transport.abort()


class Way:
    """One direction of one connection: what came from `source` and is due at `sink`."""

    def __init__(self, relay: Relay, direction: Direction) -> None:
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.twin: Way | None = None
        self.blocked = False
        self._ended = False
        self._relay = relay
        self._direction = direction
        self._items: deque[tuple[float, Item]] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False

    @property
    def _open(self) -> bool:
        return self.sink is not None and self._direction not in self._relay.cuts

    def put(self, item: Item) -> None:
        delay_s = self._relay.draw_delay_s()
        if not delay_s and not self._items and self._open:
            self._pass(item)
            return
        self._items.append((self._relay.loop.time() + delay_s, item))
        if isinstance(item, bytes):
            self._bytes += len(item)
        self.turn()

    def turn(self) -> None:
        """Passes on what is due, never past an earlier one; sets the alarm, and reads on if there is room."""
        now = self._relay.loop.time()
        while self._items and self._open and self._items[0][0] <= now:
            item = self._items.popleft()[1]
            if isinstance(item, bytes):
                self._bytes -= len(item)
            self._pass(item)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._items and self._open:
            self._timer = self._relay.loop.call_at(self._items[0][0], self.turn)
        self.steer()

    def steer(self) -> None:
        pause = not self._open or self.blocked or self._bytes > WAITING_BYTES_MAX
        if self.source is None or self.source.is_closing() or pause == self._paused:
            return
        self._paused = pause
        if pause:
            self.source.pause_reading()
        else:
            self.source.resume_reading()

    def _pass(self, item: Item) -> None:
        sink = self.sink
        assert sink is not None
        if sink.is_closing():
            return
        if isinstance(item, bytes):
            sink.write(item)
            self._relay.passed_bytes[self._direction] += len(item)
        elif item is Ending.END:
            self._ended = True
            sink.write_eof()
            if self.twin is not None and self.twin._ended and self.source is not None:
                self.source.close()
        elif item is Ending.CLOSED:
            sink.close()
        else:
            reset(sink)

    def drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._items.clear()


class Side(asyncio.Protocol):
    """One of the two sockets of a connection."""

    def __init__(self, link: Link, outward: Way, inward: Way) -> None:
        self._link = link
        self._outward = outward
        self._inward = inward
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self.transport = self._outward.source = self._inward.sink = transport
        self._outward.steer()
        self._inward.turn()
        self._link.made(self)

    def data_received(self, data: bytes) -> None:
        self._outward.put(data)

    def eof_received(self) -> bool:
        self._outward.put(Ending.END)
        return True  # Open for the other direction, until that has ended too.

    def connection_lost(self, error: Exception | None) -> None:
        self._outward.put(Ending.CLOSED if error is None else Ending.RESET)
        self._link.lost(self)

    def pause_writing(self) -> None:
        self._inward.blocked = True
        self._inward.steer()

    def resume_writing(self) -> None:
        self._inward.blocked = False
        self._inward.steer()


class Link:
    """One connection through the relay: two sides, two ways."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.forward = Way(relay, Direction.FORWARD)
        self.backward = Way(relay, Direction.BACKWARD)
        self.forward.twin, self.backward.twin = self.backward, self.forward
        self.near = Side(self, self.forward, self.backward)
        self.far = Side(self, self.backward, self.forward)
        self._doomed = False
        self._gone: set[Side] = set()

    def made(self, side: Side) -> None:
        if side is self.near:
            self._relay.links.add(self)
            self._dialing = self._relay.loop.create_task(self._dial())
        elif self._doomed:
            self.reset()

    async def _dial(self) -> None:
        await self._relay.whole.wait()
        if self._doomed:
            self.lost(self.far)
            return
        try:
            await self._relay.loop.create_connection(lambda: self.far, *self._relay.target)
        except OSError:
            assert self.near.transport is not None
            reset(self.near.transport)
            self.lost(self.far)

    def turn(self) -> None:
        self.forward.turn()
        self.backward.turn()

    def lost(self, side: Side) -> None:
        self._gone.add(side)
        if len(self._gone) == 2:
            self.forward.drop()
            self.backward.drop()
            self._relay.links.discard(self)

    def reset(self) -> None:
        """Resets both sides; a far side that is just being dialed, as soon as it is there."""
        self._doomed = True
        for side in (self.near, self.far):
            if side.transport is not None:
                reset(side.transport)


class Relay:
    """Belongs to the loop on which it is started."""

    def __init__(self, options: RelayOptions) -> None:
        self.target = read_address("target", options.target)
        self.cuts: set[Direction] = set()
        self.passed_bytes = dict.fromkeys(Direction, 0)
        self.links: set[Link] = set()
        self.whole = asyncio.Event()
        self.whole.set()
        self._listen = read_address("listen", options.listen)
        self._rng = random.Random(options.seed)
        self._delay_s = 0.0
        self._jitter_s = 0.0
        self._holder: socket.socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> Address:
        assert self._holder is not None, "the relay has not been started"
        host, port = self._holder.getsockname()[:2]
        return Address(host, port)

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            # Bound and never listening: it keeps the port ours while connections are refused.
            self._holder = self._bind(self._listen)
            await self._accept()
        except OSError as error:
            host, port = self._listen
            raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror or error}") from error

    @staticmethod
    def _bind(address: Address) -> socket.socket:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        return bound

    async def _accept(self) -> None:
        if self._server is None:
            listener = self._bind(self.address)
            self._server = await self.loop.create_server(self._new_side, sock=listener, backlog=BACKLOG)

    def _new_side(self) -> asyncio.Protocol:
        return Link(self).near if len(self.links) < CONNECTIONS_MAX else Turned()

    def draw_delay_s(self) -> float:
        return self._delay_s + (self._jitter_s * self._rng.random() if self._jitter_s else 0.0)

    async def obey(self, command: AnyCommand) -> Answer:
        match command:
            case Delay(ms, jitter_ms):
                if ms < 0 or jitter_ms < 0:
                    return Answer(False, "ms and jitter_ms are not negative")
                self._delay_s, self._jitter_s = ms / 1000, jitter_ms / 1000
            case Cut(direction):
                self.cuts |= set(Direction) if direction == "both" else {Direction(direction)}
                self._turn_all()
            case Refuse():
                await self._refuse()
            case Close():
                for link in list(self.links):
                    link.reset()
            case Heal():
                self.cuts.clear()
                self._turn_all()
                await self._accept()
            case Status():
                pass
        forward, backward = (self.passed_bytes[direction] for direction in Direction)
        return Answer(True, "", len(self.links), forward, backward)

    def _turn_all(self) -> None:
        if self.cuts:
            self.whole.clear()
        else:
            self.whole.set()
        for link in list(self.links):
            link.turn()

    async def _refuse(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.close()
            await asyncio.sleep(0)  # The loop lets go of the socket in its next turn.

    async def close(self) -> None:
        await self._refuse()
        for link in list(self.links):
            link.reset()
        if self._holder is not None:
            self._holder.close()


class Turned(asyncio.Protocol):
    """A connection beyond the bound."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        reset(cast(asyncio.Transport, transport))


def read_address(what: str, text: str) -> Address:
    address = parse_address(text)
    if address is None:
        raise ConfigError("relay", [Problem(what, f'"{text}" is not like "127.0.0.1:1883"')])
    return address


_decoder = msgspec.json.Decoder(AnyCommand)


async def serve(options: RelayOptions) -> None:
    relay = Relay(options)
    await relay.start()
    host, port = relay.address
    say({"listening": f"{host}:{port}"})
    reader = asyncio.StreamReader()
    await relay.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        try:
            answer = await relay.obey(_decoder.decode(line))
        except (msgspec.MsgspecError, OSError) as error:
            answer = Answer(False, str(error))
        say(answer)
    await relay.close()


def say(answer: object) -> None:
    os.write(sys.stdout.fileno(), msgspec.json.encode(answer) + b"\n")


def main(arguments: Sequence[str]) -> int:
    try:
        if len(arguments) != 1:
            raise ConfigError(
                "relay", [Problem("", 'one argument is expected, like {"target": "127.0.0.1:1883"}')]
            )
        try:
            options = msgspec.json.decode(arguments[0], type=RelayOptions)
        except msgspec.MsgspecError as error:
            raise ConfigError("relay", [Problem("options", str(error))]) from error
        uvloop.run(serve(options))
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
