"""docs/deploying.md: what happens when files, versions and hosts change under a running pair; and what is
said.
"""

from __future__ import annotations

import time

import pytest

from conformance.peer import Peer
from conformance.wire import P
from support.brokers import START_S_MAX, wait_until
from support.zookeeper import ZooKeeperProcess

from .conftest import StartPlant
from .plant import (
    OTHER_CONTRACTS,
    QUICK,
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


def leave_much(plant: Plant, primary: str, count: int = 150) -> list[bytes]:
    """Sessions, retained and durable messages that were acknowledged now; gives the durable ones."""
    port = plant.ports[primary]
    for number in range(7):
        leave_session(port, f"away-{number}", "kept/#")
    with Peer(port) as publisher:
        publisher.connect("publisher")
        for number in range(count):
            publisher.publish(f"retained/{number}", b"%d" % number, qos=1, retain=True)
        return publish_all(publisher, "kept/1", numbers(0, count))


def check_much(plant: Plant, name: str, taken: list[bytes]) -> None:
    port = plant.ports[name]
    for number in range(7):
        with Listener(port, f"away-{number}", present=True) as listener:
            listener.await_all(taken)
    with Listener(port, "reads", "retained/#") as reader:
        reader.await_all(numbers(0, len(taken)))


@pytest.mark.parametrize(("first", "gap_s"), [("primary", 3.0), ("backup", 0.5)])
def test_contracts_that_are_read_again_keep_the_pair_together(
    start: StartPlant, first: str, gap_s: float
) -> None:
    """deploying.md: "they stay together and go on protecting each other meanwhile, and both say `contracts
    differ` until both have it"
    failover.md: "Two that run already and read their files again stay together: both say `contracts differ`
    until both have the same."

    What is acknowledged between the two reloads, and before, is there when the primary dies after them.
    """
    plant = start(keep=True)
    primary = plant.primary()
    backup = plant.other(primary)
    one, other = (primary, backup) if first == "primary" else (backup, primary)
    plant.contracts.write_text(OTHER_CONTRACTS)
    plant.reload(one)
    plant.await_event(one, "event=reloaded")
    began = time.monotonic()
    for name in (primary, backup):
        plant.await_event(name, 'event="contracts differ"')
    taken = leave_much(plant, primary)
    assert never(lambda: not plant.alive(backup), max(0.0, began + gap_s - time.monotonic()))
    assert reads(plant.ports[primary], "$SYS/broker/group/protected") == "1"
    assert ask_connect(plant.ports[backup]).reason == 0x9C
    plant.reload(other)
    for name in (primary, backup):
        plant.await_event(name, 'event="contracts agree"')
    assert plant.lines(primary, "lost heir", "unprotected") == []
    assert reads(plant.ports[primary], "$SYS/broker/group/protected") == "1"
    plant.kill(primary)
    assert plant.primary() == backup
    check_much(plant, backup, taken)


def test_a_member_that_starts_with_another_file_stays_out(start: StartPlant) -> None:
    """deploying.md: "A member that starts with another contract file, or another version that speaks
    another protocol, is refused: it stays out and does not serve while the one that refused it lives."
    failover.md: "A member that starts with another file is refused, stays out, and does not serve while the
    one that refused it lives; when that one is gone, it serves after `join_wait`."
    """
    plant = start(keep=True)
    primary = plant.primary()
    out = plant.other(primary)
    plant.kill(out)
    plant.await_event(primary, "event=unprotected")
    taken = leave_much(plant, primary, 40)
    plant.contracts.write_text(OTHER_CONTRACTS)
    served = len(plant.lines(out, "serving"))
    plant.start(out)
    plant.await_event(out, 'event="peer refused"')
    assert "the contract files differ" in plant.log(out)
    assert never(lambda: len(plant.lines(out, "serving")) > served, 3.0), "two serve"
    assert ask_connect(plant.ports[primary]).reason == 0
    check_much(plant, primary, taken)
    plant.kill(primary)
    plant.await_serving(out, 5.0, times=served + 1)


def test_a_broken_file_changes_nothing(pair: Plant) -> None:
    """deploying.md: "A file with a mistake changes nothing: `not reloaded` says why." """
    primary = pair.primary()
    pair.contracts.write_text("[[contract]\n")
    pair.reload(primary)
    pair.await_event(primary, 'event="not reloaded"')
    assert reads(pair.ports[primary], "$SYS/broker/group/protected") == "1"
    assert pair.lines(primary, "contracts differ") == []


def test_a_rolling_restart_loses_nothing(start: StartPlant) -> None:
    """deploying.md: "the backup first: `systemctl restart holdfast-broker`, wait until `holdfast status`
    shows it as `backup` again, then the primary"
    deploying.md: "Stopping a primary is no failure: it delivers what waits and says goodbye, and the other
    takes over at once. Its clients are told where: DISCONNECT 0x9D with the address."

    A subscriber that moves when it is told to, and one that is away.
    """
    plant = start(keep=True)
    primary = plant.primary()
    leave_session(plant.ports[primary], "away", "free/#", "kept/#")
    leave_session(plant.ports[primary], "moves", "free/#", "kept/#")
    taken: list[bytes] = []
    came: list[bytes] = []
    at = 0
    for turn in range(4):
        primary = plant.primary()
        who = plant.other(primary) if turn % 2 == 0 else primary
        with (
            Listener(plant.ports[primary], "moves", present=True) as moves,
            plant.client(primary) as publisher,
        ):
            publisher.connect("publisher")
            for topic in ("free/1", "kept/1"):
                taken += publish_all(publisher, topic, numbers(at, at + 600))
                at += 600
            assert plant.terminate(who) == 0
            if who == primary:
                goodbye = moves.await_ended()
                assert goodbye is not None
                assert goodbye.reason == 0x9D
                assert goodbye.prop(P.SERVER_REFERENCE) == plant.address(plant.other(primary))
            else:
                moves.await_all(set(taken) - set(came))
            came += moves.came
        plant.start(who)
        plant.await_protected()
    port = plant.ports[plant.primary()]
    came += come_back(port, "moves", set(taken) - set(came))
    assert set(came) == set(taken)
    assert len(taken) == 4800
    assert set(come_back(port, "away", taken)) == set(taken)


@pytest.mark.parametrize(("arbiter", "keep"), [(False, True), (True, False)], ids=["data", "zookeeper"])
def test_one_host_for_good(
    start: StartPlant, request: pytest.FixtureRequest, arbiter: bool, keep: bool
) -> None:
    """deploying.md: "stop it; the other serves alone, and says `unprotected`. Restarted, it serves again
    after `join_wait`, with what its data directory has."
    """
    more = QUICK
    if arbiter:
        zookeeper: ZooKeeperProcess = request.getfixturevalue("zookeeper")
        more += f'zookeeper = "{zookeeper.hosts}"\n'
    plant = start(keep=keep, more=more)
    gone = plant.primary()
    stays = plant.other(gone)
    leave_session(plant.ports[gone], "away", "kept/#")
    assert plant.terminate(gone) == 0
    plant.await_serving(stays, START_S_MAX)
    with plant.client(stays) as publisher:
        publisher.connect("publisher")
        taken = publish_all(publisher, "kept/1", numbers(0, 100))
    assert (
        plant.lines(stays, "protected", "unprotected")[-1:] == []
        or "unprotected" in plant.lines(stays, "protected", "unprotected")[-1]
    )
    assert reads(plant.ports[stays], "$SYS/broker/group/protected") == "0"
    served = len(plant.lines(stays, "serving"))
    assert plant.terminate(stays) == 0
    plant.start(stays)
    plant.await_serving(stays, 5.0, times=served + 1)
    if keep:
        assert set(come_back(plant.ports[stays], "away", taken)) == set(taken)


def test_status_shows_roles_and_link(start: StartPlant) -> None:
    """deploying.md: "`holdfast status` shows the role of each, the link between them and every contract;
    after a second the first is `primary`, the other `backup`, and the link is `up`."
    """
    plant = start(http=True)
    urls = [f"http://127.0.0.1:{plant.http[name]}" for name in plant.names]
    shown = ""

    def well() -> bool:
        nonlocal shown
        shown = run_holdfast("status", *urls).stdout
        return all(word in shown for word in ("primary", "backup", "up", "kept", "strict"))

    wait_until(well, "a status that shows both", 10.0)
    plant.kill("b")
    wait_until(lambda: run_holdfast("status", *urls).returncode == 2, "the dead one named", 10.0)


# The log


def test_the_last_line_about_protection_is_the_present_state(start: StartPlant) -> None:
    """logs.md: "The last line about a state is the present state"

    The link is reset again and again within a second.
    """
    plant = start(relayed=True)
    primary = plant.primary()
    for _ in range(4):
        count = len(plant.lines(primary, "lost heir"))
        for relay in plant.relays.values():
            relay.close_all()
        wait_until(lambda count=count: len(plant.lines(primary, "lost heir")) > count, "a reset", START_S_MAX)
        plant.await_protected()
    last = plant.lines(primary, "protected", "unprotected")[-1]
    assert "event=protected" in last


def test_protected_is_said_when_it_stays_so(start: StartPlant) -> None:
    """logs.md: "`lost heir` | a member that would have taken over is gone"

    A backup that starts, and starts again: one `protected` each, and `lost heir` for each that was killed,
    no more.
    """
    plant = start()
    primary = plant.primary()
    backup = plant.other(primary)
    for kills in (1, 2, 3):
        plant.kill(backup)
        plant.await_event(primary, "event=unprotected")
        plant.start(backup)
        plant.await_protected()
        assert never(lambda kills=kills: len(plant.lines(primary, "lost heir")) > kills, 0.3)
    assert len(plant.lines(primary, "protected")) == 4
