"""Starts, follows and ends the processes of the example, and does what keys and the page ask.

Laws:
- the brokers come first, behind their arbiter if they have one: they are there for clients before anything
  else is started
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
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.address import Address
from holdfast.cli.up.arbiter import start_arbiter
from holdfast.cli.up.beside import Beside
from holdfast.cli.up.child import Child, start
from holdfast.cli.up.folder import swept_folder
from holdfast.cli.up.keys import keys
from holdfast.cli.up.page import Page, page_address
from holdfast.cli.up.pair import Pair, Standing, free_address, group_text, places_for
from holdfast.cli.up.plant import PlantNews, PlantSpec
from holdfast.cli.up.story import Story, over_words, protected, view_words
from holdfast.cli.up.table import Rates, conclusion, holds, pair_lines, screen, seen_words
from holdfast.cli.up.watch import Snapshot, WatchSpec
from holdfast.contract.model import ContractBook
from holdfast.dashboard.spec import Example, Spec
from holdfast.errors import ConfigError, Problem, Unavailable
from holdfast.mqtt.conventions import ViewNote
from holdfast.units import S

T = TypeVar("T")
JOIN_S_MAX = 20.0
PIPE_COLUMNS = 100
ACTIONS_MAX = 16
# Nobody who waits for something is left for ten seconds without a line.
AWAITED_TOLD_S = 8.0
AWAITED_POLL_S = 0.5
KILL, RESTART, PAUSE, QUIT = "krsq"
ENDING = "Ending: Spark and page are killed, the plant stops, and the subscriber takes what is left."
ENDING_EARLY = "Ending: what has started so far is ended."
HELP = "k kills the primary, r restarts it, s pauses or continues it, q ends it all."
# Everything on the screen but the rows of the table and the suggestions.
LINES_AROUND = 14
LINES_OF_CHANNELS = 2
NAME_COLUMNS = 9


class Script(msgspec.Struct, frozen=True):
    """What happens without keys, and when, from the start of the plant on."""

    seconds: float | None = None
    kill_after_ns: int | None = None
    restart_after_ns: int | None = None

    def actions(self) -> list[tuple[float, str]]:
        planned = ((self.kill_after_ns, KILL), (self.restart_after_ns, RESTART))
        return [(after_ns / 1e9, key) for after_ns, key in planned if after_ns is not None]


class Wish(msgspec.Struct, frozen=True):
    """What is started. With `table` what is seen is a table in this terminal, else a page at `page`."""

    contracts: Path
    listen: list[Address] = []
    page: Address | None = None
    beside: Path | None = None
    pipeline: bool = True
    table: bool = False
    zookeeper: bool = False


class Stage:
    def __init__(self, book: ContractBook, wish: Wish) -> None:
        if not book.contracts:
            raise ConfigError(str(wish.contracts), [Problem("contract", "found none; this shows contracts")])
        self._book = book
        self._wish = wish
        self._beside = (
            Beside(wish.beside, self._hear_channels, pipeline=wish.pipeline)
            if wish.beside is not None
            else None
        )
        self._page = None if wish.table else Page(self._asked_by_page, self._page_told)
        self._console = Console()
        if not self._console.is_terminal:
            self._console = Console(width=PIPE_COLUMNS)
        self._drawn = wish.table and self._console.is_terminal
        self._rates = Rates()
        self._story = Story()
        self._live: Live | None = None
        self._pair: Pair | None = None
        self._seen: Snapshot | None = None
        self._page_due_ns = 0
        self._told_view = ""
        self._told_failovers = 0
        self._began_s = self._started_s = self._printed_s = 0.0
        self._page_awaited = self._page is not None
        self._suggested: Address | None = None
        self._news = ""
        self._stop = asyncio.Event()
        self._asked: asyncio.Queue[str] = asyncio.Queue(ACTIONS_MAX)
        self._telling: set[asyncio.Task[None]] = set()

    def run(self, script: Script) -> bool:
        """True if every contract was kept."""
        return asyncio.run(self._run(script))

    async def _run(self, script: Script) -> bool:
        loop = asyncio.get_running_loop()
        self._began_s = self._printed_s = time.monotonic()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._told_to_stop)
        async with contextlib.AsyncExitStack() as stack:
            folder = await stack.enter_async_context(swept_folder("holdfast-up-"))
            waiting = asyncio.ensure_future(self._say_what_is_awaited())
            stack.callback(waiting.cancel)
            children = await self._unless_stopped(self._start(stack, folder))
            if children is None:
                return False
            watch, plant = children
            self._started_s = time.monotonic()
            with keys(self._press), self._drawing():
                await self._follow(stack, watch, plant, script)
                elapsed_s = time.monotonic() - self._started_s
                final = await self._finish(watch, plant)
            if not self._drawn:
                self._console.print(self._screen(final))
            words = conclusion(final, elapsed_s, busy_words(), self._story.over)
            self._console.print(words, style="green" if holds(final) else "bold red", highlight=False)
            return holds(final)

    def _told_to_stop(self) -> None:
        """Said at once: what follows takes some moments."""
        if not self._stop.is_set():
            self._stop.set()
            self._news = ENDING if self._started_s else ENDING_EARLY
            if self._live is None:
                with contextlib.suppress(OSError):  # the terminal may be gone
                    self._print(self._news)
            self._draw()

    async def _unless_stopped(self, work: Coroutine[None, None, T]) -> T | None:
        """What comes of it, or None: it is given up when told to stop."""
        working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    # -- processes -----------------------------------------------------------------------------------------

    async def _start(self, stack: contextlib.AsyncExitStack, folder: Path) -> tuple[Child, Child]:
        """The subscriber and the plant of a pair that serves."""
        pair = self._pair = await self._start_pair(stack, folder)
        watch = await self._start_watch(stack, pair)
        return watch, await self._start_plant(stack, pair)

    async def _start_pair(self, stack: contextlib.AsyncExitStack, folder: Path) -> Pair:
        arbiter = await start_arbiter(stack, folder) if self._wish.zookeeper else None
        if arbiter is not None:
            self._progress("arbiter", f"ZooKeeper at {arbiter}")
        places = places_for(self._wish.listen)
        group = folder / "group.toml"
        group.write_text(group_text(places, arbiter))
        pair = Pair(stack, places, group, self._wish.contracts, self._draw)
        await pair.start()
        self._progress("brokers", " and ".join(f"mqtt://{place.mqtt}" for place in places))
        return pair

    async def _start_watch(self, stack: contextlib.AsyncExitStack, pair: Pair) -> Child:
        """Returns when it is subscribed and the pair protected."""
        spec = msgspec.json.encode(WatchSpec(pair.addresses, str(self._wish.contracts))).decode()
        watch = await start(stack, "subscriber", "holdfast.cli.up.watch", spec, hears=True)
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
        spec = msgspec.json.encode(PlantSpec(pair.addresses, str(self._wish.contracts))).decode()
        plant = await start(stack, "plant", "holdfast.cli.up.plant", spec)
        await plant.line()
        self._progress("plant", f"{len(self._book.contracts)} contracts")
        return plant

    def _work(self, stack: contextlib.AsyncExitStack, pair: Pair) -> Iterator[Coroutine[None, None, None]]:
        """What runs beside the pair and its plant, and ends with them."""
        yield self._obey(pair)
        http = str(free_address())
        if self._beside is not None:
            both = ",".join(str(address) for address in pair.addresses)
            yield self._beside.run(both, pair.folder / "data", http)
        if self._page is not None:
            wanted = self._beside.wanted if self._beside is not None else None
            spec = Spec(
                page_address(self._wish.page),
                [f"http://{place.http}" for place in pair.places],
                f"http://{http}" if self._beside is not None and self._wish.pipeline else None,
                example=Example(
                    pair.addresses, wanted.map if wanted else None, wanted.follow if wanted else ()
                ),
            )
            yield self._show_page(stack, self._page, spec)

    async def _show_page(self, stack: contextlib.AsyncExitStack, page: Page, spec: Spec) -> None:
        await page.run(stack, spec)
        # Without it the rest goes on.
        await asyncio.Event().wait()

    # -- following -----------------------------------------------------------------------------------------

    async def _follow(
        self, stack: contextlib.AsyncExitStack, watch: Child, plant: Child, script: Script
    ) -> None:
        """Draws and obeys until told to stop, the time is up, or the plant or the subscriber ends."""
        assert self._pair is not None
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(after_s, self._press, key) for after_s, key in script.actions()]
        works = (self._watch(watch), self._hear(plant), *self._work(stack, self._pair))
        working = [asyncio.ensure_future(each) for each in works]
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
        if snapshot.at_ns >= self._page_due_ns:
            self._page_due_ns = snapshot.at_ns + S
            self._tell_page(subscriber=seen_words(snapshot))
        return snapshot

    def _hear_news(self, line: bytes) -> PlantNews:
        news = msgspec.json.decode(line, type=PlantNews)
        self._story.publishers(news.moves)
        self._tell()
        return news

    async def _finish(self, watch: Child, plant: Child) -> Snapshot:
        """The plant says what it published, the subscriber what became of it."""
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
                self._told_to_stop()
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

    # -- the page ------------------------------------------------------------------------------------------

    def _asked_by_page(self, action: str) -> None:
        self._press(KILL if action == "kill" else RESTART)

    def _page_told(self, words: str) -> None:
        self._page_awaited = False
        self._progress("page", words)
        if self._beside is None:
            self._progress(
                "city", "left out: examples/emergencies is not here; --with FOLDER says where it is"
            )
        self._suggest()

    def _tell_page(self, **said: str) -> None:
        if self._page is not None:
            task = asyncio.ensure_future(self._page.say(**said))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    def _suggest(self) -> None:
        """Anew when another broker serves: a plain client has to ask that one."""
        self._suggested = self._serving
        for line in self._to_try():
            self._print(line)

    def _to_try(self) -> list[str]:
        """Three commands."""
        assert self._pair is not None
        host, port = self._serving
        topic = shlex.quote(self._book.contracts[0].topics[0])
        primary = next(
            (broker.pid for broker in self._pair.seen(self._view) if broker.standing is Standing.PRIMARY),
            None,
        )
        lines = ["In another terminal:", f"  mosquitto_sub -h {host} -p {port} -t {topic} -v"]
        if self._beside is not None:
            lines.append(self._beside.suggestion(host, port))
        lines.append(f"  kill -KILL {primary}     # the primary; the page has a button for it")
        return [*lines, f"Here: {HELP}" if self._console.is_terminal else "Ctrl-C ends it all."]

    @property
    def _serving(self) -> Address:
        assert self._pair is not None
        view = self._view
        serving = [(place.host, place.port) for place in view.places[:1]] if view is not None else []
        host, port = [*serving, *self._pair.addresses][0]
        return Address(host.strip("[]"), port)

    # -- what is seen --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        if not self._drawn:
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
        host, port = self._serving
        both = ",".join(str(address) for address in self._pair.addresses)
        lines = [
            "In another terminal:",
            f"  mosquitto_sub -h {host} -p {port} -t {topic} -v",
            f"  {own_name()} sub -h {both} -t {topic}",
        ]
        if self._beside is not None:
            lines.insert(2, self._beside.suggestion(host, port))
        folded = sum(math.ceil(len(line) / self._console.width) for line in lines)
        around = LINES_AROUND + (LINES_OF_CHANNELS if self._beside is not None else 0)
        fits = len(snapshot.rows) + around + folded <= self._console.height
        return lines if fits else []

    @property
    def _view(self) -> ViewNote | None:
        return None if self._seen is None else self._seen.view

    def _tell(self) -> None:
        """What has changed for the pair, where there is no live table to see it."""
        if self._drawn or not self._started_s:
            return
        view = view_words(self._view)
        if view != self._told_view:
            self._told_view = view
            self._line(view)
        if self._suggested is not None and self._view is not None and self._suggested != self._serving:
            self._suggest()
        if self._story.over > self._told_failovers:
            self._told_failovers = self._story.over
            words = over_words(self._story)
            self._line(words)
            self._tell_page(news=f"{self._news}. {words}" if self._news else words)

    def _hear_channels(self, text: str) -> None:
        self._line(f"channels: {text}")
        self._tell_page(pipeline=text[0].upper() + text[1:])
        self._draw()

    def _say(self, text: str) -> None:
        self._news = text[0].upper() + text[1:]
        self._line(text)
        self._tell_page(news=self._news)

    def _line(self, text: str) -> None:
        if not self._drawn:
            self._print(f"{time.monotonic() - self._started_s:.1f} s: {text}")

    def _print(self, line: str) -> None:
        self._printed_s = time.monotonic()
        print(line, flush=True)

    async def _say_what_is_awaited(self) -> None:
        """A line now and then while something starts: whoever waits for it knows that this lives."""
        while True:
            await asyncio.sleep(AWAITED_POLL_S)
            awaited = " and ".join(self._awaited())
            if awaited and not self._stop.is_set() and time.monotonic() - self._printed_s > AWAITED_TOLD_S:
                self._progress("waiting", f"for {awaited}")

    def _awaited(self) -> Iterator[str]:
        if not self._started_s:
            yield "brokers, subscriber and plant"
            return
        if self._page_awaited:
            yield "the page"
        if self._beside is not None and self._beside.awaited:
            yield "the pipeline on Spark"

    def _progress(self, what: str, words: str) -> None:
        """A stage is over; how long it took from the very start."""
        if self._live is None:
            self._print(f"{what:<{NAME_COLUMNS}}{words} ({time.monotonic() - self._began_s:.1f} s)")


def busy_words() -> str:
    load, processors = os.getloadavg()[0], os.cpu_count()
    return f"This machine: load average {load:.1f} on {processors} processors."


def own_name() -> str:
    """How this person calls Holdfast: by name if it is found by name, else by its path."""
    return "holdfast" if shutil.which("holdfast") else shlex.quote(sys.argv[0])
