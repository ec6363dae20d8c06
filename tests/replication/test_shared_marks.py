"""Messages of which the same is known share it: what is learnt of one of them is never said of another."""

from __future__ import annotations

import pytest
from tests.broker.bench import MS
from tests.replication.pair import Client, Group
from tests.replication.test_marks import LAG_NS, fail_over

from holdfast.mqtt.packets import Disconnect, Puback, Publish

MESSAGES = 300
NOTES_MAX = 512  # of broker/marks.pxd


class Reader:
    """A session that answers what it is told to, and remembers what that was."""

    def __init__(self, group: Group, name: str) -> None:
        self.name = name
        self.client: Client = group.client(name)
        assert self.client.subscribe("safe/+", 1).reasons == [1]
        self.waiting: dict[bytes, int] = {}  # payload -> packet identifier
        self.answered: set[bytes] = set()

    def take(self) -> list[Publish]:
        came = self.client.messages()
        self.waiting |= {each.payload: each.packet_id for each in came}
        return came

    def answer(self, which: range) -> None:
        self.take()
        payloads = [b"%d" % number for number in which]
        self.client.say(*(Puback(self.waiting.pop(payload)) for payload in payloads))
        self.answered |= set(payloads)

    def come_back(self, group: Group) -> set[bytes]:
        """What it gets from whoever serves now."""
        self.client = group.client(self.name)
        group.run()
        return {each.payload for each in self.take()}


def readers(group: Group, names: str, apart: int = 0) -> list[Reader]:
    """Some that are there, with so many other sessions between them, and one that is away."""
    away = Reader(group, "away")
    away.client.say(Disconnect())
    found = []
    for name in names:
        found.append(Reader(group, name))
        for number in range(apart):
            group.client(f"{name}-{number}")
    return found


def publish(group: Group, count: int) -> None:
    publisher = group.client("p")
    for number in range(count):
        publisher.publish(f"safe/{number % 7}", b"%d" % number, qos=1, packet_id=number + 1)
        if number % NOTES_MAX == 0:  # no more at once than a publisher may send
            group.pass_time(15 * MS)
    group.pass_time(15 * MS)


def check_nothing_comes_again(group: Group, everybody: list[Reader], count: int) -> None:
    everything = {b"%d" % number for number in range(count)}
    for each in everybody:
        assert each.come_back(group) == everything - each.answered, each.name


@pytest.mark.parametrize("apart", [0, 70, 200])
def test_sessions_that_answer_different_parts_at_different_times_get_again_the_rest_alone(apart: int) -> None:
    group = Group()
    first, second, third = everybody = readers(group, "abc", apart)
    publish(group, MESSAGES)
    first.answer(range(MESSAGES))
    group.pass_time(2 * LAG_NS)
    second.answer(range(50, 200))
    group.pass_time(2 * LAG_NS)
    third.answer(range(0, MESSAGES, 3))
    group.pass_time(2 * LAG_NS)
    second.answer(range(10))
    third.answer(range(1, MESSAGES, 3))
    group.pass_time(2 * LAG_NS)
    for _ in range(2):  # what the backup was told, and what it tells the next one
        fail_over(group)
        check_nothing_comes_again(group, everybody, MESSAGES)


@pytest.mark.parametrize("count", [NOTES_MAX - 1, NOTES_MAX, NOTES_MAX + 1, 2 * NOTES_MAX + 1])
def test_nothing_is_forgotten_when_there_is_no_room_for_more_notes(count: int) -> None:
    group = Group()
    first, second = everybody = readers(group, "ab")
    publish(group, count)
    first.answer(range(count))
    second.answer(range(0, count, 2))
    group.pass_time(2 * LAG_NS)
    assert group.primary.core.board.marks == len(first.answered) + len(second.answered)
    fail_over(group)
    check_nothing_comes_again(group, everybody, count)


def test_what_all_have_is_let_go_of_within_the_lag() -> None:
    group = Group()
    everybody = [Reader(group, name) for name in "ab"]
    core = group.primary.core
    before = core.bytes_held
    publish(group, MESSAGES)
    for each in everybody:
        each.answer(range(MESSAGES))
    group.pass_time(LAG_NS)
    assert core.board.marks == 0
    assert core.bytes_held == before
    assert core.later_ns is None


def test_marks_of_many_messages_take_the_room_of_a_few() -> None:
    group = Group()
    (reader,) = readers(group, "a")
    core = group.primary.core
    publish(group, MESSAGES)
    before = core.bytes_held
    reader.answer(range(MESSAGES))
    group.pass_time(2 * LAG_NS)
    assert core.board.marks == MESSAGES
    assert core.bytes_held - before < MESSAGES
