"""One message for many, and groups of many: what that costs is bounded in every slice."""

from __future__ import annotations

import time

import pytest
from tests.broker.bench import WALL_NS, Bench, Client

from holdfast.broker.session import Session
from holdfast.broker.subscriptions import Subscription, SubscriptionTree
from holdfast.mqtt.packets import Publish, Suback, Subscribe
from holdfast.mqtt.packets import Subscription as Wanted

LARGE_BYTES = 4096
LOOKED_MAX = 4096 * 8  # members of groups that a slice looks at
SPREAD_BYTES_MAX = 2**20  # of large messages, and of what waited, in one turn
MOVED_BYTES = 512  # of these for each message that moves on
OUT_HIGH = 2**16  # what one session moves at once, and a message
QUOTA_EXCEEDED = 0x97


def sessions(bench: Bench, count: int) -> list[Session]:
    return [bench.broker.clients.make_session(f"s{number}", 1000 + number, "") for number in range(count)]


def grouped(session: Session) -> Subscription:
    return Subscription(session, b"t", group="g", qos=1)


def cpu_of_churn(members: list[Session]) -> float:
    """To take one's place again, to leave and to come back, as the first and the last: the least of 5."""
    tree = SubscriptionTree()
    for session in members:
        tree.add(grouped(session))
    least = float("inf")
    for _ in range(5):
        began = time.thread_time()
        for _ in range(50):
            for session in (members[0], members[-1]):
                assert not tree.add(grouped(session))
                assert tree.remove(session, b"t", "g")
                assert tree.add(grouped(session))
        least = min(least, time.thread_time() - began)
    return least


def test_to_join_and_leave_a_group_costs_the_same_however_large_it_is() -> None:
    bench = Bench()
    many = sessions(bench, 10_000)
    assert cpu_of_churn(many) < 5 * cpu_of_churn(many[:10])


def test_a_group_has_each_member_once_whoever_leaves() -> None:
    bench, tree = Bench(), SubscriptionTree()
    some = sessions(bench, 5)
    for session in some:
        tree.add(grouped(session))
    (group,) = tree.matching(b"t")
    here = list(some)
    for session in (some[1], some[4], some[0], some[2]):
        assert tree.remove(session, b"t", "g")
        assert not tree.remove(session, b"t", "g")
        here.remove(session)
        assert {member.session for member in group.members} == set(here)
        assert len(group.members) == len(here)
        again = grouped(here[-1])
        assert not tree.add(again)
        assert [member for member in group.members if member.session is here[-1]] == [again]
    assert tree.remove(some[3], b"t", "g")
    assert tree.matching(b"t") == []


def turn(bench: Bench) -> int:
    """How many messages were dispatched in a slice."""
    before = bench.broker.core.jobs_waiting
    bench.turn()
    return before - bench.broker.core.jobs_waiting


