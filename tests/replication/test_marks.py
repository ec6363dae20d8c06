"""Who is done with a message while others are not: a crash repeats what the marks lag behind, and no more."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.broker.bench import MS, Bench, book, contract
from tests.broker.bench import Client as Alone
from tests.replication.notebook import KeptBench, Notebook
from tests.replication.pair import Client, Group, contracts
from tests.replication.test_kept_pair import JOIN_NS, KeptGroup

from holdfast.config import Limits
from holdfast.contract.model import ContractBook
from holdfast.mqtt.packets import (
    Disconnect,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)
from holdfast.replication.memory import Kind

LAG_NS = 20 * MS
FOREVER = {"clean_start": False, "properties": Properties(session_expiry=0xFFFFFFFF)}
WINDOW = 65_535


class Subscriber:
    """A session across its connections: everything that it got, and what it answers at once."""

    def __init__(self, name: str, qos: int) -> None:
        self.name = name
        self.qos = qos
        self.got: Counter[bytes] = Counter()
        self.again: list[Publish] = []  # deliveries of what it had
        self.client: Client | Alone | None = None
        self._under_way: set[int] = set()  # QoS 2 identifiers that it has taken and may see again

    def come(self, host: Group | Bench) -> None:
        if isinstance(host, Group):
            self.client = host.client(self.name)
        else:
            self.client = host.client(self.name, **FOREVER)

    def subscribe(self, *filters: str) -> None:
        assert self.client is not None
        self.client.say(Subscribe(1, [Subscription(each, self.qos) for each in filters]))

    def go(self) -> None:
        assert self.client is not None
        self.client.say(Disconnect())
        self.client = None

    def answer(self) -> bool:
        """Takes what came and answers it; says whether anything came."""
        if self.client is None:
            return False
        packets = self.client.take()
        answers = [answer for packet in packets if (answer := self._answer(packet)) is not None]
        if answers:
            self.client.send(*answers)
        return bool(packets)

    def _answer(self, packet: Packet) -> Packet | None:
        if isinstance(packet, Pubrel):
            self._under_way.discard(packet.packet_id)
            return Pubcomp(packet.packet_id)
        if not isinstance(packet, Publish) or packet.topic.startswith("$SYS"):
            return None
        if packet.qos == 2 and packet.packet_id in self._under_way:
            return Pubrec(packet.packet_id)
        if packet.payload in self.got:
            self.again.append(packet)
        self.got[packet.payload] += 1
        if packet.qos == 2:
            self._under_way.add(packet.packet_id)
            return Pubrec(packet.packet_id)
        return Puback(packet.packet_id) if packet.qos else None


def answer_all(subscribers: list[Subscriber]) -> bool:
    return sum(each.answer() for each in subscribers) > 0


class Plant:
    """One session that stays away, three that answer at once, and a publisher, across crashes of brokers."""

    def __init__(self, host: Group | Bench, topic: str = "safe/1") -> None:
        self.host = host
        self.topic = topic
        self.away = Subscriber("away", 1)
        self.subscribers = [Subscriber(f"q{qos}", qos) for qos in range(3)]
        self.sent = 0
        for each in (self.away, *self.subscribers):
            each.come(host)
            each.subscribe(topic)
        self.away.go()
        self.come()

    def come(self) -> None:
        """To whoever serves now."""
        self.publisher = (
            self.host.client("p") if isinstance(self.host, Group) else self.host.client("p", **FOREVER)
        )
        for each in self.subscribers:
            each.come(self.host)
        self.settle()

    def settle(self) -> None:
        self.host.run()
        while answer_all(self.subscribers):
            self.host.run()
        self.publisher.take()

    def publish(self, count: int, settle: bool = True) -> None:
        for _ in range(count):
            self.sent += 1
            qos = 1 + self.sent % 2
            identifier = (self.sent - 1) % WINDOW + 1
            self.publisher.publish(self.topic, b"%d" % self.sent, qos=qos, packet_id=identifier)
            if qos == 2:
                self.publisher.send(Pubrel(identifier))
            if settle and self.sent % 200 == 0:
                self.settle()
                self.host.pass_time(3 * MS)  # what its subscribers do not have is copied, and acknowledged
        if settle:
            self.settle()

    def lag(self) -> None:
        """Until the marks have gone where they go."""
        self.host.pass_time(2 * LAG_NS)
        self.settle()

    def repeats(self) -> dict[str, int]:
        return {each.name: len(each.again) for each in self.subscribers if each.again}

    def check_everybody_has_everything(self) -> None:
        self.away.come(self.host)
        self.host.run()
        while self.away.answer():
            self.host.run()
        everything = Counter(b"%d" % number for number in range(1, self.sent + 1))
        for each in (self.away, *self.subscribers):
            assert each.got == everything, each.name


def fail_over(group: Group, join: bool = True) -> None:
    """Kills the primary, and lets it come back as the backup of the other."""
    dead = group.primary.name
    group.crash(dead)
    group.pass_time(100 * MS)
    if join:
        group.start(dead)
        group.pass_time(200 * MS)
        assert group.primary.view.heirs


SIZES = [1, 2, 199, 500, 1000, 1001]  # around what is told in one turn of marks


@pytest.mark.parametrize("count", SIZES)
def test_nobody_gets_again_what_it_acknowledged_over_three_failovers(count: int) -> None:
    group = Group()
    plant = Plant(group)
    plant.publish(count)
    plant.lag()
    for _ in range(3):
        fail_over(group)
        plant.come()
        plant.lag()
        assert plant.repeats() == {}
        for each in plant.subscribers:
            session = group.primary.broker.clients.sessions[each.name]
            assert (session.queued, session.in_flight) == (0, 0)
    plant.check_everybody_has_everything()


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("sessions", [2, 330])
@pytest.mark.parametrize("order", ["first to last", "last to first", "mixed"])
def test_sessions_that_came_long_after_each_other_are_marked_whoever_answers_first(
    order: str, sessions: int, turns: int
) -> None:
    """Marks stand 64 serials together: these are of one such place and of many, told in several turns."""
    group = Group()
    plant = Plant(group)
    for name in (f"{number:03}" for number in range(sessions)):
        if int(name) % 16 == 0 or 60 <= int(name) < 70:
            each = Subscriber(name, 1)
            each.come(group)
            each.subscribe(plant.topic)
            plant.subscribers.append(each)
        else:
            group.client(name).say(Disconnect())
    plant.settle()
    before = group.primary.core.bytes_held
    plant.publish(3, settle=False)
    group.run()
    late = list(plant.subscribers)
    if order != "first to last":
        late.reverse()
    if order == "mixed":
        late = late[::3] + late[1::3] + late[2::3]
    for turn in range(turns):
        answer_all(late[turn::turns])
        group.run()
        group.pass_time(2 * LAG_NS)
    plant.settle()
    plant.lag()
    fail_over(group)
    plant.come()
    plant.lag()
    assert plant.repeats() == {}
    plant.check_everybody_has_everything()
    plant.away.go()
    group.pass_time(5 * MS)
    assert group.primary.core.bytes_held - before < 64  # less than the marks of one message take


def test_marks_grow_from_failover_to_failover() -> None:
    """What each primary delivers is marked besides what those before it had."""
    group = Group()
    plant = Plant(group)
    for _ in range(4):
        plant.publish(50)
        plant.lag()
        fail_over(group)
        plant.come()
        assert plant.repeats() == {}
    plant.check_everybody_has_everything()


@pytest.mark.parametrize("size", [3, 4])
def test_the_next_heir_learns_what_the_one_before_knew(size: int) -> None:
    group = Group(size)
    plant = Plant(group)
    plant.publish(100)
    plant.lag()
    for _ in range(size - 1):
        fail_over(group, join=False)
        group.pass_time(200 * MS)
        plant.come()
        assert plant.repeats() == {}
    plant.check_everybody_has_everything()


def test_marks_that_were_made_while_nobody_protected_go_with_the_copies() -> None:
    group = Group()
    group.crash("b")
    group.pass_time(100 * MS)
    plant = Plant(group)
    plant.publish(100)
    plant.lag()
    group.start("b")
    group.pass_time(200 * MS)
    fail_over(group)
    plant.come()
    assert plant.repeats() == {}
    plant.check_everybody_has_everything()


def test_only_what_was_acknowledged_within_the_lag_comes_again_and_says_so() -> None:
    group = Group()
    plant = Plant(group)
    plant.publish(100)
    plant.lag()
    plant.publish(30)
    fail_over(group)
    plant.come()
    first, second, third = plant.subscribers
    assert {int(packet.payload) for packet in first.again} <= set(range(101, 131))
    assert {int(packet.payload) for packet in second.again} <= set(range(101, 131))
    assert second.again
    assert all(packet.dup for packet in second.again)
    assert third.again == [] or all(packet.qos == 1 for packet in third.again)


def test_exactly_once_is_exactly_once_whenever_the_primary_dies() -> None:
    """QoS 2 end to end: no lag, also for deliveries that are under way, over two failovers."""
    group = Group()
    away, there = Subscriber("away", 2), Subscriber("there", 2)
    for each in (away, there):
        each.come(group)
        each.subscribe("safe/1")
    away.go()
    sent = 0
    for _ in range(4):
        publisher = group.client("p")
        for _ in range(20):
            sent += 1
            publisher.publish("safe/1", b"%d" % sent, qos=2, packet_id=sent)
            publisher.say(Pubrel(sent))
            if sent % 3:
                there.answer()
                group.run()
            if sent % 5:
                there.answer()
        fail_over(group)
        there.come(group)
        for _ in range(5):
            there.answer()
            group.run()
        assert there.again == []
    away.come(group)
    while away.answer() | there.answer():
        group.run()
    assert away.got == there.got == Counter(b"%d" % number for number in range(1, sent + 1))


def test_one_of_a_shared_group_has_it_for_all_of_them() -> None:
    group = Group()
    away, members = Subscriber("away", 1), [Subscriber(f"m{index}", 1 + index % 2) for index in range(3)]
    for each in (away, *members):
        each.come(group)
    away.subscribe("safe/1")
    for each in members:
        each.subscribe("$share/g/safe/1")
    away.go()
    publisher = group.client("p")
    for number in range(60):
        publisher.publish("safe/1", b"%d" % number, qos=1, packet_id=number + 1)
    group.run()
    for _ in range(3):
        for each in members:
            each.answer()
        group.pass_time(2 * LAG_NS)
    fail_over(group)
    for each in members:
        each.come(group)
    while answer_all(members):
        group.run()
    together = sum((each.got for each in members), Counter[bytes]())
    assert together == Counter(b"%d" % number for number in range(60))


def test_a_member_of_a_shared_group_that_has_it_for_itself_leaves_the_groups_to_another() -> None:
    group = Group()
    both, other = Subscriber("both", 1), Subscriber("other", 1)
    for each in (both, other):
        each.come(group)
    both.subscribe("safe/1", "$share/g/safe/1")
    other.subscribe("$share/g/safe/1")
    other.go()
    publisher = group.client("p")
    publisher.publish("safe/1", b"x", qos=1, packet_id=1)
    group.run()
    assert both.client is not None
    first, second = (packet for packet in both.client.take() if isinstance(packet, Publish))
    both.got[first.payload] += 1
    both.client.say(Puback(first.packet_id))  # and dies before it has the second
    group.pass_time(2 * LAG_NS)
    fail_over(group)
    for each in (both, other):
        each.come(group)
    while both.answer() | other.answer():
        group.run()
    assert second.payload == b"x"
    assert both.got[b"x"] + other.got[b"x"] == 2


def test_a_session_keeps_its_queue_for_what_is_new() -> None:
    """9,000 that it had and 1,500 that are new, with room for 10,000."""
    group = Group(contract_book=contracts(Limits(copies_per_topic_max=20_000)))
    plant = Plant(group)
    for each in plant.subscribers:
        each.subscribe("safe/2")
    plant.publish(9_000)
    plant.lag()
    fail_over(group)
    plant.publisher = group.client("p")
    plant.publish(1_000)  # nobody else is back yet; the one that is away has 10,000 now, its bound
    for number in range(500):
        plant.publisher.publish("safe/2", b"new %d" % number, qos=1, packet_id=number + 1)
    group.pass_time(5 * MS)
    assert not [event for _, event, _ in group.events if event == "overloaded"]
    assert group.primary.broker.clients.sessions["q1"].queued == 1_500
    plant.come()
    assert plant.repeats() == {}
    for each in plant.subscribers:
        assert len([payload for payload in each.got if payload.startswith(b"new")]) == 500
        each.got -= Counter(b"new %d" % number for number in range(500))
    plant.check_everybody_has_everything()


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_marks_of_what_a_ring_has_pushed_out_mean_nothing(surplus: int) -> None:
    bound = 50
    group = Group(contract_book=contracts(Limits(copies_per_topic_max=bound)))
    plant = Plant(group)
    plant.publish(bound + surplus)
    plant.lag()
    fail_over(group)
    plant.come()
    assert plant.repeats() == {}
    plant.away.come(group)
    while plant.away.answer():
        group.run()
    assert len(plant.away.got) == min(bound, bound + surplus)


def test_when_all_are_there_nothing_is_told() -> None:
    group = Group()
    plant = Plant(group)
    plant.away.come(group)
    plant.subscribers.append(plant.away)
    plant.publish(300)
    plant.lag()
    assert group.primary.core.board.marks == 0
    assert group.primary.core.later_ns is None


def test_marks_are_counted_and_so_is_how_far_they_lag() -> None:
    group = Group()
    plant = Plant(group)
    plant.publish(10)
    plant.lag()
    board = group.primary.core.board
    assert (
        board.marks == 25
    )  # of ten to QoS 0, ten to QoS 1, and five of QoS 1 to QoS 2: the others are told at once
    assert 0 < board.marks_lag_ns <= LAG_NS
    assert board.marks_lag_max_ns <= LAG_NS


def test_marks_take_room_in_the_buffer_and_give_it_back() -> None:
    group = Group()
    plant = Plant(group)
    core = group.primary.core
    before = core.bytes_held
    plant.publish(100)
    plant.lag()
    plant.check_everybody_has_everything()
    plant.away.go()
    group.pass_time(5 * MS)
    assert core.bytes_held == before


def test_a_planned_end_repeats_nothing_however_fresh_the_marks() -> None:
    group = Group()
    plant = Plant(group)
    plant.publish(100)
    group.pass_time(3 * MS)
    leaving = group.primary
    leaving.drain(group.now_ns)
    group.run()
    group.pass_time(5 * MS)
    group.members.pop(leaving.name)
    group.pass_time(50 * MS)
    plant.come()
    assert plant.repeats() == {}
    plant.check_everybody_has_everything()


# With a journal


def kept_contracts(limits: Limits | None = None) -> ContractBook:
    return book(contract("kept", "kept/+", "100ms", 0, durable="true"), limits=limits)


def restart(notebook: Notebook, plant: Plant, **more: Any) -> KeptBench:
    notebook.crash()
    kept = KeptBench(notebook, kept_contracts(), **more)
    plant.host = kept
    plant.come()
    return kept


@pytest.mark.parametrize("count", [1, 99, 100, 101, 500])  # around a piece of a snapshot
def test_a_journal_knows_who_had_what(count: int) -> None:
    notebook = Notebook()
    plant = Plant(KeptBench(notebook, kept_contracts()), "kept/1")
    plant.publish(count)
    plant.lag()
    for _ in range(3):
        restart(notebook, plant)
        assert plant.repeats() == {}
    plant.check_everybody_has_everything()


def test_a_journal_that_is_all_snapshot_knows_it_too() -> None:
    notebook = Notebook()
    kept = KeptBench(notebook, kept_contracts(), growth=1000)
    plant = Plant(kept, "kept/1")
    for _ in range(5):
        plant.publish(37)
        plant.lag()
    assert kept.keeping is not None
    assert kept.keeping.snapshots > 3
    restart(notebook, plant)
    assert plant.repeats() == {}
    plant.check_everybody_has_everything()


def test_a_crash_of_a_broker_alone_repeats_only_what_the_marks_lagged() -> None:
    notebook = Notebook()
    plant = Plant(KeptBench(notebook, kept_contracts()), "kept/1")
    plant.publish(100)
    plant.lag()
    plant.publish(30)
    restart(notebook, plant)
    again = [int(packet.payload) for each in plant.subscribers for packet in each.again]
    assert set(again) <= set(range(101, 131))
    assert all(packet.dup for each in plant.subscribers for packet in each.again if packet.qos)
    assert [packet for packet in plant.subscribers[2].again if packet.qos == 2] == []


def test_exactly_once_outlives_a_broker_alone() -> None:
    """Whatever the disk has: a QoS 2 delivery that was under way goes on under its identifier."""
    notebook = Notebook()
    kept = KeptBench(notebook, kept_contracts())
    away, there = Subscriber("away", 2), Subscriber("there", 2)
    for each in (away, there):
        each.come(kept)
        each.subscribe("kept/1")
    away.go()
    sent = 0
    for _ in range(4):
        publisher = kept.client("p", **FOREVER)
        for _ in range(20):
            sent += 1
            publisher.publish("kept/1", b"%d" % sent, qos=2, packet_id=sent)
            publisher.say(Pubrel(sent))
            if sent % 3:
                there.answer()
                kept.run()
            if sent % 5:
                there.answer()
        notebook.crash()
        kept = KeptBench(notebook, kept_contracts())
        there.come(kept)
        for _ in range(5):
            there.answer()
            kept.run()
        assert there.again == []
    away.come(kept)
    while away.answer() | there.answer():
        kept.run()
    assert away.got == there.got == Counter(b"%d" % number for number in range(1, sent + 1))


def test_a_planned_end_of_a_broker_alone_repeats_nothing() -> None:
    notebook = Notebook()
    kept = KeptBench(notebook, kept_contracts())
    plant = Plant(kept, "kept/1")
    plant.publish(100)
    kept.broker.drain(kept.now_ns)
    kept.run()
    restart(notebook, plant)
    assert plant.repeats() == {}
    plant.check_everybody_has_everything()


def test_a_backup_writes_down_who_had_what() -> None:
    for survivor in "ab":
        group = KeptGroup()
        plant = Plant(group, "kept/1")
        plant.publish(100)
        plant.lag()
        group.crash_all()
        group.start(survivor)
        group.pass_time(JOIN_NS + 50 * MS)
        plant.come()
        assert plant.repeats() == {}
        plant.check_everybody_has_everything()


def test_what_is_done_leaves_no_marks_behind() -> None:
    notebook = Notebook()
    kept = KeptBench(notebook, kept_contracts())
    plant = Plant(kept, "kept/1")
    plant.publish(50)
    plant.lag()
    assert kept.keeping is not None
    assert len(kept.keeping.marks.had) == 50
    plant.check_everybody_has_everything()
    assert kept.keeping.undone == kept.keeping.marks.had == kept.keeping.marks.flights == {}
    restart(notebook, plant)
    assert plant.repeats() == {}


def test_an_expiry_counts_by_the_brokers_clock() -> None:
    """A publisher whose clock is an hour behind, or ahead, changes nothing."""
    hour_ns = 3600 * 1000 * MS
    for wrong_ns in (-hour_ns, hour_ns):
        notebook = Notebook()
        kept = KeptBench(notebook, kept_contracts())
        kept.client("s", **FOREVER).subscribe("kept/1", qos=1)
        publisher = kept.client("p")
        stamp = [("hf", f"{1_700_000_000_000_000_000 + kept.now_ns + wrong_ns}/1/p.1")]
        publisher.publish("kept/1", b"x", qos=1, properties=Properties(message_expiry=600, user=stamp))
        kept.run()
        notebook.crash()
        after = KeptBench(notebook, kept_contracts())
        after.pass_time(100_000 * MS)
        (message,) = after.client("s", **FOREVER).messages()
        assert message.properties.message_expiry == 500


def test_a_message_of_an_older_journal_is_still_read() -> None:
    notebook = Notebook()
    kept = KeptBench(notebook, kept_contracts())
    kept.client("s", **FOREVER).subscribe("kept/1", qos=1)
    kept.client("p").publish("kept/1", b"x", qos=1)
    kept.run()
    assert all(body[0] == 0x9A for _, kind, body in notebook.records if kind == Kind.MESSAGE)
    notebook.records = [
        (number, kind, b"\x98" + body[1:-2] if kind == Kind.MESSAGE else body)
        for number, kind, body in notebook.records
    ]
    (message,) = KeptBench(notebook, kept_contracts()).client("s", **FOREVER).messages()
    assert message.payload == b"x"
