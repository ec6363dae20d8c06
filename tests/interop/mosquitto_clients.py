"""Debian's mosquitto_sub and mosquitto_pub as child processes, unchanged.

Always true here: a Subscriber is entered only after its SUBACK, every child is reaped before its test ends,
and every wait is for a condition, with a bound that only a broken broker reaches.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import Any, Self

from support.brokers import LOOPBACK, BrokerProcess

VERSIONS = ("31", "311", "5")
WAIT_S_MAX = 20.0

_PREFIX = "MESSAGE "
HEX_FORMAT = ("-F", f"{_PREFIX}%x")


def publish(
    broker: BrokerProcess, topic: str, payload: str | bytes, *args: str, version: str = "311", qos: int = 0
) -> None:
    """One message, until mosquitto_pub has finished its QoS flow; further arguments go to it as they are."""
    stdin = payload if isinstance(payload, bytes) else payload.encode()
    run_publisher(broker, ["-t", topic, "-s", *args], version=version, qos=qos, stdin=stdin)


def publish_lines(
    broker: BrokerProcess, topic: str, lines: Sequence[str], *, version: str = "311", qos: int = 0
) -> None:
    """One message for each line, over one connection, in order."""
    run_publisher(
        broker, ["-t", topic, "-l"], version=version, qos=qos, stdin="\n".join(lines).encode() + b"\n"
    )


def clear_retained(broker: BrokerProcess, topic: str) -> None:
    run_publisher(broker, ["-t", topic, "-n", "-r"], version="311", qos=1, stdin=b"")


def run_publisher(
    broker: BrokerProcess, args: Sequence[str], *, version: str, qos: int, stdin: bytes
) -> None:
    done = subprocess.run(
        ["mosquitto_pub", *_address(broker, version), "-q", str(qos), *args],
        input=stdin,
        capture_output=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


class Subscriber:
    """mosquitto_sub, and what it received as its own JSON: topic, qos, retain, payload, properties."""

    def __init__(
        self,
        broker: BrokerProcess,
        *filters: str,
        version: str = "311",
        qos: int = 0,
        args: Sequence[str] = (),
        inbox: queue.Queue[str] | None = None,
    ) -> None:
        topics = [word for filter_ in filters for word in ("-t", filter_)]
        self._argv = [
            "stdbuf",
            "-oL",
            "mosquitto_sub",
            "-d",
            *_address(broker, version),
            "-q",
            str(qos),
            *topics,
        ]
        self._argv += args if "-F" in args else ["-F", f"{_PREFIX}%j", *args]
        self._messages = inbox or queue.Queue()
        self.received = 0
        self._subscribed = threading.Event()
        self.log: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if not self._subscribed.wait(WAIT_S_MAX):
            self.kill()
            raise AssertionError(f"never subscribed: {self.log}")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait(self) -> None:
        """Until it ends by itself."""
        self._process.wait(WAIT_S_MAX)

    def disconnect(self) -> None:
        """Ends it the way Ctrl-C does: mosquitto_sub sends DISCONNECT and goes."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Ends it without a word, as a crash would."""
        self._end(signal.SIGKILL)

    def line(self) -> str:
        """The next message, as mosquitto_sub printed it."""
        try:
            return self._messages.get(timeout=WAIT_S_MAX)
        except queue.Empty:
            raise AssertionError(f"no message; it said: {self.log[-10:]}") from None

    def message(self) -> dict[str, Any]:
        return json.loads(self.line())

    def payloads(self, count: int) -> list[str]:
        return [self.message()["payload"] for _ in range(count)]

    def _end(self, signum: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signum)
        self._process.wait(WAIT_S_MAX)
        self._reader.join(WAIT_S_MAX)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith(_PREFIX):
                    self.received += 1
                    self._messages.put(line.removeprefix(_PREFIX).rstrip("\n"))
                    continue
                self.log.append(line.rstrip("\n"))
                if line.startswith("Subscribed"):
                    self._subscribed.set()


def request(broker: BrokerProcess, topic: str, response_topic: str, payload: str) -> subprocess.Popen[str]:
    """mosquitto_rr: publishes a request, prints the response, ends."""
    argv = [
        "mosquitto_rr",
        *_address(broker, "5"),
        "-t",
        topic,
        "-e",
        response_topic,
        "-m",
        payload,
        "-q",
        "1",
    ]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def _address(broker: BrokerProcess, version: str) -> list[str]:
    return ["-h", LOOPBACK, "-p", str(broker.port), "-V", f"mqttv{version}"]
