"""The recorder: how fast messages get from a socket into the journal, and what other subscribers feel of it.

Alone: a source that speaks just enough MQTT streams stamped QoS 1 messages at a recorder process, never more
under way than there are packet identifiers; all that it sent is then in the journal, each message once.
Beside others: a pair of brokers carries the published mix as QoS 1, to a subscriber of everything, without a
recorder, with one, and with one that is stopped (SIGSTOP). The three take turns.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast import Outgoing, connect
from holdfast.contract.file import load_contracts
from holdfast.lab.group import Group, Settings, running_group
from holdfast.lab.load.recorder import Received
from holdfast.pipeline.feed.journal import FeedReader
from holdfast.pipeline.layout import Layout

from .brokers import KINDS, Broker, cpu_spent_ns
from .contracts import FRAME
from .load import BATCH, PAYLOAD, STAMP_EXAMPLE, Lost, fresh_publisher
from .measure import Cue, alone, aside, spread, take_turns
from .report import Outcome, Table, Verdict
from .stage import Run
from .wires import Mqtt, Refused

TOPICS = 1_000
ROUNDS = 65
IDENTIFIERS = TOPICS * ROUNDS
WRITES = 20
WINDOW = IDENTIFIERS - WRITES * BATCH
PUBACK_BYTES = 4
RECEIVE_BYTES = 1 << 18
SEND_BUFFER_BYTES = 4 << 20
SEQUENCE_FIRST = 100_000
PER_S_MIN = 150_000
CORES_MAX = 1.0
START_S_MAX = 20.0

WITHOUT, RECORDING, STOPPED = "no recorder", "recording", "stopped"
TICK_S = 0.05
LATE_POINTS_MAX = 0.1
QUIET_S = 0.5


class Source:
    """A broker with one client and one thing to say."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(START_S_MAX)
        self.port: int = self._server.getsockname()[1]
        self.sent = 0
        self._acknowledged_bytes = 0
        self._writes = self._made()

    def accept(self) -> None:
        self._sock, _ = self._server.accept()
        self._sock.settimeout(START_S_MAX)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        Mqtt._read(self._sock)
        self._sock.sendall(b"\x20\x03\x00\x00\x00")
        _, subscribe = Mqtt._read(self._sock)
        self._sock.sendall(b"\x90\x04" + subscribe[:2] + b"\x00\x01")

    def close(self) -> None:
        self._sock.close()
        self._server.close()

    def _made(self) -> Iterator[bytes]:
        """Every write has its time; the sequence of every topic rises by one from round to round."""
        wire = Mqtt(5)
        publisher = fresh_publisher()
        topics = [f"plant/cat0/{number:06}" for number in range(TOPICS)]
        packets = [
            wire.publish(topic, PAYLOAD, qos=1, packet_id=number, stamp=STAMP_EXAMPLE)
            for number, topic in enumerate(topics * ROUNDS, start=1)
        ]
        pieces = [
            b"".join(packets[at : at + BATCH]).split(STAMP_EXAMPLE) for at in range(0, IDENTIFIERS, BATCH)
        ]
        sequence = SEQUENCE_FIRST
        while True:
            for number, around in enumerate(pieces, start=1):
                yield (b"%d/%d/%b" % (time.time_ns(), sequence, publisher)).join(around)
                sequence += number % (TOPICS // BATCH) == 0

    def run(self, seconds: float) -> None:
        """As fast as it is acknowledged; returns when all is."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            while self._under_way > WINDOW:
                self._receive()
            for _ in range(WRITES):
                self._sock.sendall(next(self._writes))
                self.sent += BATCH
            self._sock.setblocking(False)
            with suppress(BlockingIOError):
                self._receive()
            self._sock.settimeout(START_S_MAX)
        while self._under_way:
            self._receive()

    @property
    def _under_way(self) -> int:
        return self.sent - self._acknowledged_bytes // PUBACK_BYTES

    def _receive(self) -> None:
        data = self._sock.recv(RECEIVE_BYTES)
        if not data:
            raise Lost("the recorder closed its connection")
        self._acknowledged_bytes += len(data)


@dataclass(frozen=True)
class Recorded:
    per_second: float
    us_per_message: float
    cores: float


@contextmanager
def recorder(folder: Path, brokers: str) -> Iterator[Broker]:
    """A recorder process; a Broker to those who read its CPU."""
    options = ["--feed", "x", "--topic", "plant/#", "--brokers", brokers, "--data", str(folder / "data")]
    with (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", "record", *options],
            stdin=subprocess.DEVNULL,
            stderr=err,
        )
    try:
        yield Broker(KINDS["holdfast"], process.pid, 0)
    finally:
        process.kill()
        process.wait()


def feed_in(folder: Path) -> FeedReader:
    return FeedReader(Layout(folder / "data").feed("x"))


def await_subscribed(folder: Path) -> None:
    give_up = time.monotonic() + START_S_MAX
    while b"event=recording " not in (said := (folder / "err").read_bytes()):
        if time.monotonic() > give_up:
            raise Refused(f"the recorder did not start: {said[-1000:].decode()}")
        time.sleep(0.01)


def _alone(seconds: float) -> Recorded:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-record-")))
        source = Source()
        process = stack.enter_context(recorder(folder, f"127.0.0.1:{source.port}"))
        source.accept()
        source.run(seconds / 4)
        first, mark, begin = source.sent, process.cpu_ns(), time.monotonic_ns()
        source.run(seconds)
        wall_ns = time.monotonic_ns() - begin
        cpu_ns = cpu_spent_ns(mark, process.cpu_ns())
        messages = source.sent - first
        source.close()
        _check(feed_in(folder), source.sent)
    return Recorded(messages / wall_ns * 1e9, cpu_ns / messages / 1e3, cpu_ns / wall_ns)


def _check(feed: FeedReader, sent: int) -> None:
    """Acknowledged is recorded: all of it is there, each topic in order without a gap."""
    if feed.head != sent:
        raise Lost(f"{sent} messages were acknowledged, and the journal has {feed.head}")
    newest: dict[str, int] = {}
    for batch in feed.read(0, feed.head):
        for topic, sequence in zip(
            batch.column("topic").to_pylist(), batch.column("sequence").to_pylist(), strict=True
        ):
            if newest.get(topic, SEQUENCE_FIRST - 1) != sequence - 1:
                raise Lost(f"{topic}: {sequence} after {newest.get(topic)}")
            newest[topic] = sequence


# -- beside others -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Felt:
    """What a subscriber of everything saw."""

    sent: int
    lost: int
    late_percent: float
    p99_ms: float
    recorded: int
    recorder_cores: float


def mix() -> tuple[list[str], list[int]]:
    """Every topic, and its deadline."""
    topics, deadlines_ns = [], []
    for contract in load_contracts(FRAME).contracts:
        topics += [contract.topics[0].replace("+", f"{number:06}") for number in range(contract.count)]
        deadlines_ns += [contract.deadline_ns] * contract.count
    return topics, deadlines_ns


def _publish(addresses: str, seconds: float) -> int:
    """The urgent topics every tick, the others every second one; how many messages that were."""
    topics, deadlines_ns = mix()
    urgent = [number for number, deadline_ns in enumerate(deadlines_ns) if deadline_ns <= TICK_S * 1e9]
    others = [number for number in range(len(topics)) if number not in set(urgent)]

    async def work() -> int:
        async with await connect(addresses) as client:
            client.declare(*load_contracts(FRAME).contracts)
            sent, due = 0, time.monotonic()
            pending: set[asyncio.Task[list[int]]] = set()
            for tick in range(int(seconds / TICK_S)):
                chosen = urgent + others[tick % 2 :: 2]
                messages = [
                    Outgoing(topics[each], each.to_bytes(4) + PAYLOAD, 1, False, None) for each in chosen
                ]
                task = asyncio.create_task(client.publish_many(messages))
                pending.add(task)
                task.add_done_callback(pending.discard)
                sent += len(messages)
                due += TICK_S
                await asyncio.sleep(due - time.monotonic())
            await asyncio.gather(*pending)
            return sent

    return asyncio.run(work())


def _subscribe(cue: Cue, addresses: str) -> tuple[int, float, float]:
    """How many came, how many of a hundred late, and the latency that one in a hundred exceeds."""
    _, deadlines_ns = mix()

    async def work() -> Received:
        received = Received()
        async with await connect(addresses, prepare=lambda client: client.pour(received)) as client:
            await client.subscribe("plant/#", qos=1)
            cue.ready()
            rows, quiet_s = 0, 0.0
            while not cue.stopped() or quiet_s < QUIET_S:
                await asyncio.sleep(TICK_S)
                quiet_s = quiet_s + TICK_S if received.columns.rows == rows else 0.0
                rows = received.columns.rows
        return received

    received = asyncio.run(work())
    latencies_ns: list[int] = []
    late = 0
    for block in received.columns.take():
        topics, created, arrived = array("i"), array("q"), array("q")
        topics.frombytes(bytes(block.topic[: 4 * block.rows]))
        created.frombytes(bytes(block.created_ns[: 8 * block.rows]))
        arrived.frombytes(bytes(block.arrived_ns[: 8 * block.rows]))
        for topic, made, came in zip(topics, created, arrived, strict=True):
            latencies_ns.append(came - made)
            late += came - made > deadlines_ns[topic]
    count = len(latencies_ns) - received.duplicates
    return count, 100 * late / len(latencies_ns), statistics.quantiles(latencies_ns, n=100)[98] / 1e6


def _forget(addresses: str) -> None:
    """The session of the recorder ends: brokers keep nothing for it while others have their turns."""

    async def work() -> None:
        await (await connect(addresses, client_id="holdfast-record-x")).disconnect()

    asyncio.run(work())


def _beside(group: Group, state: str, seconds: float) -> Felt:
    addresses = ",".join(f"127.0.0.1:{member.port}" for member in group.members.values())
    group.await_protected()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-record-")))
        process = None
        if state != WITHOUT:
            process = stack.enter_context(recorder(folder, addresses))
            await_subscribed(folder)
        subscriber = stack.enter_context(aside(_subscribe, addresses))
        subscriber.await_ready()
        mark = process.cpu_ns() if process is not None else {}
        begin = time.monotonic_ns()
        if state == STOPPED:
            assert process is not None
            os.kill(process.pid, signal.SIGSTOP)
        sent = alone(_publish, addresses, seconds)
        wall_ns = time.monotonic_ns() - begin
        arrived, late_percent, p99_ms = subscriber.finish()
        cpu_ns = cpu_spent_ns(mark, process.cpu_ns()) if process is not None else 0
        recorded = feed_in(folder).head
    alone(_forget, addresses)
    return Felt(sent, sent - arrived, late_percent, p99_ms, recorded, cpu_ns / wall_ns)


def recording(run: Run) -> Outcome:
    seconds = 4 * run.seconds
    fast = take_turns(["recorder"], run.turns, lambda _: _alone(seconds))["recorder"]
    felt: dict[str, list[Felt]] = {WITHOUT: [], RECORDING: [], STOPPED: []}
    with running_group(2, FRAME, Settings(silence="2s", heartbeat="20ms")) as group:
        for _ in range(run.turns):
            for state, turns in felt.items():
                turns.append(_beside(group, state, 2 * seconds))
    per_s = spread(each.per_second for each in fast)
    cores = spread(each.cores for each in fast)
    cost = spread(each.us_per_message for each in fast)
    late = {state: spread(each.late_percent for each in turns) for state, turns in felt.items()}
    lost = {state: sum(each.lost for each in turns) for state, turns in felt.items()}
    rows = [
        (
            state,
            f"{sum(each.sent for each in turns):,}",
            f"{lost[state]}",
            late[state].show("{:.2f}"),
            spread(each.p99_ms for each in turns).show("{:.1f}"),
            f"{sum(each.recorded for each in turns):,}",
            spread(each.recorder_cores for each in turns).show("{:.2f}"),
        )
        for state, turns in felt.items()
    ]
    more = {state: late[state].median - late[WITHOUT].median for state in (RECORDING, STOPPED)}
    return Outcome(
        [
            Table(
                "recording, from a socket to the journal",
                ("", "messages/s", "CPU µs/message", "cores"),
                [("recorder", per_s.show("{:,.0f}"), cost.show("{:.2f}"), cores.show("{:.2f}"))],
                (f"QoS 1, stamped, {len(PAYLOAD)}-byte payload, {TOPICS:,} topics",),
            ),
            Table(
                "another subscriber of everything at a pair",
                ("", "published", "lost", "late %", "p99 ms", "recorded", "recorder cores"),
                rows,
                ("the published mix of 1,525 topics as QoS 1",),
            ),
        ],
        [
            Verdict(
                "recorder to journal",
                f"at least {PER_S_MIN:,} messages/s with less than one core",
                f"{per_s.median:,.0f} messages/s with {cores.median:.2f} cores",
                per_s.median >= PER_S_MIN and cores.median < CORES_MAX,
            ),
            *(
                Verdict(
                    f"contracts of others, recorder {state}",
                    f"nothing lost, late at most {LATE_POINTS_MAX} points more than without it",
                    f"{lost[state]} lost, {more[state]:+.2f} points late",
                    not lost[state] and more[state] <= LATE_POINTS_MAX,
                )
                for state in (RECORDING, STOPPED)
            ),
        ],
        {
            "alone": [asdict(each) for each in fast],
            "beside": {state: [asdict(each) for each in turns] for state, turns in felt.items()},
        },
    )
