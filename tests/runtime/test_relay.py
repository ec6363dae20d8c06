"""The relay on real sockets: nothing is lost or reordered, and every fault looks like that of a real link."""

import asyncio
import random
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import uvloop

from holdfast.runtime.relay import Close, Cut, Heal, Relay, RelayOptions
from support.brokers import LOOPBACK, free_port, wait_until
from support.relay import RelayProcess

WAIT_S_MAX = 20.0
# Long enough for anything that is on its way to arrive, if it is not held.
SILENCE_S = 0.2

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def target() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as listener:
        listener.settimeout(WAIT_S_MAX)
        yield listener


@pytest.fixture
def relay(target: socket.socket) -> Iterator[RelayProcess]:
    with RelayProcess(target.getsockname()[1], seed=5) as process:
        yield process


@pytest.fixture
def connect(target: socket.socket, relay: RelayProcess) -> Iterator[Callable[[], Pair]]:
    """Connects through the relay; gives the socket of the client and that of the server."""
    with ExitStack() as stack:

        def connect() -> Pair:
            client = stack.enter_context(socket.create_connection((LOOPBACK, relay.port), WAIT_S_MAX))
            server = stack.enter_context(target.accept()[0])
            for end in (client, server):
                end.settimeout(WAIT_S_MAX)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return client, server

        yield connect


def receive(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := end.recv(size - len(data))):
        data += part
    return data


def is_silent(end: socket.socket) -> bool:
    return not select.select([end], [], [], SILENCE_S)[0]


def was_reset(end: socket.socket) -> bool:
    try:
        end.recv(1)
    except ConnectionResetError:
        return True
    return False


def connect_and_receive(port: int) -> None:
    with socket.create_connection((LOOPBACK, port), WAIT_S_MAX) as client:
        client.recv(1)


def round_trip_s(client: socket.socket, server: socket.socket) -> float:
    begun = time.perf_counter()
    client.sendall(b"x")
    server.sendall(receive(server, 1))
    receive(client, 1)
    return time.perf_counter() - begun


@pytest.mark.parametrize(("ms", "jitter_ms"), [(0, 0), (1, 0), (0, 5), (2, 10)])
def test_bytes_pass_in_order_whatever_the_delay(relay, connect, ms, jitter_ms):
    relay.delay(ms, jitter_ms)
    rng = random.Random(1)
    parts = [rng.randbytes(rng.randint(1, 3000)) for _ in range(150)]
    client, server = connect()
    for source, sink in ((client, server), (server, client)):
        for part in parts:
            source.sendall(part)
        whole = b"".join(parts)
        assert receive(sink, len(whole)) == whole
    total = sum(map(len, parts))
    assert relay.status() == {"ok": True, "connections": 1, "forward_bytes": total, "backward_bytes": total}


def test_delay_counts_each_way_and_can_be_changed(relay, connect):
    client, server = connect()
    relay.delay(40)
    assert round_trip_s(client, server) >= 0.08
    relay.delay(0)
    assert min(round_trip_s(client, server) for _ in range(20)) < 0.04


def test_without_delay_it_adds_little(relay, connect):
    client, server = connect()
    assert statistics.median(round_trip_s(client, server) for _ in range(200)) < 0.005


def test_what_is_delayed_does_not_overtake_when_the_delay_ends(relay, connect):
    client, server = connect()
    relay.delay(100)
    client.sendall(b"first ")
    wait_until(lambda: relay.status()["ok"], "the relay's answer", WAIT_S_MAX)
    relay.delay(0)
    client.sendall(b"second")
    assert receive(server, 12) == b"first second"


def test_a_cut_is_silent_and_loses_nothing(relay, connect):
    client, server = connect()
    relay.cut()
    client.sendall(b"forward")
    server.sendall(b"backward")
    assert is_silent(server)
    assert is_silent(client)
    relay.heal()
    assert receive(server, 7) == b"forward"
    assert receive(client, 8) == b"backward"


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_cut_in_one_direction_leaves_the_other(relay, connect, direction):
    client, server = connect()
    relay.cut(direction)
    held, free = (client, server) if direction == "forward" else (server, client)
    held.sendall(b"held")
    free.sendall(b"free")
    assert receive(held, 4) == b"free"
    assert is_silent(free)
    relay.heal()
    assert receive(free, 4) == b"held"


def test_what_was_under_way_when_the_link_was_cut_waits_too(relay, connect):
    client, server = connect()
    relay.delay(50)
    client.sendall(b"late")
    relay.cut()
    assert is_silent(server)
    relay.heal()
    assert receive(server, 4) == b"late"


