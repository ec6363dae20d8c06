"""What a journal brings back: state, undone messages, numbers; and what happens while it takes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.bench import Client, book, contract
from tests.replication.notebook import KeptBench, Notebook

from holdfast.contract.model import ContractBook
from holdfast.errors import ConfigError, Unavailable
from holdfast.mqtt.conventions import format_stamp
from holdfast.mqtt.packets import Disconnect, Properties, Puback, Publish, Pubrec, Unsubscribe
from holdfast.mqtt.reasons import Reason
from holdfast.replication.increments import everything
from holdfast.replication.keeping import Health
from holdfast.replication.memory import Kind, check_owner

FOREVER = {"clean_start": False, "properties": Properties(session_expiry=0xFFFFFFFF)}


def contracts() -> ContractBook:
    return book(
        contract("kept", "kept/+", "100ms", 0, durable="true"), contract("plain", "plain/+", "100ms", 3)
    )


def bench(notebook: Notebook, **options: Any) -> KeptBench:
    return KeptBench(notebook, contracts(), **options)


def state(bench: KeptBench) -> set[bytes]:
    """All that clients left, in a form that can be compared."""
    return {msgspec.msgpack.encode(increment) for increment in everything(bench.broker)}


def payloads(client: Client) -> list[bytes]:
    return [packet.payload for packet in client.messages()]


def answers(client: Client) -> list[Puback | Pubrec]:
    return [packet for packet in client.take() if isinstance(packet, Puback | Pubrec)]


def test_sessions_subscriptions_and_retained_messages_come_back() -> None:
    notebook = Notebook()
    before = bench(notebook)
    client = before.client("c", **FOREVER)
    client.subscribe("plain/+", qos=1)
    client.subscribe("$share/g/other/#", qos=2)
    client.say(Publish(topic="plain/1", payload=b"kept for all", retain=True))
    client.say(Disconnect())
    known = state(before)
    assert len(known) == 4
    notebook.crash()
    after = bench(notebook)
    assert state(after) == known
    again = after.client("c", **FOREVER)
    again.publish("plain/2", b"x", qos=1)
    after.run()
    assert payloads(again) == [b"x"]


def test_undone_durable_messages_are_dispatched_after_a_restart_and_done_ones_are_not() -> None:
    notebook = Notebook()
    before = bench(notebook)
    subscriber = before.client("s", **FOREVER)
    subscriber.subscribe("+/+", qos=1)
    publisher = before.client("p")
    publisher.publish("kept/1", b"acknowledged", qos=1, packet_id=1)
    before.run()
    (message,) = subscriber.messages()
    subscriber.say(Puback(message.packet_id))
    publisher.publish("kept/1", b"on its way", qos=1, packet_id=2)
    before.run()
    subscriber.say(Disconnect())
    publisher.publish("kept/1", b"while away", qos=1, packet_id=3)
    publisher.publish("plain/1", b"not durable", qos=1, packet_id=4)
    before.run()
    assert len(answers(publisher)) == 4
    notebook.crash()
    after = bench(notebook)
    again = after.client("s", **FOREVER)
    after.run()
    assert payloads(again) == [b"on its way", b"while away"]


def test_a_publisher_hears_of_a_durable_message_when_it_is_synced() -> None:
    kept = bench(Notebook())
    publisher = kept.client("p")
    kept.syncs = False
    publisher.publish("plain/1", b"", qos=1, packet_id=1)
    publisher.publish("kept/1", b"", qos=1, packet_id=2)
    publisher.publish("kept/1", b"", qos=2, packet_id=3)
    kept.run()
    assert [packet.packet_id for packet in answers(publisher)] == [1]
    kept.syncs = True
    kept.run()
    assert [packet.packet_id for packet in answers(publisher)] == [2, 3]


def test_what_is_recalled_again_is_marked_done_when_it_arrives() -> None:
    notebook = Notebook()
    before = bench(notebook)
    before.client("s", **FOREVER).subscribe("kept/+", qos=1)
    before.client("p").publish("kept/1", b"once", qos=1)
    before.run()
    notebook.crash()
    after = bench(notebook)
    again = after.client("s", **FOREVER)
    (message,) = again.messages()
    again.say(Puback(message.packet_id))
    assert after.keeping is not None
    assert after.keeping.undone == {}
    notebook.crash()
    assert payloads(bench(notebook).client("s", **FOREVER)) == []


def test_an_expiry_goes_on_while_everybody_is_down() -> None:
    notebook = Notebook()
    before = bench(notebook)
    before.client("s", **FOREVER).subscribe("kept/+", qos=1)
    publisher = before.client("p")
    publisher.publish("kept/1", b"short", qos=1, properties=Properties(message_expiry=1))
    publisher.publish("kept/1", b"long", qos=1, packet_id=2, properties=Properties(message_expiry=100))
    before.run()
    notebook.crash()
    after = bench(notebook)
    after.pass_time(2_000_000_000)
    again = after.client("s", **FOREVER)
    (message,) = again.messages()
    assert message.payload == b"long"
    assert message.properties.message_expiry == 98


def test_publications_go_on_above_every_number_that_was_given() -> None:
    notebook = Notebook()
    before = bench(notebook)
    client = before.client("c", **FOREVER)
    for number in range(50):
        client.publish("plain/1", b"%d" % number)
    before.run()
    client.subscribe("plain/+")
    notebook.crash()
    after = bench(notebook)
    again = after.client("c", **FOREVER)
    again.publish("plain/1", b"new")
    after.run()
    assert payloads(again) == [b"new"]


def test_a_grown_journal_is_replaced_by_a_snapshot_and_pruned() -> None:
    notebook = Notebook()
    kept = bench(notebook, growth=5_000)
    assert kept.keeping is not None
    client = kept.client("c", **FOREVER)
    for number in range(200):
        client.say(Publish(topic="plain/r", payload=b"%d" % number * 20, retain=True))
    assert kept.keeping.snapshots > 2
    alive = [record for record in notebook.records if record[0] >= notebook.pruned]
    assert sum(len(body) for _, _, body in alive) < 20_000
    known = state(kept)
    notebook.crash()
    assert state(bench(notebook)) == known


# A journal that takes nothing


def test_while_the_journal_takes_nothing_only_durable_messages_are_refused() -> None:
    notebook = Notebook()
    kept = bench(notebook)
    assert kept.keeping is not None
    subscriber, publisher = kept.client("s", **FOREVER), kept.client("p")
    subscriber.subscribe("+/+", qos=1)
    notebook.full = True
    publisher.say(Publish(topic="kept/1", payload=b"too late", qos=1, packet_id=1))
    (under_way,) = answers(publisher)  # taken before anybody knew
    assert (under_way.packet_id, under_way.reason) == (1, Reason.QUOTA_EXCEEDED)
    assert "journal" in (under_way.properties.reason_string or "")
    publisher.say(Publish(topic="kept/1", payload=b"refused", qos=1, packet_id=2))
    publisher.say(Publish(topic="kept/1", payload=b"refused", qos=2, packet_id=3))
    publisher.say(Publish(topic="kept/1", payload=b"no promise", qos=0))
    publisher.say(Publish(topic="plain/1", payload=b"other", qos=1, packet_id=4))
    assert payloads(subscriber) == [b"too late", b"no promise", b"other"]
    assert [event for event, _ in kept.events if event.startswith("journal")] == ["journal failed"]
    second, third, fourth = answers(publisher)
    assert (second.packet_id, second.reason) == (2, Reason.QUOTA_EXCEEDED)
    assert (third.packet_id, third.reason) == (3, Reason.QUOTA_EXCEEDED)
    assert "journal" in (second.properties.reason_string or "")
    assert fourth.reason == 0
    notebook.full = False
    kept.keeping.try_again()
    kept.run()
    publisher.say(Publish(topic="kept/1", payload=b"taken", qos=1, packet_id=5))
    assert answers(publisher)[0].reason == 0
    names = [event for event, _ in kept.events if event.startswith("journal")]
    assert names == ["journal failed", "journal recovered"]


def test_a_client_of_mqtt_3_is_sent_away_rather_than_told_a_lie() -> None:
    notebook = Notebook()
    kept = bench(notebook)
    publisher = kept.client("p", version=4)
    notebook.full = True
    publisher.say(Publish(topic="kept/1", payload=b"under way", qos=1, packet_id=1))
    assert publisher.take() == []
    assert publisher.connection.closing
    another = kept.client("q", version=4)
    another.say(Publish(topic="plain/1", payload=b"", qos=1, packet_id=1))
    assert len(answers(another)) == 1
    another.say(Publish(topic="kept/1", payload=b"new", qos=1, packet_id=2))
    assert another.take() == []
    assert another.connection.closing


@settings(max_examples=100, deadline=None)
@given(
    sent=st.lists(st.tuples(st.sampled_from(["kept/1", "plain/1"]), st.integers(1, 2)), max_size=12),
    synced=st.integers(0, 12),
    fails=st.sampled_from(["sync", "write"]),
)
def test_whatever_waits_for_a_journal_that_fails_is_answered_at_once(
    sent: list[tuple[str, int]], synced: int, fails: str
) -> None:
    """Some are in the journal, the rest is under way when it fails; then everybody dies."""
    notebook = Notebook()
    kept = bench(notebook)
    assert kept.keeping is not None
    away = kept.client("s", **FOREVER)
    away.subscribe("+/+", qos=1)
    away.say(Disconnect())
    publisher = kept.client("p")
    expected = {}
    for number, (topic, qos) in enumerate(sent, 1):
        if number == synced + 1:
            kept.run()
            kept.syncs, notebook.full = False, fails == "write"
        refused = topic == "kept/1" and number > synced
        expected[number] = Reason.QUOTA_EXCEEDED if refused else Reason.SUCCESS
        publisher.publish(topic, b"%d" % number, qos=qos, packet_id=number)
    if kept.syncs:
        kept.run()
        kept.syncs = False
    kept.run()
    kept.keeping.refused("the disk is gone")
    kept.run()
    assert {answer.packet_id: answer.reason for answer in answers(publisher)} == expected
    session = kept.broker.clients.sessions["p"]
    taken = {number for number, (_, qos) in enumerate(sent, 1) if qos == 2 and not expected[number]}
    assert set(session.received or ()) == taken
    notebook.crash()
    after = bench(notebook)
    again = after.client("s", **FOREVER)
    after.run()
    missing = {number for number, (topic, _) in enumerate(sent, 1) if topic == "kept/1"}
    missing -= {int(payload) for payload in payloads(again)}
    assert all(expected[number] for number in missing)


def test_a_refused_qos_2_message_may_be_sent_again_under_its_number() -> None:
    notebook = Notebook()
    kept = bench(notebook)
    assert kept.keeping is not None
    publisher = kept.client("p", **FOREVER)
    notebook.full = True
    publisher.say(Publish(topic="kept/1", payload=b"", qos=2, packet_id=7))
    (refused,) = answers(publisher)
    assert isinstance(refused, Pubrec)
    assert refused.reason == Reason.QUOTA_EXCEEDED
    notebook.full = False
    kept.keeping.try_again()
    kept.run()
    before = notebook.durable
    publisher.say(Publish(topic="kept/1", payload=b"again", qos=2, packet_id=7))
    (taken,) = answers(publisher)
    assert taken.reason in (Reason.SUCCESS, Reason.NO_MATCHING_SUBSCRIBERS)
    assert any(kind == Kind.MESSAGE for number, kind, _ in notebook.records if number > before)


def test_what_comes_again_while_the_journal_takes_nothing_is_refused_too() -> None:
    """Its first copy waits in memory: an acknowledgement would be a lie."""
    notebook = Notebook()
    kept = bench(notebook)
    assert kept.keeping is not None
    publisher = kept.client("p")
    stamp = {"qos": 1, "properties": Properties(user=[format_stamp(1_700_000_000_000_000_000, 5, "p")])}
    kept.syncs = False
    publisher.say(Publish(topic="kept/1", payload=b"x", packet_id=1, **stamp))
    publisher.say(Publish(topic="kept/1", payload=b"x", packet_id=2, **stamp))
    assert kept.broker.core.duplicates == 1
    assert answers(publisher) == []
    kept.keeping.refused("full")
    kept.run()
    publisher.say(Publish(topic="kept/1", payload=b"x", packet_id=3, **stamp))
    assert [answer.reason for answer in answers(publisher)] == [Reason.QUOTA_EXCEEDED] * 3
    refused = [details for event, details in kept.events if event == "refused"]
    assert {details["topic"] for details in refused} == {"kept/1"}
    kept.syncs = True
    kept.keeping.try_again()
    kept.run()
    publisher.say(Publish(topic="kept/1", payload=b"x", packet_id=4, **stamp))
    assert [answer.reason for answer in answers(publisher)] == [Reason.SUCCESS]


def test_a_journal_that_is_still_full_is_tried_again_without_another_word() -> None:
    notebook = Notebook()
    kept = bench(notebook)
    assert kept.keeping is not None
    notebook.full = True
    client = kept.client("c", **FOREVER)
    kept.keeping.try_again()
    kept.run()
    assert kept.keeping.health is Health.FAILED
    client.subscribe("plain/+")
    notebook.full = False
    kept.keeping.try_again()
    kept.run()
    assert kept.keeping.health is Health.KEEPING
    known = state(kept)
    notebook.crash()
    assert state(bench(notebook)) == known
    assert [event for event, _ in kept.events if "journal" in event] == [
        "journal failed",
        "journal recovered",
    ]


def test_a_crash_before_a_failed_journal_has_healed_brings_an_older_state() -> None:
    notebook = Notebook()
    kept = bench(notebook)
    assert kept.keeping is not None
    client = kept.client("c", **FOREVER)
    client.subscribe("plain/+")
    known = state(kept)
    notebook.full = True
    client.subscribe("lost/+")
    notebook.full, before = False, len(notebook.records)
    kept.keeping.try_again()
    while not any(kind == Kind.SNAPSHOT_BEGIN for _, kind, _ in notebook.records[before:]):
        notebook.write(kept.keeping)
    notebook.write(kept.keeping)  # the snapshot has begun, has a part, and does not end
    client.send(Unsubscribe(9, ["plain/+"]))
    kept.syncs = False
    kept.broker.turn(kept.now_ns, kept.now_ns)
    notebook.write(kept.keeping, room=False)
    notebook.durable = notebook.records[-1][0]
    assert state(bench(notebook)) == known


# Whose journal it is


def test_a_journal_is_one_members_own() -> None:
    check_owner("d", "", "plant/a")
    check_owner("d", "plant/a", "plant/a")
    with pytest.raises(ConfigError, match="journal of member plant/a, and this is member plant/b"):
        check_owner("d", "plant/a", "plant/b")
    with pytest.raises(ConfigError, match="without a group"):
        check_owner("d", "plant/a", "")


def test_a_record_of_another_kind_of_holdfast_is_said_in_words() -> None:
    notebook = Notebook()
    bench(notebook)
    notebook.records.append((notebook.records[-1][0] + 1, int(Kind.MESSAGE), b"\xc1"))
    notebook.durable = notebook.records[-1][0]
    with pytest.raises(Unavailable, match="not what this version of Holdfast writes"):
        bench(notebook)


# Whatever clients do

CLIENTS = ["a", "b", "c"]
operation = st.one_of(
    st.tuples(st.just("subscribe"), st.sampled_from(CLIENTS), st.sampled_from(["plain/+", "kept/1", "#"])),
    st.tuples(st.just("unsubscribe"), st.sampled_from(CLIENTS), st.sampled_from(["plain/+", "kept/1"])),
    st.tuples(st.just("retain"), st.sampled_from(CLIENTS), st.sampled_from(["plain/1", "kept/1"])),
    st.tuples(st.just("clear"), st.sampled_from(CLIENTS), st.sampled_from(["plain/1", "kept/1"])),
    st.tuples(st.just("leave"), st.sampled_from(CLIENTS), st.just("")),
    st.tuples(st.just("end"), st.sampled_from(CLIENTS), st.just("")),
    st.tuples(st.just("snapshot"), st.just("a"), st.just("")),
    st.tuples(st.just("crash"), st.just("a"), st.just("")),
)


def perform(bench: KeptBench, clients: dict[str, Client], what: str, name: str, where: str) -> None:
    if what in ("leave", "end") and name not in clients:
        return
    client = clients.get(name)
    if client is None:
        client = clients[name] = bench.client(name, **FOREVER)
    if what == "subscribe":
        client.subscribe(where, qos=1)
    elif what == "unsubscribe":
        client.say(Unsubscribe(7, [where]))
    elif what in ("retain", "clear"):
        payload = b"x" if what == "retain" else b""
        client.say(Publish(topic=where, payload=payload, retain=True))
    elif what in ("leave", "end"):
        expiry = Properties(session_expiry=0) if what == "end" else Properties()
        clients.pop(name).say(Disconnect(properties=expiry))


@settings(max_examples=150, deadline=None)
@given(st.lists(operation, max_size=40), st.integers(100, 3000))
def test_whatever_clients_did_is_there_after_a_crash(
    operations: list[tuple[str, str, str]], growth: int
) -> None:
    notebook = Notebook()
    kept = bench(notebook, growth=growth)
    clients: dict[str, Client] = {}
    for what, name, where in [*operations, ("crash", "a", "")]:
        if what == "crash":
            known = state(kept)
            notebook.crash()
            kept, clients = bench(notebook, growth=growth), {}
            assert state(kept) == known
        elif what == "snapshot":
            assert kept.keeping is not None
            kept.keeping._wanted = True
        else:
            perform(kept, clients, what, name, where)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["publish", "ack", "come", "go", "sync", "crash"]), max_size=60))
def test_no_acknowledged_durable_message_is_lost(steps: list[str]) -> None:
    """A subscriber gets all that its publisher was told is safe, whenever the broker dies."""
    notebook = Notebook()
    kept = bench(notebook)
    subscriber: Client | None = kept.client("s", **FOREVER)
    assert subscriber is not None
    subscriber.subscribe("kept/+", qos=1)
    publisher = kept.client("p")
    sent, safe, got = 0, set[int](), list[int]()

    def look() -> None:
        safe.update(answer.packet_id for answer in answers(publisher))
        if subscriber is not None:
            for message in subscriber.messages():
                got.append(int(message.payload))
                subscriber.send(Puback(message.packet_id))

    for step in [*steps, "crash", "come"]:
        if step == "publish":
            sent += 1
            publisher.publish("kept/1", b"%d" % sent, qos=1, packet_id=sent)
            kept.run()
        elif step == "come" and subscriber is None:
            subscriber = kept.client("s", **FOREVER)
        elif step == "go" and subscriber is not None:
            subscriber.say(Disconnect())
            subscriber = None
        elif step == "sync":
            kept.syncs = not kept.syncs
            kept.run()
        elif step == "crash":
            safe.update(answer.packet_id for answer in answers(publisher))
            notebook.crash()
            kept = bench(notebook)
            subscriber, publisher = None, kept.client("p")
        elif step == "ack":
            look()
            kept.run()
    look()
    assert safe <= set(got)
