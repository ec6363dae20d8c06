"""Performs what an endpoint decides: dials, writes, hangs up, and wakes it when its time has come.

Laws:
- what an endpoint wants written is written in the same turn of the loop in which it was decided
- an address has one link at most; what an older one still says is not heard
- what has reached us from the primary is heard before the word of any other member
- what has reached us is heard before anything is published or judged: a program that stood still would else
  write to a primary that is none any more, and let go of what was lost with it
- with TLS, an address is connected when its broker has shown the certificate that it must have; a connection
  to where we were before goes on with that session, which saves the broker a signature
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable

from holdfast.broker.link import Inbox
from holdfast.client.link import Link
from holdfast.endpoint import Address, Endpoint, Event
from holdfast.runtime.layers import Layers
from holdfast.units import MS

READ_BYTES = 65_536
HEARD_NS_MAX = 5 * MS  # that what has reached us may lie unheard when something is published


class Driver:
    """Runs `endpoint`; `tell` gets its events, `changed` is called whenever messages may have come."""

    def __init__(
        self,
        endpoint: Endpoint,
        tell: Callable[[Event], None],
        changed: Callable[[], None],
        dial_s_max: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.endpoint = endpoint
        # Why the last attempt at an address failed, while it has no connection.
        self.failures: dict[Address, str] = {}
        self._tell = tell
        self._changed = changed
        self._dial_s_max = dial_s_max
        self._tls = tls
        self._inbox = None if tls is None else Inbox(READ_BYTES)
        self._tls_sessions: dict[Address, ssl.SSLSession | None] = {}
        self._links: dict[Address, Link] = {}
        self._closing: set[Link] = set()
        self._dials: dict[Address, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._flush_planned = False
        self._heard_ns = 0
        # Whether some link is not read because messages wait for their user.
        self.reading_paused = False

    @property
    def busy(self) -> bool:
        """Whether some connection is there or on its way."""
        return bool(self._links or self._dials)

    @property
    def target(self) -> Link | None:
        """The connection that is written to."""
        address = self.endpoint.target
        return None if address is None else self._links.get(address)

    # -- what the endpoint wants ---------------------------------------------------------------------------

    def perform(self) -> None:
        endpoint = self.endpoint
        self.flush()
        for address in endpoint.take_hangups():
            self._hang_up(address)
        for address in endpoint.take_dials():
            self._dials[address] = asyncio.ensure_future(self._dial(address))
        for event in endpoint.take_events():
            self._tell(event)
        self._arm()

    def flush(self) -> None:
        for address, data in self.endpoint.take_output():
            link = self._links.get(address)
            if link is not None:
                link.write(data)

    def flush_soon(self) -> None:
        """Acknowledgements of messages that are taken together leave together."""
        if not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_planned = False
        self.flush()

    def read_on(self) -> None:
        """Messages were taken: what was paused is read again."""
        if self.endpoint.drained:
            self.reading_paused = False
            for link in self._links.values():
                link.start_reading()
            self.perform()

    def _hang_up(self, address: Address) -> None:
        dial = self._dials.pop(address, None)
        if dial is not None:
            dial.cancel()
        link = self._links.pop(address, None)
        if link is not None:
            self._let_go(link)
            link.close()

    def _layers(self, address: Address) -> Layers | None:
        if self._tls is None:
            return None
        session = self._tls_sessions.get(address)
        return Layers(self._tls, server_side=False, server_hostname=address[0], session=session)

    def _let_go(self, link: Link) -> None:
        if link.layers is not None:
            self._tls_sessions[link.address] = link.layers.session
        self._closing = {each for each in self._closing if not each.over} | {link}

    def _arm(self) -> None:
        next_ns = self.endpoint.next_ns
        if self._timer is not None:
            if next_ns == self._timer_ns:
                return
            self._timer.cancel()
            self._timer = None
        if next_ns is not None:
            wait_s = max(0, next_ns - time.monotonic_ns()) / 1e9
            self._timer_ns = next_ns
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.hear()
        self.endpoint.turn(time.monotonic_ns(), time.time_ns())
        self.perform()

    # -- what happens --------------------------------------------------------------------------------------

    async def _dial(self, address: Address) -> None:
        link = Link(address, self._read, self._lost, self._layers(address), self._inbox)
        try:
            async with asyncio.timeout(self._dial_s_max):
                await asyncio.get_running_loop().create_connection(lambda: link, *address)
                await link.greeted()
        except TimeoutError:
            link.close()
            self._failed(address, f"no answer within {self._dial_s_max:g} s")
        except OSError as error:
            number = error.errno or 0
            self._failed(address, os.strerror(number) if number > 0 else error.strerror or str(error))
        except asyncio.CancelledError:
            link.close()
            raise
        else:
            del self._dials[address]
            self._links[address] = link
            self.failures.pop(address, None)
            self.endpoint.opened(address, time.monotonic_ns())
            self.perform()

    def _failed(self, address: Address, why: str) -> None:
        del self._dials[address]
        self.failures[address] = why
        self.endpoint.failed(address, time.monotonic_ns())
        self.perform()
        self._changed()

    def hear_first(self) -> None:
        """Before something is published."""
        if time.monotonic_ns() - self._heard_ns > HEARD_NS_MAX:
            self.hear()

    def hear(self) -> None:
        """What has reached us, also that a connection is over, without waiting for the loop to say so."""
        self._heard_ns = time.monotonic_ns()
        target = self.target
        for link in sorted(self._links.values(), key=lambda link: link is not target):
            if not link.reading_paused:
                data = link.read_now()
                if data:
                    self._read(link, data)
                link.look_at_end()

    def _read(self, link: Link, data: bytes) -> None:
        if self._links.get(link.address) is not link:
            return
        endpoint = self.endpoint
        target = self.target
        if target is not None and target is not link:
            self._read_first(target)
        endpoint.received(link.address, data, time.monotonic_ns(), time.time_ns())
        if endpoint.full and link.address == endpoint.target:
            self.reading_paused = True
            link.stop_reading()
        self.perform()
        self._changed()

    def _read_first(self, target: Link) -> None:
        """What the primary has sent is heard before what another member says of it."""
        data = target.read_now()
        if data:
            self.endpoint.received(target.address, data, time.monotonic_ns(), time.time_ns())

    def _lost(self, link: Link, why: str) -> None:
        if self._links.get(link.address) is not link:
            return
        del self._links[link.address]
        self._let_go(link)
        self.endpoint.lost(link.address, time.monotonic_ns(), why)
        self.perform()
        self._changed()

    async def closed(self) -> None:
        """Returns when every socket is closed."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._dials.values():
            task.cancel()
        await asyncio.gather(*self._dials.values(), return_exceptions=True)
        for link in [*self._links.values(), *self._closing]:
            link.close()
            await link.closed()
        self._links.clear()
        self._closing.clear()
