"""Carries what channels found to the brokers, and the brokers' subscriptions to the channels.

Laws:
- the executions of a channel go out in their order, and the next one when every message of the one before is
  acknowledged; only then its mark moves
- whatever is sent again says the same stamp: the channel as its publisher, the execution as its number. So a
  broker and our subscribers know it again, wherever this process or a broker was killed
- brokers that are away are waited for without end; what was found meanwhile waits on disk
- one result that no broker will ever take, or that cannot be read any more, is told and counted, and does not
  hold up those behind it
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.client.client import Client, connect
from holdfast.client.login import NO_LOGIN, Login
from holdfast.endpoint import Outgoing
from holdfast.endpoint.backoff import Backoff
from holdfast.errors import HoldfastError, Refused, Unavailable
from holdfast.mqtt.channels import Offered, channel_topic, format_catalog
from holdfast.mqtt.conventions import (
    CATALOG_TOPIC,
    GAPS_MARK,
    LAST_MAX,
    LAST_TOPICS,
    SERVES_CHANNELS,
    SERVES_PROPERTY,
    SUBSCRIPTIONS_TOPIC,
    format_stamp,
)
from holdfast.mqtt.packets import Properties
from holdfast.mqtt.reasons import Reason
from holdfast.pipeline.results import Damaged, Execution, Results
from holdfast.units import MS, S

CLIENT_ID = "holdfast-channels"
BACKOFF_NS_MIN = 50 * MS
BACKOFF_NS_MAX = 5 * S
# Of one channel: messages that are handed to the client together, and how many such parts are under way.
PART_MESSAGES = 500
PARTS_MAX = 4
CHANNELS_SENDING_MAX = 8
WANTED_MAX = 10_000
# What a broker will say of the same message whenever it comes.
NEVER = (
    Reason.PACKET_TOO_LARGE, Reason.TOPIC_NAME_INVALID, Reason.PAYLOAD_FORMAT_INVALID,
)  # fmt: skip

Tell = Callable[[str, dict[str, object]], None]


class Wanted(NamedTuple):
    """Somebody asks for the last results of a subscription, to be published under that token."""

    token: str
    channel: str
    subscription: str
    last: int


class Listening(Protocol):
    """Who keeps what brokers tell of subscriptions: Subscribers."""

    def told(self, payload: bytes) -> bool:
        """Takes a message; False: the catalog must be published, to hear all again."""

    def take_wanted(self) -> list[tuple[str, str, str, int]]:
        """Requests for last results that have come."""


class Counts:
    """What was done since the start, for the metrics."""

    def __init__(self) -> None:
        self.notifications = 0
        self.executions = 0
        self.damaged = 0
        self.refused = 0
        self.last_served = 0
        self.last_dropped = 0
        self.outages = 0


def _first(error: BaseException) -> BaseException:
    """Of what several tasks raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Delivery:
    """Runs in one event loop; `offer` and what `results` tells may come from any thread."""

    def __init__(
        self,
        brokers: str,
        results: Results,
        subscribers: Listening,
        tell: Tell,
        login: Login = NO_LOGIN,
    ) -> None:
        self.counts = Counts()
        self._brokers = brokers
        self._login = login
        self._results = results
        self._subscribers = subscribers
        self._tell = tell
        self._catalog: tuple[Offered, ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._catalog_due = asyncio.Event()
        self._found: dict[str, None] = {}
        self._found_some = asyncio.Event()
        self._wanted: deque[Wanted] = deque()
        self._wanted_some = asyncio.Event()
        self._backoff = Backoff(random.Random(), BACKOFF_NS_MIN, BACKOFF_NS_MAX)

    @property
    def connected(self) -> bool:
        """Whether a broker serves us now."""
        client = self._client
        return client is not None and bool(client.address)

    def offer(self, channels: Sequence[Offered]) -> None:
        """These are the channels from now on."""
        self._catalog = tuple(channels)
        self._from_outside(self._catalog_due.set)

    def _from_outside(self, call: Callable[..., None], *arguments: str) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(call, *arguments)

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        self._results.listen(lambda channel: self._from_outside(self._find, channel))
        for channel in self._results.channels:
            self._find(channel)
        while True:
            try:
                await self._serve_while_connected()
            except* HoldfastError as errors:
                self.counts.outages += 1
                self._tell("not delivering", {"brokers": self._brokers, "why": _first(errors)})
            await asyncio.sleep(self._backoff.failed() / S)

    def _find(self, channel: str) -> None:
        self._found[channel] = None
        self._found_some.set()

    # -- one connection ------------------------------------------------------------------------------------

    async def _serve_while_connected(self) -> None:
        client = await connect(
            self._brokers,
            client_id=CLIENT_ID,
            username=self._login.username,
            password=self._login.password(),
            tls=self._login.context(),
            properties=Properties(user=[(SERVES_PROPERTY, SERVES_CHANNELS)]),
        )
        self._client = client
        try:
            self._wanted.clear()  # Tokens are of the broker that told them.
            async with asyncio.TaskGroup() as tasks:
                client.when_served(self._catalog_due.set)
                self._catalog_due.set()
                tasks.create_task(self._announce(client))
                tasks.create_task(self._hear(client))
                tasks.create_task(self._send_found(client))
                tasks.create_task(self._send_wanted(client))
                await client.subscribe(SUBSCRIPTIONS_TOPIC, qos=1)
                self._backoff.succeeded()
                self._tell("connected", {"address": client.address})
        finally:
            self._client = None
            await client.disconnect()

    async def _announce(self, client: Client) -> None:
        """Publishes the catalog when it changed, when a broker may not know it, and to hear all again."""
        while True:
            await self._catalog_due.wait()
            self._catalog_due.clear()
            await client.publish(CATALOG_TOPIC, format_catalog(self._catalog), qos=1, stamp=False)

    async def _hear(self, client: Client) -> None:
        async for messages in client.batches():
            for message in messages:
                if message.topic != SUBSCRIPTIONS_TOPIC:
                    continue
                if not self._subscribers.told(message.payload):
                    self._catalog_due.set()
                for wanted in self._subscribers.take_wanted():
                    self._want(Wanted(*wanted))
        raise Unavailable("the connection was closed")

    # -- executions ----------------------------------------------------------------------------------------

    async def _send_found(self, client: Client) -> None:
        """One task for each channel that has something, so many at a time."""
        slots = asyncio.Semaphore(CHANNELS_SENDING_MAX)
        sending: set[str] = set()
        for channel in self._results.channels:
            self._find(channel)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._found_some.wait()
                self._found_some.clear()
                for channel in [each for each in self._found if each not in sending]:
                    del self._found[channel]
                    sending.add(channel)
                    tasks.create_task(self._send_channel(client, channel, sending, slots))

    async def _send_channel(
        self, client: Client, channel: str, sending: set[str], slots: asyncio.Semaphore
    ) -> None:
        async with slots:
            while waiting := self._results.undelivered(channel):
                for execution in waiting:
                    await self._send(client, execution)
                    await asyncio.to_thread(self._results.delivered, channel, execution.number)
                    self.counts.executions += 1
        sending.discard(channel)
        if channel in self._found:
            self._found_some.set()

    async def _send(self, client: Client, execution: Execution) -> None:
        """Every message of an execution is at the brokers when this returns."""
        try:
            found = await asyncio.to_thread(self._results.read, execution)
        except Damaged as error:
            self.counts.damaged += 1
            self._tell("results damaged", {"channel": execution.channel, "why": error})
            return
        properties = self._stamped(execution.channel, execution.number, execution.finished_ns)
        under_way: deque[asyncio.Task[None]] = deque()
        try:
            for start in range(0, found.num_rows, PART_MESSAGES):
                part = found.slice(start, PART_MESSAGES)
                messages = [
                    Outgoing(channel_topic(execution.channel, subscription), payload, 1, False, properties)
                    for subscription, payload in zip(
                        part.column(0).to_pylist(), part.column(1).to_pylist(), strict=True
                    )
                ]
                while len(under_way) >= PARTS_MAX:
                    await under_way.popleft()
                under_way.append(asyncio.create_task(self._publish(client, messages)))
            while under_way:
                await under_way.popleft()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _publish(self, client: Client, messages: list[Outgoing]) -> None:
        try:
            await client.publish_many(messages, stamp=False)
        except (Refused, ValueError):
            for message in messages:
                await self._publish_alone(client, message)
        else:
            self.counts.notifications += len(messages)

    async def _publish_alone(self, client: Client, message: Outgoing) -> None:
        """Of messages that were not all taken: what will never be taken is told, the rest must be taken."""
        try:
            await client.publish_many([message], stamp=False)
        except ValueError as error:
            self._refused(message, error)
        except Refused as error:
            if error.reason not in NEVER:
                raise
            self._refused(message, error)
        else:
            self.counts.notifications += 1

    def _refused(self, message: Outgoing, why: Exception) -> None:
        self.counts.refused += 1
        self._tell("notification refused", {"topic": message.topic, "why": why})

    def _stamped(self, channel: str, number: int, created_ns: int) -> Properties:
        publisher = f"{GAPS_MARK}{channel}.{self._results.epoch}"
        return Properties(user=[format_stamp(created_ns, number, publisher)])

    # -- the last results ----------------------------------------------------------------------------------

    def _want(self, wanted: Wanted) -> None:
        if len(self._wanted) >= WANTED_MAX:
            self.counts.last_dropped += 1
            self._tell("last results dropped", {"why": f"{WANTED_MAX} requests wait already"})
            return
        self._wanted.append(wanted)
        self._wanted_some.set()

    async def _send_wanted(self, client: Client) -> None:
        while True:
            while self._wanted:
                await self._send_last(client, self._wanted[0])
                self._wanted.popleft()
            self._wanted_some.clear()
            await self._wanted_some.wait()

    async def _send_last(self, client: Client, wanted: Wanted) -> None:
        channel, last = wanted.channel, min(max(wanted.last, 0), LAST_MAX)
        try:
            pulled = await asyncio.to_thread(self._results.pull, channel, wanted.subscription, 0, last)
        except Damaged as error:
            self.counts.damaged += 1
            self._tell("results damaged", {"channel": channel, "why": error})
            return
        messages = [
            Outgoing(f"{LAST_TOPICS}{wanted.token}", payload, 1, False, self._stamped(channel, number, 0))
            for number, payload in pulled
        ]
        if messages:
            try:
                await client.publish_many(messages, stamp=False)
            except Refused as error:
                # Who asked may have gone; it asks again when it comes back.
                self._tell("last results refused", {"channel": channel, "why": error})
                return
        self.counts.last_served += 1
