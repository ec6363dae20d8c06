"""docs/failover.md, "At every crash point": who has a message, a mark or a subscription when the primary
dies.
"""

from __future__ import annotations

import time

import pytest

from conformance import wire
from conformance.peer import Peer
from conformance.wire import P, Type
from support.brokers import BrokerProcess, StartBroker, wait_until

from .conftest import StartPlant
from .plant import (
    FOREVER,
    TAKEN,
    Listener,
    Plant,
    come_back,
    leave_session,
    numbers,
    publish_all,
    reads,
    write_contracts,
)

STATE_LOG_MAX = 10_000  # beyond this a member that comes back gets a snapshot
REPEATS_MAX = 100  # messages that a session acknowledged within `marks_lag` of the crash
REPEATS_S = 0.1
DEPTH = (P.USER, ("hf-depth", "2"))


def stamp(created_ns: int, number: int, publisher: str = "p.1") -> tuple[P, tuple[str, str]]:
    return P.USER, ("hf", f"{created_ns}/{number}/{publisher}")


# Messages


def test_a_copy_is_dispatched_by_the_heir_and_its_repeat_is_dropped(pair: Plant) -> None:
    """failover.md: "The heir dispatches the copy. The publisher's own repeat is dropped."
    failover.md: "Nothing; a repeat from the ring is dropped, because the heir knows its number."

    At one subscriber that had not acknowledged when the primary died, and at one that had.
    """
    primary = pair.primary()
    with pair.client(primary) as subscriber, pair.client(primary) as publisher:
        subscriber.connect("slow", **FOREVER)
        subscriber.subscribe(("strict/1", 1))
        publisher.connect("publisher")
        done = [(b"d%d" % number, stamp(time.time_ns(), number)) for number in range(1, 21)]
        with pair.client(primary) as late:
            late.connect("late", **FOREVER)
            late.subscribe(("strict/2", 1))
            for payload, mark in done:
                publish_all(publisher, "strict/2", [payload], props=[mark])
            assert late.receive_payloads(20) == [payload for payload, _ in done]
            late.expect_quiet()  # its acknowledgements were read
            time.sleep(REPEATS_S)
        sent = [(b"%d" % number, stamp(time.time_ns(), number)) for number in range(1, 21)]
        for payload, mark in sent:
            publish_all(publisher, "strict/1", [payload], props=[mark])  # told, though nobody acknowledged
        pair.kill(primary)
    heir = pair.primary()
    with Listener(pair.ports[heir], "slow", present=True) as listener, pair.client(heir) as publisher:
        publisher.connect("publisher")
        for payload, mark in sent:
            assert publish_all(publisher, "strict/1", [payload], props=[mark]) == [payload]
        listener.await_all(payload for payload, _ in sent)
        listener.settle()
        assert listener.came == [payload for payload, _ in sent]
        with Listener(pair.ports[heir], "late", present=True) as late:
            for payload, mark in done:
                assert publish_all(publisher, "strict/2", [payload], props=[mark]) == [payload]
            late.settle()
            assert late.came == []


def test_what_a_session_acknowledged_before_does_not_come_again(pair: Plant) -> None:
    """failover.md: "What a session has acknowledged goes to heir and journal within `marks_lag` (20 ms):
    after a crash it gets again at most what it acknowledged within that. This holds also while another
    session is away, for which brokers keep the same messages."

    One session stays away, so the messages stay with the brokers; through two failovers everybody else's
    completed messages do not come again. More messages than a window, a piece or a slice holds.
    """
    away, came = f"away-{time.time_ns()}", []
    taken: list[bytes] = []
    primary = pair.primary()
    leave_session(pair.ports[primary], away, "free/#")
    leave_session(pair.ports[primary], "moves", "free/#")
    for turn in range(3):
        primary = pair.primary()
        with Listener(pair.ports[primary], "moves", present=True) as listener:
            with pair.client(primary) as publisher:
                publisher.connect("publisher")
                taken += publish_all(publisher, "free/1", numbers(turn * 3000, turn * 3000 + 3000))
            listener.await_all(set(taken) - set(came))
            time.sleep(REPEATS_S)  # marks of all but the last moment have gone
            came += listener.came
            if turn < 2:
                pair.kill(primary)
                pair.primary()
                pair.start(primary)
                pair.await_protected()
    assert set(came) == set(taken)
    assert len(came) - len(set(came)) <= REPEATS_MAX
    assert set(come_back(pair.ports[pair.primary()], away, taken)) == set(taken)


