"""The two brokers of the example: started, killed, paused and started again.

Laws:
- both listen where they did before, and know their clients by their journals, however often they start again
- a broker that was killed is no failure of the example; one that cannot start is
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import msgspec

from holdfast.address import LOOPBACK, Address
from holdfast.cli.up.child import Child, start
from holdfast.mqtt.conventions import ViewNote
from holdfast.runtime.ports import free_ports

GROUP = "plant"
# Two interpreters that start on a busy machine may be seconds apart; the first waits for the second.
JOIN_WAIT = "5s"
NAMES = ("a", "b")
# An address that means every address is no address to dial.
SECURITY = 'anonymous = "anywhere"\n'  # whoever asks for another address than loopback, asks for that
REACHED_AT = {"0.0.0.0": LOOPBACK, "::": "::1"}


class Standing(Enum):
    """What a person is told of a broker."""

    PRIMARY = "primary"
    BACKUP = "backup"
    JOINING = "joining"
    PAUSED = "paused"
    DOWN = "down"


class BrokerSeen(msgspec.Struct, frozen=True):
    """`pid` is None while there is no process."""

    name: str
    address: str
    pid: int | None
    standing: Standing


class Place(msgspec.Struct, frozen=True):
    """Where a broker listens, where clients are told to find it, where the other broker does, and where it
    tells how it is."""

    name: str
    listen: Address
    mqtt: Address
    peer: Address
    http: Address


def places_for(listen: list[Address]) -> list[Place]:
    """Of both brokers: the addresses asked for, and free ports where none is."""
    wanted = [*listen, *[Address(LOOPBACK, 0)] * len(NAMES)][: len(NAMES)]
    peers = [free_address() for _ in NAMES]
    tells = [free_address() for _ in NAMES]
    ports = [port or free_ports(1, host)[0] for host, port in wanted]
    return [
        Place(name, Address(host, port), Address(REACHED_AT.get(host, host), port), peer, http)
        for name, (host, _), port, peer, http in zip(NAMES, wanted, ports, peers, tells, strict=True)
    ]


def free_address() -> Address:
    return Address(LOOPBACK, *free_ports(1))


def group_text(places: list[Place], arbiter: Address | None = None) -> str:
    lines = [f'name = "{GROUP}"', f'join_wait = "{JOIN_WAIT}"']
    if arbiter is not None:
        lines.append(f'zookeeper = "{arbiter}"')
    for place in places:
        mqtt, peer = str(place.mqtt), str(place.peer)
        lines += ["", "[[member]]", f'name = "{place.name}"', f'mqtt = "{mqtt}"', f'peer = "{peer}"']
    return "\n".join(lines) + "\n"


class Pair:
    """`changed` is called when a process ends by itself or by a signal of anybody's."""

    def __init__(
        self,
        stack: contextlib.AsyncExitStack,
        places: list[Place],
        group: Path,
        contracts: Path,
        changed: Callable[[], None],
    ) -> None:
        self.places = places
        self._stack = stack
        self._group = group
        self._contracts = contracts
        self._security = group.with_name("security.toml")
        self._security.write_text(SECURITY)
        self._changed = changed
        self._children: dict[str, Child] = {}
        self._paused: set[str] = set()
        self._waits: set[asyncio.Task[None]] = set()

    @property
    def folder(self) -> Path:
        """What is in it goes with the example."""
        return self._group.parent

    @property
    def addresses(self) -> list[Address]:
        return [place.mqtt for place in self.places]

    async def start(self) -> None:
        """Both at once: each waits for the other before it serves alone."""
        await self._start(self.places)

    def down(self) -> list[str]:
        return [place.name for place in self.places if not self._children[place.name].running]

    async def restart(self) -> None:
        """Starts those that are down."""
        down = self.down()
        await self._start([place for place in self.places if place.name in down])

    async def _start(self, places: list[Place]) -> None:
        """Returns when they listen."""
        for place in places:
            self._children[place.name] = await start(
                self._stack, f"broker {place.name}", "holdfast.cli.main", "broker",
                "--group", str(self._group), "--member", place.name,
                "--listen", str(place.listen), "--contracts", str(self._contracts),
                "--data", str(self._group.with_name(f"journal-{place.name}")),
                "--http", str(place.http),
                "--security", str(self._security),
            )  # fmt: skip
            self._paused.discard(place.name)
        self._changed()
        for place in places:
            child = self._children[place.name]
            while b"mqtt://" not in await child.line():
                pass
            wait = asyncio.create_task(self._follow(child))
            self._waits.add(wait)
            wait.add_done_callback(self._waits.discard)

    async def _follow(self, child: Child) -> None:
        await child.process.wait()
        self._changed()

    def kill(self, name: str) -> int:
        """The time at which it was killed, on the monotonic clock."""
        at_ns = time.monotonic_ns()
        self._children[name].signal(signal.SIGKILL)
        return at_ns

    def pause(self, name: str) -> int:
        at_ns = time.monotonic_ns()
        self._children[name].signal(signal.SIGSTOP)
        self._paused.add(name)
        return at_ns

    def resume(self) -> list[str]:
        """Lets those go on that are paused; returns their names."""
        resumed = [name for name in sorted(self._paused) if self._children[name].running]
        for name in resumed:
            self._children[name].signal(signal.SIGCONT)
        self._paused.clear()
        return resumed

    def pid(self, name: str) -> int:
        return self._children[name].process.pid

    def seen(self, view: ViewNote | None) -> list[BrokerSeen]:
        """Both brokers, in the view that clients know."""
        return [
            BrokerSeen(
                place.name,
                str(place.mqtt),
                self.pid(place.name) if self._children[place.name].running else None,
                self._standing(place.name, view),
            )
            for place in self.places
        ]

    def _standing(self, name: str, view: ViewNote | None) -> Standing:
        if not self._children[name].running:
            return Standing.DOWN
        if name in self._paused:
            return Standing.PAUSED
        names = [place.name for place in view.places] if view is not None else []
        if name not in names:
            return Standing.JOINING
        return Standing.PRIMARY if names[0] == name else Standing.BACKUP