def test_nobody_learns_through_a_cut_that_the_other_side_has_closed(relay, connect):
    client, server = connect()
    relay.cut()
    client.sendall(b"last words")
    client.close()
    assert is_silent(server)
    relay.heal()
    assert receive(server, 11) == b"last words"


def test_who_connects_through_a_cut_is_heard_when_it_is_healed(relay, target):
    relay.cut("backward")
    with socket.create_connection((LOOPBACK, relay.port), WAIT_S_MAX) as client:
        client.sendall(b"hello")
        assert is_silent(target)
        relay.heal()
        with target.accept()[0] as server:
            assert receive(server, 5) == b"hello"


def test_refused_connections_and_those_that_go_on(relay, connect):
    client, server = connect()
    relay.refuse()
    relay.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, relay.port), WAIT_S_MAX)
    round_trip_s(client, server)
    relay.heal()
    relay.heal()
    round_trip_s(*connect())


def test_closed_connections_are_reset_on_both_sides(relay, connect):
    pairs = [connect() for _ in range(3)]
    relay.close_all()
    assert all(was_reset(end) for pair in pairs for end in pair)
    assert relay.status()["ok"]
    wait_until(lambda: "connections" not in relay.status(), "the links forgotten", WAIT_S_MAX)
    round_trip_s(*connect())


def test_a_reset_is_passed_on_as_one(relay, connect):
    client, server = connect()
    server.sendall(b"unread")
    assert not is_silent(client)
    client.close()
    server.settimeout(WAIT_S_MAX)
    assert was_reset(server)


def test_one_side_may_end_and_still_listen(relay, connect):
    client, server = connect()
    client.sendall(b"question")
    client.shutdown(socket.SHUT_WR)
    assert receive(server, 100) == b"question"
    server.sendall(b"answer")
    server.shutdown(socket.SHUT_WR)
    assert receive(client, 100) == b"answer"
    wait_until(lambda: "connections" not in relay.status(), "the link forgotten", WAIT_S_MAX)


def test_a_target_that_is_not_there():
    with RelayProcess(free_port()) as relay:
        with pytest.raises(ConnectionResetError):
            connect_and_receive(relay.port)
        wait_until(lambda: "connections" not in relay.status(), "the link forgotten", WAIT_S_MAX)


@pytest.mark.parametrize("ms", [0, 60_000])
def test_who_does_not_read_stops_the_sender_and_not_the_relay(relay, connect, ms):
    client, _server = connect()
    relay.delay(ms)
    client.setblocking(False)
    sent = 0
    block = bytes(65_536)
    while select.select([], [client], [], SILENCE_S * 2)[1]:
        sent += client.send(block)
        assert sent < 64 * 2**20
    assert relay.status()["ok"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("what?", "JSON is malformed"),
        ('{"do": "explode"}', "Invalid value 'explode'"),
        ('{"do": "delay"}', "missing required field `ms`"),
        ('{"do": "delay", "ms": -1}', "not negative"),
        ('{"do": "cut", "direction": "up"}', "Invalid enum value 'up'"),
        ('{"do": "heal", "now": 1}', "unknown field `now`"),
    ],
)
def test_commands_that_are_none_are_answered_and_change_nothing(relay, connect, line, words):
    answer = relay.say(line)
    assert not answer["ok"]
    assert words in answer["error"]
    round_trip_s(*connect())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one argument is expected"),
        (["{}"], "missing required field `target`"),
        (['{"target": "nowhere"}'], '"nowhere" is not like "127.0.0.1:1883"'),
        (['{"target": "127.0.0.1:1", "listen": "192.0.2.1:1"}'], "cannot listen on 192.0.2.1:1"),
    ],
)
def test_options_that_cannot_be(arguments, words):
    command = [sys.executable, "-m", "holdfast.runtime.relay", *arguments]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False, stdin=subprocess.DEVNULL
    )
    assert ended.returncode == 1
    assert words in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_it_also_runs_inside_a_process(run):
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(echo, LOOPBACK, 0)
        port = server.sockets[0].getsockname()[1]
        relay = Relay(RelayOptions(f"{LOOPBACK}:{port}"))
        await relay.start()
        reader, writer = await asyncio.open_connection(*relay.address)
        async with asyncio.timeout(WAIT_S_MAX):
            await relay.obey(Cut("forward"))
            writer.write(b"held")
            answer = asyncio.create_task(reader.readexactly(4))
            assert not (await asyncio.wait([answer], timeout=SILENCE_S))[0]
            await relay.obey(Heal())
            assert await answer == b"held"
            await relay.obey(Close())
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        writer.close()
        await relay.close()
        server.close()
        await server.wait_closed()

    run(scenario())
