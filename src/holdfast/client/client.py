"""An MQTT 5 client on asyncio.

Laws:
- nothing is lost in silence: when `queue_max` messages wait for their user, nothing more is read from the
  socket, and the broker sees a slow subscriber
- a QoS 1 or 2 message is acknowledged when its user takes it, not when it is read
- every request ends: with its answer, with Refused, or with Unavailable when the connection is lost

A user that publishes with QoS 1 or 2, or subscribes, while its own queue is full waits for an answer behind
messages that nobody takes: after `answer_s_max` it is told so. Take messages in one task, ask in another.
"""

from __future__ import annotations

import asyncio
import copy
import os
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.client.link import Link
from holdfast.client.messages import Message, Outgoing
from holdfast.client.protocol import REFUSAL, Answer, Incoming, Protocol, State
from holdfast.errors import HoldfastError, PeerError, Refused, Unavailable
from holdfast.mqtt.conventions import (
    DEADLINE_PROPERTY,
    LOSS_PROPERTY,
    find_stamp,
    format_stamp,
    publisher_name,
)
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingresp,
    Properties,
    Publish,
    Suback,
    Subscription,
    Unsuback,
    Will,
)
from holdfast.mqtt.reasons import Reason
from holdfast.units import format_duration

HOST_DEFAULT = "127.0.0.1"
PORT_DEFAULT = 1883
KEEP_ALIVE_S_DEFAULT = 60
RECEIVE_MAX_DEFAULT = 1024
QUEUE_MAX_DEFAULT = 4096
CONNECT_S_MAX = 10.0
ANSWER_S_MAX = 30.0
WRITE_BYTES_MAX = 65_536
INCARNATION_BYTES = 4

T = TypeVar("T")
_NO_PROPERTIES = Properties()


async def connect(
    host: str = HOST_DEFAULT,
    port: int = PORT_DEFAULT,
    *,
    client_id: str = "",
    clean_start: bool = True,
    keep_alive_s: int = KEEP_ALIVE_S_DEFAULT,
    username: str | None = None,
    password: bytes | None = None,
    will: Will | None = None,
    properties: Properties | None = None,
    receive_max: int = RECEIVE_MAX_DEFAULT,
    queue_max: int = QUEUE_MAX_DEFAULT,
    connect_s_max: float = CONNECT_S_MAX,
    answer_s_max: float = ANSWER_S_MAX,
) -> Client:
    """A connected client, for `async with await connect():`. Without `client_id` the broker chooses one."""
    properties = properties or Properties()
    properties.receive_max = receive_max
    packet = Connect(
        client_id=client_id,
        clean_start=clean_start,
        keep_alive=keep_alive_s,
        username=username,
        password=password,
        will=will,
        properties=properties,
    )
    client = Client(f"{host}:{port}", packet, queue_max=queue_max, answer_s_max=answer_s_max)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(connect_s_max):
            await loop.create_connection(lambda: client._link, host, port)
            await client._introduce(packet)
    except TimeoutError:
        raise Unavailable(
            f"no MQTT answer from {host}:{port} within {connect_s_max:g} s: is that an MQTT broker?"
        ) from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise Unavailable(
            f"cannot reach a broker at {host}:{port}: {why}. "
            "Start one with `holdfast broker`, or say where it is."
        ) from error
    finally:
        if client._protocol.state is not State.CONNECTED:
            client._abort()
    return client


