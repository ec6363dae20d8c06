"""Runs one attack, when told to.

    python -m hostile.attacker NAME PLACE

PLACE is a Place in JSON. It says `ready` when its bytes are made. At a line `go` it attacks until a line
`stop`; then it ends its connections, says how many steps it took and how often it was turned away, and is
`ready` again. It ends with its standard input, of which it reads no more than a line at a time: whoever waits
for the next one sees it.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec

from conformance.wire import Type, connect
from hostile.attacks import all_attacks
from hostile.field import Place
from hostile.wires import PASSWORD, RECEIVE_BYTES, Stream

WAIT_S = 5.0
AGAIN_S = 0.02
NICE = 10


class Refused(OSError):
    """The broker said no, as it may."""


class Field:
    """What an attack has: the place, and connections that end with it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._streams: list[Stream] = []
        self._serial = 0

    def raw(self, port: int = 0, *, small: bool = False) -> Stream:
        """A connection on which nothing was said; `small`: that takes little at once."""
        stream = Stream(port or self.place.mqtt[0], WAIT_S, small=small)
        self._streams.append(stream)
        return stream

    def client(self, name: str = "", *, small: bool = False, **options: object) -> Stream:
        """One that was let in as mallory."""
        self._serial += 1
        stream = self.raw(small=small)
        name = name or f"mallory-{os.getpid()}-{self._serial}"
        options = {"keep_alive": 0, "username": "mallory", "password": PASSWORD, **options}
        stream.send(connect(name, **options))  # type: ignore[arg-type]
        self.let_in(stream)
        return stream

    def let_in(self, stream: Stream) -> None:
        kind, body = stream.expect(Type.CONNACK)
        if kind is not Type.CONNACK or body[1]:
            raise Refused(f"{kind.name} {body.hex()}")

    def drop(self, stream: Stream) -> None:
        stream.close()
        self._streams.remove(stream)

    def reset(self, stream: Stream) -> None:
        stream.reset()
        self._streams.remove(stream)

    def end(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams.clear()

    def flood(self, streams: Sequence[Stream], data: bytes, *, read: bool = True) -> Iterator[None]:
        """The same bytes on all of them, again and again, as fast as they are taken."""
        view, at = memoryview(data), dict.fromkeys(streams, 0)
        for stream in streams:
            stream.socket.setblocking(False)
        while at:
            ready, writable, _ = select.select(
                [each.socket for each in at] if read else [], [each.socket for each in at], [], 0.01
            )
            ready, writable = set(ready), set(writable)
            for stream in list(at):
                try:
                    if stream.socket in ready and not stream.socket.recv(RECEIVE_BYTES):
                        raise ConnectionError
                    if stream.socket in writable:
                        at[stream] = (at[stream] + stream.socket.send(view[at[stream] :])) % len(data)
                except BlockingIOError:
                    continue
                except OSError:
                    del at[stream]
            yield
        raise Refused("all were turned away")

    def drain(self, stream: Stream) -> None:
        """Takes what is there, and throws it away."""
        while select.select([stream.socket], [], [], 0)[0]:
            if not stream.socket.recv(RECEIVE_BYTES):
                raise Refused("closed by the broker")


class Attacker:
    def __init__(self, name: str, place: Place) -> None:
        self._attack = all_attacks()[name]
        self._field = Field(place)
        self._steps = self._made()
        self.taken = self.refused = 0

    def _made(self) -> Iterator[None]:
        steps = self._attack.run(self._field)
        next(steps)
        return steps

    def go(self) -> None:
        """Until somebody says stop."""
        done = False
        while not select.select([sys.stdin], [], [], 0.05 if done else 0)[0]:
            if done:
                continue
            try:
                next(self._steps)
                self.taken += 1
            except StopIteration:
                done = True
            except OSError:
                self.refused += 1
                self._again()
                time.sleep(AGAIN_S)

    def _again(self) -> None:
        self._field.end()
        self._steps = self._made()

    def stop(self) -> None:
        """Says that it is over, and makes ready for the next time."""
        self._field.end()
        print(json.dumps({"steps": self.taken, "refused": self.refused}), flush=True)
        self._again()
        print("ready", flush=True)


def main() -> None:
    os.nice(NICE)
    name, place = sys.argv[1], msgspec.json.decode(sys.argv[2], type=Place)
    attacker = Attacker(name, place)
    print("ready", flush=True)
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as told:
        for line in iter(told.readline, b""):
            if line == b"go\n":
                attacker.go()
            elif line == b"stop\n":
                attacker.stop()


if __name__ == "__main__":
    main()
