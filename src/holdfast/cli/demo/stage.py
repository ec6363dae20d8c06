"""Starts, follows and ends the processes of the demonstration, and does what keys ask.

Laws:
- the pair is protected and the subscriber subscribed before the plant publishes: what is missing was lost
- the end goes the way of a message: the plant stops, the subscriber takes what is left, the brokers go
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.cli.demo.beside import Beside
from holdfast.cli.demo.child import Child, start
from holdfast.cli.demo.keys import keys
from holdfast.cli.demo.pair import Pair, Standing, group_text, places_for, show
from holdfast.cli.demo.plant import PlantNews, PlantSpec
from holdfast.cli.demo.story import Story, failover_words, protected, view_words
from holdfast.cli.demo.table import Rates, conclusion, holds, pair_lines, screen
from holdfast.cli.demo.watch import Snapshot, WatchSpec
from holdfast.contract.model import ContractBook
from holdfast.errors import ConfigError, Problem, Unavailable
from holdfast.mqtt.conventions import ViewNote

JOIN_S_MAX = 20.0
PIPE_COLUMNS = 100
ACTIONS_MAX = 16
KILL, RESTART, PAUSE, QUIT = "krsq"
HELP = "k kills the primary, r restarts it, s pauses or continues it, q ends it all."
# Everything on the screen but the rows of the table and the suggestions.
LINES_AROUND = 14
LINES_OF_CHANNELS = 2


class Script(msgspec.Struct, frozen=True):
    """What happens without keys, and when, from the start of the plant on."""

    seconds: float | None = None
    kill_after_ns: int | None = None
    restart_after_ns: int | None = None

    def actions(self) -> list[tuple[float, str]]:
        planned = ((self.kill_after_ns, KILL), (self.restart_after_ns, RESTART))
        return [(after_ns / 1e9, key) for after_ns, key in planned if after_ns is not None]


class Stage:
    def __init__(
        self, book: ContractBook, contracts: Path, listen: list[tuple[str, int]], beside: Path | None = None
    ) -> None:
        if not book.contracts:
            raise ConfigError(str(contracts), [Problem("contract", "found none; the demo shows contracts")])
        self._book = book
        self._contracts = contracts
        self._listen = listen
        self._beside = Beside(beside, self._hear_channels) if beside is not None else None
        self._console = Console()
        if not self._console.is_terminal:
            self._console = Console(width=PIPE_COLUMNS)
        self._rates = Rates()
        self._story = Story()
        self._live: Live | None = None
        self._pair: Pair | None = None
        self._seen: Snapshot | None = None
        self._told_view = ""
        self._told_failovers = 0
        self._started_s = 0.0
        self._news = ""
        self._stop = asyncio.Event()
        self._asked: asyncio.Queue[str] = asyncio.Queue(ACTIONS_MAX)

    def run(self, script: Script) -> bool:
        """True if every contract was kept."""
        return asyncio.run(self._run(script))

    async def _run(self, script: Script) -> bool:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        async with contextlib.AsyncExitStack() as stack:
            pair = self._pair = await self._start_pair(stack)
            watch = await self._start_watch(stack, pair)
            plant = await self._start_plant(stack, pair)
            self._started_s = time.monotonic()
            if not self._console.is_terminal:
                where = ", ".join(f"mqtt://{show(address)}" for address in pair.addresses)
                print(f"ready: {where}; {len(self._book.contracts)} contracts", flush=True)
            with keys(self._press), self._drawing():
                await self._follow(watch, plant, pair, script)
                elapsed_s = time.monotonic() - self._started_s
                final = await self._finish(watch, plant)
            if not self._console.is_terminal:
                self._console.print(self._screen(final))
            words = conclusion(final, elapsed_s, busy_words(), len(self._story.failovers))
            self._console.print(words, style="green" if holds(final) else "bold red", highlight=False)
            return holds(final)

    # -- processes -----------------------------------------------------------------------------------------

    async def _start_pair(self, stack: contextlib.AsyncExitStack) -> Pair:
        places = places_for(self._listen)
        group = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-")), "group.toml")
        pair = Pair(stack, places, group, self._contracts, self._draw)
        group.write_text(group_text(places))
        await pair.start()
        return pair

    async def _start_watch(self, stack: contextlib.AsyncExitStack, pair: Pair) -> Child:
        """Returns when it is subscribed and the pair protected."""
        spec = msgspec.json.encode(WatchSpec(pair.addresses, str(self._contracts))).decode()
        watch = await start(stack, "subscriber", "holdfast.cli.demo.watch", spec)
        try:
            async with asyncio.timeout(JOIN_S_MAX):
                while not protected(self._note(await watch.line()).view):
                    pass
        except TimeoutError:
            raise Unavailable(
                f"the two brokers did not find each other within {JOIN_S_MAX:g} s; is this machine very busy?"
            ) from None
        return watch

    async def _start_plant(self, stack: contextlib.AsyncExitStack, pair: Pair) -> Child:
        spec = msgspec.json.encode(PlantSpec(pair.addresses, str(self._contracts))).decode()
        plant = await start(stack, "plant", "holdfast.cli.demo.plant", spec)
        await plant.line()
        return plant

    # -- following -----------------------------------------------------------------------------------------

    async def _follow(self, watch: Child, plant: Child, pair: Pair, script: Script) -> None:
        """Draws and obeys until told to stop, the time is up, or the plant or the subscriber ends."""
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(after_s, self._press, key) for after_s, key in script.actions()]
        working = [
            asyncio.ensure_future(each) for each in (self._watch(watch), self._hear(plant), self._obey(pair))
        ]
        if self._beside is not None:
            both = ",".join(show(address) for address in pair.addresses)
            working.append(asyncio.ensure_future(self._beside.run(both, pair.folder / "data")))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            done, _ = await asyncio.wait(
                {stopping, *working}, timeout=script.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                each.result()
        finally:
            for timer in timers:
                timer.cancel()
            for task in (stopping, *working):
                task.cancel()
            await asyncio.gather(stopping, *working, return_exceptions=True)

    async def _watch(self, watch: Child) -> None:
        while True:
            self._note(await watch.line())
            self._draw()

    async def _hear(self, plant: Child) -> None:
        while True:
            self._hear_news(await plant.line())
            self._draw()

    def _note(self, line: bytes) -> Snapshot:
        snapshot = self._seen = msgspec.json.decode(line, type=Snapshot)
        self._rates.add(snapshot)
        self._story.subscriber(snapshot.moves)
        self._tell()
        return snapshot

    def _hear_news(self, line: bytes) -> PlantNews:
        news = msgspec.json.decode(line, type=PlantNews)
        self._story.publishers(news.moves)
        self._tell()
        return news

    async def _finish(self, watch: Child, plant: Child) -> Snapshot:
        """The plant says what it published, the subscriber what became of it."""
        self._news = "Ending: the plant stops, and the subscriber takes what is left."
        self._draw()
        plant.signal(signal.SIGTERM)
        last = None
        while last is None:
            last = self._hear_news(await plant.line()).last
        await watch.tell(msgspec.json.encode(last))
        while True:
            snapshot = self._note(await watch.line())
            if snapshot.final:
                self._news = ""
                if self._live is not None:
                    self._live.update(self._screen(snapshot), refresh=True)
                return snapshot

    # -- keys ----------------------------------------------------------------------------------------------

    def _press(self, key: str) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._asked.put_nowait(key.lower())

    async def _obey(self, pair: Pair) -> None:
        while True:
            key = await self._asked.get()
            if key == KILL:
                self._kill(pair)
            elif key == RESTART:
                await self._restart(pair)
            elif key == PAUSE:
                self._pause(pair)
            elif key == QUIT:
                self._stop.set()
            self._draw()

    def _kill(self, pair: Pair) -> None:
        name = self._primary_that_may_fail(pair)
        if name is not None:
            pid = pair.pid(name)
            self._story.caused("the kill", pair.kill(name))
            self._say(f"killed broker {name}, the primary, pid {pid} (SIGKILL)")

    async def _restart(self, pair: Pair) -> None:
        names = pair.down()
        self._say("; ".join(f"broker {name} starts again" for name in names) or "both brokers are running")
        await pair.restart()

    def _pause(self, pair: Pair) -> None:
        resumed = pair.resume()
        if resumed:
            self._say(f"broker {resumed[0]} goes on (SIGCONT)")
            return
        name = self._primary_that_may_fail(pair)
        if name is not None:
            self._story.caused("the pause", pair.pause(name))
            self._say(f"paused broker {name}, the primary, pid {pair.pid(name)} (SIGSTOP)")

    def _primary_that_may_fail(self, pair: Pair) -> str | None:
        """One failure at a time is promised: without a backup the primary is left alone, and that is said."""
        standing = {broker.standing: broker.name for broker in pair.seen(self._view)}
        if Standing.PRIMARY in standing and Standing.BACKUP in standing:
            return standing[Standing.PRIMARY]
        if list(standing) == [Standing.DOWN]:
            self._say("not now: both brokers are down; r starts them again")
        elif Standing.PAUSED in standing:
            self._say(f"not now: broker {standing[Standing.PAUSED]} is paused; s lets it go on")
        elif Standing.DOWN in standing:
            self._say(f"not now: broker {standing[Standing.DOWN]} is down; r starts it again")
        else:
            self._say("not now: a broker is joining; wait until it protects the other")
        return None

    # -- what is seen --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False) as self._live:
            self._draw()
            yield

    def _draw(self) -> None:
        if self._live is not None and self._seen is not None:
            self._live.update(self._screen(self._seen), refresh=True)

    def _screen(self, snapshot: Snapshot) -> Group:
        rates = self._rates.of(snapshot)
        return screen(snapshot, rates, self._console.width, list(self._below(snapshot)))

    def _below(self, snapshot: Snapshot) -> Iterator[RenderableType]:
        assert self._pair is not None
        yield from pair_lines(self._pair.seen(snapshot.view), snapshot, self._story)
        if self._beside is not None:
            yield from self._beside.lines()
        if snapshot.final:
            return
        yield Text(self._news)
        yield Text()
        for line in self._suggestions(snapshot):
            yield Text(line, overflow="fold")
        yield Text(HELP, style="bold")

    def _suggestions(self, snapshot: Snapshot) -> list[str]:
        """Only where there is room for them: the keys come first."""
        assert self._pair is not None
        topic = shlex.quote(self._book.contracts[0].topics[0])
        addresses = self._pair.addresses
        serving = [(place.host, place.port) for place in snapshot.view.places[:1]] if snapshot.view else []
        host, port = [*serving, *addresses][0]
        both = ",".join(show(address) for address in addresses)
        lines = [
            "In another terminal:",
            f"  mosquitto_sub -h {host.strip('[]')} -p {port} -t {topic} -v",
            f"  {own_name()} sub -h {both} -t {topic}",
        ]
        if self._beside is not None:
            lines.insert(2, self._beside.suggestion(host.strip("[]"), port))
        folded = sum(math.ceil(len(line) / self._console.width) for line in lines)
        around = LINES_AROUND + (LINES_OF_CHANNELS if self._beside is not None else 0)
        fits = len(snapshot.rows) + around + folded <= self._console.height
        return lines if fits else []

    @property
    def _view(self) -> ViewNote | None:
        return None if self._seen is None else self._seen.view

    def _tell(self) -> None:
        """What has changed for the pair, where there is no live table to see it."""
        if self._console.is_terminal or not self._started_s:
            return
        view = view_words(self._view)
        if view != self._told_view:
            self._told_view = view
            self._say(view)
        if self._story.over > self._told_failovers:
            self._told_failovers = self._story.over
            self._say(failover_words(self._story))

    def _hear_channels(self, text: str) -> None:
        if not self._console.is_terminal:
            print(f"{time.monotonic() - self._started_s:.1f} s: channels: {text}", flush=True)
        self._draw()

    def _say(self, text: str) -> None:
        self._news = text[0].upper() + text[1:]
        if not self._console.is_terminal:
            print(f"{time.monotonic() - self._started_s:.1f} s: {text}", flush=True)


def busy_words() -> str:
    load, processors = os.getloadavg()[0], os.cpu_count()
    return f"This machine: load average {load:.1f} on {processors} processors."


def own_name() -> str:
    """How this person calls Holdfast: by name if it is found by name, else by its path."""
    return "holdfast" if shutil.which("holdfast") else shlex.quote(sys.argv[0])
