"""docs/failover.md: what a lost backup, a second heir, and a client at the door of a standby can rely on."""

from __future__ import annotations

import time

from conformance import wire
from conformance.peer import Peer
from conformance.wire import PINGREQ, P, Type
from support.brokers import START_S_MAX, wait_until

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
)

LONG_SILENCE = 'heartbeat = "20ms"\nsilence = "10s"\njoin_wait = "500ms"\n'


def heirs(plant: Plant, primary: str) -> list[str]:
    told = reads(plant.ports[primary], "$SYS/broker/group/heirs").split(",")
    return [name for name in told if name in plant.names]


def test_what_waited_for_a_backup_that_died_waits_no_longer(start: StartPlant) -> None:
    """failover.md: "The primary goes on and says `unprotected`. What waited for the backup waits no longer:
    publishers are told when every subscriber was offered the message."

    Silence is long: only the closed link tells. A subscriber was offered them, and does not acknowledge.
    """
    plant = start(more=LONG_SILENCE)
    primary = plant.primary()
    backup = plant.other(primary)
    with plant.client(primary) as subscriber, plant.client(primary) as publisher:
        subscriber.connect("slow", **FOREVER)
        subscriber.subscribe(("free/#", 1))
        publisher.connect("publisher")
        plant.stop(backup)
        for pid in range(1, 101):
            publisher.send(wire.publish("free/1", b"%d" % pid, qos=1, pid=pid))
        publisher.expect_nothing(0.3)
        plant.kill(backup)
        for _ in range(100):
            assert publisher.expect(Type.PUBACK, 3.0).reason in TAKEN
    plant.await_event(primary, "event=unprotected")


def test_the_next_heir_gets_the_copies(start: StartPlant) -> None:
    """failover.md: "The next heir, if there is one, gets the copies."

    Those that were made before the first heir died, and those after.
    """
    plant = start(size=3)
    primary = plant.primary()
    wait_until(lambda: len(heirs(plant, primary)) == 2, "two heirs", START_S_MAX)
    first, second = heirs(plant, primary)
    leave_session(plant.ports[primary], "away", "free/#")
    with plant.client(primary) as publisher:
        publisher.connect("publisher")
        taken = publish_all(publisher, "free/1", numbers(0, 800))
        plant.kill(first)
        taken += publish_all(publisher, "free/1", numbers(800, 1600))
    wait_until(lambda: heirs(plant, primary) == [second], "the next heir", START_S_MAX)
    plant.kill(primary)
    assert plant.primary() == second
    assert set(come_back(plant.ports[second], "away", taken)) == set(taken)


def test_when_the_heir_dies_while_it_takes_over_the_next_one_serves(start: StartPlant) -> None:
    """failover.md: "The next heir waits for its turn and takes over. The state of clients is there;"
    failover.md: "A later heir leaves those before it twice `silence` each."
    """
    plant = start(size=3)
    primary = plant.primary()
    wait_until(lambda: len(heirs(plant, primary)) == 2, "two heirs", START_S_MAX)
    first, second = heirs(plant, primary)
    leave_session(plant.ports[primary], "away", "free/#")
    plant.stop(first)  # it cannot take over, and is not gone
    plant.kill(primary)
    plant.await_serving(second, 10.0)
    with Listener(plant.ports[second], "away", present=True) as listener, plant.client(second) as publisher:
        publisher.connect("publisher")
        listener.await_all(publish_all(publisher, "free/1", [b"subscribed"]))


