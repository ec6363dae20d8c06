"""The load generator: one process that publishes pre-built buffers and counts what arrives.

It is never more than a window ahead of its slowest receiver, so nothing queues without bound, and it ends
only when every message has arrived. The window fits into the socket's send buffer, so sending never blocks.
"""

from __future__ import annotations

import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

from .brokers import Broker, cpu_spent_ns
from .wires import Mqtt, Wire

BATCH = 50
PAYLOAD = b"0123456789abcdef"
SEND_BUFFER_BYTES = 4 << 20
RECEIVE_BYTES = 1 << 18
SILENCE_S_MAX = 30.0
ENDLESS = 1 << 62
SEQUENCE_FIRST = 100_000
STAMP_EXAMPLE = b"1763237000123456789/%d/press7" % SEQUENCE_FIRST


class Lost(Exception):
    """A message that was published did not arrive."""


@dataclass(frozen=True)
class Stream:
    """An endless sequence of writes, each of BATCH publications, and the size of one delivery."""

    writes: Iterator[bytes]
    delivered_bytes: int
    published_bytes: int
    topics: int


def plain_stream(wire: Wire, topics: list[str]) -> Stream:
    """QoS 0, round robin over the topics."""
    packets = [wire.publish(topic, PAYLOAD) for topic in topics]
    writes = cycle(_batches(packets))
    return Stream(writes, len(wire.delivered(topics[0], PAYLOAD)), len(packets[0]), len(topics))


def acknowledged_stream(wire: Mqtt, topics: list[str]) -> Stream:
    """QoS 1: packet identifiers go round so late that one is not reused while it is under way."""
    rounds = 60_000 // len(topics)
    packets = [
        wire.publish(topic, PAYLOAD, qos=1, packet_id=number)
        for number, topic in enumerate(topics * rounds, start=1)
    ]
    size = len(wire.delivered(topics[0], PAYLOAD, qos=1))
    return Stream(cycle(_batches(packets)), size, len(packets[0]), len(topics))


def fresh_publisher() -> bytes:
    """A publisher of its own for every stream, so that no broker takes its messages for earlier ones; it
    leaves gaps, since a stream has one sequence for all its topics."""
    publisher = b"~%05d" % random.SystemRandom().randrange(100_000)
    assert len(publisher) == len(STAMP_EXAMPLE.rpartition(b"/")[2])
    return publisher


def stamped_stream(wire: Wire, topics: list[str]) -> Stream:
    """Each write carries the time it was made, and a sequence number above those before."""
    publisher = fresh_publisher()
    pieces = []
    for batch in _grouped(topics):
        packets = b"".join(wire.publish(topic, PAYLOAD, stamp=STAMP_EXAMPLE) for topic in batch)
        pieces.append(packets.split(STAMP_EXAMPLE))

    def writes() -> Iterator[bytes]:
        sequence = SEQUENCE_FIRST
        while True:
            for around in pieces:
                yield (b"%d/%d/%b" % (time.time_ns(), sequence, publisher)).join(around)
                sequence += 1

    size = len(wire.delivered(topics[0], PAYLOAD, stamp=STAMP_EXAMPLE))
    published = len(wire.publish(topics[0], PAYLOAD, stamp=STAMP_EXAMPLE))
    return Stream(writes(), size, published, len(topics))


def _grouped(items: list[str]) -> Iterator[list[str]]:
    assert len(items) % BATCH == 0
    return (items[at : at + BATCH] for at in range(0, len(items), BATCH))


def _batches(packets: list[bytes]) -> list[bytes]:
    assert len(packets) % BATCH == 0
    assert len({len(packet) for packet in packets}) == 1
    return [b"".join(packets[at : at + BATCH]) for at in range(0, len(packets), BATCH)]


class Counter:
    """Counts the packets of one size that arrive on a socket."""

    def __init__(self, sock: socket.socket, size: int, keeps_alive: bytes = b"") -> None:
        self.sock, self.size, self.keeps_alive = sock, size, keeps_alive
        self.received_bytes = 0
        self.packets = 0
        self.buffer = bytearray(RECEIVE_BYTES)

    def readable(self) -> None:
        count = self.sock.recv_into(self.buffer)
        if not count:
            raise Lost(f"the broker closed a subscriber's connection after {self.packets} messages")
        if self.keeps_alive and self.buffer.find(self.keeps_alive, 0, count) >= 0:
            count -= len(self.keeps_alive)
            self.sock.sendall(b"PONG\r\n")
        self.received_bytes += count
        self.packets = self.received_bytes // self.size


