"""Broker CPU per message: QoS 0, the same with our stamp, fan-out, and QoS 1 in and out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .brokers import INFLIGHT_MAX, Broker, field_of
from .contracts import plant
from .load import BATCH, PAYLOAD, STAMP_EXAMPLE, Generator, Measured, stamped_stream
from .measure import Spread, ratio, spread, take_turns
from .report import NOT_MEASURED, Outcome, Table, Verdict
from .stage import WINDOW, Run, acknowledged_generator, check_delivery, generator

TOPICS = 1_000
PACED_PER_S = 50_000
SUBSCRIBERS = 200
FANOUT_WINDOW = 1000
OF_NATS_MAX = 0.7
OF_MOSQUITTO_MAX = 1 / 20
STAMPED_OF_NATS_MAX = 1.0
QOS1_OF_MOSQUITTO_MAX = 1 / 5
WARM_UP_MESSAGES = 5 * TOPICS

Turns = dict[str, list[Measured]]


def _turn(
    make: Callable[[Broker], Generator], run: Run, rate: int | None = None
) -> Callable[[Broker], Measured]:
    def turn(broker: Broker) -> Measured:
        load = make(broker)
        load.run(messages=WARM_UP_MESSAGES, seconds=run.seconds)
        return load.run(seconds=run.seconds, rate=rate)

    return turn


def _compete(
    brokers: dict[str, Broker], run: Run, make: Callable[[Broker], Generator], rate: int | None = None
) -> Turns:
    turn = _turn(make, run, rate)
    return take_turns(brokers, run.turns, lambda name: turn(brokers[name]))


def costs(turns: Turns, name: str) -> list[float]:
    return [each.us_per_delivery for each in turns[name]]


def cost_table(title: str, turns: Turns, unit: str, notes: tuple[str, ...] = ()) -> Table:
    """Every contestant's cost, and its ratio to each peer the targets speak of."""
    peers = [peer for peer in ("nats", "mosquitto") if peer in turns]
    rows = []
    for name, measured in turns.items():
        ratios = (ratio(costs(turns, name), costs(turns, peer)).show("{:.3f}") for peer in peers)
        rows.append(
            (
                name,
                spread(costs(turns, name)).show("{:.3f}"),
                *ratios,
                f"{spread(each.per_second for each in measured).median:,.0f}",
                f"{sum(each.deliveries for each in measured):,}",
                f"{spread(each.busy for each in measured).median:.2f}",
                f"{spread(each.generator_cpu_ns / each.wall_ns for each in measured).median:.2f}",
            )
        )
    plural = {"message": "messages", "delivery": "deliveries"}[unit]
    columns = (
        *("", f"broker CPU µs/{unit}"),
        *(f"of {peer}" for peer in peers),
        *(f"{plural}/s", plural, "broker cores", "generator cores"),
    )
    return Table(title, columns, rows, notes)


def verdict(
    what: str, peer: str, most: float, ours: list[float] | None, theirs: list[float] | None
) -> Verdict:
    bound = f"1/{1 / most:.0f}" if most < 0.5 else f"{most:g}"
    target = f"at most {bound} of {peer}"
    if ours is None or theirs is None:
        return Verdict(what, target, NOT_MEASURED, None)
    found: Spread = ratio(ours, theirs)
    shown = f"{found.show('{:.2f}')} of {peer}"
    if most < 0.5:
        shown = f"1/{1 / found.median:.1f} of {peer}, {found.show('{:.3f}')}"
    return Verdict(what, target, shown, found.median <= most)


def _judge(what: str, peer: str, most: float, turns: Turns, peer_turns: Turns | None = None) -> Verdict:
    theirs = turns if peer_turns is None else peer_turns
    return verdict(
        what,
        peer,
        most,
        costs(turns, "holdfast") if "holdfast" in turns else None,
        costs(theirs, peer) if peer in theirs else None,
    )


def raw(turns: Turns) -> dict[str, Any]:
    return {
        name: [asdict(each) | {"us_per_delivery": each.us_per_delivery} for each in measured]
        for name, measured in turns.items()
    }


LOAD = (
    f"{len(PAYLOAD)}-byte payload, {TOPICS:,} topics with contracts, {BATCH} packets a write, "
    f"one subscriber to plant/#, at most {WINDOW:,} messages under way"
)


