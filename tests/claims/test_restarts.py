"""docs/failover.md: what is there after everybody died, on a full disk, and whatever the clocks say."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from conformance import wire
from conformance.peer import Peer
from conformance.wire import P, Type, Will
from support.brokers import START_S_MAX, BrokerProcess, StartBroker, wait_until
from support.disks import fill
from support.groups import PATIENT
from support.zookeeper import ZooKeeperProcess

from .conftest import StartPlant
from .plant import (
    FOREVER,
    QUICK,
    TAKEN,
    Listener,
    ask_connect,
    come_back,
    leave_session,
    never,
    numbers,
    publish_all,
    reads,
    run_holdfast,
    write_contracts,
)

HOUR_NS = 3_600_000_000_000
AT_ONCE_S = 2.0


def heirs_at(port: int) -> list[str]:
    return [name for name in reads(port, "$SYS/broker/group/heirs").split(",") if name]


def kept(start_broker: StartBroker, folder: Path, data: Path | None = None) -> BrokerProcess:
    return start_broker("--contracts", str(write_contracts(folder)), "--data", str(data or folder / "data"))


@pytest.mark.parametrize("first", ["a", "b"])
def test_everything_that_was_acknowledged_outlives_both_brokers(start: StartPlant, first: str) -> None:
    """failover.md: "With `--data DIR` sessions, subscriptions, retained messages, and the undelivered
    messages of topics marked `durable` come back from the journal."
    failover.md: "for a durable topic, when the journals have it too."
    README.md: "`--data DIR` adds a journal: sessions, and messages of topics marked `durable`, then outlive
    both brokers."

    Whichever comes back first, and alone.
    """
    plant = start(keep=True)
    port = plant.ports[plant.primary()]
    leave_session(port, "away", "kept/#", "free/#")
    with Peer(port) as publisher:
        publisher.connect("publisher")
        publisher.publish("retained/1", b"stays", qos=1, retain=True)
        taken = publish_all(publisher, "kept/1", numbers(0, 1500))
        taken += publish_all(publisher, "kept/2", numbers(1500, 1600), qos=2)
    assert len(taken) == 1600
    view = max(plant.views())
    plant.kill("a", "b")
    plant.start(first)
    port = plant.ports[plant.primary()]
    assert set(come_back(port, "away", taken)) == set(taken)
    assert reads(port, "retained/1") == "stays"
    assert int(reads(port, "$SYS/broker/group/view")) > view
    with Listener(port, "away", present=True) as listener, Peer(port) as publisher:
        publisher.connect("publisher")
        listener.await_all(publish_all(publisher, "free/1", [b"subscribed"]))


def test_who_has_most_serves_when_all_died(start: StartPlant) -> None:
    """failover.md: "Who starts looks for the others for `join_wait`; then the one with most state serves,
    in a higher view."
    failover.md: "Of those who start together the one with most state serves; among equals the first in
    the group file."

    One was dead while the other went on alone.
    """
    plant = start(keep=True, more=PATIENT + 'join_wait = "6s"\n')
    primary = plant.primary()
    backup = plant.other(primary)
    plant.kill(backup)
    plant.await_event(primary, "event=unprotected")
    leave_session(plant.ports[primary], "late", "kept/#")
    with plant.client(primary) as publisher:
        publisher.connect("publisher")
        taken = publish_all(publisher, "kept/1", numbers(0, 100))
    plant.kill(primary)
    plant.start_together(backup, primary)
    plant.await_protected()
    assert set(come_back(plant.ports[plant.primary()], "late", taken)) == set(taken)


def test_a_later_heir_leaves_serving_to_who_has_the_durable_messages(
    start: StartPlant, zookeeper: ZooKeeperProcess
) -> None:
    """failover.md: "With ZooKeeper it waits for one that has them: see below."
    failover.md: "So does one that comes back without the durable messages of that view, where a contract is
    `durable`:"
    failover.md: "The primary of that view, or its first heir, serves alone with its journal, and whoever
    waited joins it."
    failover.md: "For whom a member waits, and what to do if they are gone for good, `claim lost` and
    `holdfast status` say: start who is missing, with an empty data directory if it lost its own."
    deploying.md: "start them with their data directories; with ZooKeeper in any order and at any time."
    deploying.md: "Where a contract is `durable`, a member of three or four that was a later heir waits for
    the primary that served last or its first heir, and `holdfast status` says so."
    """
    plant = start(size=3, keep=True, http=True, more=QUICK + f'zookeeper = "{zookeeper.hosts}"\n')
    primary = plant.primary()
    leave_session(plant.ports[primary], "away", "kept/#")
    wait_until(lambda: len(heirs_at(plant.ports[primary])) == 2, "two heirs", START_S_MAX)
    first, last = heirs_at(plant.ports[primary])
    with plant.client(primary) as publisher:
        publisher.connect("publisher")
        taken = publish_all(publisher, "kept/1", numbers(0, 200))
    plant.kill(*plant.names)
    served = len(plant.lines(last, "serving"))
    plant.start(last)
    plant.await_event(last, 'event="claim lost"')
    assert never(lambda: len(plant.lines(last, "serving")) > served, 1.5), "it serves, without messages"
    (told, *_) = plant.lines(last, "claim lost")
    shown = run_holdfast("status", f"http://127.0.0.1:{plant.http[last]}").stdout
    for words in (told, " ".join(shown.split())):
        assert "lacks its durable messages" in words
        assert "start who is missing, with an empty data directory if it lost its own" in words
    plant.start(first)
    assert plant.primary() == first
    assert set(come_back(plant.ports[first], "away", taken)) == set(taken)
    wait_until(lambda: heirs_at(plant.ports[first]) == [last], "the one that waited", START_S_MAX)


def test_without_data_everything_is_gone_when_all_died(start: StartPlant) -> None:
    """failover.md: "Without it they are gone." """
    plant = start(keep=False)
    leave_session(plant.ports[plant.primary()], "away", "kept/#")
    plant.kill("a", "b")
    plant.start("a")
    with plant.client() as client:
        assert not client.connect("away", **FOREVER).session_present


def test_expiry_counts_from_when_a_broker_took_the_message(start_broker: StartBroker, tmp_path: Path) -> None:
    """failover.md: "Expiry is counted from when a broker took the message, by the broker's clock, also
    after a restart."

    A publisher whose clock is an hour behind, and one whose clock is an hour ahead; the message may be a
    minute old. One that may be a second old is not delivered.
    """
    broker = kept(start_broker, tmp_path)
    leave_session(broker.port, "away", "kept/#")
    with Peer(broker.port) as publisher:
        publisher.connect("publisher")
        for number, shift_ns in enumerate((-HOUR_NS, HOUR_NS, 0)):
            stamp = (P.USER, ("hf", f"{time.time_ns() + shift_ns}/1/p{number}.1"))
            props = [(P.MESSAGE_EXPIRY, 60), stamp]
            assert publish_all(publisher, "kept/1", [b"%d" % number], props=props)
        publish_all(publisher, "kept/2", [b"short"], props=[(P.MESSAGE_EXPIRY, 1)])
    broker.kill()
    time.sleep(1.1)
    again = kept(start_broker, tmp_path)
    came = come_back(again.port, "away", numbers(0, 3))
    assert sorted(came) == numbers(0, 3)


def test_a_full_disk_refuses_what_is_under_way_and_all_else_goes_on(
    start_broker: StartBroker, tmp_path: Path, tiny: Path
) -> None:
    """failover.md: "The same, and durable messages, also those under way, are refused with 0x97 at once,
    until the disk has room; all else goes on."
    """
    broker = kept(start_broker, tmp_path, tiny / "data")
    leave_session(broker.port, "away", "kept/#")
    with Peer(broker.port) as publisher:
        publisher.connect("publisher")
        ballast = fill(tiny)
        for pid in range(1, 101):
            publisher.send(wire.publish("kept/1", bytes(8192), qos=1, pid=pid))
        publisher.send(wire.publish("free/1", b"goes on", qos=1, pid=500))
        deadline = time.monotonic() + AT_ONCE_S
        reasons: dict[int, int] = {}
        while len(reasons) < 101:
            answer = publisher.expect(Type.PUBACK, deadline - time.monotonic())
            assert answer.pid is not None
            reasons[answer.pid] = answer.reason
        assert reasons.pop(500) in TAKEN
        assert set(reasons.values()) - set(TAKEN) == {0x97}
        assert 0x97 in reasons.values()
        with Listener(broker.port, "new", "free/#") as listener:
            listener.await_all(publish_all(publisher, "free/1", [b"subscribed"]))
        ballast.unlink()
        wait_until(lambda: 'event="journal recovered"' in broker.stderr, "its recovery", START_S_MAX)
        assert publish_all(publisher, "kept/1", [b"again"]) == [b"again"]
    taken = sum(reason in TAKEN for reason in reasons.values())
    came = come_back(broker.port, "away", [b"again"])
    assert came.count(bytes(8192)) >= taken


def test_a_backup_with_a_full_disk_protects_in_memory(start: StartPlant, tiny: Path) -> None:
    """failover.md: "It says `journal failed` and goes on protecting in memory; it tries the disk every half
    second, and says `journal recovered`."
    """
    plant = start(keep=True, begin="a", protected=False)
    plant.data["b"] = tiny / "data"
    plant.start("b")
    plant.await_protected()
    assert plant.primary() == "a"
    leave_session(plant.ports["a"], "away", "kept/#")
    ballast = fill(tiny)
    with plant.client("a") as publisher:
        publisher.connect("publisher")
        publisher.publish("free/large", bytes(8192), qos=1, retain=True)
        plant.await_event("b", 'event="journal failed"')
        taken = publish_all(publisher, "kept/1", numbers(0, 200))
    assert len(taken) == 200
    ballast.unlink()
    plant.await_event("b", 'event="journal recovered"')
    plant.kill("a")
    assert plant.primary() == "b"
    assert set(come_back(plant.ports["b"], "away", taken)) == set(taken)


def test_clients_that_lie_about_numbers_are_answered_and_dropped(pair) -> None:
    """failover.md: "A number that is not above the last one is acknowledged and dropped, if the topic's
    last message was of that publisher: a broker remembers one publisher of a topic, and the library drops
    the rest."
    """
    port = pair.ports[pair.primary()]
    sent = [("5/p.1", b"first"), ("5/p.1", b"again"), ("4/p.1", b"older"), ("6/p.1", b"next")]
    sent += [("1/q.1", b"another's"), ("6/p.1", b"known no more")]
    with Listener(port, "subscriber", "free/#") as listener, Peer(port) as publisher:
        publisher.connect("publisher")
        for mark, payload in sent:
            stamp = (P.USER, ("hf", f"{time.time_ns()}/{mark}"))
            assert publish_all(publisher, "free/1", [payload], props=[stamp]) == [payload]
        listener.await_all([b"first", b"next", b"another's"])
        listener.settle()
        assert listener.came == [b"first", b"next", b"another's", b"known no more"]


def test_order_does_not_depend_on_clocks(pair) -> None:
    """failover.md: "Order, loss and views do not depend on clocks;"

    The creation times of one publisher jump forth and back.
    """
    port = pair.ports[pair.primary()]
    with Listener(port, "subscriber", "strict/#") as listener, Peer(port) as publisher:
        publisher.connect("publisher")
        for number in range(60):
            shift_ns = (-1) ** number * 1_000_000_000 * (number % 7)
            stamp = (P.USER, ("hf", f"{time.time_ns() + shift_ns}/{number + 1}/p.1"))
            publisher.send(wire.publish("strict/1", b"%d" % number, qos=1, pid=number + 1, props=[stamp]))
        listener.await_all(numbers(0, 60))
        assert listener.came == numbers(0, 60)


def test_a_backup_that_lags_is_dropped_and_joins_again(start: StartPlant, tmp_path: Path) -> None:
    """failover.md: "When 64 MiB (`backup_bytes_max`) wait on the way to it, it is dropped, `unprotected` is
    said, and it joins again"

    With a bound of 20 MiB, so that the test is quick; the backup stands still.
    """
    plant = start(begin="", protected=False, more='heartbeat = "20ms"\nsilence = "4s"\njoin_wait = "500ms"\n')
    plant.contracts.write_text(plant.contracts.read_text() + "\n[limits]\nbackup_bytes_max = 20000000\n")
    plant.start("a")
    plant.start("b")
    plant.await_protected()
    primary = plant.primary()
    payloads = [bytes(500_000) + b"%d" % number for number in range(20)]
    for number in range(4):
        leave_session(plant.ports[primary], f"away-{number}", f"free/{number}")
    plant.stop(plant.other(primary))
    with ExitStack() as stack:
        publishers = [stack.enter_context(plant.client(primary)) for _ in range(4)]
        for number, publisher in enumerate(publishers):  # one alone is read no further than 16 MiB
            publisher.connect(f"publisher-{number}")
            for pid, payload in enumerate(payloads, 1):  # the answers wait for the backup
                publisher.send(wire.publish(f"free/{number}", payload, qos=1, pid=pid))
        for publisher in publishers:
            for _ in payloads:
                assert publisher.expect(Type.PUBACK).reason in TAKEN
    plant.await_event(primary, 'event="dropped backup"')
    plant.await_event(primary, "event=unprotected")
    plant.resume(plant.other(primary))
    plant.await_protected()
    plant.kill(primary)
    port = plant.ports[plant.primary()]
    for number in range(4):
        with Listener(port, f"away-{number}", present=True) as listener:
            listener.await_all(payloads)


def test_a_member_that_joins_gets_everything_while_messages_flow(pair) -> None:
    """failover.md: "The primary goes on. State and waiting messages are sent in pieces, between messages.
    It is an heir, in a new view, when it has everything."

    Two sessions with thousands of waiting messages; the primary dies as soon as it says `protected`.
    """
    primary = pair.primary()
    backup = pair.other(primary)
    for name in ("one", "two"):
        leave_session(pair.ports[primary], name, "free/#")
    pair.kill(backup)
    with pair.client(primary) as publisher:
        publisher.connect("publisher")
        taken = publish_all(publisher, "free/1", numbers(0, 5000))
        count = len(pair.lines(primary, "protected"))
        pair.start(backup)
        more = 5000
        while len(pair.lines(primary, "protected")) == count:
            taken += publish_all(publisher, "free/1", numbers(more, more + 50))
            more += 50
            assert more < 9900, "the queue of a session is full: nobody protects"
        pair.kill(primary)
    port = pair.ports[pair.primary()]
    for name in ("one", "two"):
        assert set(come_back(port, name, taken)) >= set(taken)


def test_the_primary_dies_while_a_member_joins(start: StartPlant) -> None:
    """failover.md: "The joining member is no heir. It looks for others for `join_wait` (1 s) and then
    serves with what it has."

    The member stands still on its first word, so it never becomes an heir.
    """
    plant = start(
        protected=False, begin="a", more='join_wait = "500ms"\nheartbeat = "20ms"\nsilence = "500ms"\n'
    )
    plant.await_serving("a", START_S_MAX)
    leave_session(plant.ports["a"], "away", "free/#")
    plant.kill("a")
    plant.start("b")
    plant.await_serving("b", 3.0)
    assert ask_connect(plant.ports["b"]).reason == 0


def test_wills_outlive_a_failover_of_a_client_that_comes_back(pair) -> None:
    """failover.md: "their wills are published after their delay, at least 5 s too."

    Not of one that comes back in time.
    """
    primary = pair.primary()
    with pair.client(primary) as client:
        client.connect("back", will=Will("last/words", b"too soon"), **FOREVER)
        leave_session(pair.ports[primary], "wills", "last/#")
        pair.kill(primary)
    port = pair.ports[pair.primary()]
    with Peer(port) as client, Listener(port, "wills", present=True) as wills:
        client.connect("back", will=Will("last/words", b"later"), **FOREVER)
        time.sleep(5.5)
        assert wills.came == []
