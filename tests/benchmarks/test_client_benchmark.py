"""The client's benchmark counts what it says it counts; no test looks at a time."""

from benchmarks.brokers import running
from benchmarks.client import (
    feed,
    publish_alone,
    publish_to,
    receive_alone,
    receive_from,
    take_batches,
    take_singly,
)
from benchmarks.contracts import plant
from benchmarks.measure import alone, aside

SECONDS = 0.02


def test_every_turn_publishes_or_receives():
    contracts = plant(1_000)
    with running("holdfast", contracts) as broker, aside(feed, broker, contracts) as feeder:
        feeder.await_ready()
        for turn in (
            publish_to(broker, contracts, 0, SECONDS),
            publish_to(broker, contracts, 1, SECONDS),
            receive_from(broker, feeder, take_singly, SECONDS),
            receive_from(broker, feeder, take_batches, SECONDS),
            publish_alone(contracts, SECONDS),
            receive_alone(contracts, SECONDS),
        ):
            assert alone(turn) > 0
