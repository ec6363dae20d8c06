"""Real brokers of one group on loopback: started, killed, stopped and started again by their process ids.

Laws:
- whatever was started here is gone when its `with` block ends, whatever happened in it
- a state is awaited, never assumed after a delay, and every wait has an end
- what a member said in all its lives is kept
- Ctrl-C at a terminal is for whoever started the group, which then ends it; it does not reach the members
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.address import LOOPBACK
from holdfast.errors import Unavailable
from holdfast.mqtt.codec import decode, encode, split
from holdfast.mqtt.conventions import VIEW_PROPERTY, WARM_PROPERTY, ViewNote, find_view
from holdfast.mqtt.packets import Connack, Connect, Disconnect, Properties
from holdfast.runtime.ahead import go_ahead
from holdfast.runtime.ports import free_ports
from holdfast.runtime.tether import tethered

START_S_MAX = 20.0
STATE_S_MAX = 20.0
PROBE_S_MAX = 2.0
POLL_S = 0.01


_probes = itertools.count()


def ask_view(port: int) -> ViewNote | None:
    """What the broker at that port, primary or standby, says about its group; None if it does not answer."""
    asks = [(VIEW_PROPERTY, "0"), (WARM_PROPERTY, "1")]
    hello = Connect(client_id=f"probe-{os.getpid()}-{next(_probes)}", properties=Properties(user=asks))
    try:
        with socket.create_connection((LOOPBACK, port), timeout=PROBE_S_MAX) as sock:
            sock.sendall(encode(hello, 5))
            data = bytearray()
            while (frame := split(data)) is None:
                piece = sock.recv(65_536)
                if not piece:
                    return None
                data += piece
            first, start, end = frame
            answer = decode(first, data[start:end], 5)
            assert isinstance(answer, Connack)
            if answer.reason == 0:
                sock.sendall(encode(Disconnect(), 5))
            return find_view(answer.properties.user)
    except OSError:
        return None


class Relay:
    """A link between two members that can be slowed and cut; see holdfast.runtime.relay."""

    def __init__(self, target_port: int) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "holdfast.runtime.relay"),
                json.dumps({"target": f"{LOOPBACK}:{target_port}"}),
            ],
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.port = int(self._answer()["listening"].rpartition(":")[2])

    def tell(self, command: str, **details: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **details}).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer()
        if not answer["ok"]:
            raise ValueError(answer["error"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable("the relay ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@dataclass
class Member:
    """One broker of the group: its addresses, and its process while it has one."""

    name: str
    port: int
    peer_port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} does not run"
        return self.process.pid

    @property
    def log(self) -> str:
        path = self.folder / f"{self.name}.err"
        return path.read_text(errors="replace") if path.exists() else ""

    def said(self, event: str) -> list[str]:
        """The lines of that event, from all its lives."""
        shown = event if " " not in event else f'"{event}"'
        return [line for line in self.log.splitlines() if f"event={shown} " in f"{line} "]


@dataclass
class Settings:
    """How the members watch each other, in the words of the group file; `relayed` puts relays between."""

    heartbeat: str = "5ms"
    silence: str = "30ms"  # empty: as the contracts bear
    join_wait: str = "1s"
    depth: int = 2
    relayed: bool = False
    ahead: bool = False
    realtime: bool = False  # one that is saturated the kernel stops now and then
    options: dict[str, object] = field(default_factory=dict)
    security: dict[str, str] = field(default_factory=dict)  # the file of each member that has one


class Group:
    """Comes from `running_group`."""

    def __init__(self, folder: Path, size: int, contracts: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings
        ports = free_ports(2 * size)
        self.members = {
            name: Member(name, ports[2 * number], ports[2 * number + 1], folder)
            for number, name in enumerate("abcd"[:size])
        }
        self.contracts = dict.fromkeys(self.members, contracts)
        self.relays: dict[tuple[str, str], Relay] = {}

    @property
    def addresses(self) -> list[str]:
        return [f"{LOOPBACK}:{member.port}" for member in self.members.values()]

    # Processes

    def start(self, name: str) -> None:
        member = self.members[name]
        out = self.folder / f"{name}.out"
        out.unlink(missing_ok=True)
        self._write_group(name)
        options = {
            "listen": [[LOOPBACK, member.port]],
            "contracts": str(self.contracts[name]),
            "realtime": self.settings.realtime,
            **self.settings.options,
        }
        if name in self.settings.security:
            options["security"] = self.settings.security[name]
        if len(self.members) > 1:
            options |= {"group": str(self.folder / f"{name}.toml"), "member": name}
        with out.open("wb") as stdout, (self.folder / f"{name}.err").open("ab") as stderr:
            member.process = subprocess.Popen(
                tethered([sys.executable, "-m", "holdfast.runtime.serve", json.dumps(options)]),
                preexec_fn=go_ahead if self.settings.ahead else None,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        self.await_state(lambda: self._listens(member, out), f"{name} listening", START_S_MAX)

    @staticmethod
    def _listens(member: Member, out: Path) -> bool:
        assert member.process is not None
        if member.process.poll() is not None:
            raise Unavailable(f"{member.name} ended with {member.process.returncode}: {member.log[-2000:]}")
        return "listening on" in out.read_text()

    def _write_group(self, name: str) -> None:
        settings = self.settings
        text = (
            f'name = "lab"\nheartbeat = "{settings.heartbeat}"\n'
            + (f'silence = "{settings.silence}"\n' if settings.silence else "")
            + f'join_wait = "{settings.join_wait}"\ndepth = {settings.depth}\n'
        )
        for other in self.members.values():
            port = other.peer_port
            if settings.relayed and name > other.name:
                port = self._relay(name, other).port
            text += (
                f'\n[[member]]\nname = "{other.name}"\nmqtt = "{LOOPBACK}:{other.port}"\n'
                f'peer = "{LOOPBACK}:{port}"\n'
            )
        (self.folder / f"{name}.toml").write_text(text)

    def _relay(self, name: str, other: Member) -> Relay:
        """Of two members the later one dials: its way to the earlier one is the link."""
        key = (name, other.name)
        if key not in self.relays:
            self.relays[key] = Relay(other.peer_port)
        return self.relays[key]

    def kill(self, name: str) -> int:
        """SIGKILL; returns the time at which it was sent."""
        member = self.members[name]
        assert member.process is not None
        at_ns = time.monotonic_ns()
        member.process.send_signal(signal.SIGKILL)
        member.process.wait()
        member.process = None
        return at_ns

    def terminate(self, name: str, seconds: float) -> int:
        """SIGTERM; returns the exit status, which must come within that time."""
        member = self.members[name]
        assert member.process is not None
        member.process.send_signal(signal.SIGTERM)
        status = member.process.wait(seconds)
        member.process = None
        return status

    def signal(self, name: str, number: signal.Signals) -> int:
        at_ns = time.monotonic_ns()
        process = self.members[name].process
        assert process is not None
        process.send_signal(number)
        return at_ns

    def end(self) -> None:
        for member in self.members.values():
            if member.process is not None:
                self.kill(member.name)
        for relay in self.relays.values():
            relay.end()

    # What it is

    def view(self) -> ViewNote | None:
        """What the primary of the highest view says; None while nobody says that it is one."""
        notes = [ask_view(member.port) for member in self.members.values() if member.process is not None]
        told = [note for note in notes if note is not None and note.from_primary]
        return max(told, key=lambda note: note.number, default=None)

    def await_protected(self, heirs: int = 1, seconds: float = STATE_S_MAX) -> ViewNote:
        """Waits until a primary has so many heirs."""
        found: list[ViewNote] = []

        def protected() -> bool:
            note = self.view()
            if note is None or len(note.places) < heirs + 1:
                return False
            found.append(note)
            return True

        self.await_state(protected, f"a primary with {heirs} heirs", seconds)
        return found[-1]

    def await_state(self, reached: Callable[[], bool], what: str, seconds: float = STATE_S_MAX) -> None:
        give_up = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > give_up:
                raise Unavailable(f"{what}: not within {seconds:g} s\n{self.last_words()}")
            time.sleep(POLL_S)

    def last_words(self) -> str:
        return "\n".join(
            f"-- {member.name}\n" + "\n".join(member.log.splitlines()[-20:])
            for member in self.members.values()
        )

    def takeover(self, name: str) -> dict[str, int]:
        """What that member said when it last took over: messages dispatched `again`, `copies` that it got."""
        lines = self.members[name].said("serving")
        return {what: int(count) for what, count in re.findall(r"(\w+)=(\d+)", lines[-1] if lines else "")}


@contextmanager
def running_group(
    size: int, contracts: Path, settings: Settings | None = None, *, started: bool = True
) -> Iterator[Group]:
    """A group that is up and protected, unless the members are to be started one by one."""
    with tempfile.TemporaryDirectory(prefix="holdfast-group-") as place:
        group = Group(Path(place), size, contracts, settings or Settings())
        try:
            if started:
                for name in group.members:
                    group.start(name)
                group.await_protected(size - 1)
            yield group
        finally:
            group.end()