def test_a_client_that_waits_at_the_door_is_let_in_with_its_session(pair: Plant) -> None:
    """failover.md: "The heir opens a view, puts every copy that was not discarded into its job queue, by
    deadline, and lets in the clients that wait at its door, with their sessions."
    failover.md: "the others are *warm*: a standby answers CONNECT and PING and keeps whatever else comes
    unread. On promotion a standby says so on every warm connection, which goes on as the client's session,
    without another CONNECT."
    """
    primary = pair.primary()
    heir = pair.other(primary)
    warm = [(P.USER, ("hf-warm", "1")), (P.USER, ("hf-view", "0")), (P.SESSION_EXPIRY, 0xFFFFFFFF)]
    leave_session(pair.ports[primary], "warm", "free/#")
    with pair.client(primary) as publisher:
        publisher.connect("publisher")
        taken = publish_all(publisher, "free/1", numbers(0, 20))
    with Peer(pair.ports[heir]) as client:
        client.connect("warm", clean=False, props=warm)
        client.send(PINGREQ)
        client.expect(Type.PINGRESP)
        client.send(wire.publish("free/1", b"early", qos=1, pid=7))
        client.expect_nothing(0.3)
        pair.kill(primary)
        told = client.expect(Type.PUBLISH)
        assert told.topic == "$SYS/broker/view"
        assert told.payload.decode().split("/")[1] == heir
        came = [client.receive().payload for _ in range(21)]
        assert set(came) == {*taken, b"early"}


def test_a_qos_2_message_is_dispatched_when_the_backup_has_it(start: StartPlant) -> None:
    """failover.md: "A QoS 2 message is dispatched when the backup has it, not before."

    The backup stands still; the message comes when it is known that nobody else delivers it, and once.
    """
    pair = start(more='heartbeat = "20ms"\nsilence = "1.5s"\njoin_wait = "500ms"\n')
    primary = pair.primary()
    backup = pair.other(primary)
    with (
        Listener(pair.ports[primary], "twice", "free/#", qos=2) as listener,
        pair.client(primary) as publisher,
    ):
        publisher.connect("publisher")
        publisher.publish("free/1", b"first", qos=2)
        listener.await_all([b"first"])
        pair.stop(backup)
        publisher.send(wire.publish("free/1", b"second", qos=2, pid=9))
        time.sleep(0.6)  # the silence after which it is given up is 1.5 s
        assert listener.came == [b"first"]
        assert publisher.expect(Type.PUBREC).reason in TAKEN
        listener.await_all([b"second"])
        listener.settle()
        assert listener.came == [b"first", b"second"]


def test_a_publisher_is_told_when_the_message_is_safe(start: StartPlant) -> None:
    """failover.md: "A PUBACK goes out when every subscriber has the message, or the backup has confirmed
    its copy;"

    With a subscriber that does not acknowledge and a backup that stands still nobody is told; then the
    subscriber acknowledges.
    """
    pair = start(more=LONG_SILENCE)
    primary = pair.primary()
    with pair.client(primary) as subscriber, pair.client(primary) as publisher:
        subscriber.connect("slow")
        subscriber.subscribe(("free/#", 1))
        publisher.connect("publisher")
        publisher.publish("free/1", b"copied", qos=1)
        subscriber.receive()
        pair.stop(pair.other(primary))
        publisher.send(wire.publish("free/1", b"held", qos=1, pid=9))
        held = subscriber.receive(auto_ack=False)
        publisher.expect_nothing(0.5)
        assert held.pid is not None
        subscriber.send(wire.ack(Type.PUBACK, held.pid))
        assert publisher.expect(Type.PUBACK, 2.0).reason in TAKEN


def test_a_member_joins_however_much_waits(start: StartPlant) -> None:
    """failover.md: "It is an heir, in a new view, when it has everything."

    More waits than may be on the way to a backup at once: six sessions with 13 MiB each.
    """
    plant = start(begin="a", protected=False)
    plant.await_serving("a", START_S_MAX)
    port = plant.ports["a"]
    for number in range(6):
        leave_session(port, f"away-{number}", f"free/{number}")
    with Peer(port) as publisher:
        publisher.connect("publisher")
        for number in range(6):
            publish_all(publisher, f"free/{number}", (bytes(1_000_000) + b"%d" % each for each in range(13)))
    plant.start("b")
    wait_until(lambda: bool(plant.lines("a", "protected")), "protected", 15.0)
    plant.kill("a")
    port = plant.ports[plant.primary()]
    for number in range(6):
        with Listener(port, f"away-{number}", present=True) as listener:
            listener.await_all(bytes(1_000_000) + b"%d" % each for each in range(13))
