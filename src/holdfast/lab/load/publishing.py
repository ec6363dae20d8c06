"""One process of publishers: many connections, one schedule.

Laws:
- a batch is made at its time or, if the process was busy, as soon as it can; never before
- a batch that is a whole period late is skipped, and counted: time lost is not made up for by a burst
- whatever was made is written down, whether a broker took it or not
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from holdfast import Client, Outgoing, connect
from holdfast.endpoint import Batch
from holdfast.lab.load.files import Files
from holdfast.lab.load.jobs import Published, PublishJob, Share
from holdfast.lab.load.recorder import Sent
from holdfast.lab.store import SENT

SLOT_S = 0.001
"""Batches that are due within it go together: the loop's timers are no finer."""
NUMBER_BYTES = 4
CONNECTING_MAX = 32
WRITTEN_S_MAX = 10.0
POLL_S = 0.005


class Timed(Protocol):
    """A connection and what it publishes: the topics from `first` on, `sequence` times until now."""

    first: int
    count: int
    sequence: int
    period_ns: int
    wait_ns: int

    def post(self, created_ns: int) -> bool:
        """Publishes the next message of each topic; False if none was made."""
        ...


class Sender:
    """See `Timed`."""

    def __init__(self, client: Client, share: Share, payload_bytes: int, qos: int) -> None:
        self.client = client
        self.first, self.count = share.first, len(share.names)
        self.sequence = 0
        assert share.contract.period_ns is not None
        self.period_ns = share.contract.period_ns
        self.wait_ns = share.wait_ns
        rest = bytes(payload_bytes - NUMBER_BYTES)
        messages = [
            Outgoing(name, (self.first + place).to_bytes(NUMBER_BYTES, "big") + rest, qos)
            for place, name in enumerate(share.names)
        ]
        self._messages: Batch | list[Outgoing] = messages if qos else client.prepare(messages)

    def post(self, created_ns: int) -> bool:
        return self.client.post(self._messages, created_ns=created_ns)


class Schedule:
    """Publishes for all senders, from `begin` to `end`."""

    def __init__(self, senders: Sequence[Timed], sent: Sent) -> None:
        self.skipped = 0
        self.late_ns_max = 0
        self._senders, self._sent = senders, sent
        self._heap: list[tuple[int, int]] = []
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        now_ns = time.monotonic_ns()
        self._heap = [(now_ns + each.wait_ns, place) for place, each in enumerate(self._senders)]
        heapq.heapify(self._heap)
        self._turn()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        # Armed first: a turn that fails is told by the loop, and the next one still comes.
        self._timer = asyncio.get_running_loop().call_later(SLOT_S, self._turn)
        now_ns = time.monotonic_ns()
        heap, senders = self._heap, self._senders
        while heap and heap[0][0] <= now_ns:
            due_ns, place = heap[0]
            sender = senders[place]
            self._publish(sender)
            self.late_ns_max = max(self.late_ns_max, now_ns - due_ns)
            next_ns = due_ns + sender.period_ns
            if next_ns <= now_ns:
                missed = (now_ns - due_ns) // sender.period_ns
                self.skipped += missed * sender.count
                next_ns = due_ns + (missed + 1) * sender.period_ns
            heapq.heapreplace(heap, (next_ns, place))

    def _publish(self, sender: Timed) -> None:
        created_ns = time.time_ns()
        if sender.post(created_ns):
            sender.sequence += 1
            self._sent.record(sender.first, sender.count, sender.sequence, created_ns)
        else:
            self.skipped += sender.count


class Publishing:
    def __init__(self, job: PublishJob) -> None:
        self._job = job
        self._sent = Sent()
        self._files = Files(Path(job.folder), job.name, SENT, self._sent.columns)
        self._senders: list[Sender] = []
        self._schedule = Schedule([], self._sent)

    async def connect(self) -> None:
        shares = self._job.shares
        for start in range(0, len(shares), CONNECTING_MAX):
            part = shares[start : start + CONNECTING_MAX]
            self._senders += await asyncio.gather(*map(self._connect, part))
        self._schedule = Schedule(self._senders, self._sent)

    async def _connect(self, share: Share) -> Sender:
        client = await connect(*self._job.addresses, client_id=share.client_id)
        client.declare(share.contract)
        return Sender(client, share, self._job.payload_bytes, self._job.qos)

    def begin(self) -> None:
        self._schedule.begin()

    async def stop(self) -> Published:
        """Publishes no more, and waits until the sockets have taken everything."""
        self._schedule.end()
        give_up = time.monotonic() + WRITTEN_S_MAX
        clients = [sender.client for sender in self._senders]
        while any(client.unwritten_bytes for client in clients) and time.monotonic() < give_up:
            await asyncio.sleep(POLL_S)
        return Published(
            messages=self._sent.columns.rows,
            unsent=sum(client.unsent for client in clients),
            skipped=self._schedule.skipped,
            late_ns_max=self._schedule.late_ns_max,
            moved_ns=moves_of(clients),
        )

    async def spill(self) -> None:
        await self._files.spill()

    async def write(self) -> None:
        self._files.finish()
        await asyncio.gather(*(sender.client.disconnect() for sender in self._senders))


def moves_of(clients: Iterable[Client]) -> dict[str, int]:
    """When each client was last moved to another primary, by the wall clock."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    return {
        client.client_id: client.failovers.at_ns + offset_ns
        for client in clients
        if client.failovers.at_ns is not None
    }
