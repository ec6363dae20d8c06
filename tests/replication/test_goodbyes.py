"""A client that said DISCONNECT around a failover leaves no will, if whoever serves next was told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.replication.pair import MS, Client, Group

from holdfast.broker.clients import NEVER_S
from holdfast.mqtt.conventions import VIEW_PROPERTY
from holdfast.mqtt.packets import Disconnect, Properties, Publish, Will
from holdfast.mqtt.reasons import Reason

S = 1_000 * MS
WILL = Will("will/1", b"gone", qos=1)
LEAVES = Disconnect(properties=Properties(session_expiry=0))
STAYS = {
    "with its will": Disconnect(Reason.DISCONNECT_WITH_WILL),
    "for elsewhere": Disconnect(properties=Properties(user=[(VIEW_PROPERTY, "4")])),
}


def lost(group: Group, client: Client) -> None:
    group.members[client.member].lost(client.connection, group.now_ns)


def wills(group: Group) -> list[str]:
    """The wills that come within ten seconds."""
    watcher = group.client("watches")
    watcher.subscribe("will/#", qos=1)
    group.pass_time(10 * S, 10 * MS)
    return [message.topic for message in watcher.messages() if message.topic.startswith("will/")]


def both(group: Group) -> tuple[Client, Client]:
    """A client at the primary, and kept by the first heir."""
    client, kept = group.client("leaves", will=WILL), group.client("leaves", "b", warm=True, will=WILL)
    group.pass_time(10 * MS)
    return client, kept


def unread_by_the_primary(group: Group, kept: Client, words: Disconnect) -> None:
    """It says goodbye to both; the primary is killed before it hears it."""
    kept.say(words)
    lost(group, kept)
    group.crash("a")


def between_two_primaries(group: Group, kept: Client, words: Disconnect) -> None:
    """The primary is gone, so it writes to the heir, which does not serve yet; then it leaves."""
    group.stalled.add("a")
    kept.send(Publish("fast/1", b"x"), words)
    lost(group, kept)
    group.pass_time(10 * MS)
    group.stalled.clear()
    group.crash("a")


def as_it_takes_over(group: Group, kept: Client, words: Disconnect) -> None:
    """The same, and its connection ends when the heir serves already."""
    kept.send(Publish("fast/1", b"x"))
    group.crash("a")
    group.pass_time(100 * MS)
    assert group.primary.name == "b"
    kept.send(words)
    lost(group, kept)


Moment = Callable[[Group, Client, Disconnect], None]


@pytest.mark.parametrize("leave", [unread_by_the_primary, between_two_primaries, as_it_takes_over])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("expiry_s", [0, None])
def test_who_leaves_around_a_failover_leaves_no_will(expiry_s: int | None, size: int, leave: Moment) -> None:
    group = Group(size)
    _, kept = both(group)
    leave(group, kept, Disconnect(properties=Properties(session_expiry=expiry_s)))
    group.pass_time(100 * MS)
    assert wills(group) == []
    assert ("leaves" in group.primary.broker.clients.sessions) == (expiry_s is None)
    if size == 3:
        group.pass_time(100 * MS)
        group.crash("b")
        group.pass_time(100 * MS)
        assert ("leaves" in group.primary.broker.clients.sessions) == (expiry_s is None)
        assert wills(group) == []


@pytest.mark.parametrize("leave", [unread_by_the_primary, between_two_primaries])
@pytest.mark.parametrize("words", list(STAYS.values()), ids=list(STAYS))
def test_who_does_not_leave_for_good_has_its_will(words: Disconnect, leave: Moment) -> None:
    group = Group()
    _, kept = both(group)
    leave(group, kept, words)
    assert wills(group) == ["will/1"]


@pytest.mark.parametrize("again", ["at the standby", "at the primary", "its connection there is lost"])
def test_who_is_heard_of_after_its_goodbye_to_a_standby_has_its_will(again: str) -> None:
    group = Group()
    client, kept = both(group)
    kept.say(LEAVES)
    lost(group, kept)
    match again:
        case "at the standby":
            lost(group, group.client("leaves", "b", warm=True, will=WILL))
        case "at the primary":
            group.client("leaves", will=Will("will/2", b"gone"))
        case _:
            lost(group, client)
            group.pass_time(10 * MS)  # it has published the will
    group.pass_time(10 * MS)
    group.crash("a")
    group.pass_time(100 * MS)
    came = {"at the standby": ["will/1"], "at the primary": ["will/2"], "its connection there is lost": []}
    assert wills(group) == came[again]


def test_a_goodbye_of_a_session_that_is_not_there_is_not_kept() -> None:
    group = Group()
    kept = group.client("unknown", "b", warm=True, will=WILL)
    kept.say(LEAVES)
    group.crash("a")
    group.pass_time(100 * MS)
    assert wills(group) == []


def test_a_session_that_the_primary_ended_after_both_were_told_is_over() -> None:
    group = Group()
    client = group.client("leaves", expiry_s=0)
    kept = group.client("leaves", "b", warm=True, expiry_s=0)
    group.pass_time(10 * MS)
    kept.say(LEAVES)
    client.say(LEAVES)
    group.pass_time(10 * MS)
    group.crash("a")
    group.pass_time(100 * MS)
    assert group.primary.name == "b"
    assert group.primary.broker.clients.sessions == {}


@pytest.mark.parametrize("connected_s", [0, 6, 600])
@pytest.mark.parametrize("left_s", [6, NEVER_S])
def test_a_session_lasts_as_long_as_its_goodbye_to_a_standby_says(connected_s: int, left_s: int) -> None:
    group = Group()
    group.client("leaves", expiry_s=connected_s or NEVER_S)
    kept = group.client("leaves", "b", warm=True, expiry_s=connected_s or NEVER_S)
    group.pass_time(10 * MS)
    kept.say(Disconnect(properties=Properties(session_expiry=left_s)))
    lost(group, kept)
    group.crash("a")
    group.pass_time(5 * S, 10 * MS)
    assert "leaves" in group.primary.broker.clients.sessions
    group.pass_time(5 * S, 10 * MS)
    assert ("leaves" in group.primary.broker.clients.sessions) == (left_s == NEVER_S)


def test_who_says_goodbye_while_its_primary_ends_leaves_no_will() -> None:
    group = Group()
    client = group.client("leaves", will=WILL)
    group.pass_time(10 * MS)
    client.send(Disconnect())
    group.members["a"].drain(group.now_ns)
    group.run()
    group.pass_time(100 * MS)
    group.crash("a")
    group.pass_time(100 * MS)
    assert wills(group) == []
