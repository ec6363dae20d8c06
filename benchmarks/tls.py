"""What TLS and WebSocket cost a broker: CPU per message beside plain MQTT, and CPU per handshake.

One broker has a listener for each; they take turns under the same load. The generator masks WebSocket frames
with a key of zeros, which costs it nothing; the broker unmasks them all the same.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.lab.group import Settings, running_group
from holdfast.runtime.ports import free_ports

from .brokers import KINDS, Broker, Kind, cpu_spent_ns
from .contracts import plant
from .load import Measured
from .measure import alone, ratio, spread, take_turns
from .report import Outcome, Table, Verdict
from .stage import Run, check_delivery, generator
from .throughput import LOAD, TOPICS, WARM_UP_MESSAGES, costs, raw
from .wires import read_exactly

HANDSHAKES = 400
HANDSHAKES_QUICK = 40
MASKED = b"\x00\x00\x00\x00"
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
KEYS = {
    "ECDSA P-256": ("ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
    "RSA 2048": ("rsa:2048",),
}


class Framed:
    """A socket on which everything goes in WebSocket frames."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.left = 0  # of the frame under way
        self.head = b""
        self.setsockopt, self.fileno, self.close = sock.setsockopt, sock.fileno, sock.close
        sock.sendall(UPGRADE)
        said = b""
        while not said.endswith(b"\r\n\r\n"):
            said += read_exactly(sock, 1)
        assert said.startswith(b"HTTP/1.1 101 "), said

    def __enter__(self) -> Framed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sendall(self, data: bytes) -> None:
        size = len(data)
        if size < 126:
            head = bytes([0x82, 0x80 | size])
        else:
            head = (
                b"\x82\xfe" + size.to_bytes(2, "big")
                if size < 65536
                else b"\x82\xff" + size.to_bytes(8, "big")
            )
        self.sock.sendall(head + MASKED + data)

    def recv(self, size: int) -> bytes:
        if not self.left:
            self._begin(self.head + read_exactly(self.sock, 2 - len(self.head)))
        data = self.sock.recv(min(size, self.left))
        self.left -= len(data)
        return data

    def _begin(self, head: bytes) -> None:
        assert head[0] == 0x82, head
        extra = {126: 2, 127: 8}.get(head[1], 0)
        self.left = int.from_bytes(read_exactly(self.sock, extra), "big") if extra else head[1]
        self.head = b""

    def recv_into(self, buffer: bytearray) -> int:
        """So many bytes of frames came; what they are is not looked at."""
        size = self.sock.recv_into(buffer)
        at = came = 0
        while at < size:
            if not self.left:
                self.head += bytes(buffer[at : at + 1])
                at += 1
                extra = {126: 2, 127: 8}.get(self.head[1], 0) if len(self.head) > 1 else 9
                if len(self.head) == 2 + extra:
                    self.left = int.from_bytes(self.head[2:], "big") if extra else self.head[1]
                    self.head = b""
                continue
            part = min(self.left, size - at)
            self.left -= part
            at += part
            came += part
        return came


@dataclass
class Transport(Broker):
    """The broker, reached in one way."""

    tls: ssl.SSLContext | None = None
    framed: bool = False

    def connect(self, receive_buffer_bytes: int | None = None) -> socket.socket:
        sock = super().connect(receive_buffer_bytes)
        if self.tls is not None:
            sock = self.tls.wrap_socket(sock)
        return Framed(sock) if self.framed else sock  # type: ignore[return-value]


def make_certificate(folder: Path, kind: str) -> tuple[Path, Path]:
    certificate, key = folder / "server.pem", folder / "server.key"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                *KEYS[kind],
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=broker",
            ),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    return certificate, key