@pytest.mark.parametrize("members", [1, 100, 5000])
def test_a_slice_looks_at_so_many_members_of_groups(members: int) -> None:
    """None of them is there, so each message makes the broker look at all of them."""
    bench = Bench()
    for session in sessions(bench, members):
        bench.broker.subscribing.enter(grouped(session), "$share/g/t")
    publisher = bench.client("p")
    publisher.publish("t")  # finds the members of the group, which is the work of its publisher
    bench.run()
    for _ in range(900):
        publisher.publish("t")
    assert bench.broker.core.jobs_waiting == 900
    assert turn(bench) == (900 if members < 10 else min(900, -(-LOOKED_MAX // (members // 8 * 8))))
    bench.run()
    assert bench.broker.core.jobs_waiting == 0


def subscriber(bench: Bench, name: str, *filters: str) -> Client:
    client = bench.client(name)
    client.say(Subscribe(1, [Wanted(filter=filter, qos=0) for filter in filters]))
    return client


@pytest.mark.parametrize(
    ("size", "unread", "read"),
    [
        (0, 10, 30),
        (LARGE_BYTES - 1, 10, 30),
        (LARGE_BYTES, 5, 10),
        (4 * LARGE_BYTES, 2, 3),
        (100 * LARGE_BYTES, 1, 1),
    ],
)
@pytest.mark.parametrize("reads", [False, True])
def test_a_slice_of_large_messages_is_shorter(size: int, unread: int, read: int, reads: bool) -> None:
    """A slice goes on for clients that read, so that a write is worth its while; not for what is large."""
    bench = Bench()
    for number in range(100):
        client = subscriber(bench, f"c{number}", "t")
        if not reads:
            client.stop_reading()
    publisher = bench.client("p")
    publisher.send(*[Publish("t", bytes(size)) for _ in range(30)])
    assert bench.broker.core.jobs_waiting == 30
    bench.broker.turn(bench.now_ns, WALL_NS + bench.now_ns)
    assert 30 - bench.broker.core.jobs_waiting == (read if reads else unread)


def sent_in_turns(bench: Bench) -> list[int]:
    """Bytes that each turn hands to clients, until all rest."""
    board, turns = bench.broker.core.board, []
    while not turns or bench.broker.core.jobs_waiting or board.waiting:
        before = board.bytes_sent
        bench.turn()
        turns.append(board.bytes_sent - before)
        assert len(turns) < 10_000
    return turns


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("size", [LARGE_BYTES, 60_000, SPREAD_BYTES_MAX + 1])
def test_a_large_message_for_many_goes_to_some_in_each_turn(size: int, qos: int) -> None:
    bench = Bench()
    clients = [bench.client(f"c{number}") for number in range(400)]
    for client in clients:
        client.subscribe("t", qos=qos)
        client.take()
    publisher = bench.client("p")
    publisher.send(Publish("t", b"x" * size, qos=qos, packet_id=1 if qos else 0), Publish("t", b"then"))
    turns = sent_in_turns(bench)
    assert sum(turns) >= 400 * size
    assert max(turns) < SPREAD_BYTES_MAX + 2 * size + 400 * 64
    for client in clients:
        payloads = [packet.payload for packet in client.take() if isinstance(packet, Publish)]
        assert payloads == [b"x" * size, b"then"]


@pytest.mark.parametrize("size", [1, 100, 3000])
def test_of_many_who_can_read_again_some_move_on_in_each_turn(size: int) -> None:
    bench = Bench()
    clients = [bench.client(f"c{number}") for number in range(100)]
    for client in clients:
        client.subscribe("t", qos=0)
        client.take()
        client.stop_reading()
    publisher = bench.client("p")
    for number in range(200):
        publisher.send(Publish("t", b"%0*d" % (size, number)))
        bench.run()
    for client in clients:
        client.reads = True
        client.connection.drained()
    turns = sent_in_turns(bench)
    most = SPREAD_BYTES_MAX * (size + 8) // (size + MOVED_BYTES) + OUT_HIGH + size
    assert max(turns) < most * 11 // 10
    for client in clients:
        numbers = [int(packet.payload) for packet in client.take() if isinstance(packet, Publish)]
        assert numbers == list(range(200))


def test_one_client_makes_so_many_groups_of_one_topic_and_others_go_on() -> None:
    bench = Bench()
    most = bench.broker.limits.match_steps_per_session_max
    greedy = subscriber(bench, "greedy", *[f"$share/g{number}/a/b" for number in range(most + 100)])
    (answer,) = [packet for packet in greedy.take() if isinstance(packet, Suback)]
    assert 90 <= answer.reasons.count(QUOTA_EXCEEDED) <= 110
    assert answer.reasons.count(0) <= most
    assert bench.broker.core.tree.steps <= most + 3
    honest = bench.client("honest")
    for wanted in ("$share/g1/a/b", "$share/other/a/b", "a/b", "x/+/y", "$share/g/#"):
        assert honest.subscribe(wanted).reasons == [0]
    bench.broker.lost(greedy.connection, bench.now_ns)
    bench.broker.lost(honest.connection, bench.now_ns)
    bench.run()
    assert bench.broker.core.tree.steps == 1
