"""A will is published once, whatever becomes of the broker: by a journal, by a pair, by a group of three."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.broker.bench import Client as LoneClient
from tests.broker.bench import book, contract
from tests.replication.notebook import KeptBench, Notebook
from tests.replication.pair import MS, Client, Group
from tests.replication.test_kept_pair import KeptGroup

from holdfast.contract.model import ContractBook
from holdfast.mqtt.packets import Disconnect, Properties, Puback, Publish, Will
from holdfast.mqtt.reasons import Reason

S = 1_000 * MS
KINDS = [(qos, retain) for qos in (0, 1, 2) for retain in (False, True)]


def will(qos: int = 1, retain: bool = False, delay_s: int | None = None, topic: str = "will/1") -> Will:
    return Will(topic, b"gone", qos, retain, properties=Properties(will_delay=delay_s))


def heard(client: Client | LoneClient) -> list[str]:
    """The topics of what came; all of it is acknowledged."""
    messages = [packet for packet in client.take() if isinstance(packet, Publish)]
    for message in messages:
        if message.qos:
            client.say(Puback(message.packet_id))
    return [message.topic for message in messages if message.topic.startswith("will/")]


def lost(group: Group, client: Client) -> None:
    """The client breaks off."""
    group.members[client.member].lost(client.connection, group.now_ns)
    group.run()


def watching(group: Group, member: str | None = None, *, anew: bool = False) -> Client:
    client = group.client("watches", member)
    if anew:
        client.subscribe("will/#", qos=1, retain_handling=2)
    return client


def crashed(group: Group, name: str) -> None:
    group.crash(name)
    group.pass_time(100 * MS)


def stopped(group: Group, name: str) -> None:
    group.members[name].drain(group.now_ns)
    group.run()
    group.pass_time(100 * MS)
    crashed(group, name)


ENDS = pytest.mark.parametrize("gone", [crashed, stopped])
SIZES = pytest.mark.parametrize("size", [2, 3])


def heard_after(group: Group, gone: Callable[[Group, str], None]) -> list[str]:
    """What comes within ten seconds of the end of the primary."""
    gone(group, group.primary.name)
    watcher = watching(group)
    group.pass_time(10 * S, 10 * MS)
    came = heard(watcher)
    group.pass_time(10 * MS)  # until the heir knows who had it
    return came


@ENDS
@SIZES
@pytest.mark.parametrize(("qos", "retain"), KINDS)
def test_a_published_will_does_not_come_again_after_a_failover(
    qos: int, retain: bool, size: int, gone: Callable[[Group, str], None]
) -> None:
    group = Group(size)
    watcher = watching(group, anew=True)
    lost(group, group.client("dies", will=will(qos, retain)))
    group.pass_time(10 * MS)
    assert heard(watcher) == ["will/1"]
    group.pass_time(10 * MS)
    for _ in range(size - 1):
        assert heard_after(group, gone) == []


@ENDS
@SIZES
def test_a_delayed_will_comes_once_on_whichever_side_of_a_failover(
    size: int, gone: Callable[[Group, str], None]
) -> None:
    group = Group(size)
    watcher = watching(group, anew=True)
    lost(group, group.client("soon", will=will(delay_s=1, topic="will/soon")))
    lost(group, group.client("late", will=will(delay_s=7, topic="will/late")))
    group.pass_time(2 * S, 5 * MS)
    assert heard(watcher) == ["will/soon"]
    group.pass_time(10 * MS)
    assert heard_after(group, gone) == ["will/late"]
    if size == 3:
        assert heard_after(group, gone) == []


@ENDS
@pytest.mark.parametrize(
    ("words", "expected"),
    [(Disconnect(Reason.DISCONNECT_WITH_WILL), ["will/1"]), (Disconnect(), [])],
    ids=["with its will", "without"],
)
def test_a_client_that_said_goodbye(
    words: Disconnect, expected: list[str], gone: Callable[[Group, str], None]
) -> None:
    group = Group()
    watcher = watching(group, anew=True)
    group.client("dies", will=will()).say(words)
    group.pass_time(10 * MS)
    assert heard(watcher) == expected
    group.pass_time(10 * MS)
    assert heard_after(group, gone) == []


@pytest.mark.parametrize("next_will", [None, will(topic="will/2")], ids=["none", "another"])
def test_a_client_that_came_back_has_the_will_that_it_came_back_with(next_will: Will | None) -> None:
    group = Group()
    watcher = watching(group, anew=True)
    lost(group, group.client("dies", will=will()))
    assert heard(watcher) == ["will/1"]
    group.client("dies", will=next_will)
    group.pass_time(10 * MS)
    assert heard(watcher) == []
    assert heard_after(group, crashed) == ([] if next_will is None else ["will/2"])


def test_a_session_that_ended_left_one_will() -> None:
    group = Group()
    watcher = watching(group, anew=True)
    lost(group, group.client("dies", expiry_s=0, will=will()))
    lost(group, group.client("later", expiry_s=2, will=will(delay_s=60, topic="will/later")))
    group.pass_time(3 * S, 5 * MS)
    assert heard(watcher) == ["will/1", "will/later"]
    group.pass_time(10 * MS)
    assert heard_after(group, crashed) == []


@pytest.mark.parametrize("delay_s", [0, 1])
@pytest.mark.parametrize("topic", ["safe/will", "fast/will", "loose/will", "other/will"])
@pytest.mark.parametrize("turns", range(5))
def test_a_crash_before_the_will_is_copied_costs_no_will(turns: int, topic: str, delay_s: int) -> None:
    """The heir hears that a will was published behind its copy, never before."""
    group = Group()
    group.client("watches").subscribe("+/will", qos=1)
    dies = group.client("dies", will=will(topic=topic, delay_s=delay_s))
    group.members["a"].lost(dies.connection, group.now_ns)
    session = group.primary.broker.clients.sessions["dies"]
    while session.state.will is not None:
        group.now_ns += 1 * MS
        group.turn()
    for _ in range(turns):
        group.turn()
    group.crash("a")
    watcher = group.client("watches", "b")
    group.pass_time(10 * S, 10 * MS)
    assert {message.topic for message in watcher.messages()} == {topic}


def test_messages_that_wait_forever_do_not_keep_it_untold() -> None:
    group = Group()
    core = group.primary.core
    clients = group.primary.broker.clients
    lost_one = group.client("dies", will=will())
    told = group.primary.log.number
    clients.close(lost_one.connection, group.now_ns)
    assert core.jobs_waiting
    clients.tell_given(group.now_ns + 1 * S - 1)
    assert group.primary.log.number == told
    clients.tell_given(group.now_ns + 1 * S)
    assert group.primary.log.number == told + 1


# A broker alone, with its journal


def contracts() -> ContractBook:
    return book(contract("kept", "will/kept", "100ms", 0, durable="true"))


FOREVER = {"clean_start": False, "properties": Properties(session_expiry=600)}


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("topic", ["will/kept", "will/plain"])
@pytest.mark.parametrize(("qos", "retain"), KINDS)
def test_a_published_will_does_not_come_again_from_a_journal(
    qos: int, retain: bool, topic: str, planned: bool
) -> None:
    notebook = Notebook()
    bench = KeptBench(notebook, contracts())
    watcher = bench.client("watches", **FOREVER)
    watcher.subscribe("will/#", qos=1)
    dies = bench.client("dies", will=will(qos, retain, topic=topic), **FOREVER)
    late = bench.client("late", will=will(delay_s=5, topic="will/late"), **FOREVER)
    for each in (dies, late):
        bench.broker.lost(each.connection, bench.now_ns)
    bench.run()
    assert heard(watcher) == [topic]
    came = []
    for _ in range(2):
        bench.run()
        if planned:
            bench.broker.drain(bench.now_ns)
            bench.run()
        notebook.crash()
        bench = KeptBench(notebook, contracts())
        watcher = bench.client("watches", **FOREVER)
        bench.pass_time(6 * S)
        came += heard(watcher)
    assert came == ["will/late"]


def test_a_published_will_does_not_come_again_when_all_of_a_pair_died() -> None:
    group = KeptGroup()
    watcher = watching(group, anew=True)
    lost(group, group.client("dies", will=will(topic="will/1")))
    assert heard(watcher) == ["will/1"]
    group.pass_time(10 * MS)
    group.crash_all()
    for name in "ab":
        group.start(name)
    group.pass_time(2 * S, 10 * MS)
    watcher = watching(group)
    group.pass_time(10 * S, 10 * MS)
    assert heard(watcher) == []
