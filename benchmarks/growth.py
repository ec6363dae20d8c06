"""Does a message cost the same when there are many more topics, or many more subscriptions that do not match?

Each size has brokers of its own, all running at once, and the sizes take turns like contestants.
"""

from __future__ import annotations

import os
import socket
import string
from contextlib import ExitStack

from .brokers import Broker, running
from .contracts import plant
from .load import Measured, plain_stream
from .measure import ratio, spread, take_turns
from .report import NOT_MEASURED, Outcome, Table, Verdict
from .stage import Run, generator
from .throughput import TOPICS, raw

SIZES = (1_000, 10_000, 100_000)
UNRELATED = (0, 10_000, 100_000)
SUBSCRIPTIONS_PER_CLIENT = 1_000
FLAT_MAX = 1.15
TURNS = 2
"""As many times the usual turns: a ratio near 1 is asked for to a few hundredths."""
CALM = ("2s", "2s", "2s")
"""Period and deadlines with which 100,000 topics are admitted, all of them sending at one moment."""

Key = tuple[str, int]
Results = dict[Key, list[Measured]]


def growth(run: Run) -> Outcome:
    names = run.among("holdfast", "mosquitto", "nats")
    by_topics = _by_topics(run, names)
    steady, fresh = _by_subscriptions(run, names)
    cases = {
        "topics": ("CPU per message with more topics", "topics", by_topics),
        "steady": ("CPU per message with more unrelated subscriptions", "subscriptions", steady),
        "fresh": ("the same, first publication on new topics", "subscriptions", fresh),
    }
    return Outcome(
        [_table(title, unit, results) for title, unit, results in cases.values()],
        [_verdict(title, unit, results) for title, unit, results in cases.values()],
        {case: raw({f"{name} {size}": turns for (name, size), turns in results.items()})
         for case, (_, _, results) in cases.items()},
    )  # fmt: skip


def _by_topics(run: Run, names: list[str]) -> Results:
    with ExitStack() as stack:
        brokers = {
            (name, size): stack.enter_context(running(name, plant(size, *CALM)))
            for name in names
            for size in SIZES
        }

        def turn(key: Key) -> Measured:
            load = generator(brokers[key], plant(key[1]).topics())
            load.run(messages=key[1])
            return load.run(seconds=run.seconds)

        return take_turns(brokers, TURNS * run.turns, turn)


def _by_subscriptions(run: Run, names: list[str]) -> tuple[Results, Results]:
    contracts = plant(TOPICS, *CALM)
    fresh_topics = 2_000 if run.quick else 30_000
    with ExitStack() as stack:
        brokers: dict[Key, Broker] = {}
        for name in names:
            for size in UNRELATED:
                brokers[name, size] = stack.enter_context(running(name, contracts))
                for sock in subscribe_unrelated(brokers[name, size], size):
                    stack.callback(sock.close)

        def turn(key: Key) -> tuple[Measured, Measured]:
            load = generator(brokers[key], contracts.topics())
            load.run(messages=5 * TOPICS)
            steady = load.run(seconds=run.seconds)
            load.switch(plain_stream(brokers[key].wire(), new_topics(fresh_topics)))
            return steady, load.run(messages=fresh_topics)

        turns = take_turns(brokers, TURNS * run.turns, turn)
    steady = {key: [first for first, _ in each] for key, each in turns.items()}
    return steady, {key: [second for _, second in each] for key, each in turns.items()}


def new_topics(count: int) -> list[str]:
    """Topics of a contract that no earlier turn has used: lettered, by the process of this turn."""
    names = []
    for number in range(os.getpid() * count, (os.getpid() + 1) * count):
        letters = ""
        for _ in range(6):
            number, letter = divmod(number, 26)
            letters += string.ascii_lowercase[letter]
        names.append(f"plant/cat0/{letters}")
    return names


def subscribe_unrelated(broker: Broker, count: int) -> list[socket.socket]:
    """Clients whose filters match nothing that is published, some of them only in the last level."""
    wire, sockets = broker.wire(), []
    for client in range(count // SUBSCRIPTIONS_PER_CLIENT):
        sock = broker.connect()
        wire.open(sock, f"unrelated-{client}")
        shapes = ("other/{}/value", "plant/cat0/x{}", "+/+/x{}", "other/+/{}/#")
        first = client * SUBSCRIPTIONS_PER_CLIENT
        numbers = range(first, first + SUBSCRIPTIONS_PER_CLIENT)
        wire.subscribe(sock, [shapes[number % len(shapes)].format(number) for number in numbers])
        sockets.append(sock)
    return sockets


def _costs(results: Results, key: Key) -> list[float]:
    return [each.us_per_delivery for each in results[key]]


def _table(title: str, unit: str, results: Results) -> Table:
    sizes = sorted({size for _, size in results})
    rows = []
    for name in dict.fromkeys(name for name, _ in results):
        each = (spread(_costs(results, (name, size))).show("{:.3f}") for size in sizes)
        grown = ratio(_costs(results, (name, sizes[-1])), _costs(results, (name, sizes[0])))
        rows.append((name, *each, grown.show("{:.2f}")))
    columns = ("broker CPU µs/message", *(f"{size:,} {unit}" for size in sizes), "last of first")
    return Table(f"growth: {title}", columns, rows)


def _verdict(title: str, unit: str, results: Results) -> Verdict:
    sizes = sorted({size for _, size in results} or {0})
    target = f"flat: {sizes[-1]:,} {unit} at most {FLAT_MAX:g}× of {sizes[0]:,}"
    if ("holdfast", sizes[-1]) not in results:
        return Verdict(title, target, NOT_MEASURED, None)
    shown = []
    for name in dict.fromkeys(name for name, _ in results):
        grown = ratio(_costs(results, (name, sizes[-1])), _costs(results, (name, sizes[0])))
        shown.append(f"{name} {grown.show('{:.2f}')}×")
    ours = ratio(_costs(results, ("holdfast", sizes[-1])), _costs(results, ("holdfast", sizes[0])))
    return Verdict(title, target, "; ".join(shown), ours.median <= FLAT_MAX)
