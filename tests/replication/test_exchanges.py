"""QoS 2 across restarts: what a publisher sends again, and which identifiers a subscriber may still hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.broker.bench import Bench, book, contract
from tests.replication.notebook import KeptBench, Notebook
from tests.replication.pair import MS, Group
from tests.replication.test_kept_pair import JOIN_NS, KeptGroup
from tests.replication.test_marks import FOREVER, Subscriber

from holdfast.contract.model import ContractBook
from holdfast.mqtt.packets import (
    Disconnect,
    Properties,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
)
from holdfast.mqtt.reasons import Reason

IDENTIFIERS = 3  # so few that a publisher uses them again and again


def contracts() -> ContractBook:
    return book(
        contract("kept", "kept/+", "100ms", 0, durable="true"), contract("plain", "plain/+", "100ms", 3)
    )


def bench(notebook: Notebook, **options: Any) -> KeptBench:
    return KeptBench(notebook, contracts(), **options)


class Publisher:
    """A plain client that keeps its session: what was not answered it sends again when it comes back. Some
    clients forget to say with DUP that it comes again."""

    def __init__(self, topic: str = "kept/1", *, forgetful: bool = False) -> None:
        self.topic = topic
        self.forgetful = forgetful
        self.client: Any = None
        self.under_way: dict[int, bytes | None] = {}  # identifier -> payload; None: PUBREL was sent
        self.refused: set[bytes] = set()
        self.taken: set[bytes] = set()
        self.sent: list[bytes] = []

    def come(self, host: Bench | Group) -> None:
        self.client = host.client("p") if isinstance(host, Group) else host.client("p", **FOREVER)
        for packet_id, payload in self.under_way.items():
            self._send(packet_id, payload, dup=not self.forgetful)

    def _send(self, packet_id: int, payload: bytes | None, *, dup: bool = False) -> None:
        if payload is None:
            self.client.send(Pubrel(packet_id))
        else:
            self.client.send(Publish(self.topic, payload, qos=2, packet_id=packet_id, dup=dup))

    def publish(self) -> bool:
        """The next message, if an identifier is free."""
        free = [each for each in range(1, IDENTIFIERS + 1) if each not in self.under_way]
        if not free:
            return False
        payload = b"%d" % len(self.sent)
        self.sent.append(payload)
        self.under_way[free[0]] = payload
        self._send(free[0], payload)
        return True

    def answer(self) -> bool:
        packets = self.client.take()
        for packet in packets:
            if isinstance(packet, Pubrec):
                payload = self.under_way.get(packet.packet_id)
                if packet.reason >= 0x80:
                    self.refused.add(self.under_way.pop(packet.packet_id) or b"")
                elif packet.packet_id in self.under_way:
                    self.taken.add(payload or b"")
                    self.under_way[packet.packet_id] = None
                    self.client.send(Pubrel(packet.packet_id))
            elif isinstance(packet, Pubcomp):
                self.under_way.pop(packet.packet_id, None)
        return bool(packets)


def settle(host: Bench | Group, *clients: Publisher | Subscriber) -> None:
    host.run()
    while sum(each.answer() for each in clients):
        host.run()


STEPS = ["publish", "publish", "turn", "take", "listen", "sync", "sync some", "crash", "snapshot", "leave"]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=80), st.integers(0, 3), st.booleans())
@example(["publish", "turn", "sync", "crash"], 0, False)
@example(["publish", "turn", "sync", "crash"], 0, True)
@example(["publish", "turn", "sync", "listen", "turn", "crash"], 0, False)
@example(["publish", "turn", "sync", "turn", "listen", "turn", "listen", "turn", "crash"], 0, False)
@example(["publish", "turn", "sync", "take", "turn", "take", "publish", "turn", "crash"], 0, False)
@example(
    ["publish", "turn", "sync", "take", "turn", "sync", "take", "snapshot", "turn", "sync", "crash"], 0, False
)
@example(["publish", "turn", "sync", "snapshot", "turn", "sync", "crash", "crash"], 0, True)
def test_a_durable_message_comes_once_whenever_all_is_lost_that_was_not_synced(
    steps: list[str], behind: int, forgetful: bool
) -> None:
    """From publisher to subscriber, both of QoS 2: as if the machine lost its power at any moment."""
    notebook = Notebook()
    kept = bench(notebook, growth=2000)
    publisher, subscriber = Publisher(forgetful=forgetful), Subscriber("s", 2)
    for each in (publisher, subscriber):
        each.come(kept)
    subscriber.subscribe("kept/1")
    kept.run()
    kept.syncs = False
    assert kept.keeping is not None
    for step in steps:
        if step == "publish":
            publisher.publish()
        elif step == "turn":
            kept.turn()
        elif step == "take":
            publisher.answer()
        elif step == "listen":
            subscriber.answer()
        elif step == "sync":
            notebook.sync(kept.keeping)
        elif step == "sync some" and notebook.records:
            number = max(notebook.durable, notebook.records[-1][0] - behind)
            notebook.durable = number
            kept.keeping.durable(number)
        elif step == "snapshot":
            kept.keeping._wanted = True
        elif step == "leave" and subscriber.client is not None:
            kept.broker.lost(subscriber.client.connection, kept.now_ns)
            subscriber.come(kept)
        elif step == "crash":
            notebook.crash()
            kept = bench(notebook, growth=2000)
            kept.syncs = False
            publisher.come(kept)
            subscriber.come(kept)
            assert kept.keeping is not None
    kept.syncs = True
    settle(kept, publisher, subscriber)
    assert publisher.under_way == {}
    assert subscriber.got == Counter(publisher.sent)
    assert publisher.taken == set(publisher.sent)


def restarted(notebook: Notebook, *clients: Publisher | Subscriber) -> KeptBench:
    notebook.crash()
    after = bench(notebook)
    for each in clients:
        each.come(after)
    return after


def test_what_a_publisher_sends_again_after_a_restart_is_answered_and_not_dispatched() -> None:
    notebook = Notebook()
    kept = bench(notebook)
    publisher, subscriber = Publisher(), Subscriber("s", 2)
    for each in (publisher, subscriber):
        each.come(kept)
    subscriber.subscribe("kept/1")
    publisher.publish()
    settle(kept, subscriber)
    assert subscriber.got == {b"0": 1}
    kept = restarted(notebook, publisher, subscriber)  # PUBREC never reached the publisher
    settle(kept, publisher, subscriber)
    assert subscriber.got == {b"0": 1}
    assert publisher.under_way == {}
    publisher.publish()  # under the same identifier
    settle(kept, publisher, subscriber)
    assert subscriber.got == {b"0": 1, b"1": 1}


def test_open_exchanges_are_in_a_snapshot_and_those_that_are_over_are_not() -> None:
    notebook = Notebook()
    kept = bench(notebook)
    assert kept.keeping is not None
    away = kept.client("away", **FOREVER)
    away.subscribe("kept/1", qos=1)
    away.say(Disconnect())
    publisher = kept.client("p", **FOREVER)
    for packet_id in (1, 2, 3):
        publisher.say(Publish("kept/1", b"%d" % packet_id, qos=2, packet_id=packet_id))
    publisher.say(Pubrel(2))
    before = kept.keeping.snapshots
    kept.keeping._wanted = True
    kept.run()
    assert kept.keeping.snapshots == before + 1
    publisher.say(Pubrel(3))
    for _ in range(3):
        notebook.crash()
        kept = bench(notebook)
        assert set(kept.broker.clients.sessions["p"].received or ()) == {1}
        assert kept.keeping is not None
        assert len(kept.keeping.undone) == 3
    publisher = kept.client("p", **FOREVER)
    publisher.say(Publish("kept/1", b"1", qos=2, packet_id=1, dup=True))
    publisher.say(Publish("kept/1", b"new", qos=2, packet_id=2))
    publisher.say(Pubrel(1))
    assert [type(packet) for packet in publisher.take()] == [Pubrec, Pubrec, Pubcomp]
    again = kept.client("away", **FOREVER)
    assert [message.payload for message in again.messages()] == [b"1", b"2", b"3", b"new"]


def test_a_publisher_gets_its_identifier_back_when_the_disk_knows() -> None:
    kept = bench(Notebook())
    publisher = kept.client("p", **FOREVER)
    publisher.say(Publish("kept/1", b"", qos=2, packet_id=1))
    publisher.say(Publish("plain/1", b"", qos=2, packet_id=2))
    assert [packet.packet_id for packet in publisher.take()] == [1, 2]
    kept.syncs = False
    publisher.say(Pubrel(2))
    publisher.say(Pubrel(1))
    assert [packet.packet_id for packet in publisher.take()] == [2]
    kept.broker.lost(publisher.connection, kept.now_ns)
    publisher = kept.client("p", **FOREVER)
    publisher.say(Pubrel(1))  # again: it is known no more, but nobody may hear so yet
    assert publisher.take() == []
    kept.syncs = True
    kept.run()
    assert [(type(packet), packet.packet_id) for packet in publisher.take()] == [(Pubcomp, 1)]


def test_an_exchange_with_a_plain_topic_costs_the_journal_nothing() -> None:
    notebook = Notebook()
    kept = bench(notebook)
    publisher = kept.client("p", **FOREVER)
    written = len(notebook.records)
    for packet_id in range(1, 20):
        publisher.say(Publish("plain/1", b"", qos=2, packet_id=packet_id))
        publisher.say(Pubrel(packet_id))
    assert len(notebook.records) == written


def test_an_exchange_that_was_refused_is_not_open_after_a_restart() -> None:
    """The disk took the record, and said that it failed: the publisher may use its identifier anew."""
    notebook = Notebook()
    kept = bench(notebook)
    assert kept.keeping is not None
    publisher = kept.client("p", **FOREVER)
    kept.client("s", **FOREVER).subscribe("kept/1", qos=2)
    kept.syncs = False
    publisher.say(Publish("kept/1", b"refused", qos=2, packet_id=7))
    notebook.durable = notebook.records[-1][0]
    kept.keeping.refused("an I/O error")
    kept.run()
    assert [packet.reason for packet in publisher.take()] == [Reason.QUOTA_EXCEEDED]
    notebook.crash()
    kept = bench(notebook)
    publisher, subscriber = kept.client("p", **FOREVER), kept.client("s", **FOREVER)
    publisher.say(Publish("kept/1", b"new", qos=2, packet_id=7))
    assert [packet.reason for packet in publisher.take()] == [0]
    assert [message.payload for message in subscriber.messages()] == [b"refused", b"new"]
    publisher.say(Publish("kept/1", b"new", qos=2, packet_id=7, dup=True))
    assert subscriber.messages() == []


def test_what_waits_for_a_disk_that_fails_goes_on() -> None:
    """Deliveries, and what both ends of an exchange wait for."""
    notebook = Notebook()
    kept = bench(notebook)
    assert kept.keeping is not None
    publisher, subscriber = kept.client("p", **FOREVER), kept.client("s", **FOREVER)
    subscriber.subscribe("kept/1", qos=2)
    publisher.say(Publish("kept/1", b"one", qos=2, packet_id=1))
    (message,) = subscriber.messages()
    publisher.take()
    kept.syncs = False
    publisher.say(Pubrel(1))
    subscriber.say(Pubrec(message.packet_id))
    publisher.say(Publish("kept/1", b"two", qos=2, packet_id=2))
    assert publisher.take() == subscriber.take() == []
    kept.keeping.refused("an I/O error")
    kept.run()
    first, second = publisher.take()
    assert isinstance(first, Pubcomp)
    assert (second.packet_id, second.reason) == (2, Reason.QUOTA_EXCEEDED)
    assert {type(packet) for packet in subscriber.take()} == {Pubrel, Publish}
    kept.syncs = True
    kept.keeping.try_again()
    kept.run()
    publisher.say(Publish("kept/1", b"three", qos=2, packet_id=2))
    assert [message.payload for message in subscriber.messages()] == [b"three"]


# Which identifiers a subscriber may hold


@pytest.mark.parametrize("topic", ["kept/1", "plain/1"])
@pytest.mark.parametrize("told", [False, True])
def test_no_new_message_has_an_identifier_that_a_subscriber_holds(topic: str, told: bool) -> None:
    """Each life of the broker ends before it releases what its subscriber has taken."""
    notebook = Notebook()
    subscriber = Subscriber("s", 2)
    for life in range(6):
        kept = bench(notebook)
        subscriber.come(kept)
        if life == 0:
            subscriber.subscribe(topic)
        settle(kept, subscriber)
        publisher = kept.client("p")
        for number in range(3):
            payload = b"%d of %d" % (number, life)
            publisher.say(Publish(topic, payload, qos=2, packet_id=number + 1))
            if number < 2:
                settle(kept, subscriber)
            else:
                subscriber.answer()
                if told:
                    kept.turn()
            assert subscriber.got[payload] == 1
        notebook.crash()
    assert set(subscriber.got.values()) == {1}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=5), st.integers(1, 60))
def test_whatever_was_under_way_the_next_life_gives_other_identifiers(
    lives: list[tuple[int, bool]], window: int
) -> None:
    """Plain messages, of which the journal knows nothing but up to where identifiers may be given."""
    notebook = Notebook()
    subscriber = Subscriber("s", 2)
    for life, (count, answers) in enumerate([*lives, (3, True)]):
        kept = bench(notebook)
        forever = Properties(session_expiry=2**32 - 1, receive_max=window)
        subscriber.client = kept.client("s", clean_start=False, properties=forever)
        if life == 0:
            subscriber.subscribe("plain/1")
        settle(kept, subscriber)
        assert subscriber._under_way == set(), "or a later message is taken for a repetition"
        publisher = kept.client("p")
        for number in range(count):
            publisher.say(Publish("plain/1", b"%d of %d" % (number, life), qos=2, packet_id=number + 1))
            if answers:
                settle(kept, subscriber)
        taken = Counter(subscriber.got)
        subscriber.answer()  # and the broker does not hear of it
        new = subscriber.got - taken
        expected = 0 if answers else min(count, window)
        assert sum(new.values()) == expected
        notebook.crash()
    assert set(subscriber.got.values()) == {1}


def test_a_client_that_holds_no_identifier_is_asked_once_to_let_go_of_it() -> None:
    notebook = Notebook()
    kept = bench(notebook)
    subscriber = Subscriber("s", 2)
    subscriber.come(kept)
    subscriber.subscribe("plain/1")
    kept.client("p").publish("plain/1", b"x", qos=2)
    settle(kept, subscriber)
    notebook.crash()
    kept = bench(notebook)
    client = kept.client("s", **FOREVER)
    released = [packet.packet_id for packet in client.take() if isinstance(packet, Pubrel)]
    assert 1 <= len(released) <= 40
    kept.broker.lost(client.connection, kept.now_ns)
    again = kept.client("s", **FOREVER)
    assert again.take() == []
    kept.client("p").publish("plain/1", b"y", qos=2)
    kept.run()
    (message,) = again.messages()
    assert message.packet_id not in released


def test_identifiers_are_given_when_the_disk_knows_how_far_they_go() -> None:
    """Of plain messages only the first of a session waits; more identifiers are announced ahead."""
    notebook = Notebook()
    kept = bench(notebook)
    publisher, subscriber = kept.client("p"), kept.client("s", **FOREVER)
    subscriber.subscribe("plain/1", qos=2)
    kept.syncs = False
    publisher.say(Publish("plain/1", b"first", qos=2, packet_id=1))
    assert subscriber.messages() == []
    kept.syncs = True
    kept.run()
    (first,) = subscriber.messages()
    written = len(notebook.records)
    for number in range(2, 202):
        kept.syncs = False
        publisher.say(Publish("plain/1", b"", qos=2, packet_id=number))
        publisher.say(Pubrel(number))
        (message,) = subscriber.messages()
        kept.syncs = True
        subscriber.say(Pubrec(message.packet_id))
        subscriber.say(Pubcomp(message.packet_id))
        subscriber.take()
    assert len(notebook.records) - written <= 200 / 8
    assert kept.keeping is not None
    start, end = kept.keeping.marks.given[kept.broker.clients.sessions["s"].serial]
    assert start == first.packet_id <= message.packet_id <= end <= message.packet_id + 40


def test_a_session_without_qos_2_is_asked_nothing() -> None:
    notebook = Notebook()
    kept = bench(notebook)
    client = kept.client("s", **FOREVER)
    client.subscribe("plain/1", qos=1)
    kept.client("p").publish("plain/1", b"x", qos=2)
    kept.run()
    notebook.crash()
    assert bench(notebook).client("s", **FOREVER).take() == []


def serve(group: Group, subscriber: Subscriber, payload: bytes, *, answer: bool) -> None:
    publisher = group.client("p")
    publisher.say(Publish("safe/1", payload, qos=2, packet_id=1))
    publisher.say(Pubrel(1))
    if answer:
        settle(group, subscriber)
    else:
        subscriber.answer()


def test_an_heir_gives_no_identifier_that_a_subscriber_holds() -> None:
    """First, second, third failover; retained messages too, of which an heir has no copy under way."""
    group = Group()
    subscriber = Subscriber("s", 2)
    subscriber.come(group)
    subscriber.client.say(Subscribe(1, [Subscription("safe/1", 2)]))
    group.client("r").publish("safe/2", b"retained", qos=2, packet_id=1, retain=True)
    group.pass_time(20 * MS)
    for failover in range(4):
        serve(group, subscriber, b"first %d" % failover, answer=True)
        subscriber.client.say(Subscribe(2, [Subscription("safe/2", 2)]))
        serve(group, subscriber, b"second %d" % failover, answer=False)
        gone = group.primary.name
        group.crash(gone)
        group.pass_time(100 * MS)
        subscriber.come(group)
        settle(group, subscriber)
        group.start(gone)
        group.pass_time(JOIN_NS)
        settle(group, subscriber)
        for number in range(3):
            serve(group, subscriber, b"%d of %d" % (number, failover), answer=True)
            assert subscriber.got[b"%d of %d" % (number, failover)] == 1
        assert subscriber._under_way == set()
    del subscriber.got[b"retained"]  # at every SUBSCRIBE
    assert set(subscriber.got.values()) == {1}


@pytest.mark.parametrize("turns", range(6))
def test_what_is_received_while_an_heir_is_brought_up_to_date_comes_once(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new heir has the copy, because of a session that is away, and is told session by session how far the
    deliveries are."""
    monkeypatch.setattr("holdfast.replication.serving.SESSIONS_COPIED_PER_TURN", 1)
    group = Group()
    away, subscriber, publisher = group.client("away"), Subscriber("s", 2), Publisher("safe/1")
    away.subscribe("safe/1", qos=1)
    away.say(Disconnect())
    for each in (subscriber, publisher):
        each.come(group)
    subscriber.subscribe("safe/1")
    group.crash("b")
    publisher.publish()
    settle(group, publisher)
    heir = group.start("b")
    while not heir.buffer.numbers():
        group.now_ns += MS
        group.turn()
    for _ in range(turns):
        group.turn()
    assert subscriber.answer()
    settle(group, subscriber)
    group.pass_time(JOIN_NS)
    group.crash("a")
    group.pass_time(100 * MS)
    subscriber.come(group)
    settle(group, subscriber)
    assert subscriber.got == {b"0": 1}


