"""What waits for a member of a shared group whose session ends is not lost with a broker either."""

from __future__ import annotations

import pytest
from tests.broker.bench import MS, Bench
from tests.broker.bench import Client as Alone
from tests.replication.notebook import KeptBench, Notebook
from tests.replication.pair import Client, Group
from tests.replication.test_marks import LAG_NS, fail_over, kept_contracts

from holdfast.mqtt.packets import Disconnect, Packet, Properties, Puback, Pubcomp, Publish, Pubrec, Pubrel

S = 1000 * MS
SHARED = "$share/g/safe/1"
COUNT = 20
SENT = [b"%02d" % number for number in range(COUNT)]
ENDS = Disconnect(properties=Properties(session_expiry=0))


def member(group: Group, name: str, qos: int = 1, *, subscribes: bool = True, **options: object) -> Client:
    client = group.client(name, **options)
    if subscribes:
        client.subscribe(SHARED, qos=qos)
    return client


def publish(group: Group, qos: int = 1) -> None:
    publisher = group.client("p")
    for number, payload in enumerate(SENT, 1):
        publisher.publish("safe/1", payload, qos=qos, packet_id=number)
        group.run()
        if qos == 2:
            publisher.say(Pubrel(number))
    group.pass_time(100 * MS)  # until copies are due
    assert len([each for each in publisher.take() if isinstance(each, (Puback, Pubcomp))]) == COUNT


def receive(client: Client | Alone) -> list[bytes]:
    got: list[bytes] = []
    while packets := client.take():
        for packet in packets:
            answer: Packet | None = None
            if isinstance(packet, Publish) and not packet.topic.startswith("$SYS"):
                got.append(packet.payload)
                answer = Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id)
            elif isinstance(packet, Pubrel):
                answer = Pubcomp(packet.packet_id)
            if answer is not None:
                client.say(answer)
    return got


def both_away(group: Group, expiry_s: int = 300) -> None:
    for name in ("ends", "other"):
        member(group, name, expiry_s=expiry_s if name == "ends" else 300).say(Disconnect())


@pytest.mark.parametrize("wait_ns", [0, LAG_NS // 2, 3 * LAG_NS])
@pytest.mark.parametrize("stays", ["connected", "away"])
def test_a_member_ends_and_then_the_primary_dies(stays: str, wait_ns: int) -> None:
    group = Group()
    both_away(group)
    publish(group)
    if stays == "connected":
        group.client("other")
    group.client("ends").say(ENDS)
    group.pass_time(wait_ns)
    fail_over(group)
    assert sorted(receive(group.client("other"))) == SENT


def test_the_primary_dies_and_then_a_member_ends() -> None:
    group = Group()
    both_away(group, expiry_s=30)
    publish(group)
    fail_over(group)
    other = group.client("other")
    had = receive(other)
    assert 0 < len(had) < COUNT
    group.pass_time(31 * S, step_ns=10 * MS)
    assert sorted(had + receive(other)) == SENT


def test_who_joined_later_has_it_after_a_crash_too() -> None:
    """Its subscription is younger than the messages: the backup knows that the group is not."""
    group = Group()
    member(group, "ends").say(Disconnect())
    publish(group)
    member(group, "late").say(Disconnect())
    group.client("ends").say(ENDS)
    fail_over(group)
    assert sorted(receive(group.client("late"))) == SENT


def test_a_backup_that_came_after_the_member_had_ended_knows_too() -> None:
    group = Group()
    member(group, "ends").say(Disconnect())
    publish(group)
    member(group, "late").say(Disconnect())
    group.client("ends").say(ENDS)
    backup = next(name for name in group.members if name != group.primary.name)
    group.crash(backup)
    group.pass_time(S)
    group.start(backup)
    group.pass_time(S)
    fail_over(group)
    assert sorted(receive(group.client("late"))) == SENT


def test_a_group_that_began_later_has_nothing_of_what_came_before() -> None:
    group = Group()
    away = group.client("away")
    away.subscribe("safe/1", qos=1)
    away.say(Disconnect())
    publish(group)
    member(group, "late").say(Disconnect())
    fail_over(group)
    assert receive(group.client("late")) == []
    assert sorted(receive(group.client("away"))) == SENT


def test_the_new_holder_confirms_and_the_copy_goes() -> None:
    group = Group()
    both_away(group)
    publish(group)
    other = group.client("other")
    had = receive(other)
    group.client("ends").say(ENDS)
    assert sorted(had + receive(other)) == SENT
    group.pass_time(3 * LAG_NS)
    fail_over(group)
    assert receive(group.client("other")) == []


def test_what_was_announced_with_qos_2_and_not_sent_goes_to_another() -> None:
    """The client went before the backup knew the identifier, so PUBLISH never left."""
    group = Group()
    ends = member(group, "ends", qos=2, expiry_s=1)
    broker = group.primary.broker
    session = broker.clients.sessions["ends"]
    group.client("p").send(Publish("safe/1", b"x", qos=2, packet_id=1))
    while not session.in_flight:
        group.turn()
        group.primary.turn(group.now_ns, group.wall_ns)  # what it says to the backup stays where it is
    broker.lost(ends.connection, group.now_ns)
    group.run()
    assert session.in_flight == 1
    assert not ends.messages()
    other = member(group, "other", qos=2)
    assert receive(other) == []
    group.pass_time(2 * S, step_ns=10 * MS)
    assert receive(other) == [b"x"]


def come(bench: Bench, name: str) -> Alone:
    return bench.client(name, clean_start=False, properties=Properties(session_expiry=1000))


@pytest.mark.parametrize("growth", [100, 2**20])  # all in snapshots, and none
@pytest.mark.parametrize("late", [False, True])
def test_a_journal_has_it_until_the_new_holder_does(late: bool, growth: int) -> None:
    notebook = Notebook()
    bench = KeptBench(notebook, kept_contracts(), growth)
    ends, publisher = come(bench, "ends"), come(bench, "p")
    other = come(bench, "other")
    for each in (ends, other):
        if each is ends or not late:
            each.subscribe("$share/g/kept/1", qos=1)
        each.say(Disconnect())
    for number, payload in enumerate(SENT, 1):
        publisher.publish("kept/1", payload, qos=1, packet_id=number)
        bench.run()
    if late:
        other = come(bench, "other")
        other.subscribe("$share/g/kept/1", qos=1)
        other.say(Disconnect())
    come(bench, "ends").say(ENDS)
    bench.pass_time(3 * LAG_NS)
    for _ in range(2):
        notebook.crash()
        bench = KeptBench(notebook, kept_contracts(), growth)
    assert sorted(receive(come(bench, "other"))) == SENT
    notebook.crash()
    bench = KeptBench(notebook, kept_contracts(), growth)
    assert receive(come(bench, "other")) == []
