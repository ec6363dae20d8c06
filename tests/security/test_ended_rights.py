"""Rights that end: what a client may not read any more does not reach it, and looking again takes turns."""

from __future__ import annotations

import pytest
from tests.broker.bench import Client
from tests.security.guarded import Guarded, known

from holdfast.broker.work import DOUBTED_PER_TURN, INTERRUPTED_PER_TURN, RIGHT, ROUND
from holdfast.mqtt.packets import Connect, Disconnect, Properties, Puback, Subscribe, Subscription

KEPT = Properties(session_expiry=3600)
BOTH = """
[[rule]]
users = ["alice"]
subscribe = ["open/#", "shut/#"]
[[rule]]
users = ["boss"]
publish = ["#"]
"""
ONE = BOTH.replace(', "shut/#"', "")
ASKED_PER_TURN = DOUBTED_PER_TURN // RIGHT


def reload(bench: Guarded, rules: str) -> None:
    bench.gate.reload(known(rules), bench.now_ns)


def publish(bench: Guarded, boss: Client, *topics: str) -> None:
    for topic in topics:
        boss.publish(topic, b"x", qos=1)
        bench.run()


def comes_again(bench: Guarded) -> Client:
    packet = Connect(client_id="alice-1", clean_start=False, properties=KEPT)
    return bench.knock(packet, certificate="alice")


def topics_of(client: Client) -> list[str]:
    return [message.topic for message in client.messages()]


@pytest.mark.parametrize("count", [1, ASKED_PER_TURN - 1, ASKED_PER_TURN, 3 * ASKED_PER_TURN])
def test_what_waits_for_an_absent_client_and_it_may_not_read_any_more_does_not_reach_it(count: int) -> None:
    bench = Guarded(BOTH)
    alice, boss = bench.user("alice", properties=KEPT), bench.user("boss")
    alice.say(Subscribe(1, [Subscription("open/#", 1), Subscription("shut/#", 1)]))
    alice.say(Disconnect())
    opened = [f"open/{number}" for number in range(count)]
    for number, name in enumerate(opened):
        publish(bench, boss, f"shut/{number}", name)
    reload(bench, ONE)
    again = comes_again(bench)
    got = topics_of(again)
    while len(got) < count:
        again.send(*(Puback(number + 1) for number in range(len(got))))
        bench.run()
        more = topics_of(again)
        assert more, f"{len(got)} of {count} came"
        got += more
    assert got == opened


def test_what_waits_for_a_client_that_does_not_read_is_withheld() -> None:
    bench = Guarded(BOTH)
    alice, boss = bench.user("alice"), bench.user("boss")
    alice.say(Subscribe(1, [Subscription("open/#", 0), Subscription("shut/#", 0)]))
    alice.take()
    alice.stop_reading()
    publish(bench, boss, "shut/1", "open/1")
    reload(bench, ONE)
    bench.run()
    alice.read_again()
    assert topics_of(alice) == ["open/1"]


def test_what_was_sent_and_not_acknowledged_does_not_go_again() -> None:
    bench = Guarded(BOTH)
    alice, boss = bench.user("alice", properties=KEPT), bench.user("boss")
    alice.say(Subscribe(1, [Subscription("open/#", 1), Subscription("shut/#", 2)]))
    alice.take()
    publish(bench, boss, "shut/1", "open/1", "shut/2")
    assert len(topics_of(alice)) == 3
    bench.broker.lost(alice.connection, bench.now_ns)
    bench.run()
    reload(bench, ONE)
    again = comes_again(bench)
    assert topics_of(again) == ["open/1"]
    (session,) = [each for each in bench.broker.clients.sessions.values() if each.link is again.connection]
    assert session.in_flight == 1


@pytest.mark.parametrize("count", [1, 2, ROUND // RIGHT, INTERRUPTED_PER_TURN // RIGHT, 1000])
def test_subscriptions_are_looked_at_again_in_turns_and_nothing_slips_through_meanwhile(count: int) -> None:
    """Those that end are looked at last: until then each message is asked about."""
    bench = Guarded(BOTH)
    alice, boss = bench.user("alice"), bench.user("boss")
    wanted = [f"open/{number}" for number in range(count)] + ["shut/1"]
    for at in range(0, len(wanted), 50):
        alice.say(Subscribe(1, [Subscription(each) for each in wanted[at : at + 50]]))
    alice.take()
    reload(bench, ONE)
    works, most, turns = bench.broker.works, 0, 0
    more = True
    while more:
        boss.publish("shut/1", b"x")
        boss.publish("open/0", b"x")
        before = works.spent
        more = bench.broker.turn(bench.now_ns, bench.now_ns)
        most, turns = max(most, works.spent - before), turns + 1
        more = more or bool(works.interrupted)
        assert turns < 1000
    bench.run()
    assert set(topics_of(alice)) == {"open/0"}
    assert most <= INTERRUPTED_PER_TURN + 2 * ROUND, "a turn has its share"
    (session,) = [each for each in bench.broker.clients.sessions.values() if each.link is alice.connection]
    assert set(session.subscriptions) == set(wanted[:-1])


def test_when_nothing_is_in_doubt_any_more_nothing_is_asked() -> None:
    bench = Guarded(BOTH)
    alice, boss = bench.user("alice"), bench.user("boss")
    alice.subscribe("open/#")
    reload(bench, ONE)
    bench.run()
    (session,) = [each for each in bench.broker.clients.sessions.values() if each.link is alice.connection]
    publish(bench, boss, "open/1")
    assert topics_of(alice) == ["open/1"]
    assert session.reading is None or session.reading.settled