class Client:
    """One connection; comes from `connect`. Iterate over it to take its messages."""

    def __init__(self, address: str, packet: Connect, *, queue_max: int, answer_s_max: float) -> None:
        self.address = address
        self.client_id = packet.client_id
        self.session_present = False
        self._protocol = Protocol()
        self._link = Link(self._read, self._lost)
        self._flush_planned = False
        self._queue_max = queue_max
        self._answer_s_max = answer_s_max
        self._keep_alive_s = packet.keep_alive
        self._incarnation = secrets.token_hex(INCARNATION_BYTES)
        self._sequences: dict[str, int] = {}
        self._arrived: deque[tuple[Publish, int]] = deque()
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._connack: asyncio.Future[Connack] = asyncio.get_running_loop().create_future()
        # Set whenever something changed that somebody may wait for: a message, quota, the end.
        self._changed = asyncio.Event()
        self._error: HoldfastError | None = None
        self._ended = False
        self._read_ns = 0
        self._pinger: asyncio.TimerHandle | None = None
        self._ping_unanswered = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    @property
    def granted(self) -> Properties:
        """What the broker said of itself in CONNACK."""
        return self._protocol.granted

    @property
    def publisher(self) -> str:
        """Who the stamps of this client say that it is."""
        return publisher_name(self.client_id, self._incarnation)

    @property
    def sequences(self) -> Mapping[str, int]:
        """The last sequence number of every topic that was published with a stamp."""
        return self._sequences

    @property
    def waiting(self) -> int:
        """Messages that have arrived and are not taken yet."""
        return len(self._arrived)

    # -- publishing ----------------------------------------------------------------------------------------

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
        message = Outgoing(topic, payload, qos, retain, properties or Properties())
        return (await self.publish_many([message], stamp=stamp))[0]

    async def publish_many(self, messages: Iterable[Outgoing], *, stamp: bool = True) -> list[int]:
        """Publishes in as few writes as possible; returns a reason code for each message, 0 for QoS 0."""
        sent: list[tuple[str, asyncio.Future[Answer] | None]] = []
        for message in messages:
            self._check_open()
            if message.qos and self._protocol.quota == 0:
                self._flush()
                await self._wait_answer(self._quota(), f"publish to {message.topic}")
            sent.append((message.topic, self._publish(message, stamp)))
            if self._protocol.waiting_bytes >= WRITE_BYTES_MAX:
                self._flush()
                await self._link.writable()
        self._flush()
        await self._link.writable()
        return await self._publish_answers(sent)

    def _publish(self, message: Outgoing, stamp: bool) -> asyncio.Future[Answer] | None:
        properties = self._stamped(message) if stamp else message.properties
        packet_id = self._protocol.publish(
            message.topic, message.payload, qos=message.qos, retain=message.retain, properties=properties
        )
        if stamp:
            self._sequences[message.topic] = self._sequences.get(message.topic, 0) + 1
        return self._expect(packet_id) if packet_id else None

    def _stamped(self, message: Outgoing) -> Properties:
        sequence = self._sequences.get(message.topic, 0) + 1
        property = format_stamp(time.time_ns(), sequence, self.publisher)
        if message.properties == _NO_PROPERTIES:
            return Properties(user=[property])
        properties = copy.copy(message.properties)
        properties.user = [*properties.user, property]
        return properties

    async def _publish_answers(self, sent: Sequence[tuple[str, asyncio.Future[Answer] | None]]) -> list[int]:
        reasons: list[int] = []
        refusals: list[tuple[str, Answer]] = []
        for topic, future in sent:
            if future is None:
                reasons.append(Reason.SUCCESS)
                continue
            answer = await self._wait_answer(future, f"publish to {topic}")
            reason = _reasons_of(answer)[0]
            reasons.append(reason)
            if reason >= REFUSAL:
                refusals.append((topic, answer))
        if refusals:
            topic, answer = refusals[0]
            many = f" ({len(refusals)} of {len(sent)} messages)" if len(sent) > 1 else ""
            reason = _reasons_of(answer)[0]
            raise refusal(f"publish to {topic}{many}", reason, answer.properties.reason_string)
        return reasons

    async def _quota(self) -> None:
        while self._protocol.quota == 0:
            self._check_open()
            self._changed.clear()
            await self._changed.wait()

    # -- subscribing ---------------------------------------------------------------------------------------

    async def subscribe(
        self,
        *subscriptions: str | Subscription,
        qos: int = 0,
        deadline_ns: int | None = None,
        loss_tolerance: int | str | None = None,
        properties: Properties | None = None,
    ) -> list[int]:
        """Subscribes to all or raises Refused; returns the QoS that was granted to each.

        `deadline_ns` and `loss_tolerance` (a number or "unlimited") are required of every topic that matches.
        """
        self._check_open()
        wanted = [Subscription(each, qos) if isinstance(each, str) else each for each in subscriptions]
        asked = copy.copy(properties or Properties())
        if deadline_ns is not None:
            asked.user = [*asked.user, (DEADLINE_PROPERTY, format_duration(deadline_ns))]
        if loss_tolerance is not None:
            asked.user = [*asked.user, (LOSS_PROPERTY, str(loss_tolerance))]
        future = self._expect(self._protocol.subscribe(wanted, asked))
        self._flush()
        filters = ", ".join(each.filter for each in wanted)
        answer = await self._wait_answer(future, f"subscribe to {filters}")
        return self._granted_or_refused(answer, [each.filter for each in wanted], "subscribe to")

    async def unsubscribe(self, *filters: str) -> list[int]:
        self._check_open()
        future = self._expect(self._protocol.unsubscribe(filters, Properties()))
        self._flush()
        answer = await self._wait_answer(future, f"unsubscribe from {', '.join(filters)}")
        return self._granted_or_refused(answer, filters, "unsubscribe from")

    def _granted_or_refused(self, answer: Answer, filters: Sequence[str], what: str) -> list[int]:
        reasons = _reasons_of(answer)
        refused = [place for place, reason in enumerate(reasons) if reason >= REFUSAL]
        if refused:
            names = ", ".join(filters[place] for place in refused)
            raise refusal(f"{what} {names}", reasons[refused[0]], answer.properties.reason_string)
        return reasons

    # -- messages ------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message; the end after `disconnect`, the error after a lost connection."""
        while not self._arrived:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        packet, arrived_ns = self._arrived.popleft()
        if packet.qos and not self._ended:
            self._protocol.acknowledge(packet.packet_id)
            self._flush_soon()
        if self._link.reading_paused and len(self._arrived) <= self._queue_max // 2:
            self._link.start_reading()
            self._work()
        return Message(
            topic=packet.topic,
            payload=packet.payload,
            qos=packet.qos,
            retain=packet.retain,
            dup=packet.dup,
            properties=packet.properties,
            arrived_ns=arrived_ns,
            stamp=find_stamp(packet.properties.user),
        )

    # -- the connection ------------------------------------------------------------------------------------

    async def disconnect(self, reason: int = Reason.NORMAL_DISCONNECTION) -> None:
        """Says goodbye and closes; messages that were not taken stay takeable, unacknowledged."""
        if not self._ended:
            self._protocol.disconnect(reason)
            self._flush()
            self._end(None)
        await self._link.closed()

    async def _introduce(self, packet: Connect) -> None:
        self._protocol.connect(packet)
        self._flush()
        connack = await self._connack
        if connack.reason >= REFUSAL:
            raise refusal("let us in", connack.reason, connack.properties.reason_string)
        self.session_present = connack.session_present
        self.client_id = connack.properties.assigned_client_id or self.client_id
        server_keep_alive = connack.properties.server_keep_alive
        if server_keep_alive is not None:
            self._keep_alive_s = server_keep_alive
        self._plan_ping()

    def _read(self, data: bytes) -> None:
        self._read_ns = time.time_ns()
        self._protocol.feed(data)
        self._work()

    def _work(self) -> None:
        """Takes packets out of what was read until the queue is full or nothing is left."""
        try:
            while len(self._arrived) < self._queue_max:
                packet = self._protocol.next()
                if packet is None:
                    break
                self._take(packet)
            else:
                self._link.stop_reading()
        except PeerError as error:
            self._protocol.disconnect(error.reason)
            self._end(Unavailable(f"the broker at {self.address} broke the protocol: {error.text}"))
        self._flush()

    def _take(self, packet: Incoming) -> None:
        match packet:
            case Publish():
                self._arrived.append((packet, self._read_ns))
                self._changed.set()
            case Connack():
                if not self._connack.done():
                    self._connack.set_result(packet)
            case Disconnect():
                why = described(packet.reason, packet.properties.reason_string)
                self._end(Refused(packet.reason, f"the broker at {self.address} ended the connection: {why}"))
            case Pingresp():
                self._ping_unanswered = False
            case _:
                future = self._answers.pop(packet.packet_id, None)
                if future is not None and not future.done():
                    future.set_result(packet)
                self._changed.set()

    def _lost(self, error: Exception | None) -> None:
        why = f": {error}" if error else ""
        self._end(Unavailable(f"the broker at {self.address} closed the connection{why}"))

    def _end(self, error: HoldfastError | None) -> None:
        """The first end counts: everybody who waits is told."""
        if self._ended:
            return
        self._ended = True
        self._error = error
        if self._pinger is not None:
            self._pinger.cancel()
        reason = error or Unavailable("the connection was closed by its user")
        waiting: list[asyncio.Future[Any]] = [self._connack, *self._answers.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(reason)
                # Whoever no longer waits for it is not told twice.
                future.exception()
        self._answers.clear()
        self._changed.set()
        self._flush()
        self._link.close()

    def _abort(self) -> None:
        self._end(Unavailable(f"no connection to {self.address}"))
        self._link.abort()

    def _check_open(self) -> None:
        if self._ended:
            raise self._error or Unavailable("the connection was closed by its user")

    def _expect(self, packet_id: int) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[packet_id] = future
        return future

    async def _wait_answer(self, answer: Awaitable[T], what: str) -> T:
        try:
            async with asyncio.timeout(self._answer_s_max):
                return await answer
        except TimeoutError:
            full = "; our queue of messages is full, take some" if self._link.reading_paused else ""
            raise Unavailable(
                f"no answer from {self.address} within {self._answer_s_max:g} s to: {what}{full}"
            ) from None

    def _flush(self) -> None:
        if self._protocol.waiting_bytes:
            self._link.write(self._protocol.output())

    def _flush_soon(self) -> None:
        """Acknowledgements of messages that are taken together leave together."""
        if not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush_planned_now)

    def _flush_planned_now(self) -> None:
        self._flush_planned = False
        self._flush()

    # -- keep alive ----------------------------------------------------------------------------------------

    def _plan_ping(self) -> None:
        if self._keep_alive_s:
            loop = asyncio.get_running_loop()
            self._pinger = loop.call_later(self._keep_alive_s / 2, self._ping)

    def _ping(self) -> None:
        """Half a keep-alive without an answer means the broker is gone, unless we are not reading."""
        if self._ping_unanswered and not self._link.reading_paused:
            self._abort_silent()
            return
        self._ping_unanswered = True
        self._protocol.ping()
        self._flush()
        self._plan_ping()

    def _abort_silent(self) -> None:
        self._end(
            Unavailable(f"the broker at {self.address} does not answer any more ({self._keep_alive_s} s)")
        )
        self._link.abort()


def refusal(what: str, reason: int, words: str | None) -> Refused:
    return Refused(reason, f"the broker refused to {what}: {described(reason, words)}")


def described(reason: int, words: str | None) -> str:
    """A reason code as people read it: its name, its number, and what the broker said."""
    try:
        name = Reason(reason).name.lower().replace("_", " ")
    except ValueError:
        name = "unknown reason"
    return f"{name} (0x{reason:02X})" + (f": {words}" if words else "")


def _reasons_of(answer: Answer) -> list[int]:
    return answer.reasons if isinstance(answer, Suback | Unsuback) else [answer.reason]
