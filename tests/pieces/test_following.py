"""A follower that is brought up to date while the state changes, by a snapshot or by healing."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pieces.pairs import change, pair, retained, session, settle, state_of, subscription, words_to
from tests.pieces.sizes import any_size, sizes_around
from tests.replication.pair import MS

from holdfast.replication.increments import (
    Increment,
    Jumped,
    Renamed,
    RetainedNow,
    SessionGone,
    SessionNow,
    SubscriptionGone,
)
from holdfast.replication.messages import Ask, Healing, Snapshot
from holdfast.replication.roles import Role
from holdfast.replication.transfers import WORD_BYTES, WORD_INCREMENTS_MAX

SOME = st.integers(0, 12)
CHANGES = st.one_of(
    st.builds(session, SOME),
    st.builds(lambda each: SessionGone(f"c{each}"), SOME),
    st.builds(lambda serial, each: SessionNow(serial, f"c{each}", 9, None), st.integers(1, 9), SOME),
    st.builds(subscription, SOME, SOME),
    st.builds(lambda client, each: SubscriptionGone(f"c{client}", f"safe/{each}"), SOME, SOME),
    st.builds(retained, SOME, st.sampled_from([b"", b"y"])),
    st.builds(lambda each: RetainedNow(b"safe/%d" % each, None), SOME),
)


@given(
    changes=st.lists(st.lists(CHANGES, max_size=6), max_size=12),
    count_max=st.integers(1, 5),
    kept=st.sampled_from([0, 1, 30, 60, 10_000]),
    lags=st.integers(0, 30),
)
@settings(max_examples=60, deadline=None)
def test_what_changes_while_a_follower_is_brought_up_to_date_is_not_lost_or_brought_back(
    changes: list[list[Increment]], count_max: int, kept: int, lags: int
) -> None:
    group = pair(state_log_max=max(1, kept))
    primary = group.primary
    for number in range(12):
        change(primary, session(number))
        change(primary, subscription(number))
        change(primary, subscription(12 - number, client=0))
        change(primary, retained(number))
        if number == 12 - lags:
            settle(group)
            group.crash("b")
    if "b" in group.members:
        group.crash("b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.replication.transfers.WORD_INCREMENTS_MAX", count_max)
        group.start("b")
        for some in changes:
            group.turn()
            for increment in some:
                change(primary, increment)
        settle(group)
        for increment in changes[0] if changes else []:
            change(primary, increment)
        settle(group)
    assert not [event for _, event, _ in group.events if event == "gap"]


# Healing


@pytest.mark.parametrize("size", sizes_around(WORD_INCREMENTS_MAX))
@pytest.mark.parametrize("length", [1, 40_000])
def test_healing_of_any_size_arrives_whole(size: int, length: int) -> None:
    group = pair(packet_bytes_max=50_000)
    group.crash("b")
    for number in range(size):
        change(group.primary, retained(number, b"%d" % number + bytes(length)))
    group.start("b")
    words = words_to(group, "b")
    settle(group)
    healing = [word for word in words if isinstance(word, Healing)]
    assert not any(isinstance(word, Snapshot) for word in words)
    assert len(healing) > size * length // (WORD_BYTES + length)
    assert sum(len(word.increments) for word in healing) >= size
    assert len(state_of(group.members["b"].broker)) == size


@given(
    size=any_size(20),
    count_max=st.integers(1, 20),
    again=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 60)), max_size=4),
    grows=st.lists(st.integers(0, 9), max_size=30),
    kept=st.sampled_from([10, 40, 10_000]),
)
@settings(max_examples=60, deadline=None)
def test_a_follower_that_asks_again_while_it_is_healed_takes_each_increment_once(
    size: int, count_max: int, again: list[tuple[int, int]], grows: list[int], kept: int
) -> None:
    """Whatever it said it had: an answer to an earlier question may still be on its way."""
    group = pair(state_log_max=kept)
    primary = group.primary
    group.crash("b")
    for number in range(size):
        change(primary, session(number))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.replication.transfers.WORD_INCREMENTS_MAX", count_max)
        backup = group.start("b")
        happened: list[Increment | Renamed | Jumped] = []
        backup.log.tap = happened
        asks = deque(again)
        for number, grow in enumerate(grows):
            group.turn()
            for each in range(grow):
                change(primary, session(100 * number + 1000 + each))
            if asks and asks[0][0] <= number and (links := primary.peers.greeted()):
                had = min(asks.popleft()[1], backup.log.number)
                primary.serving.asked(links[0], Ask(backup.log.epoch, had), group.now_ns)
        settle(group)
    jumps = [at for at, each in enumerate(happened) if isinstance(each, Jumped)]
    taken = [each for each in happened[jumps[-1] + 1 if jumps else 0 :] if not isinstance(each, Renamed)]
    assert jumps or len(taken) == backup.log.number
    since = primary.log.after(primary.log.epoch, primary.log.number - len(taken), len(taken))
    assert since is None or taken == since.increments


def test_a_healing_that_breaks_off_goes_on_where_it_broke_off() -> None:
    group = pair()
    group.crash("b")
    size = 5 * WORD_INCREMENTS_MAX + 1
    for number in range(size):
        change(group.primary, session(number))
    backup = group.start("b")
    while backup.log.number < 2 * WORD_INCREMENTS_MAX:
        group.now_ns += MS
        group.turn()
    had = backup.log.number
    assert had < size
    (peer,) = [each for each in backup.peers.all() if backup.follows(each)]
    backup.peers.close(peer)
    words = words_to(group, "b")
    settle(group)
    first = next(word for word in words if isinstance(word, Healing))
    assert first.number - len(first.increments) >= had


def test_a_follower_that_had_a_part_of_a_snapshot_keeps_nothing_of_it() -> None:
    """The primary that sent it is gone, and the next one begins with nothing."""
    group = pair(state_log_max=5)
    group.crash("b")
    for number in range(3 * WORD_INCREMENTS_MAX):
        change(group.primary, session(number))
    backup = group.start("b")
    while not backup.broker.clients.sessions:
        group.now_ns += MS
        group.turn()
    assert backup.following.partial
    group.stalled.add("b")
    group.crash("a")
    group.start("a").used_max = 100  # its view is higher than any before
    group.pass_time(2 * group.config.join_wait_ns)
    assert group.members["a"].role is Role.PRIMARY
    group.stalled.clear()
    settle(group)
    assert group.primary.name == "a"
    assert not state_of(backup.broker)
    assert not backup.following.partial


def test_who_has_nothing_is_spared_a_history_that_is_much_longer_than_the_state() -> None:
    group = pair()
    group.crash("b")
    for number in range(1_000):
        change(group.primary, retained(number % 10, b"%d" % number))
    group.start("b")
    words = words_to(group, "b")
    settle(group)
    assert not any(isinstance(word, Healing) for word in words)
    assert sum(len(word.increments) for word in words if isinstance(word, Snapshot)) < 50
    assert state_of(group.members["b"].broker) == state_of(group.members["a"].broker)