@pytest.mark.parametrize("kind", [Group, KeptGroup])
def test_an_identifier_that_was_given_back_is_not_open_at_a_new_heir(kind: type[Group]) -> None:
    """Its message still waits for a session that is away, and is copied to a backup that comes later."""
    topic = "safe/1" if kind is Group else "kept/1"
    group = kind()
    away = group.client("away")
    away.subscribe(topic, qos=2)
    away.say(Disconnect())
    publisher = Publisher(topic)
    publisher.come(group)
    publisher.publish()
    settle(group, publisher)
    assert publisher.under_way == {}
    first = group.primary.name
    (other,) = set(group.members) - {first}
    group.crash(other)
    group.pass_time(2000 * MS)
    group.start(other)
    group.pass_time(JOIN_NS)
    group.crash(first)
    group.pass_time(100 * MS)
    publisher.come(group)
    publisher.publish()  # new, under the same identifier
    settle(group, publisher)
    again = group.client("away")
    assert sorted(message.payload for message in again.messages()) == [b"0", b"1"]


@pytest.mark.parametrize("survivor", ["a", "b"])
def test_what_both_journals_know_of_exchanges_is_enough_when_all_die(survivor: str) -> None:
    """Whichever comes back, and alone: nothing is doubled, and no identifier stays in use."""
    group = KeptGroup()
    subscriber, publisher = Subscriber("s", 2), Publisher("kept/1")
    subscriber.come(group)
    subscriber.subscribe("kept/1")
    publisher.come(group)
    group.run()
    for _ in range(4):
        publisher.publish()
        publisher.publish()
        settle(group, publisher, subscriber)
        publisher.publish()
        settle(group, subscriber)
        group.crash_all()
        group.start(survivor)
        group.pass_time(JOIN_NS + 50 * MS)
        publisher.come(group)
        subscriber.come(group)
        settle(group, publisher, subscriber)
        assert publisher.under_way == {}
        (other,) = {"a", "b"} - {survivor}
        group.start(other)
        group.pass_time(JOIN_NS)
    assert subscriber.got == Counter(publisher.sent)


