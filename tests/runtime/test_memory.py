"""A real broker keeps its memory within its bound and gives it back; who fills nothing loses nothing."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

from holdfast.config import PARTS, PARTS_OF_MEMORY
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.packets import (
    Connack,
    Connect,
    Packet,
    Properties,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from runtime.test_http import http_port, status_of
from support.brokers import LOOPBACK, BrokerProcess, StartBroker, wait_until

MIB = 2**20
MEMORY = PARTS * MIB  # for one queue and for a packet a part of it
QUEUES = PARTS_OF_MEMORY["buffer_bytes_max"] * MIB
HOSTILE = 24
WAIT_S_MAX = 20.0
KEPT = Properties(session_expiry=3600)
CONTRACTS = f"""
[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = {{ edge = "1ms" }}
[limits]
memory_bytes_max = {MEMORY}
[[contract]]
name = "promised"
topics = ["promised/#"]
period = "100ms"
deadline = "10s"
loss_tolerance = 0
retention = 2
"""


class Peer:
    """A client on a socket that waits for what it asks."""

    def __init__(self, port: int, name: str, clean_start: bool = True) -> None:
        self.socket = socket.create_connection((LOOPBACK, port), timeout=WAIT_S_MAX)
        self.bytes = b""
        self.packets = self._read()
        self.send(Connect(client_id=name, clean_start=clean_start, properties=KEPT, keep_alive=0))
        assert isinstance(next(self.packets), Connack)

    def _read(self) -> Iterator[Packet]:
        while True:
            found = split(self.bytes, 0)
            if found is None:
                self.bytes += (more := self.socket.recv(1 << 20))
                assert more, "the broker closed the connection"
                continue
            first, start, end = found
            body, self.bytes = self.bytes[start:end], self.bytes[end:]
            yield decode(first, body, 5)

    def send(self, *packets: Packet) -> None:
        self.socket.sendall(b"".join(encode(packet, 5) for packet in packets))

    def subscribe(self, filter: str) -> None:
        self.send(Subscribe(packet_id=1, subscriptions=[Subscription(filter=filter, qos=1)]))
        assert isinstance(next(self.packets), Suback)

    def publish(self, topic: str, *payloads: bytes) -> None:
        """QoS 1, and each is acknowledged."""
        for at in range(0, len(payloads), 100):
            some = payloads[at : at + 100]
            self.send(
                *(
                    Publish(topic=topic, payload=each, qos=1, packet_id=number + 1)
                    for number, each in enumerate(some)
                )
            )
            for _ in some:
                answer = next(self.packets)
                assert isinstance(answer, Puback)
                assert answer.reason == 0

    def close(self) -> None:
        self.socket.close()


def memory(broker: BrokerProcess, which: str) -> int:
    found = re.search(rf"{which}:\s+(\d+) kB", Path(f"/proc/{broker.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def leave_session(port: int, name: str, filter: str) -> None:
    peer = Peer(port, name)
    peer.subscribe(filter)
    peer.close()


def test_queues_that_others_fill_cost_no_one_else_a_message(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    """Small messages, then large ones, to sessions whose clients are away: more than all queues may hold."""
    (tmp_path / "contracts.toml").write_text(CONTRACTS)
    broker = start_broker("--http", f"{LOOPBACK}:0", "--contracts", str(tmp_path / "contracts.toml"))
    for name in ("promised", "plain"):
        leave_session(broker.port, name, f"{name}/honest")
    for number in range(HOSTILE):
        leave_session(broker.port, f"h{number}", f"hostile/{number}")
    publisher = Peer(broker.port, "p")
    before = memory(broker, "VmRSS")
    honest = [b"%d" % number for number in range(110)]
    for name in ("promised", "plain"):
        publisher.publish(f"{name}/honest", *honest)
    most = 0
    for number in range(HOSTILE):
        publisher.publish(f"hostile/{number}", *[b"x"] * 1000)
    for number in range(HOSTILE * 10):
        publisher.publish(f"hostile/{number % HOSTILE}", b"x" * 900_000)
        status = status_of(http_port(broker)).memory
        parts = {part.name: part for part in status.parts}
        assert parts["queues"].bytes <= parts["queues"].bytes_max == QUEUES
        assert status.bytes <= status.bytes_max == MEMORY
        most = max(most, parts["queues"].bytes)
    peak = memory(broker, "VmHWM")
    assert most > QUEUES * 3 // 4, "the attack did not reach the bound"
    for name in ("promised", "plain"):
        client = Peer(broker.port, name, clean_start=False)
        got = []
        while len(got) < len(honest):
            packet = next(client.packets)
            assert isinstance(packet, Publish)
            got.append(packet.payload)
            client.send(Puback(packet_id=packet.packet_id))
        assert got == honest
        client.close()
    for number in range(HOSTILE):
        Peer(broker.port, f"h{number}").close()
    wait_until(lambda: status_of(http_port(broker)).queues.messages_bytes < MIB, "room", WAIT_S_MAX)
    after = memory(broker, "VmRSS")
    publisher.close()
    print(f"before {before / MIB:.0f} MiB, peak {peak / MIB:.0f} MiB, after {after / MIB:.0f} MiB")
    assert peak - before < QUEUES * 2
    assert after - before < QUEUES


def test_half_connects_send_nobody_away(start_broker: StartBroker, tmp_path: Path) -> None:
    """Connections that nobody vouches for fill what there is for them, and no more."""
    (tmp_path / "contracts.toml").write_text(CONTRACTS)
    broker = start_broker("--http", f"{LOOPBACK}:0", "--contracts", str(tmp_path / "contracts.toml"))
    publisher = Peer(broker.port, "p")
    before = memory(broker, "VmRSS")
    packet = encode(Publish(topic="t", payload=b"x" * 500_000, qos=1, packet_id=1), 5)
    publisher.socket.sendall(packet[:300_000])
    halves = []
    for _ in range(200):
        halves.append(socket.create_connection((LOOPBACK, broker.port), timeout=WAIT_S_MAX))
        try:
            halves[-1].sendall(b"\x10\xb8\xff\x07\x00\x04MQTT\x05\x00".ljust(130_900, b"x"))  # of 131,000
        except OSError:
            continue  # it was sent away already
    full = PARTS_OF_MEMORY["connecting_bytes_max"] * MIB

    def filled() -> bool:
        parts = {part.name: part for part in status_of(http_port(broker)).memory.parts}
        assert parts["connecting"].bytes <= full
        return parts["connecting"].bytes > full // 2

    wait_until(filled, "half CONNECTs", WAIT_S_MAX)
    publisher.socket.sendall(packet[300_000:])
    assert isinstance(next(publisher.packets), Puback)
    Peer(broker.port, "late").close()
    for half in halves:
        half.close()
    wait_until(
        lambda: (
            not any(
                part.bytes for part in status_of(http_port(broker)).memory.parts if part.name == "connecting"
            )
        ),
        "room",
        WAIT_S_MAX,
    )
    assert memory(broker, "VmHWM") - before < 4 * full
    publisher.close()


def test_a_large_packet_leaves_no_large_room_behind(start_broker: StartBroker) -> None:
    """What is begun behind a large packet takes its own size, not that of the large one."""
    broker = start_broker()
    peers = [Peer(broker.port, f"c{number}") for number in range(60)]
    before = memory(broker, "VmRSS")
    packet = encode(Publish(topic="t", payload=b"x" * MIB, qos=1, packet_id=1), 5)
    for peer in peers:
        peer.socket.sendall(packet[:-1])
        peer.socket.sendall(packet[-1:] + packet[:10])
        assert isinstance(next(peer.packets), Puback)
    assert memory(broker, "VmRSS") - before < 20 * MIB
    for peer in peers:
        peer.close()
