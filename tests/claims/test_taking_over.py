"""docs/failover.md, "A member" and "A client": who serves next, how soon, and what it has."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from conformance import wire
from conformance.peer import Peer
from conformance.wire import P, Type, Will
from support.brokers import START_S_MAX, wait_until

from .conftest import StartPlant
from .plant import (
    FOREVER,
    QUICK,
    Listener,
    Plant,
    ask_connect,
    come_back,
    leave_session,
    numbers,
    publish_all,
    reads,
    run_holdfast,
)

SOON_S = 2.0  # a machine with many tests is slow, but not as slow as the silence in these tests
BUSY_S = 3.0  # which it may be slower than it should be
LONG_SILENCE = 'heartbeat = "20ms"\nsilence = "10s"\njoin_wait = "500ms"\n'


@pytest.mark.parametrize("log", ["full", "frozen", "gone"])
def test_an_heir_takes_over_whatever_becomes_of_its_log(start: StartPlant, tmp_path: Path, log: str) -> None:
    """logs.md: "A broker never waits for its log." """
    plant = start(protected=False, begin="a")
    where = plant.directory / "stderr-b"
    reader = None
    if log == "full":
        where.symlink_to("/dev/full")
    else:
        os.mkfifo(where)
        reader = os.open(where, os.O_RDWR)
    plant.start("b")
    plant.await_protected()
    if log == "frozen":
        assert reader is not None
        os.set_blocking(reader, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(reader, b"x" * 4096)
    elif reader is not None:
        os.close(reader)
    taken = []
    with plant.client("a") as publisher:
        publisher.connect("publisher")
        leave_session(plant.ports["a"], "away", "free/#")
        taken = publish_all(publisher, "free/1", numbers(0, 100))
    plant.kill("a")
    wait_until(lambda: ask_connect(plant.ports["b"]).reason == 0, "the heir serves", START_S_MAX)
    assert come_back(plant.ports["b"], "away", taken) == taken
    assert plant.terminate("b") == 0
    if log == "frozen":
        assert reader is not None
        os.close(reader)
    where.unlink()


def test_the_heir_has_what_was_not_delivered_and_the_state_of_the_clients(pair: Plant) -> None:
    """failover.md: "The first backup, the *heir*, holds what the primary may not have delivered; every
    backup holds the state of the clients (sessions, subscriptions, retained messages, wills)."
    README.md: "Subscriptions, sessions, retained messages and what was not delivered are at the second
    broker."
    """
    primary = pair.primary()
    leave_session(pair.ports[primary], "away", "free/#", "more/#")
    with pair.client(primary) as dying, pair.client(primary) as publisher:
        dying.connect("dying", will=Will("last/words", b"gone"), keep_alive=0, **FOREVER)
        publisher.connect("publisher")
        publisher.publish("retained/1", b"stays", qos=1, retain=True)
        taken = publish_all(publisher, "free/1", numbers(0, 2500))
    assert len(taken) == 2500
    heir = pair.other(primary)
    with Listener(pair.ports[primary], "wills", "last/#") as wills:
        dying_is_away = wills.came == []
        assert dying_is_away
    pair.kill(primary)
    assert pair.primary() == heir
    assert reads(pair.ports[heir], "retained/1") == "stays"
    came = come_back(pair.ports[heir], "away", taken)
    assert came == sorted(came, key=int), "in order"
    with pair.client(heir) as publisher:
        publisher.connect("publisher")
        publisher.publish("more/1", b"subscribed", qos=1)
    assert b"subscribed" in come_back(pair.ports[heir], "away", [b"subscribed"])


def test_a_will_is_published_by_the_heir(pair: Plant) -> None:
    """failover.md: "their wills are published after their delay, at least 5 s too."

    The client was connected when its primary died, and does not come back.
    """
    primary = pair.primary()
    with pair.client(primary) as dying:
        dying.connect("dying", will=Will("last/words", b"gone"), **FOREVER)
        leave_session(pair.ports[primary], "wills", "last/#")
        killed = time.monotonic()
        pair.kill(primary)
    heir = pair.primary()
    with Listener(pair.ports[heir], "wills", present=True) as wills:
        wills.await_all([b"gone"])
    assert time.monotonic() - killed > 4.5


def test_who_says_goodbye_as_the_primary_dies_leaves_no_will(pair: Plant) -> None:
    """failover.md: "The library says it to every member, and one that takes over heeds what it was told as a
    standby: it may be that the primary died before it heard it."

    Of two clients whose primary stands still one says goodbye, to both members; the other is lost.
    """
    primary = pair.primary()
    heir = pair.other(primary)
    leave_session(pair.ports[primary], "wills", "last/#")
    with contextlib.ExitStack() as stack:

        def begin(name: str, client_id: str) -> Peer:
            client = stack.enter_context(pair.client(name))
            warm = [(P.USER, ("hf-warm", "1"))] if name == heir else []
            props = [(P.SESSION_EXPIRY, 600), *warm]
            will = Will("last/words", client_id.encode(), qos=1)
            client.connect(client_id, will=will, clean=False, props=props)
            return client

        leaves = [begin(name, "leaves") for name in (primary, heir)]
        for name in (primary, heir):
            begin(name, "is lost")
        pair.stop(primary)
        for client in leaves:
            client.send(wire.disconnect())
        leaves[1].expect_closed()
        pair.kill(primary)
    with Listener(pair.ports[pair.primary()], "wills", present=True) as wills:
        wills.await_all([b"is lost"])
        wills.settle()
        assert wills.came == [b"is lost"]


def test_members_succeed_each_other_in_the_order_in_which_they_became_heirs(start: StartPlant) -> None:
    """failover.md: "That is the order in which they became heirs, not the order of the group file." """
    plant = start(size=3, protected=False)
    wait_until(lambda: "heirs=" in plant.log(plant.primary()), "an heir", START_S_MAX)
    primary = plant.primary()
    first, second = (name for name in plant.names if name != primary)
    wait_until(lambda: len(heirs_of(plant, primary)) == 2, "two heirs", START_S_MAX)
    plant.kill(first)
    wait_until(lambda: heirs_of(plant, primary) == [second], "one heir", START_S_MAX)
    plant.start(first)
    wait_until(lambda: heirs_of(plant, primary) == [second, first], "both again", START_S_MAX)
    plant.kill(primary)
    assert plant.primary() == second


def heirs_of(plant: Plant, primary: str) -> list[str]:
    """As a client that understands groups is told."""
    with plant.client(primary) as client:
        client.connect("asks", props=[(P.USER, ("hf-view", "0"))])
        (told,) = [value for name, value in client.connack.all(P.USER) if name == "hf-view"]
        return [place.partition("=")[0] for place in told.rpartition("/")[2].split(",")][1:]


def test_views_only_grow(pair: Plant) -> None:
    """failover.md: "Views only grow."

    Over three failovers, each with a member that comes back.
    """
    seen = [int(reads(pair.ports[pair.primary()], "$SYS/broker/group/view"))]
    for _ in range(3):
        primary = pair.primary()
        pair.kill(primary)
        pair.primary()
        pair.start(primary)
        pair.await_protected()
        seen.append(int(reads(pair.ports[pair.primary()], "$SYS/broker/group/view")))
    assert seen == sorted(set(seen))


def test_a_member_that_starts_alone_serves(start: StartPlant) -> None:
    """failover.md: "A member that starts looks for the others for `join_wait` (1 s), and serves if nobody
    who answers does."

    With a silence that stands in no file.
    """
    plant = start(protected=False, more="", begin="a")
    plant.await_serving("a", 1.0 + 1.0 + BUSY_S)
    assert ask_connect(plant.ports["a"]).reason == 0


@pytest.mark.parametrize("noticed", [False, True], ids=["at once", "noticed"])
def test_a_backup_that_slept_while_its_primary_died_serves(start: StartPlant, noticed: bool) -> None:
    """failover.md: "A backup that stood still while its primary died serves when it wakes."

    With a silence that stands in no file. The primary dies before it can let go of the backup, or
    after.
    """
    plant = start(more="")
    primary = plant.primary()
    backup = plant.other(primary)
    leave_session(plant.ports[primary], "away", "free/#")
    plant.stop(backup)
    if noticed:
        plant.await_event(primary, "event=unprotected")
    plant.kill(primary)
    time.sleep(1.5)  # asleep for longer than any wait of a member
    plant.resume(backup)
    plant.await_serving(backup, 5.0)
    with Listener(plant.ports[backup], "away", present=True):
        pass


def test_a_link_that_closes_is_found_out_at_once(start: StartPlant) -> None:
    """failover.md: "Its link closes: the heir dials it once more, is refused, and takes over at once." """
    plant = start(more=LONG_SILENCE)
    primary = plant.primary()
    plant.kill(primary)
    wait_until(lambda: ask_connect(plant.ports[plant.other(primary)]).reason == 0, "taking over", SOON_S)


def test_a_primary_that_is_silent_is_taken_for_gone(start: StartPlant) -> None:
    """failover.md: "Or nothing is heard of it for `silence`: the heir takes over then." """
    plant = start()
    primary = plant.primary()
    heir = plant.other(primary)
    began = time.monotonic()
    plant.stop(primary)
    wait_until(lambda: ask_connect(plant.ports[heir]).reason == 0, "taking over", 0.5 + SOON_S)
    assert time.monotonic() - began > 0.4
    assert "for longer" in plant.log(heir) or "silent" in plant.log(heir)


def test_what_a_failover_took_is_said(start: StartPlant) -> None:
    """failover.md: "What it was last time is under `$SYS/broker/group/`, and `holdfast plan FILE --against
    HOST:PORT` says if it is more than the file promises."
    """
    plant = start(more=QUICK)
    primary = plant.primary()
    heir = plant.other(primary)
    plant.stop(primary)  # found out by silence, 500 ms: more than the 50 ms that the file promises
    wait_until(lambda: ask_connect(plant.ports[heir]).reason == 0, "taking over", START_S_MAX)
    measured_us = int(reads(plant.ports[heir], "$SYS/broker/group/failover/last us"))
    assert 400_000 < measured_us < 5_000_000
    done = run_holdfast("plan", str(plant.contracts), "--against", plant.address(heir))
    assert "failover" in done.stdout + done.stderr
    assert done.returncode == 1


def test_a_plain_client_is_sent_to_the_primary(pair: Plant) -> None:
    """failover.md: "At a standby it is refused with 0x9C and the primary's address (MQTT 3: return code
    3)."
    README.md: "A plain MQTT client that asks a standby is sent to the primary (0x9C and its address)."
    """
    primary = pair.primary()
    standby = pair.other(primary)
    refused = ask_connect(pair.ports[standby])
    assert refused.reason == 0x9C
    assert refused.prop(P.SERVER_REFERENCE) == pair.address(primary)
    with Peer(pair.ports[standby], v=wire.V3) as old:
        old.send(wire.connect("old", v=wire.V3))
        assert old.expect(Type.CONNACK).reason == 3


def test_nothing_acknowledged_is_lost(pair: Plant) -> None:
    """failover.md: "Its session is there. It sends again what was not acknowledged: nothing acknowledged is
    lost."
    failover.md: "The same. Nobody was told that it is safe."
    failover.md: "Published with QoS 1 none is lost."
    README.md: "Whatever it published with QoS 1 and got acknowledged is safe."

    Killed in mid-traffic. Judged at a subscriber that was there and moved, and at one that was away.
    """
    primary = pair.primary()
    heir = pair.other(primary)
    leave_session(pair.ports[primary], "away", "free/#")
    listener = Listener(pair.ports[primary], "moves", "free/#")
    with pair.client(primary) as publisher:
        publisher.connect("publisher", **FOREVER)
        window = numbers(0, 900)
        for pid, payload in enumerate(window, start=1):
            publisher.send(wire.publish("free/1", payload, qos=1, pid=pid))
        acknowledged = [publisher.expect(Type.PUBACK).pid for _ in range(300)]
        pair.kill(primary)
        rest = publisher.rest()
        acknowledged += [int.from_bytes(rest[at + 2 : at + 4]) for at in range(0, len(rest) - 3, 4)]
    before = listener.came
    listener.drop()
    assert pair.primary() == heir
    with Listener(pair.ports[heir], "moves", present=True) as moved, pair.client(heir) as publisher:
        publisher.connect("publisher", **FOREVER)
        again = publish_all(
            publisher, "free/1", [window[pid - 1] for pid in range(1, 901) if pid not in acknowledged]
        )
        owed = {window[pid - 1] for pid in acknowledged if pid is not None} | set(again)
        assert owed == set(window)
        moved.await_all(owed - set(before))
    assert owed <= set(come_back(pair.ports[heir], "away", owed))


def test_a_member_that_ends_on_purpose_says_goodbye(start: StartPlant) -> None:
    """failover.md: "A member that ends on purpose (SIGTERM) says goodbye, and its heir takes over without
    waiting for anything. Its clients get DISCONNECT 0x9D and the address of the heir, or 0x8B if there is
    none."
    """
    plant = start(more=LONG_SILENCE)
    primary = plant.primary()
    heir = plant.other(primary)
    with Listener(plant.ports[primary], "moves", "free/#") as listener:
        assert plant.terminate(primary) == 0
        goodbye = listener.await_ended()
    wait_until(lambda: ask_connect(plant.ports[heir]).reason == 0, "taking over", SOON_S)
    assert "said goodbye" in plant.log(heir)
    assert goodbye is not None
    assert goodbye.reason == 0x9D
    assert goodbye.prop(P.SERVER_REFERENCE) == plant.address(heir)
    with Listener(plant.ports[heir], "moves", present=True) as listener:
        assert plant.terminate(heir) == 0
        alone = listener.await_ended()
    assert alone is not None
    assert alone.reason == 0x8B


def test_sessions_that_stay_away_live_on(pair: Plant) -> None:
    """failover.md: "Sessions of clients that do not come back to the new primary live on for their expiry,
    at least 5 s;"

    One whose expiry is a second, and whose primary was killed while it was connected, finds it after three.
    """
    primary = pair.primary()
    short = {"clean": False, "props": [(P.SESSION_EXPIRY, 1)]}
    with pair.client(primary) as client:
        client.connect("short", **short)
        client.subscribe(("free/#", 1))
        pair.kill(primary)
    heir = pair.primary()
    time.sleep(3.0)
    with pair.client(heir) as client:
        assert client.connect("short", **short).session_present


def test_a_primary_that_stood_still_steps_down(pair: Plant) -> None:
    """failover.md: "When it wakes, it hears no client before its heir has said whether it took over. If so
    it steps down: clients get DISCONNECT 0x9D and the new address, and it joins as backup."

    What was written to it while it slept is not acknowledged: it would be lost.
    """
    primary = pair.primary()
    heir = pair.other(primary)
    leave_session(pair.ports[primary], "away", "free/#")
    with pair.client(primary) as publisher:
        publisher.connect("publisher")
        pair.stop(primary)
        wait_until(lambda: ask_connect(pair.ports[heir]).reason == 0, "taking over", START_S_MAX)
        for pid in range(1, 101):
            publisher.send(wire.publish("free/1", b"%d" % pid, qos=1, pid=pid))
        pair.signal(primary, signal.SIGCONT)
        heard = publisher.expect_any()
        assert heard.type is Type.DISCONNECT, "it acknowledged what nobody gets"
        assert heard.reason == 0x9D
        assert heard.prop(P.SERVER_REFERENCE) == pair.address(heir)
    pair.await_protected()
    assert pair.primary() == heir
