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
from typing import TypeVar

from holdfast.address import LOOPBACK
from holdfast.errors import ConfigError, Problem, Unavailable
from holdfast.lab.brokers import HoldfastBrokers
from holdfast.lab.group import POLL_S, START_S_MAX
from holdfast.lab.model import Plan
from holdfast.lab.system import System
from holdfast.lab.wire import Wire
from holdfast.runtime.ports import free_ports
from holdfast.runtime.tether import tethered

IN_FLIGHT_MAX = 1_000
"""QoS 1 messages that a server lets wait for a subscriber's acknowledgement."""
QUEUED_MAX = 1_000_000
ROLES = ("primary", "backup", "backup 2", "backup 3")
READY_S_MAX = 30.0
ROUND_S_MAX = 1.0
MQTT_311 = 4
READY_TOPIC = "lab/ready"
PATHS = f"{os.environ.get('PATH', '')}:/usr/sbin"

SomeSystem = TypeVar("SomeSystem", bound=System)

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

    port: int
    command: list[str]
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, f"the server in {self.folder} does not run"
        return self.process

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                tethered(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Servers:
    """A system of such servers; see `system.System`. Clients use the first, the others when it is lost."""

    def __init__(self, servers: list[Server]) -> None:
        self.members = dict(zip(ROLES, servers, strict=False))

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"{LOOPBACK}:{server.port}" for server in self.members.values())

    def pids(self) -> dict[str, int]:
        return {role: each.running.pid for role, each in self.members.items() if each.process is not None}

    def start(self) -> None:
        for role in self.members:
            self.start_again(role)

    def start_again(self, role: str) -> None:
        """With what it has on its disk; returns when it listens."""
        server = self.members[role]
        server.start()
        self._await(lambda: _listens(server.port), f"the {role} listens on port {server.port}", START_S_MAX)

    def kill(self, role: str) -> int:
        server = self.members[role]
        assert server.process is not None, f"the {role} does not run"
        at_ns = time.time_ns()
        server.end()
        return at_ns

    def stop(self, role: str) -> int:
        at_ns = time.time_ns()
        self.members[role].running.send_signal(signal.SIGSTOP)
        return at_ns

    def go_on(self, role: str) -> None:
        self.members[role].running.send_signal(signal.SIGCONT)

    def cut(self) -> int:
        raise ConfigError(
            "lab",
            [Problem("fault.kind", "only the links between Holdfast's brokers can be cut: kill or stop")],
        )

    def heal(self) -> None:
        """Nothing was cut."""

    def takeover(self) -> dict[str, int]:
        """They do not say."""
        return {}

    def takeovers(self) -> int:
        return 0

    def last_words(self) -> str:
        return "\n".join(f"-- {role}\n{each.log[-1000:]}" for role, each in self.members.items())

    def await_ready(self, seconds: float = READY_S_MAX) -> None:
        self._await(self._carries, "a message from each server comes out of every one", seconds)

    def _await(self, reached: Callable[[], bool], what: str, seconds: float) -> None:
        give_up = time.monotonic() + seconds
        while not reached():
            ended = [
                each for each in self.members.values() if each.process and each.process.poll() is not None
            ]
            if ended or time.monotonic() > give_up:
                why = "a server ended" if ended else f"not within {seconds:g} s"
                raise Unavailable(f"{what}: {why}\n{self.last_words()}")
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
        return Wire(server.port, f"ready-{what}-{server.port}", version=MQTT_311, answer_s_max=ROUND_S_MAX)

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
    for name, port, bridge in (("a", ports[0], ""), ("b", ports[1], BRIDGE.format(other=ports[0]))):
        place = folder / name
        conf = MOSQUITTO.format(
            user=pwd.getpwuid(os.geteuid()).pw_name,
            port=port,
            data=place,
            in_flight_max=IN_FLIGHT_MAX,
            queued_max=QUEUED_MAX,
        )
        servers.append(Server(port, [path, "-c", _written(place, conf + bridge)], place))
    return Servers(servers)


def nats_servers(folder: Path, count: int, replicas: int) -> Servers:
    """MQTT over JetStream: one server, or a cluster that keeps every stream in so many servers."""
    path = program("nats-server")
    ports = free_ports(3 * count)
    mqtt, clients, cluster = ports[:count], ports[count : 2 * count], ports[2 * count :]
    routes = ", ".join(f'"nats://{LOOPBACK}:{port}"' for port in cluster)
    servers = []
    for number, port in enumerate(mqtt):
        place = folder / f"server-{number}"
        conf = NATS.format(
            name=place.name,
            client_port=clients[number],
            port=port,
            data=place,
            in_flight_max=IN_FLIGHT_MAX,
            replicas=replicas,
        )
        if count > 1:
            conf += CLUSTER.format(cluster_port=cluster[number], routes=routes)
        servers.append(Server(port, [path, "-c", _written(place, conf)], place))
    return Servers(servers)


def _written(place: Path, conf: str) -> str:
    place.mkdir()
    path = place / "conf"
    path.write_text(conf)
    return str(path)


def system_of(plan: Plan, folder: Path) -> System:
    """The brokers that a plan asks for, not started; their files are in `folder`."""
    brokers = plan.brokers
    match brokers.system:
        case "holdfast":
            return HoldfastBrokers(plan, folder)
        case "mosquitto":
            return mosquitto_pair(folder)
        case "nats":
            return nats_servers(folder, brokers.count, brokers.replicas)


@contextmanager
def running(system: SomeSystem) -> Iterator[SomeSystem]:
    """Started and ready, for the length of a `with` block."""
    try:
        system.start()
        system.await_ready()
        yield system
    finally:
        system.close()
