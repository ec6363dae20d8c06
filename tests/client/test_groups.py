"""The asyncio client of a group: real sockets, members that a test plays, real brokers that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from typing import Self

import pytest

from client.fake import FakeBroker, at, run
from holdfast import Contract, Outgoing, Unavailable, connect
from holdfast.client import Client, Message
from holdfast.mqtt.conventions import VIEW_PROPERTY, VIEW_TOPIC, Place, ViewNote, format_view
from holdfast.mqtt.packets import Connack, Connect, Disconnect, Packet, Properties, Puback, Publish, Suback
from support.brokers import StartBroker

KEEP_2 = Contract(name="two", topics=("keep/#",), deadline_ns=10**8, loss_tolerance=0, retention=2)


class Member:
    """One member of a group on a port of its own; it takes connections one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._arrived: asyncio.Queue[FakeBroker] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []
        self.peer: FakeBroker

    async def __aenter__(self) -> Self:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            self._arrived.put_nowait(FakeBroker(reader, writer))

        self._server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.place = Place(self.name, "127.0.0.1", self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self.die()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def view(self, number: int, *order: Member) -> str:
        return format_view(ViewNote(number, self.name, tuple(member.place for member in order)))

    async def admit(self, number: int, *order: Member) -> Connect:
        self.peer = await self._arrived.get()
        connect_packet = await self.peer.packet()
        assert isinstance(connect_packet, Connect)
        told = Properties(user=[(VIEW_PROPERTY, self.view(number, *order))])
        self.peer.send(Connack(properties=told))
        return connect_packet

    def promote(self, number: int, *order: Member) -> None:
        self.peer.send(Publish(VIEW_TOPIC, self.view(number, *order).encode()))

    def die(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def messages(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            packet = await self.peer.packet()
            if isinstance(packet, Publish):
                found.append(packet.payload)
        return found


async def pair(a: Member, b: Member) -> Client:
    opening = asyncio.ensure_future(connect(at(a.place.port), at(b.place.port)))
    await b.admit(4, a, b)
    await a.admit(4, a, b)
    return await opening


def test_a_killed_primary_is_followed_by_its_heir_with_the_last_n() -> None:
    async def test() -> None:
        async with Member("a") as a, Member("b") as b, await pair(a, b) as client:
            client.declare(KEEP_2)
            assert client.view is not None
            assert client.view.number == 4
            for number in range(5):
                await client.publish("keep/1", b"%d" % number)
            assert await a.messages(5) == [b"0", b"1", b"2", b"3", b"4"]
            a.die()
            # Not told yet that it is promoted, the heir has all that may be lost.
            assert await b.messages(2) == [b"3", b"4"]
            answer = asyncio.ensure_future(client.publish("keep/1", b"5", qos=1))
            assert await b.messages(1) == [b"5"]
            b.promote(5, b)
            b.peer.send(Puback(1))
            assert await answer == 0
            assert client.address == at(b.place.port)
            assert client.view.number == 5
            assert client.failovers.count == 1
            assert client.failovers.durations_ns[0] > 0

    run(test())


def test_a_request_outlives_the_primary_that_it_was_sent_to() -> None:
    async def test() -> None:
        async with Member("a") as a, Member("b") as b, await pair(a, b) as client:
            asked = asyncio.ensure_future(client.subscribe("x/#", qos=1))
            first = await a.peer.packet()
            a.die()
            assert await b.peer.packet() == first
            b.promote(5, b)
            b.peer.send(Suback(first.packet_id, [1]))  # type: ignore[union-attr]
            assert await asked == [1]

    run(test())


def test_messages_flow_on_each_once() -> None:
    def message(number: int) -> Packet:
        return Publish("x", b"%d" % number, properties=Properties(user=[("hf", f"1/{number}/p.1")]))

    async def test() -> None:
        async with Member("a") as a, Member("b") as b, await pair(a, b) as client:
            a.peer.send(message(1), message(2), message(3))
            got = [(await anext(client)).payload for _ in range(3)]
            a.die()
            b.promote(5, b)
            b.peer.send(message(2), message(3), message(4), message(6))
            got += [(await anext(client)).payload for _ in range(2)]
            assert got == [b"1", b"2", b"3", b"4", b"6"]
            assert client.duplicates == 2

    run(test())


def test_what_the_primary_sent_is_heard_before_the_word_of_its_heir() -> None:
    async def test() -> None:
        async with Member("a") as a, Member("b") as b, await pair(a, b) as client:
            target = client._driver.target
            assert target is not None
            target.stop_reading()
            a.peer.send(Publish("x", b"last"))
            b.promote(5, b, a)
            b.peer.send(Publish("x", b"first"))
            assert [(await anext(client)).payload for _ in range(2)] == [b"last", b"first"]

    run(test())


KEEP_1 = Contract(name="one", topics=("keep/#",), deadline_ns=10**8, loss_tolerance=0, retention=1)


@pytest.mark.parametrize("ends", [False, True], ids=["moved", "killed"])
def test_what_has_reached_us_is_heard_before_anything_is_published(ends: bool) -> None:
    """A program that stood still while the primary went away: what that did not read is not let go of for
    the next message."""

    async def test() -> None:
        async with Member("a") as a, Member("b") as b, await pair(a, b) as client:
            client.declare(KEEP_1)
            await client.publish("keep/x", b"1")
            await a.messages(1)
            if ends:
                a.peer.writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            else:
                b.promote(5, b, a)
            time.sleep(0.02)
            await client.publish("keep/x", b"2")
            assert await b.messages(2) == [b"1", b"2"]

    run(test())


def test_a_primary_that_is_cut_off_is_left_when_another_speaks() -> None:
    async def test() -> None:
        async with Member("a") as a, Member("b") as b, await pair(a, b) as client:
            b.promote(5, b, a)
            goodbye = await a.peer.packet()
            assert goodbye == Disconnect(0, Properties(user=[(VIEW_PROPERTY, "5")]))
            again = await a.admit(5, b, a)
            assert (VIEW_PROPERTY, "5") in again.properties.user
            assert client.address == at(b.place.port)

    run(test())


def test_without_anybody_left_requests_end() -> None:
    async def test() -> None:
        async with Member("a") as a, Member("b") as b:
            opening = asyncio.ensure_future(connect(at(a.place.port), at(b.place.port), outage_s_max=0.1))
            await b.admit(4, a, b)
            await a.admit(4, a, b)
            client = await opening
            b.die()
            a.die()
            with pytest.raises(Unavailable, match="closed the connection"):
                await client.publish("x", b"", qos=1)
            with pytest.raises(Unavailable, match="closed the connection"):
                await anext(client)
            await client.disconnect()

    run(test())


def test_a_standby_alone_is_waited_for_not_taken() -> None:
    async def test() -> None:
        async with Member("a") as a, Member("b") as b:
            a.die()
            opening = asyncio.ensure_future(connect(at(a.place.port), at(b.place.port), connect_s_max=0.5))
            await b.admit(4, a, b)
            with pytest.raises(Unavailable, match=r"within 0\.5 s"):
                await opening

    run(test())


# -- real brokers that know no groups ------------------------------------------------------------------------


async def take(client: Client, wanted: bytes) -> list[Message]:
    messages = []
    async for message in client:
        messages.append(message)
        if message.payload == wanted:
            break
    return messages


@pytest.mark.parametrize("kind", ["holdfast", "mosquitto"])
def test_another_broker_is_used_when_ours_is_killed(start_broker: StartBroker, kind: str) -> None:
    brokers = {at(each.port): each for each in (start_broker(kind=kind), start_broker(kind=kind))}

    async def test() -> None:
        async with await connect(*brokers) as client:
            client.declare(KEEP_2)
            await client.subscribe("keep/#", qos=1)
            await client.publish_many([Outgoing("keep/1", b"%d" % number, 1) for number in range(10)])
            await take(client, b"9")
            first = client.address
            os.kill(brokers[first].pid, signal.SIGKILL)
            # QoS 1 waits for the next broker; its subscription is renewed there.
            await client.publish("keep/2", b"on", qos=1)
            assert client.address not in ("", first)
            await client.publish("keep/1", b"again", qos=1)
            await take(client, b"again")
            assert client.failovers.count == 1

    run(test())


@pytest.mark.parametrize("kind", ["holdfast", "mosquitto"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_batches_arrive_stamped_and_in_order(start_broker: StartBroker, kind: str, qos: int) -> None:
    broker = start_broker(kind=kind)

    async def test() -> None:
        async with (
            await connect(at(broker.port)) as subscriber,
            await connect(at(broker.port)) as publisher,
        ):
            await subscriber.subscribe("t/#", qos=qos)
            total = 500
            sending = asyncio.ensure_future(
                publisher.publish_many([Outgoing("t/1", b"%d" % number, qos) for number in range(total)])
            )
            got: list[Message] = []
            async for batch in subscriber.batches():
                got += batch
                if len(got) == total:
                    break
            await sending
            assert [message.sequence for message in got] == list(range(1, total + 1))
            assert {message.missed for message in got} == {0}
            assert {message.publisher for message in got} == {publisher.publisher}

    run(test())
