"""One session stays away while brokers are killed: plain clients count what comes again.

A delivery that was acknowledged more than LAG_S before its broker was killed never comes again; one of QoS 2
never does. Messages are published while the group is calm, so that no publisher sends one twice.
"""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance import wire
from conformance.peer import Peer
from conformance.wire import P, Type
from support.brokers import wait_until
from support.groups import GroupProcesses

LAG_S = 0.1
WAIT_S_MAX = 30.0
KILLS = 5
EACH_TIME = 200
CONTRACT = """
[deployment]
failover = "500ms"
publisher_to_broker = "1ms"
broker_to_backup = "1ms"
broker_to_subscriber = { edge = "1ms" }

[[contract]]
name = "kept"
topics = ["kept/+"]
period = "1s"
deadline = "2s"
loss_tolerance = 0
retention = 2
durable = true
"""
EXPIRY = [(P.SESSION_EXPIRY, 3600)]


class PlainClient(threading.Thread):
    """Takes what comes and acknowledges it, wherever it is let in; knows its QoS 2 identifiers."""

    def __init__(self, name: str, qos: int, ports: Callable[[], list[int]]) -> None:
        super().__init__(daemon=True)
        self.client_id, self.qos, self.ports = name, qos, ports
        self.had: dict[bytes, float] = {}  # when it acknowledged it first
        self.again: list[
            tuple[bytes, float, bool]
        ] = []  # what came again, how long after, and whether with DUP
        self.subscribed = threading.Event()
        self.over = False
        self._under_way: dict[int, bytes] = {}

    def run(self) -> None:
        while not self.over:
            for port in self.ports():
                try:
                    with Peer(port) as peer:
                        self._serve(peer)
                except (OSError, AssertionError):
                    time.sleep(0.01)

    def _serve(self, peer: Peer) -> None:
        peer.connect(self.client_id, clean=False, props=EXPIRY)
        if not self.subscribed.is_set():
            peer.subscribe(("kept/1", self.qos))
            self.subscribed.set()
        while not self.over:
            try:
                packet = peer.expect_any(0.5)
            except TimeoutError:
                continue
            if packet.type is Type.PUBREL:
                assert packet.pid is not None
                self._under_way.pop(packet.pid, None)
                peer.send(wire.ack(Type.PUBCOMP, packet.pid))
            elif packet.type is Type.PUBLISH:
                self._take(peer, packet)

    def _take(self, peer: Peer, packet: wire.Packet) -> None:
        if packet.qos == 2 and packet.pid in self._under_way:
            assert self._under_way[packet.pid] == packet.payload
        elif packet.payload in self.had:
            self.again.append((packet.payload, self.had[packet.payload], packet.dup))
        if packet.qos:
            assert packet.pid is not None
            peer.send(wire.ack(Type.PUBACK if packet.qos == 1 else Type.PUBREC, packet.pid))
        if packet.qos == 2:
            self._under_way[packet.pid] = packet.payload
        self.had.setdefault(packet.payload, time.monotonic())


class Plant:
    def __init__(self, group: GroupProcesses) -> None:
        self.group = group
        self.sent = 0
        with self.client("away") as away:
            away.subscribe(("kept/1", 1))
        self.clients = [PlainClient(f"q{qos}", qos, lambda: list(group.ports.values())) for qos in (1, 2)]
        for client in self.clients:
            client.start()
            assert client.subscribed.wait(WAIT_S_MAX)

    def client(self, name: str) -> Peer:
        peer = self.group.client()
        peer.connect(name, clean=False, props=EXPIRY)
        return peer

    def publish(self, count: int) -> None:
        with self.client("publisher") as publisher:
            for _ in range(count):
                self.sent += 1
                publisher.publish("kept/1", b"%d" % self.sent, qos=1 + self.sent % 2)
        wait_until(
            lambda: all(len(each.had) == self.sent for each in self.clients), "all to have all", WAIT_S_MAX
        )

    def check(self, ended: list[float]) -> None:
        """Nothing came again but what was acknowledged just before one of these times, QoS 2 not at all."""
        for client in self.clients:
            for payload, at, dup in client.again:
                assert dup
                assert any(0 <= end - at <= LAG_S for end in ended), (client.client_id, payload)
                assert int(payload) % 2 == 0 or client.qos == 1, (client.client_id, payload)

    def check_the_one_that_was_away(self) -> None:
        with self.client("away") as away:
            assert sorted(int(payload) for payload in away.receive_payloads(self.sent)) == list(
                range(1, self.sent + 1)
            )
            away.expect_quiet()

    def end(self) -> None:
        for client in self.clients:
            client.over = True
        for client in self.clients:
            client.join(WAIT_S_MAX)


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    path = tmp_path / "contracts.toml"
    path.write_text(CONTRACT)
    return path


def test_a_session_that_is_away_makes_nobody_elses_messages_come_again(
    tmp_path: Path, contracts: Path
) -> None:
    ended: list[float] = []
    with GroupProcesses(tmp_path, contracts) as group:
        group.await_protected()
        plant = Plant(group)
        for _ in range(KILLS):
            plant.publish(EACH_TIME)
            primary = group.primary()
            ended.append(time.monotonic())
            group.kill(primary)
            group.primary()
            group.start(primary)
            group.await_protected()
        plant.publish(1)
        plant.check(ended)
        ended.append(time.monotonic())
        group.kill(*group.names)  # and from the journals
        for name in group.names:
            group.start(name)
        group.await_protected()
        plant.publish(1)
        plant.check(ended)
        plant.check_the_one_that_was_away()
        plant.end()
        print({client.client_id: len(client.again) for client in plant.clients})


def test_a_planned_stop_makes_nothing_come_again(tmp_path: Path, contracts: Path) -> None:
    with GroupProcesses(tmp_path, contracts) as group:
        group.await_protected()
        plant = Plant(group)
        for _ in range(2):
            plant.publish(EACH_TIME)
            primary = group.primary()
            leaving = group.processes.pop(primary)
            leaving.send_signal(signal.SIGTERM)
            leaving.wait(WAIT_S_MAX)
            group.primary()
            group.start(primary)
            group.await_protected()
        plant.publish(1)
        plant.check([])
        plant.check_the_one_that_was_away()
        plant.end()
