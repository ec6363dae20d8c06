"""The asyncio client against a real broker, and against one that misbehaves."""

import asyncio
from pathlib import Path

import pytest

from client.fake import FakeBroker, at, run, with_fake
from holdfast.client import Client, Message, Outgoing, connect
from holdfast.errors import Refused, Unavailable
from holdfast.mqtt.packets import (
    Connack,
    Disconnect,
    Properties,
    Puback,
    Publish,
    Suback,
    Subscription,
    Will,
)
from holdfast.mqtt.reasons import Reason
from support.brokers import BrokerProcess, StartBroker, free_port

FRAME = Path(__file__).parents[2] / "examples" / "frame.toml"


async def take(client: Client, count: int) -> list[Message]:
    messages = []
    async for message in client:
        messages.append(message)
        if len(messages) == count:
            break
    return messages


# -- against the broker --------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_published_arrives_stamped_and_in_order(broker: BrokerProcess, qos: int) -> None:
    async def test() -> None:
        topic = f"client/order/{qos}"
        async with (
            await connect(at(broker.port)) as subscriber,
            await connect(at(broker.port)) as publisher,
        ):
            assert await subscriber.subscribe(topic, qos=2) == [2]
            payloads = [b"%d" % number for number in range(3000)]
            await publisher.publish_many(Outgoing(topic, payload, qos) for payload in payloads)
            messages = await take(subscriber, len(payloads))
            assert [message.payload for message in messages] == payloads
            assert [message.sequence for message in messages] == list(range(1, 3001))
            assert {message.qos for message in messages} == {qos}
            assert all(message.latency_ns is not None and message.latency_ns >= 0 for message in messages)
            assert {message.stamp and message.stamp.publisher for message in messages} == {
                publisher.publisher
            }

    run(test())


def test_properties_retain_and_no_stamp(broker: BrokerProcess) -> None:
    async def test() -> None:
        async with await connect(at(broker.port), client_id="client-retain") as client:
            properties = Properties(content_type="text/plain", user=[("unit", "C")])
            await client.publish("client/retained", b"21", retain=True, properties=properties, stamp=False)
            await client.publish("client/retained-stamped", b"22", retain=True, properties=properties)
            assert properties.user == [("unit", "C")]
            await client.subscribe("client/retained", Subscription("client/retained-stamped", qos=1))
            plain, stamped = sorted(await take(client, 2), key=lambda message: message.payload)
            assert plain.retain
            assert plain.stamp is None
            assert plain.latency_ns is None
            assert plain.properties.content_type == "text/plain"
            assert plain.properties.user == [("unit", "C")]
            assert stamped.sequence == 1
            assert await client.unsubscribe("client/retained", "client/none") == [0, 0x11]

    run(test())


def test_a_will_is_left_behind_by_a_connection_that_breaks(broker: BrokerProcess) -> None:
    async def test() -> None:
        async with await connect(at(broker.port)) as watcher:
            await watcher.subscribe("client/will")
            doomed = await connect(at(broker.port), will=Will("client/will", b"gone"))
            await doomed.disconnect(Reason.DISCONNECT_WITH_WILL)
            assert [message.payload for message in await take(watcher, 1)] == [b"gone"]

    run(test())


def test_a_session_goes_on_where_it_was(broker: BrokerProcess) -> None:
    async def test() -> None:
        async def again(clean_start: bool) -> Client:
            return await connect(
                at(broker.port),
                client_id="client-session",
                clean_start=clean_start,
                session_expiry_s=60,
            )

        async with await again(True) as client:
            assert not client.session_present
            await client.subscribe("client/session", qos=1)
        async with await connect(at(broker.port)) as other:
            await other.publish("client/session", b"kept", qos=1)
        async with await again(False) as client:
            assert client.session_present
            assert [message.payload for message in await take(client, 1)] == [b"kept"]

    run(test())


def test_a_requirement_that_cannot_be_kept_is_refused_with_the_reason(start_broker: StartBroker) -> None:
    broker = start_broker("--contracts", str(FRAME), kind="holdfast")

    async def test() -> None:
        async with await connect(at(broker.port)) as client:
            assert await client.subscribe("plant/cat0/+", deadline_ns=20_000_000, loss_tolerance=0) == [0]
            with pytest.raises(Refused, match=r"implementation specific error \(0x83\).*at least 1ms") as no:
                await client.subscribe("plant/cat0/+", deadline_ns=100_000)
            assert no.value.reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR

    run(test())


def test_taken_over_means_told(broker: BrokerProcess) -> None:
    async def test() -> None:
        first = await connect(at(broker.port), client_id="client-twice")
        async with await connect(at(broker.port), client_id="client-twice"):
            with pytest.raises(Refused, match="session taken over"):
                await take(first, 1)
            with pytest.raises(Refused, match="session taken over"):
                await first.publish("client/late", b"x")
        await first.disconnect()

    run(test())


def test_nobody_there_says_what_to_do() -> None:
    async def test() -> None:
        with pytest.raises(Unavailable, match=r"Connection refused. Start one with `holdfast broker`"):
            await connect(at(free_port()))

    run(test())


def test_after_our_own_disconnect_the_messages_end(broker: BrokerProcess) -> None:
    async def test() -> None:
        client = await connect(at(broker.port))
        await client.disconnect()
        assert [message async for message in client] == []
        with pytest.raises(Unavailable, match="closed by its user"):
            await client.publish("a", b"x", qos=1)

    run(test())


