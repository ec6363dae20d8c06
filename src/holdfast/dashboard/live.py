"""Asks brokers and pipeline once a look, for all browsers together, and tells the pages that there is news.

Laws:
- whoever does not answer delays nobody: a look ends after a bound, and the next begins on time
- what is shown is drawn once for all browsers, and not at all while nobody looks
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence

import httpx

from holdfast.dashboard.board import Board
from holdfast.dashboard.city import City
from holdfast.dashboard.history import LOOK_S
from holdfast.dashboard.picture import ContractRow, Picture
from holdfast.dashboard.render import front
from holdfast.status import decode_status

ANSWER_S_MAX = 0.8
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
            timeout=ANSWER_S_MAX, headers=self._headers, trust_env=False, verify=self._verify
        ) as client:
            loop = asyncio.get_running_loop()
            next_s = loop.time()
            while True:
                await asyncio.gather(*(self._ask(client, url) for url in self._urls))
                self.board.close()
                self.changed()
                next_s = max(next_s + LOOK_S, loop.time())
                await asyncio.sleep(next_s - loop.time())

    async def _ask(self, client: httpx.AsyncClient, url: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                answer = await client.get(url.rstrip("/") + PATH)
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
