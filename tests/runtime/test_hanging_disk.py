"""A disk that takes a job and does not answer: noticed, answered for, and taken back when it does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from tests.broker.bench import book, contract

from holdfast.broker.broker import Broker
from holdfast.journal import Bounds, Journal
from holdfast.journal.memory import MemoryDisk
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.packets import Connect, Packet, Puback, Publish, Subscribe, Subscription
from holdfast.runtime.keeping import Keeper, recall
from holdfast.runtime.server import Server
from holdfast.units import MS

WAIT_MAX_NS = 200 * MS
WAIT_S = 10.0


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._bytes = b""

    def send(self, *packets: Packet) -> None:
        self.writer.write(b"".join(encode(packet, 5) for packet in packets))

    async def next(self) -> Packet:
        while (found := split(self._bytes, 0)) is None:
            data = await asyncio.wait_for(self.reader.read(65536), WAIT_S)
            assert data, "the connection was closed"
            self._bytes += data
        first, start, end = found
        packet = decode(first, self._bytes[start:end], 5)
        self._bytes = self._bytes[end:]
        return packet

    async def pubacks(self, count: int) -> dict[int, int]:
        answers: dict[int, int] = {}
        while len(answers) < count:
            packet = await self.next()
            if isinstance(packet, Puback):
                answers[packet.packet_id] = packet.reason
        return answers


class Stage:
    """A broker with a journal on a disk whose syncs wait while the gate is closed."""

    def __init__(self) -> None:
        self.disk = MemoryDisk(Random(1))
        self.gate = threading.Event()
        self.gate.set()
        self.events: list[str] = []

    def before(self, operation: str, name: str) -> None:
        if operation == "sync":
            self.gate.wait(WAIT_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Client]:
        contracts = book(contract("kept", "kept/+", "100ms", 0, durable="true"))
        broker = Broker(
            contracts,
            seed=1,
            now_ns=time.monotonic_ns(),
            event=lambda event, details: self.events.append(event),
        )
        server = Server(broker, asyncio.get_running_loop())
        journal = Journal(self.disk, Bounds())
        self.disk.before = self.before
        keeper = Keeper(recall(broker, journal, "memory"), journal, server, WAIT_MAX_NS, broker.event)
        ((host, port),) = await server.listen("127.0.0.1", 0)
        client = Client(*await asyncio.open_connection(host, port))
        try:
            client.send(Connect(client_id="c"), Subscribe(1, [Subscription("+/+")]))
            await client.next()
            await client.next()
            yield client
        finally:
            client.writer.close()
            self.gate.set()
            await server.close()
            keeper.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, self.events
            await asyncio.sleep(0.005)


def test_whoever_waits_for_a_disk_that_does_not_answer_is_answered() -> None:
    async def work() -> None:
        stage = Stage()
        async with stage.running() as client:
            stage.gate.clear()
            begin = time.monotonic()
            client.send(
                *[
                    Publish(("kept/1", "plain/1")[pid % 2], b"%d" % pid, qos=1, packet_id=pid)
                    for pid in range(1, 201)
                ]
            )
            answers = await client.pubacks(200)
            assert time.monotonic() - begin < 5 * WAIT_MAX_NS / 1e9
            assert [answers[pid] for pid in range(2, 201, 2)] == [0x97] * 100
            assert [answers[pid] for pid in range(1, 201, 2)] == [0x00] * 100
            assert stage.events.count("journal failed") == 1
            client.send(
                Publish("kept/1", b"", qos=1, packet_id=1), Publish("plain/1", b"", qos=1, packet_id=2)
            )
            assert await client.pubacks(2) == {1: 0x97, 2: 0x00}
            assert "journal recovered" not in stage.events
            stage.gate.set()
            await stage.until(lambda: "journal recovered" in stage.events)
            client.send(Publish("kept/1", b"", qos=1, packet_id=3))
            assert await client.pubacks(1) == {3: 0x00}
        assert [event for event in stage.events if "journal" in event] == [
            "journal failed",
            "journal recovered",
        ]

    asyncio.run(work())


def test_a_slow_disk_that_answers_is_no_failed_one() -> None:
    """Each sync takes half of what it may."""

    async def work() -> None:
        stage = Stage()
        async with stage.running() as client:
            for pid in range(1, 6):
                stage.gate.clear()
                client.send(Publish("kept/1", b"", qos=1, packet_id=pid))
                asyncio.get_running_loop().call_later(WAIT_MAX_NS / 2e9, stage.gate.set)
                assert await client.pubacks(1) == {pid: 0x00}
        assert not [event for event in stage.events if "journal" in event]

    asyncio.run(work())


def test_a_loop_that_slept_does_not_blame_the_disk() -> None:
    async def work() -> None:
        stage = Stage()
        async with stage.running() as client:
            stage.gate.clear()
            client.send(Publish("kept/1", b"", qos=1, packet_id=1))
            disk = stage.disk.counts.get("write", 0)
            await stage.until(lambda: stage.disk.counts.get("write", 0) > disk)
            time.sleep(3 * WAIT_MAX_NS / 1e9)  # all of the process sleeps
            stage.gate.set()
            assert await client.pubacks(1) == {1: 0x00}
        assert not [event for event in stage.events if "journal" in event]

    asyncio.run(work())
