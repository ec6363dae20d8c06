"""Start each contestant on loopback with settings that favour none, and read its CPU and memory from /proc.

A broker started here is killed by its own process id when its `with` block ends, whatever happened in it.
"""

from __future__ import annotations

import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path

from holdfast.runtime.ahead import go_ahead
from holdfast.runtime.ports import free_ports

from .contracts import Contracts
from .wires import Mqtt, Nats, Wire

NAMES = ("holdfast", "mosquitto", "nats", "amqtt")
START_S_MAX = 30.0
INFLIGHT_MAX = 1_000
"""QoS 1 messages that may wait for an acknowledgement, in each direction, for every contestant."""

MOSQUITTO_CONF = f"""\
listener {{port}} 127.0.0.1
allow_anonymous true
persistence false
set_tcp_nodelay true
max_queued_messages 0
max_queued_bytes 0
max_inflight_messages {INFLIGHT_MAX}
max_connections -1
sys_interval 0
log_dest none
"""
NATS_CONF = """\
listen: "127.0.0.1:{port}"
max_connections: 64K
max_subscriptions: 0
max_pending: 64MB
write_deadline: "10s"
ping_interval: "1h"
"""
AMQTT_CONF = """\
listeners:
  default: {{type: tcp, bind: "127.0.0.1:{port}", max_connections: 20000}}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin: {{allow_anonymous: true}}
"""


class NotStarted(Exception):
    """A contestant did not come up; the text carries what it last said."""


@dataclass(frozen=True)
class Kind:
    """How one contestant is found, configured, started and spoken to."""

    name: str
    version: Callable[[], str | None]
    settings: str
    command: Callable[[Path], list[str]]
    conf: str | None = None
    wires: dict[str, Wire] = field(default_factory=dict)
    """The wire for each purpose: `plain` for QoS 0, `stamped` with our user property, `qos1`."""
    window_max: int = 1_000_000
    """Fewer messages under way for a contestant that takes longer than a turn to empty the usual window."""


@dataclass
class Broker:
    """One running contestant."""

    kind: Kind
    pid: int
    port: int

    @property
    def name(self) -> str:
        return self.kind.name

    def wire(self, purpose: str = "plain") -> Wire:
        return self.kind.wires[purpose]

    def connect(self, receive_buffer_bytes: int | None = None) -> socket.socket:
        sock = socket.socket()
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.settimeout(START_S_MAX)
        sock.connect(("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def cpu_ns(self) -> dict[str, int]:
        """Time on a processor, user and system, by thread."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return {task.name: int((task / "schedstat").read_text().split()[0]) for task in tasks}

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


def cpu_spent_ns(before: dict[str, int], after: dict[str, int]) -> int:
    """CPU between two marks; a thread that ended between them took its time with it, so that is an error."""
    if ended := before.keys() - after.keys():
        raise RuntimeError(f"threads {sorted(ended)} ended during the measurement")
    return sum(after.values()) - sum(before.values())


def _executable(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


def _said(name: str, *arguments: str) -> str | None:
    path = _executable(name)
    if path is None:
        return None
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+\.\d+\.\d+)", done.stdout + done.stderr)
    return found[1] if found else "unknown"


def _packaged(distribution: str, module: str) -> str | None:
    try:
        return metadata.version(distribution) if util.find_spec(module) else None
    except (metadata.PackageNotFoundError, ModuleNotFoundError):
        return None


KINDS: dict[str, Kind] = {
    "holdfast": Kind(
        "holdfast",
        lambda: _packaged("holdfast", "holdfast.cli.main"),
        "defaults, with the contracts of the benchmark",
        lambda folder: [
            *(sys.executable, "-m", "holdfast.cli.main", "broker"),
            *("--listen", "127.0.0.1:0", "--contracts", str(folder / "contracts.toml")),
        ],
        wires={"plain": Mqtt(4), "stamped": Mqtt(5), "qos1": Mqtt(5)},
    ),
    "mosquitto": Kind(
        "mosquitto",
        lambda: _said("mosquitto", "-h"),
        "; ".join(MOSQUITTO_CONF.splitlines()[1:]),
        lambda folder: [_executable("mosquitto") or "mosquitto", "-c", str(folder / "conf")],
        MOSQUITTO_CONF,
        {"plain": Mqtt(4), "stamped": Mqtt(5), "qos1": Mqtt(5)},
    ),
    "nats": Kind(
        "nats",
        lambda: _said("nats-server", "--version"),
        "; ".join(NATS_CONF.splitlines()[1:]),
        lambda folder: [_executable("nats-server") or "nats-server", "-c", str(folder / "conf")],
        NATS_CONF,
        {"plain": Nats(), "stamped": Nats()},
    ),
    "amqtt": Kind(
        "amqtt",
        lambda: _packaged("amqtt", "amqtt"),
        "anonymous, no other plugin; at most 100 messages under way",
        lambda folder: [sys.executable, "-m", "amqtt.scripts.broker_script", "-c", str(folder / "conf")],
        AMQTT_CONF,
        {"plain": Mqtt(4), "qos1": Mqtt(4)},
        window_max=100,
    ),
}
assert tuple(KINDS) == NAMES


def raise_file_limit() -> int:
    """As many open files as this user may have; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextmanager
def running(name: str, contracts: Contracts, ahead: bool = False) -> Iterator[Broker]:
    """One contestant, up and answering; `ahead` of other work on this machine if asked."""
    kind = KINDS[name]
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as place:
        folder = Path(place)
        folder.chmod(0o755)  # mosquitto gives up root before it reads on
        (folder / "contracts.toml").write_text(contracts.toml())
        port = 0
        if kind.conf is not None:
            (port,) = free_ports(1)
            (folder / "conf").write_text(kind.conf.format(port=port))
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                kind.command(folder),
                preexec_fn=go_ahead if ahead else None,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
            )
        try:
            yield Broker(kind, process.pid, _await_port(process, port, folder))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _await_port(process: subprocess.Popen[bytes], port: int, folder: Path) -> int:
    """The port it serves on: the one we gave it, or (port 0) the one it prints."""
    give_up = time.monotonic() + START_S_MAX
    while time.monotonic() < give_up and process.poll() is None:
        printed = re.search(
            r"listening on mqtt://127\.0\.0\.1:(\d+)", (folder / "out").read_text(errors="replace")
        )
        found = port or (int(printed[1]) if printed else 0)
        if found and _answers(found):
            return found
        time.sleep(0.01)
    said = (folder / "err").read_text(errors="replace") + (folder / "out").read_text(errors="replace")
    raise NotStarted(f"{' '.join(map(str, process.args))} did not start; it said:\n{said[-2000:]}")


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def field_of(names: list[str], contracts: Contracts, ahead: bool = False) -> Iterator[dict[str, Broker]]:
    """Every named contestant, all running at once, so that they can take turns."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(running(name, contracts, ahead)) for name in names}
