"""Brokers of others: started, carrying, killed, gone; and the ordinary client that is measured with them."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import connect
from holdfast.errors import Unavailable
from holdfast.lab.load.ordinary import BODY, OrdinaryClient, publication_head
from holdfast.lab.systems import MQTT_311, Servers, mosquitto_pair, nats_servers, running
from holdfast.lab.wire import Wire

HEAD = publication_head("plant/x", BODY.size)
ARRIVE_S_MAX = 20.0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def wire(servers: Servers, name: str, client_id: str, *, clean: bool = True) -> Iterator[Wire]:
    with Wire(servers.members[name].port, client_id, version=MQTT_311, clean=clean) as opened:
        yield opened


@pytest.fixture(params=["mosquitto", "nats"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    make = mosquitto_pair(tmp_path) if request.param == "mosquitto" else nats_servers(tmp_path, 1, 1)
    with running(make) as servers:
        yield servers
        pids = servers.pids()
    assert pids
    assert not any(alive(pid) for pid in pids.values())
    assert servers.pids() == {}


def check_carries(system: Servers) -> None:
    first, *_, last = [*system.members, *system.members]
    with wire(system, last, "taker") as taker, wire(system, first, "giver") as giver:
        taker.subscribe("plant/#")
        for number in range(10):
            giver.publish("plant/x", b"%d" % number)
        assert [taker.receive().payload for _ in range(10)] == [b"%d" % number for number in range(10)]


def test_a_message_goes_in_at_one_server_and_out_at_another(system: Servers) -> None:
    check_carries(system)


def test_a_bridged_message_does_not_come_back(tmp_path: Path) -> None:
    with running(mosquitto_pair(tmp_path)) as servers, wire(servers, "primary", "taker") as taker:
        taker.subscribe("plant/#")
        for role in ("primary", "backup") * 2:
            with wire(servers, role, "giver") as giver:
                giver.publish("plant/x", role.encode())
        assert sorted(taker.receive().payload for _ in range(4)) == [
            b"backup",
            b"backup",
            b"primary",
            b"primary",
        ]
        with wire(servers, "backup", "giver") as giver:
            giver.publish("plant/x", b"end")
        assert taker.receive().payload == b"end"


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    servers = mosquitto_pair(tmp_path)
    (servers.members["primary"].folder / "conf").write_text("no_such_setting 1\n")
    with pytest.raises(Unavailable, match="no_such_setting"), running(servers):
        pass
    assert servers.pids() == {}


def keep_one(servers: Servers) -> None:
    """A message waits in the first server for a session that has no connection."""
    with wire(servers, "primary", "absent", clean=False) as absent:
        absent.subscribe("plant/#")
    with wire(servers, "primary", "giver") as giver:
        giver.publish("plant/x", b"kept")


def test_one_nats_server_delivers_it_when_it_is_back(tmp_path: Path) -> None:
    with running(nats_servers(tmp_path, 1, 1)) as servers:
        keep_one(servers)
        servers.kill("primary")
        servers.start_again("primary")
        servers.await_ready()
        with wire(servers, "primary", "absent", clean=False) as absent:
            assert absent.session_present
            assert absent.receive().payload == b"kept"


def test_the_other_mosquitto_knows_nothing_of_the_session(tmp_path: Path) -> None:
    with running(mosquitto_pair(tmp_path)) as servers:
        keep_one(servers)
        servers.kill("primary")
        with wire(servers, "backup", "absent", clean=False) as absent:
            assert not absent.session_present


class Ends:
    """An ordinary publisher and subscriber, and what they saw."""

    def __init__(self, servers: Servers) -> None:
        self.sequences: list[int] = []
        self.acknowledged: list[int] = []
        self.publisher = OrdinaryClient(servers.addresses, "publisher", acknowledged=self.acknowledged.append)
        self.subscriber = OrdinaryClient(
            servers.addresses, "subscriber", filters=("plant/#",), arrived=self._take
        )

    def _take(self, payload: bytes, now_ns: int) -> None:
        topic, sequence, created_ns = BODY.unpack(payload)
        assert (topic, created_ns) == (1, 5)
        self.sequences.append(sequence)

    def publish(self, *sequences: int) -> None:
        for sequence in sequences:
            self.publisher.publish(HEAD, BODY.pack(1, sequence, 5), sequence)

    async def come(self, wanted: set[int]) -> None:
        async with asyncio.timeout(ARRIVE_S_MAX):
            while not wanted <= set(self.sequences):
                await asyncio.sleep(0.01)

    async def moved(self) -> None:
        """Both are served for the second time."""
        async with asyncio.timeout(ARRIVE_S_MAX):
            while min(len(self.publisher.moves_ns), len(self.subscriber.moves_ns)) < 2:
                await asyncio.sleep(0.01)


def role_at(servers: Servers, address: str) -> str:
    return dict(zip(servers.addresses, servers.members, strict=True)).get(address, "")


async def crash(servers: Servers) -> None:
    """Fifty messages before it, fifty to a server that takes nothing any more, and one after it."""
    ends = Ends(servers)
    await ends.subscriber.begin()
    await ends.publisher.begin()
    ends.publish(*range(50))
    await ends.come(set(range(50)))
    servers.stop("primary")
    ends.publish(*range(50, 100))
    servers.kill("primary")
    if len(servers.members) == 1:
        servers.start_again("primary")
    await ends.moved()
    ends.publish(100)
    await ends.come({100})
    assert await ends.publisher.settled(ARRIVE_S_MAX)
    assert set(ends.acknowledged) == set(range(101))
    if len(servers.members) != 2:  # the other of a bridged pair knows no session
        await ends.come(set(range(101)))
    await ends.publisher.close()
    await ends.subscriber.close()


def test_an_ordinary_client_goes_to_the_next_address_and_resends(system: Servers) -> None:
    asyncio.run(crash(system))


def test_a_cluster_of_three_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """It takes seconds to elect its leaders, so that all of it is asked at once."""
    with running(nats_servers(tmp_path, 3, 3)) as servers:
        check_carries(servers)
        keep_one(servers)
        asyncio.run(crash(servers))
        with wire(servers, "backup", "absent", clean=False) as absent:
            assert absent.session_present
            assert absent.receive().payload == b"kept"
        pids = servers.pids()
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids.values())


def test_an_ordinary_client_leaves_a_server_that_does_not_answer(tmp_path: Path) -> None:
    async def work(servers: Servers) -> None:
        client = OrdinaryClient(servers.addresses, "publisher", keep_alive_s=1)
        await client.begin()
        servers.stop("primary")
        client.publish(HEAD, BODY.pack(1, 1, 5), 1)
        assert await client.settled(ARRIVE_S_MAX)
        await client.close()

    with running(mosquitto_pair(tmp_path)) as servers:
        asyncio.run(work(servers))


def test_an_ordinary_client_bounds_what_waits(tmp_path: Path) -> None:
    async def work(servers: Servers) -> None:
        client = OrdinaryClient(servers.addresses, "publisher", in_flight_max=10, queue_max=20)
        await client.begin()
        servers.stop("primary")
        for sequence in range(40):
            client.publish(HEAD, BODY.pack(1, sequence, 5), sequence)
        assert (client.unacknowledged, client.unsent) == (30, 10)
        servers.go_on("primary")
        assert await client.settled(ARRIVE_S_MAX)
        await client.close()

    with running(mosquitto_pair(tmp_path)) as servers:
        asyncio.run(work(servers))


def test_our_client_is_an_ordinary_client_of_a_foreign_pair(tmp_path: Path) -> None:
    """It goes to the next address, subscribes again, and sends again what was not acknowledged."""

    async def work(servers: Servers) -> None:
        async with (
            await connect(*servers.addresses, client_id="publisher") as publisher,
            await connect(*servers.addresses, client_id="subscriber") as subscriber,
        ):
            await subscriber.subscribe("plant/#", qos=1)
            first = role_at(servers, publisher.address)
            servers.stop(first)
            under_way = asyncio.create_task(publisher.publish("plant/x", b"1", qos=1))
            await asyncio.sleep(0.1)
            servers.kill(first)
            async with asyncio.timeout(ARRIVE_S_MAX):
                await under_way
                while role_at(servers, subscriber.address) in ("", first):
                    await asyncio.sleep(0.01)
                await publisher.publish("plant/x", b"2", qos=1)
                while (await anext(subscriber)).payload != b"2":
                    pass

    with running(mosquitto_pair(tmp_path)) as servers:
        asyncio.run(work(servers))
