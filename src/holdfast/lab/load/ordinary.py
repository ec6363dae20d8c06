"""An ordinary, well-behaved MQTT 3.1.1 client with a list of addresses: what a plant uses with any broker.

Laws:
- one connection at a time; lost or refused, the next address is tried, the first again after the last
- its session is kept by the broker; after every CONNACK it subscribes again and resends, in order and with
  DUP, what was not acknowledged
- a message is QoS 1 both ways, and acknowledged when it has been given out
- at most `in_flight_max` messages wait for an acknowledgement and `queue_max` behind them; those beyond are
  counted as unsent
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from holdfast.errors import Unavailable
from holdfast.lab.systems import IN_FLIGHT_MAX, MQTT_311
from holdfast.mqtt.codec import encode, split
from holdfast.mqtt.packets import Connect, Disconnect, Pingreq, Subscribe, Subscription

BEGIN_S_MAX = 20.0
DIAL_S_MAX = 1.0
ROUND_S = 0.05
"""The wait after every address was tried in vain."""
KEEP_ALIVE_S = 10
QUEUE_MAX = 100_000
PACKET_IDS = 65_535
SUBSCRIBE_ID = PACKET_IDS
CONNACK, PUBLISH, PUBACK, SUBACK = 0x20, 0x30, 0x40, 0x90
QOS_1, DUP, REFUSED = 0x02, 0x08, 0x80
BODY = struct.Struct("!IIq")
"""The payload says itself which topic it is of, its sequence number, and when it was made."""


def publication_head(topic: str, payload_bytes: int) -> bytes:
    """A QoS 1 PUBLISH up to its packet identifier."""
    name = topic.encode()
    length = 2 + len(name) + 2 + payload_bytes
    head = bytearray([PUBLISH | QOS_1])
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + struct.pack("!H", len(name)) + name


class OrdinaryClient(asyncio.Protocol):
    """`arrived` gets each payload and the time; `acknowledged` gets the row that a publication came with."""

    def __init__(
        self,
        addresses: Sequence[str],
        client_id: str,
        *,
        filters: tuple[str, ...] = (),
        arrived: Callable[[bytes, int], None] | None = None,
        acknowledged: Callable[[int], None] | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        queue_max: int = QUEUE_MAX,
        keep_alive_s: int = KEEP_ALIVE_S,
    ) -> None:
        self.moves_ns: list[int] = []
        self.unsent = 0
        self._addresses = [_parse(each) for each in addresses]
        self.client_id = client_id
        self._filters = filters
        self._arrived = arrived
        self._acknowledged = acknowledged
        self._in_flight_max, self._queue_max = in_flight_max, queue_max
        self._keep_alive_s = keep_alive_s
        self._in_flight: dict[int, tuple[bytes, int]] = {}
        self._queue: deque[tuple[bytes, bytes, int]] = deque()
        self._packet_id = 0
        self._transport: asyncio.Transport | None = None
        self._up = False
        self._answer_due = False
        self._buffer = b""
        self._changed = asyncio.Event()
        self._work: list[asyncio.Task[None]] = []

    # -- the user's side -----------------------------------------------------------------------------------

    @property
    def unacknowledged(self) -> int:
        return len(self._in_flight) + len(self._queue)

    async def begin(self, seconds: float = BEGIN_S_MAX) -> None:
        """Connected, and subscribed if there is something to subscribe to."""
        self._work = [asyncio.create_task(self._stay_connected()), asyncio.create_task(self._keep_alive())]
        await self._until(lambda: self._up, seconds, "was not let in")

    async def settled(self, seconds: float) -> bool:
        """Whether everything was acknowledged within that time."""
        try:
            await self._until(lambda: not self.unacknowledged, seconds, "got no acknowledgement")
        except Unavailable:
            return False
        return True

    def publish(self, head: bytes, payload: bytes, row: int) -> None:
        if self._up and len(self._in_flight) < self._in_flight_max and not self._queue:
            self._write(head, payload, row)
        elif len(self._queue) < self._queue_max:
            self._queue.append((head, payload, row))
        else:
            self.unsent += 1

    async def close(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        if self._transport is not None:
            self._transport.write(encode(Disconnect(), MQTT_311))
            self._transport.close()

    async def _until(self, reached: Callable[[], bool], seconds: float, what: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not reached():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Unavailable(f"{self.client_id} {what} within {seconds:g} s") from None

    # -- the connection ------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        place = 0
        while True:
            try:
                async with asyncio.timeout(DIAL_S_MAX):
                    await asyncio.get_running_loop().create_connection(lambda: self, *self._addresses[place])
            except OSError:
                pass
            else:
                while self._transport is not None:
                    self._changed.clear()
                    await self._changed.wait()
            place = (place + 1) % len(self._addresses)
            if place == 0:
                await asyncio.sleep(ROUND_S)

    async def _keep_alive(self) -> None:
        """A broker that leaves a ping or CONNECT unanswered for half the keep-alive time is lost."""
        while True:
            self._answer_due = self._transport is not None
            if self._up and self._transport is not None:
                self._transport.write(encode(Pingreq(), MQTT_311))
            await asyncio.sleep(self._keep_alive_s / 2)
            if self._answer_due and self._transport is not None:
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._buffer = b""
        hello = Connect(
            client_id=self.client_id, version=MQTT_311, clean_start=False, keep_alive=self._keep_alive_s
        )
        self._transport.write(encode(hello, MQTT_311))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._up = False
        self._changed.set()

    def data_received(self, data: bytes) -> None:
        self._answer_due = False
        now_ns = time.time_ns()
        buffer = self._buffer + data if self._buffer else data
        at, answers = 0, bytearray()
        while (frame := split(buffer, at)) is not None:
            first, start, at = frame
            self._packet(buffer, first, start, at, now_ns, answers)
        self._buffer = buffer[at:]
        if answers and self._transport is not None:
            self._transport.write(bytes(answers))
        if self._queue:
            self._advance()

    def _packet(
        self, buffer: bytes, first: int, start: int, end: int, now_ns: int, answers: bytearray
    ) -> None:
        kind = first & 0xF0
        if kind == PUBLISH:
            at = start + 2 + (buffer[start] << 8 | buffer[start + 1])
            if first & QOS_1:
                answers += b"\x40\x02" + buffer[at : at + 2]
                at += 2
            if self._arrived is not None:
                self._arrived(buffer[at:end], now_ns)
        elif kind == PUBACK:
            found = self._in_flight.pop(buffer[start] << 8 | buffer[start + 1], None)
            if found is not None and self._acknowledged is not None:
                self._acknowledged(found[1])
            if not self._in_flight:
                self._changed.set()
        elif kind == CONNACK:
            self._admitted(buffer[start + 1])
        elif kind == SUBACK:
            self._serve(max(buffer[start + 2 : end]) < REFUSED)

    def _admitted(self, refusal: int) -> None:
        assert self._transport is not None
        if refusal:
            self._transport.close()
        elif self._filters:
            wanted = [Subscription(each, 1) for each in self._filters]
            self._transport.write(encode(Subscribe(SUBSCRIBE_ID, wanted), MQTT_311))
        else:
            self._serve(granted=True)

    def _serve(self, granted: bool) -> None:
        assert self._transport is not None
        if not granted:
            self._transport.close()
            return
        self._up = True
        self.moves_ns.append(time.time_ns())
        again = [bytes([packet[0] | DUP]) + packet[1:] for packet, _ in self._in_flight.values()]
        self._transport.write(b"".join(again))
        self._advance()
        self._changed.set()

    # -- publications --------------------------------------------------------------------------------------

    def _advance(self) -> None:
        while self._up and self._queue and len(self._in_flight) < self._in_flight_max:
            self._write(*self._queue.popleft())

    def _write(self, head: bytes, payload: bytes, row: int) -> None:
        assert self._transport is not None
        packet_id = self._claim()
        packet = head + packet_id.to_bytes(2, "big") + payload
        self._in_flight[packet_id] = (packet, row)
        self._transport.write(packet)

    def _claim(self) -> int:
        """An identifier that is not in use; the last of all belongs to SUBSCRIBE."""
        packet_id = self._packet_id % (PACKET_IDS - 1) + 1
        while packet_id in self._in_flight:
            packet_id = packet_id % (PACKET_IDS - 1) + 1
        self._packet_id = packet_id
        return packet_id


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
