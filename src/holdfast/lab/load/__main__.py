"""One process of a load: its job is the first line of its input, the lines after it are commands.

Laws:
- every command is answered by one line, in order
- it ends with its input, whatever it was doing
- the collector of cyclic garbage never runs while it works: its pauses would be taken for the broker's
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from typing import TypeAlias

import msgspec
import uvloop

from holdfast.errors import HoldfastError
from holdfast.lab.load.jobs import Answer, Command, Job, PublishJob
from holdfast.lab.load.peering import OrdinaryPublishing, OrdinarySubscribing
from holdfast.lab.load.publishing import Publishing
from holdfast.lab.load.subscribing import Subscribing
from holdfast.runtime.serve import raise_file_limit

SPILL_S = 1.0
LINE_BYTES_MAX = 2**30
FILES_MAX = 8192

Worker: TypeAlias = Publishing | Subscribing | OrdinaryPublishing | OrdinarySubscribing


async def work() -> None:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    job = msgspec.json.decode(await reader.readline(), type=Job)
    worker = worker_of(job)
    await worker.connect()
    gc.collect()
    gc.freeze()
    gc.disable()
    say(Answer("ready"))
    spilling = asyncio.create_task(spill(worker))
    while line := await reader.readline():
        say(await obey(worker, msgspec.json.decode(line, type=Command)))
    spilling.cancel()


def worker_of(job: Job) -> Worker:
    if isinstance(job, PublishJob):
        return OrdinaryPublishing(job) if job.ordinary else Publishing(job)
    return OrdinarySubscribing(job) if job.ordinary else Subscribing(job)


async def spill(worker: Worker) -> None:
    while True:
        await asyncio.sleep(SPILL_S)
        await worker.spill()


async def obey(worker: Worker, command: Command) -> Answer:
    match worker, command.do:
        case Publishing() | OrdinaryPublishing(), "go":
            worker.begin()
            return Answer("going")
        case Publishing() | OrdinaryPublishing(), "stop":
            return Answer("stopped", published=await worker.stop())
        case Subscribing() | OrdinarySubscribing(), "drain":
            return Answer("drained", subscribed=await worker.drain(command.quiet_s, command.s_max))
        case _, "write":
            await worker.write()
            return Answer("written")
    raise AssertionError(f"{type(worker).__name__} cannot {command.do}")


def say(answer: Answer) -> None:
    os.write(sys.stdout.fileno(), msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    try:
        raise_file_limit(FILES_MAX)
        uvloop.run(work())
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        sys.exit(1)
