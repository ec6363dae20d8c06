"""The page of the example: a process that shows what brokers and pipeline say, and asks for what is pressed.

Law: what fails here is said, and the rest goes on.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from holdfast.address import LOOPBACK, Address
from holdfast.cli.up.child import Child, Rank, start_python
from holdfast.dashboard.spec import Asked, Said, Spec, need
from holdfast.errors import Unavailable

PORT_USUAL = 8080


def page_address(wanted: Address | None) -> Address:
    """Where it was asked for, or else at the usual port if that is free."""
    if wanted is not None:
        return wanted
    with contextlib.suppress(OSError), socket.create_server((LOOPBACK, PORT_USUAL)):
        return Address(LOOPBACK, PORT_USUAL)
    return Address(LOOPBACK, 0)


class Page:
    """`asked` is called with what a person pressed, `told` with where the page is or what went wrong."""

    def __init__(self, asked: Callable[[str], None], told: Callable[[str], None]) -> None:
        self._asked = asked
        self._told = told
        self._child: Child | None = None
        self._last = Said()

    async def run(self, stack: contextlib.AsyncExitStack, spec: Spec) -> None:
        """Until it ends, which is said."""
        try:
            need()
            what = ("-m", "holdfast.dashboard.serve", msgspec.json.encode(spec).decode())
            self._child = await start_python(
                stack, "dashboard", *what, rank=Rank.USUAL, hears=True, spare=True
            )
            address = (await self._child.line()).decode().split()[-1]
            self._told(address)
            await self._child.tell(msgspec.json.encode(self._last))
            while True:
                self._asked(msgspec.json.decode(await self._child.line(), type=Asked).action)
        except Unavailable as error:
            self._child = None
            self._told(f"there is none: {error}")

    async def say(self, **said: str) -> None:
        """What there is to say now, by the names of Said, also if the page is not there yet."""
        self._last = replace(self._last, **said)
        if self._child is not None and self._child.running:
            await self._child.tell(msgspec.json.encode(self._last))
