"""The kernel: order of events, steps, pauses, crash points, and what a network does with bytes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from holdfast.sim.network import CONNECT_TIMEOUT_NS, End, Network, Path
from holdfast.sim.world import (
    ACCEPTED,
    DATA,
    FAILED,
    LOST,
    OPENED,
    START_NS,
    Doom,
    Host,
    Process,
    World,
)
from holdfast.units import MS, US

ADDRESS = ("b", 1)
WORDS = {DATA: "data", OPENED: "opened", FAILED: "failed", LOST: "lost", ACCEPTED: "accepted"}


class Recorder(Process):
    """Notes what it hears, and writes what it is told to."""

    def __init__(self, world: World, host: Host, cost_ns: int = 0) -> None:
        super().__init__(world, host, host.name, cost_ns)
        self.heard: list[tuple[int, str, Any]] = []
        self.ends: list[End] = []
        self.to_write: list[tuple[End, bytes, bool]] = []
        self.due_ns: int | None = None
        self.turns: list[int] = []

    def feed(self, kind: int, end: End | None, data: Any) -> None:
        self.heard.append((self.world.now_ns, WORDS[kind], data if kind == DATA else None))
        if kind in (OPENED, ACCEPTED):
            assert end is not None
            self.ends.append(end)

    def turn(self) -> bool:
        self.turns.append(self.world.now_ns)
        if self.due_ns is not None and self.due_ns <= self.world.now_ns:
            self.due_ns = None
        return False

    def outputs(self) -> list[tuple[End, bytes, bool]]:
        written, self.to_write = self.to_write, []
        return written

    def wrap_up(self) -> bool:
        return False

    def next_ns(self) -> int | None:
        return self.due_ns

    def write(self, data: bytes, closes: bool = False) -> None:
        self.to_write.append((self.ends[-1], data, closes))
        self._plan()

    def said(self) -> list[str]:
        return [word for _, word, _ in self.heard]

    def got(self) -> bytes:
        return b"".join(data for _, word, data in self.heard if word == "data")


class Pair:
    def __init__(self, seed: int = 1, jitter_ns: int = MS, loss: float = 0.0, cost_ns: int = 0) -> None:
        self.world = World(Random(seed))
        self.network = Network(
            self.world, lambda a, b: Path(self.world.rng, 100 * US, jitter_ns, loss, 20 * MS)
        )
        self.a = Recorder(self.world, Host("a"))
        self.b = Recorder(self.world, Host("b"), cost_ns)
        self.network.listen(ADDRESS, self.b)

    def connect(self) -> None:
        self.network.dial(self.a, ADDRESS, None)
        self.pass_time(5 * MS)
        assert self.a.said() == ["opened"]
        assert self.b.said() == ["accepted"]

    def pass_time(self, ns: int) -> None:
        self.world.run(self.world.now_ns + ns)


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.connect()
    return pair


def test_events_run_by_time_and_equal_ones_as_they_were_set() -> None:
    world = World(Random(0))
    seen: list[str] = []
    world.at(START_NS + 2, seen.append, "c")
    world.at(START_NS + 1, seen.append, "a")
    world.at(START_NS + 1, seen.append, "b")
    world.run(START_NS + 1)
    assert seen == ["a", "b"]
    world.run(START_NS + 9)
    assert seen == ["a", "b", "c"]


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_in_order_and_once(seed: int) -> None:
    pair = Pair(seed, jitter_ns=10 * MS, loss=0.2)
    pair.network.dial(pair.a, ADDRESS, None)
    pair.pass_time(100 * MS)
    for number in range(50):
        pair.a.write(b"%d," % number)
        pair.pass_time(US)
    pair.pass_time(200 * MS)
    assert pair.b.got() == b"".join(b"%d," % number for number in range(50))


def test_connections_overtake_each_other() -> None:
    overtaken = 0
    for seed in range(40):
        pair = Pair(seed, jitter_ns=10 * MS)
        for _ in range(2):
            pair.network.dial(pair.a, ADDRESS, None)
        pair.pass_time(50 * MS)
        first, second = pair.a.ends
        first.send(b"1")
        second.send(b"2")
        pair.pass_time(50 * MS)
        overtaken += pair.b.got() == b"21"
    assert 0 < overtaken < 40


def test_what_a_killed_process_wrote_arrives_and_then_the_end(pair: Pair) -> None:
    pair.b.ends[0].send(b"last words")
    pair.network.kill(pair.b)
    pair.pass_time(10 * MS)
    assert pair.a.got() == b"last words"
    assert pair.a.said()[-1] == "lost"
    pair.network.dial(pair.a, ADDRESS, None)
    pair.pass_time(10 * MS)
    assert pair.a.said()[-1] == "failed"


def test_of_a_fallen_host_nobody_hears(pair: Pair) -> None:
    pair.network.crash(pair.b.host, pair.b, lambda end: False)
    pair.a.write(b"hello?")
    pair.pass_time(10 * CONNECT_TIMEOUT_NS)
    assert "lost" not in pair.a.said()
    pair.network.dial(pair.a, ADDRESS, None)
    pair.pass_time(CONNECT_TIMEOUT_NS - MS)
    assert "failed" not in pair.a.said()
    pair.pass_time(10 * MS)
    assert pair.a.said()[-1] == "failed"


def test_a_host_that_came_back_resets_old_connections(pair: Pair) -> None:
    pair.network.crash(pair.b.host, pair.b, lambda end: False)
    pair.b.host.up = True
    pair.network.listen(ADDRESS, Recorder(pair.world, pair.b.host))
    pair.a.write(b"hello?")
    pair.pass_time(10 * MS)
    assert pair.a.said()[-1] == "lost"


def test_bytes_on_the_way_vanish_with_the_host_from_some_moment_on() -> None:
    arrived = set()
    for seed in range(60):
        pair = Pair(seed)
        pair.connect()
        for number in range(5):
            pair.b.ends[0].send(b"%d" % number)
        pair.network.crash(pair.b.host, pair.b, lambda end: False)
        pair.pass_time(100 * MS)
        assert b"01234".startswith(pair.a.got())
        arrived.add(pair.a.got())
    assert {b"", b"01234"} <= arrived
    assert len(arrived) > 2


def test_a_cut_holds_bytes_back_and_lets_them_pass_when_it_heals(pair: Pair) -> None:
    pair.network.cut("a", "b")
    pair.a.write(b"one ")
    pair.a.write(b"two")
    pair.b.write(b"back")
    pair.pass_time(500 * MS)
    assert pair.b.got() == b""
    assert pair.a.got() == b"back"
    pair.network.heal()
    pair.pass_time(10 * MS)
    assert pair.b.got() == b"one two"


def test_a_paused_process_hears_when_it_runs_again(pair: Pair) -> None:
    pair.b.due_ns = pair.world.now_ns + MS
    pair.b.step()
    turns = len(pair.b.turns)
    pair.b.pause()
    pair.a.write(b"psst")
    pair.pass_time(100 * MS)
    assert pair.b.got() == b""
    assert len(pair.b.turns) == turns
    pair.b.resume()
    pair.pass_time(0)
    assert pair.b.got() == b"psst"
    assert pair.b.due_ns is None


def test_a_busy_process_takes_what_came_meanwhile_in_one_step() -> None:
    pair = Pair(cost_ns=5 * MS)
    pair.connect()
    for _ in range(20):
        pair.a.write(b".")
        pair.pass_time(100 * US)
    pair.pass_time(20 * MS)
    assert pair.b.got() == b"." * 20
    assert len(pair.b.turns) <= 4


def test_alarms_ring_when_they_are_due(pair: Pair) -> None:
    turns = len(pair.b.turns)
    pair.b.due_ns = due_ns = pair.world.now_ns + 7 * MS
    pair.b.step()
    pair.pass_time(50 * MS)
    assert pair.b.turns[turns:] == [pair.b.turns[turns], due_ns]


@pytest.mark.parametrize(
    ("feeds", "share", "fed", "written"),
    [
        (True, 0.0, 0, b""),
        (True, 0.5, 1, b""),
        (False, 0.0, 2, b""),
        (False, 0.5, 2, b"first"),
        (False, 0.75, 2, b"firstsec"),
    ],
)
def test_a_crash_comes_between_any_two_parts_of_a_step(
    pair: Pair, feeds: bool, share: float, fed: int, written: bytes
) -> None:
    pair.b.pause()
    pair.a.ends[0].send(b"1")
    pair.a.ends[0].send(b"2")
    pair.pass_time(10 * MS)
    end = pair.b.ends[0]
    pair.b.to_write = [(end, b"first", False), (end, b"second", False)]
    pair.b.doom = Doom(
        pair.world.now_ns, feeds=feeds, share=share, on_death=lambda: pair.network.kill(pair.b)
    )
    pair.b.resume()
    pair.pass_time(20 * MS)
    assert not pair.b.alive
    assert len(pair.b.got()) == fed
    assert pair.a.got() == written
    assert pair.a.said()[-1] == "lost"


def test_a_reset_ends_both_sides_and_loses_what_was_on_the_way(pair: Pair) -> None:
    pair.a.ends[0].send(b"gone")
    pair.a.ends[0].reset_both()
    pair.pass_time(10 * MS)
    assert pair.a.said()[-1] == pair.b.said()[-1] == "lost"
    assert pair.b.got() == b""
