"""A well-behaved pair: 50 messages a second with QoS 1, each with the time at which it was sent.

    python -m hostile.good PORT[,PORT]

Runs until its standard input ends, waits a moment for what is under way, and prints what it saw as JSON.
Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import select
import struct
import sys
import time

from conformance.wire import P, Type, ack, connect, publish, subscribe
from hostile.wires import PASSWORD, Stream

PERIOD_NS = 20_000_000
GRACE_NS = 3_000_000_000
WAIT_S = 10.0
TOPIC = "good/pair"
STAMP = struct.Struct("!QQ")
EXPIRY = [(P.SESSION_EXPIRY, 300)]


class Half:
    """One of the two: connected as long as it can be."""

    def __init__(self, name: str, ports: list[int]) -> None:
        self.name = name
        self.ports = ports
        self.gone: list[str] = []  # why it had to connect again
        self.stream = self._dial()

    def _dial(self) -> Stream:
        deadline = time.monotonic() + WAIT_S
        while True:
            for port in self.ports:
                try:
                    return self._try(port)
                except OSError as error:
                    why = str(error)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} cannot connect: {why}")
            time.sleep(0.01)

    def _try(self, port: int) -> Stream:
        stream = Stream(port, WAIT_S)
        stream.send(
            connect(
                f"good-{self.name}",
                clean=False,
                props=EXPIRY,
                username="good",
                password=PASSWORD,
                keep_alive=60,
            )
        )
        kind, body = stream.expect(Type.CONNACK)
        if kind is not Type.CONNACK or body[1]:
            stream.close()
            raise ConnectionError(f"CONNACK {body[1:2].hex()}")
        if self.name == "subscriber":
            stream.send(subscribe(1, (TOPIC, 1)))
            stream.expect(Type.SUBACK)
        return stream

    def again(self, why: str) -> None:
        self.gone.append(why)
        self.stream.close()
        self.stream = self._dial()


class Pair:
    def __init__(self, ports: list[int]) -> None:
        self.subscriber = Half("subscriber", ports)
        self.publisher = Half("publisher", ports)
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}
        self.unacknowledged: dict[int, bytes] = {}

    def publish(self, number: int) -> None:
        self.sent[number] = now = time.monotonic_ns()
        pid = number % 65_535 + 1
        self.unacknowledged[pid] = publish(TOPIC, STAMP.pack(number, now), qos=1, pid=pid)
        try:
            self.publisher.stream.send(self.unacknowledged[pid])
        except OSError as error:
            self._resume(str(error))

    def _resume(self, why: str) -> None:
        """The publisher is back, and sends again what nobody acknowledged."""
        self.publisher.again(why)
        for packet in self.unacknowledged.values():
            self.publisher.stream.send(packet)

    def listen(self, until_ns: int) -> None:
        while (left_ns := until_ns - time.monotonic_ns()) > 0:
            streams = {half.stream.socket: half for half in (self.subscriber, self.publisher)}
            ready, _, _ = select.select(list(streams), [], [], left_ns / 1e9)
            for each in ready:
                try:
                    self._take(streams[each])
                except OSError as error:
                    if streams[each] is self.publisher:
                        self._resume(str(error))
                    else:
                        self.subscriber.again(str(error))

    def _take(self, half: Half) -> None:
        for kind, body in half.stream.arrived():
            if kind is Type.PUBLISH:
                size = int.from_bytes(body[:2], "big")
                number, _ = STAMP.unpack(body[-STAMP.size :])
                self.received.setdefault(number, time.monotonic_ns())
                half.stream.send(ack(Type.PUBACK, int.from_bytes(body[2 + size : 4 + size], "big")))
            elif kind is Type.PUBACK:
                self.unacknowledged.pop(int.from_bytes(body[:2], "big"), None)
            elif kind is Type.DISCONNECT:
                raise ConnectionError(f"DISCONNECT {body[:1].hex()}")


def main() -> None:
    pair = Pair([int(port) for port in sys.argv[1].split(",")])
    print("ready", flush=True)
    number, next_ns = 0, time.monotonic_ns()
    while not select.select([sys.stdin], [], [], 0)[0]:
        number += 1
        pair.publish(number)
        next_ns = max(next_ns + PERIOD_NS, time.monotonic_ns())
        pair.listen(next_ns)
    deadline_ns = time.monotonic_ns() + GRACE_NS
    while len(pair.received) < len(pair.sent) and time.monotonic_ns() < deadline_ns:
        pair.listen(time.monotonic_ns() + PERIOD_NS)
    messages = [[sent, pair.received.get(each)] for each, sent in pair.sent.items()]
    gone = [*pair.publisher.gone, *pair.subscriber.gone]
    print(json.dumps({"messages": messages, "gone": gone}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (TimeoutError, OSError) as error:
        sys.exit(f"the good pair: {error}")
