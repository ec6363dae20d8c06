"""What the claims share: contracts, a group of real brokers, and plain clients that count.

A message is judged by its payload. What a publisher was told is safe must come to every subscriber that was
entitled to it; `Listener` is one that listens and acknowledges in a thread of its own, `come_back` one that
was away.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from conformance import wire
from conformance.peer import Peer
from conformance.wire import P, Packet, Properties, Type
from support.brokers import START_S_MAX, STOP_S_MAX, wait_until
from support.groups import PATIENT, GroupProcesses
from support.relay import RelayProcess

FOREVER: dict[str, object] = {"clean": False, "props": [(P.SESSION_EXPIRY, 0xFFFFFFFF)]}
QUICK = PATIENT + 'join_wait = "500ms"\n'
WINDOW = 500  # of publications that are not acknowledged: brokers allow 1,024
QUIET_S = 0.5
ARRIVE_S_MAX = 8.0
TAKEN = (0x00, 0x10)  # PUBACK and PUBREC: taken, with subscribers or without

CONTRACTS = """
[deployment]
failover = "50ms"
publisher_to_broker = "0ms"
broker_to_backup = "0.05ms"
broker_to_subscriber = { edge = "1ms" }
[[contract]]
name = "kept"
topics = ["kept/#"]
period = "100ms"
deadline = "100ms"
loss_tolerance = 0
retention = 2
durable = true
[[contract]]
name = "strict"
topics = ["strict/#"]
period = "100ms"
deadline = "100ms"
loss_tolerance = 0
retention = 1
"""
OTHER_CONTRACTS = CONTRACTS.replace('"strict"', '"stricter"')


def write_contracts(folder: Path, text: str = CONTRACTS) -> Path:
    path = folder / "contracts.toml"
    path.write_text(text)
    return path


class Plant(GroupProcesses):
    """A group whose members may differ: in their contract file, in what their group file says more, in
    links.

    With `severed` the links between that member and each other one go through relays of their own. Only the
    members of `begin` are started at first, if it is given.
    """

    def __init__(
        self,
        folder: Path,
        *,
        size: int = 2,
        keep: bool = False,
        relayed: bool = False,
        more: str = QUICK,
        severed: str = "",
        http: bool = False,
        begin: str | None = None,
    ) -> None:
        contracts = write_contracts(folder)
        super().__init__(folder, contracts, size=size, keep=keep, relayed=relayed, more=more, http=http)
        self.more_of: dict[str, str] = {}
        self.severed = severed
        self.links: dict[tuple[str, str], RelayProcess] = {}
        if severed:
            for name in self.names:
                if name != severed:
                    self.links[severed, name] = RelayProcess(self.listen_peer[name])
                    self.links[name, severed] = RelayProcess(self.listen_peer[severed])
        self._common = more
        self._begin = self.names if begin is None else begin

    def __enter__(self) -> Self:
        try:
            for name in self._begin:
                self.start(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:  # type: ignore[override]
        for name in list(self.processes):
            self.resume(name)
        super().__exit__(kind, None, trace)  # type: ignore[arg-type]
        for name in self.names:
            if (self.directory / f"stderr-{name}").exists():
                print(f"stderr of {name}:\n{self.log(name)[-4000:]}")  # shown with a test that failed
        for relay in self.links.values():
            relay.__exit__(None, None, None)

    def peer_port(self, of: str, name: str) -> int:
        link = self.links.get((of, name))
        return super().peer_port(of, name) if link is None else link.port

    def group_file(self, name: str) -> Path:
        self.more = self._common + self.more_of.get(name, "")
        return super().group_file(name)

    def sever(self) -> None:
        for relay in self.links.values():
            relay.cut()

    def mend(self) -> None:
        for relay in self.links.values():
            relay.heal()

    def start_together(self, *names: str) -> None:
        threads = [threading.Thread(target=self.start, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(self.alive(name) for name in names)

    def other(self, name: str) -> str:
        (found,) = [each for each in self.names if each != name]
        return found

    def signal(self, name: str, number: int) -> None:
        self.processes[name].send_signal(number)

    def stop(self, name: str) -> None:
        """It stands still."""
        self.signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.signal(name, signal.SIGCONT)

    def reload(self, name: str) -> None:
        self.signal(name, signal.SIGHUP)

    def terminate(self, name: str) -> int:
        self.signal(name, signal.SIGTERM)
        return self.processes.pop(name).wait(STOP_S_MAX)

    def lines(self, name: str, *events: str) -> list[str]:
        """The lines of these events in its log; of all events without any."""
        found = [line for line in self.log(name).splitlines() if re.search(r"event=", line) is not None]
        return [line for line in found if not events or event_of(line) in events]

    def await_serving(self, name: str, seconds_max: float, *, times: int = 1) -> None:
        """As its log says: a client that asks might be what wakes it."""
        wait_until(lambda: len(self.lines(name, "serving")) >= times, f"{name} serving", seconds_max)

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[name]}"

    def views(self) -> list[int]:
        return [int(view) for name in self.names for view in re.findall(r"\bview=(\d+)", self.log(name))]


def event_of(line: str) -> str:
    found = re.search(r'event=(?:"([^"]*)"|(\S+))', line)
    assert found is not None, line
    return found[1] or found[2]


# Publishing


def publish_all(
    peer: Peer,
    topic: str,
    payloads: Iterable[bytes],
    *,
    qos: int = 1,
    props: Properties = (),
    retain: bool = False,
) -> list[bytes]:
    """Publishes them as fast as the window allows; gives what was taken, in the order of the answers."""
    first = Type.PUBACK if qos == 1 else Type.PUBREC
    waiting: dict[int, bytes] = {}
    taken: list[bytes] = []

    def hear() -> None:
        answer = peer.expect_any()
        if answer.type is Type.PUBLISH:
            raise AssertionError("a publisher that subscribes listens itself")
        assert answer.pid is not None
        if answer.type is first and answer.reason in TAKEN:
            taken.append(waiting[answer.pid])
        if answer.type is Type.PUBREC and answer.reason in TAKEN:
            peer.send(wire.ack(Type.PUBREL, answer.pid))
        else:
            del waiting[answer.pid]

    for payload in payloads:
        while len(waiting) >= WINDOW:
            hear()
        pid = 1 + peer.next_pid() % 60_000
        waiting[pid] = payload
        peer.send(wire.publish(topic, payload, qos=qos, pid=pid, props=props, retain=retain))
    while waiting:
        hear()
    return taken


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


# Receiving


def answer(peer: Peer, packet: Packet) -> None:
    """What a subscriber owes for this packet."""
    if packet.type is Type.PUBLISH and packet.pid is not None:
        peer.send(wire.ack(Type.PUBACK if packet.qos == 1 else Type.PUBREC, packet.pid))
    elif packet.type is Type.PUBREL:
        assert packet.pid is not None
        peer.send(wire.ack(Type.PUBCOMP, packet.pid))


class Listener:
    """A subscriber that acknowledges whatever comes, until it is dropped or its broker ends."""

    def __init__(
        self,
        port: int,
        client_id: str,
        *filters: str,
        qos: int = 1,
        props: Properties = (),
        present: bool = False,
    ) -> None:
        self.peer = Peer(port)
        self.messages: list[Packet] = []
        self.goodbye: Packet | None = None
        connack = self.peer.connect(client_id, **FOREVER)
        assert connack.session_present or not present, f"the session of {client_id} is not there"
        if filters:
            codes = self.peer.subscribe(*[(each, qos) for each in filters], props=props).reasons
            assert all(code == qos for code in codes), codes
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            while True:
                packet = self.peer.expect_any(3600)
                answer(self.peer, packet)
                if packet.type is Type.PUBLISH:
                    self.messages.append(packet)
                elif packet.type is Type.DISCONNECT:
                    self.goodbye = packet
        except (AssertionError, OSError, ValueError):
            return  # closed, by whomever

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def drop(self) -> None:
        with contextlib.suppress(OSError):  # it may be closed already
            self.peer._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(STOP_S_MAX)
        self.peer.drop()

    @property
    def came(self) -> list[bytes]:
        return [packet.payload for packet in self.messages]

    def await_all(self, expected: Iterable[bytes], seconds_max: float = ARRIVE_S_MAX) -> None:
        wanted = set(expected)
        try:
            wait_until(lambda: wanted <= set(self.came), "everything", seconds_max)
        except TimeoutError:
            missing = sorted(wanted - set(self.came))
            raise AssertionError(f"{len(missing)} of {len(wanted)} never came: {missing[:10]}") from None

    def await_ended(self) -> Packet | None:
        """The broker closed; gives the DISCONNECT that it sent before."""
        self._thread.join(START_S_MAX)
        assert not self._thread.is_alive(), "the connection stays open"
        return self.goodbye

    def settle(self) -> None:
        """Until nothing has come for QUIET_S."""
        count, since = len(self.messages), time.monotonic()
        while time.monotonic() - since < QUIET_S:
            time.sleep(0.02)
            if len(self.messages) != count:
                count, since = len(self.messages), time.monotonic()

    def repeats(self) -> int:
        return sum(count - 1 for count in Counter(self.came).values())


def come_back(
    port: int, client_id: str, expected: Iterable[bytes], *filters: str, qos: int = 1
) -> list[bytes]:
    """A client that was away takes up its session: all that it was owed must come. Gives all that came."""
    with Listener(port, client_id, *filters, qos=qos, present=True) as listener:
        listener.await_all(expected)
        listener.settle()
        return listener.came


def leave_session(port: int, client_id: str, *filters: str, qos: int = 1) -> None:
    """A session that is away from now on, with these subscriptions."""
    with Peer(port) as peer:
        peer.connect(client_id, **FOREVER)
        if filters:
            assert set(peer.subscribe(*[(each, qos) for each in filters]).reasons) == {qos}
        peer.send(wire.disconnect())


def ask_connect(port: int, client_id: str = "asks") -> Packet:
    """The CONNACK, whatever it says."""
    with Peer(port) as peer:
        peer.send(wire.connect(client_id))
        return peer.expect(Type.CONNACK)


def reads(port: int, topic: str) -> str:
    """A retained or $SYS topic, as a plain client reads it."""
    with Peer(port) as peer:
        peer.connect("reads")
        peer.subscribe(topic)
        return peer.receive().payload.decode()


def never(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it stays untrue for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return False
        time.sleep(0.02)
    return True


def run_holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", *arguments],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