def qos0(run: Run) -> Outcome:
    """The headline is the saturated load: as fast as the messages arrive."""
    contracts = plant(TOPICS)
    topics = contracts.topics()
    with field_of(run.names, contracts) as brokers:
        for broker in brokers.values():
            check_delivery(broker, topics)
        saturated = _compete(brokers, run, lambda broker: generator(broker, topics))
        paced_field = {name: broker for name, broker in brokers.items() if name != "amqtt"}
        paced = _compete(paced_field, run, lambda broker: generator(broker, topics), PACED_PER_S)
    what = "CPU per message, QoS 0, 1,000 topics with contracts"
    return Outcome(
        [
            cost_table("qos0, saturated (the headline)", saturated, "message", (LOAD,)),
            cost_table(
                f"qos0, paced at {PACED_PER_S:,} messages/s", paced, "message", ("amqtt cannot follow",)
            ),
        ],
        [
            _judge(what, "nats", OF_NATS_MAX, saturated),
            _judge(what, "mosquitto", OF_MOSQUITTO_MAX, saturated),
        ],
        {"saturated": raw(saturated), "paced": raw(paced)},
    )


def stamped(run: Run) -> Outcome:
    """Our creation stamp and sequence in an MQTT 5 user property, against NATS without any."""
    contracts = plant(TOPICS)
    topics = contracts.topics()
    with field_of(run.among("holdfast", "mosquitto", "nats"), contracts) as brokers:
        for broker in brokers.values():
            check_delivery(broker, topics, "stamped", STAMP_EXAMPLE)

        def with_stamp(broker: Broker) -> Generator:
            return generator(broker, topics, stamped_stream, purpose="stamped")

        contest = {f"{name} stamped": (broker, with_stamp) for name, broker in brokers.items()}
        if "nats" in brokers:
            contest["nats"] = (brokers["nats"], lambda broker: generator(broker, topics))

        def turn(name: str) -> Measured:
            broker, make = contest[name]
            return _turn(make, run)(broker)

        turns = take_turns(contest, run.turns, turn)
    note = f"user property hf={STAMP_EXAMPLE.decode()}, new for each write; in NATS a header; `nats` is plain"
    ours = costs(turns, "holdfast stamped") if "holdfast stamped" in turns else None
    plain = costs(turns, "nats") if "nats" in turns else None
    return Outcome(
        [cost_table("stamped: MQTT 5 with creation stamp and sequence", turns, "message", (LOAD, note))],
        [
            verdict(
                "the same with stamp and sequence, against plain NATS",
                "nats",
                STAMPED_OF_NATS_MAX,
                ours,
                plain,
            )
        ],
        raw(turns),
    )


def fanout(run: Run) -> Outcome:
    contracts = plant(TOPICS)
    topics = contracts.topics()
    with field_of(run.names, contracts) as brokers:
        turns = _compete(
            brokers,
            run,
            lambda broker: generator(broker, topics, subscribers=SUBSCRIBERS, window=FANOUT_WINDOW),
        )
    note = (
        f"one publisher, {SUBSCRIBERS} subscribers to plant/#, at most {FANOUT_WINDOW:,} messages under way"
    )
    return Outcome(
        [cost_table(f"fanout: 1 to {SUBSCRIBERS}", turns, "delivery", (note,))],
        [_judge(f"CPU per delivery, 1 to {SUBSCRIBERS}", "nats", OF_NATS_MAX, turns)],
        raw(turns),
    )


def qos1(run: Run) -> Outcome:
    contracts = plant(TOPICS)
    topics = contracts.topics()
    with field_of(run.among("holdfast", "mosquitto", "amqtt"), contracts) as brokers:
        turns = _compete(brokers, run, lambda broker: acknowledged_generator(broker, topics))
    note = (
        f"MQTT 5 (amqtt: 3.1.1); at most {INFLIGHT_MAX:,} unacknowledged each way, fewer if the broker "
        "says so; core NATS has no acknowledged delivery"
    )
    return Outcome(
        [cost_table("qos1: acknowledged in and out", turns, "message", (note,))],
        [_judge("CPU per message, QoS 1 in and out", "mosquitto", QOS1_OF_MOSQUITTO_MAX, turns)],
        raw(turns),
    )
