"""Connections between processes: streams of bytes over paths with delay, jitter, loss and cuts.

Laws:
- in one direction of a connection bytes arrive in order, once, or not at all; across connections in any order
- a lost segment is one that comes later, by the path's time to send again
- while a path is cut nothing passes; what was written waits, and passes after the cut unless the end is gone
- a killed process's writes arrive, then the peer hears the end; of a host that fell nobody hears anything
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.sim.world import ACCEPTED, DATA, FAILED, LOST, OPENED, Host, Process, World
from holdfast.units import MS, US

if TYPE_CHECKING:
    from random import Random

CONNECT_TIMEOUT_NS = 200 * MS
TEARDOWN_NS_MAX = 300 * US

Address = tuple[str, int]


class Path:
    """One direction between two hosts."""

    __slots__ = ("_random", "cut", "delay_ns", "jitter_ns", "loss", "resend_ns", "waiting")

    def __init__(
        self, rng: Random, delay_ns: int, jitter_ns: int, loss: float = 0.0, resend_ns: int = 0
    ) -> None:
        self._random = rng.random
        self.delay_ns = delay_ns
        self.jitter_ns = jitter_ns
        self.loss = loss
        self.resend_ns = resend_ns
        self.cut = False
        self.waiting: list[Callable[[], None]] = []

    def draw_ns(self) -> int:
        """How long the next segment takes."""
        took_ns = self.delay_ns + int(self._random() * self.jitter_ns)
        if self.loss and self._random() < self.loss:
            took_ns += self.resend_ns
        return took_ns

    @property
    def longest_ns(self) -> int:
        return self.delay_ns + self.jitter_ns + (self.resend_ns if self.loss else 0)

    def heal(self) -> None:
        self.cut = False
        waiting, self.waiting = self.waiting, []
        for passes in waiting:
            passes()


class End:
    """One side of a connection, held by a process. `handle` is whatever that process keeps with it."""

    __slots__ = ("_arrives_ns", "_over", "address", "handle", "held", "open", "path", "peer", "process",
                 "reads", "unread", "vanished_ns", "world")  # fmt: skip

    def __init__(self, world: World, process: Process, path: Path, address: Address) -> None:
        self.world = world
        self.process = process
        self.path = path
        self.address = address
        self.handle: Any = None
        self.peer: End = self
        self.open = True
        self.reads = True  # or else what is written to it waits at its peer
        self.held: list[bytes | None] = []
        self.unread: list[bytes] = []
        self.vanished_ns: int | None = None
        self._arrives_ns = 0
        self._over = False
        process.host.ends[self] = None

    def send(self, data: bytes) -> None:
        if self.open and data:
            if self.world.tap is not None:
                self.world.tell(self.process.name, "wrote", (self, data))
            self._pass(data)

    def free_ns(self) -> int | None:
        """From when on something could arrive that is written now, and took no time; None: nothing passes."""
        return None if not self.open or self.path.cut or self.held else self._arrives_ns

    def send_at(self, data: bytes, due_ns: int) -> None:
        """Bytes that arrive at that very time."""
        assert due_ns >= self._arrives_ns
        self._arrives_ns = due_ns
        if self.world.tap is not None:
            self.world.tell(self.process.name, "wrote", (self, data))
        self.world.at(due_ns, self.peer._arrive, data)

    def close(self, after_ns: int = 0) -> None:
        """Everything written so far arrives, then the end does."""
        if self.open:
            self._shut()
            if after_ns:
                self.world.at(self.world.now_ns + after_ns, self._pass, None)
            else:
                self._pass(None)

    def vanish(self, last_ns: int) -> None:
        """The host is gone: nothing that would arrive after `last_ns` does, and nobody is told."""
        self._shut()
        self.vanished_ns = last_ns
        self.held.clear()

    def _shut(self) -> None:
        self.open = False
        self.unread = []
        self.process.host.ends.pop(self, None)

    def _pass(self, data: bytes | None) -> None:
        path = self.path
        if path.cut or self.held:
            if not self.held:
                path.waiting.append(self._pass_held)
            self.held.append(data)
            return
        world = self.world
        due_ns = world.now_ns + path.draw_ns()
        if due_ns < self._arrives_ns:
            due_ns = self._arrives_ns
        self._arrives_ns = due_ns
        world.at(due_ns, self.peer._arrive, data)

    def _pass_held(self) -> None:
        held, self.held = self.held, []
        for data in held:
            self._pass(data)

    def _arrive(self, data: bytes | None) -> None:
        if not self.open:
            if data is not None and self.process.host.up:
                self._answer_reset()
            return
        vanished_ns = self.peer.vanished_ns
        if vanished_ns is not None and self.world.now_ns > vanished_ns:
            return
        process = self.process
        if data is None:
            self._shut()
            if process.alive:
                process.hear(LOST, self)
        elif process.alive:
            if self.world.tap is not None:
                self.world.tell(process.name, "heard", (self, data))
            process.hear(DATA, self, data)

    def _answer_reset(self) -> None:
        """Somebody writes to an end that is no more: its host says so."""
        if not self._over and not self.path.cut:
            self._over = True
            due_ns = self.world.now_ns + self.path.draw_ns()
            self.world.at(max(due_ns, self._arrives_ns), self.peer._reset)

    def _reset(self) -> None:
        if self.open:
            self._shut()
            if self.process.alive:
                self.process.hear(LOST, self)

    def reset_both(self) -> None:
        """Something on the way ended the connection: both sides hear it, what was on the way is gone."""
        for end in (self, self.peer):
            if end.open:
                end.vanished_ns = self.world.now_ns
                end.held.clear()
        for end in (self, self.peer):
            end._reset()


class Network:
    """Who listens where, and the paths between hosts; `path_between` makes a path when it is first used."""

    __slots__ = ("_listeners", "_make", "paths", "world")

    def __init__(self, world: World, path_between: Callable[[str, str], Path]) -> None:
        self.world = world
        self.paths: dict[tuple[str, str], Path] = {}
        self._listeners: dict[Address, tuple[Host, Process | None]] = {}
        self._make = path_between

    def path(self, source: str, target: str) -> Path:
        found = self.paths.get((source, target))
        if found is None:
            found = self.paths[(source, target)] = self._make(source, target)
        return found

    def listen(self, address: Address, process: Process) -> None:
        self._listeners[address] = (process.host, process)

    def reserve(self, addresses: tuple[Address, ...], host: Host) -> None:
        """Of somebody who will listen there later."""
        for address in addresses:
            self._listeners[address] = (host, None)

    def dial(self, process: Process, address: Address, tag: object) -> None:
        """Connects; the process hears OPENED with an end or FAILED, and the tag with it."""
        host, _ = self._listeners[address]
        there = self.path(process.host.name, host.name)
        back = self.path(host.name, process.host.name)
        now_ns = self.world.now_ns
        if there.cut or back.cut:
            self.world.at(now_ns + CONNECT_TIMEOUT_NS, self._fail, process, tag)
        else:
            self.world.at(now_ns + there.draw_ns(), self._ask, process, address, tag)

    def _ask(self, process: Process, address: Address, tag: object) -> None:
        host, listener = self._listeners[address]
        now_ns = self.world.now_ns
        if not host.up:
            self.world.at(now_ns + CONNECT_TIMEOUT_NS, self._fail, process, tag)
            return
        back = self.path(host.name, process.host.name)
        if listener is None or not listener.alive:
            self.world.at(now_ns + back.draw_ns(), self._fail, process, tag)
            return
        theirs = End(self.world, listener, back, address)
        ours = End(self.world, process, self.path(process.host.name, host.name), address)
        theirs.peer, ours.peer = ours, theirs
        listener.hear(ACCEPTED, theirs, address)
        theirs._arrives_ns = opened_ns = now_ns + back.draw_ns()
        self.world.at(opened_ns, self._open, process, ours, tag)

    def _open(self, process: Process, end: End, tag: object) -> None:
        if not process.alive:
            end.close()
        elif end.open:
            end.handle = tag
            process.hear(OPENED, end, tag)
        else:  # reset while it was being opened
            process.hear(FAILED, None, tag)

    def _fail(self, process: Process, tag: object) -> None:
        if process.alive:
            process.hear(FAILED, None, tag)

    # Faults

    def kill(self, process: Process) -> None:
        """The process ends here; its host tells the peers."""
        ends = [end for end in process.host.ends if end.process is process]
        process.die()
        for end in ends:
            end.close(1 + int(self.world.rng.random() * TEARDOWN_NS_MAX))

    def crash(self, host: Host, process: Process, spared: Callable[[End], bool]) -> None:
        """The host falls: what it wrote is lost from some moment on, but the spared get it all."""
        now_ns = self.world.now_ns
        ends = list(host.ends)
        process.die()
        host.up = False
        for end in ends:
            longest_ns = end.path.longest_ns
            lasts_ns = longest_ns if spared(end) else int(self.world.rng.random() * longest_ns)
            end.vanish(now_ns + lasts_ns)

    def cut(self, source: str, target: str) -> None:
        self.path(source, target).cut = True

    def heal(self) -> None:
        for path in self.paths.values():
            if path.cut:
                path.heal()
