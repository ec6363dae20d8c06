"""What a member remembers of its roles, and what the primary counts of its copies."""

import pytest

from broker.bench import MS, book, contract
from holdfast.broker.terms import Terms
from holdfast.mqtt.packets import Disconnect, Properties, Puback, Publish
from holdfast.replication.group import Switches
from holdfast.replication.roles import Happening, Role
from holdfast.status import CHANGES_MAX
from replication.pair import Group

LEMMA_1_NS = 49_950_000  # N = 1, T = 100 ms, x = 50 ms, 50 us to the backup


def test_a_member_that_takes_over_remembers_when_why_and_how_long() -> None:
    group = Group()
    group.crash("a")
    b = group.members["b"]
    assert b.role is Role.PRIMARY
    (failover,) = b.history.failovers
    assert (failover.primary, failover.why) == ("a", "its connection ended")
    assert failover.x_ns == b.failover_ns
    assert failover.view == b.view.number
    assert b.history.failovers_total == 1
    assert [change.role for change in b.history.changes] == ["syncing", "backup", "claiming", "primary"]


def test_the_first_primary_took_over_from_nobody() -> None:
    group = Group()
    assert list(group.members["a"].history.failovers) == []
    assert group.members["a"].history.changes[-1].role == "primary"


def test_a_primary_that_says_goodbye_is_told_from_one_that_is_lost() -> None:
    group = Group()
    group.members["a"].drain(group.now_ns)
    group.run()
    group.crash("a")
    assert [each.why for each in group.members["b"].history.failovers] == ["it said goodbye"]


def test_silence_is_told_too() -> None:
    group = Group()
    group.stalled.add("a")
    group.pass_time(200 * MS)
    assert [each.why for each in group.members["b"].history.failovers] == ["nothing was heard of it"]


def test_history_is_bounded() -> None:
    group = Group()
    history = group.members["b"].history
    for _ in range(2 * CHANGES_MAX):
        history.changed(group.members["b"], Role.BACKUP, Happening.DROPPED)
    assert len(history.changes) == CHANGES_MAX


def test_copies_are_counted_by_contract() -> None:
    """Copied until the subscriber has it, and then discarded."""
    group = Group(switches=Switches(patience_ns=0))
    subscriber = group.client("s")
    subscriber.subscribe("safe/#", qos=1)
    publisher = group.client("p")
    publisher.publish("safe/a", sequence=1, qos=1)
    group.run()
    safe = group.primary.broker.contracts.contracts[1]
    assert (safe.copied, safe.aborted, safe.pruned) == (1, 0, 0)
    for packet in subscriber.messages():
        subscriber.say(Puback(packet.packet_id))
    group.pass_time(5 * MS)
    assert (safe.copied, safe.pruned) == (1, 1)


def test_a_copy_that_the_dispatch_made_superfluous_is_counted_too() -> None:
    group = Group()
    group.client("s").subscribe("safe/#")
    publisher = group.client("p")
    publisher.publish("safe/a", sequence=1)
    group.pass_time(50 * MS)
    safe = group.primary.broker.contracts.contracts[1]
    assert (safe.copied, safe.aborted, safe.pruned) == (0, 1, 0)


def aged(periodic: bool, *ages_ns: int) -> tuple[Group, Terms]:
    """A group, and messages of such an age that wait for a client which is away."""
    text = contract("safe", "safe/+", "100ms", 0).replace("retention = 2", "retention = 1")
    text = text if periodic else text.replace('period = "100ms"\n', "")
    group = Group(contract_book=book(text), switches=Switches(patience_ns=0))
    away = group.client("away")
    away.subscribe("safe/#", qos=1)
    away.say(Disconnect())
    publisher = group.client("p")
    for number, age_ns in enumerate(ages_ns, start=1):
        stamp = Properties(user=[("hf", f"{group.wall_ns - age_ns}/{number}/p.1")])
        publisher.say(Publish(topic="safe/a", qos=1, packet_id=number, properties=stamp))
    group.pass_time(20 * MS)
    return group, group.primary.broker.contracts.contracts[0]


def test_a_copy_is_late_beyond_lemma_1() -> None:
    _, safe = aged(True, LEMMA_1_NS - 1, LEMMA_1_NS, LEMMA_1_NS + 1, LEMMA_1_NS + 2)
    assert (safe.copied, safe.copied_late) == (4, 2)


def test_without_a_period_no_copy_is_late() -> None:
    _, safe = aged(False, 0, 1000 * MS)
    assert (safe.copied, safe.copied_late) == (2, 0)


@pytest.mark.parametrize("periodic", [True, False])
def test_what_a_new_backup_is_told_is_not_late(periodic: bool) -> None:
    """It lacks what another had, and what came while there was none."""
    group, safe = aged(periodic, 0, 0, 0)
    assert (safe.copied, safe.copied_late) == (3, 0)
    group.crash("b")
    group.pass_time(500 * MS)
    group.client("alone").say(Publish(topic="safe/b", qos=1, packet_id=1))
    group.pass_time(500 * MS)
    group.start("b")
    group.pass_time(1000 * MS)
    assert group.members["b"].role is Role.BACKUP
    assert (safe.copied, safe.copied_late) == (7, 0)


def test_what_the_next_backup_is_sent_again_is_not_late() -> None:
    """The one before had a copy in time, and went before it confirmed that."""
    group = Group(3, switches=Switches(patience_ns=0), silence_ns=500 * MS)
    group.client("s").subscribe("safe/#", qos=1)
    group.pass_time(1500 * MS)
    first, second = group.primary.view.heirs
    publisher = group.client("p")
    safe = group.primary.broker.contracts.contracts[1]
    group.stalled.add(first)
    publisher.publish("safe/a", sequence=1, qos=1)
    group.pass_time(200 * MS)
    assert (safe.copied, safe.copied_late) == (1, 0)
    group.crash(first)
    group.pass_time(1500 * MS)
    assert group.primary.view.heirs == (second,)
    assert (safe.copied, safe.copied_late) == (2, 0)