class Acknowledger:
    """Counts QoS 1 deliveries and acknowledges each by its packet identifier."""

    def __init__(self, sock: socket.socket, size: int, packet_id_at: int) -> None:
        self.sock, self.size, self.at = sock, size, packet_id_at
        self.packets = 0
        self.buffer = bytearray(RECEIVE_BYTES)
        self.left = 0

    def readable(self) -> None:
        count = self.sock.recv_into(memoryview(self.buffer)[self.left :])
        if not count:
            raise Lost(f"the broker closed a subscriber's connection after {self.packets} messages")
        whole, left = divmod(self.left + count, self.size)
        end = whole * self.size
        if self.buffer[0 : end : self.size].translate(None, b"\x32"):
            raise Lost("a packet that is not a QoS 1 PUBLISH of the expected size arrived")
        answers = bytearray(b"\x40\x02\x00\x00" * whole)
        answers[2::4] = self.buffer[self.at : end : self.size]
        answers[3::4] = self.buffer[self.at + 1 : end : self.size]
        self.sock.sendall(answers)
        self.buffer[:left] = self.buffer[end : end + left]
        self.left = left
        self.packets += whole


Receiver = Counter | Acknowledger


@dataclass(frozen=True)
class Measured:
    """What one turn of one contestant cost."""

    messages: int
    deliveries: int
    cpu_ns: int
    wall_ns: int
    generator_cpu_ns: int

    @property
    def us_per_delivery(self) -> float:
        return self.cpu_ns / self.deliveries / 1e3

    @property
    def per_second(self) -> float:
        return self.deliveries / self.wall_ns * 1e9

    @property
    def busy(self) -> float:
        """Processors the broker kept busy; about 1 or more says that the generator was not the bottleneck."""
        return self.cpu_ns / self.wall_ns


class Generator:
    """A publisher and its receivers, already connected and subscribed."""

    def __init__(
        self,
        broker: Broker,
        publisher: socket.socket,
        stream: Stream,
        receivers: list[Receiver],
        *,
        window: int,
        subscribers: int = 1,
    ) -> None:
        assert window >= BATCH
        assert window * stream.published_bytes <= SEND_BUFFER_BYTES // 2, (
            "the window must fit the send buffer"
        )
        publisher.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.broker, self.publisher, self.stream = broker, publisher, stream
        self.window, self.subscribers, self.sent = window, subscribers, 0
        self.receivers = receivers
        self.by_fd = {receiver.sock.fileno(): receiver for receiver in receivers}
        self.epoll = select.epoll()
        for fd in self.by_fd:
            self.epoll.register(fd, select.EPOLLIN)

    def switch(self, stream: Stream) -> None:
        """Go on with another stream of the same sizes."""
        assert stream.delivered_bytes == self.stream.delivered_bytes
        self.stream = stream

    def close(self) -> None:
        self.epoll.close()
        self.publisher.close()
        for receiver in self.receivers:
            receiver.sock.close()

    def arrived(self) -> int:
        return min(receiver.packets for receiver in self.receivers)

    def run(
        self, *, messages: int = ENDLESS, seconds: float | None = None, rate: int | None = None
    ) -> Measured:
        """Publish so many messages, or for so long, at a rate or as fast as they arrive; await the last."""
        first, mark = self.sent, self.broker.cpu_ns()
        begin, own = time.monotonic_ns(), time.process_time_ns()
        end = ENDLESS if seconds is None else begin + int(seconds * 1e9)
        self.pump(lambda: time.monotonic_ns() >= end, first + messages, rate)
        self.drain()
        wall = time.monotonic_ns() - begin
        sent = self.sent - first
        return Measured(
            messages=sent,
            deliveries=sent * self.subscribers,
            cpu_ns=cpu_spent_ns(mark, self.broker.cpu_ns()),
            wall_ns=wall,
            generator_cpu_ns=time.process_time_ns() - own,
        )

    def pump(self, finished: Callable[[], bool], last: int = ENDLESS, rate: int | None = None) -> None:
        """Publish until finished or `last` are sent; a window's worth may still be under way then."""
        interval = 0 if rate is None else BATCH * 1_000_000_000 // rate
        due = time.monotonic_ns()
        publish, writes = self.publisher.sendall, self.stream.writes
        while self.sent < last and not finished():
            room = min(self.arrived() + self.window, last) - BATCH
            while self.sent <= room and (not interval or time.monotonic_ns() >= due):
                publish(next(writes))
                self.sent += BATCH
                due += interval
            if self.sent < last:
                self.receive(max(0, due - time.monotonic_ns()) if interval and self.sent <= room else None)

    def drain(self) -> None:
        while self.arrived() < self.sent:
            self.receive(None)

    def receive(self, timeout_ns: int | None) -> None:
        """Take what has arrived, waiting for something unless a time is given (exact to microseconds)."""
        if timeout_ns is not None:
            select.select([self.epoll], [], [], timeout_ns / 1e9)
            ready = self.epoll.poll(0)
        else:
            ready = self.epoll.poll(SILENCE_S_MAX)
            if not ready:
                missing = self.sent - self.arrived()
                raise Lost(f"{self.broker.name}: {missing} of {self.sent} messages did not arrive")
        for fd, _ in ready:
            self.by_fd[fd].readable()
