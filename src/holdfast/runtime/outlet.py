"""Standard error of a process that must go on, whoever reads it: frozen, gone, or on a disk that is full.

Laws:
- writing never raises and never waits: what cannot be written now is tried again at the next line, and every
  RETRY_S where there is a loop
- of what waits the first WAITING_MAX lines are kept, in order; how many were left out is told behind them
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections import deque
from collections.abc import Callable
from threading import Lock

RETRY_S = 1.0
WAITING_MAX = 1000
PIECE_BYTES = 4096  # a pipe that can be written to takes as much without waiting


class Outlet:
    """`told` makes a line that says how many were left out, and why."""

    def __init__(self, told: Callable[[int, str], str]) -> None:
        self._told = told
        self._waiting: deque[bytes] = deque()
        self._left_out = 0
        self._why = ""
        self._planned = False
        self._lock = Lock()

    def say(self, line: str) -> None:
        with self._lock:  # a pipeline has several threads, and nobody waits for long
            if len(self._waiting) < WAITING_MAX:
                self._waiting.append(line.encode(errors="replace") + b"\n")
            else:
                self._left_out += 1
            self._drain()

    def drain(self) -> None:
        """Writes what waits, as far as it is taken."""
        with self._lock:
            self._drain()

    def _drain(self) -> None:
        try:
            while self._waiting or self._left_out:
                if not self._waiting:
                    self._waiting.append(self._told(self._left_out, self._why).encode() + b"\n")
                    self._left_out = 0
                if not self._write(self._waiting[0]):
                    self._why = "nobody reads"
                    break
                self._waiting.popleft()
        except (OSError, ValueError) as error:
            self._why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if self._waiting:
            self._plan()

    def _write(self, line: bytes) -> bool:
        """Whether all of it went."""
        try:
            fd = sys.stderr.fileno()
        except (AttributeError, OSError, ValueError):
            print(line.decode(), end="", file=sys.stderr, flush=True)
            return True
        ready = select.poll()
        ready.register(fd, select.POLLOUT)
        while line and ready.poll(0):
            line = line[os.write(fd, line[:PIECE_BYTES]) :]
            self._waiting[0] = line
        return not line

    def _plan(self) -> None:
        if self._planned:
            return
        try:
            asyncio.get_running_loop().call_later(RETRY_S, self._again)
        except RuntimeError:
            return  # the next line tries again
        self._planned = True

    def _again(self) -> None:
        self._planned = False
        self.drain()
