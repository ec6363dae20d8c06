"""One topic that tolerates no loss, published at its period and received, while a test breaks the brokers."""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Self

import msgspec
from benchmarks.contracts import FRAME

from holdfast import Client, Outgoing, connect
from holdfast.contract.file import load_contracts
from holdfast.contract.model import Contract
from holdfast.lab.group import Settings

NUMBER = struct.Struct("!q")
WAIT_S = 8.0
TOPIC = "plant/cat2/steady"
# A test machine may keep a broker waiting for longer than a plant's would: silence is not what is measured
# here. The publisher retains enough for the outage that this allows.
CALM = Settings(heartbeat="20ms", silence="300ms")
CALM_RELAYED = Settings(heartbeat="20ms", silence="300ms", relayed=True)
RETENTION = 20


def contract_named(name: str) -> Contract:
    return next(each for each in load_contracts(FRAME).contracts if each.name == name)


async def until(reached: Callable[[], bool], what: str, seconds: float = WAIT_S) -> None:
    """Returns as soon as that holds; the test's other tasks go on meanwhile."""
    give_up = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(0.005)


async def aside(blocking: Callable[..., object], *arguments: object) -> object:
    """Something that waits, while the traffic goes on."""
    return await asyncio.to_thread(blocking, *arguments)


class Traffic:
    """For the length of an `async with` block; at its end every message must have come, once, in order."""

    def __init__(self, addresses: list[str], *, qos: int = 1, lossless: bool = True) -> None:
        self.addresses, self.qos, self.lossless = addresses, qos, lossless
        self.published = 0
        self.came: list[int] = []
        self.publisher: Client
        self.subscriber: Client

    async def __aenter__(self) -> Self:
        self.publisher = await connect(*self.addresses, client_id="traffic-publisher")
        self.subscriber = await connect(*self.addresses, client_id="traffic-subscriber")
        contract = msgspec.structs.replace(contract_named("2"), retention=RETENTION)
        self.publisher.declare(contract)
        await self.subscriber.subscribe(TOPIC, qos=self.qos)
        assert contract.period_ns is not None
        self._period_s = contract.period_ns / 1e9
        self._stop = False
        self._tasks = [asyncio.create_task(self._publish()), asyncio.create_task(self._receive())]
        await self.more(2)
        return self

    async def _publish(self) -> None:
        due = time.monotonic()
        while not self._stop:
            await self.publisher.publish_many([Outgoing(TOPIC, NUMBER.pack(self.published))])
            self.published += 1
            due += self._period_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _receive(self) -> None:
        async for message in self.subscriber:
            self.came.append(NUMBER.unpack(message.payload)[0])

    async def more(self, count: int) -> None:
        """Until so many messages that were published after this call have come."""
        beyond = self.published + count
        await until(lambda: bool(self.came) and self.came[-1] >= beyond, f"message {beyond}")

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stop = True
        publishing, receiving = self._tasks
        try:
            if error is None:
                await publishing
                last = self.published - 1
                await until(lambda: bool(self.came) and self.came[-1] >= last, f"the last message, {last}")
        finally:
            publishing.cancel()
            await self.publisher.disconnect()
            await self.subscriber.disconnect()
            await asyncio.gather(publishing, receiving, return_exceptions=True)
        if error is None:
            assert self.came == sorted(set(self.came)), "each once, in order"
            if self.lossless:
                lost = sorted(set(range(self.published)) - set(self.came))
                assert not lost, f"{lost} of {self.published} never came"


def run(test: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(bounded())
