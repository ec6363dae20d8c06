"""One process that asks a broker and takes the time: SUBSCRIBE to SUBACK, the same with CONNECT, and a push.

Laws:
- a client asks again when it has its answer, so that as many requests are under way as there are clients
- no subscription stays: the state of a broker does not grow while it is measured
- all times are of one clock, in milliseconds; nothing is recorded before a part has begun

`python -m holdfast.lab.asking '{"port": 1883, …}'` prints what it measured as one line of JSON.
"""

from __future__ import annotations

import gc
import os
import secrets
import selectors
import socket
import sys
import time
from collections.abc import Generator

import msgspec
from msgspec import Struct

from holdfast.errors import HoldfastError, Unavailable
from holdfast.lab.wire import Wire
from holdfast.mqtt.codec import encode
from holdfast.mqtt.conventions import DEPTH_PROPERTY, format_stamp
from holdfast.mqtt.packets import Disconnect, Properties, Publish, Unsuback, Unsubscribe
from holdfast.units import MS

SILENCE_S_MAX = 30.0
PUSH_NS = 5 * MS
SAMPLES_MAX = 50_000

Waiting = Generator[socket.socket, None, None]


class Asking(Struct, frozen=True):
    """What to ask. Each part takes `part_ns`."""

    port: int
    topic: str
    """Published and received for the time of a push."""
    clients: int = 1
    depth: int | None = None
    part_ns: int = 1000 * MS


class Asked(Struct, frozen=True):
    """What was measured, in milliseconds."""

    subscribe_ms: list[float]
    connect_subscribe_ms: list[float]
    push_ms: list[float]


class Part:
    """Samples until a part is over."""

    def __init__(self, part_ns: int) -> None:
        self.samples: list[float] = []
        self._end_ns = time.monotonic_ns() + part_ns

    @property
    def over(self) -> bool:
        return time.monotonic_ns() >= self._end_ns or len(self.samples) >= SAMPLES_MAX

    def took(self, begin_ns: int) -> None:
        self.samples.append((time.monotonic_ns() - begin_ns) / MS)


def take_turns(clients: list[Waiting]) -> None:
    """Each goes on when the socket that it waits for can be read."""
    with selectors.DefaultSelector() as selector:

        def go_on(client: Waiting) -> None:
            sock = next(client, None)
            if sock is not None:
                selector.register(sock, selectors.EVENT_READ, client)

        for client in clients:
            go_on(client)
        while selector.get_map():
            ready = selector.select(SILENCE_S_MAX)
            if not ready:
                raise Unavailable(f"{len(selector.get_map())} requests got no answer in {SILENCE_S_MAX:g} s")
            for key, _ in ready:
                selector.unregister(key.fileobj)
                go_on(key.data)


class Asker:
    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._user = [] if asking.depth is None else [(DEPTH_PROPERTY, str(asking.depth))]

    def work(self) -> Asked:
        return Asked(self._subscribe(), self._connect_subscribe(), self._push())

    # -- subscriptions -------------------------------------------------------------------------------------

    def _subscribe(self) -> list[float]:
        wires = [Wire(self._asking.port, f"asker-{number}") for number in range(self._asking.clients)]
        part = Part(self._asking.part_ns)
        take_turns([self._subscribing(wire, number, part) for number, wire in enumerate(wires)])
        for wire in wires:
            wire.sock.close()
        return part.samples

    def _subscribing(self, wire: Wire, client: int, part: Part) -> Waiting:
        turn = 0
        while not part.over:
            wanted = f"asked/{client}/{turn}"
            packet = wire.subscription([wanted], 1, self._user)
            begin_ns = time.monotonic_ns()
            wire.send_bytes(packet)
            yield wire.sock
            wire.granted()
            part.took(begin_ns)
            wire.send(Unsubscribe(1, [wanted]))
            yield wire.sock
            wire.expect(Unsuback)
            turn += 1

    def _connect_subscribe(self) -> list[float]:
        part = Part(self._asking.part_ns)
        take_turns([self._connecting(number, part) for number in range(self._asking.clients)])
        return part.samples

    def _connecting(self, client: int, part: Part) -> Waiting:
        while not part.over:
            begin_ns = time.monotonic_ns()
            with Wire.opening(self._asking.port, f"caller-{client}") as wire:
                yield wire.sock
                wire.admitted()
                wire.send_bytes(wire.subscription([f"called/{client}"], 1, self._user))
                yield wire.sock
                wire.granted()
                part.took(begin_ns)
                wire.send(Disconnect())

    # -- a push --------------------------------------------------------------------------------------------

    def _push(self) -> list[float]:
        topic = self._asking.topic
        # A publisher of its own, so that no broker takes its messages for earlier ones.
        author = f"push-{secrets.token_hex(4)}"
        part = Part(self._asking.part_ns)
        port = self._asking.port
        with Wire(port, "push-subscriber") as subscriber, Wire(port, "push-publisher") as publisher:
            subscriber.subscribe(topic)
            sequence, due_ns = 0, time.monotonic_ns()
            while not part.over:
                time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
                sequence += 1
                stamp = format_stamp(time.time_ns(), sequence, author)
                packet = encode(Publish(topic, b"0123456789abcdef", properties=Properties(user=[stamp])), 5)
                begin_ns = time.monotonic_ns()
                publisher.send_bytes(packet)
                subscriber.receive()
                part.took(begin_ns)
                due_ns = max(due_ns + PUSH_NS, time.monotonic_ns())
        return part.samples


def main(arguments: list[str]) -> int:
    try:
        asker = Asker(msgspec.json.decode(arguments[0], type=Asking))
        gc.freeze()
        gc.disable()
        asked = asker.work()
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    os.write(sys.stdout.fileno(), msgspec.json.encode(asked) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
