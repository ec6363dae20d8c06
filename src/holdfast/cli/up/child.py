"""One process of the example: started tethered, heard by lines, ended in every case.

Laws:
- whoever leaves the stack that a child was started in leaves no process of it behind
- what children of a child have started, and moved elsewhere, the sweeper of the folder finds
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from enum import Enum
from typing import IO

from holdfast.errors import Unavailable
from holdfast.runtime.ahead import go_ahead, stand_back
from holdfast.runtime.tether import tethered

STOP_S_MAX = 2.0
LINE_BYTES_MAX = 2**24
ERROR_LINES = 3
OURS = "holdfast: "  # what stands before a sentence that is meant for people


class Rank(Enum):
    """Who gets the processors when they are wanted by more than there are."""

    FIRST = "first"  # before other programs, where that is allowed
    USUAL = "usual"  # as other programs do: a person waits for it
    LAST = "last"


PLACES = {Rank.FIRST: go_ahead, Rank.USUAL: None, Rank.LAST: stand_back}


async def start(
    stack: contextlib.AsyncExitStack, name: str, *module: str, hears: bool = False, spare: bool = False
) -> Child:
    """Runs a module of ours with its arguments; `stack` ends it."""
    return await start_python(stack, name, "-m", *module, hears=hears, spare=spare)


async def start_python(
    stack: contextlib.AsyncExitStack,
    name: str,
    *arguments: str,
    rank: Rank = Rank.FIRST,
    hears: bool = False,
    spare: bool = False,
) -> Child:
    """Runs Python, as `start_command` runs any program."""
    command = [sys.executable, *arguments]
    return await start_command(stack, name, command, rank=rank, hears=hears, spare=spare)


async def start_command(
    stack: contextlib.AsyncExitStack,
    name: str,
    command: list[str],
    *,
    rank: Rank = Rank.FIRST,
    hears: bool = False,
    tells: bool = True,
    spare: bool = False,
) -> Child:
    """Runs a program. One that `hears` is told lines, one that `tells` has some.
    A `spare` one has nothing to bring to an end: it is killed, with what it started."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - the child keeps it open
    process = await asyncio.create_subprocess_exec(
        *tethered(command),
        stdin=PIPE if hears else DEVNULL,
        stdout=PIPE if tells else DEVNULL,
        stderr=errors,
        # Ctrl-C is for this process alone; it ends the others in their order.
        start_new_session=True,
        # On few processors Spark and a browser make brokers late otherwise, and so silent.
        preexec_fn=PLACES[rank],
        limit=LINE_BYTES_MAX,
    )
    child = Child(name, process, errors, spare=spare)
    stack.push_async_callback(child.stop)
    return child


class Child:
    """What it says on stderr is kept for when it fails."""

    def __init__(self, name: str, process: Process, errors: IO[bytes], *, spare: bool) -> None:
        self.name = name
        self.process = process
        self._spare = spare
        self._errors = errors

    @property
    def running(self) -> bool:
        return self.process.returncode is None

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

    def signal(self, number: int) -> None:
        if self.running:  # send_signal would take its end from who waits for it
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def failure(self) -> Unavailable:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        words = [line for line in lines if line.startswith(OURS)] or lines[-ERROR_LINES:]
        code = self.process.returncode
        how = (
            f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
        )
        said = "; ".join(line.removeprefix(OURS) for line in words)
        return Unavailable(f"the {self.name} {how}" + (f": {said}" if said else ""))

    async def stop(self) -> None:
        """SIGTERM, also for one that is paused, and SIGKILL for one that does not obey or is spare."""
        if self._spare:
            self._kill()
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(self.process.wait(), STOP_S_MAX)
        except TimeoutError:
            self._kill()
            await self.process.wait()
        self._errors.close()

    def _kill(self) -> None:
        """With those of its group, such as the JVM of Spark, which would live on for a while."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
