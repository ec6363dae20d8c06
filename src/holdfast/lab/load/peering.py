"""Publishers and subscribers with ordinary clients, with the same face as those with Holdfast's own.

Laws:
- a payload says itself which message it is: no broker needs to forward a property
- whatever was made is written down; what was never acknowledged is written down once more, beside it
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.lab.load.files import Files, schema_of, write_tables
from holdfast.lab.load.jobs import Published, PublishJob, Share, Subscribed, SubscribeJob
from holdfast.lab.load.ordinary import BODY, OrdinaryClient, publication_head
from holdfast.lab.load.publishing import POLL_S, Schedule
from holdfast.lab.load.recorder import Sent
from holdfast.lab.store import RECEIVED, SENT, UNACKNOWLEDGED

SETTLE_S_MAX = 20.0
SEQUENCE_BITS = 32
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1


class OrdinarySender:
    """See `publishing.Timed`."""

    def __init__(self, addresses: tuple[str, ...], share: Share, payload_bytes: int) -> None:
        self.first, self.count = share.first, len(share.names)
        self.sequence = 0
        assert share.contract.period_ns is not None
        self.period_ns = share.contract.period_ns
        self.wait_ns = share.wait_ns
        self.unacknowledged: set[int] = set()
        self.client = OrdinaryClient(addresses, share.client_id, acknowledged=self.unacknowledged.discard)
        self._heads = [publication_head(name, payload_bytes) for name in share.names]
        self._rest = bytes(payload_bytes - BODY.size)

    def post(self, created_ns: int) -> bool:
        sequence = self.sequence + 1
        for topic, head in enumerate(self._heads, self.first):
            row = topic << SEQUENCE_BITS | sequence
            self.unacknowledged.add(row)
            self.client.publish(head, BODY.pack(topic, sequence, created_ns) + self._rest, row)
        return True


class OrdinaryPublishing:
    def __init__(self, job: PublishJob) -> None:
        self._job = job
        self._sent = Sent()
        self._files = Files(Path(job.folder), job.name, SENT, self._sent.columns)
        self._senders = [OrdinarySender(job.addresses, share, job.payload_bytes) for share in job.shares]
        self._schedule = Schedule(self._senders, self._sent)

    async def connect(self) -> None:
        for sender in self._senders:
            await sender.client.begin()

    def begin(self) -> None:
        self._schedule.begin()

    async def stop(self) -> Published:
        """Publishes no more, and waits until all is acknowledged, SETTLE_S_MAX at most."""
        self._schedule.end()
        clients = [sender.client for sender in self._senders]
        await asyncio.gather(*(each.settled(SETTLE_S_MAX) for each in clients))
        return Published(
            messages=self._sent.columns.rows,
            unsent=sum(each.unsent for each in clients),
            skipped=self._schedule.skipped,
            late_ns_max=self._schedule.late_ns_max,
            moved_ns=moves_of(clients),
        )

    async def spill(self) -> None:
        await self._files.spill()

    async def write(self) -> None:
        self._files.finish()
        rows = sorted(row for sender in self._senders for row in sender.unacknowledged)
        columns = {
            "topic": [row >> SEQUENCE_BITS for row in rows],
            "sequence": [row & SEQUENCE_MASK for row in rows],
        }
        folder = Path(self._job.folder).parent / "unacknowledged"
        _write(folder / f"{self._job.name}.parquet", UNACKNOWLEDGED, columns)
        await asyncio.gather(*(sender.client.close() for sender in self._senders))


class OrdinarySubscribing:
    def __init__(self, job: SubscribeJob) -> None:
        self._job = job
        self._columns = {name: array("q") for name in ("topic", "sequence", "created_ns", "arrived_ns")}
        self._clients = [
            OrdinaryClient(wish.addresses, wish.client_id, filters=wish.filters, arrived=self.taker())
            for wish in job.wishes
        ]

    def taker(self) -> Callable[[bytes, int], None]:
        """What a client calls with each payload and the time."""
        topics, sequences, created, arrived = (column.append for column in self._columns.values())
        unpack = BODY.unpack_from

        def take(payload: bytes, now_ns: int) -> None:
            topic, sequence, created_ns = unpack(payload)
            topics(topic)
            sequences(sequence)
            created(created_ns)
            arrived(now_ns)

        return take

    async def connect(self) -> None:
        for client in self._clients:
            await client.begin()

    async def drain(self, quiet_s: float, s_max: float) -> Subscribed:
        """Waits until nothing has come for `quiet_s`, `s_max` at most."""
        column = self._columns["topic"]
        give_up = time.monotonic() + s_max
        rows, since = len(column), time.monotonic()
        while (now := time.monotonic()) < min(since + quiet_s, give_up):
            await asyncio.sleep(POLL_S)
            if len(column) != rows:
                rows, since = len(column), now
        return Subscribed(
            messages=rows,
            duplicates=sum(self._duplicates()),
            unknown=0,
            late=now < since + quiet_s,
            moved_ns=moves_of(self._clients),
        )

    def _duplicates(self) -> list[bool]:
        """Whether each arrival is of a message that had come before."""
        seen: set[int] = set()
        found = []
        for topic, sequence in zip(self._columns["topic"], self._columns["sequence"], strict=True):
            row = topic << SEQUENCE_BITS | sequence
            found.append(row in seen)
            seen.add(row)
        return found

    async def spill(self) -> None:
        """What ordinary clients receive in a trial fits into memory."""

    async def write(self) -> None:
        path = Path(self._job.folder) / f"{self._job.name}.parquet"
        _write(path, RECEIVED, self._columns | {"duplicate": self._duplicates()})
        await asyncio.gather(*(client.close() for client in self._clients))


def _write(path: Path, columns: dict[str, str], content: dict[str, Any]) -> None:
    schema = schema_of(columns)
    write_tables(path, schema, [pa.table(content, schema=schema)])


def moves_of(clients: list[OrdinaryClient]) -> dict[str, int]:
    """When each client was last served by another broker than its first."""
    return {each.client_id: each.moves_ns[-1] for each in clients if len(each.moves_ns) > 1}