def test_a_qos_2_message_comes_once_through_several_failovers(pair: Plant) -> None:
    """failover.md: "Nothing is lost, and no subscriber of QoS 2 gets it twice."

    With a session that stays away all the time, through three failovers.
    """
    primary = pair.primary()
    leave_session(pair.ports[primary], "away", "twice/#", qos=2)
    leave_session(pair.ports[primary], "moves", "twice/#", qos=2)
    taken: list[bytes] = []
    came: list[bytes] = []
    for turn in range(4):
        primary = pair.primary()
        with Listener(pair.ports[primary], "moves", present=True) as listener:
            with pair.client(primary) as publisher:
                publisher.connect("publisher")
                taken += publish_all(publisher, "twice/1", numbers(turn * 700, turn * 700 + 700), qos=2)
            listener.await_all(set(taken) - set(came))
            listener.settle()
            came += listener.came
            if turn < 3:
                pair.kill(primary)
                pair.primary()
                pair.start(primary)
                pair.await_protected()
    assert sorted(came, key=int) == sorted(taken, key=int)
    away = come_back(pair.ports[pair.primary()], "away", taken)
    assert sorted(away, key=int) == sorted(taken, key=int)


def test_a_subscriber_that_has_acknowledged_is_not_overrun_by_repeats(pair: Plant) -> None:
    """failover.md: "after a crash it gets again at most what it acknowledged within that."

    A session that had 9,000 messages, of a queue of 10,000, and was gone at the crash takes 1,500 more.
    """
    primary = pair.primary()
    leave_session(pair.ports[primary], "away", "strict/#")
    with Listener(pair.ports[primary], "had", "strict/#") as had, pair.client(primary) as publisher:
        publisher.connect("publisher")
        before = publish_all(publisher, "strict/1", numbers(0, 9000))
        had.await_all(before)
        time.sleep(REPEATS_S)
    pair.kill(primary)
    heir = pair.primary()
    with Peer(pair.ports[heir]) as away:  # it has its own queue, which is not what is tried here
        away.connect("away", clean=True)
    with pair.client(heir) as publisher:
        publisher.connect("publisher")
        after = publish_all(publisher, "strict/1", numbers(9000, 10_500))
    came = come_back(pair.ports[heir], "had", after)
    assert len(set(came) & set(before)) <= REPEATS_MAX


def test_what_is_acknowledged_to_a_primary_that_stands_still_comes_again(pair: Plant) -> None:
    """failover.md: "A primary that stands still hears nothing of what is acknowledged to it from then on:
    what was on its way to a session of QoS 1 at that moment, in sockets too, comes again from the heir,
    however much that is."

    Five times as many as a crash may repeat.
    """
    primary = pair.primary()
    with pair.client(primary) as subscriber, pair.client(primary) as publisher:
        subscriber.connect("had", **FOREVER)
        subscriber.subscribe(("free/#", 1))
        publisher.connect("publisher")
        taken = publish_all(publisher, "free/1", numbers(0, 5 * REPEATS_MAX))
        pair.stop(primary)
        had = subscriber.receive_payloads(5 * REPEATS_MAX)
        assert had == taken
        heir = pair.other(primary)
        pair.await_serving(heir, 10.0)
    assert come_back(pair.ports[heir], "had", taken) == taken


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_restart_with_a_journal_repeats_nothing_that_was_completed(
    start_broker: StartBroker, tmp_path, how: str, qos: int
) -> None:
    """failover.md: "What a session has acknowledged goes to heir and journal within `marks_lag` (20 ms):
    after a crash it gets again at most what it acknowledged within that."

    A broker alone with a journal, and a session that is away.
    """
    options = ("--contracts", str(write_contracts(tmp_path)), "--data", str(tmp_path / "data"))
    first = start_broker(*options)
    leave_session(first.port, "away", "kept/#", qos=qos)
    with Listener(first.port, "had", "kept/#", qos=qos) as had, Peer(first.port) as publisher:
        publisher.connect("publisher")
        taken = publish_all(publisher, "kept/1", numbers(0, 1200), qos=qos)
        had.await_all(taken)
        had.settle()
    end(first, how)
    second = start_broker(*options)
    again = come_back(second.port, "had", [])
    assert len(again) <= (REPEATS_MAX if qos == 1 and how == "SIGKILL" else 0)
    assert set(come_back(second.port, "away", taken)) == set(taken)


