"""The fuzz targets on a few hundred inputs of a fixed generator: they work, and hold, without sanitizers."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator

import pytest
from fuzz.budget import Budget

from fuzz import broker, codec, publish, seeds
from holdfast.broker.connection import Connection
from holdfast.broker.session import Session

RUN: dict[str, Callable[[bytes], int]] = {"codec": codec.run, "publish": publish.run, "broker": broker.run}
TIMES_MAX = {"codec": codec.TIMES_MAX, "publish": publish.TIMES_MAX, "broker": broker.TIMES_MAX}


def mutations(starts: list[bytes], number: int, seed: int) -> Iterator[bytes]:
    """Inputs as a fuzzer would make them: seeds with bytes changed, cut, doubled and joined."""
    generator = random.Random(seed)
    for _ in range(number):
        data = bytearray(generator.choice(starts))
        if generator.random() < 0.5:
            data += generator.choice(starts)[1:]
        for _ in range(generator.randrange(6)):
            at = generator.randrange(len(data))
            how = generator.randrange(3)
            if how == 0:
                data[at] = generator.randrange(256)
            elif how == 1:
                data.insert(at, generator.randrange(256))
            elif len(data) > 1:
                del data[at : at + generator.randrange(1, 4)]
            if not data:
                data.append(0)
        yield bytes(data)


@pytest.mark.parametrize("name", RUN)
def test_the_seeds_hold(name: str) -> None:
    for data in seeds.SEEDS[name]():
        RUN[name](data)


@pytest.mark.parametrize("name", RUN)
def test_changed_seeds_hold(name: str) -> None:
    for data in mutations(list(seeds.SEEDS[name]()), 400, seed=1):
        RUN[name](data)


@pytest.mark.parametrize("name", RUN)
def test_any_bytes_hold(name: str) -> None:
    generator = random.Random(2)
    for _ in range(300):
        RUN[name](generator.randbytes(generator.randrange(120)))


@pytest.mark.parametrize("name", RUN)
def test_changed_seeds_cost_what_they_are_worth(name: str) -> None:
    starts = list(seeds.SEEDS[name]())
    budget = Budget(RUN[name], starts, TIMES_MAX[name])
    for data in mutations(starts, 200, seed=4):
        budget(data)


def test_a_broker_that_is_let_go_leaves_nothing() -> None:
    def living() -> int:
        gc.collect()
        return sum(isinstance(each, Connection | Session | broker.Broker) for each in gc.get_objects())

    before = living()
    for data in mutations(list(seeds.broker_seeds()), 100, seed=3):
        broker.run(data)
    assert living() == before


def test_the_targets_notice_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "encode", lambda packet, version: b"\xc0\x00")
    with pytest.raises(AssertionError, match="decoded again to"):
        codec.run(b"\x02\xd0")
