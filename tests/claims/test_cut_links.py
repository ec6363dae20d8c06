"""docs/failover.md, "When only the link is cut": two members that live and cannot hear each other.

"Settled" is longer than a member waits for others, than it waits for an arbiter, and than both together.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient

from conformance import wire
from conformance.peer import Peer
from conformance.wire import P, Type
from support.brokers import START_S_MAX, wait_until
from support.relay import RelayProcess
from support.zookeeper import ZooKeeperProcess

from .conftest import StartPlant
from .plant import (
    FOREVER,
    QUICK,
    TAKEN,
    Listener,
    Plant,
    ask_connect,
    come_back,
    leave_session,
    never,
    numbers,
    publish_all,
    reads,
    run_holdfast,
)

SETTLED_S = 4.0


def publish_without_waiting(peer: Peer, topic: str, payloads: list[bytes]) -> None:
    for pid, payload in enumerate(payloads, start=1):
        peer.send(wire.publish(topic, payload, qos=1, pid=pid))


def acknowledged(peer: Peer, payloads: list[bytes], seconds: float) -> set[bytes]:
    """What a publisher is told within so long."""
    found: set[bytes] = set()
    deadline = time.monotonic() + seconds
    while len(found) < len(payloads) and (left := deadline - time.monotonic()) > 0:
        try:
            answer = peer.expect_any(left)
        except (TimeoutError, AssertionError):
            break
        if answer.type is Type.PUBACK and answer.reason in TAKEN:
            assert answer.pid is not None
            found.add(payloads[answer.pid - 1])
        elif answer.type is Type.DISCONNECT:
            break
    return found


# Without ZooKeeper


def test_without_zookeeper_the_heir_wins(start: StartPlant) -> None:
    """failover.md: "**Without ZooKeeper the heir wins.** It cannot tell a cut link from a dead primary, so
    it takes over, in a higher view. For a while both serve, in different views."
    failover.md: "So clients are the witnesses: the old primary keeps only those that cannot reach the heir,
    until one client or the link tells it."
    failover.md: "What the old primary acknowledged meanwhile, with nobody to copy it to, its subscribers
    were offered; subscribers on the other side of the cut do not get it."
    deploying.md: "Without it a pair works too, but two members that cannot see each other both serve until
    they do: what was published to the one that steps down then is lost to those who moved."
    """
    plant = start(relayed=True)
    primary = plant.primary()
    heir = plant.other(primary)
    view = int(reads(plant.ports[primary], "$SYS/broker/group/view"))
    leave_session(plant.ports[primary], "moves", "free/#")
    with Listener(plant.ports[primary], "stays", "free/#") as stays, plant.client(primary) as publisher:
        plant.cut()
        wait_until(lambda: len(plant.serving()) == 2, "both serving", START_S_MAX)
        assert int(reads(plant.ports[heir], "$SYS/broker/group/view")) > view
        publisher.connect("publisher")
        taken = publish_all(publisher, "free/1", numbers(0, 20))
        stays.await_all(taken)
        assert come_back(plant.ports[heir], "moves", []) == []
        plant.heal()
        goodbye = stays.await_ended()
    assert goodbye is not None
    assert (goodbye.reason, goodbye.prop(P.SERVER_REFERENCE)) == (0x9D, plant.address(heir))
    plant.await_protected()
    assert plant.primary() == heir
    assert come_back(plant.ports[heir], "moves", []) == []


def test_a_client_that_leaves_for_a_higher_view_is_believed(start: StartPlant) -> None:
    """failover.md: "Every client that sees both goes to the higher view and never back, and tells the old
    primary why it leaves; at that the old primary steps down."

    The library is judged in tests/client; here a plain client says the same words.
    """
    plant = start(relayed=True)
    primary = plant.primary()
    heir = plant.other(primary)
    plant.cut()
    wait_until(lambda: len(plant.serving()) == 2, "both serving", START_S_MAX)
    higher = int(reads(plant.ports[heir], "$SYS/broker/group/view"))
    with plant.client(primary) as client:
        client.connect("witness", props=[(P.USER, ("hf-view", "0"))])
        client.send(wire.disconnect(0, [(P.USER, ("hf-view", str(higher)))]))
    wait_until(lambda: ask_connect(plant.ports[primary]).reason == 0x9C, "stepping down", 5.0)


def test_a_primary_alone_tells_publishers_after_a_silence(pair: Plant) -> None:
    """failover.md: "If it fell silent instead of closing its link, they are told one `silence` after the
    next word of any client or member, at most a second later"
    failover.md: "A backup that is silent is dropped after `silence`."
    """
    primary = pair.primary()
    leave_session(pair.ports[primary], "away", "free/#")
    with pair.client(primary) as publisher:
        publisher.connect("publisher")
        pair.stop(pair.other(primary))
        began = time.monotonic()
        taken = publish_all(publisher, "free/1", numbers(0, 50))
        assert len(taken) == 50
        assert 0.3 < time.monotonic() - began < 0.5 + 1.0 + 3.0
    assert "event=unprotected" in pair.lines(primary, "protected", "unprotected")[-1]
    assert set(come_back(pair.ports[primary], "away", taken)) == set(taken)


def test_an_isolated_primary_of_four_acknowledges_nothing_that_is_lost(start: StartPlant) -> None:
    """failover.md: "No heir counts that was not heard for `silence`."

    The primary of a group of four is cut off from all others, and hears its publisher still, which wants
    L = 0. What it acknowledges in the time that it has to doubt in is at those who serve then.
    """
    plant = start(size=4, severed="a", more='heartbeat = "20ms"\nsilence = "1s"\njoin_wait = "1s"\n')
    assert plant.primary() == "a"
    wait_until(
        lambda: reads(plant.ports["a"], "$SYS/broker/group/heirs").count(",") == 2, "heirs", START_S_MAX
    )
    leave_session(plant.ports["a"], "away", "strict/#")
    with plant.client("a") as publisher:
        publisher.connect("publisher")
        plant.sever()
        payloads = numbers(0, 200)
        publish_without_waiting(publisher, "strict/1", payloads)
        told = acknowledged(publisher, payloads, 1.3)  # silence, and a part of another
        wait_until(lambda: any(plant.lines(name, "serving") for name in "bcd"), "a successor", START_S_MAX)
        plant.mend()
        wait_until(lambda: ask_connect(plant.ports["a"]).reason == 0x9C, "stepping down", START_S_MAX)
    now = plant.primary()
    assert now != "a"
    come_back(plant.ports[now], "away", told)


# With ZooKeeper


class Arbitrated:
    """A pair whose members reach ZooKeeper each by a way of its own."""

    def __init__(
        self,
        start: StartPlant,
        stack: ExitStack,
        zookeeper: ZooKeeperProcess,
        more: str = "",
        **options: object,
    ):
        self.ways = {name: stack.enter_context(RelayProcess(zookeeper.port)) for name in "ab"}
        self.plant = start(relayed=True, protected=False, begin="", more=QUICK + more, **options)
        for name, way in self.ways.items():
            self.plant.more_of[name] = f'zookeeper = "127.0.0.1:{way.port}"\n'
        for name in "ab":
            self.plant.start(name)
        self.plant.await_protected()
        self.primary = self.plant.primary()
        self.heir = self.plant.other(self.primary)

    @property
    def port(self) -> int:
        return self.plant.ports[self.primary]

    @property
    def heir_port(self) -> int:
        return self.plant.ports[self.heir]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def stored(zookeeper: ZooKeeperProcess) -> str:
    client = KazooClient(zookeeper.hosts)
    client.start(10)
    try:
        found, _ = client.get("/holdfast/plant/view")
        return str(found.decode())
    finally:
        client.stop()
        client.close()


def test_with_zookeeper_every_view_is_asked_for(
    start: StartPlant, stack: ExitStack, zookeeper: ZooKeeperProcess
) -> None:
    """failover.md: "**With ZooKeeper every view is asked for first.** A member claims the number of a view
    before it opens it, also of one that adds an heir, by compare-and-set on one node,
    `/holdfast/GROUP/view`, which says the number, who has it and its heirs."

    After each change what is stored is what a client is told.
    """
    there = Arbitrated(start, stack, zookeeper)

    def agrees() -> bool:
        number = reads(there.port, "$SYS/broker/group/view")
        heirs = reads(there.port, "$SYS/broker/group/heirs")
        now = stored(zookeeper)
        names = set(re.findall(r"\b[ab]\b", now))
        wanted = {there.primary} | ({heirs} if heirs in "ab" else set())
        return number == now.split("/")[0] and names == wanted

    wait_until(agrees, "the view with an heir", START_S_MAX)
    there.plant.kill(there.heir)
    there.plant.await_event(there.primary, "event=unprotected")
    wait_until(agrees, "the view without", START_S_MAX)
    there.plant.start(there.heir)
    there.plant.await_protected()
    wait_until(agrees, "the view with an heir again", START_S_MAX)


def test_when_the_link_is_cut_one_serves_and_nothing_acknowledged_is_lost(
    start: StartPlant, stack: ExitStack, zookeeper: ZooKeeperProcess
) -> None:
    """failover.md: "A primary that loses its heir claims the next number too. Until it is answered it
    serves, but nobody hears that a message or a subscription is safe which only this broker has."
    failover.md: "Who loses steps down or looks for a primary: its clients get 0x9D and the address of the
    one that serves."
    README.md: "`zookeeper = "host:port"` in the group file makes ZooKeeper decide who serves when only the
    link between two brokers is cut."
    """
    there = Arbitrated(start, stack, zookeeper)
    leave_session(there.port, "away", "free/#")
    with there.plant.client(there.primary) as publisher:
        publisher.connect("publisher", **FOREVER)
        there.plant.cut()
        payloads = numbers(0, 300)
        publish_without_waiting(publisher, "free/1", payloads)
        told = acknowledged(publisher, payloads, SETTLED_S)
    served = set[tuple[str, ...]]()
    never(lambda: served.add(tuple(there.plant.serving())) or False, 1.5)
    assert len(served) == 1
    ((now,),) = served
    come_back(there.plant.ports[now], "away", told)


def test_who_loses_its_claim_sends_its_clients_on(
    start: StartPlant, stack: ExitStack, zookeeper: ZooKeeperProcess
) -> None:
    """failover.md: "Who loses steps down or looks for a primary: its clients get 0x9D and the address of
    the one that serves."

    The way of the old primary to ZooKeeper is slow, so it is the heir that wins.
    """
    there = Arbitrated(start, stack, zookeeper)
    there.ways[there.primary].delay(200)
    with Listener(there.port, "moves", "free/#") as listener:
        there.plant.cut()
        there.plant.await_serving(there.heir, START_S_MAX)
        goodbye = listener.await_ended()
    assert goodbye is not None
    assert goodbye.reason == 0x9D
    assert goodbye.prop(P.SERVER_REFERENCE) == there.plant.address(there.heir)
    refused = ask_connect(there.port)
    assert (refused.reason, refused.prop(P.SERVER_REFERENCE)) == (0x9C, there.plant.address(there.heir))


def test_a_primary_cut_off_from_heir_and_zookeeper_acknowledges_nothing_that_only_it_has(
    start: StartPlant, stack: ExitStack, zookeeper: ZooKeeperProcess
) -> None:
    """failover.md: "What only it has it acknowledges when ZooKeeper has answered, however long that takes."
    failover.md: "its `holding` is true while acknowledgements wait."

    The heir reaches ZooKeeper and serves. Judged at a subscriber that was away and comes to the heir.
    """
    there = Arbitrated(start, stack, zookeeper, http=True)
    leave_session(there.port, "away", "free/#")
    with there.plant.client(there.primary) as publisher, Listener(there.port, "here", "free/#"):
        publisher.connect("publisher", **FOREVER)
        before = publish_all(publisher, "free/1", numbers(0, 100))
        there.ways[there.primary].cut()
        there.plant.cut()
        payloads = numbers(100, 400)
        publish_without_waiting(publisher, "free/1", payloads)
        told = acknowledged(publisher, payloads, SETTLED_S)
        shown = run_holdfast("status", "--json", f"http://127.0.0.1:{there.plant.http[there.primary]}").stdout
        assert re.search(r'"holding": ?true', shown), shown
        assert re.search(r'"unarbitrated": ?"wait"', shown), shown
    assert there.plant.lines(there.primary, "not arbitrated")
    wait_until(lambda: ask_connect(there.heir_port).reason == 0, "the heir serving", START_S_MAX)
    come_back(there.heir_port, "away", [*before, *told])
    there.ways[there.primary].heal()
    there.plant.heal()
    there.plant.await_protected()
    assert there.plant.primary() == there.heir


def test_a_group_may_choose_to_go_on_without_zookeeper(
    start: StartPlant, stack: ExitStack, zookeeper: ZooKeeperProcess
) -> None:
    """failover.md: "With `unarbitrated = "go-on"` in the group file it acknowledges after a second: if the
    heir reached ZooKeeper meanwhile, what was acknowledged here is lost to everybody who moves."
    failover.md: "`holdfast status --json` and `$SYS/broker/group/unarbitrated` say which is set;"
    """
    there = Arbitrated(start, stack, zookeeper, 'unarbitrated = "go-on"\n', http=True)
    assert reads(there.port, "$SYS/broker/group/unarbitrated") == "go-on"
    url = f"http://127.0.0.1:{there.plant.http[there.primary]}"
    assert '"go-on"' in run_holdfast("status", "--json", url).stdout
    with there.plant.client(there.primary) as publisher, Listener(there.port, "here", "free/#"):
        publisher.connect("publisher")
        there.ways[there.primary].cut()
        there.plant.cut()
        payloads = numbers(0, 50)
        publish_without_waiting(publisher, "free/1", payloads)
        assert acknowledged(publisher, payloads, SETTLED_S) == set(payloads)


def test_without_an_answer_a_backup_does_not_take_over(
    start: StartPlant, stack: ExitStack, zookeeper: ZooKeeperProcess
) -> None:
    """failover.md: "When ZooKeeper gives no answer a backup does not take over; a primary goes on in its
    view, says `not arbitrated` once, and asks again a second after each try."
    failover.md: "ZooKeeper is on no message's way."
    deploying.md: "While ZooKeeper is away a running pair goes on;"

    With the link up, ZooKeeper stands still and messages are acknowledged; then the primary is killed.
    """
    there = Arbitrated(start, stack, zookeeper)
    zookeeper.pause()
    with there.plant.client(there.primary) as publisher, Listener(there.port, "here", "free/#") as here:
        publisher.connect("publisher")
        here.await_all(publish_all(publisher, "free/1", numbers(0, 100)))
        there.plant.kill(there.primary)
    assert never(lambda: bool(there.plant.lines(there.heir, "serving")), 3.0)
    zookeeper.resume()
    there.plant.await_serving(there.heir, 15.0)


def test_the_survivor_of_a_lost_host_serves_after_a_restart(
    start: StartPlant, stack: ExitStack, zookeeper: ZooKeeperProcess
) -> None:
    """failover.md: "A member that comes back without its state serves only if everybody who had part in the
    stored view is here, or was itself."

    It was itself alone.
    """
    there = Arbitrated(start, stack, zookeeper)
    there.plant.kill(there.primary)
    there.plant.await_serving(there.heir, START_S_MAX)
    wait_until(
        lambda: there.primary not in set(re.findall(r"\b[ab]\b", stored(zookeeper))), "its view", START_S_MAX
    )
    there.plant.kill(there.heir)
    count = len(there.plant.lines(there.heir, "serving"))
    there.plant.start(there.heir)
    there.plant.await_serving(there.heir, 5.0, times=count + 1)
    assert ask_connect(there.heir_port).reason == 0


def test_a_primary_that_comes_back_empty_waits_for_its_heir(
    start: StartPlant, stack: ExitStack, zookeeper: ZooKeeperProcess
) -> None:
    """failover.md: "A member that comes back without its state serves only if everybody who had part in the
    stored view is here, or was itself."

    Its heir sleeps, and has what was acknowledged.
    """
    there = Arbitrated(start, stack, zookeeper)
    leave_session(there.port, "away", "free/#")
    with there.plant.client(there.primary) as publisher:
        publisher.connect("publisher")
        taken = publish_all(publisher, "free/1", numbers(0, 50))
    there.plant.stop(there.heir)
    there.plant.kill(there.primary)
    count = len(there.plant.lines(there.primary, "serving"))
    there.plant.start(there.primary)
    assert never(lambda: len(there.plant.lines(there.primary, "serving")) > count, 3.0), "it serves, empty"
    there.plant.resume(there.heir)
    there.plant.await_serving(there.heir, START_S_MAX)
    come_back(there.heir_port, "away", taken)
