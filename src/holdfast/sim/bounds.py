"""Bounds of the code that a seed may draw smaller than they are: then a small state is around each of them.

Law: a bound that is drawn smaller changes how much is done at once, never what is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType

from holdfast.broker import broker, replaying, subscribing, timers
from holdfast.broker.system_topics import SystemTopics
from holdfast.config import Limits
from holdfast.replication import contest, hearing, serving, sharing, transfers
from holdfast.units import MS

AGAIN_NS = 100 * MS  # after an arbiter gave no answer: runs are short

BOUNDS: dict[str, tuple[ModuleType, tuple[int, ...]]] = {
    "WORD_INCREMENTS_MAX": (transfers, (1, 2, 3, 7, 20)),
    "WORD_BYTES": (transfers, (1, 100, 1_000)),
    "SESSIONS_COPIED_PER_TURN": (serving, (1, 2, 3)),
    "WAITING_BYTES_MAX": (serving, (1, 500, 5_000)),
    "WORDS_PER_TURN": (hearing, (1, 2, 5)),
    "STRANGERS_PER_TURN": (hearing, (1, 2)),
    "GREETING_WORDS": (hearing, (1, 2)),
    "CONTROL_PER_TURN": (broker, (1, 30, 100)),
    "REPLAYED_PER_TURN": (broker, (1, 4, 20)),
    "READ_PER_TURN": (broker, (1, 30, 100)),
    "READ_AT_ONCE": (broker, (1, 30, 100)),
    "ASIDE_PER_TURN": (broker, (1, 30, 100)),
    "INTERRUPTED_PER_TURN": (broker, (1, 30, 100)),
    "WATCHED_PER_TURN": (broker, (1, 2)),
    "REPLAYED_AT_ONCE": (subscribing, (1, 4, 20)),
    "GRANTED_AT_ONCE": (subscribing, (1, 5)),
    "ENDED_PER_TURN": (broker, (1, 30)),
    "CLEARED_AT_ONCE": (subscribing, (1, 30)),
    "QUEUED_DURING_REPLAY_MAX": (replaying, (1, 5)),
    "FIRED_MAX": (timers, (1, 2)),
    "TOLD_AT_ONCE": (sharing, (1, 2)),
    "AGAIN_NS": (contest, (AGAIN_NS,)),
}
SMALL = 0.3  # of the seeds draw a bound smaller, each for itself


def draw_bounds(rng: Random, arbiter: bool) -> dict[str, int]:
    drawn = {name: rng.choice(values) for name, (_, values) in BOUNDS.items() if rng.random() < SMALL}
    drawn.pop("AGAIN_NS", None)
    return drawn | ({"AGAIN_NS": AGAIN_NS} if arbiter else {})


def draw_limits(rng: Random, slice_jobs: int) -> Limits:
    """Those of the broker's own limits that cost nobody a message when they are reached."""
    packet_bytes = rng.choice((16_777_216, 16_777_216, 4_096))
    return Limits(
        slice_jobs_max=slice_jobs,
        marks_lag_ns=rng.choice((0, 5, 20)) * MS,
        state_log_max=rng.choice((10_000, 1, 2, 5, 20, 60, 200)),
        receive_max=rng.choice((1024, 100, 200)),
        packet_bytes_max=packet_bytes,
        backup_bytes_max=rng.choice((67_108_864, 67_108_864, 40_000))
        if packet_bytes < 40_000
        else 67_108_864,
    )


@contextmanager
def smaller(bounds: dict[str, int]) -> Iterator[None]:
    """For a while the code has those bounds."""
    before = {name: getattr(BOUNDS[name][0], name) for name in bounds}
    for name, value in bounds.items():
        setattr(BOUNDS[name][0], name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(BOUNDS[name][0], name, value)


@contextmanager
def quiet(system_topics: bool) -> Iterator[None]:
    """Without the messages that brokers publish of themselves, which most seeds do not pay for."""
    if system_topics:
        yield
        return
    before = SystemTopics._tell
    SystemTopics._tell = lambda self, values: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        SystemTopics._tell = before  # type: ignore[method-assign]
