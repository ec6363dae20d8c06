"""A pipeline beside the pair: what it is fed with, and what its channels tell.

Laws:
- contracts come first: what runs here leaves the processors to brokers, plant and subscriber
- what fails here is said on the screen, and the demonstration goes on
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.text import Text

from holdfast.cli.demo.child import Child, start, start_python
from holdfast.config import Checked, load
from holdfast.errors import Unavailable

FILE = "demo.toml"
STARTING = "the pipeline starts; Spark takes some seconds, at the very first time more"


class Wanted(Checked, frozen=True, kw_only=True):
    """`world` is a script of the folder and its arguments, `follow` the topics whose messages are shown."""

    world: tuple[str, ...]
    follow: tuple[str, ...]


class Beside:
    """`told` is called when there is something new to see, with the words for it."""

    def __init__(self, folder: Path, told: Callable[[str], None]) -> None:
        self.wanted = load(folder / FILE, Wanted)
        self._folder = folder
        self._told_to = told
        self._words = STARTING
        self._told = 0
        self._last = ""

    async def run(self, addresses: str, data: Path) -> None:
        """Until it is cancelled; what fails is said, and the rest ended."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                await self._follow(stack, addresses, data)
            except* Unavailable as errors:
                self._say(str(errors.exceptions[0]))
            # Whoever calls ends it.
            await asyncio.Event().wait()

    async def _follow(self, stack: contextlib.AsyncExitStack, addresses: str, data: Path) -> None:
        where = (str(self._folder / "pipeline.toml"), "--brokers", addresses, "--data", str(data))
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
        )
        await start(stack, "recorder", "holdfast.cli.main", "record", *where)
        pipeline = await start_python(
            stack, "pipeline", "-m", "holdfast.cli.main", "pipeline", *where, patient=True
        )
        await self._until_serving(pipeline)
        script, *arguments = self.wanted.world
        world = await start_python(
            stack, "world", str(self._folder / script), "--brokers", addresses, *arguments, patient=True
        )
        self._say("the pipeline serves; its first channels run within ten seconds")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hear(follower))
            group.create_task(_until_end(pipeline))
            group.create_task(_until_end(world))

    async def _until_serving(self, pipeline: Child) -> None:
        while b"serving" not in await pipeline.line():
            pass

    async def _hear(self, follower: Child) -> None:
        while True:
            message = json.loads(await follower.line())
            rows = json.loads(message["payload"])["rows"]
            self._told += 1
            self._last = f"{message['topic']} {json.dumps(rows[0])}"
            self._say(f"{self._told} notification{'s' if self._told > 1 else ''}, the last:")

    def _say(self, words: str) -> None:
        self._words = words
        self._told_to(f"{words} {self._last}".strip())

    def lines(self) -> Iterator[Text]:
        yield Text(f"Channels: {self._words}", no_wrap=True, overflow="ellipsis")
        yield Text(f"  {self._last}", no_wrap=True, overflow="ellipsis", style="cyan")

    def suggestion(self, host: str, port: int) -> str:
        return f"  mosquitto_sub -h {host} -p {port} -t {shlex.quote(self.wanted.follow[0])}"


async def _until_end(child: Child) -> None:
    """Reads what it says, so that it can go on saying it, until it ends."""
    while True:
        await child.line()
