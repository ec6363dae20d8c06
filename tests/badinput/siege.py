"""Attackers on one side, a canary on the other.

Laws, checked when a siege ends: the broker is the same process and alive; the canary, connected since before
the attack, gets its own message within CANARY_S_MAX; the broker holds no more file descriptors than before.
"""

import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from conformance.peer import Peer
from conformance.wire import PINGREQ, V5, Packet, Type
from support.brokers import HOLDFAST, MOSQUITTO, BrokerProcess, broker_kind, wait_until

CANARY_S_MAX = 2.0
SETTLE_S_MAX = 10.0
ERROR = 0x80


def mosquitto_deviates(reason: str) -> pytest.MarkDecorator:
    """Expected to fail when Mosquitto stands in for Holdfast, and only then."""
    return pytest.mark.xfail(broker_kind() == MOSQUITTO, reason=reason, strict=True)


class Attacker(Peer):
    """A peer that asks what came back, instead of saying what must."""

    def until_pong(self, seconds_max: float = 5.0) -> list[Packet]:
        """Sends PINGREQ; everything that the server sent before it answered that, or before it closed."""
        self.send(PINGREQ)
        deadline = time.monotonic() + seconds_max
        found: list[Packet] = []
        while (packet := self._next(deadline)) is not None:
            found.append(packet)
            if packet.type is Type.PINGRESP:
                break
        return found

    def answer(self, kind: Type, *sensible: int, seconds_max: float = 5.0) -> Packet | None:
        """The answer of this type, or the DISCONNECT instead of it, with success or a reason that fits."""
        deadline = time.monotonic() + seconds_max
        while (packet := self._next(deadline)) is not None:
            if packet.type in (kind, Type.DISCONNECT):
                fitting = packet.reason in (0, *sensible) or (packet.reason >= ERROR and not self.says_why)
                assert fitting, self._report(f"{packet.reason:#04x} does not fit")
                return packet
        assert self.v < V5 or not self.says_why, self._report("closed without DISCONNECT")
        return None

    def finish(self) -> None:
        """Nothing more will come from this side, though it still listens."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def fate(self, seconds_max: float = 5.0) -> int:
        """How this connection ends: the reason in DISCONNECT or CONNACK, or 0 for a close without one."""
        deadline = time.monotonic() + seconds_max
        reason = 0
        while (packet := self._next(deadline)) is not None:
            reason = packet.reason if packet.type in (Type.CONNACK, Type.DISCONNECT) else reason
        return reason

    def expect_expelled(self, *sensible: int, seconds_max: float = 5.0) -> None:
        """The server closes; an MQTT 5 client learns why from DISCONNECT or CONNACK."""
        reason = self.fate(seconds_max)
        if self.v < V5 or (reason == 0 and not self.says_why):
            return
        fitting = reason in sensible if sensible else reason >= ERROR
        assert fitting, self._report(
            f"{reason:#04x} is none of {[hex(code) for code in sensible] or 'the errors'}"
        )

    def send_until_stuck(self, chunk: bytes, chunks_max: int, stuck_s: float = 0.5) -> None:
        """Writes and never reads, until the server stops reading too, or closes, or the chunks run out."""
        self._socket.settimeout(stuck_s)
        try:
            for _ in range(chunks_max):
                self._socket.sendall(chunk)
        except OSError:
            return

    def trickle(self, data: bytes, every_s: float, seconds_max: float) -> float:
        """One byte at a time until the server closes; how long it took to lose patience."""
        began = time.monotonic()
        for byte in data:
            if time.monotonic() - began > seconds_max:
                break
            self.send(bytes([byte]))
            if self._closed_within(every_s):
                return time.monotonic() - began
        raise AssertionError(self._report(f"still open after {time.monotonic() - began:.1f} s"))

    def _closed_within(self, seconds: float) -> bool:
        try:
            return self._next(time.monotonic() + seconds) is None
        except TimeoutError:
            return False


class Siege:
    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.broker = broker
        self.name = name
        self._attackers: list[Attacker] = []
        self._rounds = 0

    def __enter__(self) -> Self:
        self._canary = Attacker(self.broker.port)
        self._canary.connect(f"{self.name}canary", keep_alive=0)
        self._canary.subscribe((f"{self.name}/canary", 1))
        self._fds_before = self.fds
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for attacker in self._attackers:
            attacker.drop()
        try:
            if error is None:
                self.check()
                wait_until(
                    lambda: self.fds <= self._fds_before, "closing every attacker's socket", SETTLE_S_MAX
                )
        finally:
            self._canary.drop()

    def check(self) -> None:
        """The broker lives and serves others, now."""
        assert self.broker.alive, f"the broker died:\n{self.broker.stderr}"
        self._rounds += 1
        payload = b"round %d" % self._rounds
        self._canary.publish(f"{self.name}/canary", payload, qos=1)
        assert self._canary.receive(CANARY_S_MAX).payload == payload

    def attacker(self, v: int = V5) -> Attacker:
        """A connection on which nothing has been sent yet."""
        attacker = Attacker(self.broker.port, v, says_why=self.broker.kind == HOLDFAST)
        self._attackers.append(attacker)
        return attacker

    def intruder(self, v: int = V5, name: str = "intruder", **options: object) -> Attacker:
        """One that has been let in, as a well-behaved client."""
        attacker = self.attacker(v)
        attacker.connect(self.name + name, **options)
        return attacker

    def topic(self, name: str) -> str:
        return f"{self.name}/{name}"

    @property
    def fds(self) -> int:
        return len(list(Path(f"/proc/{self.broker.pid}/fd").iterdir()))

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024
