"""Hostile clients in virtual time: they are there, they reach the bounds, and the laws beside them bite."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.replication.pair import Group, contracts

from holdfast.config import Limits
from holdfast.mqtt.codec import encode
from holdfast.mqtt.packets import Publish
from holdfast.sim.attacks import ATTACKS
from holdfast.sim.brokers import MemberProcess
from holdfast.sim.checkers import judge
from holdfast.sim.drawing import HOSTILE_BOUNDS, HOSTILE_LIMITS, draw
from holdfast.sim.ledger import Ledger, Promotion, State
from holdfast.sim.meter import ALONE_BYTES, kept_by, turn_units_max
from holdfast.sim.options import Fault, Options
from holdfast.sim.run import simulate

CALM = 93  # a seed with hostile clients and nothing else besides its faults
AWAYS = 437  # one in which sessions that are away fill what all may hold


def only(kind: str, seed: int = CALM) -> Options:
    options = draw(seed)
    assert options.hostile is not None
    return structs.replace(options, hostile=structs.replace(options.hostile, kinds=(kind,)))


def test_hostile_clients_of_every_kind_are_in_about_one_seed_of_six() -> None:
    drawn = [draw(seed) for seed in range(600)]
    hostile = [options for options in drawn if options.hostile is not None]
    assert 600 // 8 < len(hostile) < 600 // 5
    assert {kind for options in hostile for kind in options.hostile.kinds} == set(ATTACKS)
    assert any(options.calm for options in hostile)
    assert any(options.crowd is not None for options in hostile)
    for options in hostile:
        assert all(getattr(options.limits, name) == getattr(HOSTILE_LIMITS, name) for name in HOSTILE_BOUNDS)
        assert any("hostile" in line for line in options.lines())


@pytest.mark.parametrize("kind", sorted(ATTACKS))
def test_every_law_holds_beside_each_kind(kind: str) -> None:
    outcome, _ = simulate(only(kind))
    assert outcome.violations == []


@pytest.mark.parametrize(("name", "seed", "kind"), [("queues", AWAYS, "aways"), ("pending", CALM, "halves")])
def test_hostile_clients_reach_bounds_of_memory(
    name: str, seed: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fullest = 0.0
    charge = MemberProcess._charge

    def look(self: MemberProcess, *arguments: object) -> None:
        nonlocal fullest
        found = {part: size / most for part, size, most in kept_by(self.member.broker)}
        fullest = max(fullest, found[name])
        charge(self, *arguments)

    monkeypatch.setattr(MemberProcess, "_charge", look)
    simulate(only(kind, seed))
    assert 0.8 < fullest <= 1


@pytest.mark.parametrize("others", [0, 1])
def test_who_alone_keeps_more_than_all_may_keeps_it_and_nobody_else_does(others: int) -> None:
    """A publisher at a standby writes ahead; the law of memory says the same as the broker does."""
    limits = Limits(packet_bytes_max=20_000, connect_bytes_max=8_192, connecting_bytes_max=50_000)
    group = Group(contract_book=contracts(limits))
    publisher, broker = group.client("p", "b", warm=True), group.members["b"].broker
    for _ in range(others):
        half = group.members["b"].open(None, group.now_ns)
        assert half is not None
        half.feed(b"\x10\xff\x20\x00", group.now_ns, group.wall_ns)
    packet = encode(Publish("t", bytes(16_000)), 5)
    while publisher.connection.wants_bytes() and not publisher.connection.fault:
        publisher.connection.feed(packet, group.now_ns, group.wall_ns)
        assert (publisher.connection.fault is not None) == (broker.core.connecting_bytes == 4 * others > 0)
        assert all(size <= most for _, size, most in kept_by(broker))
    kept = {name: (size, most) for name, size, most in kept_by(broker)}
    assert kept["connecting"] == ((4, 50_000) if others else (5 * len(packet), ALONE_BYTES))


@pytest.mark.parametrize("keepers", [1, 2])
def test_two_who_keep_more_than_all_may_are_found(keepers: int) -> None:
    group = Group()
    broker = group.members["b"].broker
    for _ in range(keepers):
        connection = group.members["b"].open(None, group.now_ns)
        assert connection is not None
        connection.feed(b"\x10\xff\xff\x03".ljust(60_000 // keepers, b"x"), group.now_ns, group.wall_ns)
    broker.limits = structs.replace(broker.limits, connecting_bytes_max=50_000)  # not the core
    kept = {name: (size, most) for name, size, most in kept_by(broker)}
    assert kept["connecting"] == (60_000, ALONE_BYTES if keepers == 1 else 50_000)


# The laws, from ledgers made by hand


def broken(ledger: Ledger, options: Options | None = None) -> set[str]:
    return {violation.law for violation in judge(options or draw(CALM), ledger)}


def made(**more: object) -> Ledger:
    ledger = Ledger(len(draw(CALM).subscribers))
    ledger.faults.append((100, "kill", "primary"))
    for name, value in more.items():
        setattr(ledger, name, value)
    return ledger


def promoted(at_ns: int, who: str) -> Promotion:
    return Promotion(at_ns, who, State(frozenset(), frozenset(), {}))


@pytest.mark.parametrize("at_ns", [99, 100, 101])
def test_a_primary_hangs_up_on_no_good_client_before_a_fault(at_ns: int) -> None:
    assert ("Undisturbed" in broken(made(hung_up=[(at_ns, "m0", "publisher-0")]))) == (at_ns < 100)


@pytest.mark.parametrize("at_ns", [99, 100, 101])
def test_nobody_takes_over_before_a_fault(at_ns: int) -> None:
    ledger = made(promotions=[promoted(1, "m0"), promoted(at_ns, "m1")])
    assert ("Undisturbed" in broken(ledger)) == (at_ns < 100)


def test_turns_and_memory_have_bounds() -> None:
    assert "Turn" in broken(made(overwork=[(1, "m0", 20_000, 10_000)]))
    assert "Memory" in broken(made(overfull=[(1, "m0", "queues", 3, 2)]))


def test_work_takes_time_and_a_deadline_that_leaves_none_for_it_is_missed() -> None:
    """The charge is real: where a unit takes a hundred times as long, messages are late."""
    options = only("subscribes")
    assert options.calm
    assert options.hostile is not None
    late = Fault(kind="kill", where="primary", at_ns=options.publish_ns, share=0.5)
    slow = structs.replace(options.hostile, unit_ns=100 * 250)
    options = structs.replace(options, hostile=slow, faults=(late,))
    assert "Deadline" in {violation.law for violation in simulate(options)[0].violations}


def test_a_turn_may_do_the_sum_of_its_shares_and_little_more() -> None:
    assert 7_000 < turn_units_max(HOSTILE_LIMITS) < 11_000
