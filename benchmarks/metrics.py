"""What it costs a broker to count: CPU per message without counting, counting, and counting while it is asked
for its metrics and its status every second.

The same load in turn on three brokers that all run; stamped messages, so that latencies and losses are
counted for each. Also how long one answer holds up the loop when there are a thousand contracts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from holdfast.address import LOOPBACK
from holdfast.contract.file import parse_contracts
from holdfast.runtime.ports import free_ports

from .brokers import Broker, cpu_spent_ns
from .contracts import DEPLOYMENT, Category, plant
from .load import BATCH, Measured, stamped_stream
from .measure import Cue, Spread, aside, ratio, spread, take_turns
from .protection import lone_broker
from .report import Outcome, Table, Verdict
from .stage import Run, generator
from .throughput import TOPICS, raw
from .wires import Mqtt

OFF, COUNTED, SCRAPED = "not counting", "counting", "counting, asked every second"
PACED_PER_S = 100_000
MOST = 1.03
MANY_CONTRACTS = 1_000
PIECE_MS_MAX = 1.0
PIECES, PIECE_WRITES = 201, 200
WARM_UP_MESSAGES = 50 * TOPICS
ASKED = ("/metrics", "/status")
ASKED_TIMES = 200


def ask(cue: Cue, port: int) -> list[float]:
    """Every second until told to stop, under load or not; how long each answer took, in milliseconds."""
    took: list[float] = []
    cue.ready()
    while not cue.stopped():
        began = time.monotonic()
        for path in ASKED:
            with urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=10) as answer:
                answer.read()
        took.append((time.monotonic() - began) * 1e3 / len(ASKED))
        cue.pipe.poll(max(0.0, began + 1 - time.monotonic()))
    return took


def asking_ms(broker: Broker, port: int) -> float:
    """CPU of a broker without load for one answer of each kind: a scrape, without the noise of a load."""
    mark = broker.cpu_ns()
    for _ in range(ASKED_TIMES):
        for path in ASKED:
            with urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=10) as answer:
                answer.read()
    return cpu_spent_ns(mark, broker.cpu_ns()) / ASKED_TIMES / 1e6


@contextmanager
def contestants(contracts: Path) -> Iterator[tuple[dict[str, Broker], int]]:
    """All three, and where the last one answers."""
    (http,) = free_ports(1)
    options: dict[str, dict[str, Any]] = {
        OFF: {"counting": False},
        COUNTED: {},
        SCRAPED: {"http": [LOOPBACK, http]},
    }
    with ExitStack() as stack:
        yield (
            {name: stack.enter_context(lone_broker(contracts, **each)) for name, each in options.items()},
            http,
        )


def turn(broker: Broker, run: Run, topics: list[str], rate: int | None) -> Measured:
    load = generator(broker, topics, stamped_stream, purpose="stamped")
    load.run(messages=WARM_UP_MESSAGES)
    measured = load.run(seconds=max(1.0, 4 * run.seconds), rate=rate)
    load.close()
    return measured


def metrics(run: Run) -> Outcome:
    with TemporaryDirectory(prefix="bench-metrics-") as place:
        contracts = Path(place, "contracts.toml")
        contracts.write_text(plant(TOPICS).toml())
        topics = plant(TOPICS).topics()
        with contestants(contracts) as (brokers, http), aside(ask, http) as asking:
            asking.await_ready()
            paced = take_turns(brokers, run.turns, lambda name: turn(brokers[name], run, topics, PACED_PER_S))
            saturated = take_turns(brokers, run.turns, lambda name: turn(brokers[name], run, topics, None))
            answers_ms = asking.finish()
            each_ms = asking_ms(brokers[SCRAPED], http)
    pieces = piece_times()
    counted = counting_ns()
    counting_s, asking_s = counted.median / 1e9 * PACED_PER_S, each_ms / 1e3
    share = (counting_s + asking_s) / spread(each.busy for each in paced[OFF]).median
    return Outcome(
        [
            _table(f"metrics, paced at {PACED_PER_S:,} messages/s", paced),
            _table("metrics, saturated", saturated),
            _piece_table(pieces),
        ],
        [
            _verdict("counting and being asked, paced", paced, SCRAPED),
            _verdict("counting and being asked, saturated", saturated, SCRAPED),
            Verdict(
                f"counting, and asked every second, each alone, of the CPU at {PACED_PER_S:,} messages/s",
                f"under {MOST - 1:.0%}",
                f"{share:.2%}: {counted.median:.1f} ns a message, {each_ms:.2f} ms for both answers",
                share < MOST - 1,
            ),
            Verdict(
                f"longest piece of an answer, {MANY_CONTRACTS:,} contracts",
                f"under {PIECE_MS_MAX:g} ms",
                f"{max(each['longest_ms'] for each in pieces.values()):.2f} ms",
                max(each["longest_ms"] for each in pieces.values()) < PIECE_MS_MAX,
            ),
        ],
        {
            "paced": raw(paced),
            "saturated": raw(saturated),
            "pieces": pieces,
            "answers_ms": answers_ms,
            "asking_ms": each_ms,
            "counting_ns": counted.median,
        },
    )


def counting_ns() -> Spread:
    """What counting adds to a message, in a broker without sockets that counts every other time.

    Brokers that are processes of their own differ by more than that, however often they take turns."""
    from holdfast.broker.broker import Broker as PureBroker
    from holdfast.mqtt.codec import encode
    from holdfast.mqtt.packets import Connect, Subscribe, Subscription

    def now() -> tuple[int, int]:
        return time.monotonic_ns(), time.time_ns()

    broker = PureBroker(parse_contracts(plant(TOPICS).toml(), source="plant"), seed=1, now_ns=now()[0])
    subscriber, publisher = (broker.open(None, now()[0]) for _ in range(2))
    assert subscriber is not None
    assert publisher is not None
    for connection, *packets in (
        (subscriber, Connect(client_id="s"), Subscribe(1, [Subscription("#", 0)])),
        (publisher, Connect(client_id="p")),
    ):
        for packet in packets:
            connection.feed(encode(packet, 5), *now())
            broker.turn(*now())
    writes = stamped_stream(Mqtt(5), plant(TOPICS).topics()).writes

    def message_ns(*, counting: bool) -> float:
        broker.core.board.counting = counting
        taken = [next(writes) for _ in range(PIECE_WRITES)]
        began = time.thread_time_ns()
        for data in taken:
            publisher.feed(data, *now())
            while broker.turn(*now()):
                pass
            for wire in broker.core.board.take_ready():
                wire.take_output()
                wire.flushed()
        return (time.thread_time_ns() - began) / PIECE_WRITES / BATCH

    for counting in (True, False):
        message_ns(counting=counting)
    return spread(message_ns(counting=True) - message_ns(counting=False) for _ in range(PIECES))


def piece_times() -> dict[str, dict[str, float]]:
    """What one piece of each answer takes with many contracts, in milliseconds: the median of the longest."""
    from holdfast.broker.broker import Broker as PureBroker
    from holdfast.broker.histogram import Histogram
    from holdfast.runtime.metrics import render
    from holdfast.runtime.reporting import Reporter

    toml = "".join(Category(f"c{number:04}", 1, "1s", "1s", 3, 1).toml() for number in range(MANY_CONTRACTS))
    broker = PureBroker(parse_contracts(DEPLOYMENT + toml, source="many"), seed=1, now_ns=0)

    class Standing:
        slices = Histogram()

    reporter = Reporter(broker, Standing(), None)  # type: ignore[arg-type]
    found = {}
    for name, answer in (("/metrics", lambda: render(reporter)), ("/status", reporter.status_json)):
        longest, totals, sizes = [], [], []
        for _ in range(9):
            pieces = []
            size, total = 0, 0.0
            answers = iter(answer())
            while True:
                began = time.perf_counter()
                piece = next(answers, None)
                took = (time.perf_counter() - began) * 1e3
                if piece is None:
                    break
                pieces.append(took)
                size += len(piece)
                total += took
            longest.append(max(pieces))
            totals.append(total)
            sizes.append(size)
        found[name] = {
            "longest_ms": statistics.median(longest),
            "total_ms": statistics.median(totals),
            "pieces": float(len(pieces)),
            "bytes": float(sizes[-1]),
        }
    return found


def _costs(turns: dict[str, list[Measured]], name: str) -> list[float]:
    return [each.us_per_delivery for each in turns[name]]


def _table(title: str, turns: dict[str, list[Measured]]) -> Table:
    rows = [
        (
            name,
            spread(_costs(turns, name)).show("{:.3f}"),
            ratio(_costs(turns, name), _costs(turns, OFF)).show("{:.3f}"),
            f"{spread(each.per_second for each in measured).median:,.0f}",
            f"{spread(each.busy for each in measured).median:.2f}",
        )
        for name, measured in turns.items()
    ]
    return Table(title, ("", "broker CPU µs/message", "of not counting", "messages/s", "broker cores"), rows)


def _piece_table(pieces: dict[str, dict[str, float]]) -> Table:
    rows = [
        (
            name,
            f"{each['longest_ms']:.2f}",
            f"{each['total_ms']:.1f}",
            f"{each['pieces']:.0f}",
            f"{each['bytes']:,.0f}",
        )
        for name, each in pieces.items()
    ]
    columns = ("", "longest piece ms", "all pieces ms", "pieces", "bytes")
    return Table(f"one answer with {MANY_CONTRACTS:,} contracts", columns, rows)


def _verdict(what: str, turns: dict[str, list[Measured]], name: str) -> Verdict:
    found = ratio(_costs(turns, name), _costs(turns, OFF))
    return Verdict(what, f"at most {MOST:g} of not counting", found.show("{:.3f}"), found.median <= MOST)