@contextmanager
def transports(key_kind: str) -> Iterator[dict[str, Transport]]:
    """One broker and every way to it."""
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as place:
        folder = Path(place)
        certificate, key = make_certificate(folder, key_kind)
        ports = dict(zip(("tls", "websocket", "websocket in tls"), free_ports(3), strict=True))
        (folder / "contracts.toml").write_text(plant(TOPICS).toml())
        (folder / "security.toml").write_text(
            f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
            + "".join(
                f'[[listener]]\naddress = "127.0.0.1:{port}"\ntls = {str("tls" in name).lower()}\n'
                f'protocol = "{"websocket" if "websocket" in name else "mqtt"}"\n'
                for name, port in ports.items()
            )
        )
        settings = Settings(security={"a": str(folder / "security.toml")})
        with running_group(1, folder / "contracts.toml", settings, started=False) as group:
            group.start("a")
            member = group.members["a"]
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(certificate)
            kind: Kind = KINDS["holdfast"]
            found = {"plain": Transport(kind, member.pid, member.port)}
            for name, port in ports.items():
                tls = context if "tls" in name else None
                found[name] = Transport(kind, member.pid, port, tls, "websocket" in name)
            yield found


def _load(transport: Transport, topics: list[str], run: Run) -> Measured:
    load = generator(transport, topics)
    load.run(messages=WARM_UP_MESSAGES, seconds=run.seconds)
    return load.run(seconds=run.seconds)


def shake(transport: Transport, count: int, resumed: bool) -> float:
    """Milliseconds of broker CPU for each connection, from its first byte to its CONNACK."""
    assert transport.tls is not None
    wire = transport.wire()
    session = None
    mark = transport.cpu_ns()
    for number in range(count + 1):
        if number == 1:
            mark = transport.cpu_ns()
        sock = Broker.connect(transport)
        secure = transport.tls.wrap_socket(sock, session=session)
        wire.open(secure, f"shaking-{number}")
        assert secure.session_reused == (session is not None)
        if resumed:
            session = secure.session
        secure.close()
    return cpu_spent_ns(mark, transport.cpu_ns()) / count / 1e6


def plain_connects(transport: Transport, count: int) -> float:
    """The same without TLS."""
    wire = transport.wire()
    mark = transport.cpu_ns()
    for number in range(count):
        sock = Broker.connect(transport)
        wire.open(sock, f"plain-{number}")
        sock.close()
    return cpu_spent_ns(mark, transport.cpu_ns()) / count / 1e6


def handshakes(key_kind: str, run: Run) -> dict[str, list[float]]:
    count = HANDSHAKES_QUICK if run.quick else HANDSHAKES
    took: dict[str, list[float]] = {"plain": [], "full": [], "resumed": []}
    with transports(key_kind) as ways:
        for _ in range(run.turns):
            took["plain"].append(alone(plain_connects, ways["plain"], count))
            took["full"].append(alone(shake, ways["tls"], count, False))
            took["resumed"].append(alone(shake, ways["tls"], count, True))
    return took


def tls(run: Run) -> Outcome:
    topics = plant(TOPICS).topics()
    with transports("ECDSA P-256") as ways:
        for way in ways.values():
            check_delivery(way, topics)
        turns = take_turns(ways, run.turns, lambda name: _load(ways[name], topics, run))
    rows = [
        (
            name,
            spread(costs(turns, name)).show("{:.3f}"),
            ratio(costs(turns, name), costs(turns, "plain")).show("{:.2f}"),
            f"{spread(each.per_second for each in measured).median:,.0f}",
            f"{spread(each.busy for each in measured).median:.2f}",
            f"{spread(each.generator_cpu_ns / each.wall_ns for each in measured).median:.2f}",
        )
        for name, measured in turns.items()
    ]
    columns = ("", "broker CPU µs/message", "of plain", "messages/s", "broker cores", "generator cores")
    shaken = {kind: handshakes(kind, run) for kind in KEYS}
    greeted = [
        (
            f"{kind}, {way}",
            spread(took[way]).show("{:.2f}"),
            f"{1000 / spread(took[way]).median:,.0f}",
        )
        for kind, took in shaken.items()
        for way in took
    ]
    found = ratio(costs(turns, "tls"), costs(turns, "plain"))
    return Outcome(
        [
            Table("tls, qos0, saturated", columns, rows, (LOAD,)),
            Table(
                "connections, one after another, from the first byte to CONNACK",
                ("", "broker CPU ms/connection", "connections/s of a core"),
                greeted,
            ),
        ],
        [Verdict("CPU per message in TLS, QoS 0", "reported", f"{found.show('{:.2f}')} of plain", None)],
        {"load": raw(turns), "connections": shaken},
    )
