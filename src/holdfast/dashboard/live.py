"""Asks brokers and pipeline once a look, for all browsers together, and tells the pages that there is news.

Laws:
- whoever does not answer delays nobody: a look ends after a bound, and the next begins on time
- a broker is silent only if this process ran while it waited: what that did not get of the processor is told
  as its own delay
- what is shown is drawn once for all browsers, and not at all while nobody looks
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import httpx

from holdfast.dashboard.board import Board
from holdfast.dashboard.city import City
from holdfast.dashboard.history import LOOK_S
from holdfast.dashboard.picture import ContractRow, Picture
from holdfast.dashboard.render import front
from holdfast.status import decode_status
from holdfast.units import S

T = TypeVar("T")

ANSWER_S_MAX = 0.8
BEAT_S = 0.02
BEATS_MAX = round(ANSWER_S_MAX / BEAT_S)
LOOK_S_MAX = 8.0  # however late this process is
PATH = "/status"


class Live:
    """`news`, `subscriber` and `pieces` are what pages show; `watch` to be told of each look."""

    def __init__(
        self,
        brokers: Sequence[str],
        pipeline: str | None,
        city: City | None,
        token: str = "",
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        """`token` is said to brokers and pipeline, and `trusted` knows who signs their certificates."""
        self.board = Board(brokers, pipeline, time.time_ns())
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._verify = True if trusted is None else trusted
        self.city = city
        self.news = self.subscriber = ""
        self._urls = [*brokers, *([pipeline] if pipeline is not None else [])]
        self._watching: set[Callable[[], None]] = set()
        self._picture: Picture | None = None
        self._pieces: dict[str, str] = {}

    def watch(self, call: Callable[[], None]) -> None:
        self._watching.add(call)

    def unwatch(self, call: Callable[[], None]) -> None:
        self._watching.discard(call)

    @property
    def picture(self) -> Picture:
        if self._picture is None:
            self._picture = self.board.picture(time.time_ns())
        return self._picture

    @property
    def pieces(self) -> dict[str, str]:
        if not self._pieces:
            self._pieces = front(
                self.picture, self.city.picture(time.time_ns()) if self.city is not None else None
            )
        return self._pieces

    def row(self, name: str) -> ContractRow | None:
        return next((row for row in self.picture.contracts if row.name == name), None)

    def changed(self) -> None:
        """Draws anew for whoever looks."""
        self._picture, self._pieces = None, {}
        for call in list(self._watching):
            call()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with httpx.AsyncClient(
            timeout=LOOK_S_MAX, headers=self._headers, trust_env=False, verify=self._verify
        ) as client:
            loop = asyncio.get_running_loop()
            next_s = loop.time()
            while True:
                delays_s = await asyncio.gather(*(self._ask(client, url) for url in self._urls))
                self.board.close(round(max(delays_s, default=0.0) * S))
                self.changed()
                next_s = max(next_s + LOOK_S, loop.time())
                await asyncio.sleep(next_s - loop.time())

    async def _ask(self, client: httpx.AsyncClient, url: str) -> float:
        """How long this process was kept from waiting for the answer."""
        asking = asyncio.ensure_future(client.get(url.rstrip("/") + PATH))
        delay_s, heard = await waited(asking)
        if heard or delay_s < ANSWER_S_MAX:
            self._take(url, asking)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return delay_s

    def _take(self, url: str, asking: asyncio.Future[httpx.Response]) -> None:
        try:
            if not asking.done():
                raise TimeoutError
            answer = asking.result()
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                raise ValueError("it wants another token, see --token")
            if answer.status_code != httpx.codes.OK:
                raise ValueError(f"it answers {answer.status_code}")
            self.board.heard(url, decode_status(answer.content), time.time_ns())
        except (TimeoutError, httpx.TimeoutException):
            self.board.failed(url, f"no answer within {ANSWER_S_MAX:g} s", time.time_ns())
        except httpx.ConnectError:
            self.board.failed(url, f"nobody listens at {url}", time.time_ns())
        except (httpx.HTTPError, ValueError) as error:
            self.board.failed(url, str(error) or type(error).__name__, time.time_ns())


async def waited(work: asyncio.Future[T]) -> tuple[float, bool]:
    """Waits so many beats for it, however long they take. Says how late they were, and whether it is there"""
    loop = asyncio.get_running_loop()
    begin_s, beats = loop.time(), 0
    while not work.done() and beats < BEATS_MAX and loop.time() - begin_s < LOOK_S_MAX:
        beats += 1
        await asyncio.wait({work}, timeout=BEAT_S)
    return max(0.0, loop.time() - begin_s - beats * BEAT_S), work.done()
