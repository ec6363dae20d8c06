"""How long a notification takes from the moment that results are committed to its subscriber.

10,000 subscribers, each a connection and a session of its own with its own subscription, at one broker.
Results are committed without Spark, one execution after the other, for some of the subscribers or for all.
The time begins when the transaction is over, and ends when the subscriber's process has read the message:
that process and the one that delivers take as much of the same cores as the broker does.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa

from holdfast.mqtt.channels import Offered, channel_topic
from holdfast.mqtt.codec import decode, split
from holdfast.mqtt.conventions import find_stamp
from holdfast.mqtt.packets import Publish
from holdfast.pipeline.delivery import Delivery
from holdfast.pipeline.layout import Layout
from holdfast.pipeline.results import FOUND, Execution, Results
from holdfast.pipeline.subscribers import Subscribers
from holdfast.runtime.ahead import go_ahead

from .brokers import running
from .contracts import plant
from .measure import Cue, aside, spread
from .report import Outcome, Table, Verdict
from .stage import Run
from .wires import Mqtt

CHANNEL = "near"
SUBSCRIBERS = 10_000
SHARES = (100, 1_000, 10_000)
QOS = (0, 1)
TARGET_MS = 100.0
PAYLOAD = (
    b'{"channel":"near","execution":12,"at":"2025-01-01T00:00:00Z","rows":[{"emergency":"flood","m":412.5}]}'
)
READ_BYTES = 65_536
WAIT_S_MAX = 120.0
PUBACK = b"\x40\x02"

Arrivals = list[tuple[int, int]]  # number of the execution, when it was read


def names(count: int) -> list[str]:
    return [f"user{number:06d}" for number in range(count)]


def packet_identifier(data: bytes) -> bytes:
    """Of the PUBLISH of QoS 1 at the front: behind its length and its topic."""
    at = 1
    while data[at] & 0x80:
        at += 1
    at += 1
    at += 2 + int.from_bytes(data[at : at + 2], "big")
    return data[at : at + 2]


def receive(cue: Cue, port: int, subscribers: list[str], qos: int) -> Arrivals:
    """Subscribes, says so, reads and acknowledges until it is told to stop."""
    go_ahead()
    wire, poll, sockets = Mqtt(5), select.epoll(), {}
    for name in subscribers:
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.open(sock, name)
        wire.subscribe(sock, [channel_topic(CHANNEL, name)], qos=qos)
        sock.setblocking(False)
        sockets[sock.fileno()] = sock
        poll.register(sock, select.EPOLLIN)
    cue.ready()
    came: list[tuple[bytes, int]] = []
    while not cue.stopped():
        for fd, _ in poll.poll(0.05):
            data = sockets[fd].recv(READ_BYTES)
            came.append((data, time.time_ns()))
            if qos:
                sockets[fd].send(PUBACK + packet_identifier(data))
    return [(number_of(data), at_ns) for data, at_ns in came]


def number_of(data: bytes) -> int:
    found = split(data)
    assert found is not None
    first, start, end = found
    assert end == len(data), "executions follow each other too fast to be told apart"
    packet = decode(first, data[start:end], 5)
    assert isinstance(packet, Publish)
    stamp = find_stamp(packet.properties.user)
    assert stamp is not None
    return stamp.sequence


def deliver(cue: Cue, port: int, executions: dict[int, list[str]]) -> dict[int, int]:
    """Commits each execution when the one before is delivered; gives when each was committed."""
    go_ahead()
    with tempfile.TemporaryDirectory(prefix="bench-results-") as folder:
        results = Results(Layout(Path(folder)))
        committed: dict[int, int] = {}
        # Heard before delivery is: by the committing thread, when the transaction is over.
        results.listen(lambda _: committed.setdefault(results.mark(CHANNEL)[0], time.time_ns()))
        asyncio.run(commit_all(cue, port, results, executions))
        results.close()
    return committed


async def commit_all(cue: Cue, port: int, results: Results, executions: dict[int, list[str]]) -> None:
    subscribers = Subscribers()
    delivery = Delivery(f"127.0.0.1:{port}", results, subscribers, lambda event, details: None)
    delivery.offer([Offered(CHANNEL, ("string",))])
    task = asyncio.create_task(delivery.run())
    async with asyncio.timeout(WAIT_S_MAX):
        while len(subscribers.of(CHANNEL)) < SUBSCRIBERS:
            await asyncio.sleep(0.05)
    over = threading.Event()
    committing = threading.Thread(target=commit_each, args=(results, executions, over))
    committing.start()
    await asyncio.to_thread(over.wait, WAIT_S_MAX)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def commit_each(results: Results, executions: dict[int, list[str]], over: threading.Event) -> None:
    for number, found_for in executions.items():
        found = pa.table({"subscription": found_for, "payload": [PAYLOAD] * len(found_for)}, schema=FOUND)
        now_ns = time.time_ns()
        results.commit(Execution(CHANNEL, number, number - 1, number, now_ns, now_ns, len(found_for)), found)
        while results.undelivered(CHANNEL):
            time.sleep(0.01)
        time.sleep(0.2)
    over.set()


def measure(rounds: int, qos: int) -> dict[int, list[list[float]]]:
    """By how many are notified: of each execution the milliseconds of all, sorted."""
    everybody = names(SUBSCRIBERS)
    executions = {
        number: everybody[:: SUBSCRIBERS // share] for number, share in enumerate(SHARES * rounds, 1)
    }
    with (
        running("holdfast", plant(5), ahead=True) as broker,
        aside(receive, broker.port, everybody, qos) as receiver,
    ):
        receiver.await_ready()
        with aside(deliver, broker.port, executions) as deliverer:
            committed: dict[int, int] = deliverer.result()
        arrivals: Arrivals = receiver.finish()
    took: dict[int, list[float]] = {number: [] for number in executions}
    for number, at_ns in arrivals:
        took[number].append((at_ns - committed[number]) / 1e6)
    for number, found_for in executions.items():
        came = len(took[number])
        assert came == len(found_for), f"execution {number}: {came} of {len(found_for)} notifications came"
    return {
        share: [sorted(took[number]) for number in executions if len(took[number]) == share]
        for share in SHARES
    }


def notifying(run: Run) -> Outcome:
    took = {qos: measure(3 if run.quick else 20, qos) for qos in QOS}
    verdicts = [_verdict(took, share) for share in SHARES]
    return Outcome([_table(took)], verdicts, {f"qos {qos}": each for qos, each in took.items()})


def at(sorted_ms: list[float], share: float) -> float:
    return sorted_ms[min(len(sorted_ms) - 1, int(len(sorted_ms) * share))]


def _table(took: dict[int, dict[int, list[list[float]]]]) -> Table:
    rows = [
        (
            f"{share:,}, QoS {qos}",
            spread(at(each, 0.5) for each in executions).show("{:.1f}"),
            spread(at(each, 0.99) for each in executions).show("{:.1f}"),
            spread(each[-1] for each in executions).show("{:.1f}"),
        )
        for qos, shares in took.items()
        for share, executions in shares.items()
    ]
    notes = (f"{SUBSCRIBERS:,} connections to one broker; medians of executions, and their range",)
    columns = ("notified by an execution", "p50 ms", "p99 ms", "last ms")
    return Table("notifying: from results committed to the subscriber", columns, rows, notes)


def _verdict(took: dict[int, dict[int, list[list[float]]]], share: int) -> Verdict:
    p99 = {qos: spread(at(each, 0.99) for each in shares[share]).median for qos, shares in took.items()}
    return Verdict(
        f"results committed to the subscriber, {share:,} of {SUBSCRIBERS:,} notified at once",
        f"p99 under {TARGET_MS:g} ms",
        ", ".join(f"QoS {qos}: {ms:.1f} ms" for qos, ms in p99.items()),
        max(p99.values()) < TARGET_MS,
    )