# -- against a broker of our own making ----------------------------------------------------------------------


def test_a_full_queue_stops_reading_and_nothing_is_lost() -> None:
    count, queue_max = 20_000, 100
    payload = b"x" * 1000

    async def serve(broker: FakeBroker) -> None:
        await broker.packet()
        broker.send(Connack())
        broker.send(*(Publish("a", payload + b"%d" % number) for number in range(count)))
        await broker.writer.drain()
        assert isinstance(await broker.packet(), Disconnect)

    async def use(port: int) -> None:
        async with await connect(at(port), queue_max=queue_max) as client:
            while client.waiting < queue_max:
                await asyncio.sleep(0)
            for number in range(count):
                message = await anext(client)
                assert message.payload == payload + b"%d" % number
                assert client.waiting <= queue_max

    with_fake(serve, use)


def test_no_more_on_the_way_than_the_broker_takes() -> None:
    total, receive_max = 50, 3

    async def serve(broker: FakeBroker) -> None:
        await broker.packet()
        broker.send(Connack(properties=Properties(receive_max=receive_max)))
        for _ in range(total // receive_max):
            batch = [await broker.packet() for _ in range(receive_max)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(broker.packet(), 0.001)
            broker.send(*(Puback(packet.packet_id) for packet in batch if isinstance(packet, Publish)))
        for _ in range(total % receive_max):
            packet = await broker.packet()
            assert isinstance(packet, Publish)
            broker.send(Puback(packet.packet_id, Reason.NO_MATCHING_SUBSCRIBERS))

    async def use(port: int) -> None:
        client = await connect(at(port))
        reasons = await client.publish_many(Outgoing("a", b"x", 1) for _ in range(total))
        assert reasons == [Reason.SUCCESS] * 48 + [Reason.NO_MATCHING_SUBSCRIBERS] * 2
        await client.disconnect()

    with_fake(serve, use)


def test_refusals_carry_name_code_and_words() -> None:
    async def serve(broker: FakeBroker) -> None:
        await broker.packet()
        broker.send(Connack())
        for _ in range(2):
            packet = await broker.packet()
            words = Properties(reason_string="too much")
            if isinstance(packet, Publish):
                broker.send(Puback(packet.packet_id, Reason.QUOTA_EXCEEDED, words))
            else:
                broker.send(Suback(packet.packet_id, [0, Reason.NOT_AUTHORIZED], words))  # type: ignore[union-attr]

    async def use(port: int) -> None:
        client = await connect(at(port))
        with pytest.raises(Refused, match=r"refused to publish to a: quota exceeded \(0x97\): too much"):
            await client.publish("a", b"x", qos=1)
        with pytest.raises(Refused, match=r"refused to subscribe to y: not authorized \(0x87\): too much"):
            await client.subscribe("x", "y")
        await client.disconnect()

    with_fake(serve, use)


def test_refused_at_the_door() -> None:
    async def serve(broker: FakeBroker) -> None:
        await broker.packet()
        broker.send(Connack(reason=Reason.BANNED, properties=Properties(reason_string="not today")))

    async def use(port: int) -> None:
        with pytest.raises(Refused, match=r"banned \(0x8A\): not today"):
            await connect(at(port))

    with_fake(serve, use)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x20\x03\x00\x00", b""])
def test_what_is_no_broker_is_unavailable(answer: bytes) -> None:
    async def serve(broker: FakeBroker) -> None:
        await broker.packet()
        broker.writer.write(answer)

    async def use(port: int) -> None:
        with pytest.raises(Unavailable):
            await connect(at(port), connect_s_max=0.5)

    with_fake(serve, use)


def test_a_lost_connection_ends_every_wait() -> None:
    async def serve(broker: FakeBroker) -> None:
        await broker.packet()
        broker.send(Connack(), Publish("a", b"last"))
        await broker.packet()

    async def use(port: int) -> None:
        client = await connect(at(port), outage_s_max=0)
        with pytest.raises(Unavailable, match="closed the connection"):
            await client.publish("a", b"x", qos=1)
        assert (await anext(client)).payload == b"last"
        with pytest.raises(Unavailable, match="closed the connection"):
            await anext(client)
        await client.disconnect()

    with_fake(serve, use)


def test_an_answer_behind_a_full_queue_is_said_to_be_so() -> None:
    async def serve(broker: FakeBroker) -> None:
        await broker.packet()
        broker.send(Connack(), *(Publish("a", b"x") for _ in range(10)))
        packet = await broker.packet()
        assert isinstance(packet, Publish)
        broker.send(Puback(packet.packet_id))
        await broker.packet()

    async def use(port: int) -> None:
        client = await connect(at(port), queue_max=5, answer_s_max=0.2)
        with pytest.raises(Unavailable, match="queue of messages is full"):
            await client.publish("b", b"x", qos=1)
        assert len(await take(client, 10)) == 10
        await client.disconnect()

    with_fake(serve, use)


def test_a_broker_that_falls_silent_is_given_up() -> None:
    async def serve(broker: FakeBroker) -> None:
        await broker.packet()
        broker.send(Connack())
        await broker.packet()
        with pytest.raises(AssertionError, match="closed"):
            await broker.packet()

    async def use(port: int) -> None:
        client = await connect(at(port), keep_alive_s=1, outage_s_max=0)
        with pytest.raises(Unavailable, match="does not answer any more"):
            await anext(client)
        await client.disconnect()

    with_fake(serve, use)