def test_an_heir_confirms_that_an_identifier_is_free_when_its_disk_knows() -> None:
    group = KeptGroup()
    publisher = Publisher("kept/1")
    publisher.come(group)
    publisher.publish()
    group.run()
    (backup,) = set(group.members) - {group.primary.name}
    group.unsynced = {backup}
    publisher.answer()
    group.pass_time(5 * MS)
    assert publisher.client.take() == []
    group.unsynced = set()
    group.pass_time(5 * MS)
    assert [type(packet) for packet in publisher.client.take()] == [Pubcomp]


def test_deliveries_keep_their_order_though_the_journal_is_slower_than_the_heir() -> None:
    """What another client publishes stands between them in the journal: the later one must not pass."""
    group = KeptGroup()
    subscriber, publisher, other = group.client("s"), group.client("p"), group.client("o")
    subscriber.subscribe("kept/1", qos=2)
    came: list[bytes] = []
    for number in range(1, 61):
        publisher.send(Publish("kept/1", b"%d" % number, qos=2, packet_id=number))
        other.send(Publish("kept/2", b"x", qos=1, packet_id=number))
        group.unsynced = {"a"} if number % 3 else set()
        for _ in range(1 + number % 4):
            group.turn()
        came += [each.payload for each in subscriber.messages()]
    group.unsynced = set()
    group.pass_time(50 * MS)
    came += [each.payload for each in subscriber.messages()]
    assert came == [b"%d" % number for number in range(1, 61)]