def end(broker: BrokerProcess, how: str) -> None:
    if how == "SIGKILL":
        broker.kill()
    else:
        assert broker.terminate() == 0


# Subscriptions and depth


def test_a_snapshot_of_any_size_is_whole(start: StartPlant) -> None:
    """failover.md: "it joins again: by increments if the last 10,000 (`state_log_max`) cover the gap, else
    by a snapshot. Either way nothing is missing then."

    Subscriptions, retained messages and sessions, of more than one piece each.
    """
    plant = start()
    primary = plant.primary()
    backup = plant.other(primary)
    plant.kill(backup)
    plant.await_event(primary, "event=unprotected")
    change_state(plant.ports[primary], STATE_LOG_MAX + 500)
    sessions = [f"session-{number}" for number in range(401)]
    with plant.client(primary) as client:
        client.connect("many", **FOREVER)
        for part in range(0, 1001, 91):
            client.subscribe(*[(f"many/{number}", 1) for number in range(part, min(part + 91, 1001))])
    for client_id in sessions:
        leave_session(plant.ports[primary], client_id)
    with plant.client(primary) as publisher:
        publisher.connect("publisher")
        for number in range(603):
            publisher.send(
                wire.publish(f"retained/{number}", b"%d" % number, qos=1, pid=number + 1, retain=True)
            )
        for _ in range(603):
            assert publisher.expect(Type.PUBACK).reason in TAKEN
    plant.start(backup)
    plant.await_protected()
    plant.kill(primary)
    assert plant.primary() == backup
    port = plant.ports[backup]
    with Listener(port, "reads", "retained/#") as reader:
        reader.await_all(numbers(0, 603), 5.0)
    with Listener(port, "many", present=True) as many, plant.client(backup) as publisher:
        publisher.connect("publisher")
        for number in range(1001):
            publisher.send(wire.publish(f"many/{number}", b"%d" % number))
        many.await_all(numbers(0, 1001), 5.0)
    for client_id in sessions:
        leave = Listener(port, client_id, present=True)
        leave.drop()


def change_state(port: int, count: int) -> None:
    """So many increments, of a session that ends."""
    with Peer(port) as client:
        client.connect("busy")
        filters = [f"busy/{number}" for number in range(200)]
        done = 0
        while done < count:
            client.subscribe(*filters)
            client.unsubscribe(*filters)
            done += 2 * len(filters)


def test_depth_means_those_who_would_take_over_next(start: StartPlant) -> None:
    """failover.md: "Depth d means that the d − 1 members that would take over next have it."
    failover.md: "The subscription is there."

    In a group of four the way to the first heir is slow; whoever serves next has the subscription.
    """
    plant = start(size=4, severed="b", more='heartbeat = "20ms"\nsilence = "2s"\njoin_wait = "1s"\n')
    primary = plant.primary()
    assert primary == "a"
    wait_until(lambda: heirs(plant, primary) == 3, "three heirs", 20.0)
    (first, *_) = reads(plant.ports[primary], "$SYS/broker/group/heirs").split(",")
    if first != "b":
        pytest.skip(f"the first heir is {first}")
    for relay in plant.links.values():
        relay.delay(400)
    with plant.client(primary) as client:
        client.connect("deep", **FOREVER)
        began = time.monotonic()
        assert client.subscribe(("free/#", 1), props=[DEPTH]).reasons == [1]
        assert time.monotonic() - began > 0.3, "granted before the first heir could know"
        plant.kill(primary)
    for relay in plant.links.values():
        relay.delay(0)
    now = plant.primary()
    with Listener(plant.ports[now], "deep", present=True) as listener, plant.client(now) as publisher:
        publisher.connect("publisher")
        publish_all(publisher, "free/1", [b"deep"])
        listener.await_all([b"deep"], 3.0)


