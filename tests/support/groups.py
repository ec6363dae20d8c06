"""A group of brokers under test, as processes on fixed ports, each with a data directory of its own.

A member is killed and started again under the same name; its data directory stays.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance.peer import Peer
from conformance.wire import Type, connect
from support.brokers import LOOPBACK, START_S_MAX, STOP_S_MAX, accepts, free_port, wait_until
from support.relay import RelayProcess

NAMES = "abcd"
PROBE_S_MAX = 2.0  # a member may be stopped, or think
PROTECTED = "$SYS/broker/group/protected"
# Tests share a machine: a member that waits for its turn to run is not dead.
PATIENT = 'heartbeat = "20ms"\nsilence = "500ms"\n'


class GroupProcesses:
    """For the length of a `with` block. With `relayed` the links between the members can be cut."""

    def __init__(
        self,
        directory: Path,
        contracts: Path,
        *,
        size: int = 2,
        keep: bool = True,
        relayed: bool = False,
        more: str = PATIENT,
        http: bool = False,
        security: Path | None = None,
    ) -> None:
        self.directory = directory
        self.contracts = contracts
        self.names = NAMES[:size]
        self.keep = keep
        self.more = more
        self.security = security
        self.ports = {name: free_port() for name in self.names}
        self.http = {name: free_port() for name in self.names} if http else {}
        self.listen_peer = {name: free_port() for name in self.names}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.relays = {name: RelayProcess(port) for name, port in self.listen_peer.items()} if relayed else {}
        self.data = {name: directory / f"data-{name}" for name in self.names}

    def group_file(self, name: str) -> Path:
        """What that member is told of the group."""
        path = self.directory / f"group-{name}.toml"
        members = "".join(
            f'[[member]]\nname = "{each}"\nmqtt = "{LOOPBACK}:{self.ports[each]}"\n'
            f'peer = "{LOOPBACK}:{self.peer_port(name, each)}"\n'
            for each in self.names
        )
        path.write_text(f'name = "plant"\n{self.more}\n{members}')
        return path

    def peer_port(self, of: str, name: str) -> int:
        """Where the first member reaches the second, or listens itself."""
        return self.listen_peer[name] if of == name or name not in self.relays else self.relays[name].port

    def __enter__(self) -> Self:
        try:
            for name in self.names:
                self.start(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self.processes):
            self.kill(name)
            if error is not None:
                print(f"stderr of {name}:\n{self.log(name)[-4000:]}")
        for relay in self.relays.values():
            relay.__exit__(None, None, None)

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "holdfast.cli.main", "broker", "--contracts", str(self.contracts)]
        command += ["--group", str(self.group_file(name)), "--member", name]
        if self.keep:
            command += ["--data", str(self.data[name])]
        if self.http:
            command += ["--http", f"{LOOPBACK}:{self.http[name]}"]
        if self.security is not None:
            command += ["--security", str(self.security)]
        with (self.directory / f"stderr-{name}").open("ab") as stderr:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
            )
        wait_until(
            lambda: not self.alive(name) or accepts(self.ports[name]), f"{name} listening", START_S_MAX
        )
        assert self.alive(name), self.log(name)

    def cut(self) -> None:
        """No member hears another any more."""
        for relay in self.relays.values():
            relay.cut()

    def heal(self) -> None:
        for relay in self.relays.values():
            relay.heal()

    def alive(self, name: str) -> bool:
        return self.processes[name].poll() is None

    def log(self, name: str) -> str:
        return (self.directory / f"stderr-{name}").read_text(errors="replace")

    def kill(self, *names: str) -> None:
        for name in names:
            self.processes[name].send_signal(signal.SIGKILL)
        for name in names:
            self.processes.pop(name).wait(STOP_S_MAX)

    def serving(self) -> list[str]:
        """The members that take ordinary clients now."""
        return [name for name in self.processes if self._serves(name)]

    def _serves(self, name: str) -> bool:
        try:
            with Peer(self.ports[name]) as probe:
                probe.send(connect(f"probe-{name}"))
                return probe.expect(Type.CONNACK, PROBE_S_MAX).reason == 0
        except (OSError, AssertionError):
            return False

    def primary(self, seconds_max: float = START_S_MAX) -> str:
        """The one member that serves, once there is one."""
        deadline = time.monotonic() + seconds_max
        while len(found := self.serving()) != 1:
            assert time.monotonic() < deadline, f"serving: {found}"
        return found[0]

    def client(self, name: str | None = None) -> Peer:
        return Peer(self.ports[name or self.primary()])

    def await_event(self, name: str, words: str) -> None:
        wait_until(lambda: words in self.log(name), f"{words!r} in the log of {name}", START_S_MAX)

    def await_protected(self) -> None:
        """The primary says that somebody would take over."""
        deadline = time.monotonic() + START_S_MAX
        while not self._protected(self.primary()):
            for name in self.processes:
                assert self.alive(name), f"{name} ended:\n{self.log(name)}"
            assert time.monotonic() < deadline, "nobody protects the primary"

    def _protected(self, name: str) -> bool:
        try:
            with self.client(name) as client:
                client.connect("is-it-protected")
                client.subscribe(PROTECTED)
                return client.receive().payload == b"1"
        except (OSError, AssertionError):
            return False
