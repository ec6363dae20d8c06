"""Brokers of others, built for redundancy the way their users build it, as real processes on loopback.

Laws:
- whatever was started here is gone after `close`, whatever happened before
- a system is ready when a QoS 1 message published at each of its servers has come out of every one
- a server is killed by its own process id, and may be started again with what it has on its disk
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import ConfigError, Problem, Unavailable
from holdfast.lab.group import LOOPBACK, POLL_S, START_S_MAX, free_ports
from holdfast.lab.model import Brokers
from holdfast.lab.wire import Wire

IN_FLIGHT_MAX = 1_000
"""QoS 1 messages that a server lets wait for a subscriber's acknowledgement."""
QUEUED_MAX = 1_000_000
READY_S_MAX = 30.0
ROUND_S_MAX = 1.0
MQTT_311 = 4
READY_TOPIC = "lab/ready"
PATHS = f"{os.environ.get('PATH', '')}:/usr/sbin"

MOSQUITTO = """\
user {user}
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {data}/
set_tcp_nodelay true
max_inflight_messages {in_flight_max}
max_queued_messages {queued_max}
log_dest stderr
log_type error
log_type warning
"""
# One connection that carries both ways: a bridge from each side would send everything round and round.
BRIDGE = """
connection pair
address 127.0.0.1:{other}
topic # both 1
bridge_protocol_version mqttv311
try_private true
cleansession false
remote_clientid bridge
restart_timeout 1
notifications false
"""
NATS = """\
server_name: {name}
listen: "127.0.0.1:{client_port}"
jetstream {{ store_dir: "{data}", max_file_store: 8GB }}
mqtt {{
  listen: "127.0.0.1:{port}"
  ack_wait: "1s"
  max_ack_pending: {in_flight_max}
  stream_replicas: {replicas}
  consumer_replicas: {replicas}
}}
"""
CLUSTER = """
cluster {{ name: lab, listen: "127.0.0.1:{cluster_port}", routes: [{routes}] }}
"""


@dataclass
class Server:
    """One process of a system: where it listens, how it is started, and the process while there is one."""

    name: str
    port: int
    command: list[str]
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, f"{self.name} does not run"
        return self.process

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, before: Callable[[], object] | None = None) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, preexec_fn=before, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def end(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Servers:
    """All servers of one system; clients use the first address, and the others when it is lost."""

    def __init__(self, servers: list[Server]) -> None:
        self.members = {server.name: server for server in servers}

    @property
    def addresses(self) -> list[str]:
        return [f"{LOOPBACK}:{server.port}" for server in self.members.values()]

    @property
    def primary(self) -> str:
        """Whom clients use while nothing is lost."""
        return next(iter(self.members))

    @property
    def pids(self) -> dict[str, int]:
        return {name: each.running.pid for name, each in self.members.items() if each.process is not None}

    def start(self, name: str, before: Callable[[], object] | None = None) -> None:
        """Waits until it listens. `before` is called in the new process before it becomes the server."""
        server = self.members[name]
        server.start(before)
        self._await(lambda: _listens(server.port), f"{name} listened on port {server.port}", START_S_MAX)

    def kill(self, name: str) -> int:
        """SIGKILL; returns the time, by the wall clock, at which it was sent."""
        server = self.members[name]
        assert server.process is not None, f"{name} does not run"
        at_ns = time.time_ns()
        server.end()
        return at_ns

    def signal(self, name: str, number: signal.Signals) -> int:
        at_ns = time.time_ns()
        self.members[name].running.send_signal(number)
        return at_ns

    def await_ready(self, seconds: float = READY_S_MAX) -> None:
        self._await(self._carries, f"{', '.join(self.members)} carried a message", seconds)

    def _await(self, reached: Callable[[], bool], what: str, seconds: float) -> None:
        give_up = time.monotonic() + seconds
        while not reached():
            ended = [
                each for each in self.members.values() if each.process and each.process.poll() is not None
            ]
            if ended or time.monotonic() > give_up:
                logs = "\n".join(f"-- {each.name}\n{each.log[-1000:]}" for each in self.members.values())
                raise Unavailable(f"not before it ended, or within {seconds:g} s: {what}\n{logs}")
            time.sleep(POLL_S)

    def _carries(self) -> bool:
        """Whether a message from each running server comes out of every running server."""
        running = [server for server in self.members.values() if server.process is not None]
        try:
            with ExitStack() as stack:
                takers = [stack.enter_context(self._probe(server, "takes")) for server in running]
                givers = [stack.enter_context(self._probe(server, "gives")) for server in running]
                for taker in takers:
                    taker.subscribe(READY_TOPIC)
                for number, giver in enumerate(givers):
                    payload = str(number).encode()
                    giver.publish(READY_TOPIC, payload)
                    for taker in takers:
                        while taker.receive().payload != payload:
                            pass
        except Unavailable:
            return False
        return True

    @staticmethod
    def _probe(server: Server, what: str) -> Wire:
        return Wire(server.port, f"ready-{what}-{server.name}", version=MQTT_311, answer_s_max=ROUND_S_MAX)

    def close(self) -> None:
        for server in self.members.values():
            server.end()


def _listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=ROUND_S_MAX).close()
    except OSError:
        return False
    return True