def heirs(plant: Plant, primary: str) -> int:
    return len(
        [name for name in reads(plant.ports[primary], "$SYS/broker/group/heirs").split(",") if len(name) == 1]
    )


def test_a_depth_that_cannot_be_met_is_refused(pair: Plant) -> None:
    """failover.md: "A depth that a client asked for and that cannot be met is refused, and the subscription
    undone."
    """
    primary = pair.primary()
    with Listener(pair.ports[primary], "asks") as listener:
        pass
    with pair.client(primary) as client, pair.client(primary) as publisher:
        client.connect("asks", **FOREVER)
        refused = client.subscribe(("free/#", 1), props=[(P.USER, ("hf-depth", "3"))])
        assert refused.reasons == [0x97]
        assert "2" in str(refused.prop(P.REASON_STRING))
        publisher.connect("publisher")
        publish_all(publisher, "free/1", [b"not for it"])
        client.expect_quiet()
    assert listener.came == []


def test_a_subscribe_that_asks_for_no_depth_is_never_refused_for_a_lost_backup(pair: Plant) -> None:
    """failover.md: "A SUBSCRIBE that asks for no depth is never refused because a backup is lost
    meanwhile."
    failover.md: "Who asks for none gets the group's (2 unless configured), or as many as there are."

    The backup falls silent while SUBSCRIBE waits for it; and its link closes while it waits.
    """
    primary = pair.primary()
    backup = pair.other(primary)
    with pair.client(primary) as client:
        client.connect("plain", **FOREVER)
        pair.stop(backup)
        assert client.subscribe(("free/1", 1), ("free/2", 1)).reasons == [1, 1]
        pair.resume(backup)
        pair.await_protected()
        pair.stop(backup)
        client.send(wire.subscribe(77, ("free/3", 1)))
        pair.kill(backup)
        assert list(client.expect(Type.SUBACK).reasons) == [1]


def test_a_depth_of_two_is_met_by_the_next_heir(start: StartPlant) -> None:
    """failover.md: "Right after an heir died the next one counts, as soon as it has the copies."

    Three members, the first heir killed, and at once SUBSCRIBE at depth 2; what is said of depth 3 is true.
    """
    plant = start(size=3)
    primary = plant.primary()
    wait_until(lambda: heirs(plant, primary) == 2, "two heirs", 20.0)
    first = reads(plant.ports[primary], "$SYS/broker/group/heirs").split(",")[0]
    with plant.client(primary) as client:
        client.connect("deep", **FOREVER)
        plant.kill(first)
        answer = client.subscribe(("free/1", 1), props=[DEPTH])
        assert answer.reasons == [1], answer.prop(P.REASON_STRING)
        refused = client.subscribe(("free/2", 1), props=[(P.USER, ("hf-depth", "3"))])
        assert refused.reasons == [0x97]
        assert "2 members" in str(refused.prop(P.REASON_STRING))


def test_a_subscribe_takes_effect_when_it_is_read(pair: Plant) -> None:
    """failover.md: "A SUBSCRIBE takes effect when it is read: what the broker reads after it, on whatever
    connection, comes."

    A hundred times on one connection, and at once PUBLISH on another.
    """
    port = pair.ports[pair.primary()]
    with Listener(port, "subscriber") as subscriber, Peer(port) as publisher:
        publisher.connect("publisher")
        for number in range(100):
            subscriber.peer.send(wire.subscribe(number + 1, (f"instant/{number}", 0)))
            publisher.publish(f"instant/{number}", b"%d" % number, qos=1)
        subscriber.await_all(numbers(0, 100), 3.0)
