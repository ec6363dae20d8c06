"""The subscriber of the example: judges what arrives, contract by contract.

Runs as a process of its own (`python -m holdfast.cli.up.watch SPEC`), so that drawing a table never delays
a measurement. It prints a Snapshot as a JSON line a few times a second, the first when it is subscribed. A
line on stdin with the last sequence number of every stream asks for the final one, after which it ends.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec

from holdfast.address import Address
from holdfast.broker.contracts import ContractIndex
from holdfast.cli.up.plant import OUTAGE_S_MAX, stream_key
from holdfast.cli.up.story import Moves, moves_of
from holdfast.client import Client, Message, connect
from holdfast.contract.file import load_contracts
from holdfast.contract.model import Contract
from holdfast.contract.verdict import Report, Verdict
from holdfast.errors import HoldfastError
from holdfast.mqtt.conventions import ViewNote

SNAPSHOT_S = 0.25
# What is on its way when the plant stops arrives within this, or is lost.
FINISH_S_MAX = 2.0
FINISH_POLL_S = 0.01
FIRST_SEQUENCE = 1


class WatchSpec(msgspec.Struct, frozen=True):
    addresses: list[Address]
    contracts: str


class Row(msgspec.Struct, frozen=True):
    """One contract as one subscriber saw it."""

    name: str
    topics: int
    messages: int
    report: Report


class Snapshot(msgspec.Struct, frozen=True):
    """`at_ns` is monotonic. `repeated` messages came again after a failover; the client dropped them."""

    at_ns: int
    rows: list[Row]
    final: bool
    view: ViewNote | None = None
    moves: Moves = Moves()
    repeated: int = 0


class Judge:
    """Every contract of the file and what arrived under it."""

    def __init__(self, contracts: tuple[Contract, ...], index: ContractIndex) -> None:
        self._index = index
        self._contracts = contracts
        self._verdicts = {
            contract.name: Verdict(deadline_ns=contract.deadline_ns, loss_tolerance=contract.loss_tolerance)
            for contract in contracts
        }
        self._topics: dict[str, str] = {}
        self._messages = dict.fromkeys(self._verdicts, 0)
        self._highest: dict[str, int] = {}

    def arrived(self, message: Message) -> None:
        name = self._contract_of(message.topic)
        if name not in self._verdicts:
            return
        self._messages[name] += 1
        stamp = message.stamp
        if stamp is None or message.retain:
            return
        key = stream_key(stamp.publisher, message.topic)
        self._highest[key] = max(self._highest.get(key, 0), stamp.sequence)
        self._verdicts[name].arrived(key, stamp.sequence, stamp.created_ns, message.arrived_ns)

    def published(self, last: dict[str, int]) -> None:
        """What the plant published: nothing before these numbers may be missing without being noticed."""
        for key, sequence in last.items():
            topic = key.partition("/")[2]
            verdict = self._verdicts.get(self._contract_of(topic))
            if verdict is not None:
                verdict.published(key, FIRST_SEQUENCE, 0)
                verdict.published(key, sequence, 0)

    def has_all(self, last: dict[str, int]) -> bool:
        return all(self._highest.get(key, 0) >= sequence for key, sequence in last.items())

    def snapshot(self, *, final: bool) -> Snapshot:
        topics = list(self._topics.values())
        rows = [
            Row(name, topics.count(name), self._messages[name], verdict.report(final=final))
            for name, verdict in self._verdicts.items()
        ]
        return Snapshot(time.monotonic_ns(), rows, final)

    def _contract_of(self, topic: str) -> str:
        name = self._topics.get(topic)
        if name is None:
            name = self._topics[topic] = self._index.terms_for(topic.encode()).contract.name
        return name


async def watch(spec: WatchSpec) -> None:
    book = load_contracts(spec.contracts)
    judge = Judge(book.contracts, ContractIndex(book))
    filters = [filter for contract in book.contracts for filter in contract.topics]
    async with await connect(*spec.addresses, client_id="watch", outage_s_max=OUTAGE_S_MAX) as client:
        await client.subscribe(*filters, qos=1)
        print_snapshot(judge, client, final=False)
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(take(client, judge))
            reporting = group.create_task(report_periodically(judge, client))
            last = msgspec.json.decode(await stdin_line(), type=dict[str, int])
            deadline_s = time.monotonic() + FINISH_S_MAX
            while not judge.has_all(last) and time.monotonic() < deadline_s:
                await asyncio.sleep(FINISH_POLL_S)
            taking.cancel()
            reporting.cancel()
        judge.published(last)
        print_snapshot(judge, client, final=True)


async def take(client: Client, judge: Judge) -> None:
    async for message in client:
        judge.arrived(message)


async def report_periodically(judge: Judge, client: Client) -> None:
    while True:
        await asyncio.sleep(SNAPSHOT_S)
        print_snapshot(judge, client, final=False)


async def stdin_line() -> bytes:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return await reader.readline()


def print_snapshot(judge: Judge, client: Client, *, final: bool) -> None:
    snapshot = msgspec.structs.replace(
        judge.snapshot(final=final), view=client.view, moves=moves_of(client), repeated=client.duplicates
    )
    print(msgspec.json.encode(snapshot).decode(), flush=True)


def main() -> None:
    import uvloop

    failure = ""
    try:
        uvloop.run(watch(msgspec.json.decode(sys.argv[1], type=WatchSpec)))
    except* HoldfastError as errors:
        failure = str(errors.exceptions[0])
    if failure:
        sys.exit(failure)


if __name__ == "__main__":
    main()
