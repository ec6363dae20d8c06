"""What a member remembers of its roles, and what the primary counts of its copies."""

from broker.bench import MS
from holdfast.mqtt.packets import Puback
from holdfast.replication.group import Switches
from holdfast.replication.roles import Happening, Role
from holdfast.status import CHANGES_MAX
from replication.pair import Group


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
