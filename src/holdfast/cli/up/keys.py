"""Keys as they are pressed, without Return, while everything else goes on.

Law: the terminal is as it was when the `with` block ends, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator

KEYS_MAX = 64


@contextlib.contextmanager
def keys(pressed: Callable[[str], None]) -> Iterator[bool]:
    """Calls `pressed` for each key; gives whether there is a terminal that has any. Ctrl-C stays Ctrl-C."""
    if not _ours():
        yield False
        return
    terminal = sys.stdin.fileno()
    loop = asyncio.get_running_loop()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        try:
            data = os.read(terminal, KEYS_MAX)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(terminal)
        for key in data.decode(errors="replace"):
            pressed(key)

    tty.setcbreak(terminal, termios.TCSANOW)
    loop.add_reader(terminal, read)
    try:
        yield True
    finally:
        loop.remove_reader(terminal)
        # A terminal that was hung up has nothing to restore.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)


def _ours() -> bool:
    """Whether keys come to this process: not if it runs in the background, or reads a file."""
    try:
        return sys.stdin.isatty() and sys.stdout.isatty() and os.tcgetpgrp(0) == os.getpgrp()
    except (OSError, ValueError):
        return False
