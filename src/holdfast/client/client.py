"""An MQTT 5 client on asyncio, of a group of brokers or of any one.

Laws:
- nothing is lost in silence: when `queue_max` messages wait for their user, nothing more is read from the
  socket, and the broker sees a slow subscriber
- a QoS 1 or 2 message is acknowledged when its user takes it, not when it is read
- every request ends: with its answer, with Refused, or with Unavailable when no broker is left to answer

A user that publishes with QoS 1 or 2, or subscribes, while its own queue is full waits for an answer behind
messages that nobody takes: after `answer_s_max` it is told so. Take messages in one task, ask in another.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from msgspec import Struct

from holdfast.client.driver import Driver
from holdfast.client.tls import ClientTls, secure
from holdfast.contract.model import Contract
from holdfast.endpoint import (
    Address,
    Answered,
    Batch,
    Connected,
    Ended,
    Endpoint,
    EndpointConfig,
    Event,
    Lost,
    Message,
    Order,
    Outgoing,
    Redirected,
    Sink,
    Ticket,
    TurnedAway,
)
from holdfast.endpoint.protocol import REFUSAL
from holdfast.endpoint.words import PORT_DEFAULT, PORT_TLS_DEFAULT, parse_address, refusal
from holdfast.errors import HoldfastError, Refused, Unavailable
from holdfast.mqtt.conventions import ViewNote
from holdfast.mqtt.packets import Properties, Subscription, Will
from holdfast.mqtt.reasons import Reason
from holdfast.pieces import slices_of

HOST_DEFAULT = "127.0.0.1"
KEEP_ALIVE_S_DEFAULT = 60
RECEIVE_MAX_DEFAULT = 1024
QUEUE_MAX_DEFAULT = 4096
SESSION_EXPIRY_S_DEFAULT = 60
CONNECT_S_MAX = 10.0
ANSWER_S_MAX = 30.0
OUTAGE_S_MAX = 30.0
BATCH_MAX = 1000
UNWRITTEN_BYTES_MAX = 256 * 1024
DISTRUSTED = (
    "A broker is there, and this client does not trust it: say who signs its certificate (--ca, or authority "
    "of ClientTls), and write its host as the certificate does."
)
TOKEN_BYTES = 4
FAILOVERS_MAX = 1000


class Failovers(Struct, frozen=True):
    """How often this client was moved to another primary, and how long each of the last took it.

    `at_ns` is when the last was over, on the monotonic clock.
    """

    count: int
    durations_ns: tuple[int, ...]
    at_ns: int | None = None


async def connect(
    *addresses: str | Address,
    client_id: str = "",
    clean_start: bool = True,
    keep_alive_s: int = KEEP_ALIVE_S_DEFAULT,
    username: str | None = None,
    password: bytes | None = None,
    will: Will | None = None,
    properties: Properties | None = None,
    session_expiry_s: int | None = None,
    receive_max: int = RECEIVE_MAX_DEFAULT,
    queue_max: int = QUEUE_MAX_DEFAULT,
    connect_s_max: float = CONNECT_S_MAX,
    answer_s_max: float = ANSWER_S_MAX,
    outage_s_max: float = OUTAGE_S_MAX,
    tls: ssl.SSLContext | None = None,
    prepare: Callable[[Client], None] | None = None,
) -> Client:
    """A connected client, for `async with await connect("host:port", "host:port"):`.

    The addresses are of the members of one group, or of brokers any of which will do; several may stand in
    one text, with commas between. With `tls`, or addresses that begin with mqtts://, every connection is in
    TLS; `ClientTls` makes a context of files. Without `client_id` one is drawn. The session outlives its
    connections for a minute, and ends with `disconnect`; with `session_expiry_s` it outlives `disconnect`
    too. After `outage_s_max` without a broker the client ends with Unavailable. `prepare` gets the client
    before the first byte is read: a session that goes on may bring messages at once.
    """
    config = EndpointConfig(
        addresses=parse_addresses(addresses),
        client_id=client_id,
        clean_start=clean_start,
        keep_alive_s=keep_alive_s,
        username=username,
        password=password,
        will=will,
        properties=properties or Properties(),
        session_expiry_s=SESSION_EXPIRY_S_DEFAULT if session_expiry_s is None else session_expiry_s,
        ends_session=session_expiry_s is None,
        receive_max=receive_max,
        queue_max=queue_max,
        answer_ns_max=int(connect_s_max * 1e9),
        outage_ns_max=int(outage_s_max * 1e9),
    )
    if tls is None and secure(addresses):
        tls = ClientTls().context()
    client = Client(config, connect_s_max=connect_s_max, answer_s_max=answer_s_max, tls=tls)
    if prepare is not None:
        prepare(client)
    try:
        async with asyncio.timeout(connect_s_max):
            await client._begin()
    except BaseException as error:
        await client.disconnect()
        if isinstance(error, TimeoutError):
            raise Unavailable(
                f"no MQTT answer from {client._names()} within {connect_s_max:g} s: is that an MQTT broker?"
            ) from None
        raise
    return client


def parse_addresses(addresses: Iterable[str | Address]) -> tuple[Address, ...]:
    """Each once, in the order given."""
    found: dict[Address, None] = {}
    for each in addresses:
        if isinstance(each, str):
            port = PORT_TLS_DEFAULT if secure([each]) else PORT_DEFAULT
            for text in each.split(","):
                found[parse_address(text.strip(), port)] = None
        else:
            found[each] = None
    return tuple(found) or ((HOST_DEFAULT, PORT_DEFAULT),)


class Client:
    """Comes from `connect`. Iterate over it to take its messages."""

    def __init__(
        self,
        config: EndpointConfig,
        *,
        connect_s_max: float,
        answer_s_max: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.session_present = False
        self._endpoint = Endpoint(
            config,
            token=secrets.token_hex(TOKEN_BYTES),
            rng=random.Random(),
            now_ns=time.monotonic_ns(),
        )
        self._driver = Driver(self._endpoint, self._happened, self._notice, connect_s_max, tls)
        self._answer_s_max = answer_s_max
        self._answers: dict[Ticket, asyncio.Future[None]] = {}
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turned_away: HoldfastError | None = None
        # Set whenever something changed that somebody may wait for: a message, room, the end.
        self._changed = asyncio.Event()
        self._error: HoldfastError | None = None
        self._ended = False
        self._when_served: Callable[[], None] | None = None
        self._moves = 0
        self._durations_ns: deque[int] = deque(maxlen=FAILOVERS_MAX)
        self._moved_ns: int | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    # -- what it knows -------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        return self._endpoint.client_id

    @property
    def address(self) -> str:
        """The broker that serves us; empty while none does."""
        home = self._endpoint.home
        return "" if home is None else f"{home[0]}:{home[1]}"

    @property
    def view(self) -> ViewNote | None:
        """The newest view we know; None at a broker that knows no groups."""
        return self._endpoint.view

    @property
    def failovers(self) -> Failovers:
        return Failovers(self._moves, tuple(self._durations_ns), self._moved_ns)

    @property
    def granted(self) -> Properties:
        """What the broker said of itself in CONNACK."""
        return self._endpoint.granted

    @property
    def publisher(self) -> str:
        """Who the stamps of this client say that it is."""
        return self._endpoint.publisher

    @property
    def sequences(self) -> Mapping[str, int]:
        """The last sequence number of every topic that was published with a stamp."""
        return self._endpoint.sequences

    @property
    def waiting(self) -> int:
        """Messages that have arrived and are not taken yet."""
        return self._endpoint.waiting

    @property
    def unsent(self) -> int:
        """QoS 0 messages that were published while no broker was there, beyond what is retained."""
        return self._endpoint.unsent

    @property
    def duplicates(self) -> int:
        """Messages that came again, or too late for their order, and were not given out."""
        return self._endpoint.duplicates

    # -- publishing ----------------------------------------------------------------------------------------

    def declare(self, *contracts: Contract) -> None:
        """The last `retention` messages of every topic under a contract are kept, to be sent again."""
        for contract in contracts:
            for topic_filter in contract.topics:
                self._endpoint.declare(topic_filter, contract)

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        stamp: bool = True,
    ) -> int:
        """Publishes one message; for QoS 1 and 2 returns the broker's reason code when it has answered."""
        message = Outgoing(topic, payload, qos, retain, properties)
        return (await self.publish_many([message], stamp=stamp))[0]

    async def publish_many(self, messages: Iterable[Outgoing], *, stamp: bool = True) -> list[int]:
        """Publishes in as few writes as possible; returns a reason code for each message, 0 for QoS 0."""
        batch = messages if isinstance(messages, list) else list(messages)
        if len(batch) <= BATCH_MAX:
            return await self._answer(batch, await self._publish(batch, stamp))
        parts = [list(part) for part in slices_of(batch, BATCH_MAX)]
        tickets = [await self._publish(part, stamp) for part in parts]
        answers = [await self._answer(part, each) for part, each in zip(parts, tickets, strict=True)]
        return [reason for reasons in answers for reason in reasons]

    def prepare(self, messages: list[Outgoing]) -> Batch:
        """Plain messages of QoS 0 that are to be posted together again and again, more cheaply so."""
        return self._endpoint.prepare(messages)

    def post(self, messages: Batch | list[Outgoing], *, created_ns: int) -> bool:
        """Publishes without waiting: for whoever keeps its own time, and does not ask what became of it.

        False if nothing was published: too much waits for the socket or for answers.
        """
        self._driver.hear_first()
        target = self._driver.target
        if target is not None and target.congested and target.unwritten_bytes > UNWRITTEN_BYTES_MAX:
            return False
        if isinstance(messages, Batch):
            self._endpoint.publish_batch(messages, wall_ns=created_ns)
        elif self._endpoint.room < len(messages):
            return False
        else:
            self._endpoint.publish_many(messages, now_ns=time.monotonic_ns(), wall_ns=created_ns)
        self._driver.flush()
        return True

    async def _publish(self, batch: list[Outgoing], stamp: bool) -> Ticket | None:
        if batch and self._endpoint.room < BATCH_MAX:
            asked = sum(message.qos > 0 for message in batch)
            await self._wait_room(asked, f"publish to {batch[0].topic}")
        self._driver.hear_first()
        try:
            ticket = self._endpoint.publish_many(
                batch, stamp=stamp, now_ns=time.monotonic_ns(), wall_ns=time.time_ns()
            )
        finally:
            self._driver.flush()
        target = self._driver.target
        if target is not None and target.congested:
            await target.writable()
        return ticket

    async def _wait_room(self, asked: int, what: str) -> None:
        async def room() -> None:
            while self._endpoint.room < asked:
                self._check_open()
                self._changed.clear()
                await self._changed.wait()

        await self._within(room(), what)

    async def _answer(self, batch: Sequence[Outgoing], ticket: Ticket | None) -> list[int]:
        if ticket is None:
            return [Reason.SUCCESS] * len(batch)
        await self._done(ticket)
        if ticket.refused_at is not None:
            topic, reason = batch[ticket.refused_at].topic, ticket.reasons[ticket.refused_at]
            refusals = sum(each >= REFUSAL for each in ticket.reasons)
            many = f" ({refusals} of {len(batch)} messages)" if len(batch) > 1 else ""
            raise refusal(f"publish to {topic}{many}", reason, ticket.words)
        return ticket.reasons

    # -- subscribing ---------------------------------------------------------------------------------------

    async def subscribe(
        self,
        *subscriptions: str | Subscription,
        qos: int = 0,
        deadline_ns: int | None = None,
        loss_tolerance: int | str | None = None,
        depth: int | None = None,
        properties: Properties | None = None,
    ) -> list[int]:
        """Subscribes to all or raises Refused; returns the QoS that was granted to each.

        `deadline_ns` and `loss_tolerance` (a number or "unlimited") are required of every topic that matches;
        `depth` is how many members of the group must know of it before they answer.
        """
        filters = [each if isinstance(each, str) else each.filter for each in subscriptions]
        ticket = self._endpoint.subscribe(
            subscriptions,
            qos=qos,
            deadline_ns=deadline_ns,
            loss_tolerance=loss_tolerance,
            depth=depth,
            properties=properties,
            now_ns=time.monotonic_ns(),
        )
        return await self._granted_or_refused(ticket, filters, "subscribe to")

    async def unsubscribe(self, *filters: str) -> list[int]:
        ticket = self._endpoint.unsubscribe(filters, now_ns=time.monotonic_ns())
        return await self._granted_or_refused(ticket, filters, "unsubscribe from")

    async def _granted_or_refused(self, ticket: Ticket, filters: Sequence[str], what: str) -> list[int]:
        self._driver.flush()
        await self._done(ticket)
        refused = [place for place, reason in enumerate(ticket.reasons) if reason >= REFUSAL]
        if refused:
            names = ", ".join(filters[place] for place in refused)
            raise refusal(f"{what} {names}", ticket.reasons[refused[0]], ticket.words)
        return ticket.reasons

    # -- messages ------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message; the end after `disconnect`, the error when no broker is left."""
        while True:
            message = self._endpoint.take_message()
            if message is not None:
                if message.qos:
                    self._driver.flush_soon()
                if self._driver.reading_paused:
                    self._driver.read_on()
                return message
            await self._more()

    async def batches(self) -> AsyncIterator[list[Message]]:
        """The messages in lists, all that have come each time: cheaper than one by one."""
        while True:
            messages = self._endpoint.take_messages()
            if messages:
                self._driver.flush_soon()
                if self._driver.reading_paused:
                    self._driver.read_on()
                yield messages
                continue
            try:
                await self._more()
            except StopAsyncIteration:
                return

    def pour(self, sink: Sink, order: Order | None = None) -> None:
        """From now on ordinary messages go to the sink while they are read, duplicates too, and are
        acknowledged at once; only the others are still to be taken. With a sink that holds, all go there,
        and are acknowledged when they are released. `order` is how far every publisher and topic had come,
        from whoever keeps that longer than a client."""
        self._endpoint.pour(sink, order)

    @property
    def poured(self) -> int:
        """How many messages the sink was given."""
        return self._endpoint.poured

    def release(self, count: int) -> None:
        """The first so many messages of a sink that holds are taken: they are acknowledged, and if reading
        had stopped and the sink has room, it goes on."""
        self._endpoint.release(count)
        self._driver.flush()
        if self._driver.reading_paused:
            self._driver.read_on()

    @property
    def unwritten_bytes(self) -> int:
        """What was published and waits for the socket."""
        target = self._driver.target
        return 0 if target is None else target.unwritten_bytes

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        if self._ended:
            raise StopAsyncIteration
        self._changed.clear()
        await self._changed.wait()

    # -- the connections -----------------------------------------------------------------------------------

    async def disconnect(self, reason: int = Reason.NORMAL_DISCONNECTION) -> None:
        """Says goodbye and closes; messages that were not taken stay takeable, unacknowledged."""
        self._endpoint.close(time.monotonic_ns(), reason)
        self._driver.perform()
        await self._driver.closed()

    def when_served(self, call: Callable[[], None]) -> None:
        """Calls this whenever a broker begins to serve us again: what it was told before it may not know."""
        self._when_served = call

    async def _begin(self) -> None:
        self._driver.perform()
        await self._connected

    def _notice(self) -> None:
        """Something came or went; the first attempt is over when nobody is left to answer it."""
        self._changed.set()
        if not self._connected.done() and not self._driver.busy:
            self._connected.set_exception(self._turned_away or self._unreachable())

    def _unreachable(self) -> Unavailable:
        whys = dict.fromkeys(self._driver.failures.values())
        distrusted = any(why.startswith("TLS:") for why in whys)
        remedy = DISTRUSTED if distrusted else "Start one with `holdfast broker`, or say where it is."
        return Unavailable(f"cannot reach a broker at {self._names()}: {'; '.join(whys)}. {remedy}")

    def _names(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self._endpoint.config.addresses)

    def _happened(self, event: Event) -> None:
        match event:
            case Answered():
                future = self._answers.pop(event.ticket, None)
                if future is not None and not future.done():
                    future.set_result(None)
            case Connected():
                if not self._connected.done():
                    self.session_present = event.session_present
                    self._connected.set_result(None)
                elif self._when_served is not None:
                    self._when_served()
            case Redirected():
                self._moves += 1
                self._durations_ns.append(event.ns)
                self._moved_ns = time.monotonic_ns()
            case Lost():
                self._turned_away = self._turned_away or Unavailable(event.why)
            case TurnedAway():
                self._turned_away = Refused(event.reason, event.text)
            case Ended():
                self._end(event.error)
        self._changed.set()

    def _end(self, error: HoldfastError | None) -> None:
        """Everybody who waits is told."""
        self._ended = True
        self._error = error
        reason = error or Unavailable("the connection was closed by its user")
        for future in (self._connected, *self._answers.values()):
            if not future.done():
                future.set_exception(reason)
                # Whoever no longer waits for it is not told twice.
                future.exception()
        self._answers.clear()

    def _check_open(self) -> None:
        if self._ended:
            raise self._error or Unavailable("the connection was closed by its user")

    async def _done(self, ticket: Ticket) -> None:
        if ticket.done:
            return
        self._check_open()
        future = self._answers[ticket] = asyncio.get_running_loop().create_future()
        await self._within(future, ticket.what)

    async def _within(self, answer: Awaitable[None], what: str) -> None:
        try:
            async with asyncio.timeout(self._answer_s_max):
                await answer
        except TimeoutError:
            full = "; our queue of messages is full, take some" if self._driver.reading_paused else ""
            raise Unavailable(
                f"no answer from {self.address or self._names()} within {self._answer_s_max:g} s to: "
                f"{what}{full}"
            ) from None