def program(name: str) -> str:
    """Where that program is."""
    found = shutil.which(name, path=PATHS)
    if found is None:
        raise ConfigError(
            "lab", [Problem("brokers.system", f"{name} is not installed; on Debian: apt-get install {name}")]
        )
    return found


def mosquitto_pair(folder: Path) -> Servers:
    """Two servers, each with its sessions on disk; the second has a bridge to the first."""
    path = program("mosquitto")
    ports = free_ports(2)
    servers = []
    for name, port, other in (("a", ports[0], None), ("b", ports[1], ports[0])):
        place = _place(folder, name)
        conf = MOSQUITTO.format(
            user=pwd.getpwuid(os.geteuid()).pw_name,
            port=port,
            data=place,
            in_flight_max=IN_FLIGHT_MAX,
            queued_max=QUEUED_MAX,
        )
        conf += "" if other is None else BRIDGE.format(other=other)
        servers.append(Server(name, port, [path, "-c", str(_write(place, conf))], place))
    return Servers(servers)


def nats_servers(folder: Path, count: int, replicas: int) -> Servers:
    """MQTT over JetStream: one server, or a cluster that keeps every stream in so many servers."""
    path = program("nats-server")
    ports = free_ports(3 * count)
    mqtt, clients, cluster = ports[:count], ports[count : 2 * count], ports[2 * count :]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in cluster)
    servers = []
    for number, name in enumerate("abcde"[:count]):
        place = _place(folder, name)
        conf = NATS.format(
            name=name,
            client_port=clients[number],
            port=mqtt[number],
            data=place,
            in_flight_max=IN_FLIGHT_MAX,
            replicas=replicas,
        )
        if count > 1:
            conf += CLUSTER.format(cluster_port=cluster[number], routes=routes)
        servers.append(Server(name, mqtt[number], [path, "-c", str(_write(place, conf))], place))
    return Servers(servers)


def _place(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    return place


def _write(place: Path, conf: str) -> Path:
    path = place / "conf"
    path.write_text(conf)
    return path


def servers_of(brokers: Brokers, folder: Path) -> Servers:
    """The foreign system that a plan asks for, not started."""
    if brokers.system == "mosquitto":
        return mosquitto_pair(folder)
    assert brokers.system == "nats", f"{brokers.system} is not a foreign system"
    return nats_servers(folder, brokers.count, brokers.replicas)


@contextmanager
def running_servers(servers: Servers) -> Iterator[Servers]:
    """Started and ready, for the length of a `with` block."""
    try:
        for name in servers.members:
            servers.start(name)
        servers.await_ready()
        yield servers
    finally:
        servers.close()
