"""What lives beside the plant: a city, a pipeline that is fed with it, and what its channels tell.

Laws:
- contracts come first: what runs here gets less of the processors than brokers, plant and subscriber
- what fails here is said, and everything else goes on
- nothing of it needs an end in good order: all that it wrote goes with the example
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from rich.text import Text

from holdfast.cli.up.child import Child, Rank, start, start_python
from holdfast.config import Checked, load
from holdfast.dashboard.spec import Ground
from holdfast.errors import Unavailable

FILE = "up.toml"
STARTING = "the pipeline starts; Spark takes some seconds, at the very first time more"
WITHOUT = "the pipeline was left out; without --no-pipeline it runs the channels"
# What driver, recorder and the JVM of the example take together, and a little.
MEMORY_BYTES_MIN = 3 * 2**29


class Wanted(Checked, frozen=True, kw_only=True):
    """`world` is a script of the folder and its arguments, `follow` the topics whose messages are shown."""

    world: tuple[str, ...]
    follow: tuple[str, ...]
    map: Ground | None = None


class Beside:
    """`told` is called when there is something new to see, with the words for it."""

    def __init__(self, folder: Path, told: Callable[[str], None], *, pipeline: bool = True) -> None:
        self.wanted = load(folder / FILE, Wanted)
        self._folder = folder
        self._told_to = told
        self._pipeline_wanted = pipeline
        self._words = STARTING if pipeline else WITHOUT
        self.awaited = pipeline  # it starts, and neither serves nor has failed
        self._told = 0
        self._last = ""

    async def run(self, addresses: str, data: Path, http: str) -> None:
        """Until it is cancelled. `http` is where the pipeline tells how it is."""
        self._say(self._words)
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            group.create_task(self._unless_it_fails(self._world(stack, addresses)))
            if self._pipeline_wanted:
                group.create_task(self._unless_it_fails(self._follow(stack, addresses)))
                group.create_task(self._unless_it_fails(self._pipeline(stack, addresses, data, http)))
            # Whoever calls ends it.
            await asyncio.Event().wait()

    async def _unless_it_fails(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Unavailable as error:
            self.awaited = False
            self._say(str(error))

    async def _world(self, stack: contextlib.AsyncExitStack, addresses: str) -> None:
        script, *arguments = self.wanted.world
        world = await start_python(
            stack, "world", str(self._folder / script), "--brokers", addresses, *arguments,
            rank=Rank.LAST, spare=True,
        )  # fmt: skip
        await _until_end(world)

    async def _follow(self, stack: contextlib.AsyncExitStack, addresses: str) -> None:
        topics = [part for topic in self.wanted.follow for part in ("-t", topic)]
        follower = await start(
            stack,
            "subscriber of channels",
            "holdfast.cli.main",
            "sub",
            "-h",
            addresses,
            "-q",
            "1",
            "--json",
            *topics,
            spare=True,
        )
        while True:
            message = json.loads(await follower.line())
            rows = json.loads(message["payload"])["rows"]
            self._told += 1
            self._last = f"{message['topic']} {json.dumps(rows[0])}"
            self._say(f"{self._told} notification{'s' if self._told > 1 else ''}, the last:")

    async def _pipeline(
        self, stack: contextlib.AsyncExitStack, addresses: str, data: Path, http: str
    ) -> None:
        if problem := memory_problem():
            raise Unavailable(problem)
        where = (str(self._folder / "pipeline.toml"), "--brokers", addresses, "--data", str(data))
        recorder = await start(stack, "recorder", "holdfast.cli.main", "record", *where, spare=True)
        pipeline = await start_python(
            stack, "pipeline", "-m", "holdfast.cli.main", "pipeline", *where, "--metrics", http,
            rank=Rank.LAST, spare=True,
        )  # fmt: skip
        while b"serving" not in await pipeline.line():
            pass
        self.awaited = False
        self._say("the pipeline serves; its first channels run within ten seconds")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._unless_it_fails(_until_end(recorder)))
            group.create_task(self._unless_it_fails(_until_end(pipeline)))

    def _say(self, words: str) -> None:
        self._words = words
        self._told_to(f"{words} {self._last}".strip())

    def lines(self) -> Iterator[Text]:
        yield Text(f"Channels: {self._words}", no_wrap=True, overflow="ellipsis")
        yield Text(f"  {self._last}", no_wrap=True, overflow="ellipsis", style="cyan")

    def suggestion(self, host: str, port: int) -> str:
        return f"  mosquitto_sub -h {host} -p {port} -t {shlex.quote(self.wanted.follow[0])}"


def memory_problem() -> str:
    """Why the pipeline had better not start here; empty if it may."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return ""
    if free >= MEMORY_BYTES_MIN:
        return ""
    return (
        f"the pipeline needs {MEMORY_BYTES_MIN / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free, "
        "so it was left out: end something, and start again"
    )


async def _until_end(child: Child) -> None:
    """Reads what it says, so that it can go on saying it, until it ends."""
    while True:
        await child.line()
