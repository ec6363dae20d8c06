"""Starts, follows and ends the processes of the demonstration.

Laws:
- the subscriber is subscribed before the plant publishes, so whatever is missing was lost
- the end goes the way of a message: the plant stops, the subscriber takes what is left, the broker goes
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO

import msgspec
from rich.console import Console, Group
from rich.live import Live

from holdfast.cli.demo.plant import PlantSpec, streams_of
from holdfast.cli.demo.table import Rates, conclusion, holds, screen
from holdfast.cli.demo.watch import Snapshot, WatchSpec
from holdfast.contract.model import ContractBook
from holdfast.errors import ConfigError, Problem, Unavailable
from holdfast.runtime.tether import tethered

READY = "listening on mqtt://"
STOP_S_MAX = 10.0
LINE_BYTES_MAX = 2**24
ERROR_LINES = 3
PIPE_COLUMNS = 100


class Child:
    """One process of the stage; what it says on stderr is kept for when it fails."""

    def __init__(self, name: str, process: Process, errors: IO[bytes]) -> None:
        self.name = name
        self.process = process
        self._errors = errors

    async def line(self) -> bytes:
        """The next line of its output; Unavailable with its own words if it ended instead."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            await self.process.wait()
            raise self.failure()
        return line

    async def tell(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        with contextlib.suppress(ConnectionError):
            await self.process.stdin.drain()

    def failure(self) -> Unavailable:
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()[-ERROR_LINES:]
        code = self.process.returncode
        how = (
            f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
        )
        said = "; ".join(line.removeprefix("holdfast: ") for line in words)
        return Unavailable(f"the {self.name} {how}" + (f": {said}" if said else ""))

    async def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
        try:
            await asyncio.wait_for(self.process.wait(), STOP_S_MAX)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        self._errors.close()


class Stage:
    def __init__(self, book: ContractBook, contracts: Path, listen: str) -> None:
        if not book.contracts:
            raise ConfigError(str(contracts), [Problem("contract", "found none; the demo shows contracts")])
        self._book = book
        self._contracts = contracts
        self._listen = listen
        self._console = Console()
        if not self._console.is_terminal:
            self._console = Console(width=PIPE_COLUMNS)
        self._rates = Rates()
        self._below: list[str] = []

    def run(self, seconds: float | None) -> bool:
        """True if every contract was kept."""
        return asyncio.run(self._run(seconds))

    async def _run(self, seconds: float | None) -> bool:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop.set)
        async with contextlib.AsyncExitStack() as stack:
            broker = await self._start_broker(stack)
            host, port = await self._address(broker)
            watch = await self._start_watch(stack, host, port)
            plant = await self._start_plant(stack, host, port)
            self._below = self._words_below(host, port)
            started_s = time.monotonic()
            if not self._console.is_terminal:
                print(f"ready: mqtt://{host}:{port}, {len(self._book.contracts)} contracts", flush=True)
            with self._live() as live:
                await self._follow(watch, plant, broker, stop, seconds, live)
                elapsed_s = time.monotonic() - started_s
                final = await self._finish(watch, plant, live)
            if not self._console.is_terminal:
                self._console.print(self._screen(final, below=False))
            words = conclusion(final, elapsed_s, busy_words())
            self._console.print(words, style="green" if holds(final) else "bold red", highlight=False)
            return holds(final)

    # -- processes -----------------------------------------------------------------------------------------

    async def _start(self, stack: contextlib.AsyncExitStack, name: str, *module: str) -> Child:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - the child keeps it open
        process = await asyncio.create_subprocess_exec(
            *tethered([sys.executable, "-m", *module]),
            stdin=PIPE if name == "subscriber" else DEVNULL,
            stdout=PIPE,
            stderr=errors,
            # Ctrl-C is for this process alone; it ends the others in their order.
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
        child = Child(name, process, errors)
        stack.push_async_callback(child.stop)
        return child

    async def _start_broker(self, stack: contextlib.AsyncExitStack) -> Child:
        options = ["--listen", self._listen, "--contracts", str(self._contracts)]
        return await self._start(stack, "broker", "holdfast.cli.main", "broker", *options)

    async def _address(self, broker: Child) -> tuple[str, int]:
        """Where clients of this host reach the broker, once it listens."""
        line = (await broker.line()).decode().strip()
        host, _, port = line.removeprefix(READY).rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(port)

    async def _start_watch(self, stack: contextlib.AsyncExitStack, host: str, port: int) -> Child:
        spec = msgspec.json.encode(WatchSpec([f"[{host}]:{port}"], str(self._contracts))).decode()
        watch = await self._start(stack, "subscriber", "holdfast.cli.demo.watch", spec)
        self._note(await watch.line())
        return watch

    async def _start_plant(self, stack: contextlib.AsyncExitStack, host: str, port: int) -> Child:
        streams = streams_of(self._book.contracts)
        spec = msgspec.json.encode(PlantSpec([f"[{host}]:{port}"], str(self._contracts), streams)).decode()
        plant = await self._start(stack, "plant", "holdfast.cli.demo.plant", spec)
        await plant.line()
        return plant

    # -- following -----------------------------------------------------------------------------------------

    async def _follow(
        self,
        watch: Child,
        plant: Child,
        broker: Child,
        stop: asyncio.Event,
        seconds: float | None,
        live: Live | None,
    ) -> None:
        """Draws until told to stop, the time is up, or one of the processes ends."""
        following = asyncio.ensure_future(self._draw(watch, live))
        ends = {asyncio.ensure_future(child.process.wait()): child for child in (broker, plant)}
        stopping = asyncio.ensure_future(stop.wait())
        try:
            done, _ = await asyncio.wait(
                {following, stopping, *ends}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            for future, child in ends.items():
                if future in done:
                    raise child.failure()
            if following in done:
                following.result()
        finally:
            for task in (following, stopping, *ends):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Unavailable):
                await following

    async def _draw(self, watch: Child, live: Live | None) -> None:
        async for snapshot in self._snapshots(watch):
            if live is not None:
                live.update(self._screen(snapshot), refresh=True)

    async def _snapshots(self, watch: Child) -> AsyncIterator[Snapshot]:
        while True:
            yield self._note(await watch.line())

    def _note(self, line: bytes) -> Snapshot:
        snapshot = msgspec.json.decode(line, type=Snapshot)
        self._rates.add(snapshot)
        return snapshot

    async def _finish(self, watch: Child, plant: Child, live: Live | None) -> Snapshot:
        """The plant says what it published, the subscriber what became of it."""
        plant.process.send_signal(signal.SIGTERM)
        await watch.tell((await plant.line()).strip())
        async for snapshot in self._snapshots(watch):
            if snapshot.final:
                if live is not None:
                    live.update(self._screen(snapshot, below=False), refresh=True)
                return snapshot
        raise AssertionError("snapshots end only by an error")

    # -- what is seen --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _live(self) -> Iterator[Live | None]:
        if not self._console.is_terminal:
            yield None
            return
        with Live(console=self._console, auto_refresh=False) as live:
            yield live

    def _screen(self, snapshot: Snapshot, *, below: bool = True) -> Group:
        rates = self._rates.of(snapshot)
        return screen(snapshot, rates, self._console.width, self._below if below else ())

    def _words_below(self, host: str, port: int) -> list[str]:
        topic = shlex.quote(self._book.contracts[0].topics[0])
        at = f"-h {host} -p {port} -t {topic}"
        return [
            f"The broker is at mqtt://{host}:{port}. Try, in another terminal:",
            f"  mosquitto_sub {at} -v",
            f"  {own_name()} sub {at} --quiet",
            "Ctrl-C ends it.",
        ]


def busy_words() -> str:
    load, processors = os.getloadavg()[0], os.cpu_count()
    return f"This machine: load average {load:.1f} on {processors} processors."


def own_name() -> str:
    """How this person calls Holdfast: by name if it is found by name, else by its path."""
    return "holdfast" if shutil.which("holdfast") else shlex.quote(sys.argv[0])
