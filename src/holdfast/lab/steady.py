"""One process that publishes a topic at its period and receives it, through every failover, on one clock.

Laws:
- a payload is the number of its message
- messages keep their times, whatever happens to brokers: a failover is seen, not waited for

`python -m holdfast.lab.steady '{"addresses": […], …}'` prints `ready`, goes on until its input ends, and then
prints what it saw as one line of JSON.
"""

from __future__ import annotations

import asyncio
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import msgspec
import uvloop
from msgspec import Struct, field

from holdfast import Client, connect
from holdfast.contract.model import Contract
from holdfast.errors import HoldfastError, Unavailable
from holdfast.runtime.tether import tethered
from holdfast.units import MS

NUMBER = struct.Struct("!q")
LAST_S = 0.2
ANSWER_S_MAX = 30.0
NEVER_NS = 10**15


class Steady(Struct, frozen=True):
    """The first message is made at `begin_ns` of the monotonic clock."""

    addresses: list[str]
    topic: str
    contract: Contract
    begin_ns: int
    qos: int = 1


class Seen(Struct):
    """What its publisher and its subscriber saw, in nanoseconds of the monotonic clock."""

    made: dict[int, int] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    publisher_moves: list[int] = field(default_factory=list)
    subscriber_moves: list[int] = field(default_factory=list)


class Failover(Struct, frozen=True):
    """One fault: the first message after it, the latest around it, and when both clients were served again.

    `excess_ms` is how much longer than a period nothing arrived."""

    at_ns: int
    first_latency_ms: float
    worst_latency_ms: float
    excess_ms: float
    moved_ms: float
    lost: int


def judge(seen: Seen, at_ns: int, period_ns: int) -> Failover:
    """What the fault at that time did to the messages made from a period before to five after it."""
    around = [
        number for number, made in seen.made.items() if at_ns - period_ns <= made < at_ns + 5 * period_ns
    ]
    came = [number for number in around if number in seen.arrived]
    latencies = {number: (seen.arrived[number] - seen.made[number]) / MS for number in came}
    after = [latencies[number] for number in came if seen.made[number] >= at_ns]
    gaps = [seen.arrived[later] - seen.arrived[earlier] for earlier, later in pairwise(came)]
    moved_ns = max(
        next((each for each in moves if each >= at_ns), NEVER_NS)
        for moves in (seen.publisher_moves, seen.subscriber_moves)
    )
    if not after or not gaps:
        raise Unavailable("nothing arrived after the fault")
    return Failover(
        at_ns,
        after[0],
        max(latencies.values()),
        (max(gaps) - period_ns) / MS,
        (moved_ns - at_ns) / MS,
        len(around) - len(came),
    )


class Watched:
    """A client's moves to another primary, taken down whenever something arrives or is sent."""

    def __init__(self, client: Client, moves: list[int]) -> None:
        self._client, self._moves = client, moves

    def look(self) -> None:
        at_ns = self._client.failovers.at_ns
        if at_ns is not None and (not self._moves or self._moves[-1] != at_ns):
            self._moves.append(at_ns)


async def work(steady: Steady) -> Seen:
    seen, number = Seen(), 0
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), stop.set)
    period_ns = steady.contract.period_ns
    assert period_ns is not None
    async with (
        await connect(*steady.addresses, client_id="steady-publisher") as publisher,
        await connect(*steady.addresses, client_id="steady-subscriber") as subscriber,
    ):
        publisher.declare(steady.contract)
        moves = Watched(publisher, seen.publisher_moves), Watched(subscriber, seen.subscriber_moves)
        await subscriber.subscribe(steady.topic, qos=steady.qos)

        async def receive() -> None:
            async for message in subscriber:
                seen.arrived.setdefault(NUMBER.unpack(message.payload)[0], time.monotonic_ns())

        receiving = asyncio.create_task(receive())
        say(b"ready")
        while not stop.is_set():
            due_ns = steady.begin_ns + number * period_ns
            await asyncio.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
            seen.made[number] = time.monotonic_ns()
            await publisher.publish(steady.topic, NUMBER.pack(number))
            number += 1
            for each in moves:
                each.look()
        await asyncio.sleep(LAST_S)
    await receiving
    return seen


def say(line: bytes) -> None:
    """All of it, also where the pipe takes a part at a time."""
    rest = line + b"\n"
    while rest:
        select.select([], [sys.stdout], [])
        rest = rest[os.write(sys.stdout.fileno(), rest[: select.PIPE_BUF]) :]


class Watching:
    """The process, as whoever started it sees it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise Unavailable("the steady publisher and subscriber did not start")

    @property
    def pid(self) -> int:
        return self._process.pid

    def finish(self) -> Seen:
        out, _ = self._process.communicate(b"stop", timeout=ANSWER_S_MAX)
        if self._process.returncode:
            raise Unavailable("the steady publisher and subscriber failed")
        return msgspec.json.decode(out, type=Seen)


@contextmanager
def watching(steady: Steady) -> Iterator[Watching]:
    """The process for the length of a `with` block."""
    command = [sys.executable, "-m", "holdfast.lab.steady", msgspec.json.encode(steady).decode()]
    process = subprocess.Popen(
        tethered(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        yield Watching(process)
    finally:
        process.kill()
        process.communicate()


def main(arguments: list[str]) -> int:
    try:
        seen = uvloop.run(work(msgspec.json.decode(arguments[0], type=Steady)))
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    say(msgspec.json.encode(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
