"""Channels over real sockets: plain clients that subscribe, and a client that serves, through a kill."""

import asyncio
import json
import subprocess

import pytest
from benchmarks.contracts import FRAME

from holdfast import Client, Properties, connect
from holdfast.errors import Refused
from holdfast.lab.group import running_group
from holdfast.mqtt.channels import Offered, format_catalog
from holdfast.mqtt.conventions import CATALOG_TOPIC, SUBSCRIPTIONS_TOPIC, format_stamp
from holdfast.pipeline.subscribers import Subscribers
from interop.mosquitto_clients import Subscriber, publish
from interop.paho_client import Client as Paho
from interop.paho_client import paho
from support.brokers import HOLDFAST, LOOPBACK, BrokerProcess

from .traffic import CALM, aside, run, until

SERVES = ("-D", "connect", "user-property", "hf-serves", "channels")
CATALOG = format_catalog([Offered("near", ("string",)), Offered("floor", ("bigint",))])


class Server:
    """What the pipeline does, without its results."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.known = Subscribers()
        self.wanted: list[tuple[str, str, str, int]] = []
        self._hearing = asyncio.create_task(self._hear())

    @classmethod
    async def start(cls, *addresses: str) -> "Server":
        properties = Properties(user=[("hf-serves", "channels")])
        client = await connect(*addresses, client_id="pipeline", properties=properties)
        server = cls(client)
        await client.publish(CATALOG_TOPIC, CATALOG, qos=1)
        await client.subscribe(SUBSCRIPTIONS_TOPIC, qos=1)
        await until(lambda: server.known.ready, "the first list")
        return server

    async def _hear(self) -> None:
        async for message in self.client:
            if not self.known.told(message.payload):
                await self.client.publish(CATALOG_TOPIC, CATALOG, qos=1)
            self.wanted += self.known.take_wanted()

    async def notify(self, topic: str, payload: bytes, number: int) -> None:
        stamp = Properties(user=[format_stamp(10**18, number, "~near")])
        await self.client.publish(topic, payload, qos=1, properties=stamp, stamp=False)

    async def stop(self) -> None:
        await self.client.disconnect()
        await self._hearing


class At:
    """A broker's port, for the helpers that talk to a process."""

    def __init__(self, port: int) -> None:
        self.port = port


@pytest.fixture(scope="module")
def broker():
    with BrokerProcess(kind=HOLDFAST) as process:
        yield process


def test_plain_clients_subscribe_and_a_plain_client_could_serve(broker: BrokerProcess) -> None:
    with (
        Subscriber(broker, SUBSCRIPTIONS_TOPIC, version="5", qos=1, args=SERVES) as server,
        Subscriber(broker, "$channel/near/alice", version="5", qos=1) as alice,
        Subscriber(broker, "$channel/near/alice", version="311") as old,
    ):
        told = [json.loads(server.message()["payload"]) for _ in range(2)]
        assert [each.get("added", []) for each in told] == [[], ["near/alice"]]
        publish(broker, "$channel/near/alice", "found", *SERVES, version="5", qos=1)
        assert alice.payloads(1) == old.payloads(1) == ["found"]
        refused = subprocess.run(
            f"mosquitto_pub -h {LOOPBACK} -p {broker.port} -V 5 -q 1 -t $channel/near/alice -m no".split(),
            capture_output=True,
            timeout=20,
            check=False,
        )
        assert b"Not authorized" in refused.stderr
        publish(broker, "$channel/near/alice", "again", *SERVES, version="5", qos=1)
        assert alice.payloads(1) == ["again"]


def test_refusals_say_what_would_do(broker: BrokerProcess) -> None:
    async def test() -> None:
        server = await Server.start(f"{LOOPBACK}:{broker.port}")
        async with await connect(f"{LOOPBACK}:{broker.port}") as client:
            with pytest.raises(Refused, match="there is no channel 'neer'; on offer: floor, near"):
                await client.subscribe("$channel/neer/alice")
            with pytest.raises(Refused, match="that is no bigint; a bigint such as 42 would do"):
                await client.subscribe("$channel/floor/cellar")
            with pytest.raises(Refused, match="channels take no wildcards"):
                await client.subscribe("$channel/near/+")
        assert await aside(paho_refusal) == [0x8F]
        await server.stop()

    def paho_refusal() -> list[int]:
        with Paho(broker, version=paho.MQTTv5) as client:
            return client.subscribe("$channel/floor/x")

    run(test())


def test_a_late_subscriber_gets_the_last_results(broker: BrokerProcess) -> None:
    async def test() -> None:
        server = await Server.start(f"{LOOPBACK}:{broker.port}")
        last = ("-D", "subscribe", "user-property", "hf-last", "2")
        alice = await aside(Subscriber(broker, "$channel/near/late", version="5", qos=1, args=last).__enter__)
        try:
            await until(lambda: bool(server.wanted), "the request for the last results")
            ((token, channel, subscription, k),) = server.wanted
            assert (channel, subscription, k) == ("near", "late", 2)
            for number in (8, 9):
                await server.notify(f"$channel/$last/{token}", b"%d" % number, number)
            await server.notify("$channel/near/late", b"10", 10)
            came = [await aside(alice.message) for _ in range(3)]
            assert [(each["payload"], each["retain"]) for each in came] == [("8", 1), ("9", 1), ("10", 0)]
        finally:
            alice.kill()
            await server.stop()

    run(test())


def test_the_subscriptions_survive_a_killed_primary() -> None:
    async def test(group) -> None:
        note = await aside(group.await_protected)
        server = await Server.start(*group.addresses)
        await until(
            lambda: server.client.view is not None and len(server.client.view.places) == 2, "the heir"
        )
        primary, heir = (At(group.members[place.name].port) for place in note.places)
        keep = ("-i", "alice", "-c", "-x", "300")
        before = await aside(
            Subscriber(primary, "$channel/near/alice", version="5", qos=1, args=keep).__enter__
        )
        await until(lambda: server.known.of("near") == ["alice"], "the subscription")
        own = await connect(*group.addresses)
        await own.subscribe("$channel/near/bob", qos=1)
        await server.notify("$channel/near/alice", b"one", 5)
        assert (await aside(before.message))["payload"] == "one"
        await server.notify("$channel/near/bob", b"one", 5)
        told, server.known = server.known, Subscribers()
        group.kill(note.teller)
        await until(lambda: server.known.ready, "the list of the new primary")
        assert set(server.known.of("near")) == set(told.of("near")) == {"alice", "bob"}
        before.kill()
        await server.notify("$channel/near/alice", b"two", 9)  # waits for her in her session
        await server.notify("$channel/near/bob", b"two", 9)
        await server.notify("$channel/near/bob", b"two", 9)
        await server.notify("$channel/near/bob", b"three", 12)
        after = await aside(Subscriber(heir, "$channel/near/alice", version="5", qos=1, args=keep).__enter__)
        assert (await aside(after.message))["payload"] == "two"
        after.kill()
        came = [await anext(own) for _ in range(3)]
        assert [(each.payload, each.missed) for each in came] == [(b"one", 0), (b"two", 0), (b"three", 0)]
        await own.disconnect()
        await server.stop()

    with running_group(2, FRAME, CALM) as group:
        run(test(group))
