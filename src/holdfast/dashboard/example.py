"""What only the example has: buttons that act, a city, and words from the command that started it all.

The dashboard is its child: what a person asks for goes out as a line on stdout, and what there is to say
comes in as lines on stdin. So nothing but a button of the page, pressed by its person, can kill a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

import msgspec

from holdfast.client import connect
from holdfast.dashboard.city import City
from holdfast.dashboard.live import Live
from holdfast.dashboard.spec import Action, Asked, Ground, Said
from holdfast.dashboard.spec import Example as Spec
from holdfast.errors import HoldfastError

OUTAGE_S_MAX = 3600.0
SAYING_BYTES_MAX = 2**20


class Example:
    def __init__(self, spec: Spec, live: Live) -> None:
        self._spec = spec
        self._live = live

    def ask(self, action: Action) -> None:
        print(msgspec.json.encode(Asked(action)).decode(), flush=True)

    async def listen(self) -> None:
        """Until whoever started this is gone."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=SAYING_BYTES_MAX)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            said = msgspec.json.decode(line, type=Said)
            before = (self._live.news, self._live.board.pipeline_note)
            self._live.subscriber = said.subscriber  # which changes all the time: the next look shows it
            if before != (said.news, said.pipeline):
                self._live.news, self._live.board.pipeline_note = said.news, said.pipeline
                self._live.changed()

    async def follow(self, city: City, ground: Ground) -> None:
        """Hears what the map shows, until it is cancelled; if the brokers say no, the map stays as it is."""
        with contextlib.suppress(HoldfastError):
            async with await connect(
                *self._spec.addresses, client_id="dashboard", outage_s_max=OUTAGE_S_MAX
            ) as client:
                await client.subscribe(ground.people, ground.emergencies, *self._spec.told, qos=1)
                async for message in client:
                    city.heard(message.topic, message.payload, time.time_ns())
