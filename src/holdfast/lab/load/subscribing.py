"""One process of subscribers, which write down every arrival, also of what they have already.

A message that its order came too late for is a duplicate to the client library: its row says so.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from holdfast import Client, connect
from holdfast.lab.load.files import Files
from holdfast.lab.load.jobs import Subscribed, SubscribeJob, Wish
from holdfast.lab.load.publishing import POLL_S, moves_of
from holdfast.lab.load.recorder import Received
from holdfast.lab.store import RECEIVED

QUEUE_MAX = 65_536
IN_FLIGHT_MAX = 16_384
"""Of QoS 1, so that a window is never what a subscriber of thousands of topics waits for."""


class Subscribing:
    def __init__(self, job: SubscribeJob) -> None:
        self._job = job
        self._received = Received()
        self._files = Files(Path(job.folder), job.name, RECEIVED, self._received.columns)
        self._clients: list[Client] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        for wish in self._job.wishes:
            await self._subscribe(wish)

    async def _subscribe(self, wish: Wish) -> None:
        client = await connect(
            *wish.addresses, client_id=wish.client_id, queue_max=QUEUE_MAX, receive_max=IN_FLIGHT_MAX
        )
        self._clients.append(client)
        client.pour(self._received)
        self._tasks.append(asyncio.create_task(self._take(client)))
        await client.subscribe(*wish.filters, qos=self._job.qos, depth=self._job.depth)

    async def _take(self, client: Client) -> None:
        async for messages in client.batches():
            self._received.record(messages)

    async def drain(self, quiet_s: float, s_max: float) -> Subscribed:
        """Waits until nothing has come for `quiet_s`, `s_max` at most."""
        columns = self._received.columns
        give_up = time.monotonic() + s_max
        rows, since = columns.rows, time.monotonic()
        while (now := time.monotonic()) < min(since + quiet_s, give_up):
            await asyncio.sleep(POLL_S)
            if columns.rows != rows:
                rows, since = columns.rows, now
        return Subscribed(
            messages=rows,
            duplicates=sum(client.duplicates for client in self._clients),
            unknown=self._received.unknown,
            late=now < since + quiet_s,
            moved_ns=moves_of(self._clients),
        )

    async def spill(self) -> None:
        await self._files.spill()

    async def write(self) -> None:
        self._files.finish()
        await asyncio.gather(*(client.disconnect() for client in self._clients))
        await asyncio.gather(*self._tasks)
