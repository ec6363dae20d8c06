"""Resident memory: with many idle connections, and over a soak while clients come and go."""

from __future__ import annotations

import socket
import statistics

from .brokers import Broker, running
from .contracts import plant
from .load import PAYLOAD
from .measure import Cue, alone, aside
from .report import NOT_MEASURED, Outcome, Table, Verdict
from .stage import Run, generator
from .throughput import TOPICS

CONNECTIONS = 10_000
OF_MOSQUITTO_MAX = 3.0
SOAK_MESSAGES = 100_000_000
SOAK_QUICK_MESSAGES = 2_000_000
SOAK_SAMPLES = 100
VISITORS_PER_STEP = 10
STEP_MESSAGES_MAX = 50_000
FLAT_MAX = 1.05
BEST_EFFORT = "plant/cat4/+"
MIB = 1 << 20


def idle(cue: Cue, broker: Broker) -> None:
    """Connect, say hello, and do nothing until the benchmark ends."""
    wire = broker.wire()
    sockets = []
    for number in range(CONNECTIONS):
        sock = broker.connect()
        wire.open(sock, f"idle-{number}")
        sockets.append(sock)
    cue.ready()
    cue.pipe.poll(None)


def memory(run: Run) -> Outcome:
    contracts = plant(TOPICS)
    sizes: dict[str, tuple[int, int]] = {}
    quick_ones = run.among("holdfast", "mosquitto", "nats")  # amqtt takes most of a minute to let 10,000 in
    for name in quick_ones if run.quick else run.names:
        with running(name, contracts) as broker:
            before = broker.rss_bytes()
            with aside(idle, broker) as clients:
                clients.await_ready()
                sizes[name] = (before, broker.rss_bytes())
    peer = sizes.get("mosquitto")
    rows = [
        (
            name,
            f"{before / MIB:.1f}",
            f"{after / MIB:.1f}",
            f"{(after - before) / CONNECTIONS / 1024:.1f}",
            f"{after / peer[1]:.2f}" if peer else "",
        )
        for name, (before, after) in sizes.items()
    ]
    columns = ("", "empty MiB", f"{CONNECTIONS:,} idle MiB", "KiB/connection", "of mosquitto")
    what, target = (
        f"resident size, {CONNECTIONS:,} idle connections",
        f"at most {OF_MOSQUITTO_MAX:g}× mosquitto's",
    )
    verdict = Verdict(what, target, NOT_MEASURED, None)
    if peer and "holdfast" in sizes:
        found = sizes["holdfast"][1] / peer[1]
        shown = f"{found:.2f}×: " + ", ".join(
            f"{name} {after / MIB:.0f} MiB" for name, (_, after) in sizes.items()
        )
        verdict = Verdict(what, target, shown, found <= OF_MOSQUITTO_MAX)
    return Outcome([Table("memory", columns, rows)], [verdict], {"rss_bytes": sizes})


def visit(broker: Broker, number: int) -> socket.socket:
    """One of many: subscribes, and says something on a topic of its own. A third never read what they get."""
    wire = broker.wire()
    sock = broker.connect()
    wire.open(sock, f"visitor-{number}")
    wire.subscribe(sock, [f"visitors/{number}/+" if number % 3 else BEST_EFFORT])
    sock.sendall(wire.publish(f"visitors/{number}/hello", PAYLOAD))
    return sock


def soak_part(broker: Broker, messages: int, first_visitor: int) -> int:
    """A fresh publisher and subscriber, and visitors all along; gives how many visitors there were."""
    load = generator(broker, plant(TOPICS).topics())
    number, sent, goodbye = first_visitor, 0, broker.wire().close()
    while sent < messages:
        visitors = [visit(broker, number + each) for each in range(VISITORS_PER_STEP)]
        number += VISITORS_PER_STEP
        sent += load.run(messages=min(STEP_MESSAGES_MAX, messages - sent)).messages
        for polite, sock in enumerate(visitors):
            if polite % 2:
                sock.sendall(goodbye)
            sock.close()
    load.close()
    return number - first_visitor


def soak(run: Run) -> Outcome:
    """The first contestant only: it is compared with itself."""
    total = SOAK_QUICK_MESSAGES if run.quick else SOAK_MESSAGES
    name, visitors, samples = run.names[0], 0, []
    with running(name, plant(TOPICS)) as broker:
        for _ in range(SOAK_SAMPLES):
            visitors += alone(soak_part, broker, total // SOAK_SAMPLES, visitors)
            samples.append(broker.rss_bytes())
    tenth = SOAK_SAMPLES // 10
    early, late = statistics.median(samples[tenth : 2 * tenth]), statistics.median(samples[-tenth:])
    rows = [
        (f"after {total * (at + 1) // SOAK_SAMPLES:,}", f"{samples[at] / MIB:.1f}")
        for at in [0, *range(tenth - 1, SOAK_SAMPLES, tenth)]
    ]
    what = f"resident size over {total:,} messages, clients coming and going"
    target = f"flat: last tenth at most {FLAT_MAX:g}× of the second"
    shown = f"{late / early:.3f}× ({early / MIB:.1f} → {late / MIB:.1f} MiB)"
    verdict = Verdict(what, target, NOT_MEASURED, None)
    if name == "holdfast":
        verdict = Verdict(what, target, shown, late / early <= FLAT_MAX)
    note = f"{visitors:,} clients came and went, a third of them with unread messages; {shown}"
    return Outcome(
        [Table(f"soak: {name}", ("messages", "RSS MiB"), rows, (note,))], [verdict], {"rss_bytes": samples}
    )
