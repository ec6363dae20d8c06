"""A broker on real sockets: the event loop says when, the poller moves bytes, the pure broker decides.

Laws:
- one step: read what is ready, one turn of the broker, write what is ready; while messages wait, a few slices
  of them before the next turn, reading and writing around each
- a slice is all that is done from one look at the sockets to the next, or to the end of the step: reading,
  deciding, writing, what groups and journals do after it. What comes meanwhile waits for it; each is counted
- the collector of cyclic garbage never runs while there is work: its pauses would be somebody's deadline
"""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Callable
from typing import Any

from holdfast.address import Address
from holdfast.broker.broker import Broker
from holdfast.broker.histogram import Histogram
from holdfast.broker.link import Inbox
from holdfast.errors import Unavailable
from holdfast.replication.member import Member
from holdfast.runtime.heap import free_bytes, give_back, keep_large_blocks_apart
from holdfast.runtime.listening import Listening
from holdfast.runtime.poller import Poller
from holdfast.runtime.ports import open_listener

INBOX_BYTES = 32_768
ACCEPT_BACKLOG = 4096
STRANGERS_BACKLOG = 1024  # at the port for members: who waits behind more waits long
FAREWELL_S = 5.0
UNFINISHED_S = 0.05
IDLE_S = 5.0
GIVEN_BACK_EVERY_S = 30.0
FREE_BYTES_MAX = 16_777_216  # that may lie free in the heap of an idle broker
SLICES_BETWEEN_TURNS = 3


class Server:
    """Drives one broker, alone or a member of a group, on one event loop.

    `after_step` are called when a step is over: what groups and journals need besides sockets."""

    def __init__(self, broker: Broker | Member, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.loop = loop
        self.inbox = Inbox(INBOX_BYTES)
        self.poller = Poller(broker, self.inbox)
        self.slices = Histogram()  # from each look at the sockets to the next, or to the end of the step
        self.after_step: list[Callable[[], None]] = []
        self._listeners: list[socket.socket] = []
        self._again = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ns = 0
        self._worked = True
        self._give_back_at = 0.0
        gc.disable()
        loop.add_reader(self.poller.fileno(), self.step)
        keep_large_blocks_apart()
        self._tidy_when_idle()
        self._plan_alarm()

    async def listen(
        self, host: str, port: int, listening: Listening | None = None, *, instead: str = "with --listen"
    ) -> list[Address]:
        """Opens a listener, for clients unless told otherwise, and returns the addresses it has. `instead`
        says where another can be asked for."""
        listening = listening or Listening(self.broker.open)
        addresses: list[Address] = []
        try:
            found = await self.loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                addresses.append(self._listen_on(family, address, listening))
        except OSError as error:
            why, where = error.strerror or error, Address(host, port)
            raise Unavailable(f"cannot listen on {where}: {why}. Choose another {instead}.") from error
        return addresses

    def _listen_on(self, family: int, address: Any, listening: Listening) -> Address:
        listener = open_listener(
            family, address, STRANGERS_BACKLOG if listening.strangers else ACCEPT_BACKLOG
        )
        self._listeners.append(listener)
        self.poller.listen(listener.fileno(), listening)
        host, port = listener.getsockname()[:2]
        return Address(host, port)

    def step(self) -> None:
        """Reads, decides, writes; comes back at once if more waits."""
        self._worked = True
        looked_ns = time.monotonic_ns()
        self.poller.poll()
        more = self.broker.turn(time.monotonic_ns(), time.time_ns())
        self.poller.flush()
        for _ in range(SLICES_BETWEEN_TURNS):
            if not self.broker.core.jobs_waiting or self.broker.core.unanswered:
                break
            before_ns, looked_ns = looked_ns, time.monotonic_ns()
            self.slices.add(looked_ns - before_ns)
            self.poller.poll()
            more |= self.broker.deliver(time.monotonic_ns(), time.time_ns())
            self.poller.flush()
        if more or self.broker.core.board.waiting:
            self.step_soon()
        for each in self.after_step:
            each()
        self._plan_alarm()
        self.slices.add(time.monotonic_ns() - looked_ns)

    def step_soon(self) -> None:
        if not self._again:
            self._again = True
            self.loop.call_soon(self._next_step)

    def _next_step(self) -> None:
        self._again = False
        self.step()

    def _plan_alarm(self) -> None:
        """Wakes the broker at its next timer, and soon while a farewell is not over."""
        due_ns = self.broker.next_ns
        if self.poller.unfinished:
            soon_ns = time.monotonic_ns() + int(UNFINISHED_S * 1e9)
            due_ns = soon_ns if due_ns is None else min(due_ns, soon_ns)
        if self.poller.next_ns is not None:
            due_ns = self.poller.next_ns if due_ns is None else min(due_ns, self.poller.next_ns)
        if due_ns is None or (self._alarm is not None and self._alarm_ns <= due_ns):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_ns = due_ns
        self._alarm = self.loop.call_later(max(0.0, (due_ns - time.monotonic_ns()) / 1e9), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.step()

    def _tidy_when_idle(self) -> None:
        """What reference counts cannot free goes when nobody would notice the pause, and what lies free in
        the heap goes back to the system, if that is much. A member of a group is never idle: the pause could
        be longer than its silence may be."""
        if not self._worked:
            gc.collect()
            if self.loop.time() >= self._give_back_at and free_bytes() > FREE_BYTES_MAX:
                give_back()
                self._give_back_at = self.loop.time() + GIVEN_BACK_EVERY_S
        self._worked = False
        self._tidier = self.loop.call_later(IDLE_S, self._tidy_when_idle)

    async def close(self) -> None:
        """Stops accepting, hears and delivers what waits, says goodbye, and lets the farewells out."""
        self.poller.stop_listening()
        self.step()
        self.broker.drain(time.monotonic_ns())
        self.step()
        deadline = self.loop.time() + FAREWELL_S
        while self.poller.open and self.loop.time() < deadline:
            await asyncio.sleep(UNFINISHED_S / 10)
        self._tidier.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        self.loop.remove_reader(self.poller.fileno())
        for listener in self._listeners:
            listener.close()
